#include <sluice/layers/gau/mixed_chunk.h>

#include <sluice/core/node.h>
#include <sluice/layers/nn/heads.h>
#include <sluice/ops/basic.h>
#include <sluice/ops/index/gather.h>
#include <sluice/parallel/sequence.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <vector>

namespace sluice {

void detail::check_mixed_chunk(const char* op, const MixedChunkOptions& o) {
  if (o.chunk < 1 || o.chunk > INT32_MAX) fail<ValueError>(op, ": chunk must be in [1, 2^31) — got ", o.chunk);
  if (!o.quadratic && !o.linear) fail<ValueError>(op, ": one of the terms, quadratic or linear, must stay");
  if (o.causal && o.linear && !o.across_chunks)
    fail<ValueError>(op, ": across_chunks = false leaves a causal layer no linear term; set linear = false");
  if (o.count_padding && (o.scaling != ChunkScaling::lucid || o.causal))
    fail<ValueError>(op, ": count_padding belongs to the lucid scaling without causality");
}

namespace {

/// Operands, of rank 4 after checked_operands().
struct Operands {
  Tensor q_quad, k_quad, q_lin, k_lin, v;
};

/// Checks the operands and returns them with rank 4. relative_bias must cover `longest` tokens of a chunk.
Operands checked_operands(const char* op, const Operands& x, const MixedChunkOptions& o, const Tensor& relative_bias,
                          int64_t longest) {
  const int rank = x.v.rank();
  auto four = [rank](const Tensor& t) { return rank == 3 ? unsqueeze(t, 1) : t; };
  bool fits = rank == 3 || rank == 4;
  for (const Tensor* t : {&x.q_quad, &x.k_quad, &x.q_lin, &x.k_lin}) {
    fits = fits && t->rank() == rank && t->shape() == x.q_quad.shape();
    for (int d = 0; fits && d < rank - 1; ++d) fits = t->dim(d) == x.v.dim(d);
  }
  if (!fits)
    fail(op, ": got q_quad=", x.q_quad, ", k_quad=", x.k_quad, ", q_lin=", x.q_lin, ", k_lin=", x.k_lin, ", v=", x.v,
         "; need [batch, heads, n, s] or [batch, n, s] four times, and v [..., n, e]");
  detail::check_mixed_chunk(op, o);
  const int64_t heads = rank == 3 ? 1 : x.v.dim(1);
  const Tensor& b = relative_bias;
  if (b.defined() &&
      (b.rank() != 2 || (b.dim(0) != 1 && b.dim(0) != heads) || b.dim(1) % 2 == 0 || b.dim(1) < 2 * longest - 1))
    fail(op, ": relative_bias=", b, " does not fit; need [", heads, " or 1, 2·T − 1] with T >= ", longest);
  return {four(x.q_quad), four(x.k_quad), four(x.q_lin), four(x.k_lin), four(x.v)};
}

// -- the quadratic term ----------------------------------------------------------------------------------------

/// act(q·kᵀ, b, mask, L)·v for one chunk per batch entry, q [batch, heads, m, s], k and v [batch, heads, n, ·]. The
/// queries are the last m of the n positions.
Tensor within_chunk(const Tensor& q, const Tensor& k, const Tensor& v, const MixedChunkOptions& o,
                    const Tensor& relative_bias, AttentionMask mask, Rng* rng) {
  mask.causal = o.causal;
  const int64_t m = q.dim(2), n = k.dim(2);
  GauAttentionOptions a{
      .kind = o.kind, .constant_length = o.chunk, .min_length = o.min_length, .mask = mask, .dropout = o.dropout};
  a.length = o.length == ChunkLength::chunk ? GauLength::constant : GauLength::visible;
  if (relative_bias.defined())  // the entries of distances −(n − 1) … m − 1; distance 0 is in the middle of the table
    a.relative_bias = narrow(relative_bias, 1, (relative_bias.dim(1) + 1) / 2 - n, n + m - 1);
  return gau_attention(q, k, v, a, rng);
}

/// [batch, heads, G·C, w] → [batch·G, heads, C, w]. A view for one head, and for heads that are themselves a view of
/// [batch, n, heads·w].
Tensor to_chunks(const Tensor& x, int64_t c) {
  const Shape rows{x.dim(0) * (x.dim(2) / c), c, x.dim(1), x.dim(3)};
  return transpose(reshape(transpose(x, 1, 2), rows), 1, 2);
}
Tensor from_chunks(const Tensor& x, int64_t batch, int64_t n) {
  return transpose(reshape(transpose(x, 1, 2), {batch, n, x.dim(1), x.dim(3)}), 1, 2);
}

Tensor quadratic_term(const Operands& x, const MixedChunkOptions& o, const Tensor& relative_bias,
                      const Tensor& key_mask, const Tensor& segments, Rng* rng) {
  const int64_t batch = x.v.dim(0), n = x.v.dim(2), whole = n - n % o.chunk;
  auto part = [&](int64_t first, int64_t count, int64_t c) {  // chunks of c tokens
    auto pieces = [&](const Tensor& t) { return to_chunks(narrow(t, 2, first, count), c); };
    auto rows = [&](const Tensor& t) { return reshape(narrow(t, 1, first, count), {batch * (count / c), c}); };
    AttentionMask mask;
    if (key_mask.defined()) mask.keys = rows(key_mask);
    if (segments.defined()) mask.query_segments = mask.key_segments = rows(segments);
    Tensor y = within_chunk(pieces(x.q_quad), pieces(x.k_quad), pieces(x.v), o, relative_bias, mask, rng);
    return from_chunks(y, batch, count);
  };
  if (n == 0) return x.v;  // a piece in which no chunk begins
  if (whole == n) return part(0, n, o.chunk);
  Tensor tail = part(whole, n - whole, n - whole);
  return whole == 0 ? tail : cat({part(0, whole, o.chunk), tail}, 2);
}

// -- the linear term -------------------------------------------------------------------------------------------

constexpr double kInf = std::numeric_limits<double>::infinity();

/// The lowest and highest document number of each chunk, f64 [batch, G]; ∞ and −∞ for a chunk of padding only.
struct ChunkDocuments {
  Tensor low, high;

  ChunkDocuments(const Tensor& segments, int64_t chunk, const Tensor& key_mask) {
    const Tensor document = to(segments, f64);
    auto of_chunks = [&](double nothing) {  // [batch, G, C], with `nothing` in place of padding
      const Tensor real = key_mask.defined() ? masked_fill(document, logical_not(key_mask), nothing) : document;
      return detail::in_blocks(real, 1, chunk, nothing);
    };
    low = min(of_chunks(kInf), {2}), high = max(of_chunks(-kInf), {2});
  }
  Tensor overlap() const {
    return logical_and(unsqueeze(low, 2) <= unsqueeze(high, 1), unsqueeze(low, 1) <= unsqueeze(high, 2));
  }
};

/// Σ of x [batch, heads, G, w] over the chunks of other ranks that each chunk sees. Document numbers do not decrease.
/// Therefore a chunk sees a chunk of an earlier rank only if that chunk contains the last document of its rank and the
/// seeing chunk begins with this document. A chunk sees a chunk of a later rank only if that chunk contains the first
/// document of its rank and the seeing chunk ends with this document. So each rank sends one sum in each direction.
Tensor of_other_ranks(const ChunkDocuments& d, const Tensor& x, bool causal) {
  auto one_side = [&](bool later) {
    const Tensor edge = later ? d.low : d.high, own = later ? d.high : d.low;
    const double none = later ? kInf : -kInf;
    const Tensor padded = pad(edge, 1, 0, 1, none);  // a rank without chunks needs an edge, too
    const Tensor last = later ? min(padded, {1}, keep) : max(padded, {1}, keep);  // [batch, 1]
    const Tensor counts = logical_and(edge == last, isfinite(edge));
    const Tensor sums = matmul(to(unsqueeze(unsqueeze(counts, 1), 1), x.dtype()), x);  // [batch, heads, 1, w]
    const Tensor theirs = detail::of_ranks_before(last, later), sent = detail::of_ranks_before(sums, later);
    const Tensor mine = unsqueeze(own, 0);  // [1, batch, G] beside [ranks, batch, 1]
    const Tensor seen = logical_and(later ? mine >= theirs : mine <= theirs, isfinite(theirs));
    return matmul(to(unsqueeze(permute(seen, {1, 2, 0}), 1), x.dtype()), permute(squeeze(sent, 3), {1, 2, 0, 3}));
  };
  const Tensor before = one_side(false);
  return causal ? before : before + one_side(true);
}

/// Which chunks see each other.
struct Seen {
  Tensor pairs;  // segment_mask() of this rank's chunks; undefined if documents do not matter
  std::optional<ChunkDocuments> documents;  // if the sequence is split over ranks
};

/// 1/N, as a tensor that broadcasts to [batch, heads, n, 1].
Tensor inverse_count(const MixedChunkOptions& o, int64_t n, const Tensor& key_mask, const Seen& seen,
                     TensorOptions like_v) {
  const int64_t c = o.chunk, chunks = ceil_div(n, c);
  if (o.scaling == ChunkScaling::eq) return full({1, 1, 1, 1}, 1, like_v);
  if (o.scaling == ChunkScaling::chunk || (o.scaling == ChunkScaling::lucid && o.causal))
    return full({1, 1, 1, 1}, 1 / static_cast<double>(c), like_v);
  if (o.count_padding)
    return full({1, 1, 1, 1}, 1 / static_cast<double>(std::max<int64_t>(1, sequence_piece(n).total)), like_v);

  Tensor real = key_mask.defined() ? to(key_mask, like_v.dtype) : ones({1, n}, like_v);
  Tensor count = sum(detail::in_blocks(real, 1, c), {-1});  // [batch or 1, G]
  if (o.scaling == ChunkScaling::paper_code) count = masked_fill(count, count > 0.0, static_cast<double>(c));
  const bool everything = o.scaling == ChunkScaling::lucid;  // N = n, independent of the visible chunks
  if (seen.pairs.defined() && !everything) {
    const Tensor each = unsqueeze(expand(count, {seen.pairs.dim(0), chunks}), -1);
    count = squeeze(matmul(to(seen.pairs, like_v.dtype), each), -1);
    if (in_sequence())
      count = count + squeeze(squeeze(of_other_ranks(*seen.documents, unsqueeze(each, 1), o.causal), 1), -1);
  } else if (o.causal) {
    count = sequence_cumsum(count, 1, {.exclusive = true});
  } else if (everything || o.across_chunks) {
    count = sequence_sum(sum(count, {1}, keep));
  }
  Tensor inverse = masked_fill(reciprocal(count), count == 0.0, 0);
  if (inverse.dim(1) == chunks) inverse = narrow(repeat_interleave(inverse, c, 1), 1, 0, n);
  return unsqueeze(unsqueeze(inverse, 1), -1);
}

Tensor linear_term(const Operands& x, const MixedChunkOptions& o, const Tensor& key_mask, const Tensor& segments) {
  const int64_t n = x.v.dim(2), c = o.chunk;
  const Tensor padding = detail::padding_of(key_mask);  // cleared in both k and v: 0·NaN is NaN
  const Tensor k = detail::filled_tokens(x.k_lin, padding, 0, 2), v = detail::filled_tokens(x.v, padding, 0, 2);
  const bool masked = segments.defined() && o.across_chunks;
  Seen seen;
  if (masked) seen.pairs = segment_mask(segments, c, o.causal, key_mask);
  if (masked && in_sequence()) seen.documents.emplace(segments, c, key_mask);
  Tensor q = x.q_lin * inverse_count(o, n, key_mask, seen, v.options());
  if (o.across_chunks && !masked && !o.causal) return matmul(q, sequence_sum(matmul(transpose(k, -2, -1), v)));
  // One product per chunk is faster than a scan, and the backward pass uses the states for q as well as for k and v.
  Tensor state =
      matmul(transpose(detail::in_blocks(k, 2, c), -2, -1), detail::in_blocks(v, 2, c));  // [batch, heads, G, s, e]
  if (masked) {
    const Shape shape = state.shape();
    const Tensor each = flatten(state, 3, 4);
    Tensor sums = matmul(unsqueeze(to(seen.pairs, v.dtype()), 1), each);
    if (in_sequence()) sums = sums + of_other_ranks(*seen.documents, each, o.causal);
    state = reshape(sums, shape);
  } else if (o.causal) {
    state = sequence_cumsum(state, 2, {.exclusive = true});
  }
  return narrow(flatten(matmul(detail::in_blocks(q, 2, c), state), 2, 3), 2, 0, n);
}

/// Both terms, for all of `total` tokens or for this rank's chunks of them.
Tensor both_terms(const Operands& x, const MixedChunkOptions& o, int64_t total, const Tensor& relative_bias,
                  const Tensor& key_mask, const Tensor& segments, Rng* rng) {
  Tensor y;
  if (o.quadratic) {
    SequenceScope uncut;  // a chunk belongs to one rank
    y = quadratic_term(x, o, relative_bias, key_mask, segments, rng);
  }
  const bool first_chunk = o.causal && total <= o.chunk;  // the only chunk: the linear term is 0
  if (o.linear && !(o.quadratic && first_chunk)) {
    Tensor linear = linear_term(x, o, key_mask, segments);
    y = y.defined() ? y + linear : linear;
  }
  return y;
}

/// A chunk belongs to the rank on which it begins. Other ranks send their rows of the chunk to this rank, and receive
/// the outputs of these rows.
Tensor over_ranks(const Operands& x, const MixedChunkOptions& o, const Tensor& relative_bias, const Tensor& key_mask,
                  const Tensor& segments, Rng* rng) {
  const detail::Sequence& cut = detail::sequence_of(x.v.dim(2));
  const Communicator ranks = cut.communicator;
  const int64_t total = cut.total(), s = x.q_quad.dim(3);
  const auto begin_of_chunk = [&](int64_t row) { return std::min(total, round_up(row, o.chunk)); };
  const auto whole_chunks = [&](int r) {
    return RowRange{begin_of_chunk(cut.piece(r).begin), begin_of_chunk(cut.piece(r).end)};
  };
  const auto there = detail::row_plan(cut, whole_chunks);
  const auto back = std::make_shared<const detail::RowPlan>(detail::RowPlan{there->wanted, there->owned});
  SequenceScope chunks(ranks);
  if (there->owned == there->wanted) return both_terms(x, o, total, relative_bias, key_mask, segments, rng);
  auto fetch = [&](const Tensor& t, int64_t dim) { return t.defined() ? detail::fetch_rows(t, dim, ranks, there) : t; };
  const Tensor rows = fetch(cat({x.q_quad, x.k_quad, x.q_lin, x.k_lin, x.v}, -1), 2);
  const std::vector<Tensor> part = split(rows, {s, s, s, s, x.v.dim(3)}, -1);
  const Tensor mask = fetch(key_mask, 1), documents = fetch(segments, 1);
  const Tensor y =
      both_terms({part[0], part[1], part[2], part[3], part[4]}, o, total, relative_bias, mask, documents, rng);
  return detail::fetch_rows(y, 2, ranks, back);
}

// -- streams ---------------------------------------------------------------------------------------------------

/// The outputs of a stream's next tokens. The stream keeps Σ Klin_hᵀ·V_h of the complete chunks, and the rows of the
/// current chunk; with padding also how many tokens count in the complete chunks, and which are real in the current
/// one.
Tensor next_tokens(Call& call, const Operands& x, const MixedChunkOptions& o, const Tensor& relative_bias) {
  const int64_t batch = x.v.dim(0), heads = x.v.dim(1), m = x.v.dim(2), s = x.k_lin.dim(3), e = x.v.dim(3), c = o.chunk;
  Stream::Kept& kept = call.kept("chunk");
  if (kept.tensors.empty()) {
    const DType wide = detail::widened(x.v.dtype());  // in bf16 a running sum soon stops changing
    kept.tensors = {zeros({batch, heads, s, e}, {wide, x.v.device()})};
  }
  if (const int64_t before = kept.cache.reserved; before > 0 && before != c)
    fail<ValueError>("mixed_chunk_attention: a stream in chunks of ", before, " does not continue in chunks of ", c);
  kept.tensors.resize(3);
  Tensor sum = kept.tensors[0], counted = kept.tensors[1], real = kept.tensors[2];  // f64 [batch, 1], bool [batch, ·]
  if (sum.shape() != Shape{batch, heads, s, e})
    fail("mixed_chunk_attention: a stream with sums ", sum, " does not continue with k_lin=", x.k_lin, ", v=", x.v);
  const int64_t of_chunk = call.first() % c;
  if ((counted.defined() && (counted.dtype() != f64 || counted.shape() != Shape{batch, 1})) ||
      (real.defined() && of_chunk > 0 &&
       (real.dtype() != boolean || real.shape() != Shape{batch, of_chunk})))  // of a file
    fail("mixed_chunk_attention: a stream with counts ", counted.defined() ? counted : real,
         " does not continue behind ", call.first(), " tokens");
  const Tensor k_lin = detail::filled_tokens(x.k_lin, call.padding(), 0, 2),
               v = detail::filled_tokens(x.v, call.padding(), 0, 2);
  std::vector<Tensor> outputs;
  for (int64_t at = 0; at < m;) {
    const int64_t position = call.first() + at, g = position / c, filled = position % c;
    const int64_t count = std::min(c - filled, m - at);
    const auto fresh = [&](const Tensor& t) { return narrow(t, 2, at, count); };
    if (filled == 0) kept.clear_rows(), kept.cache.reserved = c, real = Tensor();
    const auto all_real = [&](int64_t tokens) { return ones({batch, tokens}, {boolean, x.v.device()}); };
    if (const Tensor& mask = call.key_mask(); mask.defined() || real.defined()) {
      const Tensor now = mask.defined() ? narrow(mask, 1, at, count) : all_real(count);
      real = cat({real.defined() ? real : all_real(filled), now}, 1);
    }
    const std::vector<Tensor> rows = kept.cache.append({fresh(x.k_quad), fresh(k_lin), fresh(v)});
    Tensor y;
    if (o.quadratic) y = within_chunk(fresh(x.q_quad), rows[0], rows[2], o, relative_bias, {.keys = real}, call.rng());
    if (o.linear) {
      Tensor q = detail::widened(fresh(x.q_lin));
      double inverse = 1;  // 1/N; for g = 0 the sum is 0
      if (o.scaling == ChunkScaling::lucid || o.scaling == ChunkScaling::chunk) inverse = 1 / static_cast<double>(c);
      else if (o.scaling != ChunkScaling::eq && counted.defined())
        q = q * to(reshape(reciprocal(clamp(counted, 1)), {batch, 1, 1, 1}), q.dtype());
      else if (o.scaling != ChunkScaling::eq) inverse = 1 / static_cast<double>(std::max<int64_t>(1, g) * c);
      const Tensor linear = to(matmul(q * inverse, sum), x.v.dtype());
      y = y.defined() ? y + linear : linear;
    }
    outputs.push_back(y);
    if (filled + count == c) {
      sum = sum + matmul(transpose(detail::widened(rows[1]), -2, -1), detail::widened(rows[2]));
      if (real.defined() || counted.defined()) {
        if (!counted.defined()) counted = full({batch, 1}, static_cast<double>(g * c), {f64, x.v.device()});
        Tensor more = sluice::sum(to(real.defined() ? real : all_real(c), f64), {1}, keep);
        if (o.scaling == ChunkScaling::paper_code) more = masked_fill(more, more > 0.0, static_cast<double>(c));
        counted = counted + more;
      }
    }
    at += count;
  }
  kept.tensors = {sum, counted, real};
  return outputs.empty() ? x.v : outputs.size() == 1 ? outputs[0] : cat(outputs, 2);
}

}  // namespace

Tensor segment_mask(const Tensor& segments, int64_t chunk, bool causal, const Tensor& key_mask) {
  if (segments.rank() != 2) fail("segment_mask: segments=", segments, "; need [batch, n]");
  if (segments.dtype() != i64) fail<DTypeError>("segment_mask: segments must be i64 — got ", segments.dtype());
  if (chunk < 1 || chunk > INT32_MAX) fail<ValueError>("segment_mask: chunk must be in [1, 2^31) — got ", chunk);
  if (key_mask.defined() && key_mask.shape() != segments.shape())
    fail("segment_mask: key_mask=", key_mask, " does not fit segments=", segments);
  const Tensor overlap = ChunkDocuments(segments, chunk, key_mask).overlap();
  return causal ? tril(overlap, -1) : overlap;
}

Tensor mixed_chunk_attention(const Tensor& q_quad, const Tensor& k_quad, const Tensor& q_lin, const Tensor& k_lin,
                             const Tensor& v, const MixedChunkOptions& o, const Tensor& relative_bias,
                             const Tensor& key_mask, const Tensor& segments, Rng* rng) {
  const char* op = "mixed_chunk_attention";
  const int64_t n = v.rank() < 3 ? 0 : sequence_piece(v.dim(-2)).total;
  const Operands x = checked_operands(op, {q_quad, k_quad, q_lin, k_lin, v}, o, relative_bias, std::min(n, o.chunk));
  detail::check_rows(op, "key_mask", key_mask, boolean, "v", v);
  detail::check_rows(op, "segments", segments, i64, "v", v);
  if (n == 0) return v;
  const Tensor y = in_sequence() ? over_ranks(x, o, relative_bias, key_mask, segments, rng)
                                 : both_terms(x, o, n, relative_bias, key_mask, segments, rng);
  return v.rank() == 3 ? squeeze(y, 1) : y;
}

Tensor detail::mixed_chunk_attention(Call& call, const Tensor& q_quad, const Tensor& k_quad, const Tensor& q_lin,
                                     const Tensor& k_lin, const Tensor& v, const MixedChunkOptions& o,
                                     const Tensor& relative_bias) {
  if (!call.streams())
    return sluice::mixed_chunk_attention(q_quad, k_quad, q_lin, k_lin, v, o, relative_bias, call.key_mask(),
                                         call.segments(), call.rng());
  call.check_causal(o.causal);
  const Operands x =
      checked_operands("mixed_chunk_attention", {q_quad, k_quad, q_lin, k_lin, v}, o, relative_bias, o.chunk);
  const Tensor y = next_tokens(call, x, o, relative_bias);
  return v.rank() == 3 ? squeeze(y, 1) : y;
}

}  // namespace sluice
