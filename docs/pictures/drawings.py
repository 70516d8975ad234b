#!/usr/bin/env python3
"""Draws what pages of docs/how say: drawings.py maps|gemm|streams PAGE.md PICTURE.svg

    maps     the four meanings of a formula, from the table of docs/how/2-maps.md, and a formula on dual numbers
    gemm     the blocks of a product, and the speed of the rungs from the table "GEMM" of ops/MEASURED.md
    streams  what a stream keeps, and how it grows, from the table "generate_streams" of examples/MEASURED.md
"""
import math
import re
import sys

sys.dont_write_bytecode = True
from draw import MONO, LogAxis, Svg, apart, main, number  # noqa: E402
from engines import WIDTH, arrow  # noqa: E402


def table(text, head):
    """The cells of the rows of a page's table, by the beginning of its head."""
    found = re.search(r"^\| " + re.escape(head) + r".*\n\|[-|]*\n((?:\|.*\n)+)", text, re.M)
    if not found:
        raise ValueError(f"it has no table that begins with {head!r}")
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in found[1].strip().split("\n")]


class Dual:
    """A value and its derivatives by x and g."""

    def __init__(self, value, dx, dg):
        self.value, self.slopes = value, (dx, dg)

    def __mul__(self, other):
        return Dual(self.value * other.value,
                    *(a * other.value + self.value * b for a, b in zip(self.slopes, other.slopes)))

    def sigmoid(self):
        s = 1 / (1 + math.exp(-self.value))
        return Dual(s, *(s * (1 - s) * d for d in self.slopes))


def maps(text):
    """A formula in the middle, its meanings around it, and below it its values on dual numbers."""
    rows = [[re.match("`(.*?)`", called)[1], *words] for called, *words in table(text, "called on")]
    svg = Svg(WIDTH, 446, "One formula, four meanings", "What a formula gives by what it is called on: " +
              "; ".join(f"{called}: {gives}" for called, gives, _ in rows), f".code{{font:12px {MONO}}}")
    svg.text(0, 16, "One formula, four meanings", "head")
    svg.text(0, 34, "The text is a template. What its parameters are decides what the compiler makes of it",
             "small quiet")
    top, box, step = 58, 46, 56
    middle = top + (len(rows) * step - (step - box)) / 2
    svg.rect(0, middle - 30, 262, 60, "ground", "rx='4'")
    svg.text(14, middle - 6, "[](auto x, auto g) {", "code")
    svg.text(30, middle + 14, "return x * sigmoid(g); }", "code")
    for i, (called, gives, where) in enumerate(rows):
        y = top + i * step
        centre = y + box / 2
        kind = "blue" if i < 2 else "orange"
        svg.path(f"M266 {number(middle)}C300 {number(middle)} 290 {number(centre)} 326 {number(centre)}",
                 f"line thick {kind}")
        svg.text(334, centre + 4, called, "code")
        arrow(svg, [(458, centre), (480, centre)], f"{kind} thick")
        svg.rect(484, y, WIDTH - 484, box, "ground", "rx='4'")
        svg.text(496, y + 19, gives)
        svg.text(496, y + 36, where, "small quiet")

    y = top + len(rows) * step + 34
    x, g = Dual(2, 1, 0), Dual(0.5, 0, 1)
    s = g.sigmoid()
    svg.text(0, y, "The same text on dual numbers, at x = 2 and g = ½", "head")
    svg.text(0, y + 18, "Each number carries its derivatives by x and by g; the rules of the product and of σ do the "
             "rest", "small quiet")
    steps = (("", "g", g), ("σ", "σ(g)", s), ("·", "x", x), ("=", "x · σ(g)", x * s))
    for i, (sign, name, dual) in enumerate(steps):
        left = i * 218
        svg.rect(left, y + 34, 180, 66, "ground", "rx='4'")
        svg.text(left + 12, y + 54, name)
        svg.text(left + 168, y + 54, f"{dual.value:.3g}", "blue", "end")
        for k, by in enumerate("xg"):
            svg.text(left + 12, y + 73 + 17 * k, f"∂/∂{by}", "small quiet")
            svg.text(left + 168, y + 73 + 17 * k, f"{dual.slopes[k]:.3g}", "small orange", "end")
        svg.text(left - 19, y + 72, sign, "head", "middle")
    svg.text(0, y + 124, "σ′ = σ (1 − σ), and (a·b)′ = a′·b + a·b′: slopes that stand once, in core/number/dual.h",
             "small quiet")
    return svg


def gemm(text):
    """Which part of a product lies where, and how fast the rungs are."""
    part = text[text.index("## GEMM"):]
    head = re.search(r"^\| n × m × k \|(.*)\|$", part, re.M)
    size, *speeds = table(part, "n × m × k")[0]
    rungs = [(name.strip(), float(speed)) for name, speed in zip(head[1].split("|"), speeds) if speed]
    svg = Svg(WIDTH, 378, "Where the parts of a product lie",
              "A tile of c in registers, a panel of b in the first cache, "
              f"rows of a in the second; GFLOP/s of {size}: " + ", ".join(f"{n} {s:g}" for n, s in rungs))
    svg.text(0, 16, "c += a · b, one block of k at a time", "head")
    svg.text(0, 34, "What is used most often lies nearest: the tile of c for the whole block, the panel of b for all "
             "rows of a", "small quiet")
    n, m, k, block, rows, columns = 132, 150, 150, 60, 26, 34
    left, top = 40, 232  # of a; b stands above c
    gap = 30
    at_c = left + k + gap
    above = top - gap - k
    for x, y, w, h, name in ((left, top, k, n, "a"), (at_c, above, m, k, "b"), (at_c, top, m, n, "c")):
        svg.rect(x, y, w, h, "ground")
        svg.text(x - 8, y + 12, name, "", "end")
    j, i, p = 68, 52, 45  # of the tile's columns, its rows and the block of k
    svg.rect(left + p, top, block, n, "orange", "opacity='0.22'")
    svg.rect(left + p, top + i, block, rows, "orange", "opacity='0.75'")
    svg.rect(at_c + j, above + p, columns, block, "green", "opacity='0.75'")
    svg.rect(at_c + j, top + i, columns, rows, "blue")
    svg.line([(left + p, top - 10), (left + p + block, top - 10)], "grey")
    svg.text(left + p + block / 2, top - 16, "512 of k", "small quiet", "middle")
    svg.line([(at_c + j + columns / 2, above + p + block + 4), (at_c + j + columns / 2, top + i - 4)], "green")
    svg.line([(left + p + block + 4, top + i + rows / 2), (at_c + j - 4, top + i + rows / 2)], "orange")
    right = at_c + m + 48
    notes = (("blue", "a tile of c, r × s", "registers", "r·s sums that do not wait for each other"),
             ("green", "a panel of b, 512 × s", "first cache", "stays while the rows of a go past"),
             ("orange", "rows of a, 512 of k", "second cache", "r + s numbers loaded for r·s multiply-adds"))
    for line, (kind, what, where, why) in enumerate(notes):
        y = 66 + 40 * line
        svg.rect(right, y - 11, 14, 14, kind)
        svg.text(right + 22, y, f"{what}: {where}")
        svg.text(right + 22, y + 16, why, "small quiet")
    y = 212
    svg.text(right, y, f"GFLOP/s of one thread, {size}", "")
    axis = LogAxis(1, max(s for _, s in rungs), right + 124, WIDTH - 44)
    for line, (name, speed) in enumerate(rungs):
        at = y + 16 + 24 * line
        kind = "grey" if "OpenBLAS" in name else "blue"
        svg.text(right, at + 11, name.split(" (")[0], "small")
        svg.rect(right + 124, at, axis.at(speed) - right - 124, 14, kind)
        svg.text(axis.at(speed) + 6, at + 11, f"{speed:g}", "small")
    svg.text(right, y + 16 + 24 * len(rungs) + 14, "log scale; the whole table: ops/MEASURED.md", "small quiet")
    return svg


def streams(text):
    """A step beside the whole pass, and the numbers that each kind of layer keeps."""
    part = text[text.index("## generate_streams"):]
    block = re.search(r"^```\n(.*?)^```$", part, re.M | re.S)[1].split("\n")
    lengths = [int(word) for word in re.findall(r"\d+", block[1].split("|")[1])]
    kept = {}
    for line in block[2:]:
        if len(cells := line.split("|")) > 2:
            name = re.sub(r"\s+\d+\s*$", "", cells[0]).strip()
            kept[name] = [int(word) for word in cells[1].split()]
    shown = {"softmax, KV cache": "softmax", "GAU": "GAU", "FLASH, chunks of 64": "FLASH, chunks of 64",
             "2 KV heads, window 128": "window, 2 KV heads", "retention": "retention", "linear": "linear", "GLA": "GLA"}
    lines = [(words, kept[name]) for name, words in shown.items()]
    svg = Svg(WIDTH, 400, "A step is the same forward pass",
              "A step computes the last tokens and reads the past from the stream. Numbers kept after "
              f"{lengths[0]} and {lengths[-1]} tokens: " +
              "; ".join(f"{words} {values[0]:,} and {values[-1]:,}" for words, values in lines))
    svg.text(0, 16, "A step computes the new tokens only", "head")
    svg.text(0, 34, "What crosses tokens is asked of the call, which knows the past", "small quiet")
    cell, gap, tokens, new = 22, 4, 9, 2
    asks = (("attend", "keys and values of all tokens so far"), ("window", "a ring of W rows: place p mod W"),
            ("scan", "a state S of m × e numbers"), ("shift", "the last row"))
    for row, (name, words) in enumerate(asks):
        y = 66 + 82 * row
        svg.text(0, y + 16, name)
        svg.text(76, y + cell + 20, words, "small quiet")
        for t in range(tokens):
            x = 76 + t * (cell + gap)
            fresh = t >= tokens - new
            age = tokens - new - t  # 1: the last token before the step
            seen = {"attend": True, "window": age <= 3, "scan": False, "shift": age == 1}[name]
            if fresh:
                svg.rect(x, y, cell, cell, "blue")
            elif seen:
                svg.rect(x, y, cell, cell, "orange", "opacity='0.75'")
            else:
                svg.rect(x, y, cell, cell, "ground")
        if name == "scan":
            x = 76 + (tokens - new - 2) * (cell + gap)
            svg.rect(x + 6, y - 6, 34, 34, "orange", "opacity='0.75'")
            svg.text(x + 23, y + 15, "S", "", "middle")
    svg.rect(0, 384, 14, 11, "orange", "opacity='0.75'")
    svg.text(20, 394, "kept by the stream", "small")
    svg.rect(150, 384, 14, 11, "blue")
    svg.text(170, 394, "tokens of this step", "small")

    left, right, top, bottom = 420, WIDTH - 132, 66, 350
    svg.text(left - 44, 16, "Numbers kept for one sequence", "head")
    svg.text(left - 44, 34, "two layers, 128 wide: examples/generate_streams", "small quiet")
    across = LogAxis(lengths[0], lengths[-1], left, right)
    low, high = (f(v for _, values in lines for v in values) for f in (min, max))
    up = LogAxis(low, high, bottom, top)
    for tick in up.ticks():
        if tick >= low:
            svg.line([(left, up.at(tick)), (right, up.at(tick))], "rule")
            svg.text(left - 8, up.at(tick) + 4, f"10{'⁰¹²³⁴⁵⁶⁷⁸'[round(math.log10(tick))]}", "small quiet", "end")
    for length in lengths:
        svg.text(across.at(length), bottom + 18, f"{length:,}", "small quiet", "middle")
    svg.text((left + right) / 2, bottom + 36, "tokens so far", "small quiet", "middle")
    kinds = ("blue", "violet", "green", "rose", "grey", "ink", "orange")
    places = apart([up.at(values[-1]) for _, values in lines], 15)
    for kind, place, (words, values) in zip(kinds, places, lines):
        svg.line([(across.at(n), up.at(v)) for n, v in zip(lengths, values)], f"thick {kind}")
        svg.text(right + 8, place + 4, words, "small")
    return svg


if __name__ == "__main__":
    main(__doc__, {"maps": maps, "gemm": gemm, "streams": streams})
