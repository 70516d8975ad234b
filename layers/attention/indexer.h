// The lightning indexer of DeepSeek sparse attention (DeepSeek-AI 2025, "DeepSeek-V3.2", §2.1): scores for pairs of
// tokens that choose the keys of attention.
//
//   q_tj = RoPE(z_t·Wq)_j   k_s = RoPE(LayerNorm(x_s·Wk))   w_t = x_t·Ww·h^{−1/2}
//   I_ts = Σ_j w_tj relu(q_tj·k_s·d^{−1/2})
//
// z is the latent of MLA's queries. RoPE turns the first channels.
#pragma once

#include <sluice/layers/nn/heads.h>
#include <sluice/layers/nn/norm.h>
#include <sluice/ops/attention/key_selection.h>

namespace sluice {

struct IndexerOptions {
  int64_t dim, latent;              // widths of x and z
  int64_t heads = 64, width = 128;  // h and d
  bool use_rope = true;
  RopeOptions rope = {};  // rot_dim: channels that it turns
  Init init = Init::xavier();
  DType dtype = f32;

  static void describe(auto& o, auto& f) {
    f.required("dim", o.dim, at_least(1), "width of x");
    f.required("latent", o.latent, at_least(1), "width of the queries' latent z");
    f("heads", o.heads, at_least(1), "heads of the index");
    f("width", o.width, at_least(1), "channels of a head and of the one key");
    f("use_rope", o.use_rope, "rotate the first rope_rot_dim channels");
    f.nested("rope_", o.rope);
    describe_parameters(o, f);
  }
};

/// The choice of keys has no gradient: a loss on index_scores() trains the indexer.
struct Indexer {
  static constexpr const char* type = "Indexer";
  IndexerOptions options{};
  Linear q, k, weights;  // latent → h·d; dim → d; dim → h
  Norm k_norm;           // LayerNorm with a bias

  Indexer() = default;
  /// Throws ValueError for options that do not fit.
  Indexer(IndexerOptions o, Rng& rng);
  /// The operands of index_scores() for x [batch, n, dim] and z [batch, n, latent]; `position` is the position of the
  /// first token.
  KeyIndex operator()(const Tensor& x, const Tensor& z, int64_t position = 0) const;

  SLUICE_PARTS(q, k, k_norm, weights);
};

}  // namespace sluice
