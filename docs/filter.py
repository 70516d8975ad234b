#!/usr/bin/env python3
"""A header as Doxygen reads it: what this project's comments say by their place, in Doxygen's words.

* The `//` lines that open a file are the file's page.
* `// …` behind a member, and under it, describes the member; a line `// -- … --` what follows without a comment.
* Declarations that stand together, without an empty line between, share the comment above the first.
* An option without a comment has the text that `describe` gives; a part of a module the name that `visit` gives;
  what every module has in the same way (options, State, its constructors) is said once, here.
* A formula without a comment is described by what it returns.
* describe, visit and what else modules and formulas have for the library's use is left out.
Lines keep their numbers, so that warnings name the right ones.
"""
import re
import sys

path = sys.argv[1]
text = open(path, encoding="utf-8").read()
lines = text.split("\n")

STRING = r'"(?:[^"\\]|\\.)*"'
described = {}  # name of a member → what describe() or visit() says
for owner, name, arguments in re.findall(r'\bf(?:\.\w+)?\("[^"]*", (o|self)\.(\w+)((?:[^;"]|%s)*)\);' % STRING, text):
    said = re.findall(STRING, arguments)
    if not said:  # the text may have a name: it serves two layers
        said = [s for word in re.findall(r"\bk\w+", arguments) for s in re.findall(r"\b%s\s*=\s*(%s)" % (word, STRING), text)]
    if said:
        described[name] = said[-1][1:-1]
    elif owner == "self":
        described.setdefault(name, f"In files and lists of parameters: `{name}`.")
    else:
        described.setdefault(name, "One of its type's choices.")
for name in re.findall(r'\bf\.nested\("[^"]*", o\.(\w+)\)', text):
    described.setdefault(name, "Options of their own.")

CONVENTIONS = [
    (re.compile(r"^enum class (\w+) .*\{"), "What an option may be; files and flags name it as here."),
    (re.compile(r"^  double \w+(?: = [\d.]+)?(?:, \w+)*;") if "namespace sluice::formula" in text else re.compile("^$"), "A number of the formula."),
    (re.compile(r"^struct (\w+?)Options\b.*\{"), r"Options of \1."),
    (re.compile(r"^  \w*Options options\b.*;"), "What it was made with."),
    (re.compile(r"^  (?:using State = .*;|struct State \{)"), "What a stream keeps from call to call of step()."),
    (re.compile(r"^  (?:explicit )?\w+\(\w+Options \w+, Rng& rng\);"),
     "Parameters drawn from rng. ValueError that names the option for one out of its range."),
    (re.compile(r"^  (?:explicit )?\w+\(\w+Options \w+\)(?:;| :)"), "ValueError that names the option for one out of its range."),
    (re.compile(r"^  \w+\(\) = default;"), "Without parameters: to be assigned to."),
    (re.compile(r"^.*bool operator==\(const (\w+)&.* = default;"), "All members are equal."),
    (re.compile(r"^.*std::ostream& operator<<\("), "As text."),
    (re.compile(r"^.*void append_text\("), "What str() and messages of errors show."),
]
DECLARATION = re.compile(r"^\s*(?!return\b|if\b|for\b|else\b|namespace\b|friend (?:class|struct)\b|public:|private:|protected:|#|\}|//|static_assert|case\b|default:)"
                         r"[\w:<\[~].*([;{,(=}]|\))\s*$")
MEMBER = re.compile(r"^\s+(?:[\w:<>,&*\[\]]+\s+)+((?:\w+(?:\s*(?:=[^;,]*|\{[^;]*?\}))?,\s*)*\w+)\s*(?:=[^;]*|\{[^;]*\})?;")
INTERNAL = re.compile(r"^\s*((?:inline )?void dispose\(|static void (describe|visit)\(|static constexpr (const char\* (type|name)\b|bool affine|bool integral)|"
                      r"static const char\* op_name|constexpr const char\* choices\(|template <class T> SLUICE_FN T operator\(|#define |constexpr const char\* k\w+Meaning|(inline )?constexpr const char\* k\w+Meaning|void each_tensor\(|bool unrestricted\()")


def block(comment):
    return "/** " + comment.replace("*/", "* /").replace("/*", "/ *") + " */ "


out = []
shared = ""  # the comment above the first declaration of a group
section = ""  # the last `// -- … --`
pending = []  # `///` lines just read
opening = True
continues = None  # the column of a comment behind a member, which may go on below
hidden = False  # inside something that is left out
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
        hidden = depth > 0 or not re.search(r"[;}]\s*(//.*)?$", line)
        out.append("")
        continue
    head = re.match(r"^\s*// -- (.*?) -*$", line)
    if head:
        section, shared, pending, continues = head.group(1), "", [], None
        out.append(line)
        continue
    if stripped.startswith("///"):
        pending.append(stripped[3:].strip())
        out.append(re.sub(r"///   ", "///     ", line))
        continues, open_line = None, False
        continue
    if continues is not None and re.match(r"^\s*//", line) and line.index("//") == continues:
        out.append(line.replace("//", "///<", 1))
        continue
    continues = None
    if not stripped:
        shared, pending, open_line = "", [], False
        out.append(line)
        continue
    if INTERNAL.match(line):
        depth = line.count("{") - line.count("}")
        hidden = depth > 0 or not re.search(r"[;}]\s*(//.*)?$", line)
        shared = ""
        out.append("")
        continue
    line = re.sub(r"^(struct \w+ : Gated<\w+> )\{ static.*?; \};", r"\1{ };", line)
    prefix = ""
    trailing = re.match(r"^(.*[;,{}]|\s*\w+(?: = [^,]*)?,?)(\s+)//(?!/) ?(.*)$", line)
    if trailing and stripped.startswith("//"):
        trailing = None
    code = trailing.group(1).rstrip() if trailing else line
    if pending:
        shared, pending = " ".join(pending), []
        if trailing:  # both: behind stands more
            line, trailing = code, None
    elif open_line:
        pass
    elif DECLARATION.match(code) and not trailing:
        conventional = next((m.expand(said) if "\\" in said else said for rule, said in CONVENTIONS if (m := rule.match(code)) and said), None)
        member = MEMBER.match(code)
        names = re.findall(r"(?:^|, )(\w+)", member.group(1)) if member else []
        texts = [described[n] for n in names if n in described]
        if inline_name := re.match(r"^struct \w+ : Gated<(\w+)> \{", code):
            prefix = block(f"x ⊙ φ(g) with φ = {inline_name.group(1)}.")
        elif conventional:
            prefix = block(conventional)
        elif texts:
            prefix = block("; ".join(dict.fromkeys(texts)))
        elif "namespace sluice::formula" in text and stripped.startswith("struct"):
            returned = re.search(r"return ([^;]*);", "\n".join(lines[i : i + 12]))
            prefix = block(returned.group(1)) if returned else ""
        elif m := re.match(r"^.*\boperator\S+\(.*\{ return ([^;]*); \}$", code):
            prefix = block(f"`{m.group(1)}`")
        elif (m := re.match(r"^struct (\w+) (?:: \w+ )?\{", code)) and f'type = "{m.group(1)}"' in text:
            prefix = block("A module; this file's page has its formula.")
        elif shared and not stripped.startswith(("struct", "class", "enum", "}")):
            prefix = block(shared)
        elif section and not line.startswith(" "):
            prefix = block(section[0].upper() + section[1:] + ".")
    open_line = not re.search(r"[;{}:]\s*$", code) or code.rstrip().endswith(",")
    several = re.match(r"^(\s+)((?:const )?[\w:]+(?:<[^;=]*>)?) (\w+(?: = [^,;]*)?(?:, \w+(?: = [^,;]*)?)+);$", code)
    if several:  # Doxygen gives a comment to one of them only
        said = shared if lines[i - 1].strip().startswith("///") else trailing.group(3) if trailing else ""
        prefix = prefix or (block(said) if said else "")
        if prefix:
            line, trailing = " ".join(f"{prefix}{several.group(2)} {one};" for one in several.group(3).split(", ")), None
            prefix = ""
    if trailing:
        column = len(trailing.group(1)) + len(trailing.group(2))
        if code.endswith("{") or code.startswith(("enum", "struct", "using")):
            prefix, line = block(trailing.group(3)), code
        else:
            line = trailing.group(1) + trailing.group(2) + "///< " + trailing.group(3)
            continues = column
    if code.rstrip().endswith("{") and not stripped.startswith(("struct", "class", "enum", "namespace")):
        open_line = False
    out.append(prefix + line)
sys.stdout.write("\n".join(out))
