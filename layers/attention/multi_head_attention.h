// Softmax attention in its published forms: multi-head (Vaswani et al. 2017), multi-query (Shazeer 2019) and
// grouped-query (Ainslie et al. 2023), with windows, relative positions, sinks and the gates of Qiu et al. 2025.
//
//   x̂ = norm(x)
//   Q = x̂·Wq, K = c·Wk, V = c·Wv           c = x̂, or a context (cross attention); within ±l (an option)
//   K, V ← mixed with those of the token before (an option); V ← norm of each head (an option)
//   Q, K, V ← gates G4, G3, G2              per channel or per head, from x̂ (or Q) and c
//   Q, K ← norm of each head, or of all heads together, then RoPE, or RoPE first; Q also grows with its position (an
//          option)
//   Y = softmax(cap(Q·Kᵀ/√dk) + bias) V     (ops/attention/attention.h: O(n) memory)
//   Y ← norm of each head (an option), gate G1;   O = concat(Y)·Wo;   O ← gate G5
//   y = x + dropout(norm'(O))               residual and norm' (sandwich) are options
#pragma once

#include <sluice/layers/attention/attention_gate.h>
#include <sluice/layers/attention/forget_gate.h>
#include <sluice/layers/attention/sparse_attention.h>
#include <sluice/layers/nn/heads.h>
#include <sluice/layers/nn/pass.h>
#include <sluice/layers/nn/norm.h>
#include <sluice/ops/attention/attention.h>

#include <functional>
#include <optional>
#include <vector>

namespace sluice {

enum class PositionBias {
  none,
  t5,        // a learned number for each T5 bucket and head
  toeplitz,  // a learned number for each distance and head, in a table for max_length
  alibi,     // −slope_h · distance; not learned
};
constexpr const char* choices(PositionBias) { return "none t5 toeplitz alibi"; }
enum class AttentionSink {
  none,
  off_by_one,  // e^s/(1 + Σ e^s)
  learned,     // e^s/(e^sink_h + Σ e^s)
};
constexpr const char* choices(AttentionSink) { return "none off_by_one learned"; }

/// Replacements of a gate at G1 (Qiu et al. 2025). They separate the two effects of a gate: they are nonlinearities
/// between W_V and W_O without input-dependent sparsity. The norm may also precede a gate (Muse Spark).
enum class SdpaAblationKind {
  none,
  head_norm,  // a norm of each head's output, of `ablation_norm`; RMSNorm is the paper's "SDPA GroupNorm"
  silu,       // SiLU of the SDPA output
};
constexpr const char* choices(SdpaAblationKind) { return "none head_norm silu"; }

enum class QkNormOver {
  shared,    // each head on its own, with one weight [head_dim] for all heads (Qwen3, ViT-22B)
  per_head,  // each head on its own, with a weight for each head: [heads·head_dim] (Command R+)
  width,     // all heads together, with a weight [heads·head_dim] (OLMo 2)
};
constexpr const char* choices(QkNormOver) { return "shared per_head width"; }

struct MultiHeadAttentionOptions {
  using Layer = struct MultiHeadAttention;
  HeadsOptions heads;

  /// Rules of AttentionMask. `window` is a number of keys, a query's own position included; 0 means all.
  int64_t window = 0, dilation = 1;
  std::vector<int64_t> global = {};  // in addition to the positions of the pass
  /// The rows of global positions are replaced by rows computed with Wq_g, Wk_g and Wv_g over all keys, or over keys
  /// j <= i if causal (Longformer). Wq_g, Wk_g and Wv_g are initially copies of Wq, Wk and Wv.
  bool separate_global_projections = false;

  /// c > 0: a token sees only those of its own chunk of c tokens, of which the first begins behind the padding before a
  /// text (Llama 4). Such a layer takes no segments.
  int64_t chunk_size = 0;
  bool tied_values = false;   // V is x̂·Wk, before norms and RoPE, as wide as K (Gemma 4); Wv is absent
  bool v_norm = false;        // RMSNorm of each head of V, without weights, with qk_norm_eps (Gemma 4)
  double qkv_limit = 0;       // l: Q, K and V lie within ±l (OLMo, DBRX); 0: anywhere
  bool qk_norm = false;       // norm of Q and K, before RoPE
  bool qk_norm_late = false;  // behind RoPE (HunYuan)
  NormKind qk_norm_kind = NormKind::rms;
  QkNormOver qk_norm_over = QkNormOver::shared;
  double qk_norm_eps = 1e-6;
  std::optional<double> scale = std::nullopt;  // of the scores; default 1/√dk
  double softcap = 0;                          // see AttentionOptions (Gemma 2: 50)
  /// See forget_gate.h. With it, and with kv_shift, a document is a run of equal segments.
  ForgetGateOptions forget = {};
  /// k_t ← α_t k_{t−1} + (1 − α_t) k_t with α = σ(x̂·W) for each KV head, and v likewise (Lin et al. 2025).
  bool kv_shift = false;
  QueryGrowth growth = {};  // of self attention
  PositionBias position_bias = PositionBias::none;
  T5BucketOptions t5 = {};   // the layer sets t5.causal
  int64_t max_length = 512;  // of the Toeplitz table
  AttentionSink sink = AttentionSink::none;

  NormKind norm = NormKind::none;  // pre-norm
  double norm_eps = 1e-5;
  bool sandwich_norm = false;  // a second norm, on the output before the residual

  std::vector<AttentionGateOptions> gates = {};  // gates of one place apply in this order
  SdpaAblationKind ablation = SdpaAblationKind::none;
  NormKind ablation_norm = NormKind::rms;  // of head_norm: one weight [value_dim] for all heads, or none
  bool ablation_per_head = false;          // its weights are [heads·value_dim]
  double ablation_eps = 1e-6;

  static void describe(auto& o, auto& f) {
    f.nested("", o.heads);
    f("window", o.window, at_least(0), "keys seen, a query's own position included; 0: all");
    f("dilation", o.dilation, at_least(1), "only distances that are multiples of it");
    f("global_positions", o.global, at_least(0), "positions that window and dilation do not bind");
    f("separate_global_projections", o.separate_global_projections, "global rows have Wq, Wk, Wv of their own");
    f("chunk_size", o.chunk_size, at_least(0),
      "tokens see those of their own chunk of so many tokens, behind padding; 0: of all");
    f("tied_values", o.tied_values, "V is x Wk, without a Wv");
    f("v_norm", o.v_norm, "RMSNorm of each head of V, without weights, with qk_norm_eps");
    f("qkv_limit", o.qkv_limit, at_least(0), "l: what Wq, Wk and Wv make is kept within -l and l; 0: not");
    f("qk_norm", o.qk_norm, "a norm of Q and K, before RoPE");
    f("qk_norm_late", o.qk_norm_late, "it stands behind RoPE");
    f("qk_norm_kind", o.qk_norm_kind, "which");
    f("qk_norm_over", o.qk_norm_over,
      "shared: each head, one weight [dk] for all; per_head: each head, weights [heads*dk]; width: all heads together");
    f("qk_norm_eps", o.qk_norm_eps, at_least(0), "its eps");
    f("scale", o.scale, any_number(), "of the scores; null: 1/sqrt(dk)");
    f("softcap", o.softcap, at_least(0), "c: the scores before biases become c*tanh(score/c); 0: none");
    f.nested("forget_", o.forget);
    f("kv_shift", o.kv_shift, "k and v of each head mixed with those of the token before, by a gate");
    f.nested("growth_", o.growth);
    f("position_bias", o.position_bias, "added to the scores");
    f.nested("", o.t5);
    f("max_length", o.max_length, at_least(1), "positions of the Toeplitz table");
    f("sink", o.sink, "off_by_one e^s/(1 + sum e^s); learned e^s/(e^sink_h + sum e^s)");
    f("norm", o.norm, "pre-norm; gates read the normed x");
    f("norm_eps", o.norm_eps, at_least(0), "of the norms");
    f("sandwich_norm", o.sandwich_norm, "a second norm, on the output before the residual");
    f("gates", o.gates, "gates, in order");
    f("ablation", o.ablation, "at g1: a norm of each head, before its gates; or silu, in place of a gate");
    f("ablation_norm", o.ablation_norm, "which norm head_norm is");
    f("ablation_per_head", o.ablation_per_head, "its weights are [heads*dv], not [dv]");
    f("ablation_eps", o.ablation_eps, at_least(0), "of head_norm");
  }
};

/// Options of the attention layer of Qwen's gated models: RMS pre-norm and QK-norm (eps 1e-6), RoPE in halves, causal,
/// no biases, residual, N(0, 0.02²) weights. The default of `gates` is one gate at G1.
MultiHeadAttentionOptions qwen_attention_options(int64_t dim, int64_t heads, int64_t kv_heads, int64_t head_dim,
                                                 std::vector<AttentionGateOptions> gates = {AttentionGateOptions{}});

namespace detail {
/// Returns the options with all defaults filled in. Throws ValueError, naming `layer`, for options that do not go
/// together.
MultiHeadAttentionOptions checked(const char* layer, MultiHeadAttentionOptions o);
}  // namespace detail

/// What the queries of a layer of self attention see: K and V of the tokens so far, normed and turned, [batch,
/// kv_heads, keys, ·]. Another layer may read them in place of its own (Gemma 3n, Gemma 4).
struct AttendedKeys {
  Tensor k, v;       // K and V
  Tensor real = {};  // bool [batch, keys]: which of them are no padding; undefined: all
};

struct MultiHeadAttention {
  static constexpr const char* type = "MultiHeadAttention";
  static constexpr bool keeps_f32(std::string_view part) { return part == "forget"; }

  MultiHeadAttentionOptions options{};  // with all defaults filled in
  Norm norm, sandwich;
  Heads heads;
  Norm q_norm, k_norm, v_norm;
  Linear forget;            // dim → heads, of dtype exact(dtype), see forget_map()
  Linear k_shift, v_shift;  // dim → kv_heads, without bias
  Linear global_q, global_k, global_v;
  std::vector<AttentionGate> gates;
  Norm ablation;         // head_norm
  Tensor t5_bias;        // [buckets, heads]
  Tensor toeplitz_bias;  // [heads, 2·max_length − 1]
  Tensor sink;           // [heads], learned

  MultiHeadAttention() = default;
  /// Throws ValueError for options that do not go together.
  MultiHeadAttention(MultiHeadAttentionOptions o, Rng& rng);
  /// All other options have their defaults.
  MultiHeadAttention(HeadsOptions o, Rng& rng) : MultiHeadAttention(MultiHeadAttentionOptions{.heads = o}, rng) {}

  /// x [batch, n, dim] → the same shape (width heads·dv without project_out). The positions of the pass are global
  /// positions of every sequence of the batch, besides those of the options. A stream of self attention keeps K (after
  /// RoPE) and V, kv_heads·(dk + dv) numbers per token; a forget gate adds `heads`, in bf16 three times as many, and
  /// kv_shift keeps k and v of the last token. With a window W and no global positions it keeps at most
  /// (W − 1)·dilation + 1 tokens. A stream of cross attention keeps K and V of the context. Throws ValueError for a
  /// position outside [0, n), and in a stream unless the layer is causal or cross attention, and with separate global
  /// projections.
  Tensor operator()(const Tensor& x, const Pass& pass = {}) const { return attend(x, pass, {}); }
  /// The same. An empty `keys` becomes what the queries see; one that is not is what they see, and a stream keeps
  /// nothing for this layer. Throws ValueError for cross attention, a forget gate and separate global projections.
  Tensor operator()(const Tensor& x, const Pass& pass, AttendedKeys& keys) const;
  /// Removes Wk, Wv and their norms: a call then needs `keys`.
  void without_keys() { heads.k = heads.v = k_shift = v_shift = Linear(), k_norm = v_norm = Norm(); }
  /// The attention map of the same call, before dropout: [batch, heads, n, keys]. Throws ValueError in a stream.
  Tensor map(const Tensor& x, const Pass& pass = {}) const;

  /// The position bias of m queries and n keys as the table of ops/attention/relative_bias.h; undefined for none.
  Tensor relative_bias(int64_t m, int64_t n) const;

  SLUICE_PARTS(norm, heads, q_norm, k_norm, v_norm, forget, k_shift, v_shift, gates, ablation, t5_bias, toeplitz_bias,
               sink, global_q, global_k, global_v, sandwich);

 protected:
  /// The type and name of a layer that is this one with options that it sets.
  struct Preset {
    const char* type;  // the layer's type in files
    const char* name;  // the name that begins its errors
  };
  /// For a layer `preset` that has set the options.
  MultiHeadAttention(Preset preset, MultiHeadAttentionOptions o, Rng& rng);
  /// Changes the mask of self attention, for a layer that chooses keys. rows() has been called.
  using ChooseKeys = std::function<void(Call& call, AttentionMask& mask)>;
  /// The call of a layer that chooses keys, or that shares them.
  Tensor attend(const Tensor& x, const Pass& pass, const ChooseKeys& choose, AttendedKeys* shared = nullptr) const;

 private:
  struct Sources {
    Tensor x;       // the layer's input after its pre-norm, or the context
    Tensor q = {};  // x·Wq
    const Tensor& of(const AttentionGate& g) const { return g.options.source == GateSource::query ? q : x; }
  };
  struct Prepared {
    Sources from;    // of the queries and of gates G1, G4, G5
    Tensor q, k, v;  // [batch, heads, ·, ·]
    AttentionOptions attention;
  };
  bool cross() const { return options.heads.context_dim > 0; }
  Prepared prepare(Call& call, const ChooseKeys& choose = {}, AttendedKeys* shared = nullptr) const;
  Tensor gated(GatePosition position, const Tensor& y, const Sources& from, bool after_qk_norm = false) const;
  /// Rows of k or v, one for each token; `shift`, a map of `source`, mixes each with the row of the token before.
  Tensor shifted(Call& call, const Linear& shift, const Tensor& source, const Tensor& rows) const;
  /// Sets the numbers of the chunks of queries and keys. The first query has this position, and the last key that of
  /// the last query.
  void set_chunks(Call& call, int64_t position, int64_t keys, AttentionMask& mask) const;
  /// What a map makes of x, within ±qkv_limit.
  Tensor mapped(const Linear& map, const Tensor& x) const;
  /// Norm, late gates and RoPE of the heads y, whose first row has this position.
  Tensor normed_and_turned(Tensor y, const Norm& n, GatePosition gate, const Sources& from, const RopeOptions& rope,
                           int64_t position) const;
  Tensor queries(const Sources& from, int64_t position) const;
  Tensor keys(Call& call, const Tensor& source, int64_t position) const;
  Tensor values(Call& call, const Tensor& source) const;
  AttentionOptions attention_options(int64_t m, int64_t n, AttentionMask mask) const;
  /// The rows of the global positions p.attention.mask.global, with the separate projections.
  GlobalRows global_rows(const Prepared& p) const;
  /// The single gate at G1, if one kernel may compute it together with the attention of q; otherwise null.
  const AttentionGate* gate_of_attention(const Tensor& q) const;

  Preset preset_{type, "multi_head_attention"};
};

}  // namespace sluice
