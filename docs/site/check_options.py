#!/usr/bin/env python3
"""Whether the tables of options on the site say what the library says: docs/site/check_options.py LAYER_CHECK, in the
project's folder. Names, types, defaults, ranges, choices and meanings that options.py reads from the headers are compared
with those of `layer_check --list`, for each layer. Options of training are not in that list."""

import json
import re
import subprocess
import sys

sys.dont_write_bytecode = True
from options import options_of, structs

ADDED = ("stream", "map", "global_positions")  # what layer_check has beside a layer's own options


def same(mine, theirs):
    if mine == (theirs if isinstance(theirs, str) else json.dumps(theirs)):
        return True
    try:
        return float(mine) == float(theirs)
    except (TypeError, ValueError):
        return False


listing = subprocess.run([sys.argv[1], "--list"], capture_output=True, text=True, check=True).stdout
layers = {layer["name"]: layer for layer in json.loads(listing)["layers"]}
wrong, compared = [], 0
for struct, body in structs().items():
    layer = re.search(r"using Layer = struct (\w+);", body)
    if not layer or not options_of(struct):
        continue
    name = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", layer.group(1).replace("TopK", "Topk")).lower()
    known = layers.get(name + "_layer") or layers.get(name)
    if known is None:
        wrong.append(f"{struct}: layer_check has no layer {name}")
        continue
    mine = {row["name"]: row for row in options_of(struct) if not row["training"]}
    theirs = {row["name"]: row for row in known["options"] if row["name"] not in ADDED}
    if missing := (set(mine) ^ set(theirs)) - set(ADDED):
        wrong.append(f"{struct}: not in both: {', '.join(sorted(missing))}")
    for option in set(mine) & set(theirs):
        a, b = mine[option], theirs[option]
        compared += 1
        pairs = [(key, a[key], b.get(key, "")) for key in ("type", "required", "range", "meaning")]
        pairs.append(("choices", a["choices"], b.get("values", [])))
        if not a["required"] and not same(a["default"], b["default"]):
            pairs.append(("default", a["default"], b["default"]))
        said = [f"{key} {x!r}, and {y!r} in layer_check" for key, x, y in pairs if x != y]
        wrong += [f"{struct}.{option}: {one}" for one in said]
if compared < 200:
    wrong.append(f"compared only {compared} options: this test is broken")
print("\n".join(wrong) if wrong else f"{compared} options are as layer_check lists them")
sys.exit(1 if wrong else 0)
