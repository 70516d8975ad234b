#!/usr/bin/env python3
"""The counts, times and ratios of the pages, written by what measured them.

  tests/run.sh; tests/run.sh --cuda                     # each leaves build/release/summary*.txt
  python3 tests/bench/compare.py build/bench/tests/bench/sluice_bench --quick --seconds 0.7 --rounds 5 --json build/compare.json
  python3 tests/bench/compare.py … --quick --precision bf16 --peers eager --json build/compare_bf16.json
  python3 docs/claims.py                                # rewrites the pages
  python3 docs/claims.py --check                        # changes nothing; status 1 if it would

README.md has the lines of the weekend's files and two ratios, docs/INSTALL.md the sizes, tests/README.md the tests,
tests/bench/README.md the table of ratios. What was not measured stays as it is and is named. Every sentence below must
be found once.
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


class Page:
    def __init__(self, name):
        self.name, self.path = name, ROOT / name
        self.before = self.text = self.path.read_text(encoding="utf-8")

    def put(self, pattern, value):
        """`pattern` has one group, which becomes `value`. A space may be the end of a line; it stays one."""
        found = list(re.finditer(pattern.replace(" ", r"\s+"), self.text, re.S))
        if len(found) != 1:
            sys.exit(f"claims: {self.name} has {len(found)} of: {pattern}")
        a, b = found[0].span(1)
        spaces = re.findall(r"\s+", found[0].group(1))
        if "|" not in value and len(spaces) == value.count(" "):
            value = "".join(word + space for word, space in zip(value.split(" "), [*spaces, ""]))
        self.text = self.text[:a] + value + self.text[b:]


def weekend(page):
    """The lines of the files that each row of the reading path links to, and their sum."""
    rows = re.findall(r"^\| (\[[^|]*\)) \| [\d,]+ \| [^|]+ \|$", page.text, re.M)
    if len(rows) < 3:
        sys.exit(f"claims: {page.name} has {len(rows)} rows of files and lines")
    total = 0
    for files in rows:
        texts = [(ROOT / f).read_text(encoding="utf-8") for f in re.findall(r"\]\(([^)]+)\)", files)]
        lines = sum(len(text.splitlines()) for text in texts)
        escaped = re.escape(files).replace("\\ ", " ")
        page.put(rf"\| {escaped} \| ([\d,]+) \|", f"{lines:,}")
        total += lines
    page.put(r"## Read it in a weekend: ([\d,]+) lines\n", f"{total:,}")


def main():
    names = "README.md", "docs/INSTALL.md", "tests/README.md", "tests/bench/README.md"
    pages, missing = [Page(name) for name in names], []
    readme, install, tests, bench = pages
    weekend(readme)
    library = ("core", "ops", "autograd", "parallel", "layers")
    install.put(r"About ([\d,]+) lines of library code", f"{round(lines_of(*library), -3):,}")
    install.put(r"lines of library code and another ([\d,]+) of the CUDA backend", f"{round(lines_of('cuda'), -2):,}")
    plain, cuda = BUILD / "release/summary.txt", BUILD / "release/summary-cuda.txt"
    if plain.exists():
        s = summary(plain)
        install.put(r"clean build of library, tests and examples in (\d+) s", str(s["build"]))
        tests.put(r"`docs/claims.py` writes it: ([\d,]+ test cases, [\d,]+ assertions, \d+ seconds)",
                  f"{s['cases']:,} test cases, {round(s['assertions'], -3):,} assertions, {s['seconds']} seconds")
    else:
        missing.append(str(plain))
    for last in sorted((path for path in (plain, cuda) if path.exists()), key=lambda path: path.stat().st_mtime)[-1:]:
        install.put(r"CUDA backend, an? ([\d.]+) MiB shared library", f"{summary(last)['kib'] / 1024:.1f}")
    if cuda.exists():
        s = summary(cuda)
        tests.put(r"with `--cuda` (\d[\d,]* and [\d,]+ in \d+ seconds, after a build of \d+)\.",
                  f"{s['cases']:,} and {round(s['assertions'], -3):,} in {s['seconds']} seconds, after a build of {s['build']}")
    else:
        missing.append(str(cuda))
    if (BUILD / "compare.json").exists():
        rows = timed(rows_of(BUILD / "compare.json"))
        bench.put(r"\| group \| rows \|[^\n]*\n\|[-|]*\n(.*?)\n\n", speed_table(rows))
        eager = ratios(rows, "eager")
        bench.put(r"All (\d+ rows: [\d.]+× PyTorch eager \(\d+ won, \d+ lost\), [\d.]+× torch.compile, [\d.]+× JAX)",
                  f"{len(eager)} rows: {times(geometric(eager))} PyTorch eager ({sum(r >= 1 for r in eager)} won, {sum(r < 1 for r in eager)} lost), "
                  f"{times(geometric(ratios(rows, 'compile')))} torch.compile, {times(geometric(ratios(rows, 'jax')))} JAX")
        readme.put(r"with AMX, (\d+) rows of", str(len(eager)))
        readme.put(r"are ([\d.]+×) as fast as PyTorch eager", times(geometric(eager)))
        readme.put(r"eager, ([\d.]+×) as torch.compile", times(geometric(ratios(rows, "compile"))))
    else:
        missing.append("build/compare.json")
    if (BUILD / "compare_bf16.json").exists():
        rows = [row for row in rows_of(BUILD / "compare_bf16.json") if row["name"].split("/")[0] in ("matmul", "layer", "train")]
        steps = [row for row in rows if row["name"].startswith("train/")]
        bench.put(r"autocast: (\d+) rows of products", str(len(rows)))
        bench.put(r"layers and steps ([\d.]+×), training steps", times(geometric(ratios(rows, "eager"))))
        bench.put(r"layers and steps [\d.]+×, training steps ([\d.]+×)\.", times(geometric(ratios(steps, "eager"))))
    else:
        missing.append("build/compare_bf16.json")

    for path in missing:
        print(f"claims: {path} is not there; what it says was left alone")
    wrong = [page for page in pages if page.text != page.before]
    if not wrong:
        print("claims: the pages say what was measured")
        return 0
    for page in wrong:
        if "--check" in sys.argv:
            print(f"claims: {page.name} says something else than what was measured")
        else:
            page.path.write_text(page.text, encoding="utf-8")
            print(f"claims: {page.name} rewritten")
    return 1 if "--check" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())
