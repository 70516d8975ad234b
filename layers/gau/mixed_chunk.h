// Mixed-chunk attention (Hua et al. 2022, FLASH): exact attention inside chunks of C tokens, linear attention
// between the chunks g = 1 … G.
//
//   quad_g = act(Qquad_g·Kquad_gᵀ, b, mask, L)·V_g           (layers/gau/gau_attention.h; L = C by default)
//   lin_g  = 1/N_g · Qlin_g · Σ_h Klin_hᵀ·V_h                all h; if causal h < g only, so lin_1 = 0
//   O      = quad + lin
//
// The linear term has no feature map, and no normaliser except N. If not causal, the linear term includes the chunk g
// itself, so pairs inside a chunk count in both terms. O(n·C·(s + e) + n·s·e) time; no n×n matrix exists at any time.
#pragma once

#include <sluice/layers/gau/gau_attention.h>
#include <sluice/layers/nn/pass.h>

namespace sluice {

/// N_g of the linear term. The visible chunks of g are the chunks h of its sum. For N_g = 0 the factor 1/N_g is 0.
enum class ChunkScaling {
  su,          // number of real tokens in the visible chunks: n, or (g − 1)·C if causal (Su 2022)
  lucid,       // C if causal, otherwise n (lucidrains)
  eq,          // 1, as in the printed equations
  paper_code,  // C × number of visible chunks (the appendix: a segment mask whose rows are divided by their sum);
               // equals su if all visible chunks are full; a chunk of padding alone is not visible
  chunk,       // C
};
constexpr const char* choices(ChunkScaling) { return "su lucid eq paper_code chunk"; }
/// L of the quadratic term.
enum class ChunkLength {
  chunk,    // C in every row, also in a shorter last chunk
  visible,  // number of keys that the row may see in its chunk
};
constexpr const char* choices(ChunkLength) { return "chunk visible"; }

struct MixedChunkOptions {
  int64_t chunk = 256;  // C; the last chunk may be shorter
  bool causal = false;
  GauKind kind = GauKind::su;
  ChunkScaling scaling = ChunkScaling::su;
  ChunkLength length = ChunkLength::chunk;
  /// With ChunkScaling::lucid and not causal, n includes padding, as in lucidrains.
  bool count_padding = false;
  /// false: the linear term of a chunk sums over this chunk only (lucidrains' reduce_group_non_causal_attn = False).
  bool across_chunks = true;
  /// Ablations: false leaves the term out.
  bool quadratic = true, linear = true;
  double dropout = 0;      // on the quadratic weights, inverted; needs rng
  int64_t min_length = 1;  // see GauAttentionOptions

  static void describe(auto& o, auto& f) {
    describe_chunks(o, f);
    f.training("dropout", o.dropout, probability(), "on the quadratic weights");
  }
  /// All but the dropout; `o` may be the options of a layer.
  static void describe_chunks(auto& o, auto& f) {
    f("chunk", o.chunk, at_least(1), "tokens C of a chunk");
    f("causal", o.causal, "token i sees tokens j <= i");
    GauAttentionOptions::describe_kind(o, f);
    f("scaling", o.scaling,
      "N of the linear term: su the real tokens in the visible chunks; lucid C if causal, else n; eq 1; paper_code C "
      "times the number of visible chunks; chunk C");
    f("length", o.length, "L of the quadratic term: C, or visible keys of the row");
    f("count_padding", o.count_padding, "scaling lucid, not causal: n counts padding");
    f("across_chunks", o.across_chunks, "false: the linear term stays inside its chunk");
    f("quadratic", o.quadratic, "false leaves the quadratic term out");
    f("linear", o.linear, "false leaves the linear term out");
  }
  /// The options among those of a layer, whose attention_dropout becomes the dropout.
  static MixedChunkOptions of(const auto& o) {
    return {o.chunk,         o.causal,    o.kind,   o.scaling,           o.length,    o.count_padding,
            o.across_chunks, o.quadratic, o.linear, o.attention_dropout, o.min_length};
  }
};

/// q_quad, k_quad, q_lin, k_lin [batch, heads, n, s], v [batch, heads, n, e] → [batch, heads, n, e]. Operands of rank 3
/// have one head. f32, f64 and bf16.
///
/// `relative_bias` must be [heads or 1, 2·T − 1], T >= min(n, C): the relative_bias of attention() for T queries and T
/// keys of a chunk (ops/attention/relative_bias.h).
/// `key_mask` must be bool [batch, n], true for real tokens. Padding has no weight in either term, is not counted in N
/// (except with count_padding) and in L = visible, and may hold NaN.
/// `segments` must be i64 [batch, n]: document numbers that do not decrease. In the quadratic term, tokens see their
/// own document only. In the linear term, chunks see each other according to segment_mask(), so documents mix in chunks
/// that contain several documents.
/// Throws ShapeError, DTypeError, and ValueError for options that do not go together.
Tensor mixed_chunk_attention(const Tensor& q_quad, const Tensor& k_quad, const Tensor& q_lin, const Tensor& k_lin,
                             const Tensor& v, const MixedChunkOptions& options, const Tensor& relative_bias = {},
                             const Tensor& key_mask = {}, const Tensor& segments = {}, Rng* rng = nullptr);

/// Which chunks see each other, bool [batch, G, G]. Row g, column h is true if the ranges [min, max] of the document
/// numbers of chunks g and h overlap, and if causal also h < g. A chunk of padding only has an empty range.
Tensor segment_mask(const Tensor& segments, int64_t chunk, bool causal, const Tensor& key_mask = {});

namespace detail {
/// Throws ValueError, naming `op`, for options that do not go together.
void check_mixed_chunk(const char* op, const MixedChunkOptions& o);
/// mixed_chunk_attention() of a layer's tokens, with the masks and the generator of the call. A stream must be causal,
/// and keeps at most s·e + C·(2s + e) numbers per head, for any length. In a stream `relative_bias` must cover C
/// tokens.
Tensor mixed_chunk_attention(Call& call, const Tensor& q_quad, const Tensor& k_quad, const Tensor& q_lin,
                             const Tensor& k_lin, const Tensor& v, const MixedChunkOptions& options,
                             const Tensor& relative_bias = {});
}  // namespace detail

}  // namespace sluice
