#!/usr/bin/env python3
"""The workloads of sluice_bench in PyTorch and JAX, as a process that compare.py talks to.

    python3 tests/bench/peers.py eager|compile|jax|transformers|transformers_compile THREADS f32|bf16 cpu|cuda

A kind of workload stands once in sluice_bench and once here, under the same name, as one would write it with those
libraries: attention by scaled_dot_product_attention, AdamW fused, relu² attention as a masked matrix, recurrences by
chunks. The libraries share a formula where they differ only in the names of functions. Commands from stdin, each
answered by a line of JSON after an @:

    load NAME FILE     a workload with the inputs of `sluice_bench save`; "error" against the results there
    run NAME SECONDS   what was loaded, for so long
    memory NAME FILE   growth of the resident set in its first run; for a process of its own
"""
import json
import math
import os
import statistics
import sys
import tempfile
import time
from functools import partial

import numpy as np

WINDOW, CHUNK, HEAD = 256, 64, 64  # a window and a chunk of FLASH, a chunk of recurrences, a head


# -- the two libraries behind one set of names -------------------------------------------------------------

class Torch:
    def __init__(self, threads, compiled, precision, device):
        import torch
        import torch.nn.functional as F
        torch.set_num_threads(threads)
        self.torch, self.compiled, self.precision, self.device = torch, compiled, precision, device
        self.silu, self.gelu, self.sigmoid, self.relu = F.silu, F.gelu, torch.sigmoid, F.relu
        self.elu, self.log_sigmoid, self.softmax = F.elu, F.logsigmoid, F.softmax
        self.tanh, self.exp, self.rsqrt, self.einsum = torch.tanh, torch.exp, torch.rsqrt, torch.einsum
        self.cat, self.where, self.cumsum, self.split = torch.cat, torch.where, torch.cumsum, torch.split
        self.cross_entropy = lambda x, t: F.cross_entropy(x.flatten(0, -2), t.flatten())
        self.embedding = lambda w, i: F.embedding(i, w)
        self.layer_norm = lambda x, w=None, b=None: F.layer_norm(x, x.shape[-1:], w, b, 1e-5)
        self.rms_norm = lambda x, w: F.rms_norm(x, x.shape[-1:], w, 1e-5)
        self.linear = lambda x, w, b=None: F.linear(x, w.t(), b)
        self.attention = lambda q, k, v, causal=True: F.scaled_dot_product_attention(q, k, v, is_causal=causal)
        self.masked_attention = lambda q, k, v, seen: F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
        self.repeat_heads = lambda x, group: x.repeat_interleave(group, 1)
        self.contiguous = lambda x: x.contiguous()
        self.f32 = lambda x: x.float()  # where autocast's bf16 would not do
        self.amax = lambda x, dim: x.amax(dim)
        self.softplus = F.softplus
        self.solve_lower = lambda a, b: torch.linalg.solve_triangular(a, b, upper=False, unitriangular=True)

    def array(self, x):
        return self.torch.from_numpy(np.array(x)).to(self.device)

    def synchronize(self):
        if self.device == "cuda":
            self.torch.cuda.synchronize()

    @staticmethod
    def numpy(x):
        return x.detach().double().cpu().numpy()

    def constant(self, make, *args):  # what a module would keep as a buffer
        key = (make.__name__, *args)
        if key not in self.constants:
            self.constants[key] = self.array(make(*args))
        return self.constants[key]

    def write(self, cache, position, row):
        cache[:, :, position:position + 1] = row
        return cache

    def context(self):
        return self.torch.autocast(self.device, self.torch.bfloat16, enabled=self.precision == "bf16")

    def compile(self, f, *args):
        if not self.compiled:
            return f
        with self.torch.no_grad():
            f(*args)  # makes the constants
        self.torch.compiler.reset()
        return self.torch.compile(f, dynamic=False)

    def forward(self, f, p):
        f = self.compile(f, p)

        def run():
            with self.torch.no_grad(), self.context():
                return [f(p)]
        return run

    def differentiated(self, f, p, leaves, dy):
        f = self.compile(f, p)
        wanted = [p[name].requires_grad_() for name in leaves]

        def run():
            with self.context():
                y = f(p)
            return [y, *self.torch.autograd.grad(y, wanted, dy.to(y.dtype))]
        return run

    def training(self, loss, p, leaves):
        loss = self.compile(loss, p)
        wanted = [p[name].requires_grad_() for name in leaves]
        adam = self.torch.optim.AdamW(
            [{"params": [w for w in wanted if w.dim() >= 2], "weight_decay": 0.1},
             {"params": [w for w in wanted if w.dim() < 2], "weight_decay": 0.0}], lr=1e-3, fused=True)

        def run():
            adam.zero_grad(set_to_none=True)
            with self.context():
                value = loss(p)
            value.backward()
            adam.step()
            return [value.detach()]
        return run

    def generation(self, step, p, caches):
        step = self.compile(step, p, caches)

        def run():
            with self.torch.no_grad(), self.context():
                return [step(p, caches)[0]]
        return run


class Transformers(Torch):
    """The scans as the package transformers computes them where there is no GPU."""

    def __init__(self, *args):
        super().__init__(*args)
        from transformers.models.kimi_linear.modeling_kimi_linear import chunk_kimi_delta_attention
        from transformers.models.mamba2.modeling_mamba2 import mamba2_chunk_scan
        from transformers.models.qwen3_next.modeling_qwen3_next import torch_chunk_gated_delta_rule
        self.rules = torch_chunk_gated_delta_rule, chunk_kimi_delta_attention
        self.ssd = mamba2_chunk_scan

    def delta_rule(self, *tensors):  # [batch, heads, n, ...]; theirs are [batch, n, heads, ...]
        q, k, v, g, beta = (t.swapaxes(1, 2) for t in tensors)
        per_channel = g.shape[-1] > 1
        return self.rules[per_channel](q, k, v, g if per_channel else g[..., 0], beta[..., 0])[0].swapaxes(1, 2)

    def chunk_scan(self, u, dt, decay, b, c):
        # Chunks of 256, as Mamba-2's configuration has them.
        tokens = lambda t: t.swapaxes(1, 2)
        y = self.ssd(tokens(u), tokens(dt)[..., 0], decay[:, 0, 0], b[:, :, None], c[:, :, None], chunk_size=256)
        return tokens(y if self.torch.is_tensor(y) else y[0])


class Jax:
    def __init__(self, threads):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])  # before its threads start
        os.environ["JAX_PLATFORMS"] = "cpu"
        import jax
        import jax.numpy as jnp
        jax.config.update("jax_enable_x64", True)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
        jax.config.update("jax_compilation_cache_dir", os.path.join(tempfile.gettempdir(), "sluice_bench_jax"))
        self.jax, self.jnp, nn = jax, jnp, jax.nn
        self.silu, self.sigmoid, self.relu, self.elu = nn.silu, nn.sigmoid, nn.relu, nn.elu
        self.log_sigmoid, self.softmax = nn.log_sigmoid, nn.softmax
        self.gelu = lambda x: nn.gelu(x, approximate=False)
        self.tanh, self.exp, self.where, self.einsum, self.cumsum = jnp.tanh, jnp.exp, jnp.where, jnp.einsum, jnp.cumsum
        self.rsqrt, self.cat = jax.lax.rsqrt, jnp.concatenate
        self.split = lambda x, sizes, axis: jnp.split(x, np.cumsum(sizes)[:-1], axis)
        self.embedding = lambda w, i: w[i]
        self.contiguous = self.f32 = lambda x: x
        self.amax = jnp.max
        self.array, self.softplus = jnp.asarray, nn.softplus
        self.solve_lower = lambda a, b: jax.scipy.linalg.solve_triangular(a, b, lower=True, unit_diagonal=True)

    def synchronize(self):
        pass  # every run waits for its results

    @staticmethod
    def numpy(x):
        return np.asarray(x, dtype=np.float64)

    def cross_entropy(self, x, targets):
        return -self.jnp.take_along_axis(self.jax.nn.log_softmax(x), targets[..., None], -1).mean()

    def layer_norm(self, x, w=None, b=None):
        centred = x - x.mean(-1, keepdims=True)
        y = centred * self.rsqrt((centred * centred).mean(-1, keepdims=True) + 1e-5)
        return y if w is None else y * w + b

    def rms_norm(self, x, w):
        return x * self.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5) * w

    def linear(self, x, w, b=None):
        return x @ w if b is None else x @ w + b

    def attention(self, q, k, v, causal=True):
        swap = lambda t: t.swapaxes(1, 2)
        return swap(self.jax.nn.dot_product_attention(swap(q), swap(k), swap(v), is_causal=causal))

    def constant(self, make, *args):
        if make is not causal_weights:
            return self.jnp.asarray(make(*args))
        n, window = args  # too large for a program's constant
        i, j = self.jnp.arange(n)[:, None], self.jnp.arange(n)[None]
        return ((j <= i) & (i - j < window)) / self.jnp.minimum(i + 1, window).astype(self.jnp.float32)

    def repeat_heads(self, x, group):
        return self.jnp.repeat(x, group, axis=1)

    def masked_attention(self, q, k, v, seen):
        scores = self.jnp.where(seen, q @ k.swapaxes(2, 3) * q.shape[-1]**-0.5, -math.inf)
        return self.softmax(scores, -1) @ v

    def write(self, cache, position, row):
        return cache.at[:, :, position:position + 1].set(row)

    def forward(self, f, p):
        f = self.jax.jit(f)
        return lambda: [f(p).block_until_ready()]

    def differentiated(self, f, p, leaves, dy):
        @self.jax.jit
        def both(p, dy):
            y, vjp = self.jax.vjp(lambda leaf: f({**p, **leaf}), {name: p[name] for name in leaves})
            gradient, = vjp(dy)
            return [y, *(gradient[name] for name in leaves)]
        return lambda: self.jax.block_until_ready(both(p, dy))

    def training(self, loss, p, leaves):
        jnp, tree = self.jnp, self.jax.tree_util.tree_map
        rest = {name: p[name] for name in p if name not in leaves}
        w = {name: p[name] for name in leaves}
        state = [w, tree(jnp.zeros_like, w), tree(jnp.zeros_like, w), jnp.float32(0)]

        def step(w, m, v, t):
            value, g = self.jax.value_and_grad(lambda w: loss({**rest, **w}))(w)
            t = t + 1
            m = tree(lambda m, g: 0.9 * m + 0.1 * g, m, g)
            v = tree(lambda v, g: 0.999 * v + 0.001 * g * g, v, g)
            update = lambda w, m, v: (w * (1 - 1e-4 * (w.ndim >= 2)) -
                                      1e-3 * (m / (1 - 0.9**t)) / (jnp.sqrt(v / (1 - 0.999**t)) + 1e-8))
            return value, [tree(update, w, m, v), m, v, t]
        step = self.jax.jit(step, donate_argnums=(0, 1, 2))

        def run():
            value, state[:] = step(*state)
            return [value.block_until_ready()]
        return run

    def generation(self, step, p, caches):
        step, state = self.jax.jit(step, donate_argnums=1), [caches]

        def run():
            y, state[0] = step(p, state[0])
            return [y.block_until_ready()]
        return run


# -- the workloads: formulas over m, one of the libraries, and p, tensors by name -------------------------------

def rope_table(n, half, offset):  # [2, n, half]: cosines, sines
    angle = (offset + np.arange(n))[:, None] * 10000.0 ** (-np.arange(half) / half)
    return np.stack([np.cos(angle), np.sin(angle)]).astype(np.float32)


def causal_weights(n, window):
    seen = np.tri(n, dtype=np.float32)
    seen -= np.tri(n, k=-window, dtype=np.float32)
    return seen / np.minimum(np.arange(1, n + 1), window).astype(np.float32)[:, None]


def triangle(n):
    return np.tri(n, dtype=np.float32)


def strict_triangle(n):
    return np.tri(n, k=-1, dtype=bool)[:, :, None]


def causal_pairs(n):
    return np.tri(n, dtype=bool)


def tokens_before(groups, chunk):
    return np.maximum(np.arange(groups), 1).astype(np.float32)[:, None, None] * chunk


def retention_decay(heads, n):
    gamma = np.log(1 - 2.0 ** (-5 - np.arange(heads))).astype(np.float32)
    return np.broadcast_to(gamma[None, :, None, None], (1, heads, n, 1)).copy()


def rope(m, x, offset=0):
    half = x.shape[-1] // 2
    cos, sin = m.constant(rope_table, x.shape[-2], half, offset)
    a, b = x[..., :half], x[..., half:]
    return m.cat([a * cos - b * sin, b * cos + a * sin], -1)


def part(p, name):
    return {key[len(name) + 1:]: value for key, value in p.items() if key.startswith(name + ".")}


def dense(m, p, name, x):
    return m.linear(x, p[name + ".weight"], p.get(name + ".bias"))


def split_heads(x, heads):
    return x.reshape(x.shape[0], x.shape[1], heads, -1).swapaxes(1, 2)


def merge_heads(x):
    return x.swapaxes(1, 2).reshape(x.shape[0], x.shape[2], -1)


def swiglu_mlp(m, p, x):
    return dense(m, p, "out", dense(m, p, "value", x) * m.silu(dense(m, p, "gate", x)))


def mha(m, p, x, cache=None):
    """With a cache [keys, values]: its last place is the token's own, and all before it are seen."""
    heads, offset = p["q.weight"].shape[-1] // HEAD, cache[0].shape[2] - 1 if cache else 0
    q, k, v = (split_heads(dense(m, p, name, x), heads) for name in "qkv")
    q, k = rope(m, q, offset), rope(m, k, offset)
    if cache:
        cache[:] = k, v = m.write(cache[0], offset, k), m.write(cache[1], offset, v)
    y = merge_heads(m.attention(q, k, v, not cache))
    if "gates.0.map.weight" in p:
        y = y * m.sigmoid(dense(m, p, "gates.0.map", x))
    return dense(m, p, "out", y)


def gau(m, p, x, window=1 << 60, cache=None):
    e, s = p["out.weight"].shape[0], p["gamma"].shape[-1]
    offset = cache[0].shape[2] - 1 if cache else 0
    u, v, z = m.split(m.silu(dense(m, p, "in", m.layer_norm(x, p["norm.weight"], p["norm.bias"]))), [e, e, s], -1)
    q, k = (rope(m, z * p["gamma"][i] + p["beta"][i], offset) for i in range(2))
    if cache:
        cache[:] = m.write(cache[0], offset, k[:, None]), m.write(cache[1], offset, v[:, None])
        k, v = cache[0][:, 0], cache[1][:, 0]
    n = k.shape[1]
    a = m.relu(q @ k.swapaxes(1, 2) * s**-0.5)
    a = a * a * (1 / n if cache else m.constant(causal_weights, n, min(window, n)))
    return x + dense(m, p, "out", u * (a @ v))


def flash(m, p, x):
    e, s = p["out.weight"].shape[0], p["gamma"].shape[-1]
    b, n, _ = x.shape
    chunk = min(WINDOW, n)
    normed = x * m.rsqrt((x * x).mean(-1)[..., None] + 1e-5) * p["norm.weight"]
    u, v, z = m.split(m.silu(dense(m, p, "in", normed)), [e, e, s], -1)
    chunks = lambda t: t.reshape(b, n // chunk, chunk, t.shape[-1])
    q_quad, k_quad, q_lin, k_lin = (chunks(rope(m, z * p["gamma"][i] + p["beta"][i])) for i in range(4))
    v = chunks(v)
    a = m.relu(q_quad @ k_quad.swapaxes(2, 3) * s**-0.5)
    quad = (a * a * (m.constant(triangle, chunk) / WINDOW)) @ v
    states = k_lin.swapaxes(2, 3) @ v
    lin = q_lin @ ((m.cumsum(states, 1) - states) / m.constant(tokens_before, n // chunk, chunk))
    return x + dense(m, p, "out", u * (quad + lin).reshape(b, n, e))


def scan(m, q, k, v, decay=None):
    """o_i = Σ_{j <= i} (q_i · e^{D_i − D_j} k_j) v_j, D the running sum of `decay`; by chunks, [batch, heads, n, ·]."""
    n, groups = q.shape[2], q.shape[2] // CHUNK
    chunks = lambda t: t.reshape(*t.shape[:2], groups, CHUNK, t.shape[-1])
    q, k, v = chunks(q), chunks(k), chunks(v)
    causal = m.constant(triangle, CHUNK)
    if decay is None:
        states = k.swapaxes(3, 4) @ v
        o = (q @ k.swapaxes(3, 4) * causal) @ v + q @ (m.cumsum(states, 2) - states)
    else:
        inside = m.cumsum(chunks(decay), 3)
        total = inside[:, :, :, -1]
        q = q * m.exp(inside)
        states = (k * m.exp(total[:, :, :, None] - inside)).swapaxes(3, 4) @ v
        until = m.cumsum(total, 2)
        earlier = m.constant(strict_triangle, groups)
        kept = m.exp(m.where(earlier, (until - total)[:, :, :, None] - until[:, :, None], -math.inf))
        if kept.shape[-1] == 1:
            states = m.einsum("hgj,bhjde->bhgde", kept[0, ..., 0], states)
        else:
            states = m.einsum("bhgjd,bhjde->bhgde", kept, states)
        o = (q @ (k * m.exp(-inside)).swapaxes(3, 4) * causal) @ v + q @ states
    return o.reshape(*o.shape[:2], n, o.shape[-1])


def linear_attention(m, p, x):
    heads = x.shape[-1] // HEAD
    q, k, v = (split_heads(dense(m, p, name, x), heads) for name in "qkv")
    ones = 0 * v[..., :1] + 1
    sums = scan(m, m.elu(q) + 1, m.elu(k) + 1, m.cat([v, ones], -1))
    return dense(m, p, "out", merge_heads(sums[..., :-1] / (sums[..., -1:] + 1e-6)))


def retention(m, p, x):
    heads = x.shape[-1] // HEAD
    q, k, v = (split_heads(dense(m, p, name, x), heads) for name in "qkv")
    y = scan(m, rope(m, q) * q.shape[-1]**-0.5, rope(m, k), v, m.constant(retention_decay, heads, x.shape[1]))
    y = merge_heads(m.layer_norm(y)) * p["norm.weight"] + p["norm.bias"]
    return dense(m, p, "out", y * m.silu(dense(m, p, "gate", x)))


def gla(m, p, x):
    heads = x.shape[-1] // HEAD
    q, k, v = (split_heads(dense(m, p, name, x), heads) for name in "qkv")
    decay = split_heads(m.log_sigmoid(m.f32(dense(m, p, "gate_up", dense(m, p, "gate_down", x)))) / 16, heads)
    y = merge_heads(m.rms_norm(scan(m, q * q.shape[-1]**-0.5, k, v, decay), p["norm.weight"]))
    return dense(m, p, "out", y * m.silu(dense(m, p, "output_gate", x)))


def identity(n):
    return np.eye(n, dtype=np.float32)


def convolved(m, p, x):
    """silu of a causal convolution over as many tokens as the weight has rows."""
    w, n = p["conv.weight"], x.shape[1]
    padded = m.cat([0 * x[:, :w.shape[0] - 1], x], 1)
    y = sum(padded[:, i:i + n] * w[i] for i in range(w.shape[0]))
    return m.silu(y if p.get("conv.bias") is None else y + p["conv.bias"])


def delta_rule_of(m, q, k, v, g, beta):
    """By m's own rule, where it has one. Value heads may share a head of q and k."""
    group = v.shape[1] // k.shape[1]
    if group > 1:
        q, k = m.repeat_heads(q, group), m.repeat_heads(k, group)
    return getattr(m, "delta_rule", partial(delta_rule, m))(q, k, v, g, beta)


def delta_rule(m, q, k, v, g, beta):
    # By chunks of 64: (I + A) u = b v - (b k e^L) S for each chunk, the part without S solved for all chunks at once.
    n, c, width = q.shape[2], min(64, q.shape[2]), v.shape[-1]
    cut = lambda t: t.reshape(t.shape[0], t.shape[1], n // c, c, t.shape[-1])
    q, k, v, b, g = (cut(t) for t in (q * q.shape[-1]**-0.5, k, v, beta, g))
    lower, ones = m.constant(triangle, c), m.constant(identity, c)
    inside = m.cumsum(g, 3)
    if g.shape[-1] == 1:
        kept = m.exp((inside - inside.swapaxes(3, 4)) * lower) * lower
        a, pairs = (k @ k.swapaxes(3, 4)) * kept * b, (q @ k.swapaxes(3, 4)) * kept
    else:  # with a lower bound of -1 the decays of a chunk stay within what f32 holds
        near = (k * m.exp(-inside)).swapaxes(3, 4)
        a, pairs = ((k * m.exp(inside)) @ near) * lower * b, ((q * m.exp(inside)) @ near) * lower
    system = a * (lower - ones) + ones
    solved = m.solve_lower(system, m.cat([b * v, b * k * m.exp(inside)], -1))
    values, keys = solved[..., :width], solved[..., width:]
    left, whole, far = k * m.exp(inside[..., -1:, :] - inside), m.exp(inside[..., -1, :])[..., None], q * m.exp(inside)
    state, outs = 0 * (k[:, :, 0].swapaxes(2, 3) @ v[:, :, 0]), []
    for i in range(n // c):
        u = values[:, :, i] - keys[:, :, i] @ state
        outs.append(far[:, :, i] @ state + pairs[:, :, i] @ u)
        state = whole[:, :, i] * state + left[:, :, i].swapaxes(2, 3) @ u
    return m.cat([o[:, :, None] for o in outs], 2).reshape(v.shape[0], v.shape[1], n, width)


def delta_layer(m, p, x, decay, gate):
    # q | k | v through a causal convolution of four tokens and SiLU; q, k of length 1; the delta rule.
    qkv = convolved(m, p, m.cat([dense(m, p, name, x) for name in "qkv"], -1))
    sizes, width = [p[name + ".weight"].shape[1] for name in "qkv"], p["norm.weight"].shape[0]
    q, k, v = (split_heads(t, size // width) for t, size in zip(m.split(qkv, sizes, -1), sizes))
    unit = lambda t: t * ((t * t).sum(-1, keepdims=True) + 1e-6)**-0.5
    beta = m.sigmoid(dense(m, p, "beta", x)).swapaxes(1, 2)[..., None]
    y = delta_rule_of(m, unit(q), unit(k), v, decay, beta)
    return dense(m, p, "out", merge_heads(m.rms_norm(y, p["norm.weight"])) * gate)


def delta_rule_alone(m, p):
    q, g = p["q"] * p["q"].shape[-1]**0.5, p["g"]  # the layers' rule scales q
    return delta_rule_of(m, q, p["k"], p["v"], g if len(g.shape) == 4 else g[..., None], p["beta"][..., None])


def gated_delta_net(m, p, x):
    decay = -m.exp(p["a_log"]) * m.softplus(dense(m, p, "decay", x) + p["dt_bias"])
    return delta_layer(m, p, x, decay.swapaxes(1, 2)[..., None], m.silu(dense(m, p, "output_gate", x)))


def kda(m, p, x):
    heads = p["a_log"].shape[0]
    z = split_heads(dense(m, p, "decay_up", dense(m, p, "decay_down", x)) + p["dt_bias"], heads)
    decay = -m.sigmoid(m.exp(p["a_log"])[:, None, None] * z)
    gate = m.sigmoid(dense(m, p, "output_gate_up", dense(m, p, "output_gate_down", x)))
    return delta_layer(m, p, x, decay, gate)


def chunk_scan(m, u, dt, decay, b, c):
    # State space duality by chunks of 64 (Dao & Gu 2024): the scan with a learned decay for each head and token.
    n, size = u.shape[2], min(64, u.shape[2])
    cut = lambda t: t.reshape(*t.shape[:2], n // size, size, t.shape[-1])
    b, c, v, inside = cut(b[:, None]), cut(c[:, None]), cut(u * dt), m.cumsum(cut(decay * dt), 3)
    lower, total = m.constant(triangle, size), inside[:, :, :, -1]
    states = (b * m.exp(total[:, :, :, None] - inside)).swapaxes(3, 4) @ v
    until = m.cumsum(total, 2)
    kept = (until - total)[:, :, :, None] - until[:, :, None]
    kept = m.exp(m.where(m.constant(strict_triangle, n // size), kept, -math.inf))[..., 0]
    states = m.einsum("bhgj,bhjde->bhgde", kept, states)
    pairs = (c @ b.swapaxes(3, 4)) * m.exp((inside - inside.swapaxes(3, 4)) * lower) * lower
    return (pairs @ v + (c * m.exp(inside)) @ states).reshape(u.shape)


def mamba2(m, p, x):
    heads, inner, mixed = p["a_log"].shape[0], p["out.weight"].shape[0], p["conv.weight"].shape[1]
    z, xbc, dt = m.split(dense(m, p, "in", x), [inner, mixed, heads], -1)
    u, b, c = m.split(convolved(m, p, xbc), [inner, (mixed - inner) // 2, (mixed - inner) // 2], -1)
    dt = m.softplus(dt + p["dt_bias"]).swapaxes(1, 2)[..., None]
    u, decay = split_heads(u, heads), -m.exp(p["a_log"])[:, None, None]
    y = getattr(m, "chunk_scan", partial(chunk_scan, m))(u, dt, decay, b, c) + u * p["d"][:, None, None]
    return dense(m, p, "out", m.rms_norm(merge_heads(y) * m.silu(z), p["norm.weight"]))


def mla(m, p, x):
    # Expanded; v is padded to the width of k, because PyTorch's flash attention for CPUs needs one width.
    rank = p["kv_norm.weight"].shape[0]
    turned = p["kv_down.weight"].shape[1] - rank
    heads = (p["q.weight"].shape[1] + p["out.weight"].shape[0] - p["kv_up.weight"].shape[1]) // turned
    wide = p["out.weight"].shape[0] // heads
    q = split_heads(dense(m, p, "q", x), heads)
    c, shared = m.split(dense(m, p, "kv_down", x), [rank, turned], -1)
    norm = c * m.rsqrt((c * c).mean(-1)[..., None] + 1e-6) * p["kv_norm.weight"]
    kv = split_heads(dense(m, p, "kv_up", norm), heads)
    straight = q.shape[-1] - turned
    shared = rope(m, shared[:, None]) + 0 * kv[..., :turned]
    q = m.cat([q[..., :straight], rope(m, q[..., straight:])], -1)
    v = m.cat([kv[..., straight:], 0 * shared], -1)
    return dense(m, p, "out", merge_heads(m.attention(q, m.cat([kv[..., :straight], shared], -1), v)[..., :wide]))


def selected_keys(m, p):
    seen = p["blocks"][..., [i // 64 for i in range(p["k"].shape[2])]] > 0
    return m.masked_attention(p["q"], p["k"], p["v"], seen & m.constant(causal_pairs, p["k"].shape[2]))


def language_model(m, p, tokens, kind, caches=None):
    layer = {"lm_gau": gau, "lm_flash": flash, "lm_gated": mha}[kind]
    x = m.embedding(p["embed.weight"], tokens)
    for i in range(sum(name.startswith("mixers.") and name.endswith("out.weight") for name in p)):
        mixer, options = part(p, f"mixers.{i}"), {"cache": caches[i]} if caches else {}
        inner = part(mixer, "layer")
        if kind == "lm_gated":
            feed = part(p, f"feeds.{i}")
            x = x + layer(m, inner, m.layer_norm(x, mixer["norm.weight"], mixer["norm.bias"]), **options)
            x = x + swiglu_mlp(m, part(feed, "glu"), m.layer_norm(x, feed["norm.weight"], feed["norm.bias"]))
        else:
            x = layer(m, inner, x, **options)
    return dense(m, p, "head", m.layer_norm(x, p["norm.weight"], p["norm.bias"]))


def chain(m, p, n):
    h = p["a"]
    for _ in range(n):
        h = h * p["b"]
    return h


KINDS = {
    "gelu": lambda m, p: m.gelu(p["x"]),
    "swiglu": lambda m, p: p["x"] * m.silu(p["g"]),
    "swiglu_composed": lambda m, p: p["x"] * (p["g"] * m.sigmoid(p["g"])),
    "chain6": lambda m, p: m.tanh(p["x"] * p["g"] + p["b"]) * m.sigmoid(p["g"]) - p["x"],
    "add": lambda m, p: p["x"] + p["g"],
    "softmax": lambda m, p: m.softmax(p["x"], -1),
    "cross_entropy": lambda m, p: m.cross_entropy(p["x"], p["targets"]),
    "layer_norm": lambda m, p: m.layer_norm(p["x"], p["w"], p["b"]),
    "rms_norm": lambda m, p: m.rms_norm(p["x"], p["w"]),
    "sum_rows": lambda m, p: p["x"].sum(1),
    "sum_columns": lambda m, p: p["x"].sum(0),
    "max_rows": lambda m, p: m.amax(p["x"], 1),
    "cumsum": lambda m, p: m.cumsum(p["x"], 1),
    "transpose": lambda m, p: m.contiguous(p["x"].swapaxes(0, 1)),
    "split_heads": lambda m, p: m.contiguous(p["x"].swapaxes(1, 2)),
    "embedding": lambda m, p: m.embedding(p["w"], p["index"]),
    "mm": lambda m, p: p["a"] @ p["b"],
    "mm_nt": lambda m, p: p["a"] @ p["b"].T,
    "mm_tn": lambda m, p: p["a"].T @ p["b"],
    "linear_gelu": lambda m, p: m.gelu(m.linear(p["x"], p["w"], p["b"])),
    "linear_gate": lambda m, p: m.linear(p["x"], p["w"], p["b"]) * m.silu(p["r"]),
    "linear_residual": lambda m, p: p["r"] + m.linear(p["x"], p["w"], p["b"]),
    "linear": lambda m, p: m.linear(p["x"], p["weight"], p["bias"]),
    "swiglu_mlp": lambda m, p: swiglu_mlp(m, p, p["x"]),
    "mha": lambda m, p: mha(m, p, p["x"]),
    "gau": lambda m, p: gau(m, p, p["x"]),
    "gau_window": lambda m, p: gau(m, p, p["x"], WINDOW),
    "flash": lambda m, p: flash(m, p, p["x"]),
    "linear_attention": lambda m, p: linear_attention(m, p, p["x"]),
    "retention": lambda m, p: retention(m, p, p["x"]),
    "gla": lambda m, p: gla(m, p, p["x"]),
    "gated_delta_net": lambda m, p: gated_delta_net(m, p, p["x"]),
    "kda": lambda m, p: kda(m, p, p["x"]),
    "mamba2": lambda m, p: mamba2(m, p, p["x"]),
    "mla": lambda m, p: mla(m, p, p["x"]),
    "selected_keys": selected_keys,
    "delta_rule": delta_rule_alone,
    "delta_rule_channels": delta_rule_alone,
    "attention": lambda m, p: m.attention(p["q"], p["k"], p["v"]),
}
KINDS.update(swiglu_map=KINDS["swiglu"], chain6_map=KINDS["chain6"], gated_mha=KINDS["mha"], mm_f64=KINDS["mm"],
             bmm=KINDS["mm"])


def filled(shape):
    i = np.arange(math.prod(shape), dtype=np.int64)
    return (((i * 7919) % 1021).astype(np.float32) / np.float32(1021) - np.float32(0.5)).reshape(shape)


def prepare(m, name, path):
    """A function that does the workload once and gives its results, and the results that Sluice had."""
    from safetensors.numpy import load_file
    file = load_file(path)
    m.constants = {}
    wanted = [file[f"result/{i}"] for i in range(sum(key.startswith("result/") for key in file))]
    p = {key: m.array(value) for key, value in file.items() if not key.startswith("result/") and key != "dy"}
    leaves = sorted(key for key in p if file[key].dtype.kind == "f")
    group, kind, sizes = name.split("/")
    sizes = [int(s) for s in sizes.split("x")]
    if group == "generate":
        b, n, d, layers = sizes
        shapes = [(b, 1, n + 1, 128), (b, 1, n + 1, 2 * d)] if kind == "lm_gau" else [(b, d // HEAD, n + 1, HEAD)] * 2
        caches = [[m.array(filled(shape)) for shape in shapes] for _ in range(layers)]
        token = m.array(np.full((b, 1), 65))

        def step(p, caches):
            caches = [list(cache) for cache in caches]
            return language_model(m, p, token, kind, caches), caches
        return m.generation(step, p, caches), wanted
    if "tokens" in p:
        loss = lambda p: m.cross_entropy(language_model(m, p, p["tokens"], kind), p["targets"])
        return m.training(loss, p, leaves), wanted
    f = (lambda p: chain(m, p, sizes[0])) if kind == "chain" else (lambda p: KINDS[kind](m, p))
    if "dy" in file:
        return m.differentiated(f, p, leaves, m.array(file["dy"])), wanted
    return m.forward(f, p), wanted


# -- the process ----------------------------------------------------------------------------------------------

def error_of(result, wanted):
    result, wanted = np.asarray(result, np.float64), np.asarray(wanted, np.float64)
    if result.shape != wanted.shape:
        return math.inf
    size = np.linalg.norm(wanted)
    return float(np.linalg.norm(result - wanted) / (size if size > 0 else 1))


def status_bytes(field):
    for line in open("/proc/self/status"):
        if line.startswith(field):
            return int(line.split()[1]) * 1024


def serve(peer, threads, precision, device):
    make = Transformers if peer.startswith("transformers") else Torch
    m = Jax(threads) if peer == "jax" else make(threads, peer.endswith("compile"), precision, device)
    run = None
    for line in sys.stdin:
        command, name, rest = (line.split() + ["", ""])[:3]
        try:
            if command == "load":
                run = None
                run, wanted = prepare(m, name, rest)
                if name.startswith("train"):
                    run()  # a second step of training tells more than the first
                results = [m.numpy(r) for r in run()]
                answer = {"error": max(map(error_of, results, wanted)) if len(results) == len(wanted) else math.inf}
                del results, wanted
            elif command == "memory":
                if peer != "jax":
                    a = m.torch.randn(512, 512, requires_grad=True)
                    (a @ a).sum().backward()
                run, wanted = prepare(m, name, rest)
                if "gau" in name:
                    n = int(name.split("x")[1])
                    m.constant(causal_weights, n, n)  # a buffer of the module, not of the pass
                open("/proc/self/clear_refs", "w").write("5")
                before = status_bytes("VmRSS:")
                run()
                answer = {"rss_bytes": status_bytes("VmHWM:") - before}
            else:
                times, end = [], time.perf_counter() + float(rest)
                while not times or time.perf_counter() < end:
                    start = time.perf_counter()
                    run()
                    m.synchronize()
                    times.append(time.perf_counter() - start)
                answer = {"seconds": statistics.median(times)}
        except Exception as e:  # told, not fatal: the other rows go on
            answer = {"failed": f"{type(e).__name__}: {e}"[:300]}
        print("\n@" + json.dumps(answer), flush=True)


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4])
