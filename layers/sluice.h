// Everything, in one include.
#pragma once

#include <sluice/core/allocator.h>
#include <sluice/core/npy.h>
#include <sluice/core/parallel.h>
#include <sluice/core/print.h>
#include <sluice/core/random.h>
#include <sluice/core/safetensors.h>
#include <sluice/core/tensor.h>

#include <sluice/ops/activation.h>
#include <sluice/ops/attention.h>
#include <sluice/ops/attention_reference.h>
#include <sluice/ops/attention_weights.h>
#include <sluice/ops/create.h>
#include <sluice/ops/dropout.h>
#include <sluice/ops/einsum.h>
#include <sluice/ops/elementwise.h>
#include <sluice/ops/gather.h>
#include <sluice/ops/linear_scan.h>
#include <sluice/ops/loss.h>
#include <sluice/ops/map.h>
#include <sluice/ops/matmul.h>
#include <sluice/ops/norm.h>
#include <sluice/ops/rearrange.h>
#include <sluice/ops/reduce.h>
#include <sluice/ops/relative_bias.h>
#include <sluice/ops/rope.h>
#include <sluice/ops/scan.h>
#include <sluice/ops/softmax.h>
#include <sluice/ops/sort.h>
#include <sluice/ops/view.h>

#include <sluice/autograd/anomaly.h>
#include <sluice/autograd/dot.h>
#include <sluice/autograd/engine.h>
#include <sluice/autograd/function.h>
#include <sluice/autograd/gradcheck.h>

#include <sluice/layers/gau.h>
#include <sluice/layers/gau_attention.h>
#include <sluice/layers/init.h>
#include <sluice/layers/linear.h>
#include <sluice/layers/mlp.h>
#include <sluice/layers/module.h>
#include <sluice/layers/norm.h>
#include <sluice/layers/optim.h>
#include <sluice/layers/schedule.h>
#include <sluice/layers/training.h>
#include <sluice/layers/tutorial_gau.h>
