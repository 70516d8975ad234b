"""The topics of the API and the order in which a reader meets them. A header belongs to the first topic that names it
or its folder; one that belongs to none fails docs/build.sh."""

import re

# A line of page, title and one sentence; below it headers and folders in reading order.
TABLE = """
tensor | Tensor | Arrays, their shapes, dtypes and devices; printing; errors.
  core/tensor.h core/hook_handle.h core/shape.h core/dtype.h core/device.h core/text/print.h core/error.h core/version.h
create | Making and reshaping | New tensors, views, copies, joining, repeating.
  ops/shape/create.h ops/shape/view.h ops/shape
elementwise | Elementwise | Arithmetic, mathematics, comparisons, activations, gates.
  ops/elementwise/elementwise.h ops/elementwise/activation.h ops/elementwise/dropout.h
maps | Fused maps | A formula of your own as one op, and the formulas that are there.
  ops/elementwise/map.h core/number/arithmetic.h ops/elementwise
rows | Rows | Reductions, softmax, norms, losses, rotary positions: ops along a dim.
  ops/rows/reduce.h ops/rows/softmax.h ops/rows/norm.h ops/rows/loss.h ops/rows
indexing | Indexing and sorting | Gather, scatter, embedding, masks, sort, samples by weight.
  ops/index/gather.h ops/index
matmul | Products | Matrix products, einsum, and the precision of products.
  ops/matmul/matmul.h ops/matmul ops/gemm
attention | Attention | Tiled attention with every mask, bias and weighting, in O(n) memory.
  ops/attention/attention.h ops/attention/attention_mask.h ops/attention
scan | Scans | Running sums, the chunked linear scan, the delta rule, causal convolution.
  ops/scan/linear_scan.h ops/scan/delta_scan.h ops/scan
random | Random numbers | Generators, and tensors drawn from them.
  core/number/random.h
autograd | Autograd | Gradients of any order, ops of your own, checks, profiles.
  autograd/engine.h autograd/function.h autograd/gradcheck.h autograd
modules | Modules and calls | What every layer and model has: visit, parameters, passes, streams, files.
  layers/nn/module.h layers/nn/pass.h layers/nn/stream.h layers/nn/kv_cache.h layers/nn/named_tensor.h
  layers/nn/generate.h
parts | Parts | Dense maps, norms, MLPs and GLUs, heads, initial values.
  layers/nn/linear.h layers/nn/norm.h layers/nn/mlp.h layers/nn
gau | GAU and FLASH | The gated attention unit, and FLASH in linear time.
  layers/gau/gau.h layers/gau/gau_attention.h layers/gau
sparse | Sparse attention | Patterns, top-k, thresholds, Sinkhorn.
  layers/attention/sparse_masks.h layers/attention/sparse_attention.h layers/attention/sparse_layers.h
  layers/attention/sinkhorn.h
softmax | Softmax attention | Multi-head attention in its published forms, its gates, blocks around it.
  layers/attention/multi_head_attention.h layers/attention/attention_gate.h layers/attention
linear | Linear attention | Feature maps, retention, gated linear attention, the delta rule.
  layers/linear_attention/linear_attention.h layers/linear_attention
models | Published models | Decoders from their files.
  layers/models/decoder.h layers/models/load_model_files.h layers/models
training | Optimisers and checkpoints | Optimisers, schedules, clipping, checkpoints, logs, several ranks.
  layers/train/optim.h layers/train/optimizer.h layers/train/schedule.h layers/train/clip.h layers/train/training.h layers/train
data | Data | Files of numbers, images and text; batches.
  layers/data/loader.h layers/data
reports | Reports | What a model costs and what its attention does.
  layers/report/summary.h layers/report
files | Files and options | Safetensors, weights of PyTorch, options by name.
  core/text/safetensors.h layers/port core/text/options.h core/number/number.h
parallel | Several ranks | Communicators, collectives, sequences cut over ranks.
  parallel/communicator.h parallel/collectives.h parallel
devices | Kernels, memory, threads | What the machine can do, and how much of it is used.
  ops/machine.h core/kernel core/memory
"""
TOPICS = tuple(
    (*(cell.strip() for cell in first.split("|")), " ".join(headers.split()))
    for first, headers in re.findall(r"^(\w.*)\n((?:  .*\n)+)", TABLE, re.M)
)
LAYERS = ("modules", "parts", "gau", "softmax", "sparse", "linear")  # under Layers, the others under API
WITHOUT_PAGE = ("layers/sluice.h",)  # all headers in one
WORDS = {
    "gau": "GAU",
    "rope": "RoPE",
    "csv": "CSV",
    "idx": "IDX",
    "npy": "NPY",
    "kv": "KV",
    "mlp": "MLP",
    "pytorch": "PyTorch",
    "einsum": "einsum",
    "dtype": "Dtype",
    "cpu": "CPU",
    "gla": "GLA",
    "t5": "T5",
}


def rank(path):
    """(topic, place within it) of a header, or None."""
    found = []
    for i, (_, _, _, headers) in enumerate(TOPICS):
        for j, one in enumerate(headers.split()):
            if path == one:
                return i, j
            if path.startswith(one + "/"):
                found.append((i, j))
    return found[0] if found else None


def title_of(path):
    """layers/nn/kv_cache.h → KV cache."""
    words = [WORDS.get(word, word) for word in path.rsplit("/", 1)[-1].removesuffix(".h").split("_")]
    return words[0][0].upper() + " ".join(words)[1:]
