#!/usr/bin/env python3
"""PyTorch's scaled_dot_product_attention by cuDNN and by FlashAttention, counted as bench_ladder counts its rungs.

    python3 tests/bench/ladder_peers.py [n [batch·heads]]
"""
import statistics
import sys

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel


def seconds(run):
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def sample(calls):
        begin.record()
        for _ in range(calls):
            run()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / calls

    sample(3)
    calls = max(1, min(30, int(3 / sample(3))))
    return statistics.median(sample(calls) for _ in range(20)) * 1e-3


def row(what, d, n, backend, work, run):
    try:
        time = seconds(run)
        print(f"{what:16} D {d:<4} n {n:<6} {backend:14} {time * 1e3:9.3f} ms {work / time * 1e-12:8.1f} TFLOP/s", flush=True)
    except RuntimeError as e:
        print(f"{what:16} D {d:<4} n {n:<6} {backend:14} {str(e).splitlines()[0]}", flush=True)


def rows(d, n, heads, causal):
    q, k, v, g = (torch.randn(1, heads, n, d, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(4))
    flops = 4 * heads * n * n * d / (2 if causal else 1)
    what = "softmax, causal" if causal else "softmax, full"
    for name, backend in [("cuDNN", SDPBackend.CUDNN_ATTENTION), ("FlashAttention", SDPBackend.FLASH_ATTENTION)]:
        with sdpa_kernel(backend):
            def forward():
                with torch.no_grad():
                    F.scaled_dot_product_attention(q, k, v, is_causal=causal)
            row(what, d, n, name, flops, forward)
            try:
                y = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
            except RuntimeError:
                continue
            row(what + "'", d, n, name, 2.5 * flops,
                lambda: torch.autograd.grad(y, (q, k, v), g, retain_graph=True))


if __name__ == "__main__":
    n = int(sys.argv[1]) if len(sys.argv) > 1 else 8192
    heads = int(sys.argv[2]) if len(sys.argv) > 2 else 32
    for d, causal in [(128, True), (128, False), (64, True)]:
        rows(d, n, heads, causal)
