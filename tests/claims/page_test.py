#!/usr/bin/env python3
"""The page of claims.sh, from results made up here. Called by ctest: page_test.py SOURCE OUT"""
import json
import pathlib
import re
import shutil
import subprocess
import sys

source, out = (pathlib.Path(p).resolve() for p in sys.argv[1:])
sys.dont_write_bytecode = True
sys.path.insert(0, str(source / "tests/house"))
from shown import failures, shown_by_pages  # noqa: E402

script = source / "examples/claims/page.py"
table = json.loads((source / "examples/claims/claims.json").read_text(encoding="utf-8"))


TITLE = "Loss of [made-up] models"
SVG = f"""<svg xmlns="http://www.w3.org/2000/svg" role="img"><title>{TITLE}</title><desc>a made-up picture</desc>
<style>@media(prefers-color-scheme:dark){{}}</style></svg>"""


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


measured = [(row, part) for row in table for part in row.get("measured", [])]
parts = [part.get("part", row["id"]) for row, part in measured]
assert len(parts) >= 20, "this test is broken"
minutes = f"{round(sum(part['seconds'] for _, part in measured) / 60)} minutes"
for page_with_time in ("examples/claims.sh", "examples/claims/README.md"):
    assert minutes in (source / page_with_time).read_text(encoding="utf-8"), f"{page_with_time} does not say {minutes}"
first, again, tree = out / "first", out / "again", out / "tree"
docs = tree / "docs"
wrong = next(row for row in table if row.get("error"))["id"]
made_up = [result(p, "contradicted" if p == wrong else "shown") for p in parts]
made_up[0]["picture"] = "made_up.svg"
# A long sentence, with what must not begin a line of Markdown in many of its places.
made_up[1]["why"] = " ".join(f"the figure {n} - of {n}. places | # {n}" for n in range(40))
write(first, made_up)
(first / "made_up.svg").write_text(SVG, encoding="utf-8")
write(again, [result(p, "shown", value=9.0 if p == "C1" else 2.4) for p in parts])
shutil.rmtree(tree, ignore_errors=True)
(docs / "pictures/claims").mkdir(parents=True)
(docs / "pictures/claims/of_last_time.svg").write_text(SVG, encoding="utf-8")
said = page("--out", first, "--again", again, "--docs", docs)
text = (first / "CLAIMS.md").read_text(encoding="utf-8")
assert "C1: a figure: 2.0 ± 0.5 %; as printed 3 %, then 9.0 ± 0.5" in text, "a figure that does not repeat"
words = " ".join(text.split())
count = len(parts)
assert f"Of {count} figures, {count} of them with a spread, 1 differ by more than their joint spread" in words
assert f"chance alone lets about {round(count / 20)} differ" in words
assert f"Verdicts that changed: {wrong} was contradicted, then shown." in words
assert text.count("| contradicted |") == 1
assert "`claim_x --only C1` took 1.0 s." in text
assert f"* [{wrong}](#{wrong.lower()}), " in text, "an error of a source that the figures contradict"
# docs gets a page when every row has a result.
finished = all("measured" in row or "paper_only" in row for row in table)
assert (docs / "CLAIMS.md").exists() == finished, said


def columns():
    return subprocess.run(["bash", source / "tests/house/columns.sh", docs / "CLAIMS.md"], capture_output=True, text=True)


# The page obeys the rules of the house, which a longer line and a picture that nobody shows break.
if finished:
    assert columns().returncode == 0, columns().stdout
    assert f"![{made_up[0]['claim']}: Loss of (made-up) models](pictures/claims/made_up.svg)" in (
        docs / "CLAIMS.md").read_text(encoding="utf-8")
    assert not shown_by_pages(tree) and not failures, failures
    begin = re.findall(r"^ *(?:[#|>!]|[-+] |\d+\. ).*", (docs / "CLAIMS.md").read_text(encoding="utf-8"), re.M)
    strange = [line for line in begin if not re.match(r"#{1,2} [A-Z]|\| |\|-|!\[C", line)]
    assert not strange, strange
    shutil.copy(docs / "pictures/claims/made_up.svg", docs / "pictures/claims/unseen.svg")
    shown_by_pages(tree)
    assert failures == ["docs/CLAIMS.md does not show unseen.svg"], failures
    with open(docs / "CLAIMS.md", "a", encoding="utf-8") as file:
        file.write("µ" * 121 + "\n")
    assert "121 columns" in columns().stdout and columns().returncode == 1
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
