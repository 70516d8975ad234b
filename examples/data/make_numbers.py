#!/usr/bin/env python3
"""Writes the safetensors files of this folder and of tests/golden/port: weights, input, output and the gradients of
sum(output * cotangent), of layers of other packages, in f64. Needs torch, transformers, flash-pytorch and a checkout of GAU-alpha-pytorch:

    make_numbers.py EXAMPLES_DATA TESTS_PORT GAU_ALPHA_PYTORCH/src/gau_alpha
"""
import sys

import torch
from safetensors.torch import save_file
from torch import nn

examples, tests, gau_alpha_source = sys.argv[1:]
torch.manual_seed(1)
torch.set_default_dtype(torch.float64)
# These packages compute norms and softmax in f32 whatever the weights are; here "float" is f64.
torch.Tensor.float = torch.Tensor.double
softmax = nn.functional.softmax
nn.functional.softmax = lambda x, dim=-1, dtype=None: softmax(x, dim)


def shaken(module):
    """No weight keeps a special value such as 0 or 1."""
    with torch.no_grad():
        for p in module.parameters():
            p.add_(0.3 * torch.randn(p.shape))
    return module.double().eval()


def rope(n, dim, base):
    """cos and sin of all positions, [1, n, dim], pairs in halves."""
    angle = torch.arange(n)[:, None] * base ** (-torch.arange(0, dim, 2) / dim)
    return angle.cos().repeat(1, 2)[None], angle.sin().repeat(1, 2)[None]


def case(module, x, f, prefix="", real=None):
    """The module's tensors beside input.x, output, cotangent and gradients; of real tokens only, if there is a mask."""
    if x.is_floating_point():
        x.requires_grad_()
    y = f(x) if real is None else f(x) * real[..., None]
    cotangent = torch.randn(y.shape) if real is None else torch.randn(y.shape) * real[..., None]
    y.backward(cotangent)
    tensors = {**module.state_dict(), "input.x": x, "output": y, "cotangent": cotangent, "grad.input.x": x.grad}
    tensors |= {"grad." + name: p.grad for name, p in module.named_parameters()}
    return {prefix + name: t.detach().clone().contiguous() for name, t in tensors.items() if t is not None}


def causal(n):
    return torch.full((n, n), -torch.inf).triu(1)[None, None]


def qwen3_next():
    from transformers.models.qwen3_next import modeling_qwen3_next as qwen

    config = qwen.Qwen3NextConfig(hidden_size=10, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
                                  rms_norm_eps=1e-6, attn_implementation="sdpa")
    attention = shaken(qwen.Qwen3NextAttention(config, 0))
    run = lambda x: attention(x, rope(x.shape[1], 4, 1e4), causal(x.shape[1]))[0]
    save_file(case(attention, torch.randn(2, 7, 10), run), f"{examples}/qwen3_next.safetensors", {"format": "pt"})


def gau_alpha():
    sys.path.insert(0, gau_alpha_source)
    from layer import GAULayer  # the package itself needs an older transformers

    layer = shaken(GAULayer(hidden_size=8, intermediate_size=12, attention_key_size=6))
    angle = torch.arange(20)[:, None] * 1e4 ** (-torch.arange(0, 6, 2) / 6)
    mask = torch.ones(2, 20)
    mask[1, 17:] = 0
    run = lambda x: layer(x, mask[:, None], (angle.sin()[None], angle.cos()[None]))[0]
    tensors = case(layer, torch.randn(2, 20, 8), run, real=mask) | {"input.key_mask": mask.bool()}
    save_file(tensors, f"{examples}/gau_alpha.safetensors", {"format": "pt"})


def flash():
    from flash_pytorch import FLASHTransformer

    model = FLASHTransformer(num_tokens=11, dim=8, depth=2, group_size=4, query_key_dim=6, causal=True)
    with torch.no_grad():  # exact in f64, not f64 copies of f32
        model.abs_pos_emb.inv_freq = 1e4 ** (-torch.arange(0, 8, 2) / 8)
        for layer in model.layers:
            layer.rotary_pos_emb.freqs.copy_(1e4 ** (-torch.arange(0, 6, 2) / 6))
            layer.rotary_pos_emb.cache_if_possible = False
    freqs = model.layers[0].rotary_pos_emb.freqs.clone()
    shaken(model)
    with torch.no_grad():
        model.layers[0].rotary_pos_emb.freqs.copy_(freqs)
    tensors = case(model, torch.randint(11, (2, 10)), model)
    tensors = {name: t for name, t in tensors.items() if "rotary_pos_emb" not in name}  # computed
    save_file(tensors, f"{examples}/flash_transformer.safetensors", {"format": "pt"})


def fused_projections():
    """Attention layers that lay q, k and v in one map, each its own way."""
    from transformers.models.bloom import modeling_bloom as bloom
    from transformers.models.gpt2 import modeling_gpt2 as gpt2
    from transformers.models.gpt_neox import modeling_gpt_neox as neox

    tensors, x = {}, lambda: torch.randn(2, 5, 8)
    mha = shaken(nn.MultiheadAttention(8, 2, batch_first=True))
    tensors |= case(mha, x(), lambda x: mha(x, x, x, need_weights=False)[0], "mha.")
    config = gpt2.GPT2Config(n_embd=8, n_head=2, attn_implementation="sdpa")
    attention2 = shaken(gpt2.GPT2Attention(config, layer_idx=0))
    tensors |= case(attention2, x(), lambda x: attention2(x, attention_mask=causal(5))[0], "gpt2.")
    config = neox.GPTNeoXConfig(hidden_size=8, num_attention_heads=2, attn_implementation="sdpa")
    attention3 = shaken(neox.GPTNeoXAttention(config, 0))
    tensors |= case(attention3, x(), lambda x: attention3(x, causal(5), position_embeddings=rope(5, 2, 1e4))[0], "neox.")
    config = bloom.BloomConfig(hidden_size=8, n_head=2)
    attention4 = shaken(bloom.BloomAttention(config, 0))
    alibi = bloom.build_alibi_tensor(torch.ones(2, 5), 2, torch.float64)
    run = lambda x: attention4(x, torch.zeros_like(x), alibi, causal(5))[0]
    tensors |= case(attention4, x(), run, "bloom.")
    save_file(tensors, f"{tests}/fused_projections.safetensors", {"format": "pt"})


def dtypes():
    """The numbers 1/3 … 12/3 as [4, 3] weights of a linear map."""
    w = torch.arange(1, 13).reshape(4, 3) / 3
    save_file({f"{name}.weight": w.to(t) for name, t in
               {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32, "f64": torch.float64}.items()},
              f"{tests}/dtypes.safetensors", {"format": "pt"})


def blocks():
    from transformers.models.falcon import modeling_falcon as falcon
    from transformers.models.qwen3 import modeling_qwen3 as qwen

    encoder = shaken(nn.TransformerEncoderLayer(8, 2, dim_feedforward=12, activation="gelu", batch_first=True))
    tensors = case(encoder, torch.randn(2, 5, 8), encoder, "encoder.")
    config = qwen.Qwen3Config(hidden_size=8, num_attention_heads=4, num_key_value_heads=2, head_dim=4,
                              intermediate_size=12, rms_norm_eps=1e-6, attn_implementation="sdpa")
    decoder = shaken(qwen.Qwen3DecoderLayer(config, 0))
    f32, torch.float32 = torch.float32, torch.float64  # what its norm converts to
    run = lambda x: decoder(x, attention_mask=causal(5), position_embeddings=rope(5, 4, 1e4))
    tensors |= case(decoder, torch.randn(2, 5, 8), run, "qwen3.")
    torch.float32 = f32
    config = falcon.FalconConfig(hidden_size=8, num_attention_heads=4, num_kv_heads=2, new_decoder_architecture=True,
                                 attn_implementation="sdpa")
    attention = shaken(falcon.FalconAttention(config, 0))
    run = lambda x: attention(x, None, causal(5), position_embeddings=rope(5, 2, 1e4))[0]
    tensors |= case(attention, torch.randn(2, 5, 8), run, "falcon.")
    save_file(tensors, f"{tests}/blocks.safetensors", {"format": "pt"})


for make in [qwen3_next, gau_alpha, flash, fused_projections, dtypes, blocks]:
    make()
