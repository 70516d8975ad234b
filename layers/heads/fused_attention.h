// Softmax attention and linear attention over the same queries, keys and values, mixed by a gate:
//
//   y = (g ⊙ softmax(Q·Kᵀ/√d)·V + (1 − g) ⊙ (φ(Q)·Σφ(k)ᵀv) / (φ(Q)·Σφ(k) + eps))·Wo      g = σ(X·Wg + b)
//
// φ = elu + 1 (Katharopoulos et al. 2020). g = 1 is softmax attention, g = 0 linear attention.
#pragma once

#include <sluice/layers/nn/kv_cache.h>
#include <sluice/layers/nn/linear.h>
#include <sluice/ops/rope.h>

#include <utility>

namespace sluice {

enum class FusedGate {
  per_channel,  // [n, heads·head_dim]
  per_head,     // [n, heads]
  per_token,    // [n, 1]
};
constexpr const char* choices(FusedGate) { return "per_channel per_head per_token"; }

/// The mixture for q, k [batch, heads, n, d], v [batch, heads, n, dv] and a gate that broadcasts to
/// [batch, heads, n, dv]. key_mask: bool [batch, n]; padded keys and values may hold NaN. `chunk` changes rounding
/// only. O(n) memory.
struct FusedAttentionForm {
  bool causal = false;
  double eps = 1e-6;
  int64_t chunk = 64;
  double dropout = 0;  // on the softmax weights; needs rng
};
Tensor fused_attention(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& gate,
                       const FusedAttentionForm& form = {}, const Tensor& key_mask = {}, Rng* rng = nullptr);

struct FusedAttentionOptions {
  int64_t dim;
  int64_t heads = 1;
  int64_t head_dim = 0;  // 0 means dim/heads
  bool causal = false;
  FusedGate gate = FusedGate::per_channel;
  double gate_bias = 0;  // initial b
  Init gate_init = Init::lecun();
  bool use_rope = false;  // on q and k, before φ
  RopeOptions rope = {};
  double eps = 1e-6;
  int64_t chunk = 64;
  bool project_out = true;  // false: y is [batch, n, heads·head_dim]
  bool linear_bias = false;
  double attention_dropout = 0;
  Init init = Init::xavier();
  DType dtype = f32;
};

struct FusedAttention {
  static constexpr const char* type = "FusedAttention";

  /// 2·heads·d numbers a token, and heads·d·(d + 1) for the linear part.
  struct State {
    KvCache cache;
    Tensor sums;  // [batch, heads, d, d + 1]: Σφ(k)ᵀv, and Σφ(k) beside it
  };

  FusedAttentionOptions options;
  Linear query, key, value, gate, out;

  FusedAttention() = default;
  FusedAttention(FusedAttentionOptions o, Rng& rng);

  /// x [batch, n, dim] → the same (heads·head_dim wide without project_out). No residual. key_mask: bool
  /// [batch, n], true for real tokens. rng switches dropout on.
  Tensor operator()(const Tensor& x, const Tensor& key_mask = {}, Rng* rng = nullptr) const;
  /// The next m tokens of a stream, x [batch, m, dim]: equal to the rows of the full causal pass. Without
  /// history. ValueError unless causal.
  std::pair<Tensor, State> step(const Tensor& x, State state) const;

  static void visit(auto& self, auto&& f) {
    f("query", self.query);
    f("key", self.key);
    f("value", self.value);
    f("gate", self.gate);
    f("out", self.out);
  }

 private:
  struct Projected {
    Tensor q, k, v, gate;  // [batch, heads, n, ·]; gate broadcasts
  };
  Projected project(const Tensor& x, int64_t position) const;
};

}  // namespace sluice
