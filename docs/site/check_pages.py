#!/usr/bin/env python3
"""Whether the site is whole: docs/site/check_pages.py OUT, in the project's folder, after pages.py and MkDocs.

* Every link of every page, picture and script leads to a file of the site, and its anchor to a place there; nothing
  comes from elsewhere.
* Every page has a title, and its own.
* Each declaration on a page of the API stands in the header and line that it names, with the comment that stands there
  and no other; every public symbol that Doxygen knows has its place.
* An option's table has what its struct describes, and the meaning that stands there.
Status 1 if something is wrong, with a line for each.
"""

import html.parser
import pathlib
import re
import sys
import urllib.parse

sys.dont_write_bytecode = True
from api import OPTIONS
from check import bare, verdict
from options import options_of
from symbols import Symbols
from topics import WITHOUT_PAGE

wrong, found = [], {"links": 0, "declarations": 0, "options": 0, "symbols": 0}


class Html(html.parser.HTMLParser):
    def __init__(self, path):
        super().__init__()
        self.links, self.ids, self.title, self.headings, self.inside = [], set(), "", 0, None
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.ids |= {given[key] for key in ("id", "name") if key in given}
        self.headings += tag == "h1"
        self.inside = tag
        for key in ("href", "src", "data-src"):
            if given.get(key):
                self.links.append((tag, given[key]))
        self.links += [(tag, part.split()[0]) for part in (given.get("srcset") or "").split(",") if part.strip()]

    def handle_data(self, data):
        if self.inside == "title":
            self.title += data


def check_links(site):
    pages = {path: Html(path) for path in sorted(site.rglob("*.html"))}
    titles = {}
    for path, page in pages.items():
        name = path.relative_to(site)
        if not page.headings or not page.title.strip():
            wrong.append(f"{name}: has no title")
        first = titles.setdefault(page.title.strip(), name)
        if first != name:
            wrong.append(f"{name}: has the title of {first}: {page.title.strip()}")
        for tag, link in page.links:
            parts = urllib.parse.urlsplit(link)
            if parts.scheme in ("http", "https"):
                if tag not in ("a",):
                    wrong.append(f"{name}: {tag} comes from elsewhere: {link}")
                continue
            if parts.scheme in ("mailto", "data", "javascript"):
                continue
            found["links"] += 1
            to = (path.parent / urllib.parse.unquote(parts.path)).resolve() if parts.path else path
            if to.is_dir():
                to = to / "index.html"
            if not to.exists():
                wrong.append(f"{name}: the link to {link} leads nowhere")
            elif (
                parts.fragment
                and to in pages
                and urllib.parse.unquote(parts.fragment) not in pages[to].ids | {"__top", ""}
            ):
                wrong.append(f"{name}: {link} has no such place")
    for style in site.rglob("*.css"):
        for link in re.findall(r"url\((https?:[^)]*)\)|@import", style.read_text(encoding="utf-8")):
            wrong.append(f"{style.relative_to(site)}: comes from elsewhere: {link}")


def comment_of(path, line):
    """What the header says of the declaration at a line: behind it and below, or above its group."""
    lines = pathlib.Path(path).read_text(encoding="utf-8").split("\n")
    behind = re.search(r"[;,{}]\s+//(?!/) ?(.*)$", lines[line - 1])
    if behind:
        return behind.group(1)
    above = line - 1
    while (
        above
        and lines[above - 1].strip()
        and not lines[above - 1].strip().startswith("//")
        and not lines[above - 1].rstrip().endswith(("{", ":"))
    ):
        above -= 1
    out = []
    while above and lines[above - 1].strip().startswith("///"):
        above -= 1
        out.insert(0, lines[above].strip()[3:].strip())
    return " ".join(out)


def unmarked(text):
    """Letters and digits of a text of Markdown, without its links and labels."""
    text = re.sub(r"\]\([^()]*\)", "", text).replace("**Errors:**", "").replace("&lt;", "<").replace("&#124;", "|")
    return bare(text)


SOURCE = re.compile(r"\[[^\]\n]*\]\(\.\./source/([^)]*)\.md#__codelineno-0-(\d+)\)\n\{: \.source \}")
# What filter.py says of all symbols of a kind, whatever stands around them.
SAID_OF_MANY = (
    "Without parameters: to be assigned to.",
    "All members are equal.",
    "As text.",
    "Parameters drawn from rng.",
    "What str() and messages",
    "ValueError that names the option",
)


def check_own(symbol):
    """A comment behind a declaration or right above it is in its text, whatever group it stands in."""
    lines = pathlib.Path(symbol.file).read_text(encoding="utf-8").split("\n")
    here = lines[symbol.line - 1]
    if symbol.kind not in ("function", "variable", "enum") or not here.count(symbol.name):
        return
    behind = re.search(r";\s+///?<? (?!see )(.*)$", here)
    above = lines[symbol.line - 2].strip().startswith("///")
    if not behind and not above:
        return
    comment = behind.group(1) if behind else comment_of(symbol.file, symbol.line)
    first = bare(re.split(r"(?<=[.;:])\s", comment)[0])
    if first not in unmarked(" ".join(symbol.text())):
        wrong.append(
            f"{symbol.file}:{symbol.line}: {symbol.path()} is “{comment[:50]}”, not “{' '.join(symbol.text())[:50]}”"
        )


def check_declarations(pages, symbols):
    texts = {
        path: path.read_text(encoding="utf-8")
        for room in ("api", "layers")
        for path in sorted((pages / room).glob("*.md"))
    }
    for path, text in texts.items():
        start = 0
        for entry in SOURCE.finditer(text):
            header, line = entry.group(1), int(entry.group(2))
            said = text[start : entry.start()]
            start = entry.end()
            said = re.split(r"^#+ .*$|^\{: \.use \}$", said, flags=re.M)[-1]
            code = re.search(r"```cpp\n(.*?)\n```", said, re.S)
            if not code:  # a table of operators, of types
                continue
            found["declarations"] += 1
            source = pathlib.Path(header).read_text(encoding="utf-8").split("\n")
            about = said[code.end() :]
            if bare(code.group(1).split("\n")[0])[:30] not in bare("".join(source[max(0, line - 3) : line + 5])):
                wrong.append(f"{path.name}: {header}:{line} does not declare “{code.group(1)[:60]}”")
            comment = comment_of(header, line)
            own = re.fullmatch(r"\s*`(.*)`\.?\s*", about)
            if (
                own
                and bare(own.group(1)) in bare(source[line - 1])
                or any(bare(said) in unmarked(about) for said in SAID_OF_MANY)
            ):
                continue
            if comment and bare(re.split(r"(?<=[.;:])\s", comment)[0]) not in unmarked(about):
                wrong.append(f"{path.name}: {header}:{line} says “{comment[:60]}”, the page “{about.strip()[:60]}”")
    for header, of in symbols.files.items():
        if header in WITHOUT_PAGE:
            continue
        pages_of = [bare(text) for text in texts.values() if f"<sluice/{header}>" in text]
        for symbol in of:
            for one in [symbol, *symbol.members]:
                found["symbols"] += 1
                check_own(one)
                wanted = (
                    one.name
                    if one.kind == "variable" or "formula" in one.id
                    else one.declaration.split("\n")[-1].removeprefix("inline ")
                )
                if one.kind == "enumvalue" or one.owner and one.kind == "enum":
                    continue
                options = options_of(symbol.name) if one.owner and one.kind == "variable" else []
                if any(row["member"].split(".")[0] == one.name for row in options):
                    continue
                if not any(bare(wanted) in text for text in pages_of):
                    wrong.append(f"{header}:{one.line}: {one.path()} is on no page")


def check_options(pages):
    for path in [*sorted((pages / "api").glob("*.md")), *sorted((pages / "layers").glob("*.md"))]:
        for part in re.split(r"^### ", path.read_text(encoding="utf-8"), flags=re.M)[1:]:
            name = re.match(r"`(\w+)`", part)
            if not name or OPTIONS not in part:
                continue
            rows = [
                [c.strip() for c in line.strip("|").split("|")] for line in part.split("\n") if line.startswith("| `")
            ]
            table = {row[0].split("`")[1]: row for row in rows if len(row) == 3}
            for option in options_of(name.group(1)):
                found["options"] += 1
                row = table.get(option["name"])
                if row is None:
                    wrong.append(f"{path.name}: {name.group(1)} has no option {option['name']}")
                elif unmarked(option["meaning"]) not in unmarked(row[2]):
                    wrong.append(
                        f"{path.name}: {name[1]}.{option['name']} is “{option['meaning'][:50]}”, not “{row[2][:50]}”"
                    )


def main(out):
    symbols = Symbols(out / "xml")
    check_links(out / "html")
    check_declarations(out / "pages", symbols)
    check_options(out / "pages")
    if found["links"] < 3000 or found["declarations"] < 400 or found["options"] < 400 or found["symbols"] < 1000:
        wrong.append(f"only {found} were found: this check is broken")
    return verdict(found, wrong, " are where they belong")


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1])))
