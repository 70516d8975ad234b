#!/usr/bin/env python3
"""The pictures of docs/pictures: pictures.py PROGRAMS SOURCE, in an empty folder.

Each is listed in make.sh and shown by the pages that this names, or is one of the page of claims (shown.py). What can
be drawn in no time is drawn again and compared: from the library, from the figures in docs/pictures/data, from
tests/bench/README.md.
"""
import pathlib
import re
import subprocess
import sys

PROGRAMS, SOURCE = (pathlib.Path(p).resolve() for p in sys.argv[1:3])
FOLDER = SOURCE / "docs/pictures"
SHADES = 6  # examples/gallery.cpp
sys.dont_write_bytecode = True
sys.path.insert(0, str(FOLDER))
from draw import COLOURS  # noqa: E402
from shown import check, failures, form, shown_by_pages  # noqa: E402


def run(*command, out=None):
    """What it prints; into the file `out`, if given."""
    result = subprocess.run([str(c) for c in command], capture_output=True, cwd=SOURCE if out is None else None)
    if result.returncode:
        sys.exit(f"{' '.join(map(str, command))}: {result.stderr.decode(errors='replace')}")
    if out:
        pathlib.Path(out).write_bytes(result.stdout)
    return result.stdout.decode(errors="replace")


def grids(svg):
    """The shade of every cell of every picture of the gallery, and the text around them."""
    pictures = []
    for group in svg.split("<rect class='g'")[1:]:
        cells = {}
        for kind, opacity, path in re.findall(r"<path class='(.)' opacity='([\d.]+)' d='([^']*)'", group):
            shade = round(float(opacity) * SHADES) * (1 if kind == "p" else -1)
            for x, y, width in re.findall(r"M(\d+) (\d+)h(\d+)", path):
                cells.update(((int(x) + i, int(y)), shade) for i in range(int(width)))
        pictures.append(cells)
    return pictures, re.sub(r"<path[^>]*>\n", "", svg)


def gallery(kept_svg):
    run(PROGRAMS / "gallery", "--out", pathlib.Path("gallery.svg").resolve())
    drawn, text = grids(pathlib.Path("gallery.svg").read_text(encoding="utf-8"))
    kept, kept_text = grids(kept_svg)
    check(text == kept_text and len(drawn) == 14, "gallery.svg has other titles or sizes than the program's")
    for number, (a, b) in enumerate(zip(drawn, kept)):
        differ = [abs(a.get(cell, 0) - b.get(cell, 0)) for cell in a.keys() | b.keys()]
        # Rounding differs between processors, and may move a cell by a shade.
        check(max(differ) <= 1 and sum(differ) <= 40, f"square {number} of gallery.svg differs from the program's")
        check(len(a) >= 64, f"square {number} of gallery.svg has only {len(a)} cells")
    colours = {c for pair in COLOURS.values() for c in pair}
    check(set(re.findall(r"#\w{6}", kept_svg)) <= colours, "gallery.svg has a colour that draw.py has not")


listed = [line.split("|") for line in run("bash", FOLDER / "make.sh", "--list").splitlines()]
names = [name for name, _, _ in listed]
check(len(names) > 8, f"make.sh lists only {len(names)} pictures: this test is broken")
found = sorted(p.stem for p in FOLDER.glob("*.svg"))
check(sorted(names) == found, f"make.sh lists {sorted(names)}, docs/pictures has {found}")

shown = shown_by_pages(SOURCE)
for name, _, pages in listed:
    missing = set(pages.split(",")) - shown.get(name, set())
    check(not missing, f"{' '.join(sorted(missing))} does not show {name}.svg, though make.sh says so")
check(shown.keys() <= set(names), f"pages show {sorted(shown.keys() - set(names))}, which make.sh does not list")

data = pathlib.Path("data.json").resolve()
run(PROGRAMS / "picture_data", out=data)
again = 0
for name, command, _ in listed:
    if not (FOLDER / f"{name}.svg").exists():
        continue
    kept = (FOLDER / f"{name}.svg").read_text(encoding="utf-8")
    form(name, kept)
    if name == "gallery":
        gallery(kept)
    elif (draw := command.split(" && ")[-1]).startswith("python3 "):
        out = pathlib.Path(f"{name}.svg").resolve()
        words = [{"build/pictures/data.json": data, f"docs/pictures/{name}.svg": out}.get(w, w) for w in draw.split()]
        run(sys.executable, *words[1:])
        check(out.read_text(encoding="utf-8") == kept, f"{name}.svg is not what is drawn now; make.sh --only {name}")
        again += 1
check(again >= 7, f"drew only {again} pictures again: this test is broken")

# examples/picture_data.cpp goes over tiles as the kernel does; it knows their size from here.
kernel = (SOURCE / "ops/attention/attention_forward.cpp").read_text(encoding="utf-8")
for size in ("o.tile_rows : tiles.rows_wanted(128));", "only_span() ? 512 : 256);"):
    check(size in kernel, f"attention_forward.cpp lacks “{size}”: attention_tiles.svg shows other tiles than it computes")

# A run's curve and the record of its terminal end with the same figure.
last = re.findall(r"validation ([\d.]+) bits/char after", (FOLDER / "data/training.json").read_text(encoding="utf-8"))
curve = re.findall(r">validation ([\d.]+)<", (FOLDER / "curve.svg").read_text(encoding="utf-8"))
check(last == curve and len(last) == 1, f"training.svg ends at {last}, curve.svg at {curve}: not of one run")

# What the programs print now is what is drawn from, though the figures are of another run.
run(PROGRAMS / "length", "--smoke", out="length.txt")
run(PROGRAMS / "gates", "--smoke", out="gates.json")
for name, source in (("length", "length.txt"), ("gates", "gates.json")):
    small = pathlib.Path(f"small_{name}.svg").resolve()
    run(sys.executable, FOLDER / "plots.py", name, pathlib.Path(source).resolve(), small)
    form(name, small.read_text(encoding="utf-8"))
record = pathlib.Path("training.json").resolve()
run(sys.executable, FOLDER / "terminal.py", "record", record, PROGRAMS / "gau_lm", "--smoke", "--fresh", "--out",
    pathlib.Path("gau_lm").resolve())
run(sys.executable, FOLDER / "terminal.py", "draw", record, pathlib.Path("small_training.svg").resolve())
small = pathlib.Path("small_training.svg").read_text(encoding="utf-8")
form("training", small)
for words in ("untrained", "100%", "step 8", "result", "sample"):
    check(words in small, f"a recorded run does not show “{words}”")

if failures:
    sys.exit("\n".join(failures))
print(f"{len(names)} pictures, {again + 1} as drawn now")
