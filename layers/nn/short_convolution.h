// A short causal convolution with an activation, as used before the scans of Mamba (Gu & Dao 2023), gated linear
// attention and Qwen3-Next.
#pragma once

#include <sluice/layers/nn/init.h>
#include <sluice/layers/nn/module.h>
#include <sluice/layers/nn/pass.h>
#include <sluice/ops/elementwise/activation.h>

namespace sluice {

struct ShortConvolutionOptions {
  using Layer = struct ShortConvolution;
  int64_t dim;
  int64_t width = 4;  // input tokens of one output row, the row's own token included
  bool bias = false;  // Mamba: true
  Act activation = Act::silu;
  Init init = Init::lecun();
  DType dtype = f32;

  static void describe(auto& o, auto& f) {
    f.required("dim", o.dim, at_least(1), "channels, each convolved on its own");
    f("width", o.width, between(1, 1024), "tokens that a row is made of, itself included");
    f("bias", o.bias, "add b");
    f("activation", o.activation, "act");
    describe_parameters(o, f);
  }
};

/// y_t = act(Σ_j W_j ⊙ x_{t − (width − 1) + j} + b), causal, channel by channel.
struct ShortConvolution {
  static constexpr const char* type = "ShortConvolution";
  ShortConvolutionOptions options{.dim = 0};
  Tensor weight;  // [width, dim]; PyTorch's Conv1d stores its transpose, [dim, 1, width]
  Tensor bias;    // [dim]

  ShortConvolution() = default;
  ShortConvolution(ShortConvolutionOptions o, Rng& rng);
  /// x [batch, n, dim] → the same shape. Padding counts as zeros, and so do the tokens of earlier documents, which are
  /// runs of equal segments. A stream keeps the last width − 1 rows.
  Tensor operator()(const Tensor& x, const Pass& pass = {}) const;
  SLUICE_PARTS(weight, bias);
};

namespace detail {
/// Replaces q, k and v [batch, n, ·] of the call's tokens by what the convolution makes of q | k | v. Nothing happens
/// if it has no weight.
void convolve(const ShortConvolution& conv, const Call& call, Tensor& q, Tensor& k, Tensor& v);
}  // namespace detail

}  // namespace sluice
