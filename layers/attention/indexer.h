// Scores for pairs of tokens that choose the keys of attention: the lightning indexer of DeepSeek sparse attention
// (DeepSeek-AI 2025, "DeepSeek-V3.2", §2.1), and two that score pools of B keys (key_pools.h).
//
//   none    q_tj = RoPE(z_t·Wq)_j        k_s = RoPE(LayerNorm(x_s·Wk))
//   gated   q_tj = (z_t·Wq)_j            k_i = Σ_b softmax_b(x_b·G + p_b) ⊙ LayerNorm(x_b·Wk)    GLM-5.3
//   mean    q_tj = RoPE(RMS(z_t·Wq)_j)   k_i = RoPE(RMS(Σ_b x_b·Wk / B))                         Qwen4's QSA
//
//   w_t = x_t·Ww·(h·d)^{−1/2}; in `mean` d^{−1/2}
//   I_ts = Σ_j w_tj relu(q_tj·k_s), or I_ti of pool i
//
// z is the latent of MLA's queries, or x; b runs over the keys of pool i, and p has a row for each place in a pool.
// RoPE turns the first channels, a pool's row by the position of its first key.
#pragma once

#include <sluice/layers/attention/key_pools.h>
#include <sluice/layers/nn/heads.h>
#include <sluice/layers/nn/norm.h>

namespace sluice {

/// How the keys of a pool become one row; `none`: keys stand alone.
enum class IndexPooling { none, gated, mean };

struct IndexerOptions {
  int64_t dim, latent;              // widths of x and z
  int64_t heads = 64, width = 128;  // h and d
  bool use_rope = true;
  RopeOptions rope = {};  // rot_dim: channels that it turns
  Init init = Init::xavier();
  DType dtype = f32;
  IndexPooling pooling = IndexPooling::none;  // set by the layer
  int64_t pool = 1;                           // B
  double norm_eps = 1e-6;                     // of the RMSNorms

  static void describe(auto& o, auto& f) {
    f.required("dim", o.dim, at_least(1), "width of x");
    f.required("latent", o.latent, at_least(1), "width of the queries' latent z");
    f("heads", o.heads, at_least(1), "heads of the index");
    f("width", o.width, at_least(1), "channels of a head and of the one key");
    f("use_rope", o.use_rope, "rotate the first rope_rot_dim channels");
    f.nested("rope_", o.rope);
    f("pool", o.pool, at_least(1), "keys of a pool");
    f("norm_eps", o.norm_eps, at_least(0), "of the RMSNorms");
    describe_parameters(o, f);
  }
};

/// The choice of keys has no gradient: a loss on index_scores() trains the indexer.
struct Indexer {
  static constexpr const char* type = "Indexer";
  IndexerOptions options{};
  Linear q, k, weights;  // latent → h·d; dim → d; dim → h, absent in `mean`
  Norm q_norm, k_norm;   // RMSNorms of `mean`; else LayerNorm of the key, with a bias
  Linear pool_gate;      // G of `gated`, dim → d
  Tensor pool_position;  // p of `gated`, [B, d]

  Indexer() = default;
  /// Throws ValueError for options that do not fit.
  Indexer(IndexerOptions o, Rng& rng);
  /// The operands of index_scores() for x [batch, n, dim] and z [batch, n, latent]; `position` is the position of the
  /// first token. With pools k has the rows [batch, n, ·] that pooled() reads.
  KeyIndex operator()(const Tensor& x, const Tensor& z, int64_t position = 0) const;
  /// The row of each whole pool, [batch, ⌊n/B⌋, d], of the rows of all keys, of which `keys` marks the real ones.
  Tensor pooled(const Tensor& rows, const Tensor& keys = {}) const;

  SLUICE_PARTS(q, k, q_norm, k_norm, weights, pool_gate, pool_position);
};

}  // namespace sluice
