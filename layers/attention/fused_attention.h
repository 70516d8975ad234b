// Softmax attention and linear attention over the same queries, keys and values, mixed by a gate:
//
//   y = (g ⊙ softmax(Q·Kᵀ/√d)·V + (1 − g) ⊙ (φ(Q)·Σφ(k)ᵀv) / (φ(Q)·Σφ(k) + eps))·Wo      g = σ(X·Wg + b)
//
// φ = elu + 1 (Katharopoulos et al. 2020). g = 1 is softmax attention; g = 0 is linear attention.
#pragma once

#include <sluice/layers/nn/heads.h>
#include <sluice/layers/nn/pass.h>

namespace sluice {

enum class FusedGate {
  per_channel,  // [n, heads·head_dim]
  per_head,     // [n, heads]
  per_token,    // [n, 1]
};
constexpr const char* choices(FusedGate) { return "per_channel per_head per_token"; }

/// Options of fused_attention().
struct FusedAttentionForm {
  bool causal = false;  // token i sees tokens j <= i
  double eps = 1e-6;    // of the linear part's denominator
  int64_t chunk = 64;   // tokens per step of the scan; changes rounding only
  double dropout = 0;   // on the softmax weights; needs rng
};
/// Returns the mixture for q, k [batch, heads, n, d], v [batch, heads, n, dv] and a gate that broadcasts to
/// [batch, heads, n, dv]. key_mask must be bool [batch, n]; padded keys and values may hold NaN. O(n) memory.
Tensor fused_attention(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& gate,
                       const FusedAttentionForm& form = {}, const Tensor& key_mask = {}, Rng* rng = nullptr);

struct FusedAttentionOptions {
  using Layer = struct FusedAttention;
  HeadsOptions heads;  // RoPE rotates q and k before φ; kv_heads must equal heads
  FusedGate gate = FusedGate::per_channel;
  double gate_bias = 0;  // initial b
  Init gate_init = Init::lecun();
  double eps = 1e-6;
  int64_t chunk = 64;

  static void describe(auto& o, auto& f) {
    f.nested("", o.heads);
    f("gate", o.gate, "how many scores a token has");
    f("eps", o.eps, at_least(0), "of the linear part's denominator");
    f("chunk", o.chunk, at_least(1), "steps at once; changes rounding only");
    f.training("gate_bias", o.gate_bias, any_number(), "initial b of the gate");
    f.nested("gate_init_", o.gate_init);
  }
};

struct FusedAttention {
  static constexpr const char* type = "FusedAttention";

  FusedAttentionOptions options{};
  Heads heads;
  Linear gate;

  FusedAttention() = default;
  FusedAttention(FusedAttentionOptions o, Rng& rng);
  FusedAttention(HeadsOptions o, Rng& rng) : FusedAttention(FusedAttentionOptions{.heads = o}, rng) {}

  /// x [batch, n, dim] → the same shape (width heads·dv without project_out). A stream keeps heads·(d + dv) numbers per
  /// token, and heads·d·(dv + 1) numbers for the linear part. Throws ValueError in a stream unless causal.
  Tensor operator()(const Tensor& x, const Pass& pass = {}) const;

  SLUICE_PARTS(heads, gate);

 private:
  /// Returns the mixing gate of x, [batch, heads or 1, n, dv or 1].
  Tensor gate_of(const Tensor& x) const;
};

}  // namespace sluice
