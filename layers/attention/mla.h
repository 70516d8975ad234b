// Multi-head latent attention (DeepSeek-AI 2024, "DeepSeek-V2", arXiv 2405.04434, §2.1): keys and values of all heads
// are made from one latent row per token, and a stream keeps only this row and one rotary key.
//
//   q = x·Wq, or RMSNorm(x·Wdq)·Wuq     per head [q_n | q_r], widths dn and dr
//   [c | κ] = x·Wdkv,  c ← RMSNorm(c)   widths r and dr; RoPE turns q_r and κ
//   [k_n | v] = c·Wukv                  per head, widths dn and dv
//   y = softmax((q_n·k_n + q_r·κ)/√(dn + dr))·v [⊙ σ(x·Wg)]·Wo
//
// With raw_latent (A.X-K2) q and the gate's logits are one map of [RMSNorm(z) | z], z = x·Wdq, per head [q | gate].
//
// Expanded, this is attention() with k = [k_n | κ]. Absorbed, Wuk is applied to the queries and Wuv after the sum:
// q_n·k_n = (q_n·Wukᵀ)·c, so that all heads read one KV head [c | κ] whose values are c. The two forms differ in
// rounding and cost only. By default a layer takes the form with fewer products: expanded for a whole sequence,
// absorbed for a few tokens that follow many.
//
// With topk a query attends to the keys that an indexer chooses (DeepSeek sparse attention, indexer.h), with index_pool
// to those of topk/index_pool pools of keys (GLM-5.3).
#pragma once

#include <sluice/layers/attention/attention_gate.h>
#include <sluice/layers/attention/indexer.h>
#include <sluice/layers/nn/heads.h>
#include <sluice/layers/nn/norm.h>
#include <sluice/layers/nn/pass.h>

namespace sluice {

enum class MlaGate { none, headwise, elementwise };  // σ(x·Wg) on the attended values: one per head, per channel
constexpr const char* choices(MlaGate) { return "none headwise elementwise"; }
enum class MlaForm { cheapest, expanded, absorbed };
constexpr const char* choices(MlaForm) { return "cheapest expanded absorbed"; }

/// Sizes are DeepSeek-V2-Lite's; V3 has q_rank = 1536. By options: Kimi Linear (use_rope = false), MiniCPM3
/// (RopePairing::half), Ling 3 (headwise gate), Hy4 (half, elementwise gate, sink), dots3 (headwise gate, rope_norm,
/// factors √(dim/rank)), A.X-K2 (raw_latent, elementwise gate). DeepSeek-V3.2, Hy4 and A.X-K2 have topk = 2048; GLM-5,
/// Mistral and dots3 turn the index interleaved.
struct MlaOptions {
  using Layer = struct Mla;
  int64_t dim, heads = 1;
  int64_t nope_dim = 128, rope_dim = 64, value_dim = 128;  // dn, dr, dv
  int64_t kv_rank = 512, q_rank = 0;                       // r; width of the queries' latent, 0: Wq alone
  bool causal = true, use_rope = true;
  RopeOptions rope = {.pairing = RopePairing::interleaved};
  std::optional<double> scale = std::nullopt;  // of the scores; default (dn + dr)^{−1/2}
  QueryGrowth growth = {};                     // Mistral 4
  MlaGate gate = MlaGate::none;
  bool raw_latent = false;             // q and gate read [RMSNorm(z) | z], an indexer reads z. Needs q_rank
  bool sink = false;                   // a learned score per head without a value: e^s/(e^sink + Σ e^s)
  bool rope_norm = false;              // RMSNorm of κ, before RoPE
  double norm_eps = 1e-6;              // of RMSNorm; the LayerNorm of an indexer has 1e-6
  double q_factor = 1, kv_factor = 1;  // multiply the normed latents
  MlaForm form = MlaForm::cheapest;
  int64_t topk = 0;                           // keys of a query; 0: all. Needs q_rank
  int64_t index_heads = 64, index_dim = 128;  // of the indexer
  RopePairing index_pairing = RopePairing::half;
  int64_t index_pool = 0;  // keys of a gated pool; 0: single keys. Divides topk; needs causal, without RoPE
  double attention_dropout = 0, dropout = 0;
  Init init = Init::xavier();
  DType dtype = f32;

  static void describe(auto& o, auto& f) {
    f.required("dim", o.dim, at_least(1), "width d");
    f("heads", o.heads, at_least(1), "number of heads h");
    f("nope_dim", o.nope_dim, at_least(1), "dn, channels of a head's queries and keys without RoPE");
    f("rope_dim", o.rope_dim, at_least(0), "dr, channels of a head's queries and of the one rotary key");
    f("value_dim", o.value_dim, at_least(1), "dv, width of a head's values");
    f("kv_rank", o.kv_rank, at_least(1), "r, width of the latent of keys and values");
    f("q_rank", o.q_rank, at_least(0), "width of the queries' latent; 0: q = x Wq");
    f("causal", o.causal, "token i sees tokens j <= i");
    f("use_rope", o.use_rope, "rotate the dr channels");
    f.nested("rope_", o.rope);
    f("scale", o.scale, any_number(), "of the scores; null: (dn + dr)^(-1/2)");
    f.nested("growth_", o.growth);
    f("gate", o.gate, "sigmoid(x Wg) on the attended values: one for every head or every channel");
    f("raw_latent", o.raw_latent, "one map makes q and the gate of [RMSNorm(z) | z], z = x Wdq; an indexer reads z");
    f("sink", o.sink, "a learned score of every head without a value, e^s/(e^sink + sum e^s)");
    f("rope_norm", o.rope_norm, "RMSNorm of the rotary key, before RoPE");
    f("norm_eps", o.norm_eps, at_least(0), "of RMSNorm; the LayerNorm of an indexer has 1e-6");
    f("q_factor", o.q_factor, any_number(), "times the queries' normed latent; sqrt(dim/q_rank) in dots3");
    f("kv_factor", o.kv_factor, any_number(), "times the normed latent of keys and values");
    f("form", o.form, "how it is computed; changes rounding and cost only");
    f("topk", o.topk, at_least(0), "keys of a query, chosen by an indexer; 0: all");
    f("index_heads", o.index_heads, at_least(1), "heads of the indexer");
    f("index_dim", o.index_dim, at_least(1), "channels of its heads and of its key");
    f("index_pairing", o.index_pairing, "of its RoPE, on the first rope_dim channels");
    f("index_pool", o.index_pool, at_least(0),
      "keys of a gated pool, topk/index_pool of them for a query; 0: no pools");
    f.training("attention_dropout", o.attention_dropout, probability(), "on the weights");
    f.training("dropout", o.dropout, probability(), "on the output");
    describe_parameters(o, f);
  }
};

/// `o` for texts `factor` times as long as `length`, as DeepSeek-V2 and V3 apply YaRN: frequencies of yarn_rope() with
/// factor 1, and scores times (0.1·mscale·ln factor + 1)², where mscale is the files' mscale_all_dim (0.707 in V2).
MlaOptions yarn_mla(MlaOptions o, double factor, int64_t length, double mscale = 1);

struct Mla {
  static constexpr const char* type = "Mla";
  MlaOptions options{};
  Linear q, q_down, q_up;  // dim → h·(dn + dr), or dim → q_rank → h·(dn + dr); raw: 2·q_rank → h·(dn + dr + gate)
  Linear kv_down, kv_up;  // dim → r + dr, [c | κ]; r → h·(dn + dv), per head [k_n | v]
  Norm q_norm, kv_norm, rope_norm;
  AttentionGate gate;  // without raw_latent
  Tensor sink;         // [h]
  Linear out;          // h·dv → dim
  Indexer indexer;     // with topk

  Mla() = default;
  /// Throws ValueError for options that do not fit.
  Mla(MlaOptions o, Rng& rng);

  /// x [batch, n, dim] → the same shape. A stream keeps r + dr numbers per token, and index_dim more with topk,
  /// 2·index_dim with pools. Masks of pairs and biases of the pass do not change which keys the indexer chooses.
  Tensor operator()(const Tensor& x, const Pass& pass = {}) const;
  /// [c | κ] of x after norm and RoPE, [batch, n, r + dr]: what a stream keeps.
  Tensor latents(const Tensor& x, int64_t position = 0) const;

  static void visit(auto& self, auto&& f) {
    f("q", self.q), f("q_down", self.q_down), f("q_norm", self.q_norm), f("q_up", self.q_up);
    f("kv_down", self.kv_down), f("kv_norm", self.kv_norm), f("rope_norm", self.rope_norm), f("kv_up", self.kv_up);
    f("gate", self.gate.map), f("sink", self.sink), f("out", self.out), f("indexer", self.indexer);
  }

 private:
  /// True if m queries of n keys are computed in the latent space: by `form`, or if that takes fewer products per head
  /// and sequence, m·r·(dn + dv) + m·n·(2r + dr) absorbed, n·r·(dn + dv) + m·n·(dn + dr + dv) expanded. If chosen keys
  /// are gathered, their cost in pairs replaces n in m·n, twice if causal: a causal query sees half of n.
  bool absorbs(double m, double n, bool gathers) const;
};

}  // namespace sluice
