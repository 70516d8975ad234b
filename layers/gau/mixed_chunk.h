// Mixed-chunk attention (Hua et al. 2022, FLASH): exact attention inside chunks of C tokens, linear attention
// between the chunks g = 1 … G.
//
//   quad_g = act(Qquad_g·Kquad_gᵀ, b, mask, L)·V_g           (layers/gau/gau_attention.h; L = C)
//   lin_g  = 1/N_g · Qlin_g · Σ_h Klin_hᵀ·V_h                all h; when causal h < g only: lin_1 = 0
//   O      = quad + lin
//
// The linear term has no feature map and no normaliser beside N. When not causal it includes the own chunk:
// pairs inside a chunk count in both terms. O(n·C·(s + e) + n·s·e) time; no n×n matrix exists at any time.
#pragma once

#include <sluice/layers/gau/gau_attention.h>
#include <sluice/layers/nn/pass.h>

namespace sluice {

/// N_g of the linear term, where "visible chunks" are the h of its sum; 1/0 counts as 0.
enum class ChunkScaling {
  su,          // number of real tokens in the visible chunks: n, or (g − 1)·C when causal (Su 2022)
  lucid,       // C when causal, n when not (lucidrains)
  eq,          // 1: the equations as printed
  paper_code,  // C × number of visible chunks (the appendix: a segment mask with rows divided by their sum);
               // equals su as long as every visible chunk is full
  chunk,       // C, causal or not
};
constexpr const char* choices(ChunkScaling) { return "su lucid eq paper_code chunk"; }
inline constexpr const char* kChunkScalingMeaning =
    "N of the linear term: su the real tokens in the visible chunks; lucid C if causal, else n; eq 1; paper_code C "
    "times the number of visible chunks; chunk C";
/// L of the quadratic term.
enum class ChunkLength {
  chunk,    // C in every row, also in a shorter last chunk
  visible,  // number of keys the row may see in its chunk
};
constexpr const char* choices(ChunkLength) { return "chunk visible"; }

struct MixedChunkOptions {
  int64_t chunk = 256;  // C; the last chunk may be shorter
  bool causal = false;
  GauKind kind = GauKind::su;
  ChunkScaling scaling = ChunkScaling::su;
  ChunkLength length = ChunkLength::chunk;
  /// ChunkScaling::lucid without causality divides by n with the padding counted, as lucidrains does.
  bool count_padding = false;
  /// false: the linear term stays inside each chunk (lucidrains' reduce_group_non_causal_attn = False).
  bool across_chunks = true;
  /// Ablations: leave a term out.
  bool quadratic = true, linear = true;
  double dropout = 0;  // on the quadratic weights, inverted; needs rng
  int64_t min_length = 1;  // see GauAttentionOptions

  static void describe(auto& o, auto& f) {
    f("chunk", o.chunk, at_least(1), "tokens C of a chunk");
    f("causal", o.causal, "token i sees tokens j <= i");
    f("kind", o.kind, kGauKindMeaning);
    f("scaling", o.scaling, kChunkScalingMeaning);
    f("length", o.length, "L of the quadratic term: C, or visible keys of the row");
    f("count_padding", o.count_padding, "scaling lucid, not causal: n counts padding");
    f("across_chunks", o.across_chunks, "false: the linear term stays inside its chunk");
    f("quadratic", o.quadratic, "false leaves the quadratic term out");
    f("linear", o.linear, "false leaves the linear term out");
    f("min_length", o.min_length, at_least(1), kMinLengthMeaning);
    f.training("dropout", o.dropout, share(), "on the quadratic weights");
  }
};

/// q_quad, k_quad, q_lin, k_lin [batch, heads, n, s], v [batch, heads, n, e] → [batch, heads, n, e]; operands of
/// rank 3 have one head. f32, f64 and bf16.
///
/// `relative_bias` [heads or 1, 2·T − 1], T >= min(n, C): what attention() calls by that name, for T queries and
/// keys of a chunk (ops/attention/relative_bias.h).
/// `key_mask` bool [batch, n], true for real tokens: padded ones get no weight in either term, are not counted
/// in N and L = visible, and may hold NaN.
/// `segments` i64 [batch, n], document numbers that do not decrease: the quadratic term keeps to documents; in
/// the linear term chunks see each other as segment_mask() says, so that documents mix in those chunks which
/// hold several.
/// Throws ShapeError, DTypeError, and ValueError for options that do not go together.
Tensor mixed_chunk_attention(const Tensor& q_quad, const Tensor& k_quad, const Tensor& q_lin, const Tensor& k_lin,
                             const Tensor& v, const MixedChunkOptions& options, const Tensor& relative_bias = {},
                             const Tensor& key_mask = {}, const Tensor& segments = {}, Rng* rng = nullptr);

/// Which chunks may interact, bool [batch, G, G]: row g, column h is true when the ranges [min, max] of the
/// document numbers of chunks g and h overlap, and h < g if causal. A chunk of padding has an empty range.
Tensor segment_mask(const Tensor& segments, int64_t chunk, bool causal, const Tensor& key_mask = {});

namespace detail {
/// ValueError, naming `op`, for options that do not go together.
void check_mixed_chunk(const char* op, const MixedChunkOptions& o);
/// mixed_chunk_attention() of a layer's tokens, with the masks and the generator of the call. A stream, which must be
/// causal, keeps s·e + C·(2s + e) numbers a head, whatever its length. `relative_bias` covers C tokens in a stream.
Tensor mixed_chunk_attention(Call& call, const Tensor& q_quad, const Tensor& k_quad, const Tensor& q_lin,
                             const Tensor& k_lin, const Tensor& v, const MixedChunkOptions& options,
                             const Tensor& relative_bias = {});
}  // namespace detail

}  // namespace sluice
