// A model of FLASH layers (Hua et al. 2022), and the block of the paper's ablation MC-TFM++.
#pragma once

#include <sluice/layers/gau/flash.h>
#include <sluice/layers/nn/mlp.h>

#include <vector>

namespace sluice {

struct ScaledSinusoidalOptions {
  using Layer = struct ScaledSinusoidal;
  int64_t dim;               // even
  double initial_scale = 0;  // 0 means 1/√dim (JunnYu's port); lucidrains uses 1
  double base = 10000;
  DType dtype = f32;

  static void describe(auto& o, auto& f) {
    f.required("dim", o.dim, at_least(2), "even width");
    f.training("initial_scale", o.initial_scale, any_number(), "0: dim^(-1/2)");
    f("base", o.base, above(0), "of the frequencies");
    f.training("dtype", o.dtype, "of the parameters");
  }
};

/// The absolute positions of FLASH: scale · [sin(p·ω_c), cos(p·ω_c)], ω_c = base^(−2c/dim), with one learned scale.
struct ScaledSinusoidal {
  static constexpr const char* type = "ScaledSinusoidal";
  ScaledSinusoidalOptions options{};
  Tensor scale;  // [1]

  ScaledSinusoidal() = default;
  explicit ScaledSinusoidal(ScaledSinusoidalOptions o);
  /// Returns x [batch, n, dim] plus the rows for the positions of x in the whole sequence.
  Tensor operator()(const Tensor& x, const Pass& pass = {}) const;
  SLUICE_PARTS(scale);
};

struct FlashBlockOptions {
  using Layer = struct FlashBlock;
  int64_t layers = 2;
  FlashOptions layer;

  static void describe(auto& o, auto& f) {
    f("layers", o.layers, between(1, 10000), "number of layers");
    f.nested("", o.layer);
  }
};

/// A stack of Flash layers. Two layers replace one Transformer block.
struct FlashBlock {
  static constexpr const char* type = "FlashBlock";
  static constexpr bool adds_input = true;  // each layer has its own residual
  FlashBlockOptions options{};
  std::vector<Flash> layers;

  FlashBlock() = default;
  FlashBlock(FlashBlockOptions o, Rng& rng);
  /// x [batch, n, dim] → the same shape. Every layer receives the pass.
  Tensor operator()(const Tensor& x, const Pass& pass = {}) const;
  SLUICE_PARTS(layers);
};

struct FlashModelOptions {
  using Layer = struct FlashModel;
  int64_t layers;
  FlashOptions layer;      // layer.dim and layer.dtype are also those of the model
  int64_t vocabulary = 0;  // > 0: the input is tokens, i64 [batch, n]; 0: vectors [batch, n, dim]
  int64_t outputs = 0;     // > 0: logits [batch, n, outputs]; 0: the normed vectors [batch, n, dim]
  bool positions = true;   // add ScaledSinusoidal
  double initial_scale = 0;
  std::optional<NormKind> final_norm = std::nullopt;  // after the layers; default: layer.norm (lucidrains: LayerNorm)
  double embedding_std = 0.02, dropout = 0;           // dropout applies to the embedded input

  static void describe(auto& o, auto& f) {
    f.required("layers", o.layers, between(1, 10000), "number of layers");
    f("vocabulary", o.vocabulary, at_least(0), "> 0: x is i64 tokens [batch, n]; 0: vectors [batch, n, dim]");
    f("outputs", o.outputs, at_least(0), "> 0: logits of this width; 0: the normed vectors");
    f("positions", o.positions, "add scaled sinusoidal positions");
    f.training("initial_scale", o.initial_scale, any_number(), "of the positions; 0: dim^(-1/2)");
    f("final_norm", o.final_norm, "after the layers; null: the layers' norm");
    f.training("embedding_std", o.embedding_std, at_least(0), "of initial embeddings");
    f.training("model_dropout", o.dropout, probability(), "on the embedded input");
    f.nested("", o.layer);
  }
};

/// Embedding (option) → positions (option) → Flash layers → norm → logits (option).
struct FlashModel {
  static constexpr const char* type = "FlashModel";

  FlashModelOptions options{};
  std::optional<Embedding> embedding;
  std::optional<ScaledSinusoidal> positions;
  FlashBlock body;
  Norm norm;
  std::optional<Linear> head;

  FlashModel() = default;
  FlashModel(FlashModelOptions o, Rng& rng);
  /// Tokens or vectors → logits or vectors, according to the options. Positions count from 0 through all documents.
  /// Throws ValueError in a stream unless the layers are causal.
  Tensor operator()(const Tensor& x, const Pass& pass = {}) const;

  SLUICE_PARTS(embedding, positions, body, norm, head);
};

struct McTfmOptions {
  using Layer = struct McTfm;
  int64_t dim;
  int64_t heads = 8;
  int64_t hidden = 0;  // of the GLU; 0 means the default of GluOptions
  int64_t chunk = 256;
  bool causal = false;
  GauKind kind = GauKind::softmax;
  ChunkScaling scaling = ChunkScaling::su;
  ChunkLength length = ChunkLength::chunk;
  bool count_padding = false, across_chunks = true;  // see MixedChunkOptions
  bool quadratic = true, linear = true;
  int64_t min_length = 1;  // see GauAttentionOptions
  bool use_rope = true;
  RopeOptions rope = {};
  GluKind glu = GluKind::swiglu;
  NormKind norm = NormKind::layer;
  double norm_eps = 1e-5;
  bool linear_bias = true;
  double attention_dropout = 0, dropout = 0;
  Init init = Init::xavier();
  DType dtype = f32;

  static void describe(auto& o, auto& f) {
    f.required("dim", o.dim, at_least(1), "width d");
    f("heads", o.heads, at_least(1), "number of heads");
    f("hidden", o.hidden, at_least(0), "width of the GLU; 0: 8/3*dim rounded up to a multiple of 8");
    MixedChunkOptions::describe_chunks(o, f);
    f("use_rope", o.use_rope, "rotate all four");
    f.nested("rope_", o.rope);
    f("glu", o.glu, "gate of the GLU");
    f("norm", o.norm, "pre-norms");
    f("norm_eps", o.norm_eps, at_least(0), "of the norms");
    f("linear_bias", o.linear_bias, "biases of the dense maps");
    f.training("attention_dropout", o.attention_dropout, probability(), "on the quadratic weights");
    f.training("dropout", o.dropout, probability(), "on both branches");
    describe_parameters(o, f);
  }
};

/// The block of MC-TFM++, the paper's ablation: a pre-norm Transformer block with a GLU. Its multi-head attention is
/// mixed-chunk attention, by default with softmax.
///
///   q, k, v = heads of norm(x)·W            quad: softmax(q·kᵀ/√dk)·v within chunks
///   q_lin = γ_0 ⊙ q + β_0, k_lin = γ_1 ⊙ k + β_1                 (RoPE on all four)
///   x ← x + (quad + lin)·Wo                 x ← x + GLU(norm(x))
///
/// The paper gives no formulae, and says only that the scheme is the same. The scale-offset pairs here follow FLASH.
struct McTfm {
  static constexpr const char* type = "McTfm";
  static constexpr bool adds_input = true;  // the layer is a whole block, with its own residuals

  McTfmOptions options{};
  Norm attention_norm, glu_norm;
  Linear qkv;          // dim → 3·dim
  Linear out;          // dim → dim
  Tensor gamma, beta;  // [2, dim]: rows for q_lin, k_lin
  Glu glu;

  McTfm() = default;
  McTfm(McTfmOptions o, Rng& rng);
  /// x [batch, n, dim] → the same shape, with the segments of the pass as documents, see mixed_chunk_attention. A
  /// stream keeps at most dk·dk + 3·C·dk numbers per head, since s = e = dk. Throws ValueError in a stream unless
  /// causal.
  Tensor operator()(const Tensor& x, const Pass& pass = {}) const;

  SLUICE_PARTS(attention_norm, qkv, gamma, beta, out, glu_norm, glu);

 private:
  struct Projected {
    Tensor q_quad, k_quad, q_lin, k_lin, v;  // [batch, heads, n, dk]
  };
  Projected project(const Tensor& x, int64_t position) const;
};

}  // namespace sluice
