// Multi-head layers over sparse attention: y = concat_h(attention_h(x·Wq, x·Wk, x·Wv))·Wo. All layers read x
// [batch, n, dim] and the key_mask of the pass; all but Sinkhorn's also its documents, mask, bias and blocks.
// A generator in the pass switches dropout (and Gumbel noise) on.
#pragma once

#include <sluice/layers/attention/multi_head_attention.h>
#include <sluice/layers/attention/sinkhorn.h>
#include <sluice/layers/attention/sparse_attention.h>
#include <sluice/ops/elementwise/activation.h>

namespace sluice {

// -- top-k -------------------------------------------------------------------------------------------------

struct TopKAttentionOptions {
  using Layer = struct TopKAttention;
  HeadsOptions heads;
  int64_t k = 32;
  TopKTies ties = TopKTies::index;
  int64_t window = 0;  // see AttentionMask; 0 means no window

  static void describe(auto& o, auto& f) {
    f.nested("", o.heads);
    f("k", o.k, at_least(1), "keys kept");
    f("ties", o.ties, "index: exactly k, the first of equals; threshold: all >= the k-th best");
    f("window", o.window, at_least(0), "keys seen, a query's own position included; 0: all");
  }
};

struct TopKAttention {
  static constexpr const char* type = "TopKAttention";

  TopKAttentionOptions options{};
  Heads heads;

  TopKAttention() = default;
  TopKAttention(TopKAttentionOptions o, Rng& rng);
  TopKAttention(HeadsOptions o, Rng& rng) : TopKAttention(TopKAttentionOptions{.heads = o}, rng) {}
  /// x [batch, n, dim] → the same shape. A stream keeps kv_heads·(dk + dv) numbers per token, with a window those of
  /// the last `window` tokens. Throws ValueError in a stream unless causal.
  Tensor operator()(const Tensor& x, const Pass& pass = {}) const;
  SLUICE_PARTS(heads);
};

// -- learned threshold ---------------------------------------------------------------------------------------

enum class PairScoreKind {
  bilinear,  // f_ij = (x_i·A)·(x_j·B), A, B [dim, rank]
  mlp,  // f_ij = w·φ(x_i·W_i + x_j·W_j + (i − j)·w_d + b) + c: an MLP of [x_i, x_j, i − j] with one hidden layer
};
constexpr const char* choices(PairScoreKind) { return "bilinear mlp"; }
inline constexpr const char* kPairScoreMeaning =
    "f: bilinear (x_i A)(x_j B)'; mlp w act(x_i W_i + x_j W_j + (i - j) w_d + b) + c";
struct PairScoreOptions {
  using Layer = struct PairScore;
  int64_t dim;
  PairScoreKind kind = PairScoreKind::bilinear;
  int64_t width = 16;  // rank of bilinear, hidden width of mlp
  Act activation = Act::gelu;
  Init init = Init::lecun();
  DType dtype = f32;

  static void describe(auto& o, auto& f) {
    f.required("dim", o.dim, at_least(1), "width of x");
    f("kind", o.kind, kPairScoreMeaning);
    f("width", o.width, at_least(1), "rank or hidden width");
    f("activation", o.activation, "of mlp");
    describe_parameters(o, f);
  }
};

/// f_Θ(i, j), a learned score of pairs. O(m·n) memory; with mlp O(m·n·width).
struct PairScore {
  static constexpr const char* type = "PairScore";
  PairScoreOptions options{};
  Linear row, col;          // bilinear: A, B; mlp: W_i with b, and W_j
  Tensor distance, weight;  // mlp: w_d [width], w [width]
  Tensor bias;              // mlp: c []

  PairScore() = default;
  PairScore(PairScoreOptions o, Rng& rng);
  /// rows = row(x) [batch, m, width], cols = col(x) [batch, n, width] → [batch, m, n]. With as many rows as cols, both
  /// are the same tokens, possibly a piece of a sequence. Otherwise the rows are the last m of the n tokens.
  Tensor between(const Tensor& rows, const Tensor& cols) const;
  /// x [batch, n, dim] → [batch, n, n]. For a piece of a sequence, n_r tokens of n, the result is [batch, n_r, n].
  Tensor operator()(const Tensor& x) const;
  Tensor operator()(const Tensor& x, const Pass&) const { return (*this)(x); }
  SLUICE_PARTS(row, col, distance, weight, bias);
};

struct ThresholdAttentionOptions {
  using Layer = struct ThresholdAttention;
  HeadsOptions heads;
  /// With `hard`, f_Θ and τ get no gradient.
  ThresholdMode mode = ThresholdMode::straight_through;
  double tau = 0;  // initial value of the learned τ
  double temperature = 1;
  std::optional<bool> include_self = std::nullopt;
  PairScoreKind score = PairScoreKind::bilinear;
  int64_t score_width = 16;  // rank of bilinear, hidden width of mlp

  static void describe(auto& o, auto& f) {
    f.nested("", o.heads);
    f("mode", o.mode, "what f > tau does");
    f("tau", o.tau, OptionRange{.infinite = true}, "initial threshold; \"-inf\": all pairs");
    f("temperature", o.temperature, above(0), "T of soft");
    f("include_self", o.include_self, "j = i is visible whatever f says; null: no for soft, else yes");
    f("score", o.score, kPairScoreMeaning);
    f("score_width", o.score_width, at_least(1), "rank or hidden width");
  }
};

/// All heads share one f_Θ of x.
struct ThresholdAttention {
  static constexpr const char* type = "ThresholdAttention";

  ThresholdAttentionOptions options{};
  Heads heads;
  PairScore score;
  Tensor tau;  // []

  ThresholdAttention() = default;
  ThresholdAttention(ThresholdAttentionOptions o, Rng& rng);
  ThresholdAttention(HeadsOptions o, Rng& rng) : ThresholdAttention(ThresholdAttentionOptions{.heads = o}, rng) {}
  /// x [batch, n, dim] → the same shape. A stream keeps keys, values and col(x): kv_heads·(dk + dv) + score_width
  /// numbers per token. Throws ValueError in a stream unless causal.
  Tensor operator()(const Tensor& x, const Pass& pass = {}) const;
  SLUICE_PARTS(heads, score, tau);
};

// -- Sinkhorn: not causal --------------------------------------------------------------------------------------

struct SinkhornLayerOptions {
  using Layer = struct SinkhornAttention;
  HeadsOptions heads;  // causal throws ValueError: there is no causal Sinkhorn attention
  SinkhornOptions sinkhorn = {};
  int64_t top_k = 0;  // see SinkhornAttentionOptions

  static void describe(auto& o, auto& f) {
    f.nested("", o.heads);
    f.nested("", o.sinkhorn);
    f("top_k", o.top_k, at_least(0), "> 0: keep the k largest weights of a row, scaled to sum 1");
  }
};

/// Multi-head sinkhorn_attention(), over all pairs of tokens.
struct SinkhornAttention {
  static constexpr const char* type = "SinkhornAttention";
  SinkhornLayerOptions options{};
  Heads heads;

  SinkhornAttention() = default;
  SinkhornAttention(SinkhornLayerOptions o, Rng& rng);
  SinkhornAttention(HeadsOptions o, Rng& rng) : SinkhornAttention(SinkhornLayerOptions{.heads = o}, rng) {}
  /// x [batch, n, dim] → the same shape. Throws ValueError in a stream.
  Tensor operator()(const Tensor& x, const Pass& pass = {}) const;
  SLUICE_PARTS(heads);
};

struct SinkhornBlockLayerOptions {
  using Layer = struct SinkhornBlockAttention;
  HeadsOptions heads;  // causal throws ValueError
  int64_t block = 64;
  SinkhornOptions sinkhorn = {.lambda = 1 / 0.75, .iterations = 8};

  static void describe(auto& o, auto& f) {
    f.nested("", o.heads);
    f("block", o.block, at_least(1), "tokens of a block");
    f.nested("", o.sinkhorn);
  }
};

/// Multi-head sinkhorn_block_attention(), over sorted blocks of keys and values.
struct SinkhornBlockAttention {
  static constexpr const char* type = "SinkhornBlockAttention";
  SinkhornBlockLayerOptions options{};
  Heads heads;

  SinkhornBlockAttention() = default;
  SinkhornBlockAttention(SinkhornBlockLayerOptions o, Rng& rng);
  SinkhornBlockAttention(HeadsOptions o, Rng& rng)
      : SinkhornBlockAttention(SinkhornBlockLayerOptions{.heads = o}, rng) {}
  /// x [batch, n, dim] → the same shape. Throws ValueError in a stream.
  Tensor operator()(const Tensor& x, const Pass& pass = {}) const;
  SLUICE_PARTS(heads);
};

// -- Longformer: not causal ------------------------------------------------------------------------------------

struct GlobalLocalLayerOptions {
  using Layer = struct GlobalLocalAttention;
  HeadsOptions heads;
  int64_t w = 256;              // |i − j| <= w
  bool separate_global = true;  // separate maps q, k, v for the rows of global positions (Longformer)

  static void describe(auto& o, auto& f) {
    f.nested("", o.heads);
    f("w", o.w, at_least(0), "|i - j| <= w");
    f("separate_global", o.separate_global, "maps of their own for global queries");
  }
};

/// Sliding-window attention with global positions (Beltagy et al. 2020): MultiHeadAttention whose window holds w
/// keys to each side and the query's own. The positions of the pass are the global positions of every sequence of the
/// batch. The maps of separate_global are drawn like the others, not copied.
struct GlobalLocalAttention : MultiHeadAttention {
  static constexpr const char* type = "GlobalLocalAttention";
  GlobalLocalLayerOptions options{};

  GlobalLocalAttention() = default;
  GlobalLocalAttention(GlobalLocalLayerOptions o, Rng& rng);
  GlobalLocalAttention(HeadsOptions o, Rng& rng) : GlobalLocalAttention(GlobalLocalLayerOptions{.heads = o}, rng) {}
};

}  // namespace sluice
