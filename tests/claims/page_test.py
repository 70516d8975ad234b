#!/usr/bin/env python3
"""The page of claims.sh, from results made up here. Called by ctest: page_test.py SOURCE OUT"""
import json
import pathlib
import shutil
import subprocess
import sys

source, out = map(pathlib.Path, sys.argv[1:])
script = source / "examples/claims/page.py"
table = json.loads((source / "examples/claims/claims.json").read_text(encoding="utf-8"))


def result(part, verdict, value=2.0, spread=0.5):
    figure = {"name": "a figure", "value": value, "spread": spread, "unit": "%", "said": 3}
    figure["text"] = f"{value} ± {spread}"
    return {"claim": part, "figures": [figure], "verdict": verdict, "why": f"{part} is made up", "size": "",
            "picture": "", "command": f"claim_x --only {part}", "seconds": 1.0}


def write(folder, results):
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for r in results:
        (folder / f"{r['claim']}.json").write_text(json.dumps(r), encoding="utf-8")


def page(*options, fails=False):
    done = subprocess.run([sys.executable, script, *map(str, options)], capture_output=True, text=True)
    assert (done.returncode != 0) == fails, (options, done.stdout, done.stderr)
    return done.stderr if fails else done.stdout


parts = [part.get("part", row["id"]) for row in table for part in row.get("measured", [])]
assert len(parts) >= 20, "this test is broken"
first, again, docs = out / "first", out / "again", out / "docs"
wrong = next(row for row in table if row.get("error"))["id"]
write(first, [result(p, "contradicted" if p == wrong else "shown") for p in parts])
write(again, [result(p, "shown", value=9.0 if p == "C1" else 2.4) for p in parts])
shutil.rmtree(docs, ignore_errors=True)
docs.mkdir(parents=True)
said = page("--out", first, "--again", again, "--docs", docs)
text = (first / "CLAIMS.md").read_text(encoding="utf-8")
assert "C1: a figure: 2.0 ± 0.5 %; as printed 3 %, then 9.0 ± 0.5" in text, "a figure that does not repeat"
assert f"Of {len(parts)} figures 1 differ" in text
assert text.count("| contradicted |") == 1
assert "`claim_x --only C1` took 1.0 s." in text
assert f"* [{wrong}](#{wrong.lower()}), " in text, "an error of a source that the figures contradict"
# docs gets a page when every row has a result.
finished = all("measured" in row or "paper_only" in row for row in table)
assert (docs / "CLAIMS.md").exists() == finished, said
(first / f"{wrong}.json").unlink()
(docs / "CLAIMS.md").unlink(missing_ok=True)
assert wrong in page("--out", first, "--docs", docs) and not (docs / "CLAIMS.md").exists()
assert f"* [{wrong}](#" not in (first / "CLAIMS.md").read_text(encoding="utf-8"), "an error without a figure"
write(first, [result("C1", "splendid")])
assert "splendid" in page("--out", first, fails=True)
write(first, [])
assert "no results" in page("--out", first, fails=True)
assert "C99" in page("--list", "--only", "C1,C99", fails=True)
print(f"{len(parts)} parts of {len(table)} claims")
