#!/usr/bin/env python3
"""A program's run in a terminal, as an animated picture.

    terminal.py record FILE.json COMMAND…    runs it in a terminal of its own, and keeps what this showed
    terminal.py draw FILE.json PICTURE.svg   replays that in LENGTH seconds, over and over

A reader who wants no motion, and a program that cannot animate, see the last screen.
"""
import codecs
import errno
import fcntl
import json
import os
import pty
import re
import struct
import sys
import termios
import time

sys.dont_write_bytecode = True
from draw import MONO, Svg, escaped  # noqa: E402

COLUMNS, ROWS, FRAMES = 94, 28, 110
TYPING, LENGTH, REST = 1.5, 14, 7  # seconds of the picture: the command is typed, the run, its end stays
ADVANCE, LINE, EDGE = 7.85, 18, 14  # of a letter and a line of 13 pixels; around the text


class Screen:
    """The lines that a terminal shows; knows what a progress line needs."""

    def __init__(self):
        self.lines, self.column, self.rest = [""], 0, ""

    def write(self, text):
        text, self.rest = self.rest + text, ""
        for piece in re.findall(r"\x1b\[[\d;?]*[A-Za-z]|\x1b[^\[]?$|\x1b\[[\d;?]*$|[\s\S]", text):
            line = self.lines[-1]
            if piece == "\n":
                self.lines.append("")
                self.column = 0
            elif piece == "\r":
                self.column = 0
            elif piece == "\x1b[K":
                self.lines[-1] = line[:self.column]
            elif piece.startswith("\x1b"):
                self.rest = "" if piece[-1].isalpha() else piece  # another sequence, or the start of one
            elif piece >= " ":
                if self.column == COLUMNS:
                    self.lines.append("")
                    line, self.column = "", 0
                self.lines[-1] = line[:self.column].ljust(self.column) + piece + line[self.column + 1:]
                self.column += 1


def record(path, command):
    child, terminal = pty.fork()
    if child == 0:
        try:
            os.execvp(command[0], command)
        except OSError as e:
            os.write(2, f"{command[0]}: {e.strerror}\n".encode())
            os._exit(127)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    screen, shown, start = Screen(), [], time.monotonic()
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    while True:
        try:
            data = os.read(terminal, 65536)
        except OSError as e:
            if e.errno != errno.EIO:  # how Linux says that the other side is gone
                raise
            data = b""
        if not data:
            break
        sys.stdout.buffer.write(data)
        sys.stdout.flush()
        screen.write(decoder.decode(data))
        shown.append((time.monotonic() - start, list(screen.lines)))
    _, status = os.waitpid(child, 0)
    if status:
        sys.exit(f"terminal: {command[0]} ended with status {os.waitstatus_to_exitcode(status)}")
    frames, before, due = [], [], 0
    for i, (at, lines) in enumerate(shown):
        if at < due and i + 1 < len(shown):
            continue
        due = at + shown[-1][0] / FRAMES
        keep = next((k for k, (a, b) in enumerate(zip(before, lines)) if a != b), min(len(before), len(lines)))
        frames.append([round(at, 2), keep, lines[keep:]])
        before = lines
    words = " ".join([os.path.basename(command[0]), *command[1:]])
    with open(path, "w", encoding="utf-8") as file:
        file.write(json.dumps({"command": words})[:-1] + ', "frames": [\n' +
                   ",\n".join(json.dumps(f, ensure_ascii=False) for f in frames) + "\n]}\n")


def spans(line, sample):
    """A line as SVG, with what matters in colour."""
    def span(kind, text):
        return f"<tspan class='{kind}'>{escaped(text)}</tspan>" if text else ""
    if sample:
        return span(sample, line)
    if m := re.fullmatch(r"( *\d+% )(\[#*)(\.*\])(.*?)(bits/char [\d.]+)(.*)", line):
        kinds = ("ink", "blue", "grey", "quiet", "blue", "quiet")
        return "".join(span(kind, text) for kind, text in zip(kinds, m.groups()))
    if m := re.fullmatch(r"(untrained|sample) ( *)(.*)", line):
        return span("quiet", m[1]) + escaped(f" {m[2]}") + span("orange" if m[1] == "untrained" else "green", m[3])
    if m := re.fullmatch(r"(step \d+: )(.*)(validation )([\d.]+ bits/char)", line):
        return span("quiet", m[1] + m[2] + m[3]) + span("blue", m[4])
    if m := re.fullmatch(r"(machine|text|model|baseline|result|files|resume)( .*)", line):
        return span("quiet", m[1]) + escaped(m[2])
    return escaped(line)


def draw(path, out):
    try:
        with open(path, encoding="utf-8") as file:
            run = json.load(file)
    except (OSError, ValueError) as e:
        sys.exit(f"terminal: {path} is no record: {e}")
    prompt = "$ " + run["command"]
    screens = [(TYPING * k / len(prompt), [prompt[:k]]) for k in range(2, len(prompt) + 1, 3)]
    screens.append((TYPING, [prompt]))
    lines, end = [], run["frames"][-1][0]
    for at, keep, rest in run["frames"]:
        lines = lines[:keep] + rest
        screens.append((TYPING + 0.4 + LENGTH * at / end, [prompt, *lines]))
    total = screens[-1][0] + REST
    rows = min(ROWS, max(len(s) for _, s in screens))
    width, height = COLUMNS * ADVANCE + 2 * EDGE, rows * LINE + 2 * EDGE

    known, frames, steps = {}, [], []
    for k, (at, all_lines) in enumerate(screens):
        sample, uses = "", []
        for i, line in enumerate(all_lines):
            if line.startswith("files "):
                sample = ""
            name = known.setdefault((line, sample), f"l{len(known)}")
            row = i - max(0, len(all_lines) - rows)
            if line and row >= 0:
                uses.append(f"<use href='#{name}' y='{row * LINE}'/>")
            if line.startswith("sample "):
                sample = "green"
        frames.append(f"<g transform='translate(0 {k * rows * LINE})'>{''.join(uses)}</g>")
        steps.append(f"{100 * at / total:.2f}%{{transform:translateY({-k * rows * LINE}px)}}")
    last = -(len(screens) - 1) * rows * LINE
    style = (f"#run{{transform:translateY({last}px);animation:run {total:.1f}s step-end infinite}}"
             f"@keyframes run{{{''.join(steps)}}}@media(prefers-reduced-motion:reduce){{#run{{animation:none}}}}")
    result = [line for line in lines if re.match("result|baseline|untrained|sample", line)]
    words = "A recorded run. " + " ".join(" ".join(result).split())
    svg = Svg(width, height, f"A terminal: {run['command']}", words, style, MONO)
    svg.rect(0.5, 0.5, width - 1, height - 1, "ground", "rx='6'")
    svg.add("<defs>")
    for (line, sample), name in known.items():
        if line:
            svg.add(f"<text id='{name}' y='13' xml:space='preserve'>{spans(line, sample)}</text>")
    svg.add(f"</defs>\n<svg x='{EDGE}' y='{EDGE}' width='{COLUMNS * ADVANCE}' height='{rows * LINE}' overflow='hidden'>"
            "<g id='run'>")
    svg.parts += frames
    svg.add("</g></svg>")
    with open(out, "w", encoding="utf-8") as file:
        file.write(str(svg))


if __name__ == "__main__":
    if len(sys.argv) > 3 and sys.argv[1] == "record":
        record(sys.argv[2], sys.argv[3:])
    elif len(sys.argv) == 4 and sys.argv[1] == "draw":
        draw(*sys.argv[2:])
    else:
        sys.exit(__doc__.strip())
