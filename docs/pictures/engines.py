#!/usr/bin/env python3
"""Draws what the engines do: engines.py tape|attention_tiles|scan_chunks DATA.json PICTURE.svg

DATA is what examples/picture_data printed: tapes of autograd, the tiles that attention() computes, the scan's chunk.
"""
import json
import sys

sys.dont_write_bytecode = True
from draw import Svg, main, number  # noqa: E402

WIDTH = 846


class Layers:
    """Places for the nodes of a graph: each above its inputs, few crossings (after Sugiyama, Tagawa & Toda 1981)."""

    def __init__(self, nodes, step_x, step_y):
        inputs = {i: list(node["inputs"]) for i, node in enumerate(nodes)}
        rank = {}

        def rank_of(i):
            if i not in rank:
                rank[i] = 1 + max((rank_of(j) for j in inputs[i]), default=-1)
            return rank[i]
        for i in list(inputs):
            rank_of(i)
        self.edges = []  # each a list of nodes from an input up; between them stand places that only edges need
        below, above = {}, {}
        for i in range(len(nodes)):
            for j in inputs[i]:
                chain = [j]
                for level in range(rank[j] + 1, rank[i]):
                    chain.append(("bend", len(self.edges), level))
                    rank[chain[-1]] = level
                chain.append(i)
                self.edges.append(chain)
                for low, high in zip(chain, chain[1:]):
                    below.setdefault(high, []).append(low)
                    above.setdefault(low, []).append(high)
        levels = [[n for n in rank if rank[n] == level] for level in range(max(rank.values()) + 1)]
        x = {n: k - len(level) / 2 for level in levels for k, n in enumerate(level)}
        for turn in range(60):
            near = below if turn % 2 == 0 else above
            for level in levels if turn % 2 == 0 else reversed(levels):
                wish = {n: sum(x[o] for o in near[n]) / len(near[n]) if near.get(n) else x[n] for n in level}
                level.sort(key=wish.__getitem__)
                spots = [wish[n] for n in level]
                for _ in range(50):  # apart: an edge needs less room than a node
                    for k in range(len(level) - 1):
                        room = 0.7 if isinstance(level[k], tuple) or isinstance(level[k + 1], tuple) else 1
                        if (lack := room - (spots[k + 1] - spots[k])) > 1e-3:
                            spots[k] -= lack / 2
                            spots[k + 1] += lack / 2
                x.update(zip(level, spots))
        low = min(x.values())
        self.width = (max(x.values()) - low) * step_x
        self.height = (len(levels) - 1) * step_y
        self.place = {n: ((x[n] - low) * step_x, self.height - rank[n] * step_y) for n in x}


def tape(data):
    """Three tapes side by side; a colour for what each walk recorded."""
    colours = ("blue", "orange", "violet")
    titles = ("a loss", "its gradient", "the gradient’s gradient")
    formulas = ("L = Σ tanh(x·w)²", "g = ∂L/∂w", "∂(Σ g)/∂w")
    born = []  # the last number of the nodes that exist when a tape is complete
    for nodes in data["tapes"]:
        born.append(max(node["seq"] for node in nodes))
    layouts = [Layers(nodes, 67, 38) for nodes in data["tapes"]]
    widths = [max(layout.width, 110) + 56 for layout in layouts]
    gap = (WIDTH - sum(widths)) / 2
    height = max(layout.height for layout in layouts)
    svg = Svg(WIDTH, height + 132, "The tape of a loss, of its gradient, and of the gradient’s gradient",
              "Three graphs of recorded ops, results above inputs. " + " ".join(
                  f"{title}, {formula}: {len(nodes)} nodes." for title, formula, nodes in
                  zip(titles, formulas, data["tapes"])))
    edge = 0
    for k, (nodes, layout) in enumerate(zip(data["tapes"], layouts)):
        left, top = edge + (widths[k] - layout.width) / 2, 84 + height - layout.height
        svg.text(edge + widths[k] / 2, top - 48, titles[k], "head", "middle")
        svg.text(edge + widths[k] / 2, top - 30, f"{formulas[k]}, {len(nodes)} nodes", "small quiet", "middle")
        spot = {n: (left + x, top + y) for n, (x, y) in layout.place.items()}
        twice = {}
        for chain in layout.edges:
            key = (chain[0], chain[-1])
            both = nodes[key[1]]["inputs"].count(key[0]) == 2
            shift = (7 * twice.get(key, 0) - 3.5) if both else 0
            twice[key] = twice.get(key, 0) + 1
            points = [spot[n] for n in chain]
            d = f"M{number(points[0][0] + shift)} {number(points[0][1] - 10)}"
            for (x0, y0), (x1, y1) in zip(points, points[1:]):
                end = y1 + (10 if (x1, y1) == points[-1] else 0)
                begin = y0 - (10 if (x0, y0) == points[0] else 0)
                middle = (begin + end) / 2
                d += (f"C{number(x0 + shift)} {number(middle)} {number(x1 + shift)} {number(middle)} "
                      f"{number(x1 + shift)} {number(end)}")
            svg.path(d, "line grey", "opacity='0.7'")
        for i, node in enumerate(nodes):
            x, y = spot[i]
            colour = colours[next(g for g, last in enumerate(born) if node["seq"] <= last)] if node["inputs"] else "ink"
            wide = 6.6 * len(node["op"]) + 13
            svg.rect(x - wide / 2, y - 10, wide, 20, "ground", "rx='4'")
            svg.path(f"M{number(x - wide / 2)} {number(y + 10)}h{number(wide)}", f"line thick {colour}")
            svg.text(x, y + 4, node["op"], "small", "middle")
        edge += widths[k] + gap
    base = height + 126
    x = 0
    legend = ("the leaf w", "recorded by the forward pass", "by the first walk back", "by the second")
    for colour, words in zip(("ink", *colours), legend):
        svg.path(f"M{x} {base - 4}h16", f"line thick {colour}")
        svg.text(x + 22, base, words, "small")
        x += 22 + 6.4 * len(words) + 24
    return svg


def arrow(svg, points, kind):
    """A line with a head at its end, upright or level."""
    svg.line(points, kind)
    (x0, y0), (x, y) = points[-2:]
    dx, dy = (x > x0) - (x < x0), (y > y0) - (y < y0)
    svg.line([(x - 5 * dx - 3 * dy, y - 5 * dy - 3 * dx), (x, y), (x - 5 * dx + 3 * dy, y - 5 * dy + 3 * dx)], kind)


def attention_tiles(data):
    """The tiles under each mask, and what goes from one tile of a row to the next."""
    n, cell, side, gap, top = data["tokens"], data["cell"], 150, 24, 58
    svg = Svg(WIDTH, 578, "How attention walks its tiles",
              "Tiles of queries and keys that the forward pass computes under five masks: " + "; ".join(
                  f"{p['title']} {len(p['tiles'])} tiles" for p in data["plans"]))
    svg.text(0, 16, "How attention() walks its tiles", "head")
    svg.text(0, 34, f"{n:,} queries (down) by {n:,} keys (across). A tile that the mask forbids is never computed; "
             "numbers: the order in a row of tiles", "small quiet")
    for k, plan in enumerate(data["plans"]):
        left, scale = k * (side + gap), side / n
        svg.rect(left, top, side, side, "ground")
        order = {}
        for row, col, rows, cols, masked in plan["tiles"]:
            order[row] = order.get(row, 0) + 1
            x, y = left + col * scale, top + row * scale
            svg.rect(x, y, cols * scale, rows * scale, "orange" if masked else "blue", "opacity='0.22'")
        d = ""
        for i, line in enumerate(plan["pairs"].split()):
            j = 0
            while j < len(line):
                end = j
                while end < len(line) and line[end] == line[j]:
                    end += 1
                if line[j] == "1":
                    d += f"M{j} {i}h{end - j}v1h-{end - j}z"
                j = end
        svg.add(f"<g transform='translate({left} {top}) scale({cell * scale:g})' shape-rendering='crispEdges'>")
        svg.path(d, "blue", "opacity='0.4'")
        svg.add("</g>")
        order = {}
        for row, col, rows, cols, masked in plan["tiles"]:
            order[row] = order.get(row, 0) + 1
            x, y = left + col * scale, top + row * scale
            svg.path(f"M{number(x)} {number(y)}h{number(cols * scale)}v{number(rows * scale)}h{number(-cols * scale)}z",
                     "line " + ("orange" if masked else "blue"))
            svg.text(x + cols * scale / 2, y + rows * scale / 2 + 4, order[row], "small", "middle")
        computed = sum(rows * cols for _, _, rows, cols, _ in plan["tiles"]) / n ** 2
        needed = plan["pairs"].count("1") * cell ** 2 / n ** 2
        svg.text(left, top + side + 18, plan["title"])
        svg.text(left, top + side + 34, plan["note"], "small quiet")
        svg.text(left, top + side + 49, f"{computed:.0%} computed, {needed:.0%} seen", "small quiet")
    y = top + side + 76
    svg.rect(0, y - 10, 14, 11, "blue", "opacity='0.62'")
    svg.text(20, y, "pairs that the mask allows", "small")
    svg.path(f"M182 {y - 10}h14v11h-14z", "line blue")
    svg.text(202, y, "a tile allowed as a whole, where the mask is not asked again", "small")
    svg.path(f"M566 {y - 10}h14v11h-14z", "line orange")
    svg.text(586, y, "a tile masked in part, row by row", "small")

    # One row of tiles.
    y = top + side + 122
    svg.text(0, y, "One row of tiles: 128 queries go over their keys, at most 512 at a time", "head")
    svg.text(0, y + 18, "Kept from tile to tile: O [128, d_v] and, of each row, μ, its largest score, and l, its sum. "
             "S becomes P in place, in cache; n × n is never stored.", "small quiet")
    box, room, up = 186, 34, y + 78
    for k in range(3):
        x = 64 + k * (box + room)
        svg.rect(x, up, box, 98, "ground", "rx='4'")
        name = "₁₂₃"[k]
        for i, words in enumerate((f"S = ρ(scale · Q K{name}ᵀ + bias)", "μ′ = max(μ, max S)", "P = exp(S − μ′)",
                                   "l ← l exp(μ − μ′) + Σ P", f"O ← O exp(μ − μ′) + P V{name}")):
            svg.text(x + 10, up + 18 + 17 * i, words, "small")
        svg.text(x + box / 2, up - 30, f"K{name}, V{name}", "blue", "middle")
        arrow(svg, [(x + box / 2, up - 24), (x + box / 2, up - 3)], "blue")
        arrow(svg, [(x + box + 2, up + 49), (x + box + room - 3, up + 49)], "orange thick")
    svg.text(0, up + 32, "O = 0", "small orange")
    svg.text(0, up + 48, "μ = −∞", "small orange")
    svg.text(0, up + 64, "l = 0", "small orange")
    arrow(svg, [(42, up + 49), (61, up + 49)], "orange thick")
    x = 64 + 3 * (box + room) + 2
    svg.text(x, up + 45, "out = O / l", "small")
    svg.text(x, up + 62, "lse = μ + log l", "small")
    svg.text(0, up + 130, "The products are those of the GEMM. relu² and its like need no μ and no l: P = φ(S). "
             "A step of decoding has too few rows for all threads:", "small quiet")
    svg.text(0, up + 146, "there each tile of keys is a task of its own, and their O, μ and l are merged in order. "
             "A tile has 256 keys where values are wide or the mask has holes.", "small quiet")
    svg.text(0, up + 162, "Products in three parts on AMX have tiles that start at multiples of their width, in whole "
             "steps of 32 keys.", "small quiet")
    return svg


def scan_chunks(data):
    """What a chunk computes, and the state between chunks."""
    chunk, chunks, side, top = data["chunk"], 6, 252, 58
    size = side / chunks
    svg = Svg(WIDTH, 384, "How the chunked scan carries its state",
              f"Pairs of steps inside chunks of {chunk} are computed as small triangles; everything earlier arrives "
              "through the state S, which goes from chunk to chunk")
    svg.text(0, 16, "How the chunked scan carries its state", "head")
    svg.text(0, 34, f"Causal linear attention, retention and GLA in chunks of {chunk} steps: "
             "S [m, e] is all that is kept of the past", "small quiet")
    svg.rect(0, top, side, side, "ground")
    for i in range(chunks):
        x, y = i * size, top + i * size
        if i:
            svg.rect(0, y, x, size, "orange", "opacity='0.28'")
            svg.text(x / 2, y + size / 2 + 4, f"q S{'₀₁₂₃₄₅'[i]}", "small", "middle")
        svg.path(f"M{number(x)} {number(y)}V{number(y + size)}H{number(x + size)}z", "blue", "opacity='0.75'")
        svg.line([(0, y), (side, y)], "rule")
    svg.text(0, top + side + 18, f"{chunks * chunk} steps: readers down, read ones across", "small quiet")
    svg.rect(0, top + side + 28, 14, 11, "blue", "opacity='0.75'")
    svg.text(20, top + side + 38, "pairs of a chunk", "small")
    svg.rect(124, top + side + 28, 14, 11, "orange", "opacity='0.28'")
    svg.text(144, top + side + 38, "all earlier steps, through S", "small")

    left, box, room, height = 306, 150, 45, 132
    words = (("chunk 1", ("A = q kᵀ ∘ D", "o = A v", "", "S = (k ∘ E)ᵀ v")),
             ("chunk i", ("A = q kᵀ ∘ D", "o = (q ∘ e^L) S + A v", "", "S ← e^L_end ∘ S", "     + (k ∘ E)ᵀ v")),
             ("last chunk", ("A = q kᵀ ∘ D", "o = (q ∘ e^L) S + A v", "", "S is needed no more")))
    up = top + 58
    for k, (title, lines) in enumerate(words):
        x = left + k * (box + room)
        svg.rect(x, up, box, height, "ground", "rx='4'")
        svg.text(x + 10, up + 20, title)
        for i, line in enumerate(lines):
            svg.text(x + 10, up + 42 + 18 * i, line, "small" + (" orange" if i > 2 and k < 2 else ""))
        svg.text(x + box / 2, up - 30, "q, k, v, g", "blue", "middle")
        arrow(svg, [(x + box / 2, up - 24), (x + box / 2, up - 3)], "blue")
        arrow(svg, [(x + box / 2, up + height + 3), (x + box / 2, up + height + 24)], "blue")
        svg.text(x + box / 2, up + height + 38, "o", "blue", "middle")
        if k < 2:
            arrow(svg, [(x + box + 3, up + height / 2), (x + box + room - 4, up + height / 2)], "orange thick")
            svg.text(x + box + room / 2, up + height / 2 - 8, "S", "orange", "middle")
    for i, line in enumerate(("L: running sums of the log decays g in the chunk; no exponent is above 0.",
                              "D = e^(L_t − L_j) for j ≤ t and 0 above the diagonal; E = e^(L_end − L_j).",
                              "Columns of S are independent: blocks of them are tasks of their own, as heads are.",
                              "Backward is the same scan: dq forwards, dk and dv from the last chunk to the first.")):
        svg.text(left, up + height + 68 + 17 * i, line, "small quiet")
    return svg


if __name__ == "__main__":
    drawings = (tape, attention_tiles, scan_chunks)
    main(__doc__, {draw.__name__: lambda text, draw=draw: draw(json.loads(text)) for draw in drawings})
