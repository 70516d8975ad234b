// The gated short convolution of LFM2 (Liquid AI 2025): a mixer that sees the last few tokens only.
//
//   [B | C | x] = u·W_in         u is the layer's input
//   y = (C ⊙ conv(B ⊙ x))·W_out  conv: causal, over `width` tokens, channel by channel, without an activation
#pragma once

#include <sluice/layers/nn/linear.h>
#include <sluice/layers/nn/short_convolution.h>

namespace sluice {

struct GatedShortConvolutionOptions {
  using Layer = struct GatedShortConvolution;
  int64_t dim;
  int64_t width = 3;  // input tokens of one output row, the row's own token included
  bool bias = false;  // of both maps and of the convolution
  Init init = Init::lecun();
  DType dtype = f32;

  static void describe(auto& o, auto& f) {
    f.required("dim", o.dim, at_least(1), "width d");
    f("width", o.width, between(1, 1024), "tokens that a row is made of, itself included");
    f("bias", o.bias, "biases of both maps and of the convolution");
    describe_parameters(o, f);
  }
};

/// Causal. No residual.
struct GatedShortConvolution {
  static constexpr const char* type = "GatedShortConvolution";
  GatedShortConvolutionOptions options{};
  Linear in, out;         // W_in, W_out
  ShortConvolution conv;  // over the channels of B ⊙ x

  GatedShortConvolution() = default;
  GatedShortConvolution(GatedShortConvolutionOptions o, Rng& rng);
  /// x [batch, n, dim] → the same shape. The convolution sees zeros in place of padding and of tokens of earlier
  /// documents. A document is a run of equal segments. A stream keeps (width − 1)·dim numbers a sequence.
  Tensor operator()(const Tensor& x, const Pass& pass = {}) const;
  SLUICE_PARTS(in, conv, out);
};

}  // namespace sluice
