// A language model of blocks, each with its own mixer and feed-forward layer: today's decoders are lists of these.
//
//   h = N(c·E[tokens]) + P[positions]                        N and P may be absent
//   h ← h + r·N'(m·mixer(N(h)) + m'·beside(N(h)))            for each block; what stands beside the mixer, either
//   h ← h + r·N'(f·feed(N(h)))                               branch, and each norm N, N' may be absent; the branch may
//                                                            be added to α·N(h) instead of h; the feed may read what
//                                                            the mixer reads; N''(feed(N(h))) + N''(experts(h)) may
//                                                            stand in its place
//   logits = cap(a·N(h)·W)                                   W = Eᵀ if tied; cap(s) = t·tanh(s/t)
//
// Of the first transformers (GPT-1, OPT 350M) a block is h ← N(h + mixer(h)), h ← N(h + feed(h)), and the last norm is
// absent. The embedding may be narrower than h: then maps without bias widen it, and narrow what the head reads.
//
// With residual streams (layers/nn/hyper_connection.h) h stands for several of them: a branch reads a mixture, and what
// it makes is added to each with a weight. Their mean, or a learned mixture, is what the last norm reads. Before a
// block n-grams of the tokens may be added to the streams (ngram_injection.h); behind each, an embedding of the token
// that belongs to the block (per_layer_embedding.h). A block's attention may read the keys of a block before it. Other
// streams than these are those of Gemma 3n (alt_up.h): a block reads the first; u + RMS(u·L·R) of the mixer's input u
// is added behind the mixer, and the sum divided by √2.
//
//   Decoder model = load_model_files("Qwen3-0.6B");      // layers/models/load_model_files.h
//   Tensor text = generate(model, prompt, {.tokens = 100}, rng);
#pragma once

#include <sluice/layers/attention/compressed_attention.h>
#include <sluice/layers/attention/diff_attention.h>
#include <sluice/layers/attention/mla.h>
#include <sluice/layers/attention/multi_head_attention.h>
#include <sluice/layers/attention/qsa_attention.h>
#include <sluice/layers/attention/selected_attention.h>
#include <sluice/layers/linear_attention/delta_net.h>
#include <sluice/layers/linear_attention/kda.h>
#include <sluice/layers/linear_attention/lightning_attention.h>
#include <sluice/layers/linear_attention/mamba.h>
#include <sluice/layers/linear_attention/mamba2.h>
#include <sluice/layers/linear_attention/mlstm.h>
#include <sluice/layers/linear_attention/rg_lru.h>
#include <sluice/layers/models/alt_up.h>
#include <sluice/layers/models/ngram_injection.h>
#include <sluice/layers/models/per_layer_embedding.h>
#include <sluice/layers/nn/gated_short_convolution.h>
#include <sluice/layers/nn/hyper_connection.h>
#include <sluice/layers/nn/mlp.h>
#include <sluice/layers/nn/moe.h>

#include <optional>
#include <variant>
#include <vector>

namespace sluice {

/// Which norms stand around a branch of a block: before it, and between it and the sum.
struct DecoderNorms {
  bool before = true;  // the branch reads N(h)
  bool after = false;  // N' of the branch's output is added
  double carried = 0;  // α: the sum begins with α·N(h) (MiniMax-01); 0: with h
};

/// The token mixers of a block, without residual and without a norm of their own before them. monostate: none.
using DecoderMixerOptions =
    std::variant<MultiHeadAttentionOptions, MlaOptions, GatedDeltaNetOptions, KdaOptions, Mamba2Options, MambaOptions,
                 LightningAttentionOptions, GatedShortConvolutionOptions, QsaAttentionOptions,
                 CompressedAttentionOptions, RgLruOptions, MlstmOptions, MsaAttentionOptions, DiffAttentionOptions,
                 std::monostate>;
using DecoderMixer =
    std::variant<MultiHeadAttention, Mla, GatedDeltaNet, Kda, Mamba2, Mamba, LightningAttention, GatedShortConvolution,
                 QsaAttention, CompressedAttention, RgLru, Mlstm, MsaAttention, DiffAttention, std::monostate>;

/// The layers of a block.
struct DecoderBlockOptions {
  DecoderMixerOptions mixer;                                                   // the token mixer
  DecoderMixerOptions beside = std::monostate{};                               // reads what the mixer reads (Falcon-H1)
  std::variant<std::monostate, GluOptions, MoeOptions, MlpOptions> feed = {};  // monostate: none
  std::optional<MoeOptions> experts = {};  // beside the feed; they read h itself, and N'' stands behind both (Gemma 4)
  int64_t keys_of = -1;           // the block before this one whose keys and values its attention reads; −1: its own
  DecoderNorms mixer_norms = {};  // around the mixer and what is beside it
  DecoderNorms feed_norms = {};   // around the feed
  double mixer_factor = 1, beside_factor = 1, feed_factor = 1;  // m, m', f
  bool parallel = false;  // the feed reads the h that the mixer reads: its own N(h), or without that norm the mixer's
  bool scaled = false;    // behind the block h is multiplied by a learned number (Gemma 4)
  std::optional<NgramInjectionOptions> ngrams = {};  // added before the block; needs streams, whose sizes it takes
};

/// A decoder's sizes and blocks.
struct DecoderOptions {
  int64_t vocabulary;                       // tokens
  int64_t dim;                              // width d
  std::vector<DecoderBlockOptions> blocks;  // in order
  NormKind norm = NormKind::rms;            // of all norms of blocks and of the last one
  double norm_eps = 1e-6;                   // their eps
  bool norm_bias = true;                    // of LayerNorm
  bool post_norm = false;                   // N(h + F(h)) in place of h + F(N(h)), and no last norm
  int64_t embedding_dim = 0;                // width of the embedding; 0: dim
  double embedding_scale = 1;               // c
  bool embedding_norm = false;              // N of the embedding (BLOOM)
  int64_t positions = 0;                    // rows of P, a table of learned positions; 0: none
  int64_t position_offset = 0;              // P's row of the first position
  int64_t longest = 0;                      // tokens of the longest text, for a RoPE of short texts; 0: any number
  bool counts_real = false;                 // positions count the real tokens (OPT); needs position_offset >= 1
  double residual_scale = 1;                // r
  std::optional<HyperConnectionOptions> streams =
      {};  // their dim and dtype are set by the decoder; r must be 1, and α 0
  std::optional<PerLayerEmbeddingOptions> per_layer = {};  // an embedding for each block; not with streams
  std::optional<AltUpOptions> alt_up = {};  // streams of Gemma 3n; needs per_layer, whose sums go to all but the first
  bool mixes_streams = false;               // a learned mixture of the streams ends the model, not their mean
  bool tied = false;                        // the head is the embedding
  bool head_bias = false;                   // of a head that is not tied
  double logit_scale = 1;                   // a
  double logit_cap = 0;                     // t; 0: none
  DType dtype = f32;                        // of the embedding, the norms and the head; mixers and feeds have their own
};

/// What a block reads beside the h of the block before it.
struct DecoderBlockInputs {
  Tensor tokens = {};            // i64 [batch, n]: read by a Moe with options.token_table
  Tensor embedded = {};          // p of this block [batch, n, width], with DecoderOptions::per_layer
  AttendedKeys* keys = nullptr;  // see MultiHeadAttention
};

/// One block: h + r·N'(m·mixer(N(h)) + m'·beside(N(h))), or α·N(h) + …; then, or beside that, the same with the feed.
struct DecoderBlock {
  static constexpr const char* type = "DecoderBlock";
  double residual_scale = 1;                                    // r
  double mixer_factor = 1, beside_factor = 1, feed_factor = 1;  // m, m', f
  double mixer_carried = 0, feed_carried = 0;                   // α of DecoderNorms
  bool parallel = false;                                        // see DecoderBlockOptions
  bool post_norm = false;                                       // see DecoderOptions
  NgramInjection ngrams;                                        // may be absent; Decoder calls it
  HyperConnection mixer_streams, feed_streams;                  // absent without streams
  Norm mixer_norm, mixer_post_norm, feed_norm, feed_post_norm;
  Norm feed_own_norm, experts_norm;  // N'' of the feed and of the experts beside it
  DecoderMixer mixer, beside = std::monostate{};
  std::variant<std::monostate, Glu, Moe, Mlp> feed;
  Moe experts;   // beside the feed; may be absent
  AltUp alt_up;  // may be absent, as `laurel`
  Laurel laurel;
  PerLayerGate per_layer;  // may be absent
  Tensor scale;            // [1], of DecoderBlockOptions::scaled

  DecoderBlock() = default;
  /// A block of a model with options `o`.
  DecoderBlock(const DecoderBlockOptions& block, const DecoderOptions& o, Rng& rng);
  /// x [batch, n, dim], or streams·dim → the same shape.
  Tensor operator()(const Tensor& x, const Pass& pass = {}, const DecoderBlockInputs& inputs = {}) const;
  SLUICE_PARTS(ngrams, alt_up, mixer_streams, mixer_norm, mixer, beside, mixer_post_norm, laurel, feed_streams,
               feed_norm, feed, feed_own_norm, experts, experts_norm, feed_post_norm, per_layer, scale);

 private:
  Tensor branches(const Tensor& x, const Pass& pass, const DecoderBlockInputs& inputs) const;
};

/// Embedding, positions, blocks, norm, head.
struct Decoder {
  static constexpr const char* type = "Decoder";
  static constexpr bool logits_of_hidden = true;  // see generate()
  DecoderOptions options{};
  /// True: a forward pass with history keeps what each block reads and nothing inside it; backward() runs the block
  /// again (see checkpoint()), which takes a third more time. The pass's `rng` must live until then. Blocks that share
  /// keys keep all.
  bool recompute = false;
  Embedding embedding, positions;  // the second may be absent
  Linear project_in, project_out;  // of an embedding of another width: embedding_dim → dim, and back
  Norm embedding_norm;             // may be absent
  PerLayerEmbedding per_layer;     // may be absent
  AltUpStreams alt_up;             // may be absent
  std::vector<DecoderBlock> blocks;
  HyperConnection streams;  // reads those behind the last block, with mixes_streams
  Norm norm;
  Linear head;  // absent if tied

  Decoder() = default;
  /// Throws ValueError for no vocabulary, for positions that begin behind the table, for blocks that are not `dim` wide
  /// or that streams or post_norm do not fit, and for one with `beside` alone.
  Decoder(DecoderOptions o, Rng& rng);
  /// tokens i64 [batch, n] → logits [batch, n, vocabulary].
  Tensor operator()(const Tensor& tokens, const Pass& pass = {}) const { return logits(hidden(tokens, pass)); }
  /// tokens i64 [batch, n] → the last norm's output [batch, n, dim]. ValueError for a token behind the last of the
  /// learned positions, or behind the longest text.
  Tensor hidden(const Tensor& tokens, const Pass& pass = {}) const;
  /// h [..., dim] → logits [..., vocabulary]. A long prompt needs those of its last row only.
  Tensor logits(const Tensor& h) const;
  SLUICE_PARTS(embedding, project_in, embedding_norm, positions, per_layer, alt_up, blocks, streams, norm, project_out,
               head);
};

}  // namespace sluice
