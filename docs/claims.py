#!/usr/bin/env python3
"""The README's counts, times and ratios, written by what measured them.

  tests/run.sh; tests/run.sh --cuda                     # each leaves build/release/summary*.txt
  python3 tests/bench/compare.py build/bench/tests/bench/sluice_bench --quick --seconds 0.7 --rounds 5 --json build/compare.json
  python3 tests/bench/compare.py … --quick --precision bf16 --peers eager --json build/compare_bf16.json
  python3 docs/claims.py                                # rewrites README.md
  python3 docs/claims.py --check                        # changes nothing; status 1 if it would

What was not measured stays as it is and is named. Every sentence below must be found once.
"""
import json
import math
import pathlib
import re
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = ROOT / "build"
LABELS = {
    "elementwise": "elementwise (gelu, SwiGLU, a chain of six, add)",
    "op": "softmax, cross entropy, norm, embedding, transpose",
    "matmul": "bare products (mm, bmm, linear + gelu)",
    "layer": "layers at (16×128, 256) and (4×1024, 512)",
    "train": "training steps with AdamW: GAU, FLASH, gated SDPA",
    "generate": "generation, batch 1",
    "tiny": "a recorded tiny op, per node",
}
PEERS = ("eager", "compile", "jax")


def geometric(values):
    return math.exp(statistics.fmean(map(math.log, values)))


def times(value, digits=2):
    return f"{value:.{digits}f}×" if value < 10 else f"{value:.0f}×"


def lines_of(*folders, kinds=(".h", ".cpp", ".cu", ".cuh")):
    files = subprocess.run(["git", "ls-files", *folders], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    return sum(len((ROOT / f).read_text(encoding="utf-8").splitlines()) for f in files if f.endswith(kinds))


def rows_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def ratios(rows, peer):
    return [row[peer]["ratio"] for row in rows if "ratio" in row.get(peer, {})]


def timed(rows):
    return [row for row in rows if row["name"].split("/")[0] in LABELS]


def summary(path):
    """What tests/run.sh says at its end."""
    text = path.read_text()
    number = lambda pattern: int(re.search(pattern, text).group(1).replace(",", ""))
    if "tests: passed" not in text:
        sys.exit(f"claims: {path} is of a run that did not pass")
    return {
        "build": number(r"built in (\d+) s"),
        "kib": number(r"has (\d+) KiB"),
        "seconds": number(r"all tests took (\d+) s"),
        "assertions": sum(map(int, re.findall(r"\((\d+) assertions? in", text))),
        "cases": sum(map(int, re.findall(r"in (\d+) test cases?\)", text))),
    }


def speed_table(rows):
    out = []
    for group, label in LABELS.items():
        mine = [row for row in rows if row["name"].split("/")[0] == group]
        eager = [row for row in mine if "ratio" in row.get("eager", {})]
        if not eager:
            continue
        best, worst = (f(eager, key=lambda row: row["eager"]["ratio"]) for f in (max, min))
        kinds = [row["name"].split("/")[1] for row in eager]

        def name(row):  # with its size where there are several
            _, kind, size = row["name"].split("/")
            return kind.replace("_", " ") + (f" {size.replace('x', '×')}" if kinds.count(kind) > 1 else "")

        cells = [label, str(len(eager)), f"**{times(geometric(ratios(eager, 'eager')))}**"]
        cells += [f"{name(row)} {times(row['eager']['ratio'])}" for row in (best, worst)] if len(eager) > 1 else ["", ""]
        cells += [times(geometric(ratios(mine, p))) if ratios(mine, p) else "" for p in PEERS[1:]]
        out.append("| " + " | ".join(cells) + " |")
    return "\n".join(out)


class Readme:
    def __init__(self):
        self.path = ROOT / "README.md"
        self.before = self.text = self.path.read_text(encoding="utf-8")

    def put(self, pattern, value):
        """`pattern` has one group, which becomes `value`."""
        found = list(re.finditer(pattern, self.text, re.S))
        if len(found) != 1:
            sys.exit(f"claims: README.md has {len(found)} of: {pattern}")
        a, b = found[0].span(1)
        self.text = self.text[:a] + value + self.text[b:]


def main():
    readme, missing = Readme(), []
    library = ("core", "ops", "autograd", "parallel", "layers")
    readme.put(r"About\s([\d,]+) lines of library code", f"{round(lines_of(*library), -3):,}")
    readme.put(r"lines of library code, ([\d,]+) of its CUDA backend", f"{round(lines_of('cuda'), -2):,}")
    plain, cuda = BUILD / "release/summary.txt", BUILD / "release/summary-cuda.txt"
    if plain.exists():
        s = summary(plain)
        readme.put(r"CUDA backend, a ([\d.]+) MiB shared library", f"{s['kib'] / 1024:.1f}")
        readme.put(r"clean build of library, tests and examples in\s(\d+) s", str(s["build"]))
        readme.put(r"Today: ([\d,]+ test cases, [\d,]+ assertions, \d+ seconds)",
                   f"{s['cases']:,} test cases, {round(s['assertions'], -3):,} assertions, {s['seconds']} seconds")
    else:
        missing.append(str(plain))
    if cuda.exists():
        s = summary(cuda)
        readme.put(r"with `--cuda` (\d[\d,]* and [\d,]+ in \d+, built in \d+);",
                   f"{s['cases']:,} and {round(s['assertions'], -3):,} in {s['seconds']}, built in {s['build']}")
    else:
        missing.append(str(cuda))
    if (BUILD / "compare.json").exists():
        rows = timed(rows_of(BUILD / "compare.json"))
        readme.put(r"\| group \| rows \|[^\n]*\n\|[-|]*\n(.*?)\n\n", speed_table(rows))
        eager = ratios(rows, "eager")
        readme.put(r"All (\d+ rows: [\d.]+× PyTorch eager \(\d+ won, \d+ lost\), [\d.]+× torch.compile, [\d.]+× JAX)",
                   f"{len(eager)} rows: {times(geometric(eager))} PyTorch eager ({sum(r >= 1 for r in eager)} won, {sum(r < 1 for r in eager)} lost), "
                   f"{times(geometric(ratios(rows, 'compile')))} torch.compile, {times(geometric(ratios(rows, 'jax')))} JAX")
    else:
        missing.append("build/compare.json")
    if (BUILD / "compare_bf16.json").exists():
        rows = [row for row in rows_of(BUILD / "compare_bf16.json") if row["name"].split("/")[0] in ("matmul", "layer", "train")]
        steps = [row for row in rows if row["name"].startswith("train/")]
        readme.put(r"autocast: (\d+ rows of products, layers and steps [\d.]+×, training steps [\d.]+×)",
                   f"{len(rows)} rows of products, layers and steps {times(geometric(ratios(rows, 'eager')))}, training steps {times(geometric(ratios(steps, 'eager')))}")
    else:
        missing.append("build/compare_bf16.json")

    for path in missing:
        print(f"claims: {path} is not there; what it says was left alone")
    if readme.text == readme.before:
        print("claims: README.md says what was measured")
        return 0
    if "--check" in sys.argv:
        print("claims: README.md says something else than what was measured")
        return 1
    readme.path.write_text(readme.text, encoding="utf-8")
    print("claims: README.md rewritten")
    return 0


if __name__ == "__main__":
    sys.exit(main())
