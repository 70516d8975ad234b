// Differential attention: each head subtracts a second attention map from its first, which cancels what both maps see.
//
//   version 1 (Ye et al. 2024, "Differential Transformer", arXiv 2410.05258, §2.1): two maps over the same values
//     o_i = (1 − λ_init)·norm(Attn(q¹, k¹, v) − λ·Attn(q², k², v)),  λ = e^{λq1·λk1} − e^{λq2·λk2} + λ_init
//   version 2 (Microsoft 2026, "Differential Transformer V2"): 2h query heads, of which a pair shares a KV head
//     o_i = a_{2i} − λ_i·a_{2i+1},  a = Attn(q, k, v),  λ_i = σ(x·Wλ)_i for each token
//   y = [o_1 … o_h]·Wo
//
// Version 1 has h pairs of query heads and g pairs of key heads, all of dk channels, and g value heads of 2·dk
// channels. Pair i of the queries reads pair ⌊i/(h/g)⌋ of the keys: its first map the first key head, its second map
// the second.
#pragma once

#include <sluice/layers/nn/heads.h>
#include <sluice/layers/nn/norm.h>
#include <sluice/layers/nn/pass.h>

namespace sluice {

/// 0.8 − 0.6·e^{−0.3·layer}, λ_init of version 1 for layer 0, 1, ….
double diff_lambda_init(int64_t layer);

enum class DiffPairing {
  adjacent,  // heads 2i and 2i + 1: unilm
  halves,    // heads i and i + h, i and i + g for keys and values: DiffLlama
};
constexpr const char* choices(DiffPairing) { return "adjacent halves"; }

struct DiffAttentionOptions {
  using Layer = struct DiffAttention;
  int64_t dim, heads = 1;
  int64_t kv_heads = 0, head_dim = 0;  // g, 0: heads; dk, 0: dim/(2·heads) in version 1, dim/heads in 2
  int64_t version = 2;
  DiffPairing pairing = DiffPairing::adjacent;  // version 1; version 2 pairs adjacent heads, which share a KV head
  double lambda_init = 0.2;                     // version 1, as the two options below
  NormKind norm = NormKind::rms;                // of each head's 2·dk channels, with one weight for all heads
  double norm_eps = 1e-5;
  bool causal = true, use_rope = true;
  RopeOptions rope = {.pairing = RopePairing::interleaved};
  double attention_dropout = 0, dropout = 0;
  Init init = Init::xavier();
  DType dtype = f32;

  static void describe(auto& o, auto& f) {
    f.required("dim", o.dim, at_least(1), "width d");
    f("heads", o.heads, at_least(1), "number of heads h; each is a pair of attention maps");
    f("kv_heads", o.kv_heads, at_least(0), "g; version 1: pairs of key heads; version 2: KV heads; 0: heads");
    f("head_dim", o.head_dim, at_least(0), "dk of a map; 0: dim/(2 heads) in version 1, dim/heads in version 2");
    f("version", o.version, between(1, 2), "1: lambda of the layer, norm of heads; 2: lambda of token and head");
    f("pairing", o.pairing, "version 1: which heads are a pair, (2i, 2i + 1) or (i, i + heads)");
    f("lambda_init", o.lambda_init, any_number(), "version 1: lambda begins here; the output has 1 - lambda_init");
    f("norm", o.norm, "version 1: of each head's 2 dk channels, weights shared by heads");
    f("norm_eps", o.norm_eps, at_least(0), "of this norm");
    f("causal", o.causal, "token i sees tokens j <= i");
    f("use_rope", o.use_rope, "rotate Q and K");
    f.nested("rope_", o.rope);
    f.training("attention_dropout", o.attention_dropout, probability(), "on the weights of each map");
    f.training("dropout", o.dropout, probability(), "on the output");
    describe_parameters(o, f);
  }
};

struct DiffAttention {
  static constexpr const char* type = "DiffAttention";
  DiffAttentionOptions options{};
  Heads heads;
  Tensor lambda_q1, lambda_k1, lambda_q2, lambda_k2;  // [dk], version 1
  Norm norm;                                          // version 1
  Linear lambda;                                      // Wλ, dim → h, version 2

  DiffAttention() = default;
  /// Throws ValueError for options that do not fit.
  DiffAttention(DiffAttentionOptions o, Rng& rng);

  /// x [batch, n, dim] → the same shape. A stream keeps 4·g·dk numbers per token in version 1, 2·g·dk in version 2.
  Tensor operator()(const Tensor& x, const Pass& pass = {}) const;
  /// λ: [] in version 1, [batch, h, n, 1] for the tokens of x in version 2; f32 if x is bf16.
  Tensor share_of_second(const Tensor& x) const;

  SLUICE_PARTS(heads, lambda_q1, lambda_k1, lambda_q2, lambda_k2, norm, lambda);
};

}  // namespace sluice
