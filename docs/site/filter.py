#!/usr/bin/env python3
"""A header as Doxygen reads it: what this project's comments say by their place, in Doxygen's words.

* The `//` lines that open a file are the file's page.
* `// …` behind a member, and under it, describes the member; a line `// -- … --` what follows without a comment.
* Declarations that stand together, without an empty line between, share the comment above the first.
* An option without a comment has the text that `describe` gives; a part of a module the name that `visit` gives;
  what every module has in the same way (options, its constructors) is said once, here.
* A formula without a comment is described by what it returns.
* describe, visit and what else modules and formulas have for the library's use is left out.
Lines keep their numbers, so that warnings name the right ones.
"""

import os
import pathlib
import re
import sys

sys.dont_write_bytecode = True
from headers import constants, enums, expanded, said_in, scopes

# filter.py FOLDER HEADER...: each is written below FOLDER by a process of its own, which has what headers.py knows already.
folder = pathlib.Path(sys.argv[1])
enums(), constants()
for path in sys.argv[2:]:
    if os.fork() == 0:
        break
    if os.wait()[1]:
        sys.exit(f"filter.py: {path} failed")
else:
    sys.exit()
text = expanded(open(path, encoding="utf-8").read())
text = re.sub(r"\b(class|struct) \[\[nodiscard\]\] ", r"\1 ", text)  # else constructors are not known
lines = text.split("\n")
within = scopes(text)


def choices(declaration):
    """Of an option of an enum: its values and what they mean."""
    for name in re.findall(r"\b[A-Z]\w*", declaration.split("=")[0]):
        if name in enums() and name != "DType":
            return " One of " + "; ".join(f"`{v}`" + (f": {said}" if said else "") for v, said in enums()[name]) + "."
    return ""


described = {}  # (the scopes around a member, its name) → what describe() and visit() say of it; {} is its type
options = set()  # those of describe()
for i, line in enumerate(lines):
    if not (function := re.match(r"\s*static void (describe|visit)\(", line)):
        continue
    for member, rest, name, meaning in said_in("\n".join(lines[i:]), function.group(1)):
        if function.group(1) == "visit":
            said = (
                f"In files and lists of parameters: `{name}`."
                if name
                else "In files and lists of parameters: its parts, by their own names."
            )
        elif meaning is None:
            said = "{}, in files " + (f"with `{name}` before each name." if name else "by their own names.")
        else:
            said = (f"`{rest}`: " if rest else "") + meaning
        described.setdefault((within[i], member), []).append(said)
        if function.group(1) == "describe":
            options.add((within[i], member))


def about_file():
    """The first paragraph of the file."""
    opening = re.match(r"(?://.*\n)*", text).group().split("\n//\n")[0]
    return re.sub(r"\n?// ?", " ", opening).strip().rstrip(":.") + "."


CONVENTIONS = [
    (
        re.compile(r"^enum class (%s) .*\{" % "|".join(re.findall(r"choices\((\w+)\)", text) or ["-"])),
        "What an option may be; files and flags name it as here.",
    ),
    (
        (
            re.compile(r"^  double \w+(?: = [\d.]+)?(?:, \w+)*;")
            if "namespace sluice::formula" in text
            else re.compile("^$")
        ),
        "A number of the formula.",
    ),
    (re.compile(r"^struct (\w+?)Options\b.*\{"), r"Options of \1."),
    (re.compile(r"^  \w*Options options\b(?! ?\().*;"), "What it was made with."),
    (
        re.compile(r"^  (?:explicit )?\w+\(\w+Options \w+, Rng& rng\);"),
        "Parameters drawn from rng. ValueError that names the option for one out of its range.",
    ),
    (
        re.compile(r"^  (?:explicit )?\w+\(\w+Options \w+\)(?:;| :)"),
        "ValueError that names the option for one out of its range.",
    ),
    (re.compile(r"^  \w+\(HeadsOptions o, Rng& rng\)"), "All other options have their defaults."),
    (re.compile(r"^  static constexpr bool keeps_f32\("), "True for tensors that are f32 in a layer of bf16."),
    (re.compile(r"^  \w+\(\) = default;"), "Without parameters: to be assigned to."),
    (re.compile(r"^.*bool operator==\(const (\w+)&.* = default;"), "All members are equal."),
    (re.compile(r"^.*std::ostream& operator<<\("), "As text."),
    (re.compile(r"^.*void append_text\("), "What str() and messages of errors show."),
]
DECLARATION = re.compile(
    r"^\s*(?!return\b|if\b|for\b|else\b|namespace\b|friend (?:class|struct)\b|public:|private:|protected:|#|\}|//)"
    r"(?!\s*(?:static_assert|case\b|default:))"
    r"[\w:<\[~].*([;{,(=}]|\))\s*$"
)
MEMBER = re.compile(
    r"^\s+(?:[\w:<>,&*\[\]]+\s+)+((?:\w+(?:\s*(?:=[^;,]*|\{[^;]*?\}))?,\s*)*\w+)\s*(?:=[^;]*|\{[^;]*\})?;"
)
SEVERAL = re.compile(r"^(\s+)((?:const )?[\w:]+(?:<[^;=]*>)?) (\w+(?: = [^,;]*)?(?:, \w+(?: = [^,;]*)?)+);$")
INTERNAL = re.compile(
    r"^\s*((?:inline )?void dispose\(|static void (describe\w*|visit)\(|using Layer = |"
    r"static constexpr (const char\* (type|name)\b|bool (affine|integral|selects))|"
    r"static const char\* op_name|constexpr const char\* choices\(|template <class T> SLUICE_FN T operator\(|#define |"
    r"(inline )?constexpr const char\* k\w+Meaning|void each_tensor\(|bool unrestricted\()"
)


def block(comment):
    return "/** " + unquoted(comment).replace("*/", "* /").replace("/*", "/ *") + " */ "


def unquoted(comment):
    """“> 0: …” begins no quotation."""
    return "\\" + comment if comment.startswith(">") else comment


def declared(i, code):
    """The line that begins at i, or what follows `template <…>` there."""
    while re.match(r"\s*(?:template <.*>|requires\b.*\))$", code):
        i += 1
        code = lines[i]
    return code


def sentence(text):
    return text if text.endswith((".", "?", "!")) else text + "."


out = []
shared, shared_in = "", ()  # the comment above the first declaration of a group, and the scopes around it
classes = {}  # (the scopes within a class, its name) → the comment above it, which its constructors share
section, section_in = "", ()  # the last `// -- … --`, and the scopes around it
pending = []  # `///` lines just read
opening = True
hidden = False  # inside something that is left out
macro = False  # it is a #define, which ends with its line
open_line = False  # the line before went on
depth = 0
for i, line in enumerate(lines):
    stripped = line.strip()
    if opening and stripped.startswith("//"):
        said = re.sub(r"^   ", "     ", stripped[2:])  # indented: code
        out.append("///" + said)
        continue
    if opening and out:
        line = "/// \\file"  # instead of #pragma once
    opening = False
    if hidden:
        depth += line.count("{") - line.count("}")
        hidden = line.endswith("\\") if macro else depth > 0 or not re.search(r"[;}]\s*(//.*)?$", line)
        out.append("")
        continue
    if within[i] and within[i][-1][0] == "body":  # of a function: its comments are for those who read it
        out.append(line.replace("///", "//"))
        continue
    if re.match(r"\s*\};?\s*//", line):  # of a namespace
        line = line[: line.index("//")].rstrip()
    head = re.match(r"^\s*// -- (.*?) -*$", line)
    if head:
        section, section_in, shared, pending = head.group(1), within[i], "", []
        out.append(line)
        continue
    if stripped.startswith("///"):
        pending.append(stripped[3:].strip())
        out.append(re.sub(r"///   ", "///     ", line))
        open_line = False
        continue
    if not stripped:
        shared, pending, open_line = "", [], False
        out.append(line)
        continue
    if INTERNAL.match(line):
        depth = line.count("{") - line.count("}")
        macro = stripped.startswith("#define ")
        hidden = line.endswith("\\") if macro else depth > 0 or not re.search(r"[;}]\s*(//.*)?$", line)
        shared = ""
        out.append("")
        continue
    line = re.sub(r"^(struct \w+ : Gated<\w+> )\{ static.*?; \};", r"\1{ };", line)
    prefix = ""
    trailing = re.match(r"^(.*[;,{}]|\s*\w+(?: = [^,]*)?,?)(\s+)//(?!/) ?(.*)$", line)
    if trailing and stripped.startswith("//"):
        trailing = None
    code = trailing.group(1).rstrip() if trailing else line
    several = None if open_line else SEVERAL.match(code)
    member = None if open_line else MEMBER.match(code)
    names = re.findall(r"(?:^|, )(\w+)", several.group(3) if several else member.group(1) if member else "")
    texts = {n: "; ".join(described[within[i], n]) for n in names if (within[i], n) in described}
    of_enum = choices(code) if any((within[i], n) in options for n in names) else ""
    own = ""  # what stands behind the line and below
    if trailing:
        below = i + 1
        while (
            below < len(lines)
            and re.match(r"^\s*//(?!/)", lines[below])
            and lines[below].index("//") == trailing.end(2)
        ):
            below += 1
        own = " ".join([trailing.group(3)] + [more.strip()[2:].strip() for more in lines[i + 1 : below]])
        own = re.sub(r"see (k\w+Meaning)", lambda m: constants()[m.group(1)], own)
    if pending:
        shared, shared_in, pending = " ".join(pending), within[i], []
        out[-1] += of_enum
        if trailing:  # both: behind stands more
            line, trailing = code, None
    elif open_line:
        pass
    elif trailing and texts and re.match(r"see \w+$", own):  # which describe() spares the reader
        prefix, line, trailing = block(f"{''.join(texts.values())} ({own})." + of_enum), code, None
    elif trailing and of_enum:
        prefix, line, trailing = block(sentence(own) + of_enum), code, None
    elif DECLARATION.match(subject := declared(i, code)) and not trailing:
        conventional = next(
            (
                m.expand(said) if "\\" in said else said
                for rule, said in CONVENTIONS
                if (m := rule.match(subject)) and said
            ),
            None,
        )
        if inline_name := re.match(r"^struct \w+ : Gated<(\w+)> \{", code):
            prefix = block(f"x ⊙ φ(g) with φ = {inline_name.group(1)}.")
        elif conventional:
            prefix = block(conventional.replace("{}", within[i][-1][1]))
        elif len(texts) == 1:
            said = "".join(texts.values()).replace("{}", code.split()[0])
            prefix = block(sentence(said) + of_enum)
        elif "namespace sluice::formula" in text and stripped.startswith("struct"):
            returned = re.search(r"return ([^;]*);", "\n".join(lines[i : i + 12]))
            prefix = block(returned.group(1)) if returned else ""
        elif m := re.match(r"^.*\boperator\S+\(.*\{ return ([^;]*); \}$", subject):
            prefix = block(f"`{m.group(1)}`")
        elif (m := re.match(r"^struct (\w+) (?:: \w+ )?\{", code)) and f'type = "{m.group(1)}"' in text:
            prefix = block(about_file())
        elif shared and shared_in == within[i] and not stripped.startswith(("struct", "class", "enum", "}")):
            prefix = block(shared)
        elif (m := re.match(r"\s+(?:explicit )?(\w+)\((?!.*= delete)", subject)) and (within[i], m.group(1)) in classes:
            prefix = block(classes[within[i], m.group(1)])
        elif section and section_in == within[i] and not line.startswith(" "):
            prefix = block(section[0].upper() + section[1:] + ".")
    if m := re.match(r"(?:struct|class|enum class|enum) (\w+)", stripped):
        classes[within[i] + (("type", m.group(1)),), m.group(1)] = shared
        shared = ""
    open_line = not re.search(r"[;{}:]\s*$", code) or code.rstrip().endswith(",")
    if several:  # Doxygen gives a comment to one of them only
        said = shared if lines[i - 1].strip().startswith("///") else own
        each = [block(said) if said else block(texts[name]) if name in texts else prefix for name in names]
        if all(each):
            line, trailing = (
                " ".join(
                    f"{comment}{several.group(2)} {one};" for comment, one in zip(each, several.group(3).split(", "))
                ),
                None,
            )
            prefix = ""
    if trailing:
        if code.endswith("{") or code.startswith(("enum", "struct", "using")):
            prefix, line = block(own), code
        else:
            line = trailing.group(1) + trailing.group(2) + "///< " + unquoted(own)
    if code.rstrip().endswith("{") and not stripped.startswith(("struct", "class", "enum", "namespace")):
        open_line = False
    out.append(prefix + line)
target = folder / path
target.parent.mkdir(parents=True, exist_ok=True)
target.write_text("\n".join(out).replace("et al. ", "et al.\\ "), encoding="utf-8")  # no end of a sentence
