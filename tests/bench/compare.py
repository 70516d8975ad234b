#!/usr/bin/env python3
"""Sluice beside PyTorch (eager, torch.compile) and JAX (jit): the tables of README.md and MEASURED.md in this folder.

    python3 tests/bench/compare.py build/bench/tests/bench/sluice_bench [--quick] [--only REGEX] [--out TABLE.md]

Each program runs in a process of its own on the same number of threads (peers.py holds the workloads of the peers). For
every workload they take turns, round by round; a ratio is the peer's time over Sluice's in the same round, and the
table shows medians. Inputs and parameters are those that sluice_bench writes to a file, and every result (outputs, all
gradients, the loss of the second step) must agree with Sluice's: |difference| / |value|, as norms of a whole tensor, at
most TOLERANCE. A peer that is not installed is named and left out; PyTorch and JAX are no dependencies of Sluice.
"""
import argparse
import json
import math
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

TOLERANCE = {"f32": 1e-4, "f64": 1e-12, "bf16": 5e-2}
TITLES = {"eager": "PyTorch eager", "compile": "torch.compile", "jax": "JAX jit", "transformers": "transformers",
          "transformers_compile": "transformers, compiled"}
PEERS = "eager,compile,jax"  # the others: with --peers, for rows of the delta family and Mamba-2
# Where a compiler has nothing to do, or would fold away what is measured.
EAGER_ONLY = r"(tiny|memory|length)/|matmul/(mm|bmm)"
SLUICE_ONLY = r"decode/"  # one model at two lengths of its context
QUICK = (r"elementwise/(gelu|swiglu|swiglu_map|chain6|chain6_map|add)/|"
         r"op/(softmax|cross_entropy|layer_norm/4|transpose|embedding)|"
         r"matmul/(mm/2048x(512|768|3072)|mm_f64/1024|bmm|linear_gelu/2048x768)|layer/.*(x256|4x1024x512)$|"
         r"train/.*(x192|512x512)x|generate/lm_gated/1x(256|2048)x|tiny/chain/100$")


class Server:
    def __init__(self, command):
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                        stderr=None if os.environ.get("COMPARE_VERBOSE") else subprocess.DEVNULL)

    def ask(self, *words):
        """Its answer; {"failed": why} if it could not, or died."""
        try:
            self.process.stdin.write(" ".join(map(str, words)) + "\n")
            self.process.stdin.flush()
            for line in self.process.stdout:  # libraries may print lines of their own
                if line.startswith(("{", "@{")):
                    answer = json.loads(line.lstrip("@"))
                    return {"failed": answer["error"]} if isinstance(answer.get("error"), str) else answer
        except (BrokenPipeError, ValueError) as e:
            return {"failed": str(e)}
        return {"failed": "the process ended"}

    def end(self):
        self.process.stdin.close()  # tells it to leave
        self.process.wait()


class Comparison:
    def __init__(self, args):
        self.args, self.folder = args, tempfile.mkdtemp(prefix="sluice_bench_")
        self.peers = {}
        for peer in args.peers.split(","):
            module = {"eager": "torch", "compile": "torch"}.get(peer, peer.split("_")[0])
            if peer == "jax" and (args.precision != "f32" or args.device != "cpu"):
                print("JAX takes part in f32 on the CPU only: left out")
            elif not self.installed(module):
                print(f"{TITLES[peer]}: {module} or safetensors is not installed, left out")
            else:
                self.peers[peer] = self.peer_server(peer)
        self.sluice = self.sluice_server()

    def end(self):
        for server in [self.sluice, *self.peers.values()]:
            server.end()
        shutil.rmtree(self.folder)

    @staticmethod
    def installed(module):
        return subprocess.run([sys.executable, "-c", f"import {module}, safetensors"], capture_output=True).returncode == 0

    def sluice_server(self):
        return Server([self.args.bench, "--serve", "--threads", str(self.args.threads), "--device", self.args.device] +
                      (["--precision", self.args.precision] if self.args.precision != "f32" else []))

    def peer_server(self, peer):
        peers = os.path.join(os.path.dirname(os.path.abspath(__file__)), "peers.py")
        return Server([sys.executable, peers, peer, str(self.args.threads), self.args.precision, self.args.device])

    def row(self, name):
        """{"name", "sluice": {...}, peer: {"seconds", "ratio", "error"} or {"failed"}}."""
        path = os.path.join(self.folder, "case.safetensors")
        peers = [] if re.match(SLUICE_ONLY, name) else [
            p for p in self.peers if p == "eager" or not re.match(EAGER_ONLY, name)]
        if name.startswith("memory/"):
            return self.memory_row(name, path, peers)
        row = {"name": name, "sluice": self.sluice.ask("save", name, path)}
        if "failed" in row["sluice"]:
            return row
        for peer in peers:
            row[peer] = self.peers[peer].ask("load", name, path)
        os.unlink(path)
        there = [p for p in peers if "failed" not in row[p]]
        times = {p: [] for p in ["sluice", *there]}
        for i in range(self.args.rounds if row["sluice"]["seconds"] < 0.7 else 2):
            for p in times if i % 2 == 0 else reversed(times):
                time.sleep(0.02)  # the other's threads may still spin
                server = self.sluice if p == "sluice" else self.peers[p]
                answer = server.ask("run", name, self.args.seconds / self.args.rounds)
                times[p].append(answer.get("seconds", math.nan))
                if p == "sluice":
                    row["sluice"] = answer
                    if "failed" in answer:
                        return {"name": name, "sluice": answer}
        for p in there:
            row[p]["seconds"] = statistics.median(times[p])
            row[p]["ratio"] = statistics.median(theirs / ours for theirs, ours in zip(times[p], times["sluice"]))
        median = statistics.median(times["sluice"])
        for share in ("share_of_limit", "share_of_kernels"):
            row["sluice"][share] *= row["sluice"]["seconds"] / median
        row["sluice"]["seconds"] = median
        return row

    def memory_row(self, name, path, peers):
        def alone(start, *words):
            server = start()
            answer = server.ask(*words)
            server.end()
            return answer
        row = {"name": name, "sluice": alone(self.sluice_server, "memory", name, path)}
        for peer in peers:
            row[peer] = alone(lambda: self.peer_server(peer), "memory", name, path)
            if "failed" not in row[peer] and "failed" not in row["sluice"]:
                row[peer]["ratio"] = row[peer]["rss_bytes"] / row["sluice"]["rss_bytes"]
        if os.path.exists(path):
            os.unlink(path)
        return row

    def start_and_size(self):
        """Seconds from nothing to the first result, and the bytes of the libraries that this takes."""
        code = {"eager": "import torch; print(torch.ones(8).sum())",
                "jax": "import jax.numpy as jnp; print(jnp.ones(8).sum())"}
        commands = {"sluice": [self.args.bench, "--start"],
                    **{p: [sys.executable, "-c", code[p]] for p in self.peers if p in code}}

        def seconds(command):
            start = time.perf_counter()
            subprocess.run(command, capture_output=True, check=True)
            return time.perf_counter() - start
        libraries = subprocess.run(["ldd", self.args.bench], capture_output=True, text=True).stdout
        mine = re.search(r"=> (\S*libsluice\.so\S*)", libraries)
        rows = [{"name": "start/first_sum/8"}, {"name": "start/library_bytes/1"}]
        for p, command in commands.items():
            rows[0][p] = {"seconds": statistics.median(seconds(command) for _ in range(3))}
            if p == "sluice":
                size = os.path.getsize(os.path.realpath(mine[1])) if mine else math.nan
            else:
                find = f"import {'torch' if p == 'eager' else 'jaxlib'} as m; print(m.__path__[0])"
                where = subprocess.run([sys.executable, "-c", find], capture_output=True, text=True).stdout.strip()
                size = sum(os.path.getsize(os.path.join(folder, f)) for folder, _, files in os.walk(where)
                           for f in files if ".so" in f and not re.search("cuda|cudnn|nccl|nvrtc", f))
            rows[1][p] = {"library_bytes": size}
        for row in rows:
            for p in row.keys() & set(TITLES):
                ours, theirs = (next(iter(row[side].values())) for side in ("sluice", p))
                row[p]["ratio"] = theirs / ours
        return rows


def amount(cell):
    if "seconds" in cell:
        s = cell["seconds"]
        return f"{s:.3g} s" if s >= 1 else f"{s * 1e3:.3g} ms" if s >= 1e-3 else f"{s * 1e6:.3g} µs"
    size = cell.get("rss_bytes", cell.get("library_bytes", math.nan))
    return f"{size / 2**20:.3g} MiB" if size < 1e10 else f"{size / 2**30:.3g} GiB"


def geometric(values):
    return math.exp(statistics.fmean(map(math.log, values))) if values else math.nan


def table(machine, rows, peers, args):
    """Markdown. A ratio above 1: Sluice is that many times faster, or smaller."""
    ratios = lambda row: {p: row[p]["ratio"] for p in peers if "ratio" in row.get(p, {})}
    limit = {key: f"{value:.3g}" for key, value in machine.items() if isinstance(value, float)}
    lines = [f"{machine['machine']}, {args.precision}. Multiply-adds: {limit['fma_f32_gflops']} GFLOP/s f32, "
             f"{limit['fma_f64_gflops']} f64, {limit['bf16_gflops']} bf16. Copy: {limit['copy_gbs']} GB/s in "
             f"arrays of 16 MiB, {limit['large_copy_gbs']} of 256 MiB; triad {limit['triad_gbs']}.", "",
             f"`{' '.join(['compare.py', *sys.argv[1:]])}`", ""]
    head = ("| {} | Sluice | per token, node | of the limit | of its kernels' | " +
            " | ".join(TITLES[p] for p in peers) + " | where |")
    for group in dict.fromkeys(row["name"].split("/")[0] for row in rows):
        mine = [row for row in rows if row["name"].split("/")[0] == group]
        lines += [head.format(group), "|---" * (6 + len(peers)) + "|"]
        for row in mine:
            ours = row["sluice"]
            cells = [row["name"].split("/", 1)[1], ours["failed"] if "failed" in ours else amount(ours)]
            items = ours.get("items", 1)
            cells.append(amount({"seconds": ours["seconds"] / items}) if items > 1 and "seconds" in ours else "")
            for share in ("share_of_limit", "share_of_kernels"):
                cells.append(f"{100 * ours[share]:.0f} %" if share in ours else "")
            for p in peers:
                cell = row.get(p, {})
                text = "failed" if "failed" in cell else "—"
                if "ratio" in cell:
                    text = f"{amount(cell)}, **{cell['ratio']:.2f}×**"
                cells.append(text + (" (differs!)" if cell.get("differs") else ""))
            lines.append("| " + " | ".join([*cells, ours.get("where", "")]) + " |")
        lines += ["| **geometric mean** | | | | | " + " | ".join(score([ratios(r)[p] for r in mine if p in ratios(r)])
                                                           for p in peers) + " | |", ""]
    timed = [row for row in rows if row["name"].split("/")[0] not in ("memory", "start")]
    compiled = [min(r[p] for p in ("compile", "jax") if p in r) for r in map(ratios, timed) if r.keys() & {"compile", "jax"}]
    lines += [f"All {len(timed)} timed rows: " + "; ".join(
        f"{TITLES[p]} {score([ratios(r)[p] for r in timed if p in ratios(r)])}" for p in peers) +
        f"; the better of torch.compile and JAX {score(compiled)}."]
    return "\n".join(lines) + "\n"


def score(values):
    wins = sum(v >= 1 for v in values)
    return f"{geometric(values):.2f}×, {wins} won, {len(values) - wins} lost" if values else "—"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("bench", help="the program sluice_bench")
    parser.add_argument("--only", default="", help="regular expression for names")
    parser.add_argument("--quick", action="store_true", help="about 40 of the rows, in less time")
    parser.add_argument("--seconds", type=float, help="for each program and workload; 0.3, and 0.15 with --quick")
    parser.add_argument("--rounds", type=int, default=3, help="turns that the programs take")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--peers", default=PEERS, help=f"of {', '.join(TITLES)}")
    parser.add_argument("--precision", choices=("f32", "bf16"), default="f32", help="bf16: against torch.autocast")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="cuda: both on the same GPU")
    parser.add_argument("--out", help="file for the table")
    parser.add_argument("--json", help="file for all figures, a line for each row")
    args = parser.parse_args()
    args.seconds = args.seconds or (0.15 if args.quick else 0.3)
    comparison = Comparison(args)
    machine = comparison.sluice.ask("limits")
    names = subprocess.run([args.bench, "--list"], capture_output=True, text=True, check=True).stdout.split()
    names = [n for n in names if re.search(args.only, n) and (args.device == "cpu" or not n.startswith("memory/")) and (not args.quick or re.search(QUICK, n))]
    rows, bad = [], 0
    log = open(args.json, "w") if args.json else None
    for name in names:
        row = comparison.row(name)
        for p in comparison.peers:
            cell = row.get(p, {})
            cell["differs"] = not cell.get("error", 0) <= TOLERANCE["f64" if "f64" in name else args.precision]
            bad += cell["differs"] or "failed" in cell
        rows.append(row)
        told = [f"{TITLES[p]} {row[p]['ratio']:.2f}×" + (f" DIFFERS {row[p]['error']:.1e}" if row[p]["differs"] else "")
                if "ratio" in row[p] else f"{TITLES[p]} {row[p].get('failed')}" for p in comparison.peers if p in row]
        ours = row["sluice"]
        print(f"{name:42} {ours['failed'] if 'failed' in ours else amount(ours):>10}  " + "  ".join(told), flush=True)
        if log:
            print(json.dumps(row), file=log, flush=True)
    if not args.only:
        rows += comparison.start_and_size()
    text = table(machine, rows, list(comparison.peers), args)
    print("\n" + text)
    if args.out:
        open(args.out, "w").write(text)
    comparison.end()
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
