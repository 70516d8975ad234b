#!/usr/bin/env python3
"""Lays out what MkDocs builds: docs/site/pages.py XML OUT, in the project's folder, writes OUT/pages, OUT/mkdocs.yml.

* Every README and every page of docs/ keeps its place; links between them stay as they are on GitHub.
* A link to a source file leads to a page with its lines, which is written for each file that a page names.
* The API comes from Doxygen's XML (api.py).
"""

import json
import os
import pathlib
import re
import shutil
import sys

sys.dont_write_bytecode = True
import api
from symbols import Symbols
from topics import LAYERS, TOPICS

# A block of code, a link whose text may have code or a picture, or code: what comes first is not looked into.
TOKEN = re.compile(
    r"^ *```.*?^ *```$"
    r"|(?P<link>!?\[(?:[^\[\]`\n]|\n(?!\n)|`[^`\n]*`|!?\[[^\[\]`\n]*\](?:\([^()\n]*\))?){0,300}\]\()(?P<target>[^()\s]+)\)"
    r"|``[^\n]*?``|`[^`\n]*`",
    re.M | re.S,
)
LANGUAGES = {
    ".h": "cpp",
    ".cpp": "cpp",
    ".cu": "cpp",
    ".cuh": "cpp",
    ".inc": "cpp",
    ".py": "python",
    ".sh": "bash",
    ".cmake": "cmake",
    ".json": "json",
    ".yml": "yaml",
}
OPS = ("create", "elementwise", "maps", "rows", "indexing", "matmul", "attention", "scan", "random")


class Site:
    def __init__(self, out):
        self.out, self.pages, self.sources, self.files = out / "pages", {}, set(), set()

    def read(self, root):
        """All Markdown of the project."""
        for folder, names, files in os.walk(root):
            here = pathlib.Path(folder)
            names[:] = [
                n
                for n in names
                if not n.startswith((".", "build")) and (here / n).resolve() != self.out.parent.resolve()
            ]
            for file in files:
                if file.endswith(".md"):
                    path = (here / file).relative_to(root).as_posix()
                    self.pages[path] = (root / path).read_text(encoding="utf-8")

    def linked(self, page, text):
        """The text with its links to files of the project led to pages; code is left alone."""

        def lead(link):
            head, target, tail = link.group("link"), link.group("target"), ")"
            if re.match(r"[a-z]+:", target) or target.startswith("#"):
                return link.group()
            path, _, anchor = target.partition("#")
            at = os.path.normpath(os.path.join(os.path.dirname(page), path))
            shown = head.lstrip("!")[1:-2]
            if at.startswith("source/") or at in self.pages:
                if at.startswith("source/"):
                    self.sources.add(at.removeprefix("source/").removesuffix(".md"))
                return link.group()
            if os.path.isdir(at):
                at = os.path.join(at, "README.md")
                return (
                    f"{head}{os.path.relpath(at, os.path.dirname(page) or '.')}{tail}"
                    if at in self.pages
                    else f"`{shown.strip('`')}`"
                )
            if not os.path.isfile(at):
                raise SystemExit(f"{page}: the link to {target} leads nowhere")
            if at.endswith((".svg", ".png")):
                self.files.add(at)
                return link.group()
            self.sources.add(at)
            line = re.fullmatch(r"L(\d+)", anchor)
            up = os.path.relpath(f"source/{at}.md", os.path.dirname(page) or ".")
            return f"{head}{up}{'#line-' + line.group(1) if line else ''}{tail}"

        for picture in re.findall(r"(?:src|srcset)=\"([^\":]+)\"", text):
            self.files.add(os.path.normpath(os.path.join(os.path.dirname(page), picture)))
        return TOKEN.sub(lambda m: lead(m) if m.group("link") else m.group(), text).replace(
            "#line-", "#__codelineno-0-"
        )

    def write(self):
        done = {page: self.linked(page, text) for page, text in self.pages.items()}
        for path in sorted(self.sources):
            kind = LANGUAGES.get(pathlib.Path(path).suffix, "text")
            text = pathlib.Path(path).read_text(encoding="utf-8").rstrip("\n")
            done[f"source/{path}.md"] = (
                f"# {path.replace('_', chr(92) + '_')}\n\n~~~~~~~~ {{ .{kind} linenums=\"1\" }}\n{text}\n~~~~~~~~\n"
            )
        for page, text in done.items():
            at = self.out / page
            at.parent.mkdir(parents=True, exist_ok=True)
            at.write_text(text if page.startswith("source/") else relaxed(text), encoding="utf-8")
        for file in sorted(self.files):
            (self.out / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, self.out / file)
        (self.out / "assets").mkdir(exist_ok=True)
        shutil.copy("docs/site/sluice.css", self.out / "assets")


def relaxed(text):
    """GitHub's Markdown as MkDocs reads it: a blank line before a list, four columns for what belongs to its items."""
    out, fenced, stack = [], None, []
    for line in text.split("\n"):
        indent = len(line) - len(line.lstrip(" "))
        if fenced:
            out.append(" " * fenced[1] + line[min(indent, fenced[0]) :] if line.strip() else "")
            fenced = None if line.strip() == fenced[2] else fenced
            continue
        item = re.match(r"( *)([*+-]|\d+\.) +", line)
        while stack and line.strip() and indent < stack[-1]:
            stack.pop()
        if item:
            if out and out[-1].strip() and not stack and not re.match(r" *([*+-]|\d+\.) ", out[-1]):
                out.append("")
            line = "    " * len(stack) + line[indent:]
            stack.append(item.end())
        elif stack and line.strip():
            line = "    " * len(stack) + line[indent:]
        elif re.match(r"\|", line) and out and out[-1].strip() and not out[-1].startswith("|"):
            out.append("")
        if opened := re.match(r" *(```+|~~~+)", line):
            fenced = (indent, 4 * len(stack), opened.group(1))
        out.append(line)
    return "\n".join(out)


def title(text, page):
    """The first heading of a page, without what stands behind a dash."""
    heading = re.search(r"^# (.*)$", re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S), re.M)
    if not heading:
        raise SystemExit(f"{page}: has no title")
    said = re.split(r" — |: ", heading.group(1).replace("`", "").replace("\\", ""))[0]
    return said[0].upper() + said[1:]


ROOMS = ("core", "ops", "autograd", "parallel", "layers", "cuda")


def navigation(pages):
    """The tabs and what stands in each; a page of the project that no tab takes is an error."""
    taken = set()

    def entry(page, called=None):
        taken.add(page)
        return {called or title(pages[page], page): page}

    def matching(pattern):
        first = lambda page: (not page.endswith("README.md"), page)
        return [entry(p) for p in sorted(pages, key=first) if re.fullmatch(pattern, p) and p not in taken]

    def topics(names):
        by_name = {t[0]: t for t in TOPICS}
        return [entry(f"{api.room(name)}/{name}.md", by_name[name][1]) for name in names]

    others = [t[0] for t in TOPICS if t[0] not in (*LAYERS, *OPS, "tensor", "autograd")]
    tabs = {
        "Home": [
            entry("README.md", "Sluice"),
            entry("docs/INSTALL.md", "Build and install"),
            entry("CHANGELOG.md", "Changes"),
            entry("CONTRIBUTING.md"),
            entry("SECURITY.md", "Security"),
            entry("docs/CREDITS.md"),
            entry("docs/README.md", "These pages"),
        ],
        "Guide": [
            *matching(r"docs/guide/.*\.md"),
            entry("examples/README.md", "Examples"),
            entry("layers/port/README.md"),
            entry("layers/models/README.md", "Models from their files"),
            entry("examples/layer_check/README.md", "layer_check"),
        ],
        "Layers": [
            entry("layers/LAYERS.md", "All layers"),
            entry("layers/CALLS.md"),
            *topics(LAYERS),
        ],
        "API": [
            entry("api/index.md", "By topic"),
            *topics(["tensor"]),
            {"Ops": topics(OPS)},
            *topics(["autograd", *others]),
            entry("layers/data/README.md", "Files and batches"),
        ],
        "How it works": [
            *matching(r"docs/how/.*\.md"),
            *matching(r".*/(ADD_AN?_.*|RUNNING|SEQUENCES)\.md"),
            entry("cuda/KERNELS.md"),
            entry("cuda/emulator/README.md"),
            {"Rooms": [entry(f"{room}/README.md", room) for room in ROOMS]},
        ],
        "Performance": [
            entry("tests/bench/README.md", "Benchmarks"),
            *matching(r"docs/PERFORMANCE\.md"),
            *matching(r".*/MEASURED\.md"),
        ],
        "Reliability": [
            entry("docs/RELIABILITY.md", "Reliability"),
            entry("docs/PLATFORMS.md"),
            entry("tests/README.md", "Tests"),
        ],
        "Claims": matching(r"docs/CLAIMS\.md") + matching(r"examples/claims/.*\.md"),
    }
    tabs["Home"] += matching(r"docs/.*\.md")
    if left := sorted(set(pages) - taken):
        raise SystemExit(f"docs/site/pages.py: no tab takes {', '.join(left)}")
    return [{tab: entries} for tab, entries in tabs.items() if entries]


def main(folder, out):
    site = Site(out)
    site.read(pathlib.Path("."))
    site.pages.update(api.write(Symbols(folder)))
    nav = navigation(site.pages)
    site.write()
    base = pathlib.Path("docs/site").resolve()
    config = {
        "INHERIT": str(base / "mkdocs.yml"),
        "docs_dir": str(site.out.resolve()),
        "site_dir": str((out / "html").resolve()),
        "nav": nav,
        "hooks": [str(base / "hooks.py")],
        "theme": {"custom_dir": str(base / "theme")},
    }
    (out / "mkdocs.yml").write_text(json.dumps(config, indent=1, ensure_ascii=False), encoding="utf-8")
    print(f"docs: {len(site.pages)} pages, {len(site.sources)} with sources")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]))
