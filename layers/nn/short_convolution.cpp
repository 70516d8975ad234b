#include <sluice/layers/nn/short_convolution.h>

#include <sluice/core/node.h>
#include <sluice/layers/nn/heads.h>
#include <sluice/ops/causal_conv.h>
#include <sluice/ops/create.h>
#include <sluice/ops/elementwise.h>
#include <sluice/ops/view.h>
#include <sluice/parallel/sequence.h>

#include <algorithm>

namespace sluice {

namespace {

/// The `count` rows before a piece of a sequence that is cut over ranks; zeros where there are none.
Tensor rows_before(const Tensor& x, int64_t count) {
  const int64_t first = sequence_piece(x.dim(1)).first, begin = std::max<int64_t>(0, first - count);
  const Tensor rows = sequence_rows(x, 1, {begin, first});
  return pad(rows, 1, count - (first - begin), 0);
}

}  // namespace

ShortConvolution::ShortConvolution(ShortConvolutionOptions o, Rng& rng) : options(o) {
  check_options("short_convolution", o);
  weight = init_weight(o.width, o.dim, o.init, rng, o.dtype);
  if (o.bias) bias = init_vector(o.dim, 0, o.dtype);
}

Tensor ShortConvolution::operator()(const Tensor& given, const Tensor& key_mask) const {
  ModuleScope scope(this, type);
  Tensor x = checked_input("short_convolution", given, options.dim, key_mask);
  if (key_mask.defined()) x = masked_fill(x, unsqueeze(logical_not(key_mask), -1), 0);
  const Tensor before = in_sequence() ? rows_before(x, options.width - 1) : Tensor();
  return activate(options.activation, causal_conv1d(x, weight, bias, before));
}

std::pair<Tensor, ShortConvolution::State> ShortConvolution::step(const Tensor& x, State state) const {
  ModuleScope scope(this, type);
  detail::not_cut("step", "a stream has its tokens to itself; call the layer with a piece of the sequence");
  NoGrad guard;
  const int64_t count = options.width - 1;
  checked_input("short_convolution", x, options.dim);
  const Tensor before = state.recent.defined() ? state.recent : zeros({x.dim(0), count, options.dim}, x.options());
  if (before.shape() != Shape{x.dim(0), count, options.dim})
    fail("short_convolution: a state of ", before, " does not continue with x=", x);
  const Tensor rows = cat({before, x}, 1);
  state.recent = clone(narrow(rows, 1, x.dim(1), count));
  return {activate(options.activation, causal_conv1d(x, weight, bias, before)), std::move(state)};
}

}  // namespace sluice
