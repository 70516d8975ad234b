#!/usr/bin/env python3
"""What the machine code of kernels must show: speed on a GPU hangs on it, and no other test sees it.

    tests/cuda/sass.py OBJECT…      objects that nvcc made, build/release/cuda/*.cu.o

Rung 4 of attention: nothing in local memory; no wait inside a chain of products, at most 16 instructions between two of
them, and at most 4 between two thirds of them (two descriptors of two halves each; the rest is what ptxas puts there, which
orders as it likes); forward, all exponentials of a tile before the wait for the products that run beside them. Kernels that take eight
numbers a thread: loads and stores of 16 bytes. Those and others that store neighbours: no stores side by side, which
ptxas makes of a wider one. Reductions of columns: loads at all, for nvcc 13.0 drops an unrolled loop behind a discarded
statement without braces.

Exit status 77, which CTest calls skipped, where there is no cuobjdump: on the path, in a toolkit, or where
`tests/install_deps.sh --sass` puts that of PyPI's triton.
"""
import glob
import os
import re
import shutil
import subprocess
import sys

LONGEST, USUAL = 16, 4  # instructions between two products of a chain
STORES_NEIGHBOURS = re.compile(r"for_each_vector_kernel|(weigh|differentiate)_rows|for_each_row_kernel<\d+, RoundRow"
                               "|for_each_kernel<RopePairs")
READS_COLUMNS = re.compile("reduce_columns_kernel")


def disassembler():
    root = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
    places = glob.glob(os.path.join(root, "build/sass/lib/python3*/site-packages/triton/backends/nvidia/bin/cuobjdump"))
    return next(filter(None, [shutil.which("cuobjdump"), shutil.which("/usr/local/cuda/bin/cuobjdump"), *places]), None)


def kernels(tool, path):
    """{readable name: [instruction]}"""
    folder = os.path.dirname(tool)  # nvdisasm lies beside it
    text = subprocess.run([tool, "-sass", path], capture_output=True, text=True, check=True,
                          env={**os.environ, "PATH": os.environ["PATH"] + os.pathsep + folder}).stdout
    found, mine = {}, None
    for line in text.splitlines():
        if m := re.search(r"Function : (\S+)", line):
            mine = found.setdefault(m[1], [])
        elif m := re.match(r"\s+/\*[0-9a-f]{4,}\*/\s+(@!?U?P\w+)?\s*([A-Z0-9_.]+.*?) ;", line):
            mine.append(m[2] + " if " + (m[1] or "PT"))
    names = subprocess.run(["c++filt"], input="\n".join(found), capture_output=True, text=True).stdout.splitlines()
    extra = r"sluice::(cuda::|formula::)?|\(anonymous namespace\)::|^void "
    return {re.sub(extra, "", n).split("(")[0]: v for n, v in zip(names, found.values())}


def stores_side_by_side(code):
    """How many stores of 4 or 8 bytes lie beside an earlier one, without a branch between them, under one condition."""
    count, seen = 0, set()
    for x in code:
        if m := re.match(r"STG\.E(\.64)? .*\[(R\d+)\.64(\+UR\d+)?(?:\+(-?0x[0-9a-f]+))?\].* if (\S+)", x):
            size, place, at = 8 if m[1] else 4, (m[2], m[1], m[3], m[5]), int(m[4] or "0", 16)
            count += any((*place, other) in seen for other in (at - size, at + size))
            seen.add((*place, at))
        elif x.startswith(("B", "EXIT", "CALL", "RET", "WARPSYNC")):  # BRA, BSYNC, BSSY, BAR
            seen.clear()
        elif m := re.match(r"\S+ (R\d+)", x):  # it sets a register: an address there is another one now
            seen = {y for y in seen if y[0] != m[1]}
    return count


def faults(name, code):
    local = sum(x.startswith(("LDL", "STL")) for x in code)
    if STORES_NEIGHBOURS.match(name):
        if count := stores_side_by_side(code):
            yield f"{count} stores side by side in place of a wider one"
        if not any(x.startswith(("STG.E.64", "STG.E.128")) for x in code):
            yield "no store of 8 or 16 bytes"
    if "for_each_vector_kernel" in name:
        loads = [x for x in code if x.startswith("LDG")]
        zeros = not loads and "MapBackward<FloorDivide" in name  # its gradient is 0 everywhere
        if not zeros and not any(".128" in x for x in loads):
            yield "no load of 16 bytes"
        if not any(x.startswith("STG") and ".128" in x for x in code):
            yield "no store of 16 bytes"
    if READS_COLUMNS.match(name) and not any(x.startswith("LDG") for x in code):
        yield "reads nothing: its loop was dropped"
    if not name.startswith("attention_wgmma"):
        return
    if local:
        yield f"{local} accesses to local memory"
    product = wait = None
    alone = exponentials = 0
    groups, between = [], []
    last = max((i for i, x in enumerate(code) if x.startswith("HGMMA")), default=-1)
    if last < 0:
        yield "no products of a warpgroup"
    for i, x in enumerate(code[:last + 1]):
        if x.startswith("MUFU.EX2"):
            exponentials += 1
        elif x.startswith(("HGMMA", "WARPGROUP.DEPBAR")):
            if exponentials:
                groups.append(exponentials)
            exponentials = 0
        if x.startswith("HGMMA"):
            if product is not None:
                between.append(i - product - 1)
            alone += wait is not None and i - wait < 8  # a wait, the next product, a wait: serialised
            product, wait = i, None
        elif x.startswith("WARPGROUP.DEPBAR"):
            product, wait = None, i
    if max(between, default=0) > LONGEST or 3 * sum(x <= USUAL for x in between) < 2 * len(between):
        yield f"instructions between two products: {sorted(between)}"
    if alone > 2:
        yield f"{alone} products that wait for the one before"
    if not name.startswith("attention_wgmma_backward") and groups and min(groups) < 64:
        yield f"a tile's exponentials in pieces of {groups}: some behind a wait"


def main():
    tool = disassembler()
    if not tool:
        print("no cuobjdump here")
        return 77
    count = bad = 0
    for path in sys.argv[1:]:
        for name, code in kernels(tool, path).items():
            if not (name.startswith("attention_wgmma") or STORES_NEIGHBOURS.match(name) or READS_COLUMNS.match(name)):
                continue
            count += 1
            for fault in faults(name, code):
                bad += 1
                print(f"{os.path.basename(path)}: {name}: {fault}")
    print(f"{count} kernels, {bad} faults")
    return 1 if bad or not count else 0


if __name__ == "__main__":
    sys.exit(main())
