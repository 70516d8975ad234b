"""A line of use of a symbol: from a program of a page or from an example, both of which the tests compile."""

import functools
import pathlib
import re

LONGEST = 110


@functools.cache
def programs():
    """(path, first line's number, lines) of pages' programs and of examples, the best to read first."""
    out = []
    for page in [
        pathlib.Path("README.md"),
        *sorted(pathlib.Path("docs").rglob("*.md")),
        *sorted(p for p in pathlib.Path(".").glob("*/**/*.md") if not p.parts[0].startswith(("build", ".", "docs"))),
    ]:
        lines = page.read_text(encoding="utf-8").split("\n")
        start = None
        for i, line in enumerate(lines):
            if line.startswith("```"):
                if start is not None:
                    out.append((str(page), start + 1, lines[start:i]))
                start = i + 1 if line == "```cpp" and start is None else None
    examples = sorted(pathlib.Path("examples").glob("[0-9]*.cpp")) + sorted(pathlib.Path("examples").glob("[a-z]*.cpp"))
    for path in [*examples, *sorted(pathlib.Path("examples").glob("*/*.cpp"))]:
        out.append((str(path), 1, path.read_text(encoding="utf-8").split("\n")))
    return out


def declared(lines):
    """Names of a program's own variables, fields and lambdas: a call of one is no use of the library's function."""
    out = set()
    for line in lines:
        if m := re.match(r"\s*(?:const )?(?:auto|[A-Z]\w*(?:<[^>]*>)?)&? ([a-z_]\w*(?=\s*[=,;({:]).*)", line):
            out.update(re.findall(r"(?:^|, )([a-z_]\w*)(?=\s*(?:[=,;({]|$))", re.sub(r"[({].*?[)}]", "", m[1])))
            out.add(re.match(r"\w+", m[1])[0])
    return out


@functools.cache
def calls():
    """Name → [(rank, line, path, number)], of whole statements in one line."""
    out = {}
    for order, (path, first, lines) in enumerate(programs()):
        own = declared(lines)
        for i, line in enumerate(lines):
            line = re.sub(r"\s*//.*$", "", line).strip()
            if (
                not 8 < len(line) <= LONGEST
                or not line.endswith(";")
                or line.startswith(("using", "#", "template", "struct", "friend", "static ", "case"))
            ):
                continue
            if any(line.count(a) != line.count(b) for a, b in ("()", "{}", "[]")) or "…" in line:
                continue
            before = lines[i - 1].rstrip() if i else ""
            if (
                before
                and not before.split("//")[0].rstrip().endswith((";", "{", "}", ":"))
                and before.strip()
                and not before.strip().startswith("//")
            ):
                continue  # the end of a statement that began above
            for found in re.finditer(r"(?<![\w.>:])(?:sluice::)?([A-Za-z_]\w*)(?=[({ <])", line):
                name, behind = found.group(1), line[found.end() :]
                ahead = line[: found.start()].rstrip()
                if behind.startswith("(") and re.search(r"\w$", ahead) and not ahead.endswith("return"):
                    continue  # a declaration
                if name in own or ahead.endswith("template"):
                    continue  # of the program itself, or a member
                kind = "call" if behind.startswith(("(", "<")) else "type"
                out.setdefault((kind, name), []).append((order, line, path, first + i))
                if behind.startswith(("(", "{")):
                    out.setdefault(("type", name), []).append((order, line, path, first + i))
    return out


def of(symbol):
    """(line, path, number) or None."""
    if symbol.owner is not None or "::" in symbol.name or symbol.kind not in ("function", "struct", "class"):
        return None
    if "formula" in symbol.id:
        return None
    found = calls().get(("call" if symbol.kind == "function" else "type", symbol.name), [])
    if symbol.kind == "function":
        found = [f for f in found if not f[1].startswith(("Tensor " + symbol.name + "(const", "void "))]
    if not found:
        return None
    _, line, path, number = min(found, key=lambda f: (f[0] > 60, not re.search(r"[({]", f[1]), len(f[1]) > 90, f[0]))
    return line, path, number


def target(path, number):
    """Where the link to a line leads, from a page of the API."""
    return f"../{path}" if path.endswith(".md") else f"../source/{path}.md#line-{number}"
