// Attention to a window of keys and to one row for each pool of earlier ones (DeepSeek-V4, 2026; pool_compression.h):
//
//   z = RMSNorm(x·Wdq)      q = RoPE(RMS(z·Wuq))       of each head, without a weight
//   κ = RoPE(RMSNorm(x·Wkv))                           one head, whose keys are its values
//   o = softmax over the window's κ, the chosen rows of whole pools, and a sink without a value
//   y = [RoPE⁻¹(o)·Wa_1 | … | RoPE⁻¹(o)·Wa_g]·Wb       each Wa_i reads h/g neighbouring heads
//
// RoPE turns the last rope_dim channels. Because values are keys, o is turned back by the position of its query: it
// then depends on distances alone. A query sees the pools whose last key is not later than itself: all of them, or with
// topk the best ones by the score
//
//   I_ti = Σ_j (x_t·Ww)_j·(h'·d')^{−1/2}·relu(RoPE(z_t·Wq')_j·k'_i)
//
// where k'_i is a row of the pool's keys, too, made by weights of its own. The choice has no gradient. DeepSeek-V4 has
// three kinds of these layers: pool = 4 with overlap and topk, pool = 128 with neither, and pool = 0, the window alone.
#pragma once

#include <sluice/layers/attention/pool_compression.h>
#include <sluice/layers/nn/pass.h>

#include <vector>

namespace sluice {

struct CompressedAttentionOptions {
  using Layer = struct CompressedAttention;
  int64_t dim, heads = 1;
  int64_t head_dim = 512, q_rank = 1024;  // of queries, keys and values; of z
  bool use_rope = true;
  int64_t rope_dim = 64;  // last channels of q, κ, rows and the index that RoPE turns; 0: none
  RopeOptions rope = {.pairing = RopePairing::interleaved};
  int64_t window = 128;                       // keys before the rows, a query's own included
  int64_t pool = 4;                           // B, keys of a pool; 0: no pools
  bool overlap = true;                        // rows also read the pool before
  int64_t topk = 512;                         // rows of a query; 0: all
  int64_t index_heads = 64, index_dim = 128;  // h', d'
  int64_t out_groups = 1, out_rank = 1024;    // g, and the width of each group's result
  bool sink = true;
  double norm_eps = 1e-6;  // of all norms
  double attention_dropout = 0, dropout = 0;
  Init init = Init::xavier();
  DType dtype = f32;

  static void describe(auto& o, auto& f) {
    f.required("dim", o.dim, at_least(1), "width d");
    f("heads", o.heads, at_least(1), "number of query heads h; keys and values have one");
    f("head_dim", o.head_dim, at_least(1),
      "channels of a head's queries, of the key, which is the value, and of a row");
    f("q_rank", o.q_rank, at_least(1), "width of the queries' latent");
    f("use_rope", o.use_rope, "rotate the last rope_dim channels");
    f("rope_dim", o.rope_dim, at_least(0), "last channels of a head and of the index that RoPE turns; 0: none");
    f.nested("rope_", o.rope);
    f("window", o.window, at_least(1), "keys that a query sees one by one, its own included");
    f("pool", o.pool, at_least(0), "keys of a pool, of which a query sees one row; 0: the window alone");
    f("overlap", o.overlap, "a pool's row also reads the keys of the pool before");
    f("topk", o.topk, at_least(0), "rows of a query, chosen by an index; 0: all");
    f("index_heads", o.index_heads, at_least(1), "heads of the index");
    f("index_dim", o.index_dim, at_least(1), "channels of its heads and of its rows");
    f("out_groups", o.out_groups, at_least(1), "groups of neighbouring heads, each with an output map; divides heads");
    f("out_rank", o.out_rank, at_least(1), "width of a group's result, which one map of all then reads");
    f("sink", o.sink, "a learned score of every head without a value, e^s/(e^sink + sum e^s)");
    f("norm_eps", o.norm_eps, at_least(0), "of all norms");
    f.training("attention_dropout", o.attention_dropout, probability(), "on the weights");
    f.training("dropout", o.dropout, probability(), "on the output");
    describe_parameters(o, f);
  }
};

struct CompressedAttention {
  static constexpr const char* type = "CompressedAttention";
  CompressedAttentionOptions options{};
  Linear q_down, q_up;               // Wdq, dim → q_rank; Wuq, q_rank → h·head_dim
  Linear kv;                         // Wkv, dim → head_dim
  Norm q_norm, kv_norm;              // of z and κ
  Tensor sink;                       // [h]
  PoolCompression compressor;        // with a pool
  Linear index_q, index_weights;     // Wq', q_rank → h'·d'; Ww, dim → h'; with topk
  PoolCompression index_compressor;  // of k'
  Linear out_down, out_up;           // Wa side by side, h·head_dim/g → g·out_rank; Wb, g·out_rank → dim

  CompressedAttention() = default;
  /// Throws ValueError for options that do not fit.
  CompressedAttention(CompressedAttentionOptions o, Rng& rng);
  /// x [batch, n, dim] → the same shape. A stream keeps head_dim numbers for each token of the window and for each
  /// pool, and 2·head_dim, 4·head_dim with overlap, for each key that a later pool reads; with topk as much of
  /// index_dim. From the first padding on it keeps all keys for later pools. Throws ValueError with a pool for
  /// segments: a pool would span documents.
  Tensor operator()(const Tensor& x, const Pass& pass = {}) const;

  SLUICE_PARTS(q_down, q_norm, q_up, kv, kv_norm, sink, compressor, index_q, index_weights, index_compressor, out_down,
               out_up);

 private:
  /// The rows of pools [batch, 1, pools, head_dim] and, with topk, those of the index, and which of them lie before
  /// each query, bool [batch or 1, 1, m, pools].
  std::vector<Tensor> pool_rows(Call& call, Tensor& seen) const;
  /// Which rows of pools the queries see: of those before them, `seen`, the best. x and z are of the queries, `rows`
  /// the index's rows of the pools.
  Tensor chosen_rows(const Tensor& x, const Tensor& z, int64_t position, const Tensor& rows, const Tensor& seen) const;
};

}  // namespace sluice
