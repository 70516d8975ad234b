#!/usr/bin/env python3
"""The pictures of docs/pictures are what the programs draw: pictures.py GALLERY SOURCE, in an empty folder."""
import pathlib
import re
import subprocess
import sys

SHADES = 6  # examples/gallery.cpp
program, source = sys.argv[1], pathlib.Path(sys.argv[2])


def grids(svg):
    """The shade of every cell of every picture, and the text around them."""
    pictures = []
    for group in svg.split("<rect class='g'")[1:]:
        cells = {}
        for kind, opacity, path in re.findall(r"<path class='(.)' opacity='([\d.]+)' d='([^']*)'", group):
            shade = round(float(opacity) * SHADES) * (1 if kind == "p" else -1)
            for x, y, width in re.findall(r"M(\d+) (\d+)h(\d+)v1h-\d+z", path):
                cells.update(((int(x) + i, int(y)), shade) for i in range(int(width)))
        pictures.append(cells)
    return pictures, re.sub(r"<path[^>]*>\n", "", svg)


subprocess.run([program, "--out", "gallery.svg"], check=True, stdout=subprocess.DEVNULL)
drawn, text = grids(pathlib.Path("gallery.svg").read_text(encoding="utf-8"))
kept, kept_text = grids((source / "docs/pictures/gallery.svg").read_text(encoding="utf-8"))
again = "remake it: gallery --out docs/pictures/gallery.svg"
if text != kept_text or len(drawn) != 12:
    sys.exit(f"docs/pictures/gallery.svg has other titles or sizes than the program's; {again}")
cells = 0
for number, (a, b) in enumerate(zip(drawn, kept)):
    wrong = [cell for cell in a.keys() | b.keys() if abs(a.get(cell, 0) - b.get(cell, 0)) > 1]
    close = [cell for cell in a.keys() | b.keys() if a.get(cell, 0) != b.get(cell, 0)]
    cells += len(a)
    if wrong or len(close) > 40:  # rounding differs between processors, and may move a cell by a shade
        sys.exit(f"picture {number} of docs/pictures/gallery.svg differs from the program's in {len(close)} cells; {again}")
    if len(a) < 64:
        sys.exit(f"picture {number} has only {len(a)} cells")
print(f"{len(drawn)} pictures, {cells} cells, as drawn")
