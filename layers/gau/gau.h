// Gated Attention Unit (Hua et al. 2022, "Transformer Quality in Linear Time", Fig. 2).
//
//   x̂ = norm(x)
//   U = φ(x̂·Wu), V = φ(x̂·Wv)  [n, e]        Z = φ(x̂·Wz)  [n, s]
//   Q = γ_q ⊙ Z + β_q, K = γ_k ⊙ Z + β_k     (option: a norm of each head; then RoPE on both)
//   A = act(Q·Kᵀ, b, mask, L)                 (layers/gau/gau_attention.h)
//   y = x + (U ⊙ A·V)·Wo
#pragma once

#include <sluice/layers/gau/gau_attention.h>
#include <sluice/layers/nn/linear.h>
#include <sluice/layers/nn/norm.h>
#include <sluice/layers/nn/pass.h>
#include <sluice/ops/attention/relative_bias.h>
#include <sluice/ops/elementwise/activation.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/shape/view.h>

#include <cmath>
#include <optional>

namespace sluice {

enum class GauBias {
  none,      // RoPE alone suffices (Su 2022)
  toeplitz,  // b_ij = w[max_length − 1 + j − i] (the paper, n <= 512)
  rope,      // b = rope(a)·rope(b)ᵀ for two learned vectors (the paper, n > 512)
  t5,        // T5 buckets, times √d in Gau and √s in Flash (lucidrains)
};
constexpr const char* choices(GauBias) { return "none toeplitz rope t5"; }
using GauPlacement = NormPlacement;  // pre: FLASH; post: GAU-α

struct GauOptions {
  using Layer = struct Gau;
  int64_t dim;
  int64_t expansion = 0;  // e; 0 means 2·dim
  int64_t key_dim = 128;  // s
  int64_t heads = 1;      // Z and V are split into this many groups
  Act activation = Act::silu;
  bool linear_bias = true;  // biases of the dense maps, initially 0

  GauKind kind = GauKind::su;
  bool causal = false;
  int64_t window = 0;  // see AttentionMask; includes a query's own position; 0 means no window
  /// Default: visible if causal, otherwise n.
  std::optional<GauLength> length = std::nullopt;
  int64_t constant_length = 512;
  int64_t min_length = 1;  // see GauAttentionOptions
  int64_t top_k = 0;

  /// Q and K of each head are normalised before RoPE. Q and K have one weight [key_dim/heads] each, for all heads.
  bool qk_norm = false;
  NormKind qk_norm_kind = NormKind::rms;
  double qk_norm_eps = 1e-6;

  bool use_rope = true;
  RopeOptions rope = {};
  GauBias bias = GauBias::none;
  int64_t max_length = 512;  // of the Toeplitz table
  T5BucketOptions t5 = {};   // the layer sets t5.causal

  NormKind norm = NormKind::layer;
  double norm_eps = 1e-5;
  NormPlacement placement = NormPlacement::pre;
  bool residual = true;       // false: F(norm(x)); post: norm(F(x)) (lucidrains' add_residual = False)
  double residual_scale = 1;  // α of the post-norm form
  double attention_dropout = 0, dropout = 0;

  Init init = Init::xavier();
  /// If > 0, initial γ is N(0, γ_std²) instead of 1. The paper's 0.02 needs a Toeplitz bias: without a bias the layer
  /// is initially almost the identity, with vanishing gradients. With γ = 1 queries initially equal keys. Tasks that
  /// look something up may need N(0, 1) to break this symmetry (examples/07_associative_recall.cpp).
  double gamma_std = 0;
  DType dtype = f32;

  static void describe(auto& o, auto& f) {
    f.required("dim", o.dim, at_least(1), "width d");
    f("expansion", o.expansion, at_least(0), "width e of U and V; 0: 2*dim");
    f("key_dim", o.key_dim, at_least(1), "width s of Q and K");
    f("heads", o.heads, at_least(1), "Z and V are split into this many groups");
    f("activation", o.activation, "act of U, V and Z");
    f("linear_bias", o.linear_bias, "biases of the dense maps");
    GauAttentionOptions::describe_weights(o, f);
    f("causal", o.causal, "token i sees tokens j <= i");
    f("window", o.window, at_least(0), "keys seen, a query's own position included; 0: all");
    f("qk_norm", o.qk_norm, "a norm of each head of Q and K, before RoPE");
    f("qk_norm_kind", o.qk_norm_kind, "which");
    f("qk_norm_eps", o.qk_norm_eps, at_least(0), "its eps");
    f("use_rope", o.use_rope, "rotate Q and K");
    f.nested("rope_", o.rope);
    f("bias", o.bias, "b: none, a Toeplitz table, built by RoPE, or T5 buckets times sqrt(dim)");
    f("max_length", o.max_length, at_least(1), "positions of the Toeplitz table");
    f.nested("", o.t5);
    f("norm", o.norm, "which norm, before or after the branch (placement)");
    f("norm_eps", o.norm_eps, at_least(0), "of the norm");
    f("placement", o.placement, "pre: x + F(norm(x)); post: norm(residual_scale*x + F(x))");
    f("residual", o.residual, "false: without x +");
    f("residual_scale", o.residual_scale, any_number(), "DeepNorm's alpha, with placement post");
    f.training("attention_dropout", o.attention_dropout, probability(), "on A");
    f.training("dropout", o.dropout, probability(), "on the branch");
    f.training("gamma_std", o.gamma_std, at_least(0), "initial gamma is N(0, gamma_std^2); 0: ones");
    describe_parameters(o, f);
  }
};

/// The options of GAU-α (Su 2022): RMS post-norm without parameters, no biases, softmax_plus, interleaved RoPE, and
/// DeepNorm-style initial values for `layers` layers.
GauOptions gau_alpha_options(int64_t dim, int64_t layers, double dropout = 0.1);

namespace detail {
/// Maps of these widths side by side, for one product with x. Each is drawn as if it stood alone.
Linear fused_linear(int64_t in, const std::vector<int64_t>& widths, bool bias, Init init, DType dtype, Rng& rng);
/// γ ⊙ z + β with row i of gamma and beta [rows, s].
Tensor scale_offset(const Tensor& z, const Tensor& gamma, const Tensor& beta, int64_t i);
/// The additive bias by distance of a layer with a GauBias (Gau, Flash), for m queries and n keys aligned at the end:
/// [1, n + m − 1]; undefined without a bias. `width` is the d of T5's factor √d.
Tensor relative_bias(const auto& layer, int64_t m, int64_t n, int64_t width) {
  switch (layer.options.bias) {
    case GauBias::none: return {};
    case GauBias::toeplitz: return relative_toeplitz(layer.toeplitz_bias, m, n);
    case GauBias::rope:
      return relative_rope(select(layer.rope_bias, 0, 0), select(layer.rope_bias, 0, 1), m, n, layer.options.rope);
    case GauBias::t5: return relative_t5(layer.t5_bias, m, n, layer.options.t5) * std::sqrt(static_cast<double>(width));
  }
  return {};
}
/// Draws what Gau and Flash share, for a layer with checked options: norm, maps, γ and β of `rows` rows, and the bias.
/// Its Toeplitz table is for `length` positions, its RoPE turns `width` channels.
void draw_gau(auto& layer, int64_t rows, int64_t length, int64_t width, Rng& rng) {
  const auto& o = layer.options;
  layer.norm = Norm({o.dim, o.norm, o.norm_eps, o.dtype});
  layer.out = Linear({o.expansion, o.dim, o.linear_bias, o.init, o.dtype}, rng);
  layer.in = fused_linear(o.dim, {o.expansion, o.expansion, o.key_dim}, o.linear_bias, o.init, o.dtype, rng);
  const auto trained = [&](const Shape& shape, double mean) {
    return full(shape, mean, initial(o.dtype)).requires_grad_();
  };
  const Shape scales{rows, o.key_dim};
  layer.gamma = o.gamma_std > 0 ? init_normal(scales, o.gamma_std, rng, o.dtype) : trained(scales, 1);
  layer.beta = trained(scales, 0);
  if (o.bias == GauBias::toeplitz) layer.toeplitz_bias = init_normal({2 * length - 1}, 0.02, rng, o.dtype);
  if (o.bias == GauBias::rope) layer.rope_bias = init_normal({2, width}, 0.02, rng, o.dtype);
  if (o.bias == GauBias::t5) layer.t5_bias = init_normal({o.t5.buckets, 1}, 0.02, rng, o.dtype);
}
}  // namespace detail

struct Gau {
  static constexpr const char* type = "Gau";

  GauOptions options{};
  Norm norm;
  Norm q_norm, k_norm;
  Linear in;             // dim → e (U) | e (V) | s (Z)
  Linear out;            // e → dim
  Tensor gamma, beta;    // [2, s]: rows for q, k
  Tensor toeplitz_bias;  // [2·max_length − 1]
  Tensor rope_bias;      // [2, s/heads]
  Tensor t5_bias;        // [buckets, 1]

  Gau() = default;
  Gau(GauOptions o, Rng& rng);

  /// x [batch, n, dim] → the same shape. A stream keeps keys (after RoPE) and values, s + e numbers per token; with a
  /// window those of the last `window` tokens. Throws ValueError in a stream unless causal with length visible or
  /// constant.
  Tensor operator()(const Tensor& x, const Pass& pass = {}) const;

  /// detail::relative_bias(); undefined also if m or n is 0.
  Tensor relative_bias(int64_t m, int64_t n) const;

  SLUICE_PARTS(norm, in, out, gamma, beta, q_norm, k_norm, toeplitz_bias, rope_bias, t5_bias);

 private:
  struct Projected {
    Tensor gate, q, k, v;  // gate [batch, n, e], U = φ(gate); q, k, v [batch, heads, n, ·]
  };
  Projected project(const Tensor& x, int64_t position) const;
  Tensor finish(const Tensor& x, const Tensor& gate, const Tensor& attended, Rng* rng) const;
};

struct CrossGauOptions {
  using Layer = struct CrossGau;
  int64_t dim;
  int64_t context_dim = 0;  // 0 means dim
  int64_t expansion = 0;    // 0 means 2·dim
  int64_t key_dim = 128;
  Act activation = Act::silu;
  GauKind kind = GauKind::su;
  int64_t min_length = 1;  // see GauAttentionOptions
  NormKind norm = NormKind::layer;
  double norm_eps = 1e-5;
  double attention_dropout = 0, dropout = 0;
  Init init = Init::xavier();
  DType dtype = f32;

  static void describe(auto& o, auto& f) {
    f.required("dim", o.dim, at_least(1), "width of x");
    f("context_dim", o.context_dim, at_least(0), "width of the context; 0: dim");
    f("expansion", o.expansion, at_least(0), "width e; 0: 2*dim");
    f("key_dim", o.key_dim, at_least(1), "width s");
    f("activation", o.activation, "act");
    GauAttentionOptions::describe_kind(o, f);
    f("norm", o.norm, "of x");
    f("norm_eps", o.norm_eps, at_least(0), "of the norm");
    f.training("attention_dropout", o.attention_dropout, probability(), "on A");
    f.training("dropout", o.dropout, probability(), "on the branch");
    describe_parameters(o, f);
  }
};

/// GAU across two sequences (bert4keras' self_attention = False): y = x + (U ⊙ A·V)·Wo. U and Q come from x, K and V
/// from the context. Q and K have separate dense maps, without scale and offset.
struct CrossGau {
  static constexpr const char* type = "CrossGau";
  static constexpr bool adds_input = true;  // the layer is a whole block, with its own residual
  CrossGauOptions options{};
  Norm norm;
  Linear uq, key, value, out;

  CrossGau() = default;
  CrossGau(CrossGauOptions o, Rng& rng);
  /// x [batch, n, dim] → the same shape, with the pass's context [batch, k, context_dim]. A stream keeps s + e numbers
  /// for each token of the context.
  Tensor operator()(const Tensor& x, const Pass& pass = {}) const;
  SLUICE_PARTS(norm, uq, key, value, out);
};

}  // namespace sluice
