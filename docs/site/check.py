#!/usr/bin/env python3
"""Whether the XML says of each symbol what the headers say of it: docs/site/check.py XML, in the project's folder.

filter.py decides whose a comment is; this reads the outcome, and the headers once more by the lines that Doxygen gives.

* No text is left over from code: `// …` behind a closing brace, an unfinished tag, the name of a constant.
* No two classes have one brief, and each has one.
* An option says what `describe` of its own struct says, or the comment at it; of an enum, all choices by name; of
  options in options, their type. A part of a module says what it is called in files.
Status 1 if something is wrong, with a line for each.
"""

import pathlib
import re
import sys
import xml.etree.ElementTree

sys.dont_write_bytecode = True
from headers import expanded, said_in

found, wrong = {"classes": 0, "options": 0, "parts": 0}, []


def text_of(element):
    """Brief and detailed description as one line."""
    parts = (element.find(kind) for kind in ("briefdescription", "detaileddescription"))
    return " ".join(" ".join("".join(p.itertext()) for p in parts if p is not None).split())


def bare(text):
    """Letters and digits: what Doxygen's markup leaves alone."""
    return "".join(c for c in text if c.isalnum())


def comments_at(lines, i):
    """What stands at line i (from 0): behind it and below, or above it."""
    behind = re.search(r"\s//(?!/<) ?(.*)$", lines[i])
    out = [behind.group(1)] if behind else []
    while i and lines[i - 1].strip().startswith("///"):
        i -= 1
        out.append(lines[i].strip()[3:])
    return out


def check(folder):
    roots = [xml.etree.ElementTree.parse(path).getroot() for path in sorted(folder.glob("*.xml"))]
    compounds = [c for root in roots for c in root.iter("compounddef")]
    enums = {
        e.findtext("name"): [v.findtext("name") for v in e.iter("enumvalue")]
        for c in compounds
        for e in c.iter("memberdef")
        if e.get("kind") == "enum"
    }

    def bad(where, what):
        location = where.find("location")
        at = f"{location.get('file')}:{location.get('line')}: " if location is not None else ""
        wrong.append(
            f"{at}{where.findtext('qualifiedname') or where.findtext('compoundname') or where.findtext('name')}: {what}"
        )

    briefs = {}
    for compound in compounds:
        if compound.get("kind") not in ("struct", "class", "namespace", "file"):
            continue
        for element in [compound, *compound.iter("memberdef"), *compound.iter("enumvalue")]:
            text = text_of(element)
            if re.match(r"<|namespace\b|/", text) or re.search(r"\bk[A-Z]\w*Meaning\b", text):
                bad(element, f"not a description: “{text[:60]}”")
        if compound.get("kind") not in ("struct", "class"):
            continue
        found["classes"] += 1
        brief = " ".join("".join(compound.find("briefdescription").itertext()).split())
        first = briefs.setdefault(brief, compound.findtext("compoundname"))
        if not brief and compound.get("prot") == "public":
            bad(compound, "has no brief")
        elif brief and first != compound.findtext("compoundname") and "< " not in compound.findtext("compoundname"):
            bad(compound, f"has the brief of {first}: “{brief[:60]}”")

        place = compound.find("location")
        if place is None or not place.get("bodyfile") or int(place.get("bodyend")) < 0:
            continue
        lines = expanded(pathlib.Path(place.get("bodyfile")).read_text(encoding="utf-8")).split("\n")
        source = "\n".join(lines[int(place.get("bodystart")) - 1 : int(place.get("bodyend"))])
        options, parts = {}, {}
        for known, function in ((options, "describe"), (parts, "visit")):
            for member, _, name, meaning in said_in(source, function):
                known.setdefault(member, []).append((name, meaning))
        for member in compound.findall("sectiondef/memberdef"):
            name, text = member.findtext("name"), text_of(member)
            comments = comments_at(lines, int(member.find("location").get("line")) - 1)
            own = any(c.strip() and bare(text).startswith(bare(c)[:30]) for c in comments)
            if member.get("kind") != "variable":
                continue
            type_name = re.sub(r"^.*[<:\s](\w+)\s*>?$", r"\1", "".join(member.find("type").itertext()))
            if name in options:
                found["options"] += 1
                for called, meaning in options[name]:
                    if meaning is None and not own and type_name not in text:
                        bad(member, f"does not name its type {type_name}: “{text[:60]}”")
                    if meaning is not None and not own and bare(meaning) not in bare(text):
                        bad(member, f"is “{meaning[:60]}”, not “{text[:60]}”")
                missing = [v for v in enums.get(type_name, []) if bare(v) not in bare(text)]
                if missing and type_name != "DType":
                    bad(member, f"does not name the choices {', '.join(missing)}")
            elif name in parts:
                found["parts"] += 1
                if not own and all(f"{called}" not in text for called, _ in parts[name]):
                    bad(member, f"is {parts[name][0][0]} in files, which “{text[:60]}” does not say")
            elif not own and re.match("In files and lists of parameters|One of|Options of their own", text):
                bad(member, f"has the text of another: “{text[:60]}”")


def verdict(found, wrong, praise):
    """Prints what is wrong, or what was found and its praise; the exit status."""
    good = "docs: " + ", ".join(f"{n} {what}" for what, n in found.items()) + praise
    print("\n".join(wrong) or good)
    return 1 if wrong else 0


def main():
    check(pathlib.Path(sys.argv[1]))
    if min(found.values()) < 30:
        wrong.append(f"only {found} were found: this check is broken")
    return verdict(found, wrong, " say what the headers say")


if __name__ == "__main__":
    sys.exit(main())
