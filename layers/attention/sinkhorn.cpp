#include <sluice/layers/attention/sinkhorn.h>

#include <sluice/core/kernel/kernel.h>
#include <sluice/core/node.h>
#include <sluice/layers/nn/pass.h>
#include <sluice/ops/attention/top_k.h>
#include <sluice/ops/attention/heads.h>
#include <sluice/ops/attention/attention_reference.h>
#include <sluice/ops/basic.h>
#include <sluice/ops/elementwise/dropout.h>
#include <sluice/ops/rows/softmax.h>
#include <sluice/parallel/sequence.h>

#include <cmath>
#include <limits>

namespace sluice {

namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

/// x/Σx along dim; 0 where the sum is 0.
Tensor divided_by_sum(const Tensor& x, int64_t dim) {
  const Tensor total = sum(x, {dim}, keep);
  return x / masked_fill(total, total.detach() == 0.0, 1);
}

Tensor literal_sinkhorn(Tensor a, const SinkhornOptions& o, int64_t first, int64_t second) {
  const Tensor hidden = o.allowed.defined() ? logical_not(o.allowed) : Tensor();
  for (int64_t t = 0; t < o.iterations; ++t) {
    Tensor s = a * o.lambda;
    if (hidden.defined()) s = masked_fill(s, hidden, -kInf);
    a = divided_by_sum(softmax(s, first), second);
  }
  return o.iterations == 0 && hidden.defined() ? masked_fill(a, hidden, 0) : a;
}

struct Operands {
  Tensor q, k, v;
  double scale;
  int rank;
  Tensor keys;  // bool [batch or 1, n]
};

Operands self_attention(const char* op, const Tensor& q_in, const Tensor& k_in, const Tensor& v_in,
                        std::optional<double> scale, const Tensor& keys, double dropout) {
  const AttentionOptions given{.scale = scale, .mask = {.keys = keys}, .dropout = dropout};
  auto [q, k, v, o, rank] = detail::attention_operands(op, q_in, k_in, v_in, given);
  if (q.dim(2) != k.dim(2)) fail(op, ": got q=", q_in, ", k=", k_in, "; need as many queries as keys");
  k = detail::spread_heads(k, q.dim(1)), v = detail::spread_heads(v, q.dim(1));
  const Tensor padding = detail::padding_of(keys);  // it may hold NaN, and 0·NaN is NaN
  const auto real = [&](const Tensor& t) { return detail::filled_tokens(t, padding, 0, 2); };
  return {real(q), real(k), real(v), *o.scale, rank, keys};
}

}  // namespace

void detail::refuse_causal(const char* op, bool causal) {
  if (causal)
    fail<ValueError>(op,
                     ": cannot be causal: the only lower triangular matrix whose rows and columns all sum to 1 is "
                     "the identity, so that every token would see itself alone");
}

Tensor sinkhorn(const Tensor& scores, const SinkhornOptions& o, Rng* rng) {
  if (scores.dtype() == bf16) return to(sinkhorn(to(scores, f32), o, rng), bf16);
  if (scores.rank() < 2 || scores.dim(-1) != scores.dim(-2))
    fail("sinkhorn: got scores=", scores, "; need [..., n, n]: other matrices cannot have unit row and column sums");
  detail::check_float("sinkhorn", scores);
  if (o.iterations < 0 || !(o.gumbel >= 0 && std::isfinite(o.gumbel)) || !std::isfinite(o.lambda))
    fail<ValueError>("sinkhorn: need iterations >= 0, and gumbel >= 0 and lambda finite — got iterations=",
                     o.iterations, ", gumbel=", o.gumbel, ", lambda=", o.lambda);
  if (o.allowed.defined() &&
      (o.allowed.dtype() != boolean || broadcast("sinkhorn", o.allowed.shape(), scores.shape()) != scores.shape()))
    fail("sinkhorn: allowed=", o.allowed, " of ", o.allowed.dtype(), " does not fit scores=", scores, "; need bool");

  if (detail::observed()) {  // report the n×n map here: the matrix products cannot know that they compute one
    detail::ObservedCall map("sinkhorn", scores.device());
    map.work.attention_elements = scores.numel();
  }
  Tensor a = scores;
  if (o.gumbel > 0 && rng) {  // u is neither 0 nor 1: from half a step of uniform() to the number below 1
    const double half_step = scores.dtype() == f32 ? 0x1p-25 : 0x1p-54;
    const Tensor u = uniform(scores.shape(), half_step, 1, *rng, scores.options());
    a = a + neg(log(neg(log(u)))) * o.gumbel;
  }
  const bool rows_last = o.last == SinkhornLast::rows;
  const int64_t first = rows_last ? -2 : -1, second = rows_last ? -1 : -2;
  if (o.variant == SinkhornVariant::literal) return literal_sinkhorn(a, o, first, second);
  Tensor l = a * o.lambda;
  if (o.allowed.defined()) l = masked_fill(l, logical_not(o.allowed), -kInf);
  for (int64_t t = 0; t < o.iterations; ++t) {  // log_softmax(L) = L − lse(L)
    l = log_softmax(l, first);
    if (t + 1 == o.iterations) return softmax(l, second);
    l = log_softmax(l, second);
  }
  return exp(l);
}

Tensor sinkhorn_attention(const Tensor& q_in, const Tensor& k_in, const Tensor& v_in, const SinkhornAttentionOptions& o,
                          Rng* rng) {
  const char* op = "sinkhorn_attention";
  detail::refuse_causal(op, o.causal);
  detail::not_cut(op, "its weights are divided over all queries and all keys in turns");
  if (o.top_k < 0) fail<ValueError>(op, ": top_k must not be negative — got ", o.top_k);
  auto [q, k, v, scale, rank, keys] = self_attention(op, q_in, k_in, v_in, o.scale, o.keys, o.dropout);
  SinkhornOptions s = o.sinkhorn;
  if (keys.defined()) {
    const Shape row{keys.dim(0), 1, 1, keys.dim(1)}, column{keys.dim(0), 1, keys.dim(1), 1};
    const Tensor real = logical_and(reshape(keys, row), reshape(keys, column));
    s.allowed = s.allowed.defined() ? logical_and(s.allowed, real) : real;
  }
  Tensor p = sinkhorn(matmul(q, transpose(k, -2, -1)) * scale, s, rng);
  if (o.top_k > 0) {  // hidden weights are 0, but `literal` without iterations returns scores, which may be negative
    const Tensor from = s.allowed.defined() ? masked_fill(p, logical_not(s.allowed), -kInf) : p;
    p = divided_by_sum(masked_fill(p, logical_not(topk_mask(from, o.top_k)), 0), -1);
  }
  if (o.dropout > 0 && rng) p = dropout(p, o.dropout, *rng);
  return detail::restore_rank(matmul(p, v), rank);
}

// -- sorted blocks -------------------------------------------------------------------------------------------

namespace {

using detail::in_blocks;  // [batch, heads, n, w] → [batch, heads, G, B, w], padded with zeros

/// 1 for real tokens, 0 for padding: [batch or 1, 1, G, B, 1]. Undefined when every token of every block is real.
Tensor real_slots(const Operands& x, int64_t block) {
  const int64_t n = x.k.dim(2);
  if (!x.keys.defined() && (n % block == 0 || n < block)) return {};
  const Tensor keys = x.keys.defined() ? x.keys : full({1, n}, 1, {boolean, x.k.device()});
  return in_blocks(to(reshape(keys, {keys.dim(0), 1, n, 1}), x.k.dtype()), 2, block);
}

Tensor permutation_of(const Operands& x, const Tensor& real, const SinkhornBlockOptions& o, Rng* rng) {
  const auto b = static_cast<double>(std::min(o.block, x.k.dim(2)));
  const Tensor tokens = real.defined() ? sum(real, {3}) : Tensor();  // [batch or 1, 1, G, 1]
  auto means = [&](const Tensor& y) {
    const Tensor total = sum(in_blocks(y, 2, o.block), {3});
    return tokens.defined() ? total / maximum(tokens, like(tokens, 1)) : total * (1 / b);
  };
  SinkhornOptions s = o.sinkhorn;
  if (tokens.defined()) {  // leave out blocks without a real token
    const Tensor some = tokens > 0.0, pairs = logical_and(some, transpose(some, -2, -1));
    s.allowed = s.allowed.defined() ? logical_and(s.allowed, pairs) : pairs;
  }
  return sinkhorn(matmul(means(x.q), transpose(means(x.k), -2, -1)) * x.scale, s, rng);
}

}  // namespace

void detail::check_sinkhorn_block(const char* op, const SinkhornBlockOptions& o) {
  refuse_causal(op, o.causal);
  if (o.sinkhorn.iterations == 0 && o.sinkhorn.variant == SinkhornVariant::literal)
    fail<ValueError>(op, ": the literal variant needs iterations >= 1: without one, shares may be negative");
  if (o.block < 1 || o.block > INT32_MAX) fail<ValueError>(op, ": block must be in [1, 2^31) — got ", o.block);
}

Tensor block_permutation(const Tensor& q, const Tensor& k, const SinkhornBlockOptions& o, Rng* rng) {
  detail::check_sinkhorn_block("block_permutation", o);
  const Operands x = self_attention("block_permutation", q, k, k, o.scale, o.keys, 0);
  return permutation_of(x, real_slots(x, o.block), o, rng);
}

Tensor sinkhorn_block_attention(const Tensor& q_in, const Tensor& k_in, const Tensor& v_in,
                                const SinkhornBlockOptions& o, Rng* rng) {
  const char* op = "sinkhorn_block_attention";
  detail::check_sinkhorn_block(op, o);
  detail::not_cut(op, "it sorts the blocks of the whole sequence");
  const Operands x = self_attention(op, q_in, k_in, v_in, o.scale, o.keys, o.dropout);
  const int64_t batch = x.q.dim(0), heads = x.q.dim(1), n = x.q.dim(2), g = ceil_div(n, o.block);
  const Tensor real = real_slots(x, o.block);
  const Tensor p = permutation_of(x, real, o, rng);  // [batch, heads, G, G]

  // Keys and values of each block are [own | sorted], and each block is a head of attention(): [batch·heads, G, 2B, ·].
  auto mixed = [&](const Tensor& blocks) {
    return unflatten(matmul(p, flatten(blocks, 3, 4)), 3, {blocks.dim(3), blocks.dim(4)});
  };
  Tensor share, divisor;  // [batch, heads, G, B, 1]: share of real tokens in the row sum of P; share, 1 if it is 0
  AttentionOptions a{.scale = x.scale, .dropout = o.dropout};
  if (real.defined()) {
    const Shape full_shape{batch, heads, g, real.dim(3), 1};
    const Tensor own = expand(real, full_shape);
    const Tensor row = sum(p, {3}, keep);  // 1, unless columns were divided last
    share = mixed(own) / unsqueeze(masked_fill(row, row.detach() == 0.0, 1), 4);
    const Tensor nothing = share.detach() == 0.0;
    divisor = masked_fill(share, nothing, 1);
    const Tensor weight = flatten(squeeze(cat({own, divisor}, 3), 4), 0, 1);  // [batch·heads, G, 2B]
    const Tensor seen = flatten(squeeze(cat({own > 0.0, logical_not(nothing)}, 3), 4), 0, 1);
    a.mask.dense = unsqueeze(seen, 2);
    a.bias = unsqueeze(log(masked_fill(weight, logical_not(seen), 1)), 2);
  }
  auto both = [&](const Tensor& y) {
    const Tensor own = in_blocks(y, 2, o.block), sorted = mixed(own);
    return flatten(cat({own, divisor.defined() ? sorted / divisor : sorted}, 3), 0, 1);
  };
  const Tensor out = attention(flatten(in_blocks(x.q, 2, o.block), 0, 1), both(x.k), both(x.v), a, rng);
  const Tensor rows = narrow(flatten(unflatten(out, 0, {batch, heads}), 2, 3), 2, 0, n);
  return detail::restore_rank(detail::filled_tokens(rows, detail::padding_of(x.keys), 0, 2), x.rank);
}

}  // namespace sluice
