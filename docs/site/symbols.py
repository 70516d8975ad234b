"""What Doxygen's XML knows of the public symbols, as objects: each with its text as Markdown and its declaration from
the header."""

import functools
import pathlib
import re
import xml.etree.ElementTree


@functools.cache
def lines_of(path):
    return pathlib.Path(path).read_text(encoding="utf-8").split("\n")


class Symbol:
    def __init__(self, element, owner=None):
        self.element, self.owner, self.id = element, owner, element.get("id")
        self.kind = element.get("kind")
        self.name = (
            (element.findtext("name") or element.findtext("compoundname"))
            .removeprefix("sluice::")
            .removeprefix("formula::")
        )
        place = element.find("location")
        self.file = place.get("file")
        self.line = int(place.get("declline") or place.get("line") or 0)
        self.members, self.page, self.anchor = [], None, None

    @functools.cached_property
    def declaration(self):
        return declaration(self.file, self.line)

    def text(self, link=lambda ref, shown: shown):
        return described(self.element, link)

    def usual(self):
        """A destructor or a copy that is deleted, without a comment of its own: nothing to say."""
        own = (
            lines_of(self.file)[self.line - 2].strip().startswith("///") or " // " in lines_of(self.file)[self.line - 1]
        )
        copy = "= delete" in self.declaration and self.name in ("operator=", self.owner.name.split("::")[-1])
        return (self.name.startswith("~") or copy) and not own

    def path(self):
        return self.owner.path() + "::" + self.name if self.owner and self.owner.kind != "namespace" else self.name


def declaration(path, line):
    """What stands in the header from this line to the end of the declaration, without a body or a comment."""
    lines, first = lines_of(path), line - 1
    while re.match(r"\s*(template <|requires\b)", lines[first - 1]) and not lines[first - 1].rstrip().endswith(
        (";", "}")
    ):
        first -= 1
    out, depth = "", 0
    for text in lines[first:]:
        text = re.sub(r"\s*//.*$", "", text) if '"' not in text.split("//")[0] else re.sub(r"\s+// .*$", "", text)
        for i, c in enumerate(text):
            if depth == 0 and (
                c == "{" and not out.rstrip().endswith(("=", ",")) or c == ";" or c == ":" and re.search(r"\)\s*$", out)
            ):
                return dedent(out.rstrip())
            depth += (c in "({") - (c in ")}")
            out += c
        out += "\n"
    return dedent(out)


def dedent(text):
    indent = len(text) - len(text.lstrip(" "))
    return "\n".join(line[indent:] if line[:indent].isspace() else line for line in text.split("\n"))


# -- descriptions ------------------------------------------------------------------------------------------


def escaped(text):
    """Text as Markdown says it."""
    text = re.sub(r"(?<!\w)_|_(?!\w)|[\\`*\[\]#]", r"\\\g<0>", text)
    return text.replace("<", "&lt;").replace("|", "&#124;")


def code(text):
    text = " ".join(text.split())
    return f"`` {text} ``" if "`" in text else f"`{text}`"


def inline(element, link):
    out = escaped(element.text or "")
    for child in element:
        if child.tag == "computeroutput":
            out += code("".join(child.itertext()))
        elif child.tag == "ref":
            out += link(child.get("refid"), escaped("".join(child.itertext())))
        elif child.tag == "ulink":
            out += f"[{escaped(''.join(child.itertext()))}]({child.get('url')})"
        elif child.tag in ("bold", "emphasis"):
            mark = "**" if child.tag == "bold" else "*"
            out += mark + inline(child, link) + mark
        elif child.tag in ("verbatim", "programlisting", "itemizedlist", "orderedlist", "preformatted"):
            out += "\0" + block(child, link) + "\0"
        elif child.tag in SYMBOLS:
            out += SYMBOLS[child.tag]
        elif child.tag == "simplesect":
            out += "\0" + "\0".join(inline(p, link) for p in child.findall("para")) + "\0"
        else:
            raise ValueError(f"symbols.py does not know <{child.tag}> in: {''.join(element.itertext())[:80]}")
        out += escaped(child.tail or "")
    return out


SYMBOLS = {"ndash": "–", "mdash": "—", "nonbreakablespace": " ", "linebreak": " ", "sp": " ", "zwj": ""}


def block(element, link):
    if element.tag in ("verbatim", "preformatted"):
        return "```text\n" + "".join(element.itertext()).strip("\n") + "\n```"
    if element.tag == "programlisting":
        lines = ["".join(" " if part is None else part for part in texts(line)) for line in element.iter("codeline")]
        return "```cpp\n" + "\n".join(lines) + "\n```"
    return "\n".join(
        "* " + " ".join(inline(p, link).strip() for p in item.findall("para")) for item in element.findall("listitem")
    )


def texts(element):
    """itertext(), with <sp/> as None."""
    if element.tag == "sp":
        yield None
    if element.text:
        yield element.text
    for child in element:
        yield from texts(child)
        if child.tail:
            yield child.tail


def described(element, link):
    """Brief and detailed description as paragraphs and blocks of Markdown."""
    parts = []
    for kind in ("briefdescription", "detaileddescription"):
        at = element.find(kind)
        for i, para in enumerate(at.findall("para") if at is not None else []):
            text = inline(para, link)
            if parts and i == 0 and kind == "detaileddescription" and not parts[-1].endswith("```"):
                text = parts.pop() + " " + text.lstrip()  # the brief was the first sentence of one paragraph
            parts += [text]
    out = []
    for part in "\0".join(parts).split("\0"):
        if part.strip().startswith(("```", "* ")):
            out.append(part)
        elif part.strip():
            out.append(" ".join(part.split()))
    return out


# -- everything --------------------------------------------------------------------------------------------


class Symbols:
    """`files`: header → its symbols by line; `by_id`: all that have a text; `headers`: header → its comment."""

    def __init__(self, folder):
        self.files, self.by_id, self.headers, classes = {}, {}, {}, {}
        roots = [xml.etree.ElementTree.parse(path).getroot() for path in sorted(pathlib.Path(folder).glob("*.xml"))]
        for compound in (c for root in roots for c in root.iter("compounddef")):
            kind = compound.get("kind")
            if kind == "file":
                self.headers[compound.find("location").get("file")] = Symbol(compound)
            elif kind in ("struct", "class", "union", "concept") and compound.get("prot") in (None, "public"):
                symbol = classes[compound.findtext("compoundname")] = Symbol(compound)
                for member in compound.findall("sectiondef/memberdef"):
                    one = Symbol(member, symbol)
                    if member.get("prot") == "public" and member.get("kind") != "friend" and not one.usual():
                        symbol.members.append(one)
                symbol.members.sort(key=lambda m: m.line)
                self.add(symbol)
            elif kind == "namespace":
                for member in compound.findall("sectiondef/memberdef"):
                    self.add(Symbol(member))
        for symbols in self.files.values():
            symbols.sort(key=lambda s: (s.line, s.name))

    def add(self, symbol):
        if symbol.id in self.by_id:
            return
        # Nested in something that is not public: Stream::Kept::Before.
        if symbol.kind in ("struct", "class") and "::" in symbol.name and symbol.element.get("prot") != "public":
            return
        self.files.setdefault(symbol.file, []).append(symbol)
        for one in [symbol, *symbol.members]:
            self.by_id[one.id] = one
