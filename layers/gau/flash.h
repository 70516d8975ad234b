// FLASH (Hua et al. 2022): a gated attention unit whose attention is mixed-chunk attention, linear in n.
//
//   x̂ = norm(x)                      (option: half of its channels are shifted by one token)
//   U = φ(x̂·Wu), V = φ(x̂·Wv)  [n, e]        Z = φ(x̂·Wz)  [n, s]
//   Qquad, Kquad, Qlin, Klin = γ_i ⊙ Z + β_i, i = 0 … 3     (RoPE on all four, positions over the whole sequence)
//   y = x + (U ⊙ (quad + lin))·Wo                            (layers/gau/mixed_chunk.h)
//
// Cost: 2n(3de + ds) + 2nC(s + e) + 4nse operations. A causal stream keeps at most se + C(2s + e) numbers, for any
// length: 655 360 for d = 768, e = 1536, s = 128, C = 256.
#pragma once

#include <sluice/layers/gau/gau.h>
#include <sluice/layers/gau/mixed_chunk.h>

namespace sluice {

struct FlashOptions {
  using Layer = struct Flash;
  int64_t dim;
  int64_t expansion = 0;  // e; 0 means 2·dim
  int64_t key_dim = 128;  // s
  int64_t chunk = 256;    // C
  bool causal = false;
  Act activation = Act::silu;
  bool linear_bias = true;  // biases of the dense maps, initially 0

  GauKind kind = GauKind::su;
  ChunkScaling scaling = ChunkScaling::su;
  ChunkLength length = ChunkLength::chunk;
  bool count_padding = false, across_chunks = true;  // see MixedChunkOptions
  bool quadratic = true, linear = true;
  int64_t min_length = 1;  // see GauAttentionOptions

  bool use_rope = true;
  RopeOptions rope = {};
  /// Position bias within a chunk. The Toeplitz table covers C positions. The T5 values are multiplied by √s
  /// (lucidrains).
  GauBias bias = GauBias::none;
  T5BucketOptions t5 = {};  // the layer sets t5.causal

  NormKind norm = NormKind::scale;
  double norm_eps = 1e-5;
  /// The first ⌈d/2⌉ channels of x̂ are those of the previous token (lucidrains); 0 if the previous token is padding or
  /// of another document.
  bool token_shift = false;
  double attention_dropout = 0, dropout = 0;

  Init init = Init::xavier();
  /// If > 0, initial γ is N(0, γ_std²) instead of 1. The paper's 0.02 needs a bias: see GauOptions.
  double gamma_std = 0;
  DType dtype = f32;

  static void describe(auto& o, auto& f) {
    f.required("dim", o.dim, at_least(1), "width d");
    f("expansion", o.expansion, at_least(0), "width e of U and V; 0: 2*dim");
    f("key_dim", o.key_dim, at_least(1), "width s of queries and keys");
    MixedChunkOptions::describe_chunks(o, f);
    f("activation", o.activation, "act of U, V and Z");
    f("linear_bias", o.linear_bias, "biases of the dense maps");
    f("use_rope", o.use_rope, "rotate all four");
    f.nested("rope_", o.rope);
    f("bias", o.bias, "b within a chunk: none, Toeplitz over C positions, by RoPE, T5 times sqrt(s)");
    f.nested("", o.t5);
    f("norm", o.norm, "pre-norm");
    f("norm_eps", o.norm_eps, at_least(0), "of the norm");
    f("token_shift", o.token_shift, "the first half of the normed channels comes from the token before");
    f.training("attention_dropout", o.attention_dropout, probability(), "on the quadratic weights");
    f.training("dropout", o.dropout, probability(), "on the branch");
    f.training("gamma_std", o.gamma_std, at_least(0), "initial gamma is N(0, gamma_std^2); 0: ones");
    describe_parameters(o, f);
  }
};

struct Flash {
  static constexpr const char* type = "Flash";
  static constexpr bool adds_input = true;  // the layer is a whole block, with its own residual

  FlashOptions options{};
  Norm norm;
  Linear in;             // dim → e (U) | e (V) | s (Z)
  Linear out;            // e → dim
  Tensor gamma, beta;    // [4, s]: rows for q_quad, k_quad, q_lin, k_lin
  Tensor toeplitz_bias;  // [2·C − 1]
  Tensor rope_bias;      // [2, s]
  Tensor t5_bias;        // [buckets, 1]

  Flash() = default;
  Flash(FlashOptions o, Rng& rng);

  /// x [batch, n, dim] → the same shape. The segments of the pass are documents, see mixed_chunk_attention; the linear
  /// term mixes those that share a chunk. A stream keeps at most s·e + C·(2s + e) numbers per sequence, and ⌈d/2⌉ more
  /// with token_shift. Throws ValueError in a stream unless causal.
  Tensor operator()(const Tensor& x, const Pass& pass = {}) const;

  /// The bias as the table [1, 2·length − 1] for mixed_chunk_attention; undefined without a bias.
  Tensor relative_bias(int64_t length) const;

  SLUICE_PARTS(norm, in, out, gamma, beta, toeplitz_bias, rope_bias, t5_bias);

 private:
  struct Projected {
    Tensor gate, v;                       // [batch, n, e]; U = φ(gate)
    Tensor q_quad, k_quad, q_lin, k_lin;  // [batch, n, s]
  };
  Projected project(const Tensor& normed, int64_t position) const;
};

}  // namespace sluice
