// The recurrent block of Griffin and Hawk (De et al. 2024, "Griffin: Mixing Gated Linear Recurrences with Local
// Attention for Efficient Language Models", §2.3–2.4; RecurrentGemma) around the real-gated linear recurrent unit: each
// channel is a state of its own, which forgets as much as a gate says.
//
//   x ← conv(u·W_in + b)                            causal, over the last short_conv tokens; u is the layer's input
//   r_t = σ(x_t·W_r + b_r)   i_t = σ(x_t·W_i + b_i)  the maps are `heads` blocks along the diagonal
//   log a_t = −8·r_t·softplus(Λ)                    Λ [inner]
//   h_t = a_t ⊙ h_{t−1} + √(1 − a_t²) ⊙ i_t ⊙ x_t   a_t is 0 at the first token of the text and of each document
//   out = (h ⊙ gelu(u·W_g + b))·W_out + b           gelu's tanh approximation
//
// It is linear_scan() with a state of one row for each block of channels, and a decay by channel of the value.
#pragma once

#include <sluice/layers/nn/linear.h>
#include <sluice/layers/nn/short_convolution.h>

namespace sluice {

struct RgLruOptions {
  using Layer = struct RgLru;
  int64_t dim;
  int64_t inner = 0;       // channels of the state; 0 means dim
  int64_t heads = 1;       // blocks of W_r and W_i
  int64_t short_conv = 4;  // 0: no convolution
  bool bias = true;        // of W_in, W_g, W_out and the convolution
  Init init = Init::lecun();
  DType dtype = f32;

  static void describe(auto& o, auto& f) {
    f.required("dim", o.dim, at_least(1), "width d");
    f("inner", o.inner, at_least(0), "channels of the state; 0: dim");
    f("heads", o.heads, at_least(1), "blocks of the maps of both gates");
    f("short_conv", o.short_conv, between(0, 1024), "tokens of the convolution of x; 0: none");
    f("bias", o.bias, "of the maps in and out, and of the convolution");
    describe_parameters(o, f);
  }
};

/// Causal, with no residual. Initially e^{−softplus(Λ)} is the root of a number uniform on [0.9², 0.999²], and the
/// gates' biases are 0.
struct RgLru {
  static constexpr const char* type = "RgLru";
  static constexpr bool keeps_f32(std::string_view part) { return part == "lambda"; }
  RgLruOptions options{};
  Linear in, gate, out;               // W_in, W_g, W_out
  ShortConvolution conv;              // without an activation
  Tensor forget_weight, forget_bias;  // W_r [heads, inner/heads, inner/heads], input first; b_r [heads, inner/heads]
  Tensor input_weight, input_bias;    // W_i, b_i
  Tensor lambda;                      // [inner], of dtype exact(dtype)

  RgLru() = default;
  /// Throws ValueError unless `heads` divides the channels.
  RgLru(RgLruOptions o, Rng& rng);

  /// x [batch, n, dim] → the same shape. Padding changes no state. A document, a run of equal segments, begins with an
  /// empty state. A stream keeps `inner` numbers a sequence, those of the convolution, and how many tokens were real.
  Tensor operator()(const Tensor& x, const Pass& pass = {}) const;

  SLUICE_PARTS(in, gate, conv, forget_weight, forget_bias, input_weight, input_bias, lambda, out);

 private:
  /// x·W + b by blocks, [batch, n, inner] → [batch, heads, n, inner/heads].
  Tensor by_blocks(const Tensor& x, const Tensor& weight, const Tensor& bias) const;
};

}  // namespace sluice
