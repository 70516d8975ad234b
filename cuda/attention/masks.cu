// Masks of attention for kernels, and as tensors: the pairs that a mask allows, their number, and dropout's factors.
#include <sluice/core/number/philox.h>
#include <sluice/cuda/attention/mask.cuh>
#include <sluice/cuda/kernels.h>

#include <memory>

namespace sluice::cuda {

DeviceMask::DeviceMask(const AttentionMask& mask, int64_t batch, int64_t heads, int64_t m, int64_t n) : view{} {
  MaskView& v = view;
  v.m = m, v.n = n, v.causal = mask.causal, v.dilation = mask.dilation, v.block = v.block_rows = mask.block;
  const sluice::detail::DistanceRules rules(mask);
  v.banded = rules.banded, v.reach = rules.reach, v.only_span = rules.only_span;
  if (rules.globals) {
    const int64_t positions = std::max<int64_t>(1, std::max(n, m));
    const auto table = std::make_unique<bool[]>(static_cast<std::size_t>(positions));
    for (int64_t g : mask.global)
      if (g < positions) table[static_cast<std::size_t>(g)] = true;
    global_.emplace(static_cast<std::size_t>(positions));
    copy_to_device(global_->get(), table.get(), static_cast<std::size_t>(positions));
    v.global = global_->get();
  }
  v.windowed = mask.window > 0 && !rules.globals;
  const Tensor& keys = mask.keys;
  if (keys.defined()) {
    v.keys = {keys, keys.rank() == 3 ? Shape{batch, heads, n} : Shape{1, batch, n}};
    if (keys.rank() == 2) v.keys.strides[0] = v.keys.strides[1], v.keys.strides[1] = 0;
  }
  v.query_segments = {mask.query_segments, {batch, m}}, v.key_segments = {mask.key_segments, {batch, n}};
  if (const Tensor& b = mask.blocks; b.defined()) {
    const int64_t groups = b.rank() == 2 ? heads : b.dim(-3);
    v.blocks = {b, {batch, groups, b.dim(-2), b.dim(-1)}};
    if (b.rank() == 4) v.block_rows = 1;
    v.block_heads = groups == 0 ? 1 : heads / groups;
  }
  v.dense = {mask.dense, {batch, heads, m, n}};
}

namespace {

/// A warp for each row of y.
__global__ void __launch_bounds__(kWarp) count_kernel(MaskView mask, int64_t heads, int64_t rows, int64_t* y) {
  const int lane = static_cast<int>(threadIdx.x);
  for (int64_t r = blockIdx.x; r < rows; r += gridDim.x) {
    const Span span = mask.keys_of(r % mask.m);
    int64_t count = mask.only_span ? (lane == 0 ? span.end - span.begin : 0) : 0;
    if (!mask.only_span)
      for (int64_t j = span.begin + lane; j < span.end; j += kWarp)
        count += mask.allowed(r / mask.m / heads, r / mask.m % heads, r % mask.m, j);
    count = sum_over_lanes(count);
    if (lane == 0) y[r] = count;
  }
}

template <class T> void keep_mask_as(Tensor& y, DropoutSpec s) {
  T* out = data_of<T>(y);
  const int64_t n = y.dim(-1), per_row = ceil_div(n, 4);
  const detail::Dropping<T> drop(s.p);
  const RandomBlocks words_at = blocks_of("dropout", s.from);
  for_each(n == 0 ? 0 : y.numel() / n * per_row, [=] __device__(int64_t block) {
    const auto words = words_at(static_cast<uint64_t>(block));
    const int64_t first = block % per_row * 4;
    for (int64_t j = first; j < n && j < first + 4; ++j) out[block / per_row * n + j] = drop(words.word[j & 3]);
  });
}

}  // namespace

void visible_pairs(const AttentionMask& mask, int64_t batch, int64_t heads, Tensor& y) {
  const int64_t h = y.dim(1), m = y.dim(2), n = y.dim(3);
  const DeviceMask device(mask, batch, heads, m, n);
  const MaskView view = device.view;
  bool* out = data_of<bool>(y);
  for_each(y.numel(),
           [=] __device__(int64_t i) { out[i] = view.allowed(i / n / m / h, i / n / m % h, i / n % m, i % n); });
}

void visible_count(const AttentionMask& mask, int64_t batch, int64_t heads, int64_t n, Tensor& y) {
  const DeviceMask device(mask, batch, heads, y.dim(2), n);
  launch(count_kernel, grid_of(y.numel()), dim3(kWarp), 0, device.view, y.dim(1), y.numel(), data_of<int64_t>(y));
}

void attention_keep_mask(Tensor& y, DropoutSpec spec) {
  dispatch_float("attention", y.dtype(), [&]<class T>() { keep_mask_as<T>(y, spec); });
}

}  // namespace sluice::cuda
