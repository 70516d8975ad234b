// Gated cross attention: the four readings against their definitions, written with a gate for every
// pair where the definition has one.
#include "layers/gates_reference.h"

#include <sluice/layers/heads/gated_cross_attention.h>
#include <sluice/ops/create.h>

using namespace sluice;
using namespace sluice::testing;

namespace {

constexpr CrossGate kReadings[] = {CrossGate::per_query, CrossGate::pooled, CrossGate::literal, CrossGate::flamingo};

GatedCrossAttention make(GatedCrossAttentionOptions o, Rand& rand) {
  o.heads.dtype = f64;
  Rng rng(1);
  return randomised(GatedCrossAttention(o, rng), rand);
}

/// One pair of sequences. Each query forms its own gated keys and values, as the definition says.
Matrix reference(const GatedCrossAttention& l, const Matrix& x, const Matrix& context,
                 const std::vector<bool>& real_key, const std::vector<bool>& real_query) {
  const GatedCrossAttentionOptions& o = l.options;
  const auto d = static_cast<std::size_t>(o.heads.head_dim), dv = static_cast<std::size_t>(o.heads.value_dim);
  const Matrix q = linear_reference(l.heads.q, x), k = linear_reference(l.heads.k, context);
  const Matrix v = linear_reference(l.heads.v, context);
  Matrix source = q;
  if (o.reading == CrossGate::pooled) {
    std::vector<double> mean(q[0].size(), 0.0);
    double rows = 0;
    for (bool r : real_query) rows += r;
    for (std::size_t i = 0; i < q.size(); ++i)
      for (std::size_t c = 0; c < mean.size(); ++c) mean[c] += real_query[i] ? q[i][c] / rows : 0;
    source.assign(q.size(), mean);
  }
  Matrix g, gv;
  if (o.reading != CrossGate::flamingo) {
    g = with_sigmoid(linear_reference(l.gate, source));
    gv = l.value_gate.weight.defined() ? with_sigmoid(linear_reference(l.value_gate, source)) : g;
  }
  Matrix y = matrix(static_cast<int64_t>(x.size()), o.heads.heads * o.heads.value_dim);
  for (std::size_t head = 0; head < static_cast<std::size_t>(o.heads.heads); ++head)
    for (std::size_t i = 0; i < x.size(); ++i) {
      Matrix keys = columns(k, head * d, d), values = columns(v, head * dv, dv);
      for (std::size_t j = 0; j < keys.size() && !g.empty(); ++j) {
        const std::size_t row = o.reading == CrossGate::literal ? j : i;
        for (std::size_t c = 0; c < d; ++c) keys[j][c] *= g[row][head * d + c];
        for (std::size_t c = 0; c < dv; ++c) values[j][c] *= gv[row][head * dv + c];
      }
      const Matrix one = softmax_attention(columns({q[i]}, head * d, d), keys, values,
                                           [&](std::size_t, std::size_t j) { return real_key[j]; });
      for (std::size_t c = 0; c < dv; ++c) y[i][head * dv + c] = one[0][c];
    }
  if (o.heads.project_out) y = linear_reference(l.heads.out, y);
  if (o.reading == CrossGate::flamingo)
    for (auto& row : y)
      for (double& value : row) value *= std::tanh(l.alpha.item());
  return y;
}

std::vector<bool> row_of(const Tensor& mask, int64_t b, int64_t n) {
  if (!mask.defined()) return std::vector<bool>(static_cast<std::size_t>(n), true);
  return select(mask, 0, b).to_vector<bool>();
}

Tensor reference(const GatedCrossAttention& l, const Tensor& x, const Tensor& context, const Tensor& key_mask = {},
                 const Tensor& query_mask = {}) {
  std::vector<double> all;
  int64_t width = 0;
  for (int64_t b = 0; b < x.dim(0); ++b)
    for (const auto& row : reference(l, matrix_of(select(x, 0, b)), matrix_of(select(context, 0, b)),
                                     row_of(key_mask, b, context.dim(1)), row_of(query_mask, b, x.dim(1)))) {
      all.insert(all.end(), row.begin(), row.end());
      width = static_cast<int64_t>(row.size());
    }
  return Tensor::from(all, {x.dim(0), x.dim(1), width});
}

std::vector<GatedCrossAttentionOptions> all_options() {
  std::vector<GatedCrossAttentionOptions> all;
  for (CrossGate reading : kReadings)
    for (int bits = 0; bits < 8; ++bits) {
      GatedCrossAttentionOptions o{.heads = {.dim = 4, .heads = bits & 2 ? 2 : 1, .context_dim = bits & 1 ? 3 : 0}};
      o.reading = reading, o.heads.value_dim = bits & 4 ? 3 : 0;
      o.heads.project_out = bits % 3 != 1, o.heads.qkv_bias = o.heads.out_bias = bits % 2 == 0;
      all.push_back(o);
    }
  return all;
}
std::string describe(const GatedCrossAttentionOptions& o) {
  return str(name_of(o.reading), " heads ", o.heads.heads, " value_dim ", o.heads.value_dim, " context_dim ",
             o.heads.context_dim);
}

}  // namespace

TEST_CASE("gated cross attention: every reading equals its definition", "[gates][identity]") {
  for (const GatedCrossAttentionOptions& o : all_options()) {
    Rand rand(2);
    const GatedCrossAttention l = make(o, rand);
    const int64_t m = o.reading == CrossGate::literal ? 6 : 4;
    const Tensor x = random_tensor({2, m, 4}, f64, rand), c = random_tensor({2, 6, l.options.heads.context_dim}, f64,
        rand);
    const Tensor key_mask = prefix_mask(6, 4, 6), query_mask = prefix_mask(m, m - 1, m);
    INFO(describe(o));
    const Tensor plain = l(x, {.context = c});
    if (o.reading == CrossGate::per_query)  // which is computed as g ⊙ Attn(g ⊙ Q, K, V)
      check_identity("gates: per-query cross gate = g * Attn(g * Q, K, V)", plain, reference(l, x, c), 1e-12);
    CHECK(max_abs_diff(plain, reference(l, x, c)) < 1e-12);
    const Tensor y = l(x, {.key_mask = query_mask, .context = c, .context_mask = key_mask});
    const Tensor want = reference(l, x, c, key_mask, query_mask);
    CHECK(max_abs_diff(real_rows(y, query_mask), real_rows(want, query_mask)) < 1e-12);
    Stream stream;
    if (o.reading == CrossGate::pooled || o.reading == CrossGate::literal) {
      CHECK_THROWS_AS(step(l, x, stream, {.context = c}), ValueError);  // its queries see each other
      continue;
    }
    CHECK(same_bits(step(l, x, stream, {.context = c}), plain));
    CHECK(same_bits(step(l, x, stream), plain));  // of the same context, and x knows no positions
  }
}

TEST_CASE("gated cross attention: initial values, sizes", "[gates]") {
  Rng rng(1);
  const GatedCrossAttention flamingo({.heads = {.dim = 4}, .reading = CrossGate::flamingo}, rng);
  CHECK(max_abs(flamingo(ones({2, 3, 4}), {.context = ones({2, 5, 4})})) == 0);  // x + y starts as x
  CHECK(count(flamingo) == 4 * 16 + 1);
  CHECK(count(GatedCrossAttention({.heads = {.dim = 4}}, rng)) == 5 * 16 + 4);
  CHECK(count(GatedCrossAttention({.heads = {.dim = 4, .heads = 2, .head_dim = 5, .value_dim = 6, .context_dim = 3}},
                                  rng)) ==
        4 * 10 + 3 * 10 + 3 * 12 + 12 * 4 + (10 * 10 + 10) + (10 * 12 + 12));
  CHECK(GatedCrossAttention({.heads = {.dim = 4}, .gate_bias = 2}, rng).gate.bias.to_vector() == std::vector<float>(4,
        2.f));
  for (CrossGate reading : kReadings) {
    const GatedCrossAttention g({.heads = {.dim = 4}, .reading = reading}, rng);
    if (reading == CrossGate::literal) continue;
    CHECK(max_abs(g(ones({2, 3, 4}), {.context = ones({2, 0, 4})})) == 0);  // nothing to see
  }
}

TEST_CASE("gated cross attention: what is refused, and by which words", "[gates]") {
  Rng rng(1);
  CHECK_THROWS_WITH(GatedCrossAttention({.heads = {.dim = 5, .heads = 2}}, rng), Contains("heads=2") &&
                    Contains("dim=5"));
  CHECK_THROWS_AS(GatedCrossAttention({.heads = {.dim = -1}}, rng), ValueError);
  const GatedCrossAttention l({.heads = {.dim = 4, .context_dim = 3}}, rng);
  const Tensor x = ones({2, 3, 4}), c = ones({2, 6, 3}), short_mask = ones({2, 5}) > 0.0;
  CHECK_THROWS_AS(l(ones({2, 3, 5}), {.context = c}), ShapeError);
  CHECK_THROWS_WITH(l(ones({2, 3, 5}), {.context = c}), Contains("[2,3,5]"));
  CHECK_THROWS_WITH(l(x, {.context = ones({2, 6, 4})}), Contains("context=[2,6,4]"));
  CHECK_THROWS_WITH(l(ones({1, 3, 4}), {.context = c}), Contains("[1,3,4]") && Contains("2"));
  CHECK_THROWS_WITH(l(x, {.context = c, .context_mask = short_mask}), Contains("[2,5]") && Contains("context_mask"));
  CHECK_THROWS_WITH(l(x, {.key_mask = short_mask, .context = c}), Contains("[2,5]") && Contains("key_mask"));
  CHECK_THROWS_WITH(l(x), Contains("needs a context"));
  const GatedCrossAttention literal({.heads = {.dim = 4}, .reading = CrossGate::literal}, rng);
  CHECK_THROWS_WITH(literal(x, {.context = ones({2, 6, 4})}), Contains("literal") && Contains("3") && Contains("6"));
}
