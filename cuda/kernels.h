// The functions that install.cu installs in the kernel slots, by family. Each has the signature and the contract of its
// slot (ops/kernels.h, core/kernel/kernel.h, ops/optim_kernels.h).
#pragma once

#include <sluice/core/kernel/kernel.h>
#include <sluice/ops/optim_kernels.h>
#include <sluice/ops/kernels.h>
#include <sluice/ops/shape/create.h>

namespace sluice::cuda {

// map_*.cu: the formulas of ops/elementwise/formulas.h
void install_arithmetic();
void install_mathematics();
void install_activations();
void install_layers();

// make.cu
decltype(kernel::copy)::Function copy;
/// x itself if it has the dtype, or is undefined; else a copy.
inline Tensor converted(const Tensor& x, DType dtype) {
  if (!x.defined() || x.dtype() == dtype) return x;
  Tensor y = empty(x.shape(), {dtype, x.device()});
  copy(x, y);
  return y;
}
decltype(kernel::transfer)::Function transfer;
decltype(kernel::random)::Function random;
decltype(kernel::dropout)::Function dropout;
decltype(kernel::fill)::Function fill;
decltype(kernel::ramp)::Function ramp;
decltype(kernel::eye)::Function eye;
decltype(kernel::one_hot)::Function one_hot;
decltype(kernel::causal_mask)::Function causal_mask;
decltype(kernel::zero_triangle)::Function zero_triangle;
decltype(kernel::add_to)::Function add_to;
decltype(kernel::compare)::Function compare;

// reduce.cu
decltype(kernel::reduce)::Function reduce;
decltype(kernel::arg_extreme)::Function arg_extreme;

// cumsum.cu
decltype(kernel::prod)::Function prod;
decltype(kernel::cumsum)::Function cumsum;
decltype(kernel::cumprod)::Function cumprod;
decltype(kernel::cumprod_backward)::Function cumprod_backward;

// order.cu
decltype(kernel::argsort)::Function argsort;

// index.cu
decltype(kernel::gather)::Function gather;
decltype(kernel::scatter_add)::Function scatter_add;
decltype(kernel::scatter)::Function scatter;
decltype(kernel::index_select)::Function index_select;
decltype(kernel::index_add)::Function index_add;

// matmul.cu
decltype(kernel::matmul)::Function matmul;

// rows.cu
decltype(kernel::softmax)::Function softmax;
decltype(kernel::softmax_backward)::Function softmax_backward;
decltype(kernel::norm)::Function norm;
decltype(kernel::norm_backward)::Function norm_backward;
decltype(kernel::cross_entropy_targets)::Function cross_entropy_targets;
decltype(kernel::cross_entropy)::Function cross_entropy;
decltype(kernel::cross_entropy_backward)::Function cross_entropy_backward;

// softmax_columns.cu
decltype(kernel::logsumexp)::Function logsumexp;
decltype(kernel::softmax_columns)::Function softmax_columns;
decltype(kernel::softmax_columns_backward)::Function softmax_columns_backward;

// rope.cu
decltype(kernel::rope_angles)::Function rope_angles;
decltype(kernel::rope)::Function rope;
decltype(kernel::t5_buckets)::Function t5_buckets;

// attention/*.cu
decltype(kernel::attention)::Function attention;
decltype(kernel::attention_backward)::Function attention_backward;
decltype(kernel::visible_pairs)::Function visible_pairs;
decltype(kernel::visible_count)::Function visible_count;
decltype(kernel::attention_keep_mask)::Function attention_keep_mask;

// scan/causal_conv.cu
decltype(kernel::causal_conv)::Function causal_conv;
decltype(kernel::causal_conv_backward)::Function causal_conv_backward;

// scan/linear_scan.cu
decltype(kernel::linear_scan)::Function linear_scan;
// scan/linear_scan_backward.cu
decltype(kernel::linear_scan_bf16_backward)::Function linear_scan_bf16_backward;
// scan/linear_scan_decay.cu
decltype(kernel::linear_scan_decay_backward)::Function linear_scan_decay_backward;

// scan/delta_scan*.cu
decltype(kernel::delta_scan)::Function delta_scan;
decltype(kernel::delta_scan_backward)::Function delta_scan_backward;

// optim.cu
decltype(kernel::sgd)::Function sgd;
decltype(kernel::adam)::Function adam;
decltype(kernel::lamb)::Function lamb;
decltype(kernel::rmsprop)::Function rmsprop;
decltype(kernel::lion)::Function lion;
decltype(kernel::sum_squares)::Function sum_squares;
decltype(kernel::clip_grad)::Function clip_grad;

}  // namespace sluice::cuda
