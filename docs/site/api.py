"""The pages of the API as Markdown: a page for each topic (topics.py), its symbols in the order of the headers, with
declaration, text, errors, source and a line of use."""

import itertools
import re

import uses
from options import options_of, structs
from symbols import code, described, escaped
from topics import LAYERS, rank, title_of, TOPICS, WITHOUT_PAGE

ERROR = re.compile(r"\b(?:Value|Shape|DType|Device|Autograd|IO|Memory)Error\b")
FUNCTION_LIKE = ("function", "typedef", "variable")
OPTIONS = "| option | default, type | meaning |"  # the head of the tables that check_pages.py reads


def cell(text):
    return " ".join(text.replace("|", "&#124;").split())


def anchor_of(symbol):
    return re.sub(r"\W+", "-", symbol.path()).strip("-")


class Page:
    """One topic."""

    def __init__(self, symbols, topic, headers):
        self.symbols, self.headers = symbols, headers
        self.name, self.title, self.about = topic[:3]
        self.out, self.anchors = [], set()

    def link(self, refid, shown):
        target = self.symbols.by_id.get(refid)
        if target is None or target.page is None:
            return shown
        away = "" if (target.page in LAYERS) == (self.name in LAYERS) else f"../{room(target.page)}/"
        page = "" if target.page == self.name else f"{away}{target.page}.md"
        return f"[{shown}]({page}#{target.anchor})"

    def say(self, *lines):
        self.out += [*lines, ""]

    def text(self, symbol):
        """Paragraphs; sentences that name an error stand in one of their own."""
        out = []
        for part in symbol.text(self.link):
            if part.startswith(("```", "* ")):
                out.append(part)
                continue
            kept, failing = [], []
            for sentence in re.split(r"(?<=[.;])\s+(?=[A-Z`\[])", part):
                (failing if ERROR.search(sentence) else kept).append(sentence)
            out += [" ".join(kept)] if kept else []
            out += ["**Errors:** " + " ".join(failing)] if failing else []
        return [whole(part) for part in out]

    def source(self, symbol):
        self.say(f"{self.at(symbol, escaped(f'{symbol.file}:{symbol.line}'))}", "{: .source }")

    def at(self, symbol, shown):
        return f"[{shown}](../source/{symbol.file}.md#line-{symbol.line})"

    def heading(self, level, group, shown=None):
        """A heading with the anchor of the first symbol; the others' anchors before it."""
        names = list(dict.fromkeys(s.path() for s in group))
        anchors = [a for a in dict.fromkeys(s.anchor for s in group) if a not in self.anchors]
        self.anchors |= set(anchors)
        if not anchors:
            anchors = [f"{group[0].anchor}-{group[0].line}"]
        for other in anchors[1:]:
            self.out.append(f'<a id="{other}"></a>')
        if len(anchors) > 1:
            self.out.append("")
        if shown is None:
            shown = f"{names[0]}, {names[1]}, …, {names[-1]}" if len(names) > 6 else ", ".join(names)
        self.say(f"{'#' * level} {code(shown)} {{#{anchors[0]}}}")

    # -- headers --------------------------------------------------------------------------------------------

    def write(self):
        self.say(f"# {self.title}", "", self.about)
        for path in self.headers:
            symbols = self.symbols.files[path]
            self.say(f"## {title_of(path)} {{#{title_of(path).lower().replace(' ', '-')}.h}}")
            self.say(f"`#include <sluice/{path}>` · [source](../source/{path}.md)")
            if path in self.symbols.headers:
                for part in self.text(self.symbols.headers[path]):
                    self.say(part)
            for group in grouped(layers_first(symbols)):
                self.entry(group)
        return re.sub(r"\n{3,}", "\n\n", "\n".join(self.out)).strip() + "\n"

    def entry(self, group):
        first = group[0]
        if first.kind in ("struct", "class", "concept"):
            if len(group) > 1:
                self.table_of_structs(group)
            else:
                self.type(first)
        elif first.kind == "enum":
            self.enum(first)
        elif first.name.startswith("operator") and len(group) > 1:
            self.operators(group)
        else:
            self.heading(3, group)
            self.functions(group)
            self.use(group)

    def use(self, group):
        found = next((u for s in group if (u := uses.of(s))), None)
        if found:
            line, path, number = found
            self.say(f"**Use:** {code(line)} ([{escaped(path)}]({uses.target(path, number)}))", "{: .use }")

    def functions(self, group):
        """Declarations, each block with what is said of it."""
        for members in blocks(group):
            self.say("```cpp", *[m.declaration + ";" for m in members], "```")
            for part in self.text(members[0]):
                self.say(part)
            self.source(members[0])

    def operators(self, group):
        self.heading(3, group, "Operators" if not group[0].owner else None)
        self.source(group[0])
        rows = [
            f"| {code(s.declaration.removeprefix('inline '))} | {cell(' '.join(s.text(self.link)))} |" for s in group
        ]
        self.say("\n".join(["| declaration | is |", "|---|---|", *rows]))

    def table_of_structs(self, group):
        """Types that have nothing but a text."""
        self.heading(3, group, "Types")
        names = [
            s.path() + ("{" + ", ".join(m.name for m in s.members if m.kind == "variable") + "}").replace("{}", "")
            for s in group
        ]
        rows = [f"| {self.at(s, code(name))} | {cell(' '.join(s.text(self.link)))} |" for s, name in zip(group, names)]
        self.say("\n".join(["| type | is |", "|---|---|", *rows]))

    # -- types ----------------------------------------------------------------------------------------------

    def type(self, symbol):
        self.heading(3, [symbol])
        self.say("```cpp", symbol.declaration + ";", "```")
        layer = re.search(r"using Layer = struct (\w+);", structs().get(symbol.name, ""))
        said = self.text(symbol)
        if layer and said and said[0].startswith("Options of"):
            said[0] = f"Options of {self.named(layer.group(1))}."
        header = self.symbols.headers.get(symbol.file)
        if header is None or said != self.text(header)[: len(said)]:  # else it stands above
            self.say("\n\n".join(said))
        self.source(symbol)
        self.use([symbol])
        describes = "static void describe(" in structs().get(symbol.name, "")
        if describes:
            self.options(symbol)
        data = [m for m in symbol.members if m.kind == "variable"]
        if describes:
            data = [m for m in data if m.name not in option_members(symbol.name)]
        functions = [m for m in symbol.members if m.kind in ("function", "typedef")]
        if data and (describes or not functions):
            self.members(data, describes)
        for group in grouped(functions):
            self.heading(4, group)
            self.functions(group)
        if data and functions and not describes:
            self.heading(4, data, f"{symbol.path()}: data")
            self.members(data, False)
        for nested in (m for m in symbol.members if m.kind == "enum"):
            self.enum(nested, 4)

    def named(self, name):
        found = next((s for s in self.symbols.by_id.values() if s.name == name and s.kind in ("struct", "class")), None)
        return self.link(found.id, code(name)) if found else code(name)

    def options(self, symbol):
        own = {m.name: m for m in symbol.members}
        rows = []
        for row in options_of(symbol.name):
            meaning = escaped(row["meaning"])
            member = own.get(row["member"])
            said = " ".join(member.text(self.link)) if member is not None else ""
            said = re.sub(r" One of `.*$", "", said)
            if len(said) > max(60, 1.3 * len(meaning)) and plain(meaning) not in plain(said):
                meaning += ". " + said
            elif len(said) > len(meaning) and plain(meaning) in plain(said):
                meaning = said
            if row["of"]:
                meaning += f" ({self.named(row['of'])})"
            meaning = whole(meaning)
            if row["choices"]:
                meaning += " One of " + ", ".join(code(name) for name in row["choices"]) + "."
            kind = "a choice" if row["choices"] and row["type"] == "text" else row["type"].replace("text", "choice")
            kind += f", {escaped(row['range']).replace(' ', '&nbsp;')}" if row["range"] else ""
            default = "required" if row["required"] else code(row["default"])
            mark = " ¹" if row["training"] else ""
            rows.append(f"| {code(row['name'])}{mark} | {default}<br>{kind} | {cell(meaning)} |")
        self.say("\n".join([OPTIONS, "|---|---|---|", *rows]))
        if any("` ¹ |" in row for row in rows):
            self.say("¹ without effect on a layer that gets its weights")

    def members(self, data, more):
        rows = []
        for m in data:
            kind = " ".join("".join(m.element.find("type").itertext()).split())
            given = m.element.find("initializer")
            initialiser = "".join(given.itertext()).strip() if given is not None else ""
            default = f" = {code(initialiser.removeprefix('=').strip())}" if initialiser else ""
            rows.append(f"| {code(m.name)} | {cell(code(kind) + default)} | {cell(' '.join(m.text(self.link)))} |")
        head = "| further member | type | what |" if more else "| member | type | what |"
        self.say("\n".join([head, "|---|---|---|", *rows]))

    def enum(self, symbol, level=3):
        self.heading(level, [symbol])
        self.say("```cpp", symbol.declaration + ";", "```")
        for part in self.text(symbol):
            self.say(part)
        values = [(v.findtext("name"), " ".join(described(v, self.link))) for v in symbol.element.findall("enumvalue")]
        if any(said for _, said in values):
            rows = [f"| {code(name)} | {cell(said)} |" for name, said in values]
            self.say("\n".join(["| value | meaning |", "|---|---|", *rows]))
        else:
            self.say("Values: " + ", ".join(code(name) for name, _ in values) + ".")
        self.source(symbol)


def whole(text):
    """A text with a full stop."""
    if text.startswith(("```", "* ")):
        return text
    return text if text.endswith((".", "?", "!", ":", "```")) else text + "."


def plain(text):
    return re.sub(r"[\W_]", "", text)


def option_members(name):
    return {row["member"].split(".")[0] for row in options_of(name)}


def room(page):
    return "layers" if page in LAYERS else "api"


def blocks(group):
    """Neighbours with one text share it."""
    return [list(members) for _, members in itertools.groupby(group, key=lambda symbol: symbol.text())]


def layers_first(symbols):
    """A layer and its options before the enums that the options name."""
    by_name = {s.name: s for s in symbols}
    out = []
    for symbol in symbols:
        layer = re.search(r"using Layer = struct (\w+);", structs().get(symbol.name, ""))
        if layer and layer.group(1) in by_name:
            out += [by_name[layer.group(1)], symbol]
    return out + [s for s in symbols if s not in out]


def only_text(symbol):
    """A formula, whose text is all that it has to say."""
    functions = [m.name for m in symbol.members if m.kind == "function"]
    return symbol.kind == "struct" and "formula" in symbol.id and set(functions) <= {"operator()", "reduce"}


def together(a, b):
    """Whether neighbours share a heading: one name, or one text; operators; formulas."""
    if a.kind in FUNCTION_LIKE and b.kind in FUNCTION_LIKE:
        return (
            a.name == b.name or a.text() == b.text() or a.name.startswith("operator") and b.name.startswith("operator")
        )
    return only_text(a) and only_text(b)


def grouped(symbols):
    out = []
    for symbol in symbols:
        if out and together(out[-1][-1], symbol):
            out[-1].append(symbol)
        else:
            out.append([symbol])
    return out


def write(symbols):
    """The pages of all topics: name → Markdown. Headers without a topic are errors."""
    headers = {i: [] for i in range(len(TOPICS))}
    wrong = []
    for path in sorted(symbols.files):
        at = rank(path)
        if path in WITHOUT_PAGE:
            continue
        if at is None:
            wrong.append(f"{path}: belongs to no topic of docs/site/topics.py")
            continue
        headers[at[0]].append((at[1], path))
        for symbol in symbols.files[path]:
            for one in [symbol, *symbol.members]:
                one.page, one.anchor = TOPICS[at[0]][0], anchor_of(one)
            for member in symbol.members:
                if member.kind == "variable":
                    member.anchor = symbol.anchor
    for i, (name, *_) in enumerate(TOPICS):
        if not headers[i]:
            wrong.append(f"docs/site/topics.py: {name} has no header")
    if wrong:
        raise SystemExit("\n".join(wrong))
    pages = {}
    for i, topic in enumerate(TOPICS):
        page = Page(symbols, topic, [path for _, path in sorted(headers[i])])
        pages[f"{room(topic[0])}/{topic[0]}.md"] = page.write()
    pages["api/index.md"] = index(symbols, headers)
    return pages


def index(symbols, headers):
    out = [
        "# API by topic",
        "",
        "Everything is in the namespace `sluice` and in one include, `#include <sluice/sluice.h>`.",
        "",
    ]
    for i, (name, title, about, _) in enumerate(TOPICS):
        page = f"{'' if name not in LAYERS else '../layers/'}{name}.md"
        names = {}
        for _, path in sorted(headers[i]):
            for s in symbols.files[path]:
                if not s.name.startswith("operator") and "::" not in s.name and "formula" not in s.id:
                    names.setdefault(s.name, s.anchor)
        out += [
            f"## [{title}]({page})",
            "",
            about,
            "",
            " · ".join(f"[{escaped(n)}]({page}#{a})" for n, a in names.items()),
            "",
        ]
    return "\n".join(out)
