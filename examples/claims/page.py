#!/usr/bin/env python3
"""The table of claims, and the page of what claims.sh measured.

  page.py --list [--only C2,C6]                     # what to run: part, program, seconds, whether it needs a text
  page.py --out FOLDER [--again FOLDER2] [--docs DOCS]   # writes FOLDER/CLAIMS.md

FOLDER holds one PART.json for each measured part of a claim, FOLDER2 those of a second run. The page goes to DOCS, too,
with its pictures, if every claim has a result. Standard library only.
"""
import argparse
import collections
import datetime
import json
import math
import os
import pathlib
import platform
import re
import shutil
import sys
import textwrap
import xml.etree.ElementTree as xml

HERE = pathlib.Path(__file__).resolve().parent
COLUMNS = 120  # of prose, as tests/house/columns.sh asks
VERDICTS = ("shown", "contradicted", "not visible", "paper only", "not measured", "smoke")
# The first of these that a part has is the verdict of a claim in several parts.
WORST = ("not measured", "smoke", "contradicted", "not visible", "paper only", "shown")


def fail(message):
    sys.exit(f"claims: {message}")


def read_table():
    rows = json.loads((HERE / "claims.json").read_text(encoding="utf-8"))
    ids = [row["id"] for row in rows]
    if ids != [f"C{i}" for i in range(1, len(rows) + 1)]:
        fail(f"claims.json must have C1 to C{len(rows)} in order")
    known = {"id", "claim", "source", "measured", "paper_only", "error", "note"}
    for row in rows:
        unknown = set(row) - known
        if unknown or not row.get("claim") or not row.get("source"):
            fail(f"{row['id']}: needs claim and source; unknown: {', '.join(sorted(unknown)) or 'nothing'}")
        if "measured" in row and "paper_only" in row:
            fail(f"{row['id']}: both measured and paper only")
        for part in row.get("measured", []):
            part.setdefault("part", row["id"])
            if part["part"].split("-")[0] != row["id"]:
                fail(f"{row['id']}: the part {part['part']} belongs to another claim")
    return rows


def chosen(rows, only):
    if not only:
        return rows
    wanted = only.split(",")
    for name in wanted:
        if name not in {row["id"] for row in rows}:
            fail(f"there is no claim {name}; there are C1 to C{len(rows)}")
    return [row for row in rows if row["id"] in wanted]


def results(row, folder):
    found = []
    for part in row.get("measured", []):
        path = folder / (part["part"] + ".json")
        found.append((part, json.loads(path.read_text(encoding="utf-8")) if path.exists() else None))
    return found


def verdict_of(row, found):
    if "paper_only" in row:
        return "paper only"
    verdicts = [result["verdict"] if result else "not measured" for _, result in found] or ["not measured"]
    for verdict in verdicts:
        if verdict not in VERDICTS:
            fail(f"{row['id']}: the verdict {verdict!r} is none of {', '.join(VERDICTS)}")
    return next(v for v in WORST if v in verdicts)


def number(value):
    return f"{value:.5g}"


def figure_text(figure):
    unit = f" {figure['unit']}" if figure["unit"] else ""
    said = f"; as printed {number(figure['said'])}{unit}" if "said" in figure else ""
    return f"{figure['text']}{unit}{said}"


def repeated(first, second):
    """Figures of two runs that differ by more than their joint spread, as text."""
    theirs = {figure["name"]: figure for figure in second["figures"]}
    for figure in first["figures"]:
        other = theirs.pop(figure["name"], None)
        if other is None:
            yield f"{figure['name']}: only in the first run"
            continue
        allowed = math.hypot(figure["spread"], other["spread"]) + 1e-9 * abs(figure["value"])
        if abs(figure["value"] - other["value"]) > allowed:
            yield f"{figure['name']}: {figure_text(figure)}, then {other['text']}"
    for name in theirs:
        yield f"{name}: only in the second run"


def cell(text):
    return text.replace("|", "\\|")


def wrapped(line):
    """Prose in lines of at most COLUMNS; what belongs to an item of a list stands under its text."""
    if not line or line.startswith(("|", "!", "#")):
        return [line]
    # What would begin a heading, a list or a table at the start of a line stays behind the word before it.
    kept = re.sub(r" (?=[#>|!]|(?:[-+*=]+|\d+[.)])(?: |$))", "\0", line)
    lines = textwrap.wrap(kept, COLUMNS, subsequent_indent="  " if line.startswith("* ") else "",
                          break_long_words=False, break_on_hyphens=False)
    return [part.replace("\0", " ") for part in lines]


def words_of(picture):
    """What a picture shows, in its own words."""
    title = xml.parse(picture).getroot().findtext("{http://www.w3.org/2000/svg}title") or picture.stem
    return title.replace("[", "(").replace("]", ")")


def sentence(text):
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")


def processor():
    try:
        for line in open("/proc/cpuinfo", encoding="utf-8"):
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def head(rows, verdicts, date):
    counts = collections.Counter(verdicts.values())
    said = ", ".join(f"{counts[v]} {v}" for v in VERDICTS if counts[v])
    return [
        "# Claims about gated attention, measured", "",
        f"{len(rows)} claims of papers and texts: {said}. Written by `examples/claims.sh` on {date}, on"
        f" {os.cpu_count()} processors, {processor()}. Do not edit this page.", "",
        "* **Shown**: the figures agree with the claim, up to their spread and the tolerance that stands beside the"
        " claim in its program.",
        "* **Contradicted**: they do not; the paragraph of the claim says by how much and why.",
        "* **Not visible**: the spread covers the claim and its opposite at this size; or the figures disagree, but the"
        " claim is about accelerators or about far larger models. The paragraph says what size would show it.",
        "* **Paper only**: a processor cannot measure it.", "",
        "± is the spread: half of the 95 % interval of a mean or median, by Student's t. Times are of alternating"
        " runs. Programs compute the verdicts from the figures"
        " ([examples/claims](../examples/claims/README.md)).", ""]


def main_figure(figures):
    """The figure of the table: the first that has a printed counterpart, or the first."""
    return next((f for f in figures if "said" in f), figures[0])


def table_lines(rows, found, verdicts):
    lines = ["| | claim | source | measured | verdict |", "|---|---|---|---|---|"]
    for row in rows:
        name = row["id"]
        shown = [result for _, result in found[name] if result]
        figures = [main_figure(result["figures"]) for result in shown]
        main = "; ".join(f"{f['name']}: {figure_text(f)}" for f in figures)
        cells = (row["claim"], row["source"], main or "–", verdicts[name])
        lines.append(f"| [{name}](#{name.lower()}) | " + " | ".join(map(cell, cells)) + " |")
    return lines + [""]


def paragraph(row, found, verdict, out, pictures):
    source = row["source"].rstrip(".")
    lines = [f"## {row['id']}", "", row["claim"], "", f"Source: {source}; verdict: **{verdict}**.", ""]
    if "paper_only" in row:
        lines += [sentence(row["paper_only"]), ""]
    for _, result in found:
        if not result:
            continue
        unseen = f" What would show it: {result['size']}." if result["verdict"] == "not visible" else ""
        lines += [sentence(result["why"]) + unseen, ""]
        lines += [f"* {f['name']}: {figure_text(f)}" for f in result["figures"]]
        lines += ["", f"`{result['command']}` took {result['seconds']:.1f} s.", ""]
        if result.get("picture"):
            words = words_of(out / result["picture"])
            lines += [f"![{row['id']}: {words}]({pictures}/{result['picture']})", ""]
    if row.get("note"):
        lines += [row["note"], ""]
    return lines


def errors(rows, verdicts):
    found = [row for row in rows if row.get("error") and verdicts[row["id"]] == "contradicted"]
    lines = ["## Errors of the source texts", "", "What the measurements contradict, and the step that is wrong:", ""]
    lines += [f"* [{row['id']}](#{row['id'].lower()}), {row['source']}: {row['error']}" for row in found]
    lines += [f"* [{row['id']}](#{row['id'].lower()}), {row['source']}: {row['note']}" for row in rows
              if row.get("note") and verdicts[row["id"]] not in ("not measured", "smoke")]
    return lines + [""] if len(lines) > 4 else []


def second_run(rows, found, folder):
    if not folder:
        return []
    again = {part["part"]: result for row in rows for part, result in results(row, folder)}
    differing, verdicts, compared, drawn = [], [], 0, 0
    for row in rows:
        for part, result in found[row["id"]]:
            other = again.get(part["part"])
            if not result or not other:
                continue
            compared += len(result["figures"])
            drawn += sum(figure["spread"] > 0 for figure in result["figures"])
            differing += [f"* {part['part']}: {text}" for text in repeated(result, other)]
            if result["verdict"] != other["verdict"]:
                verdicts.append(f"{part['part']} was {result['verdict']}, then {other['verdict']}")
    lines = ["## A second run", "",
             f"The second run has other random draws. Of {compared} figures, {drawn} of them with a spread,"
             f" {len(differing)} differ by more than their joint spread, where chance alone lets about"
             f" {round(drawn / 20)} differ. "
             + (f"Verdicts that changed: {'; '.join(verdicts)}." if verdicts else "All verdicts are the same."), ""]
    return lines + differing + ([""] if differing else [])


def write_page(rows, out, again, docs):
    found = {row["id"]: results(row, out) for row in rows}
    verdicts = {row["id"]: verdict_of(row, found[row["id"]]) for row in rows}
    times = [(out / (part["part"] + ".json")).stat().st_mtime for r in found.values() for part, result in r if result]
    if not times:
        fail(f"there are no results in {out}")
    date = datetime.datetime.fromtimestamp(max(times), datetime.timezone.utc).strftime("%Y-%m-%d")

    def page(pictures):
        lines = head(rows, verdicts, date) + table_lines(rows, found, verdicts)
        lines += errors(rows, verdicts) + second_run(rows, found, again)
        for row in rows:
            lines += paragraph(row, found[row["id"]], verdicts[row["id"]], out, pictures)
        return "\n".join(part for line in lines for part in wrapped(line)).rstrip() + "\n"

    (out / "CLAIMS.md").write_text(page("."), encoding="utf-8")
    print(f"wrote {out / 'CLAIMS.md'}")
    unfinished = [name for name, verdict in verdicts.items() if verdict in ("not measured", "smoke")]
    if docs and unfinished:
        print(f"{docs / 'CLAIMS.md'} stays as it is: no result for {', '.join(unfinished)}")
    elif docs:
        (docs / "CLAIMS.md").write_text(page("pictures/claims"), encoding="utf-8")
        (docs / "pictures/claims").mkdir(parents=True, exist_ok=True)
        for old in (docs / "pictures/claims").glob("*.svg"):
            old.unlink()
        for picture in (r["picture"] for f in found.values() for _, r in f if r and r.get("picture")):
            shutil.copy(out / picture, docs / "pictures/claims" / picture)
        print(f"wrote {docs / 'CLAIMS.md'}")
    for name in VERDICTS:
        count = sum(v == name for v in verdicts.values())
        if count:
            print(f"{count} {name}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--only", default="")
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--again", type=pathlib.Path)
    parser.add_argument("--docs", type=pathlib.Path)
    options = parser.parse_args()
    rows = read_table()
    if options.list:
        parts = [part for row in chosen(rows, options.only) for part in row.get("measured", [])]
        if not parts:
            fail(f"nothing measures {options.only}")
        for part in parts:
            print(part["part"], part["program"], part["seconds"], "text" if part.get("text") else "-", sep="\t")
    elif options.out:
        write_page(rows, options.out, options.again, options.docs)
    else:
        parser.error("--list or --out")


if __name__ == "__main__":
    main()
