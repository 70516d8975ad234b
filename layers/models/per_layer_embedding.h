// Per-layer embeddings of a decoder (Gemma 3n, Gemma 4): each block has an embedding of its own, which a gate lets in
// behind the feed.
//
//   p = (RMS(h₀·W/√dim) + √w·E[tokens])/√2          [blocks, w] for each token; h₀ is what the first block reads
//   h ← h + RMS'((φ(h·W_in) ⊙ p_i)·W_out)           behind block i; with AltUp it is added to the streams behind the
//                                                   first, which is what it reads, perhaps times a weight
#pragma once

#include <sluice/layers/nn/linear.h>
#include <sluice/layers/nn/norm.h>
#include <sluice/ops/elementwise/activation.h>

namespace sluice {

struct PerLayerEmbeddingOptions {
  int64_t vocabulary;               // rows of E
  int64_t width;                    // w
  Act activation = Act::gelu_tanh;  // φ
  int64_t dim = 0, blocks = 0;      // set by the decoder
  double norm_eps = 1e-6;           // of RMS; set by the decoder
  DType dtype = f32;                // set by the decoder
};

/// E and W: what all blocks share.
struct PerLayerEmbedding {
  static constexpr const char* type = "PerLayerEmbedding";
  PerLayerEmbeddingOptions options{};
  Embedding table;  // [vocabulary, blocks·w]
  Linear map;       // dim → blocks·w
  Norm norm;        // of the w channels of one block

  PerLayerEmbedding() = default;
  /// Throws ValueError for a vocabulary or a width below 1.
  PerLayerEmbedding(PerLayerEmbeddingOptions o, Rng& rng);
  /// tokens i64 [batch, n], h₀ [batch, n, dim] → p [batch, n, blocks, w]. A token behind the last row of E, as images
  /// and sounds have them, has row 0.
  Tensor operator()(const Tensor& tokens, const Tensor& h) const;
  SLUICE_PARTS(table, map, norm);
};

/// W_in, W_out and RMS' of one block.
struct PerLayerGate {
  static constexpr const char* type = "PerLayerGate";
  Act activation = Act::gelu_tanh;  // φ
  Linear in, out;
  Norm norm;

  PerLayerGate() = default;
  PerLayerGate(const PerLayerEmbeddingOptions& o, Rng& rng);
  /// What is added to h [batch, n, dim], of the p_i [batch, n, w] of this block.
  Tensor operator()(const Tensor& h, const Tensor& p) const;
  SLUICE_PARTS(in, out, norm);
};

}  // namespace sluice
