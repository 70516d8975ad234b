#include <sluice/layers/attention/diff_attention.h>

#include <sluice/ops/basic.h>
#include <sluice/parallel/sequence_attention.h>

#include <cmath>

namespace sluice {

double diff_lambda_init(int64_t layer) { return 0.8 - 0.6 * std::exp(-0.3 * static_cast<double>(layer)); }

DiffAttention::DiffAttention(DiffAttentionOptions given, Rng& rng) : options(given) {
  DiffAttentionOptions& o = options;
  check_options("diff_attention", o);
  const bool first = o.version == 1;
  if (o.kv_heads == 0) o.kv_heads = o.heads;
  if (const int64_t parts = first ? 2 * o.heads : o.heads; o.head_dim == 0) {
    if (o.dim % parts != 0)
      fail<ValueError>("diff_attention: dim=", o.dim, " must be a multiple of ", parts, ", or head_dim be given");
    o.head_dim = o.dim / parts;
  }
  if (!first && o.pairing != DiffPairing::adjacent)
    fail<ValueError>("diff_attention: version 2 pairs adjacent heads, which share a KV head — got pairing=", o.pairing);
  if (o.use_rope) detail::check_rope("diff_attention", o.rope, "head_dim", o.head_dim);
  const int64_t dk = o.head_dim;
  heads = Heads(checked_heads("diff_attention", {.dim = o.dim,
                                                 .heads = o.heads,
                                                 .kv_heads = o.kv_heads,
                                                 .head_dim = 2 * dk,
                                                 .value_dim = first ? 2 * dk : dk,
                                                 .init = o.init,
                                                 .dtype = o.dtype}),
                rng);
  if (first) {
    for (Tensor* vector : {&lambda_q1, &lambda_k1, &lambda_q2, &lambda_k2})
      *vector = init_normal({dk}, 0.1, rng, o.dtype);
    norm = Norm({2 * dk, o.norm, o.norm_eps, o.dtype});
  } else {
    heads.k = Linear({o.dim, o.kv_heads * dk, false, o.init, o.dtype}, rng);
    lambda = Linear({o.dim, o.heads, false, o.init, o.dtype}, rng);
  }
}

Tensor DiffAttention::share_of_second(const Tensor& x) const {
  if (options.version == 2) return unsqueeze(transpose(sigmoid(detail::widened(lambda(x))), 1, 2), -1);
  const auto power = [](const Tensor& q, const Tensor& k) { return exp(sum(detail::widened(q) * detail::widened(k))); };
  return power(lambda_q1, lambda_k1) - power(lambda_q2, lambda_k2) + options.lambda_init;
}

/// norm(y) for y of f32, in a layer of bf16, too. λ's gradient is a small remainder of the norm's gradient, which is
/// orthogonal to y: a y rounded to bf16 would drown it.
static Tensor widened_norm(const Norm& norm, const Tensor& y) {
  ModuleScope scope(&norm, Norm::type);
  return detail::normalised(norm.options, y, detail::widened(norm.weight), detail::widened(norm.bias));
}

Tensor DiffAttention::operator()(const Tensor& given, const Pass& pass) const {
  const DiffAttentionOptions& o = options;
  Call call(*this, "diff_attention", given, o.dim, pass);
  call.check_causal(o.causal);
  const Tensor& x = call.x;
  const bool first = o.version == 1;
  const auto member = [&](const Tensor& y, int64_t which) {  // of each pair: [batch, pairs, n, ·]
    const int64_t pairs = y.dim(1) / 2;
    return o.pairing == DiffPairing::halves ? narrow(y, 1, which * pairs, pairs)
                                            : select(unflatten(y, 1, {pairs, 2}), 2, which);
  };
  const HeadsOptions maps{.dim = o.dim,
                          .heads = 2 * o.heads,
                          .kv_heads = first ? 2 * o.kv_heads : o.kv_heads,
                          .use_rope = o.use_rope,
                          .rope = o.rope};
  auto [q, k, v] = heads.project(maps, x, call.first(o.use_rope));
  if (first) v = cat({member(v, 0), member(v, 1)}, -1);
  const std::vector<Tensor> rows = call.rows({k, v});
  const auto attend = [&](const Tensor& queries, const Tensor& keys) {
    const AttentionMask mask{.causal = o.causal,
                             .keys = call.mask_of_keys(),
                             .query_segments = call.segments(),
                             .key_segments = call.segments()};
    return sequence_attention(queries, keys, rows[1], {.mask = mask, .dropout = o.attention_dropout}, call.rng());
  };
  Tensor one, two;
  if (first) {
    one = attend(member(q, 0), member(rows[0], 0)), two = attend(member(q, 1), member(rows[0], 1));
  } else {
    const Tensor all = attend(q, rows[0]);
    one = member(all, 0), two = member(all, 1);
  }
  Tensor y = detail::widened(one) - share_of_second(x) * detail::widened(two);
  if (first) y = widened_norm(norm, y) * (1 - o.lambda_init);
  return Dropout{o.dropout}(heads.out(detail::merge_heads(to(y, x.dtype()))), call.rng());
}

}  // namespace sluice
