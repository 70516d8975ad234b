// Multi-head layers over sparse attention: y = concat_h(attention_h(x·Wq, x·Wk, x·Wv))·Wo, without residual.
// All read x [batch, n, dim] and a key_mask, bool [batch, n], true for real tokens; a generator switches dropout
// (and Gumbel noise) on.
#pragma once

#include <sluice/layers/nn/kv_cache.h>
#include <sluice/layers/heads/sinkhorn.h>
#include <sluice/layers/heads/sparse_attention.h>
#include <sluice/layers/nn/linear.h>
#include <sluice/ops/activation.h>
#include <sluice/ops/rope.h>

#include <vector>

namespace sluice {

/// What the layers of this file have in common; each repeats these options.
struct HeadOptions {
  int64_t dim;
  int64_t heads = 1;
  int64_t head_dim = 0;  // 0 means dim/heads
  bool linear_bias = false;
  bool use_rope = false;
  RopeOptions rope = {};
  double attention_dropout = 0;  // on the weights
  Init init = Init::xavier();
  DType dtype = f32;
};

/// The four maps of multi-head attention.
struct HeadProjections {
  static constexpr const char* type = "HeadProjections";
  HeadOptions options;
  Linear query, key, value, out;

  HeadProjections() = default;
  /// ValueError, naming `layer`, for sizes that do not fit.
  HeadProjections(const char* layer, HeadOptions o, Rng& rng);
  struct Projected {
    Tensor q, k, v;  // [batch, heads, n, head_dim], rotated
  };
  Projected operator()(const Tensor& x, int64_t position = 0) const;
  /// [batch, heads, n, head_dim] → [batch, n, dim].
  Tensor finish(const Tensor& attended) const;
  static void visit(auto& self, auto&& f) {
    f("query", self.query);
    f("key", self.key);
    f("value", self.value);
    f("out", self.out);
  }
};

// -- top-k -------------------------------------------------------------------------------------------------

struct TopKAttentionOptions {
  int64_t dim;
  int64_t heads = 1;
  int64_t k = 32;
  TopKTies ties = TopKTies::index;
  bool causal = false;
  int64_t window = 0;  // see AttentionMask; 0 means none

  int64_t head_dim = 0;  // 0 means dim/heads
  bool linear_bias = false;
  bool use_rope = false;
  RopeOptions rope = {};
  double attention_dropout = 0;  // on the weights
  Init init = Init::xavier();
  DType dtype = f32;
};

struct TopKAttention {
  static constexpr const char* type = "TopKAttention";
  using State = KvCache;  // 2·heads·head_dim numbers a token (of the last `window`)

  TopKAttentionOptions options;
  HeadProjections head;

  TopKAttention() = default;
  TopKAttention(TopKAttentionOptions o, Rng& rng);
  Tensor operator()(const Tensor& x, const Tensor& key_mask = {}, Rng* rng = nullptr) const;
  /// The next m tokens of a stream, x [batch, m, dim]: equal to the rows of the full causal pass. Without
  /// history. ValueError unless causal.
  std::pair<Tensor, State> step(const Tensor& x, State state) const;
  static void visit(auto& self, auto&& f) { HeadProjections::visit(self.head, f); }

 private:
  TopKOptions attention() const;
};

// -- learned threshold ---------------------------------------------------------------------------------------

enum class PairScoreKind {
  bilinear,  // f_ij = (x_i·A)·(x_j·B), A, B [dim, rank]
  mlp,       // f_ij = w·φ(x_i·W_i + x_j·W_j + (i − j)·w_d + b) + c: one hidden layer on [x_i, x_j, i − j]
};
constexpr const char* choices(PairScoreKind) { return "bilinear mlp"; }
inline constexpr const char* kPairScoreMeaning =
    "f: bilinear (x_i A)(x_j B)'; mlp w act(x_i W_i + x_j W_j + (i - j) w_d + b) + c";
struct PairScoreOptions {
  int64_t dim;
  PairScoreKind kind = PairScoreKind::bilinear;
  int64_t width = 16;  // rank or hidden width
  Act activation = Act::gelu;
  Init init = Init::lecun();
  DType dtype = f32;

  static void describe(auto& o, auto& f) {
    f.required("dim", o.dim, at_least(1), "width of x");
    f("kind", o.kind, kPairScoreMeaning);
    f("width", o.width, at_least(1), "rank or hidden width");
    f("activation", o.activation, "of mlp");
    f.nested("init_", o.init);
    f.training("dtype", o.dtype, "of the parameters");
  }
};

/// f_Θ(i, j), a learned score of pairs. O(m·n) memory; the MLP's hidden layer takes width times as much.
struct PairScore {
  static constexpr const char* type = "PairScore";
  PairScoreOptions options;
  Linear row, col;          // A, B; or W_i with b, and W_j
  Tensor distance, weight;  // w_d [width], w [width]: mlp
  Tensor bias;              // c []: mlp

  PairScore() = default;
  PairScore(PairScoreOptions o, Rng& rng);
  /// rows = row(x) [batch, m, width], cols = col(x) [batch, n, width] → [batch, m, n]; the last row stands at the
  /// position of the last column.
  Tensor between(const Tensor& rows, const Tensor& cols) const;
  /// x [batch, n, dim] → [batch, n, n].
  Tensor operator()(const Tensor& x) const;
  static void visit(auto& self, auto&& f) {
    f("row", self.row);
    f("col", self.col);
    f("distance", self.distance);
    f("weight", self.weight);
    f("bias", self.bias);
  }
};

struct ThresholdAttentionOptions {
  int64_t dim;
  int64_t heads = 1;
  /// hard leaves f_Θ and τ without a gradient.
  ThresholdMode mode = ThresholdMode::straight_through;
  double tau = 0;  // initial value of the learned τ
  double temperature = 1;
  std::optional<bool> include_self = std::nullopt;
  bool causal = false;
  PairScoreKind score = PairScoreKind::bilinear;
  int64_t score_width = 16;  // rank or hidden width

  int64_t head_dim = 0;  // 0 means dim/heads
  bool linear_bias = false;
  bool use_rope = false;
  RopeOptions rope = {};
  double attention_dropout = 0;  // on the weights
  Init init = Init::xavier();
  DType dtype = f32;
};

/// One f_Θ for all heads, of the same x.
struct ThresholdAttention {
  static constexpr const char* type = "ThresholdAttention";
  using State = KvCache;  // keys, values and col(x): 2·heads·head_dim + score_width numbers a token

  ThresholdAttentionOptions options;
  HeadProjections head;
  PairScore score;
  Tensor tau;  // []

  ThresholdAttention() = default;
  ThresholdAttention(ThresholdAttentionOptions o, Rng& rng);
  Tensor operator()(const Tensor& x, const Tensor& key_mask = {}, Rng* rng = nullptr) const;
  /// As TopKAttention's.
  std::pair<Tensor, State> step(const Tensor& x, State state) const;
  static void visit(auto& self, auto&& f) {
    HeadProjections::visit(self.head, f);
    f("score", self.score);
    f("tau", self.tau);
  }

 private:
  ThresholdOptions attention() const;
};

// -- Sinkhorn: not causal --------------------------------------------------------------------------------------

struct SinkhornLayerOptions {
  int64_t dim;
  int64_t heads = 1;
  SinkhornOptions sinkhorn = {};
  int64_t top_k = 0;    // see SinkhornAttentionOptions
  bool causal = false;  // true throws ValueError: there is no causal Sinkhorn attention

  int64_t head_dim = 0;  // 0 means dim/heads
  bool linear_bias = false;
  bool use_rope = false;
  RopeOptions rope = {};
  double attention_dropout = 0;  // on the weights
  Init init = Init::xavier();
  DType dtype = f32;
};

/// Weights over all pairs.
struct SinkhornAttention {
  static constexpr const char* type = "SinkhornAttention";
  SinkhornLayerOptions options;
  HeadProjections head;

  SinkhornAttention() = default;
  SinkhornAttention(SinkhornLayerOptions o, Rng& rng);
  Tensor operator()(const Tensor& x, const Tensor& key_mask = {}, Rng* rng = nullptr) const;
  static void visit(auto& self, auto&& f) { HeadProjections::visit(self.head, f); }
};

struct SinkhornBlockLayerOptions {
  int64_t dim;
  int64_t heads = 1;
  int64_t block = 64;
  SinkhornOptions sinkhorn = {.lambda = 1 / 0.75, .iterations = 8};
  bool causal = false;  // true throws ValueError

  int64_t head_dim = 0;  // 0 means dim/heads
  bool linear_bias = false;
  bool use_rope = false;
  RopeOptions rope = {};
  double attention_dropout = 0;  // on the weights
  Init init = Init::xavier();
  DType dtype = f32;
};

/// Blocks of keys and values, sorted; see sinkhorn_block_attention.
struct SinkhornBlockAttention {
  static constexpr const char* type = "SinkhornBlockAttention";
  SinkhornBlockLayerOptions options;
  HeadProjections head;

  SinkhornBlockAttention() = default;
  SinkhornBlockAttention(SinkhornBlockLayerOptions o, Rng& rng);
  Tensor operator()(const Tensor& x, const Tensor& key_mask = {}, Rng* rng = nullptr) const;
  static void visit(auto& self, auto&& f) { HeadProjections::visit(self.head, f); }
};

// -- Longformer: not causal ------------------------------------------------------------------------------------

struct GlobalLocalLayerOptions {
  int64_t dim;
  int64_t heads = 1;
  int64_t w = 256;              // |i − j| <= w
  bool separate_global = true;  // maps of their own for global queries (Longformer)

  int64_t head_dim = 0;  // 0 means dim/heads
  bool linear_bias = false;
  bool use_rope = false;
  RopeOptions rope = {};
  double attention_dropout = 0;  // on the weights
  Init init = Init::xavier();
  DType dtype = f32;
};

/// Sliding-window attention with global positions (Beltagy et al. 2020).
struct GlobalLocalAttention {
  static constexpr const char* type = "GlobalLocalAttention";
  GlobalLocalLayerOptions options;
  HeadProjections head;
  Linear global_query, global_key, global_value;  // separate_global

  GlobalLocalAttention() = default;
  GlobalLocalAttention(GlobalLocalLayerOptions o, Rng& rng);
  /// `global`: distinct positions in [0, n), for every sequence of the batch.
  Tensor operator()(const Tensor& x, const std::vector<int64_t>& global, const Tensor& key_mask = {},
                    Rng* rng = nullptr) const;
  static void visit(auto& self, auto&& f) {
    HeadProjections::visit(self.head, f);
    f("global_query", self.global_query);
    f("global_key", self.global_key);
    f("global_value", self.global_value);
  }
};

}  // namespace sluice
