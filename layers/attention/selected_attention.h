// Attention over selected keys: each query attends to the blocks, or the single keys, that a cheaper score chooses
// among its own and earlier ones (ops/attention/key_selection.h). The choice has no gradient.
//
//   NSA   o = g_c·o_cmp + g_s·o_sel + g_w·o_win (Yuan et al. 2025, "Native Sparse Attention", arXiv 2502.11089, §3)
//         o_cmp: attention to one row for each whole block of `block` keys, every `stride` keys: their mean, or a
//                learned map of them (block_compression.h)
//         o_sel: to `count` blocks of `select` keys, whose score is the sum of the weights that the heads of a KV head
//                give these rows, each counted by its overlap in strides; the first `initial` blocks and the last
//                `local` ones are always among them
//         o_win: to a window
//   MoBA  the `topk` blocks with the largest q·(mean key), the query's own always among them; each query head chooses
//         for itself (Lu et al. 2025, "MoBA", arXiv 2502.13189, §2.2)
//   MSA   the `count` blocks that hold the largest index scores, the last `local` ones always among them. The index has
//         a query for each KV head and one key, of their own maps and norms (MiniMax-M3, 2026)
//   DSA   the `topk` keys with the largest index score, for all heads (DeepSeek-AI 2025, "DeepSeek-V3.2", §2.1);
//         as a layer: MlaOptions::topk
//
// q is [batch, heads, m, d], k [batch, kv_heads, n, d], v [batch, kv_heads, n, dv]. All of these are causal, aligned at
// the end. Blocks are counted from the first key, padding included. Means and scores take the real keys of a block, and
// a block of padding is never chosen. The scores are O(m·n/stride) or O(m·n/block); those of MSA and DSA are O(m·n).
#pragma once

#include <sluice/layers/attention/block_compression.h>
#include <sluice/layers/nn/heads.h>
#include <sluice/layers/nn/norm.h>
#include <sluice/layers/nn/pass.h>
#include <sluice/ops/attention/key_selection.h>

#include <optional>

namespace sluice {

/// What NSA, MoBA and MSA share.
struct SelectedOptions {
  std::optional<double> scale = std::nullopt;  // of q·k in attention; default 1/√d
  Tensor keys = {};                            // bool [batch or 1, n]: false marks padding
  double dropout = 0;                          // on the weights
};

/// Sizes of NSA; those of the paper.
struct NsaSizes {
  int64_t block = 32, stride = 16;  // keys of a compressed block, from one to the next; stride divides block and select
  int64_t select = 64, count = 16;  // keys of a chosen block; blocks of a query, initial and local ones included
  int64_t window = 512;
  int64_t initial = 1, local = 2;

  static void describe(auto& o, auto& f) {
    f("block", o.block, at_least(1), "keys of a compressed block");
    f("stride", o.stride, at_least(1), "from one compressed block to the next; divides block and select");
    f("select", o.select, at_least(1), "keys of a selected block");
    f("count", o.count, at_least(1), "selected blocks of a query, initial and local ones included");
    f("window", o.window, at_least(1), "keys of the window, a query's own position included");
    f("initial", o.initial, at_least(0), "first blocks, always selected");
    f("local", o.local, at_least(1), "last blocks up to a query's own, always selected");
  }
};
/// Throws ValueError for sizes that do not fit: a stride that does not divide, initial + local > count.
void check_nsa(const char* op, const NsaSizes& sizes);
/// The selected blocks, bool [batch, kv_heads, m, ⌈n/select⌉].
Tensor nsa_blocks(const Tensor& q, const Tensor& k, const NsaSizes& sizes, const SelectedOptions& options = {});
/// `gates` [batch, heads, m, 3]: of the compressed, selected and window branch. The branches share k and v.
Tensor nsa_attention(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& gates, const NsaSizes& sizes,
                     const SelectedOptions& options = {}, Rng* rng = nullptr);
/// Keys and values of each branch of NSA.
struct NsaKeys {
  BlockRows compressed_k;         // of the whole blocks, [batch, kv_heads, blocks, d]
  Tensor compressed_v;            // [batch, kv_heads, blocks, dv]
  Tensor selected_k, selected_v;  // [batch, kv_heads, n, ·]
  Tensor window_k, window_v;      // the same
};
/// The keys are those of the whole sequence, also where the queries are a piece of it.
Tensor nsa_attention(const Tensor& q, const NsaKeys& keys, const Tensor& gates, const NsaSizes& sizes,
                     const SelectedOptions& options = {}, Rng* rng = nullptr);

/// Blocks of MoBA.
struct MobaSizes {
  int64_t block = 256, topk = 4;

  static void describe(auto& o, auto& f) {
    f("block", o.block, at_least(1), "keys of a block");
    f("topk", o.topk, at_least(1), "blocks of a query, its own included");
  }
};
/// The selected blocks, bool [batch, heads, m, ⌈n/block⌉].
Tensor moba_blocks(const Tensor& q, const Tensor& k, const MobaSizes& sizes, const SelectedOptions& options = {});
Tensor moba_attention(const Tensor& q, const Tensor& k, const Tensor& v, const MobaSizes& sizes,
                      const SelectedOptions& options = {}, Rng* rng = nullptr);

/// Blocks of MSA; those of MiniMax-M3.
struct MsaSizes {
  int64_t block = 128, count = 16, local = 1;
  bool shared_choice = false;

  static void describe(auto& o, auto& f) {
    f("block", o.block, at_least(1), "keys of a block");
    f("count", o.count, at_least(1), "blocks of a query, local ones included");
    f("local", o.local, at_least(1), "last blocks up to a query's own, always selected");
    f("shared_choice", o.shared_choice, "all KV heads have the same blocks, by the largest of their scores");
  }
};
/// The selected blocks, bool [batch, kv_heads, m, ⌈n/block⌉], with a shared choice [batch, 1, m, ⌈n/block⌉], of the
/// index queries [batch, kv_heads, m, di] and keys [batch, 1, n, di]. Throws ValueError for local > count.
Tensor msa_blocks(const Tensor& index_q, const Tensor& index_k, const MsaSizes& sizes,
                  const SelectedOptions& options = {});
Tensor msa_attention(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& index_q, const Tensor& index_k,
                     const MsaSizes& sizes, const SelectedOptions& options = {}, Rng* rng = nullptr);

/// attention() to the `topk` keys with the largest index score. Causality, padding and documents of the mask decide
/// which keys compete; its pairs and blocks restrict the attention alone. Gathers the keys where that is faster
/// (gathered_keys.h), otherwise masks pairs.
Tensor dsa_attention(const Tensor& q, const Tensor& k, const Tensor& v, const KeyIndex& index, int64_t topk,
                     const AttentionOptions& options = {.mask = {.causal = true}}, Rng* rng = nullptr);

// -- layers: x [batch, n, dim] → the same shape, always causal. A stream keeps kv_heads·(dk + dv) numbers per token,
// NSA another kv_heads·(dk + dv)/stride of compressed rows. They do not read segments: a block would span documents. -

struct NsaAttentionOptions {
  using Layer = struct NsaAttention;
  HeadsOptions heads;  // the layer sets causal = true
  NsaSizes sizes = {};
  bool separate_keys = false;
  Compression compression = Compression::mean;
  int64_t compression_hidden = 0;

  static void describe(auto& o, auto& f) {
    f.nested("", o.heads);
    f.nested("", o.sizes);
    f("separate_keys", o.separate_keys, "each branch has keys and values of its own, as in the paper");
    f("compression", o.compression, "a block's row: the mean of its keys, or a linear map or an MLP of all of them");
    f("compression_hidden", o.compression_hidden, at_least(0), "of mlp, its hidden layer; 0: block*head_dim");
  }
};

/// The gates are σ(x·Wg), three for every head. Keys are compressed after RoPE. With separate_keys a stream keeps three
/// times as many numbers.
struct NsaAttention {
  static constexpr const char* type = "NsaAttention";
  NsaAttentionOptions options{};
  Heads heads;                                            // k and v are those of the selected branch
  Linear compressed_k, compressed_v, window_k, window_v;  // with separate_keys
  BlockCompression k_compression, v_compression;
  Linear gate;  // dim → heads·3, per head [compressed | selected | window]

  NsaAttention() = default;
  /// Throws ValueError for options that do not fit.
  NsaAttention(NsaAttentionOptions o, Rng& rng);
  /// All other options have their defaults.
  NsaAttention(HeadsOptions o, Rng& rng) : NsaAttention(NsaAttentionOptions{.heads = o}, rng) {}
  Tensor operator()(const Tensor& x, const Pass& pass = {}) const;
  SLUICE_PARTS(heads, compressed_k, compressed_v, window_k, window_v, k_compression, v_compression, gate);

 private:
  /// Keys and values of the whole blocks; `real` marks the real rows. A stream keeps the results of earlier steps.
  std::pair<BlockRows, Tensor> compressed(Call& call, const Tensor& k, const Tensor& v, const Tensor& real) const;
};

struct MobaAttentionOptions {
  using Layer = struct MobaAttention;
  HeadsOptions heads;  // the layer sets causal = true
  MobaSizes sizes = {};

  static void describe(auto& o, auto& f) {
    f.nested("", o.heads);
    f.nested("", o.sizes);
  }
};

struct MobaAttention {
  static constexpr const char* type = "MobaAttention";
  MobaAttentionOptions options{};
  Heads heads;

  MobaAttention() = default;
  /// Throws ValueError for options that do not fit.
  MobaAttention(MobaAttentionOptions o, Rng& rng);
  /// All other options have their defaults.
  MobaAttention(HeadsOptions o, Rng& rng) : MobaAttention(MobaAttentionOptions{.heads = o}, rng) {}
  Tensor operator()(const Tensor& x, const Pass& pass = {}) const;
  SLUICE_PARTS(heads);
};

struct MsaAttentionOptions {
  using Layer = struct MsaAttention;
  HeadsOptions heads;  // the layer sets causal = true
  MsaSizes sizes = {};
  int64_t index_dim = 0;  // di; 0 means head_dim
  bool qk_norm = true;
  double norm_eps = 1e-6;

  static void describe(auto& o, auto& f) {
    f.nested("", o.heads);
    f.nested("", o.sizes);
    f("index_dim", o.index_dim, at_least(0), "di, channels of the index's queries and of its key; 0: head_dim");
    f("qk_norm", o.qk_norm, "RMSNorm of each head of q and k, before RoPE; one weight [dk] for all heads");
    f("norm_eps", o.norm_eps, at_least(0), "of all norms");
  }
};

/// RoPE turns as many channels of the index as of q and k. A stream keeps index_dim more numbers per token.
struct MsaAttention {
  static constexpr const char* type = "MsaAttention";
  MsaAttentionOptions options{};
  Heads heads;
  Norm q_norm, k_norm;
  Linear index_q, index_k;  // dim → kv_heads·di; dim → di
  Norm index_q_norm, index_k_norm;

  MsaAttention() = default;
  /// Throws ValueError for options that do not fit.
  MsaAttention(MsaAttentionOptions o, Rng& rng);
  /// All other options have their defaults.
  MsaAttention(HeadsOptions o, Rng& rng) : MsaAttention(MsaAttentionOptions{.heads = o}, rng) {}
  Tensor operator()(const Tensor& x, const Pass& pass = {}) const;

  /// What msa_blocks() compares: queries of each KV head, and the keys that they share.
  struct Index {
    Tensor q, k;  // [batch, kv_heads, n, di], [batch, 1, n, di]
  };
  /// The operands of msa_blocks() for x [batch, n, dim]. `position` is the position of the first token. The choice has
  /// no gradient: a loss on the products of q and k trains the index.
  Index index(const Tensor& x, int64_t position = 0) const;
  SLUICE_PARTS(heads, q_norm, k_norm, index_q, index_k, index_q_norm, index_k_norm);
};

}  // namespace sluice
