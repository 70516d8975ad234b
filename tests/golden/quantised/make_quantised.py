#!/usr/bin/env python3
"""Tiny models whose weights are stored in few bits, made of those of ../models, and the logits that transformers computes
in float64 from the same weights written out.

    python3 tests/golden/quantised/make_quantised.py OUT

Needs torch, transformers 5 and safetensors. The folders are as those of ../models/make_models.py:
  deepseek_v3_fp8   F8_E4M3, a scale in f32 for 8 rows and 8 columns, also where they are fewer; a scale of inputs
  llama_int8        compressed-tensors: I8, a scale in bf16 for each row
  qwen3_int4        compressed-tensors: eight numbers of 4 bits in an I32, a scale in bf16 for 8 of a row
  gpt_oss_mxfp4     MXFP4: blocks of 32 numbers of 4 bits with an exponent, the experts' matrices
"""
import json
import os
import shutil
import sys
import tempfile

import numpy
import safetensors.torch
import torch

MODELS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "models")
sys.path.insert(0, MODELS)
import make_models  # noqa: E402, the last: it makes float32 float64, so that all is computed in it
import transformers  # noqa: E402

E2M1 = torch.tensor([0, .5, 1, 1.5, 2, 3, 4, 6], dtype=torch.float64)


def f32(x):
    """Rounds to float32, which make_models.py has replaced."""
    return torch.from_numpy(x.numpy().astype(numpy.float32))


def fp8(name, w, block=8):
    rows, columns = w.shape
    grid = torch.zeros(-(-rows // block), -(-columns // block), dtype=torch.float64)
    number, whole = torch.zeros_like(w), torch.zeros_like(w)
    for i in range(grid.shape[0]):
        for j in range(grid.shape[1]):
            at = slice(i * block, (i + 1) * block), slice(j * block, (j + 1) * block)
            grid[i, j] = f32((w[at].abs().max() / 448).reshape(1))[0]
            number[at] = (w[at] / grid[i, j]).to(torch.float8_e4m3fn).double()
            whole[at] = number[at] * grid[i, j]
    stored = {name: number.to(torch.float8_e4m3fn), name + "_scale_inv": f32(grid)}
    if "o_proj" in name:  # as of a model whose activations were quantised, too
        stored[name.removesuffix("weight") + "activation_scale"] = torch.tensor(0.5, dtype=torch.bfloat16)
    return stored, whole


def int8(name, w):
    scale = (w.abs().amax(1, keepdim=True) / 127).to(torch.bfloat16)
    number = (w / scale.double()).round().clamp(-128, 127)
    return {name: number.to(torch.int8), name + "_scale": scale}, number * scale.double()


def int4(name, w, group=8):
    groups = w.reshape(w.shape[0], -1, group)
    scale = (groups.abs().amax(2, keepdim=True) / 7).to(torch.bfloat16)
    number = (groups / scale.double()).round().clamp(-8, 7)
    bits = (number.reshape(w.shape[0], -1, 8) + 8).to(torch.int64)
    packed = sum(bits[..., i] << 4 * i for i in range(8))
    packed = torch.where(packed >= 2 ** 31, packed - 2 ** 32, packed).to(torch.int32)
    stored = {name + "_packed": packed, name + "_scale": scale.squeeze(2), name + "_shape": torch.tensor(w.shape)}
    return stored, (number * scale.double()).reshape(w.shape)


def mxfp4(name, w):
    rows = w.transpose(1, 2)  # [experts, rows, columns]
    groups = rows.reshape(*rows.shape[:2], -1, 32)
    exponent = torch.floor(torch.log2(groups.abs().amax(-1, keepdim=True))) - 2
    scaled = groups / 2 ** exponent
    code = (scaled.abs().unsqueeze(-1) - E2M1).abs().argmin(-1)
    number = torch.sign(scaled) * E2M1[code]
    half = code + 8 * (scaled < 0)
    stored = {name + "_blocks": (half[..., 0::2] + 16 * half[..., 1::2]).to(torch.uint8),
              name + "_scales": (exponent.squeeze(-1) + 127).to(torch.uint8)}
    return stored, (number * 2 ** exponent).reshape(rows.shape).transpose(1, 2)


KINDS = {
    "deepseek_v3_fp8": ("deepseek_v3", lambda n, w: "proj" in n and w.ndim == 2, fp8,
                        dict(quant_method="fp8", fmt="e4m3", activation_scheme="dynamic", weight_block_size=[8, 8])),
    "llama_int8": ("llama", lambda n, w: "proj" in n, int8,
                   dict(quant_method="compressed-tensors", format="int-quantized")),
    "qwen3_int4": ("qwen3", lambda n, w: "proj" in n, int4,
                   dict(quant_method="compressed-tensors", format="pack-quantized")),
    "gpt_oss_mxfp4": (dict(make_models.common, hidden_size=32, intermediate_size=32, head_dim=8, sliding_window=4,
                           num_local_experts=3, num_experts_per_tok=2, num_hidden_layers=1,
                           layer_types=["full_attention"]),
                      lambda n, w: "experts" in n and w.ndim == 3, mxfp4,
                      dict(quant_method="mxfp4", modules_to_not_convert=["lm_head"])),
}


def main(out):
    for name, (source, chosen, quantise, config) in KINDS.items():
        with tempfile.TemporaryDirectory() as work:
            if isinstance(source, str):
                shutil.copytree(os.path.join(MODELS, source), work, dirs_exist_ok=True)
            else:
                make_models.make("GptOss", source, work, 1)
            path = os.path.join(work, "model.safetensors")
            stored, whole = {}, {}
            for key, w in safetensors.torch.load_file(path).items():
                if chosen(key, w):
                    parts, exact = quantise(key, w.double())
                    stored.update(parts)
                    whole[key] = exact.contiguous()
                else:
                    stored[key], whole[key] = w, w.double()
            safetensors.torch.save_file(whole, path, metadata={"format": "pt"})
            model = transformers.AutoModelForCausalLM.from_pretrained(work, dtype=torch.float64,
                                                                      attn_implementation="eager").eval()
            model.config._experts_implementation = "eager"
            given = safetensors.torch.load_file(os.path.join(work, "expected.safetensors"))
            with torch.no_grad():
                given["logits"] = model(given["tokens"], attention_mask=given["mask"].long(),
                                        use_cache=False).logits.contiguous()
                given["stream_logits"] = model(given["stream"], use_cache=False).logits.contiguous()
            folder = os.path.join(out, name)
            os.makedirs(folder, exist_ok=True)
            with open(os.path.join(work, "config.json")) as f:
                fields = json.load(f)
            fields["quantization_config"] = config
            with open(os.path.join(folder, "config.json"), "w") as f:
                f.write(json.dumps(fields, indent=2) + "\n")
        safetensors.torch.save_file(stored, os.path.join(folder, "model.safetensors"), metadata={"format": "pt"})
        safetensors.torch.save_file(given, os.path.join(folder, "expected.safetensors"))
        print(name, len(stored), "tensors, logits to", float(given["logits"][given["mask"]].abs().max()))


if __name__ == "__main__":
    main(sys.argv[1])
