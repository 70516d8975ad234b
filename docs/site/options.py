"""The options of a struct as its `describe` declares them, read from the headers: names in files with the prefixes of
their parts, types, defaults, ranges, meanings. house_options compares all of it with what `layer_check --list` says."""

import functools
import json
import re

from headers import all_headers, balanced, constants, enums, joined, masked, STRING

TYPES = {"bool": "bool", "int64_t": "int", "double": "float", "std::string": "text"}
MEMBER = re.compile(r"^(?:const )?((?:\w+::)?\w+(?:<.*>)?) (\w+\b.*)$", re.S)
CALL = re.compile(r"\bf(?:\.(\w+))?\(\"|\bf\.(without)\(\{|\b(describe_\w+)\(o, f\)")


@functools.cache
def structs():
    """Name of a struct or enum → its body."""
    out = {}
    for text in all_headers():
        for head in re.finditer(r"^struct (\w+)[^;{(]*\{", text, re.M):
            out.setdefault(head.group(1), balanced(text, head.end() - 1))
    return out


def split(text, at=","):
    """The parts of text between separators that stand in no bracket, string or comment."""
    parts, depth, start = [], 0, 0
    for i, c in enumerate(re.sub("<<|>>", "  ", masked(text))):
        depth += (c in "({[<") - (c in ")}]>")
        if c == at and depth == 0:
            parts.append(text[start:i])
            start = i + 1
    return [part.strip() for part in [*parts, text[start:]] if part.strip()]


@functools.cache
def members(name):
    """Data member of the struct → (type, initialiser or "")."""
    out, body = {}, re.sub(r"//[^\n]*", "", structs().get(name, ""))
    code, depth, plain = masked(body), 0, ""
    for c, kept in zip(code, body):  # without the bodies of functions
        depth -= c == "}"
        plain += kept if depth == 0 or kept == "," else ""
        depth += c == "{"
        plain += ";" if c == "}" and depth == 0 and not plain.endswith("= {}") else ""
    for statement in plain.split(";"):
        found = MEMBER.match(" ".join(statement.split()))
        if (
            not found
            or "(" in found.group(2).split("=")[0]
            or found.group(1) in ("using", "struct", "static", "return")
        ):
            continue
        for one in split(found.group(2)):
            member, _, initialiser = (part.strip() for part in one.partition("="))
            out[member] = (found.group(1), initialiser)
    # What stands in the braces of an initialiser was left out above.
    for member, (kind, initialiser) in out.items():
        if initialiser.startswith("{"):
            at = re.search(r"\b%s = \{" % member, body)
            out[member] = (kind, "{" + balanced(body, at.end() - 1) + "}")
    return out


def described(body, function):
    """The calls of `function` in this text: ("option" | "required" | …, its arguments)."""
    start = re.search(r"void %s\(auto& o, auto&& ?f\)|void %s\(auto& o, auto& f\)" % (function, function), body)
    if not start:
        return []
    inside = balanced(body, body.index("{", start.end()))
    out = []
    for call in CALL.finditer(inside):
        if call.group(3):
            shared = call.group(3)
            texts = [
                text for text in [body, *all_headers()] if re.search(r"void %s\(auto& o, auto& f\)" % shared, text)
            ]
            out += described(texts[0], shared)
        else:
            at = inside.index("(", call.start())
            out.append((call.group(1) or call.group(2) or "option", split(balanced(inside, at))))
    return out


def number(text):
    """A number of C++ as it is printed."""
    text = text.replace("'", "").rstrip("f")
    if shift := re.match(r"(\d+) << (\d+)$", text):
        return str(int(shift.group(1)) << int(shift.group(2)))
    return str(int(text)) if re.fullmatch(r"-?\d+", text) else f"{float(text):g}"


def range_of(text):
    """at_least(1) → "at least 1", as Option::range_text()."""
    arguments = re.findall(r"-?\d[\d.e]*(?: << \d+)?", text)
    if text.startswith("at_least"):
        return f"at least {number(arguments[0])}"
    if text.startswith("above"):
        return f"above {number(arguments[0])}"
    if text.startswith("between"):
        return f"in [{number(arguments[0])}, {number(arguments[1])}]"
    if text == "probability()":
        return "in [0, 1)"
    if ".low = 0" in text and ".high = 1" in text and ".without_low" in text:
        return "in (0, 1]"
    if low := re.fullmatch(r"OptionRange\{\.low = (\S+), \.infinite = true\}", text):
        return f"at least {number(low.group(1))}"
    if text in ("any_number()", "OptionRange{.infinite = true}"):
        return ""
    raise ValueError(f"options.py does not know the range {text}")


def type_of(kind):
    """A C++ type → (what it is called, the names of its enum or [])."""
    if kind == "std::optional<bool>":
        return "text or null", ["no", "yes"]
    for outer, form in (("std::vector", "list of {}"), ("std::optional", "{} or null")):
        if inner := re.match(outer + r"<(.*)>$", kind):
            called, names = type_of(inner.group(1))
            return form.format(called), names
    if kind in enums() or kind == "DType":
        names = [name for name, _ in enums().get(kind, [])]
        for text in all_headers():
            if chosen := re.search(r"choices\(%s\) \{\s*return ((?:%s\s*)+);" % (kind, STRING), text):
                names = joined(chosen.group(1)).split()
        return "text", names
    return TYPES.get(kind, "objects"), []


def made_by(kind, initialiser):
    """What `Init::xavier()` or `{.lambda = 2}` puts in place of a struct's own defaults."""
    if function := re.match(r"%s::(\w+)\(\)$" % kind, initialiser):
        made = re.search(r"static %s %s\(\) \{ return \{(.*?)\}; \}" % (kind, function.group(1)), structs()[kind])
        return dict(zip(members(kind), split(made.group(1))))
    return dict(re.match(r"\.(\w+) = (.*)$", one).groups() for one in split(initialiser[1:-1])) if initialiser else {}


def default_of(kind, initialiser):
    """An initialiser as files say it."""
    if kind.startswith("std::optional") and initialiser in ("", "std::nullopt"):
        return "null"
    if kind == "std::optional<bool>":
        return {"true": "yes", "false": "no"}[initialiser]
    if kind.startswith("std::vector"):
        numbers = [] if initialiser in ("", "{}") else split(initialiser.strip("{}"))
        return json.dumps(["inf" if x == "std::numeric_limits<double>::infinity()" else float(x) for x in numbers])
    value = initialiser.split("::")[-1]
    if kind == "bool" or kind in enums() or kind == "DType":
        return value or ("false" if kind == "bool" else type_of(kind)[1][0])
    if re.fullmatch(r"-?[\d.'e+-]+", value):
        return number(value)
    if quotient := re.fullmatch(r"([\d.]+) / ([\d.]+)", value):
        return repr(float(quotient.group(1)) / float(quotient.group(2)))
    return initialiser or "0"


@functools.cache
def options_of(struct):
    """The options of a struct in order, as dicts: name, member (the path to it), type, choices, default, required,
    training, range, meaning, of (what a list holds)."""
    rows, without = [], set()
    for call, arguments in described(structs().get(struct, ""), "describe"):
        if call == "without":
            without |= set(re.findall(r'"(\w+)"', " ".join(arguments)))
            continue
        name, path = arguments[0].strip('"'), arguments[1].lstrip("*").split(".")[1:]
        if path[0] not in members(struct):  # `if constexpr`: other structs have it
            continue
        kind, initialiser = members(struct)[path[0]]
        if call == "nested":
            made = made_by(kind, initialiser)
            for row in options_of(kind):
                own = made.get(row["member"])
                default = row["default"] if own is None else default_of(members(kind)[row["member"]][0], own)
                rows.append(
                    {**row, "name": name + row["name"], "member": f"{path[0]}.{row['member']}", "default": default}
                )
            continue
        for part in path[1:]:
            kind, initialiser = members(kind)[part]
        words = arguments[-1]
        called, names = type_of(kind)
        rows.append(
            {
                "name": name,
                "member": ".".join(path),
                "type": called,
                "choices": names,
                "default": None if call == "required" else default_of(kind, initialiser),
                "required": call == "required",
                "training": call == "training",
                "range": range_of(" ".join(arguments[2].split())) if len(arguments) == 4 else "",
                "meaning": constants()[words] if words.startswith("k") else joined(words).replace('\\"', '"'),
                "of": re.sub(r".*<(\w+)>$", r"\1", kind) if called.endswith("objects") else "",
            }
        )
    return [row for row in rows if row["name"] not in without]
