#!/usr/bin/env python3
"""Runs every layer of layer_check with all its samples and compares what comes out with what --list says.

usage: formulas.py LAYER_CHECK [LAYER...]

The formulas of the listing are Python, so Python evaluates them: names and shapes of the parameters, which inputs there
are, shapes of the outputs. Each sample runs forward and backward, with the required inputs in f32 and with all of them
in f64; the results are finite, and each float input and trained parameter has a gradient. Inputs that a sample has not are refused.
Exit code 1 if anything differs."""
import array
import json
import math
import os
import random
import re
import struct
import subprocess
import sys
import tempfile
import types
from concurrent.futures import ThreadPoolExecutor

# Sizes that no option gives: distinct where the layers allow it, so that exchanged dims are noticed.
SIZES = {"batch": 2, "heads": 2, "kv_heads": 1, "n": 6, "m": 4, "d": 4, "dv": 3, "s": 4, "e": 5, "f": 4, "dim": 5,
         "rows": 5, "cols": 6, "layers": 2, "lists": 1, "K": 3, "width": 11}
LAYER_SIZES = {"pattern_attention": {"m": 6}}  # bigbird has as many queries as keys
RANGES = {"alpha": (0, 1), "gate": (0, 1), "phi_q": (0, 1), "phi_k": (0, 1), "maps": (0, 1), "log_decay": (-2, 0),
          "param.log_gamma": (-2, 0)}  # of other floats: (-1, 1); integers are 0
CODES = {"float": ("F64", "d"), "i64": ("I64", "q"), "bool": ("BOOL", "B"), "f32": ("F32", "f")}


def evaluate(text, names):
    functions = {"__builtins__": {}, "min": min, "max": max, "int": int, "len": len}
    return eval(text, functions, dict(names))


def split_formula(text):
    """-> "broadcast", "..." or "", and the sizes as a formula."""
    if text.startswith("broadcast "):
        return "broadcast", text[len("broadcast "):]
    if text.startswith("[..."):
        return "...", "[" + text[4:].lstrip(", ")
    return "", text


def example(text, names):
    kind, sizes = split_formula(text)
    return [2, 3][:2 if kind == "..." else 0] + evaluate(sizes, names)


def fits(shape, text, names):
    kind, sizes = split_formula(text)
    want = evaluate(sizes, names)
    if kind == "broadcast":
        tail = want[len(want) - len(shape):]
        return len(shape) <= len(want) and all(a in (1, b) for a, b in zip(shape, tail))
    return shape[len(shape) - len(want):] == want if kind == "..." else shape == want


def with_defaults(options, given):
    """All options of a layer: those given, the others at their defaults; lists of objects as objects."""
    names = {}
    for o in options:
        names[o["name"]] = given.get(o["name"], o.get("default"))
        if "fields" in o:
            names[o["name"]] = [types.SimpleNamespace(**with_defaults(o["fields"], v)) for v in names[o["name"]]]
    return names


def numbered(rows, key, index, names):
    """The rows, once for each of their repetitions: (row, name, names of its formulas)."""
    for row, name, known in rows:
        if key not in row:
            yield row, name, known
            continue
        over = evaluate(row[key], names)
        for i, item in enumerate(over if isinstance(over, list) else range(over)):
            yield row, name.replace(index, str(i)), {**known, "item": item}


def parameters(layer, names):
    """name -> shape, of the rows that these options have; and the names of those that are not trained, or optional."""
    rows = numbered(((p, p["name"], names) for p in layer["parameters"]), "repeat", "{i}", names)
    shapes, fixed, optional = {}, set(), set()
    for row, name, known in numbered(rows, "inner_repeat", "{j}", names):
        if not evaluate(row.get("when", "True"), known):
            continue
        assert name not in shapes, f"two rows for parameter {name}"
        shapes[name] = evaluate(row["shape"], known)
        fixed |= {name} if row.get("trained") is False else set()
        optional |= {name} if row.get("optional") else set()
    return shapes, fixed, optional


def values(name, kind, shape, draw):
    count = math.prod(shape)
    if kind == "i64":
        return [0] * count
    if kind == "bool":  # one true value in each row, so that nothing is empty
        return [int(i % max([1, *shape][-1], 1) == 0 or draw.random() < 0.7) for i in range(count)]
    low, high = RANGES.get(name, (-1, 1))
    return [draw.uniform(low, high) for _ in range(count)]


def write_case(path, layer, config, tensors):
    header = {"__metadata__": {"layer": layer, "config": json.dumps(config)}}
    data = b""
    for name, (kind, shape, numbers) in tensors.items():
        code, letter = CODES[kind]
        piece = array.array(letter, numbers).tobytes()
        header[name] = {"dtype": code, "shape": shape, "data_offsets": [len(data), len(data) + len(piece)]}
        data += piece
    text = json.dumps(header).encode()
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)


def read_results(path):
    """name -> (dtype, shape, numbers)"""
    with open(path, "rb") as f:
        whole = f.read()
    size = struct.unpack("<Q", whole[:8])[0]
    letters = dict(CODES.values())
    found = {}
    for name, t in json.loads(whole[8:8 + size]).items():
        if name != "__metadata__":
            begin, end = (8 + size + offset for offset in t["data_offsets"])
            numbers = array.array(letters[t["dtype"]])
            numbers.frombytes(whole[begin:end])
            found[name] = t["dtype"], t["shape"], numbers
    return found


def run(program, *arguments, refused=""):
    """What is printed; with `refused`, what the one error must hold."""
    done = subprocess.run([program, *arguments], capture_output=True, text=True)
    assert done.returncode == (1 if refused else 0) and refused in done.stderr, done.stderr.strip()
    return done.stdout


def printed_parameters(program, layer, config):
    """name -> (shape, trained), as --parameters prints them."""
    lines = run(program, "--parameters", layer, json.dumps(config)).splitlines()
    found = {}
    for name, shape, fixed in (re.match(r"(\S+) (\[.*?\])(.*)", line).groups() for line in lines):
        found[name] = json.loads(shape), not fixed
    return found


def case_of(layer, names, shapes, optional, with_optional):
    """The tensors of a case."""
    draw = random.Random(7)
    tensors = {}
    for i in layer["inputs"]:
        if evaluate(i.get("when", "True"), names) and (with_optional or not i["optional"]):
            shape = example(i["shape"], names)
            tensors["input." + i["name"]] = i["dtype"], shape, values(i["name"], i["dtype"], shape, draw)
    for name, shape in shapes.items():
        if with_optional or name not in optional:
            tensors["param." + name] = "float", shape, values("param." + name, "float", shape, draw)
    return tensors


def check_results(layer, names, got, tensors, trained, wanted):
    rows = [o for o in layer["outputs"] if evaluate(o.get("when", "True"), names)]
    assert {o["name"] for o in rows} == {x for x in got if x.startswith("output")}, f"outputs are {sorted(got)}"
    for o in rows:
        shape = got[o["name"]][1]
        assert fits(shape, o["shape"], names), f"{o['name']} is {shape}, its formula {o['shape']}"
    grads = {"grad." + x for x, t in tensors.items() if x.startswith("input.") and t[0] == "float"}
    grads |= {"grad.param." + x for x in trained}
    assert grads == {x for x in got if x.startswith("grad.")}, f"gradients are {sorted(got)}"
    for name, (dtype, shape, numbers) in got.items():
        if name in grads:
            _, want, _ = tensors[name[len("grad."):]]
            assert (dtype, shape) == (wanted.upper(), want), f"{name} is {dtype} {shape}"
        assert dtype[0] != "F" or all(map(math.isfinite, numbers)), f"{name} is not finite"


def check_sample(program, layer, config, folder):
    names = with_defaults(layer["options"], config)
    for name, formula in layer.get("derived", {}).items():
        names[name] = evaluate(formula, names)
    names = {**SIZES, **LAYER_SIZES.get(layer["name"], {}), **names}
    shapes, fixed, optional = parameters(layer, names)
    there = printed_parameters(program, layer["name"], config)
    if layer["family"] == "other":  # a layer that has no formulas
        shapes = {name: shape for name, (shape, _) in there.items()}
    else:
        want = {name: (shape, name not in fixed) for name, shape in shapes.items()}
        assert there == want, f"parameters are {there}, by the formulas {want}"
    trained = [name for name, (_, is_trained) in there.items() if is_trained]
    case, out = os.path.join(folder, "case"), os.path.join(folder, "out")
    for with_optional, wanted in (False, "f32"), (True, "f64"):
        tensors = case_of(layer, names, shapes, optional, with_optional)
        write_case(case, layer["name"], config, tensors)
        run(program, case, out, "--dtype", wanted)
        got = read_results(out)
        check_results(layer, names, got, tensors, trained, wanted)
    for i in layer["inputs"]:
        if "input." + i["name"] not in tensors:
            write_case(case, layer["name"], config, {**tensors, "input." + i["name"]: (i["dtype"], [1], [1])})
            run(program, case, out, refused="is not an input with these options")
    if layer["name"].startswith("cost_"):  # the cost of the layer that it is named after, which counts its own
        of = {k: v for k, v in config.items() if k not in ("tokens", "queries", "context_tokens", "global_tokens")}
        counted = printed_parameters(program, layer["name"][len("cost_"):], of)
        count = sum(math.prod(shape) for shape, is_trained in counted.values() if is_trained)
        assert got["output"][2][0] == count, f"says {got['output'][2][0]} parameters, the layer has {count}"


def check_layer(program, layer):
    problems = []
    with tempfile.TemporaryDirectory() as folder:
        for config in layer["samples"]:
            try:
                check_sample(program, layer, config, folder)
            except Exception as e:  # also errors of evaluate()
                problems.append(f"  {json.dumps(config)}: {type(e).__name__}: {e}")
    return f"{layer['name']}: {len(layer['samples'])} samples{', FAILED' if problems else ''}", problems


def main(program, *chosen):
    layers = json.loads(run(program, "--list", *chosen))["layers"]
    failed = False
    with ThreadPoolExecutor(2) as pool:
        for line, problems in pool.map(lambda layer: check_layer(program, layer), layers):
            print("\n".join([line, *problems]), flush=True)
            failed = failed or bool(problems)
    return failed


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
