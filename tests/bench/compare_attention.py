#!/usr/bin/env python3
"""Memory and time of attention against sequence length, beside PyTorch.

    python3 tests/bench/compare_attention.py build/bench/tests/bench/bench_attention [--max 32768] [--rounds 3]

Every figure comes from a process of its own; the two sides run in turn. Causal, batch 1, 4 heads of 64, f32,
forward + backward. Peak memory is the growth of the resident set. PyTorch (CPU) must be importable; it is no
dependency of Sluice. Sizes whose n x n matrices would not fit in half of the machine's memory are skipped.
"""
import argparse
import math
import os
import statistics
import subprocess
import sys

PEER = r"""
import sys, time, torch
import torch.nn.functional as F
kind, n, runs = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
def status(field):
    for line in open("/proc/self/status"):
        if line.startswith(field): return float(line.split()[1]) / 1024
def naive(q, k, v):
    s = q @ k.transpose(-2, -1) / 8
    s = s.masked_fill(torch.ones(s.shape[-2:], dtype=torch.bool).triu(1), float("-inf"))
    return torch.softmax(s, -1) @ v
f = naive if kind == "naive" else lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True)
x = [torch.randn(1, 4, n, 64, requires_grad=True) for _ in range(3)]
small = [torch.randn(1, 4, 64, 64, requires_grad=True) for _ in range(3)]
f(*small).sum().backward()
open("/proc/self/clear_refs", "w").write("5")
before = status("VmRSS:")
seed = torch.ones(1, 4, n, 64)
fwd = bwd = 1e30
for _ in range(runs):
    t = time.perf_counter(); y = f(*x); fwd = min(fwd, time.perf_counter() - t)
    t = time.perf_counter(); y.backward(seed); bwd = min(bwd, time.perf_counter() - t)
    for t in x: t.grad = None
print(fwd, bwd, status("VmHWM:") - before)
"""


def measure(command, rounds):
    rows = []
    for _ in range(rounds):
        out = subprocess.run(command, capture_output=True, text=True)
        if out.returncode:
            sys.exit(f"{' '.join(map(str, command))[:200]}: {out.stderr}")
        rows.append([float(v) for v in out.stdout.split()])
    return [statistics.median(column) for column in zip(*rows)]


def slope(points):
    """Least-squares slope of log t against log n."""
    xs, ys = [math.log(n) for n, _ in points], [math.log(t) for _, t in points]
    mx, my = statistics.mean(xs), statistics.mean(ys)
    return sum((x - mx) * (y - my) for x, y in zip(xs, ys)) / sum((x - mx) ** 2 for x in xs)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("bench")
    parser.add_argument("--max", type=int, default=32768)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    sizes = [n for n in (1024, 2048, 4096, 8192, 16384, 32768) if n <= args.max]

    print("softmax attention, forward + backward: peak MiB, seconds")
    print(f"{'n':>6} {'Sluice':>18} {'PyTorch SDPA':>18} {'Sluice naive':>18} {'PyTorch naive':>18}   SDPA/Sluice time")
    curves = {}
    for n in sizes:
        runs = 3 if n <= 4096 else 1
        cells, times = [], {}
        for name in ("engine", "sdpa", "naive", "peer_naive"):
            if "naive" in name and 6 * 4 * 4 * n * n > total / 2:
                cells.append("too large")
                continue
            command = ([args.bench, name, str(n), "--runs", str(runs)] if name in ("engine", "naive") else
                       [sys.executable, "-c", PEER, "naive" if "naive" in name else name, str(n), str(runs)])
            f, b, mib = measure(command, args.rounds)
            times[name] = f + b
            curves.setdefault(name, []).append((n, mib))
            cells.append(f"{mib:8.0f} {f + b:8.3f}s")
        print(f"{n:>6} " + " ".join(f"{c:>18}" for c in cells) + f"   {times['sdpa'] / times['engine']:.2f}", flush=True)
    for name, points in curves.items():
        if len(points) > 2:
            print(f"memory slope in log-log, {name}: {slope([(n, max(m, 1)) for n, m in points]):.2f}")

    print("\nlayers 256 wide, causal, forward + backward: seconds, peak MiB")
    kinds = ("flash", "linear", "gla")
    print(f"{'n':>6} " + " ".join(f"{k:>22}" for k in kinds))
    curves = {}
    for n in sizes:
        cells = []
        for kind in kinds:
            f, b, mib = measure([args.bench, kind, str(n), "--runs", "3"], args.rounds)
            curves.setdefault(kind, []).append((n, f + b))
            cells.append(f"{f + b:9.4f}s {mib:7.0f} MiB")
        print(f"{n:>6} " + " ".join(f"{c:>22}" for c in cells), flush=True)
    for kind, points in curves.items():
        print(f"time slope in log-log, {kind}: {slope(points):.3f}")


if __name__ == "__main__":
    main()
