#!/usr/bin/env python3
"""Runs bench_core and the same work in PyTorch eager mode, in turn on the same machine, and prints ratios.

    python3 tests/bench/compare_pytorch.py build/release/tests/bench/bench_core [rounds]

PyTorch (any 2.x, CPU) must be importable; it is no dependency of Sluice. Each round runs both programs once;
the figures are medians over the rounds.
"""
import statistics
import subprocess
import sys
import time

import torch
import torch.nn.functional as F


def median_seconds(f, runs=15):
    f(); f()
    t = []
    for _ in range(runs):
        start = time.perf_counter()
        f()
        t.append(time.perf_counter() - start)
    return statistics.median(t)


def tiny_op_us(n):
    a = torch.full((8,), 1.0, requires_grad=True)
    b = torch.full((8,), 0.999, requires_grad=True)

    def run():
        h = a
        for _ in range(n):
            h = h * b
        torch.autograd.grad(h.sum(), (a, b))

    return median_seconds(run, 5) / n * 1e6


def torch_figures():
    out = {}
    a, b = torch.randn(1536, 1536), torch.randn(1536, 1536)
    out["gemm_f32_1536"] = 2 * 1536**3 / median_seconds(lambda: a @ b) * 1e-9
    big = torch.randn(1 << 24)
    out["copy_64MiB"] = 2 * 67.108864 / median_seconds(lambda: big.clone()) * 1e-3
    out["tiny_op_chain_100"] = tiny_op_us(100)
    out["tiny_op_chain_10000"] = tiny_op_us(10000)
    x, g = (torch.randn(4096, 1024, requires_grad=True) for _ in range(2))
    seed = torch.ones(4096, 1024)
    ms = lambda f: median_seconds(f) * 1e3
    out["swiglu_fused_4096x1024"] = ms(lambda: torch.autograd.grad(x * F.silu(g), (x, g), seed))
    out["swiglu_composed_4096x1024"] = ms(lambda: torch.autograd.grad(x * (g * torch.sigmoid(g)), (x, g), seed))
    y = torch.randn(2048, 1024, requires_grad=True)
    w, c = torch.ones(1024, requires_grad=True), torch.zeros(1024, requires_grad=True)
    seed = torch.ones(2048, 1024)
    out["layer_norm_2048x1024"] = ms(lambda: torch.autograd.grad(F.layer_norm(y, (1024,), w, c), (y, w, c), seed))
    out["softmax_2048x1024"] = ms(lambda: torch.autograd.grad(torch.softmax(y, -1), y, seed))
    out["gau_layer_8x512x256"] = gau_ms()
    return out


def gau_ms():
    d, e, s, n = 256, 512, 128, 512
    win = torch.randn(d, 2 * e + s).mul_(d**-0.5).requires_grad_()
    wout = torch.randn(e, d).mul_(e**-0.5).requires_grad_()
    bin_, bout = torch.zeros(2 * e + s, requires_grad=True), torch.zeros(d, requires_grad=True)
    gamma, beta = torch.ones(2, s, requires_grad=True), torch.zeros(2, s, requires_grad=True)
    lw, lb = torch.ones(d, requires_grad=True), torch.zeros(d, requires_grad=True)
    x = torch.randn(8, n, d)
    angle = torch.arange(n)[:, None] * 10000 ** (-torch.arange(s // 2) / (s // 2))
    cos, sin = angle.cos(), angle.sin()
    weight = torch.tril(torch.ones(n, n)) / torch.arange(1, n + 1)[:, None]

    def rope(t):
        a, b = t.chunk(2, -1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

    def run():
        uvz = F.silu(F.linear(F.layer_norm(x, (d,), lw, lb), win.t(), bin_))
        u, v, z = uvz.split([e, e, s], -1)
        q, k = rope(z * gamma[0] + beta[0]), rope(z * gamma[1] + beta[1])
        a = F.relu(q @ k.transpose(-1, -2) * s**-0.5) ** 2 * weight
        out = x + F.linear(u * (a @ v), wout.t(), bout)
        torch.autograd.grad(out.square().mean(), (win, wout, bin_, bout, gamma, beta, lw, lb))

    return median_seconds(run, 7) * 1e3


def sluice_figures(program):
    rows = {}
    for row in subprocess.run([program], check=True, capture_output=True, text=True).stdout.splitlines():
        name, value, *unit = row.split()
        rows[name] = (float(value), " ".join(unit))
    return rows


def main():
    program, rounds = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 3
    ours, theirs, units = {}, {}, {}
    for _ in range(rounds):
        for name, (value, unit) in sluice_figures(program).items():
            ours.setdefault(name, []).append(value)
            units[name] = unit
        for name, value in torch_figures().items():
            theirs.setdefault(name, []).append(value)
    print(f"PyTorch {torch.__version__}, {torch.get_num_threads()} threads; medians of {rounds} rounds")
    print(f"{'':34}{'Sluice':>12}{'PyTorch':>12}{'faster by':>11}  unit")
    for name, values in ours.items():
        mine = statistics.median(values)
        if name not in theirs:
            print(f"{name:34}{mine:12.3f}{'':>12}{'':>11}  {units[name]}")
            continue
        other = statistics.median(theirs[name])
        ratio = mine / other if "/s" in units[name] else other / mine
        print(f"{name:34}{mine:12.3f}{other:12.3f}{ratio:10.2f}×  {units[name]}")


if __name__ == "__main__":
    main()
