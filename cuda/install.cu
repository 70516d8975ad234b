// Installs this backend's functions in the kernel slots. Runs when the library is loaded.
#include <sluice/cuda/kernels.h>
#include <sluice/cuda/runtime.h>

namespace sluice::cuda {

namespace {

template <class Slot> void put(Slot& slot, typename Slot::Function* f, Bf16 bf16 = Bf16::widened) {
  slot.install(DeviceKind::cuda, f, bf16);
}

const bool installed = [] {
  install_arithmetic();
  install_mathematics();
  install_activations();
  install_layers();

  put(kernel::copy, &copy, Bf16::native);
  put(kernel::transfer, &transfer, Bf16::native);
  put(kernel::random, &random);
  put(kernel::dropout, &dropout, Bf16::native);
  put(kernel::fill, &fill, Bf16::native);
  put(kernel::ramp, &ramp, Bf16::native);
  put(kernel::eye, &eye, Bf16::native);
  put(kernel::one_hot, &one_hot, Bf16::native);
  put(kernel::causal_mask, &causal_mask);
  put(kernel::zero_triangle, &zero_triangle, Bf16::native);
  put(kernel::add_to, &add_to, Bf16::native);
  put(kernel::compare, &compare, Bf16::native);

  put(kernel::reduce, &reduce, Bf16::native);
  put(kernel::prod, &prod, Bf16::native);
  put(kernel::logsumexp, &logsumexp, Bf16::native);
  put(kernel::arg_extreme, &arg_extreme);
  put(kernel::cumsum, &cumsum, Bf16::native);
  put(kernel::cumprod, &cumprod, Bf16::native);
  put(kernel::cumprod_backward, &cumprod_backward, Bf16::native);
  put(kernel::argsort, &argsort);

  put(kernel::gather, &gather, Bf16::native);
  put(kernel::scatter_add, &scatter_add, Bf16::native);
  put(kernel::scatter, &scatter, Bf16::native);
  put(kernel::index_select, &index_select, Bf16::native);
  put(kernel::index_add, &index_add, Bf16::native);

  put(kernel::matmul, &matmul, Bf16::native);

  put(kernel::softmax, &softmax, Bf16::native);
  put(kernel::softmax_backward, &softmax_backward, Bf16::native);
  put(kernel::softmax_columns, &softmax_columns, Bf16::native);
  put(kernel::softmax_columns_backward, &softmax_columns_backward, Bf16::native);
  put(kernel::norm, &norm, Bf16::native);
  put(kernel::norm_backward, &norm_backward, Bf16::native);
  put(kernel::cross_entropy_targets, &cross_entropy_targets);
  put(kernel::cross_entropy, &cross_entropy, Bf16::native);
  put(kernel::cross_entropy_backward, &cross_entropy_backward, Bf16::native);

  put(kernel::rope_angles, &rope_angles);
  put(kernel::rope, &rope, Bf16::native);
  put(kernel::t5_buckets, &t5_buckets);

  put(kernel::attention, &attention, Bf16::native);
  put(kernel::attention_backward, &attention_backward, Bf16::native);
  put(kernel::visible_pairs, &visible_pairs);
  put(kernel::visible_count, &visible_count);
  put(kernel::attention_keep_mask, &attention_keep_mask);

  put(kernel::causal_conv, &causal_conv, Bf16::native);
  put(kernel::causal_conv_backward, &causal_conv_backward, Bf16::native);
  put(kernel::linear_scan, &linear_scan, Bf16::native);
  put(kernel::linear_scan_bf16_backward, &linear_scan_bf16_backward, Bf16::native);
  put(kernel::linear_scan_decay_backward, &linear_scan_decay_backward);
  put(kernel::delta_scan, &delta_scan, Bf16::native);
  put(kernel::delta_scan_backward, &delta_scan_backward);

  put(kernel::sgd, &sgd, Bf16::native);
  put(kernel::adam, &adam, Bf16::native);
  put(kernel::lamb, &lamb, Bf16::native);
  put(kernel::rmsprop, &rmsprop, Bf16::native);
  put(kernel::lion, &lion, Bf16::native);
  put(kernel::sum_squares, &sum_squares, Bf16::native);
  put(kernel::clip_grad, &clip_grad, Bf16::native);

  sluice::detail::install_backend(DeviceKind::cuda, runtime());
  return true;
}();

}  // namespace
}  // namespace sluice::cuda
