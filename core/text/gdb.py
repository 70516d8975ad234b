"""Shows tensors in gdb: Tensor[2,3] f32 cpu requires_grad = {0.5, -1, 2, ...}

    (gdb) source PREFIX/share/sluice/gdb.py        # or a line of ~/.gdbinit
    (gdb) print x
    (gdb) set print elements 20                    # how many values, in row-major order

Reads memory and calls nothing, so it works on core files, too. The program must be compiled with -g, the library need
not. Values on a GPU are not shown.
"""
import math
import struct

import gdb

FORMATS = {"f32": "f", "f64": "d", "bf16": "H", "i64": "q", "i32": "i", "boolean": "?"}


def numbers(shape):
    return [int(shape["v_"][i]) for i in range(int(shape["rank_"]))]


class TensorPrinter:
    def __init__(self, tensor):
        self.impl = tensor["impl_"]["p_"]

    def to_string(self):
        if not self.impl:
            return "Tensor (undefined)"
        impl = self.impl.dereference()
        storage = impl["storage"]["p_"].dereference()
        dtype = str(impl["dtype"]).split("::")[-1]
        device = str(storage["device_"]["kind"]).split("::")[-1]
        sizes = numbers(impl["layout"]["shape"])
        head = f"Tensor[{','.join(map(str, sizes))}] {'bool' if dtype == 'boolean' else dtype} {device}"
        if device == "cuda":
            head += f":{int(storage['device_']['index'])}"
        if impl["history"]["p_"]:
            head += " requires_grad"
        return head if device != "cpu" else f"{head} = {self.values(impl, storage, FORMATS[dtype], sizes)}"

    def values(self, impl, storage, kind, sizes):
        strides, width = numbers(impl["layout"]["strides"]), struct.calcsize(kind)
        start = int(storage["data_"]) + int(impl["layout"]["offset"]) * width
        count = math.prod(sizes)
        memory, shown = gdb.selected_inferior(), []
        for place in range(min(count, gdb.parameter("print elements") or count)):
            at = start
            for size, stride in zip(reversed(sizes), reversed(strides)):
                place, i = divmod(place, size)
                at += width * stride * i
            (x,) = struct.unpack(kind, memory.read_memory(at, width))
            if kind == "H":  # bf16 is the upper half of an f32
                (x,) = struct.unpack("f", struct.pack("I", x << 16))
            shown.append(str(x).lower() if kind == "?" else f"{x:.6g}" if isinstance(x, float) else str(x))
        if len(shown) < count:
            shown.append("...")
        return "{" + ", ".join(shown) + "}"


class ShapePrinter:
    def __init__(self, shape):
        self.shape = shape

    def to_string(self):
        return f"[{','.join(map(str, numbers(self.shape)))}]"


def printer_of(value):
    name = value.type.strip_typedefs().unqualified().name
    return {"sluice::Tensor": TensorPrinter, "sluice::Shape": ShapePrinter}.get(name, lambda _: None)(value)


gdb.pretty_printers.append(printer_of)
