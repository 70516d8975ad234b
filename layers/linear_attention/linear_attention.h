// Linear attention: weights are φ(q_i)·φ(k_j) instead of e^{q·k}, so that sums over keys and values can be computed
// first (Katharopoulos et al. 2020, "Transformers are RNNs").
//
//   U = Σ_j φ(k_j)ᵀ v_j  [m, dv]     Z = Σ_j φ(k_j)  [m]     o_i = φ(q_i)·U / (φ(q_i)·Z + eps)
//
// Causal sums run over j <= i. A decay multiplies their terms by γ^{i−j} or any e^{G_i − G_j}. Time: non-causal
// O(n·m·dv); causal, in chunks of C, O(n·C·(m + dv) + n·m·dv); in a stream O(m·dv) per token, with a state of
// m·dv + m numbers per head.
#pragma once

#include <sluice/layers/linear_attention/feature_map.h>
#include <sluice/layers/linear_attention/linear_mixer.h>
#include <sluice/layers/nn/norm.h>

#include <optional>
#include <vector>

namespace sluice {

enum class LinearDirection {
  full,                // all keys; no decay
  causal,              // keys j <= i
  bidirectional,       // forward + backward − diagonal, for numerator and denominator separately; equals `full`, and
                       // with a decay the weights have the factor γ^{|i−j|}
  two_direction_mean,  // ½ (causal + anticausal), each normalised on its own; differs from `full`
};
inline constexpr const char* kLinearDirectionMeaning =
    "full: every key; causal: j <= i; bidirectional: forward + backward - diagonal, then divided (equals full; with "
    "decay gamma^|i-j|); two_direction_mean: mean of the two normalised directions";
constexpr const char* choices(LinearDirection) { return "full causal bidirectional two_direction_mean"; }
enum class LinearNormalize {
  sum,   // divide by φ(q_i)·Z + eps
  none,  // φ(q_i)·U; usually followed by a norm
};
constexpr const char* choices(LinearNormalize) { return "sum none"; }

/// Options of linear_attention().
struct LinearAttentionForm {
  LinearDirection direction = LinearDirection::full;  // which keys a query sees
  LinearNormalize normalize = LinearNormalize::sum;   // whether numerators are divided by a denominator
  double eps = 1e-6;                                  // of the denominator
  double scale = 1;                                   // of φ(q)
  /// Logarithms of the decay factor of each step, <= 0. Must broadcast to [batch, heads, n] ([heads, 1]: one for each
  /// head), or, with four dims, to [batch, heads, n, m] for a decay of each feature.
  Tensor log_decay = {};
  /// Tokens per step of the scan; changes rounding only.
  int64_t chunk = 64;
  /// bool [batch, n]: false marks padding. A padded token has no key, no value and no decay; its k and v may hold NaN.
  Tensor key_mask = {};
  /// bool [batch, n]: true where a document begins. Tokens of a document do not see those of other documents.
  Tensor starts = {};
  /// Rotates φ(q) and φ(k) in the numerator only, so that weights depend on relative positions and the denominator
  /// stays positive (Su et al. 2021, "RoFormer", eq. 19).
  std::optional<RopeOptions> rope = std::nullopt;
};

/// φ(q) [batch, heads, n_q, m], φ(k) [batch, heads, n, m], v [batch, heads, n, dv] → [batch, heads, n_q, dv].
/// n_q must equal n unless the direction is `full`. A denominator that is exactly 0 counts as 1: a query without keys
/// gives 0. f32, f64 and bf16; gradients of any order.
Tensor linear_attention(const Tensor& phi_q, const Tensor& phi_k, const Tensor& v,
                        const LinearAttentionForm& form = {});

enum class LinearDecay {
  none,
  fixed,    // γ of each head is given
  learned,  // γ = σ(z) with a parameter z for each head
};
constexpr const char* choices(LinearDecay) { return "none fixed learned"; }
enum class LinearRope {
  none,
  inputs,    // on q and k, before the feature map; positions run on through documents
  features,  // on φ(q) and φ(k), in the numerator only; the feature map's width must be even
};
constexpr const char* choices(LinearRope) { return "none inputs features"; }

namespace detail {
/// The option that LinearAttention and Retention describe alike.
void describe_gamma(auto& o, auto& f) {
  f("gamma", o.gamma, OptionRange{.low = 0, .high = 1, .without_low = true},
    "of each head, in (0, 1]; empty: 1 - 2^(-5-h)");
}
}  // namespace detail

struct LinearAttentionOptions {
  using Layer = struct LinearAttention;
  int64_t dim;
  int64_t heads = 8;
  int64_t kv_heads = 0;   // 0 means heads; head h reads KV head ⌊h/(heads/kv_heads)⌋
  int64_t head_dim = 0;   // of queries and keys; 0 means dim/heads
  int64_t value_dim = 0;  // of a head's values; 0 means head_dim
  /// The layer sets `dim` and `dtype`. The default of favor's input_scale is head_dim^{−1/4}.
  FeatureMapOptions feature_map = {};
  bool tie_feature_map = true;  // one map for queries and keys; random maps must be tied

  LinearDirection direction = LinearDirection::full;
  LinearNormalize normalize = LinearNormalize::sum;
  double eps = 1e-6;
  double scale = 1;  // of φ(q); without a normaliser it scales the output
  LinearDecay decay = LinearDecay::none;
  std::vector<double> gamma = {};  // of each head, in (0, 1]; initial values if learned; empty: retention_gammas(heads)
  int64_t chunk = 64;

  LinearRope use_rope = LinearRope::none;
  RopeOptions rope = {};
  int64_t short_conv = 0;                 // > 0: a convolution of q, k, v over so many tokens
  NormKind output_norm = NormKind::none;  // of each head's output, with one weight for all heads
  double norm_eps = 1e-5;
  bool output_gate = false;  // factor swish(x·Wg), after the norm
  bool qkv_bias = false, out_bias = false;
  double dropout = 0;  // on the layer's output
  Init init = Init::xavier();
  DType dtype = f32;

  static void describe(auto& o, auto& f) {
    detail::describe_sizes(o, f);
    f.nested("feature_map_", o.feature_map);
    f.without({"feature_map_dim", "feature_map_dtype"});  // set by the layer
    f("tie_feature_map", o.tie_feature_map, "one map for queries and keys");
    f("direction", o.direction, kLinearDirectionMeaning);
    f("normalize", o.normalize, "sum: divide by phi(q) Z + eps");
    f("eps", o.eps, at_least(0), "of the denominator");
    f("scale", o.scale, any_number(), "of phi(q)");
    f("decay", o.decay, "gamma of each head: none, as given, or sigmoid of a parameter");
    detail::describe_gamma(o, f);
    f("use_rope", o.use_rope, "on q and k before phi, or on phi(q) and phi(k) in the numerator");
    f.nested("rope_", o.rope);
    f("output_norm", o.output_norm, "of each head's output, weights shared by heads");
    f("output_gate", o.output_gate, "then times swish(x Wg)");
    f("qkv_bias", o.qkv_bias, "biases of Wq, Wk, Wv");
    f("out_bias", o.out_bias, "bias of Wo");
    detail::describe_rest(o, f);
  }
};

/// RetNet's γ_h = 1 − 2^{−5−h} (Sun et al. 2023). Throws ValueError unless heads is in [0, 2^20].
std::vector<double> retention_gammas(int64_t heads);

namespace detail {
/// linear_attention() of a layer's tokens, with the key_mask of the call. In a stream it continues the stream's sums.
Tensor linear_attention(Call& call, const Tensor& phi_q, const Tensor& phi_k, const Tensor& v,
                        LinearAttentionForm form);
/// log γ of each head, [heads]. Throws ValueError unless gamma has `heads` values in (0, 1].
Tensor log_gammas(const char* op, const std::vector<double>& gamma, int64_t heads, DType dtype);
}  // namespace detail

/// Multi-head linear attention: y = (concat_h(norm(attention_h)) [⊙ swish(x·Wg)])·Wo. No residual.
struct LinearAttention : LinearMixer {
  static constexpr const char* type = "LinearAttention";
  static constexpr bool keeps_f32(std::string_view part) { return part == "log_gamma" || part == "gamma_logit"; }

  LinearAttentionOptions options{};
  FeatureMap feature_map;
  std::optional<FeatureMap> key_feature_map;  // empty if tied
  Tensor log_gamma;                           // [heads], with fixed decay; a buffer of dtype exact(dtype)
  Tensor gamma_logit;                         // z [heads] of γ = σ(z), with learned decay; of dtype exact(dtype)
  Norm norm;

  LinearAttention() = default;
  LinearAttention(LinearAttentionOptions o, Rng& rng);

  /// x [batch, n, dim] → the same shape. Tokens see those of their document, a run of equal segments. A stream of any
  /// length keeps h·(m·dv + m) numbers per sequence (h·m·dv without normaliser), plus those of a short convolution.
  /// Throws ValueError in a stream unless causal.
  Tensor operator()(const Tensor& x, const Pass& pass = {}) const;
  /// log γ as [1, heads, 1], f32 for a layer of bf16; undefined without decay.
  Tensor log_decay() const;

  SLUICE_PARTS(heads, feature_map, key_feature_map, log_gamma, gamma_logit, conv, norm, output_gate);

 private:
  HeadsOptions head_options() const;
};

}  // namespace sluice
