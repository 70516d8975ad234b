#!/usr/bin/env python3
"""What g++'s counters in a build folder say of the library, by file: coverage.py BUILD (tests/coverage.sh calls it).

A line is reached if it ran in any program, in any instantiation of its template. The branches of a line are those that
the compiler kept at -O1, counted once for all instantiations, if the line decides anything: on other lines they belong
to functions that were inlined there. The ways that exceptions take out of a call are no branches.
"""
import collections
import concurrent.futures
import json
import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
DECISION = re.compile(r"\b(if(?! constexpr)|for|while|switch|case|catch)\b|\?|&&|\|\|")
ROOMS = ("core", "ops", "autograd", "parallel", "layers")


def room_path(name, base):
    """The path inside the project of a file that g++ names, or None: the headers are seen through a folder of links."""
    path = pathlib.Path(os.path.realpath(os.path.join(base, name)))
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) and path.relative_to(ROOT).parts[0] in ROOMS else None


def counts_of(gcda):
    """{file: {line: (count, {branch: count})}} of one object."""
    command = ["gcov", "--json-format", "--stdout", "--branch-probabilities", gcda.name]
    run = subprocess.run(command, cwd=gcda.parent, capture_output=True)
    found = {}
    for text in run.stdout.splitlines():
        data = json.loads(text)
        for file in data["files"]:
            path = room_path(file["file"], data["current_working_directory"])
            if path is None:
                continue
            lines = found.setdefault(path, {})
            for line in file["lines"]:
                count, branches = lines.setdefault(line["line_number"], [0, collections.Counter()])
                lines[line["line_number"]][0] = count + line["count"]
                for i, branch in enumerate(b for b in line["branches"] if not b["throw"]):
                    branches[i] += branch["count"]
    return found


def merged(build):
    total = {}
    with concurrent.futures.ProcessPoolExecutor() as pool:
        for found in pool.map(counts_of, sorted(build.rglob("*.gcda")), chunksize=4):
            for path, lines in found.items():
                into = total.setdefault(path, {})
                for number, (count, branches) in lines.items():
                    entry = into.setdefault(number, [0, collections.Counter()])
                    entry[0] += count
                    for i, n in branches.items():
                        entry[1][i] += n
    return total


def share(reached, all_of):
    return f"{reached:6} of {all_of:6} {100 * reached / all_of if all_of else 100:6.1f} %"


def main():
    build = pathlib.Path(sys.argv[1]).resolve()
    rows, unreached = [], []
    for path, lines in sorted(merged(build).items()):
        if not lines:  # a header of declarations
            continue
        text = (ROOT / path).read_text(encoding="utf-8").splitlines()
        for number, (count, branches) in sorted(lines.items()):
            if not DECISION.search(text[number - 1].split("//")[0]):
                branches.clear()
            never = sum(n == 0 for n in branches.values())
            if count == 0 or never:
                what = "line" if count == 0 else f"{never} of {len(branches)}"
                unreached.append(f"{path}:{number}: {what}: {text[number - 1].strip()}")
        sides = [n for _, branches in lines.values() for n in branches.values()]
        rows.append((path, sum(c > 0 for c, _ in lines.values()), len(lines), sum(n > 0 for n in sides), len(sides)))

    out = [f"{'file':44} {'lines':>25} {'branches':>25}"]
    rows.sort(key=lambda r: (r[1] / r[2], r[3] / max(r[4], 1)))
    for path, *n in rows:
        out.append(f"{path:44} {share(*n[:2])} {share(*n[2:])}")
    for name, kind in (("sources", ".cpp"), ("headers", ".h"), ("all", "")):
        sums = [sum(r[i] for r in rows if r[0].endswith(kind)) for i in range(1, 5)]
        out.append(f"{name:44} {share(*sums[:2])} {share(*sums[2:])}")
    (build / "table.txt").write_text("\n".join(out) + "\n", encoding="utf-8")
    (build / "unreached.txt").write_text("\n".join(unreached) + "\n", encoding="utf-8")
    print("\n".join(out[:1] + out[-3:]))
    print(f"coverage: {build / 'table.txt'} has the files, {build / 'unreached.txt'} each line that nothing reached")


if __name__ == "__main__":
    main()
