"""What filter.py and check.py both read from headers: strings, scopes, and what describe() and visit() call members."""

import functools
import pathlib
import re

STRING = r'"(?:[^"\\]|\\.)*"'


def masked(text):
    """Of equal length and lines, with blanks for strings and comments: what is left of brackets are brackets."""
    quoted = r"//[^\n]*|'(?:[^'\\\n]|\\.)'|R\"\((?s:.*?)\)\"|%s" % STRING
    return re.sub(quoted, lambda m: re.sub(r"[^\n]", " ", m.group()), text)


def joined(literals):
    """What adjacent string literals say together."""
    return "".join(s[1:-1] for s in re.findall(STRING, literals))


def balanced(text, at):
    """What stands between the bracket at `at` and its partner."""
    code, depth = masked(text), 0
    for end in range(at, len(text)):
        depth += (code[end] in "({") - (code[end] in ")}")
        if depth == 0:
            break
    return text[at + 1 : end]


def scope_of(head):
    """What a brace opens, by the text before it: ("namespace", name), ("type", name) or ("body", "")."""
    while (shorter := re.sub(r"<[^<>]*>", "", head)) != head:
        head = shorter
    opens = re.match(
        r"\s*(?:(?:public|private|protected):\s*)*(?:template\s*(?:requires [^(]*?\s(?=struct|class))?)?(?:inline )?"
        r"(namespace|enum class|enum|struct|class|union)\b\s*(\w*)[^(]*$",
        head,
    )
    return ("namespace" if opens.group(1) == "namespace" else "type", opens.group(2)) if opens else ("body", "")


def scopes(text):
    """For each line, within what it begins, outermost first."""
    out, inside, head = [], [], ""
    no_macros = re.sub(r"(?m)^(#(?:.*\\\n)*|[A-Z_]+\().*", lambda m: "\n" * m.group().count("\n"), masked(text))
    for line in no_macros.split("\n"):
        out.append(tuple(inside))
        for c in line + " ":
            if c == "{":
                inside.append(scope_of(head))
            elif c == "}":
                inside = inside[:-1]
            head = "" if c in "{};" else head + c
    return out


def expanded(text):
    """With what SLUICE_PARTS stands for, on the same number of lines."""

    def visit(parts):
        names = re.findall(r"\w+", parts.group(2))
        if parts.group(1):
            names = names[1:]  # the base, whose members are described there
        calls = (f'f("{name}", self.{name});' if name != "heads" else "Heads::visit(self.heads, f);" for name in names)
        return f"  static void visit(auto& self, auto&& f) {{ {' '.join(calls)} }}" + "\n" * parts.group().count("\n")

    return re.sub(r"(?m)^  SLUICE_PARTS(_BEHIND)?\(([^)]*)\);", visit, text)


@functools.cache
def all_headers():
    return [
        expanded(path.read_text(encoding="utf-8"))
        for room in ("core", "ops", "autograd", "parallel", "layers")
        for path in sorted(pathlib.Path(room).rglob("*.h"))
    ]


@functools.cache
def constants():
    """Meanings of options that have a name, since they serve several structs: kGauKindMeaning → its text."""
    found = (re.findall(r"constexpr const char\* (k\w+)\s*=\s*((?:%s\s*)+);" % STRING, text) for text in all_headers())
    return {name: joined(literals) for one in found for name, literals in one}


@functools.cache
def enums():
    """Name of an enum → its values, each with the comment behind it."""
    out = {}
    for text in all_headers():
        for head in re.finditer(r"enum class (\w+)[^{;]*\{", text):
            body = re.sub(r"\n\s*//(?!/)", "", balanced(text, head.end() - 1))  # a comment's next lines join its first
            values = re.findall(r"(\w+)(?:,|\s*(?=//|$))\s*(?:///?<? ?([^\n]*))?", body)
            out[head.group(1)] = [
                (value, re.sub(r"\s{3,}(?!\()", "; ", re.sub(r"\s{3,}\(", " (", comment.strip())))
                for value, comment in values
            ]
    return out


def calls(body, function):
    """What `describe` or `visit` of this body says: (member, rest of the path, name in files, meaning). Of options
    in options and of members is None."""
    argument = "self" if function == "visit" else "o"
    out = []
    for call in re.finditer(r'\bf(?:\.(\w+))?\("([^"]*)", \*?%s\.(\w+)([\w.]*)' % argument, body):
        meaning = None
        if function != "visit" and call.group(1) != "nested":
            words = re.search(r"(?:%s\s*)+$|\bk\w+$" % STRING, balanced(body, body.index("(", call.start()))).group()
            meaning = constants()[words] if words.startswith("k") else joined(words)
        out.append((call.group(3), call.group(4)[1:], call.group(2), meaning))
    for shared in re.findall(r"\b(describe_\w+)\(o, f\)", body):  # what structs have in common
        out += next(said_in(text, shared) for text in all_headers() if f"void {shared}(auto" in text)
    return out + [
        (member, "", "", None) for member in re.findall(r"\b\w+::%s\(%s\.(\w+), f" % (function, argument), body)
    ]


def said_in(text, function):
    """calls() of the first such function in the text."""
    start = re.search(r"void %s\(auto& \w+, auto&&? \w+\)[^{;]*\{" % function, text)
    return calls(balanced(text, start.end() - 1), function) if start else []
