// Gated softmax attention to chosen keys, as in the full layers of Qwen4: an indexer scores pools of `pool` keys, and a
// query attends to the keys of the topk/pool best ones and of its own pool as long as that is not whole (indexer.h,
// IndexPooling::mean; transformers 5, Qwen4ExpTextQSAIndexer). The rest is MultiHeadAttention: norm of each head's q
// and k, RoPE, a gate σ(x·Wg) on the attended values.
#pragma once

#include <sluice/layers/attention/indexer.h>
#include <sluice/layers/attention/multi_head_attention.h>

namespace sluice {

struct QsaAttentionOptions {
  using Layer = struct QsaAttention;
  HeadsOptions heads;   // the layer sets causal = true
  int64_t topk = 2048;  // keys of a query in whole pools; pool divides it
  int64_t pool = 32;    // keys of a pool
  int64_t index_heads = 16, index_dim = 128;
  bool qk_norm = true, gate = true;
  double norm_eps = 1e-6;

  static void describe(auto& o, auto& f) {
    f.nested("", o.heads);
    f("topk", o.topk, at_least(1), "keys of a query in whole pools; a multiple of pool");
    f("pool", o.pool, at_least(1), "keys of a pool");
    f("index_heads", o.index_heads, at_least(1), "heads of the indexer");
    f("index_dim", o.index_dim, at_least(1), "channels of its heads and of its key");
    f("qk_norm", o.qk_norm, "RMSNorm of each head of q and k, before RoPE; one weight [dk] for all heads");
    f("gate", o.gate, "sigmoid(x Wg) on the attended values, one for every channel");
    f("norm_eps", o.norm_eps, at_least(0), "of all norms");
  }
};

/// RoPE turns as many channels of the index as of q and k. The choice of keys has no gradient.
struct QsaAttention : MultiHeadAttention {
  static constexpr const char* type = "QsaAttention";
  QsaAttentionOptions options{};
  Indexer indexer;

  QsaAttention() = default;
  /// Throws ValueError for options that do not fit.
  QsaAttention(QsaAttentionOptions o, Rng& rng);
  /// All other options have their defaults.
  QsaAttention(HeadsOptions o, Rng& rng) : QsaAttention(QsaAttentionOptions{.heads = o}, rng) {}
  /// x [batch, n, dim] → the same shape. A stream keeps kv_heads·(dk + dv) + index_dim numbers per token. Throws
  /// ValueError for segments: a pool would span documents.
  Tensor operator()(const Tensor& x, const Pass& pass = {}) const;

  SLUICE_PARTS_BEHIND(MultiHeadAttention, indexer);
};

}  // namespace sluice
