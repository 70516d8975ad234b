// Everything, in one include.
#pragma once

#include <sluice/core/allocator.h>
#include <sluice/core/parallel.h>
#include <sluice/core/print.h>
#include <sluice/core/random.h>
#include <sluice/core/safetensors.h>
#include <sluice/core/tensor.h>

#include <sluice/ops/activation.h>
#include <sluice/ops/attention/attention.h>
#include <sluice/ops/attention/attention_reference.h>
#include <sluice/ops/attention/relative_bias.h>
#include <sluice/ops/attention/top_k.h>
#include <sluice/ops/create.h>
#include <sluice/ops/dropout.h>
#include <sluice/ops/einsum.h>
#include <sluice/ops/elementwise.h>
#include <sluice/ops/gather.h>
#include <sluice/ops/gemm/precision.h>
#include <sluice/ops/loss.h>
#include <sluice/ops/machine.h>
#include <sluice/ops/map.h>
#include <sluice/ops/matmul.h>
#include <sluice/ops/norm.h>
#include <sluice/ops/rearrange.h>
#include <sluice/ops/reduce.h>
#include <sluice/ops/rope.h>
#include <sluice/ops/scan/linear_scan.h>
#include <sluice/ops/scan/scan.h>
#include <sluice/ops/softmax.h>
#include <sluice/ops/sort.h>
#include <sluice/ops/view.h>

#include <sluice/autograd/anomaly.h>
#include <sluice/autograd/dot.h>
#include <sluice/autograd/engine.h>
#include <sluice/autograd/function.h>
#include <sluice/autograd/gradcheck.h>
#include <sluice/autograd/profile.h>

#include <sluice/parallel/collectives.h>
#include <sluice/parallel/communicator.h>
#include <sluice/parallel/sequence.h>
#include <sluice/parallel/sequence_attention.h>

#include <sluice/layers/gau/gau_attention.h>
#include <sluice/layers/gau/gau_moments.h>
#include <sluice/layers/gau/mixed_chunk.h>
#include <sluice/layers/heads/attention_conversion.h>
#include <sluice/layers/heads/attention_gate.h>
#include <sluice/layers/heads/sinkhorn.h>
#include <sluice/layers/heads/sparse_attention.h>
#include <sluice/layers/heads/sparse_masks.h>
#include <sluice/layers/nn/init.h>
#include <sluice/layers/nn/kv_cache.h>
#include <sluice/layers/nn/module.h>
#include <sluice/layers/report/cost.h>
#include <sluice/layers/report/metrics.h>
#include <sluice/layers/report/summary.h>
#include <sluice/layers/table.h>
#include <sluice/layers/train/data_parallel.h>
#include <sluice/layers/train/optim.h>
#include <sluice/layers/train/schedule.h>
#include <sluice/layers/train/training.h>
