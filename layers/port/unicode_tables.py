#!/usr/bin/env python3
"""Writes unicode_tables.cpp from Python's unicodedata, or from the package unicodedata2 where it is installed:

    pip install unicodedata2==16.0.0 && python3 layers/port/unicode_tables.py
"""
import pathlib
import textwrap

try:
    import unicodedata2 as unicode
except ImportError:
    import unicodedata as unicode

CATEGORIES = "Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Cs Co Cn".split()
IDEOGRAPHS = ("CJK UNIFIED IDEOGRAPH", "CJK COMPATIBILITY IDEOGRAPH", "CJK RADICAL", "KANGXI RADICAL")
# Characters of the script Han that their names do not tell: marks of iteration and reading, Hangzhou numerals.
HAN = {0x3005, 0x3007, *range(0x3021, 0x302A), *range(0x3038, 0x303C), 0x16FE2, 0x16FE3, 0x16FF0, 0x16FF1}
CODES = range(0x110000)


def is_han(code):
    return code in HAN or unicode.name(chr(code), "").startswith(IDEOGRAPHS)


def runs(values):
    """[(value, how often in a row)]"""
    found = []
    for value in values:
        if found and found[-1][0] == value:
            found[-1][1] += 1
        else:
            found.append([value, 1])
    return found


def table(name, comment, numbers):
    lines = textwrap.wrap(" ".join(map(str, numbers)), 119)
    body = ",\n".join(line.replace(" ", ",") for line in lines)
    return f"// {comment}\nconstexpr uint32_t k{name}[] = {{\n{body}}};\n"


categories = []
for (category, han), count in runs((CATEGORIES.index(unicode.category(chr(c))), is_han(c)) for c in CODES):
    categories.append(count * 64 + han * 32 + category)

classes = []
for value, count in runs(unicode.combining(chr(c)) for c in CODES):
    classes += [count, value]

pairs, last = [], 0
for code in CODES:
    parts = unicode.decomposition(chr(code)).split()
    if parts and not parts[0].startswith("<"):
        first, second = [int(p, 16) for p in (parts + ["0"])[:2]]
        pairs += [code - last, first * 2 + (unicode.normalize("NFC", chr(code)) == chr(code)), second]
        last = code

out = pathlib.Path(__file__).with_name("unicode_tables.cpp")
out.write_text(
    f"""// Properties of characters in Unicode {unicode.unidata_version}, written by unicode_tables.py.
#include <sluice/layers/port/unicode.h>

namespace sluice::detail {{

namespace {{

// clang-format off
"""
    + table("Categories", "Runs of code points: length · 64 + (of the script Han) · 32 + number of the category.",
            categories)
    + table("Combining", "Runs of code points: length, canonical combining class.", classes)
    + table("Pairs", "Canonical decompositions: code point less the one before, first · 2 + (NFC composes it), second.",
            pairs)
    + """// clang-format on

}  // namespace

const UnicodeTables& unicode_tables() {
  static constexpr UnicodeTables tables{kCategories, kCombining, kPairs};
  return tables;
}

}  // namespace sluice::detail
"""
)
