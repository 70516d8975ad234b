"""What the pictures of this folder share: an SVG with colours for light and for dark screens, axes, and shades."""
import html
import math
import os
import sys

# name: (on a light page, on a dark page)
COLOURS = {
    "ink": ("#1f2328", "#e6edf3"), "quiet": ("#656d76", "#8d96a0"), "rule": ("#d1d9e0", "#3d444d"),
    "ground": ("#eef1f5", "#161b22"), "blue": ("#0b5394", "#79c0ff"), "orange": ("#c2410c", "#ffa657"),
    "green": ("#047857", "#56d364"), "violet": ("#7c3aed", "#d2a8ff"), "rose": ("#be185d", "#ff7b9c"),
    "teal": ("#0e7490", "#56d4dd"), "grey": ("#8c959f", "#7d8590"),
}
SANS = "system-ui,-apple-system,'Segoe UI','DejaVu Sans',sans-serif"
MONO = "ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace"


def number(value):
    """A coordinate with as few digits as show."""
    text = f"{value:.1f}".removesuffix(".0")
    return "0" if text == "-0" else text


def escaped(words):
    return html.escape(str(words), quote=False)


class Svg:
    """A picture. `kind` names classes: .NAME fills with a colour of COLOURS, .line.NAME draws lines of it."""

    def __init__(self, width, height, title, description, style="", font=SANS):
        self.width, self.height, self.parts = width, height, []
        self.title, self.description, self.extra, self.font = title, description, style, font

    def add(self, text):
        self.parts.append(text)

    def text(self, x, y, words, kind="", anchor=""):
        self.add(f"<text x='{number(x)}' y='{number(y)}'" + (f" class='{kind}'" if kind else "") +
                 (f" text-anchor='{anchor}'" if anchor else "") + f">{escaped(words)}</text>")

    def rect(self, x, y, width, height, kind, more=""):
        self.add(f"<rect class='{kind}' x='{number(x)}' y='{number(y)}' width='{number(width)}' "
                 f"height='{number(height)}'{more and ' ' + more}/>")

    def path(self, d, kind, more=""):
        self.add(f"<path class='{kind}' d='{d}'{more and ' ' + more}/>")

    def line(self, points, kind, more=""):
        self.path("M" + "L".join(f"{number(x)} {number(y)}" for x, y in points), "line " + kind, more)

    def __str__(self):
        def rules(scheme):
            return "".join(f".{name}{{fill:{pair[scheme]}}}.line.{name}{{fill:none;stroke:{pair[scheme]}}}"
                           for name, pair in COLOURS.items())
        style = (f"text{{font:13px {self.font};fill:{COLOURS['ink'][0]}}}.head{{font-size:14px;font-weight:600}}"
                 f".small{{font-size:11px}}.thick{{stroke-width:2}}{rules(0)}{self.extra}"
                 f"@media(prefers-color-scheme:dark){{text{{fill:{COLOURS['ink'][1]}}}{rules(1)}}}")
        return (f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {number(self.width)} {number(self.height)}' "
                f"width='{number(self.width)}' role='img'>\n<title>{escaped(self.title)}</title>\n"
                f"<desc>{escaped(self.description)}</desc>\n<style>{style}</style>\n" +
                "".join(part + "\n" for part in self.parts) + "</svg>\n")


class LogAxis:
    """Positions of numbers between `low` and `high`, which lie at `first` and `last`."""

    def __init__(self, low, high, first, last):
        self.low, self.high, self.first, self.last = low, high, first, last

    def at(self, value):
        share = math.log(value / self.low) / math.log(self.high / self.low)
        return self.first + share * (self.last - self.first)

    def ticks(self):
        """1, 2, 5, 10, 20 …; powers of ten alone where these would crowd."""
        steps = (1, 2, 5) if self.high / self.low < 300 else (1,)
        powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        return [s * 10 ** p for p in powers for s in steps if self.low * 0.999 <= s * 10 ** p <= self.high * 1.001]


def apart(wishes, gap):
    """Places for labels near `wishes`, at least `gap` from each other, in the same order."""
    order = sorted(range(len(wishes)), key=wishes.__getitem__)
    places = dict(zip(order, (wishes[i] for i in order)))
    for _ in range(100):
        for low, high in zip(order, order[1:]):
            if (lack := gap - (places[high] - places[low])) > 0:
                places[low] -= lack / 2
                places[high] += lack / 2
    return [places[i] for i in range(len(wishes))]


def shade_rows(rows, most):
    """One path for each shade of rows of digits '0' … `most`; 0 is left to the ground."""
    paths = {}
    for y, row in enumerate(rows):
        x = 0
        while x < len(row):
            end = x
            while end < len(row) and row[end] == row[x]:
                end += 1
            if row[x] != "0":
                paths.setdefault(int(row[x]), []).append(f"M{x} {y}h{end - x}v1h-{end - x}z")
            x = end
    return [(shade / most, "".join(d)) for shade, d in sorted(paths.items())]


def main(words, pictures):
    """A script that is called SCRIPT NAME SOURCE PICTURE.svg; pictures[NAME] makes an Svg of the text of SOURCE."""
    if len(sys.argv) != 4 or sys.argv[1] not in pictures:
        sys.exit(words.strip())
    script, name, source, out = sys.argv
    try:
        with open(source, encoding="utf-8") as file:
            picture = str(pictures[name](file.read()))
    except (OSError, ValueError, LookupError) as e:
        sys.exit(f"{os.path.basename(script)}: cannot draw {name} from {source}: {e}")
    with open(out, "w", encoding="utf-8") as file:
        file.write(picture)
