#!/usr/bin/env python3
"""Draws what was measured: plots.py speed|length|gates SOURCE PICTURE.svg

    speed   from the table "In short" of tests/bench/README.md, which docs/claims.py writes from compare.py's figures
    length  from what examples/length printed
    gates   from what examples/gates printed
"""
import json
import re
import sys
import textwrap

sys.dont_write_bytecode = True
from draw import LogAxis, Svg, apart, main, number, shade_rows  # noqa: E402

WIDTH = 846


def speed(text):
    """Bars: the time of each peer over Sluice's."""
    table = re.search(r"\| group \|.*?\n\n", text, re.S)
    if not table:
        raise ValueError("it has no table of groups")
    head, *rows = table[0].strip().split("\n")
    names = ["PyTorch eager", *(cell.strip() for cell in head.strip("|").split("|")[-2:])]
    groups = []
    for row in rows[1:]:
        cells = [cell.strip(" *") for cell in row.strip("|").split("|")]
        ratios = [cells[2], *cells[-2:]]
        if all(ratios):  # a compiler has no say in some groups
            groups.append((cells[0], int(cells[1]), [float(r.rstrip("×")) for r in ratios]))
    machine, threads = re.search(r"^(Two virtual .*?),( \d+ threads, \w+)", text, re.M).groups()
    bar, row_height, left = 11, 66, 244
    scale = (WIDTH - left - 110) / max(max(ratios) for _, _, ratios in groups)
    svg = Svg(WIDTH, 62 + row_height * len(groups), "Time beside PyTorch and JAX",
              "Bars of time, Sluice = 1, shorter is faster: " +
              "; ".join(f"{g}: " + ", ".join(f"{n} {r}" for n, r in zip(names, ratios)) for g, _, ratios in groups))
    svg.text(0, 16, "Time for the same work, Sluice = 1", "head")
    svg.text(0, 34, f"{machine},{threads}; geometric means. "
             "The compilers’: where they have work to do.", "small quiet")
    bottom = 50 + row_height * len(groups)
    svg.line([(left + scale, 48), (left + scale, bottom)], "rule")
    for i, (group, count, ratios) in enumerate(groups):
        top = 52 + row_height * i
        label = textwrap.wrap(group, 34)
        for k, words in enumerate(label):
            svg.text(0, top + 16 + 16 * k, words)
        svg.text(0, top + 16 + 16 * len(label), f"{count} workloads", "small quiet")
        for k, (name, ratio) in enumerate([("Sluice", 1.0), *zip(names, ratios)]):
            y = top + 4 + k * (bar + 2)
            if k == 0:
                svg.rect(left, y, scale, bar, "blue")
                svg.text(left + scale + 6, y + bar - 1.5, name, "small")
            else:
                svg.rect(left, y, ratio * scale, bar, "grey", f"opacity='{1.15 - 0.25 * k:.2f}'")
                svg.text(left + ratio * scale + 6, y + bar - 1.5, f"{name} {ratio:.2f}", "small quiet")
    return svg


def length(text):
    """Time and memory of a token over the length, log-log."""
    what = text.split("\n")[1] if text.count("\n") > 1 else ""
    rows = [(m[1].strip(), int(m[2]), float(m[3]), float(m[4]))
            for m in re.finditer(r"^(\S.*?) +(\d+) +([\d.]+) +([\d.]+)$", text, re.M)]
    if len(rows) < 10:
        raise ValueError(f"it has only {len(rows)} rows of figures")
    colours = dict(zip(dict.fromkeys(r[0] for r in rows), ("grey", "orange", "violet", "blue", "green", "rose", "teal")))
    svg = Svg(WIDTH, 400, "What a token costs as a sequence grows",
              f"Log-log curves of microseconds a token and of memory against tokens; {what}. " + "; ".join(
                  f"{name} at {n}: {us:.3g} µs, {mib:.3g} MiB" for name, n, us, mib in rows if n == rows[-1][1]))
    svg.text(0, 16, "What a token costs as a sequence grows", "head")
    svg.text(0, 34, f"{what}; both axes are logarithmic", "small quiet")
    tokens = sorted({r[1] for r in rows})
    for panel, (title, column) in enumerate((("µs of processor time a token", 2), ("MiB in all", 3))):
        left, right, top, bottom = 44 + panel * 424, 44 + panel * 424 + 258, 74, 362
        values = [r[column] for r in rows]
        xs = LogAxis(tokens[0], tokens[-1], left, right)
        ys = LogAxis(min(values) / 1.15, max(values) * 1.15, bottom, top)
        svg.text(left - 36, 58, title)
        for value in ys.ticks():
            svg.line([(left, ys.at(value)), (right, ys.at(value))], "rule")
            svg.text(left - 6, ys.at(value) + 4, f"{value:,g}", "small quiet", "end")
        for n in tokens:
            svg.text(xs.at(n), bottom + 18, f"{n:,}", "small quiet", "middle")
        svg.text((left + right) / 2, bottom + 34, "tokens", "small quiet", "middle")
        curves = {name: [(xs.at(r[1]), ys.at(r[column])) for r in rows if r[0] == name] for name in colours}
        for name, points in curves.items():
            svg.line(points, f"thick {colours[name]}")
            for x, y in points:
                svg.add(f"<circle class='{colours[name]}' cx='{number(x)}' cy='{number(y)}' r='2.5'/>")
        whole = {name: points[-1] for name, points in curves.items() if points[-1][0] > right - 1}
        for (name, (x, y)), place in zip(whole.items(), apart([p[1] for p in whole.values()], 15)):
            svg.line([(x + 4, y), (x + 10, place)], colours[name])
            svg.text(x + 14, place + 4, name, colours[name])
        for name, points in curves.items():
            if name not in whole:
                x, y = points[-1]
                svg.text(x - 8, y + 2, name, colours[name], "end")
    return svg


def gates(text):
    """A GAU's weights and the histograms of two gates, before and after training."""
    data = json.loads(text)
    side, gap, top = 188, 26, 66
    n = len(data["text"])
    svg = Svg(WIDTH, top + side + 62, "What training does to a gate",
              f"Weights of a GAU over one line of text at initialisation and after {data['steps']} steps, and "
              "histograms of the gates of a GAU and of gated attention, before and after")
    svg.text(0, 16, f"A GAU and gated attention, before and after {data['steps']} steps on text", "head")
    svg.text(0, 34, f"Byte-level language models of {data['gau_bits']:.2f} and {data['gated_bits']:.2f} bits a "
             f"byte then. Weights: “{data['text']}”", "small quiet")
    for i, rows in enumerate(data["weights"]):
        left = i * (side + gap)
        svg.rect(left, top, side, side, "ground")
        svg.add(f"<g transform='translate({left} {top}) scale({side / n:g})' shape-rendering='crispEdges'>")
        for opacity, d in shade_rows(rows, 9):
            svg.path(d, "blue", f"opacity='{opacity:.2f}'")
        svg.add("</g>")
        svg.text(left, top - 8, ("weights, at initialisation", "weights, trained")[i])
    for i, (key, title, low, high) in enumerate((("gau", "gates U of the GAU", data["low"], data["high"]),
                                                 ("sigmoid", "sigmoid gates of attention", 0, 1))):
        left = (i + 2) * (side + gap)
        svg.text(left, top - 8, title)
        before, after = ([c / sum(counts) for c in counts] for counts in data[key])
        most, wide = max(*before, *after), side / len(before)

        def outline(shares, close):
            d = f"M{number(left)} {top + side}" if close else ""
            for k, share in enumerate(shares):
                y = number(top + side - share / most * (side - 8))
                d += f"{'L' if d else 'M'}{number(left + k * wide)} {y}H{number(left + (k + 1) * wide)}"
            return d + (f"V{top + side}z" if close else "")
        svg.path(outline(after, True), "blue", "opacity='0.75'")
        svg.path(outline(before, False), "line orange thick")
        svg.line([(left, top + side), (left + side, top + side)], "quiet")
        for value in (v for v in (0, 0.5, 1, 1.5, 2) if low <= v <= high):
            x = left + (value - low) / (high - low) * side
            svg.line([(x, top + side), (x, top + side + 4)], "quiet")
            svg.text(x, top + side + 17, f"{value:g}".replace("-", "−"), "small quiet", "middle")
    left, y = 2 * (side + gap), top + side + 38
    svg.line([(left, y - 4), (left + 18, y - 4)], "orange thick")
    svg.text(left + 24, y, "at initialisation", "small")
    svg.rect(left + 130, y - 10, 18, 11, "blue", "opacity='0.75'")
    svg.text(left + 154, y, "trained", "small")
    svg.text(0, top + side + 18, "A row reads, a column is read. The shade is the root of a", "small quiet")
    svg.text(0, top + side + 34, "weight’s share of its row’s largest.", "small quiet")
    svg.text(left, y + 16, f"All gates of the last layer; the last bar holds all above {data['high']:g}.",
             "small quiet")
    return svg


if __name__ == "__main__":
    main(__doc__, {"speed": speed, "length": length, "gates": gates})
