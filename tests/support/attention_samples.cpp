#include "support/attention_samples.h"

#include "support/catch.h"

#include <sluice/autograd/engine.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/rows/reduce.h>
#include <sluice/ops/shape/view.h>

#include <algorithm>

namespace sluice::testing {

namespace {

Tensor random_bools(const Shape& shape, Rand& rand, int64_t out_of_ten) {
  std::vector<double> v(static_cast<std::size_t>(shape.numel()));
  for (double& x : v) x = rand.below(10) < out_of_ten;
  return tensor_of(v, shape, boolean);
}
/// Document numbers that start anew every few tokens; sometimes in no order.
Tensor random_segments(const Shape& shape, Rand& rand, bool sorted) {
  std::vector<double> v(static_cast<std::size_t>(shape.numel()));
  double document = 0;
  for (std::size_t i = 0; i < v.size(); ++i) {
    if (i % static_cast<std::size_t>(shape[1]) == 0) document = 0;
    else if (rand.below(6) == 0) ++document;
    v[i] = sorted ? document : static_cast<double>(rand.below(3));
  }
  return tensor_of(v, shape, i64);
}

}  // namespace

AttentionSample plain_attention(Rand& rand, Shape q, int64_t kv_heads, int64_t n, int64_t dv) {
  AttentionSample s;
  s.q = random_tensor(q, f64, rand, -1.5, 1.5);
  s.k = random_tensor({q[0], kv_heads, n, q[3]}, f64, rand, -1.5, 1.5);
  s.v = random_tensor({q[0], kv_heads, n, dv}, f64, rand);
  return s;
}

AttentionSample random_attention(Rand& rand, const SampleLimits& limits) {
  auto one_of = [&](std::vector<int64_t> v) {
    return v[static_cast<std::size_t>(rand.below(static_cast<int64_t>(v.size())))];
  };
  auto chance = [&](int64_t percent) { return rand.below(100) < percent; };
  const int64_t batch = 1 + rand.below(limits.batch), kv_heads = 1 + rand.below(limits.kv_heads);
  const int64_t heads = kv_heads * (1 + rand.below(limits.group)), m = one_of(limits.sizes);
  const int64_t n = chance(40) ? m : one_of(limits.sizes), d = 1 + rand.below(limits.width),
                dv = 1 + rand.below(limits.width);
  AttentionSample s = plain_attention(rand, {batch, heads, m, d}, kv_heads, n, dv);
  AttentionOptions& o = s.options;
  o.weighting = kWeightings[rand.below(5)];
  if (chance(40)) o.scale = rand.uniform(-0.8, 0.8);
  o.mask.causal = chance(45);
  if (chance(30)) o.mask.window = 1 + rand.below(n + 2);
  if (chance(15)) o.mask.dilation = 2 + rand.below(3);
  if (chance(40))
    for (int64_t i = rand.below(4); i > 0; --i) o.mask.global.push_back(rand.below(n + 3));
  if (chance(25)) o.mask.keys = random_bools({chance(70) ? batch : 1, n}, rand, 7);
  if (chance(20)) {
    const bool sorted = chance(70);
    o.mask.query_segments = random_segments({chance(70) ? batch : 1, m}, rand, sorted);
    o.mask.key_segments = random_segments({chance(70) ? batch : 1, n}, rand, sorted);
  }
  if (chance(20)) {
    const int64_t block = o.mask.block = one_of({1, 3, 16, 20}), rows = (m + block - 1) / block,
                  cols = (n + block - 1) / block;
    const int64_t groups = chance(70) ? heads : 1;
    const Shape shapes[] = {{rows, cols}, {groups, rows, cols}, {chance(70) ? batch : 1, groups, m, cols}};
    o.mask.blocks = random_bools(shapes[rand.below(3)], rand, 6);
  }
  auto wide = [&] {  // a shape that broadcasts to [batch, heads, m, n]
    const Shape shapes[] = {{batch, heads, m, n}, {m, n}, {heads, m, n}, {batch, 1, m, n}, {batch, 1, 1, n},
                            {heads, 1, n},        {m, 1}, {n},           {1, 1},           {batch, heads, m, 1}};
    return shapes[rand.below(10)];
  };
  if (chance(20)) o.mask.dense = random_bools(wide(), rand, 7);
  if (chance(25)) o.bias = random_tensor(wide(), f64, rand);
  if (chance(25)) o.relative_bias = random_tensor({chance(60) ? heads : 1, n + m - 1}, f64, rand);
  if (o.weighting == Weighting::softmax && chance(35)) o.sink = random_tensor({chance(60) ? heads : 1}, f64, rand);
  if (chance(25)) {
    const Shape shapes[] = {{batch, heads, m}, {m}, {batch, 1, 1}, {heads, 1}};
    o.row_scale = random_tensor(shapes[rand.below(4)], f64, rand, 0.2, 1.5);
  }
  if (chance(25)) o.dropout = 0.1 + 0.1 * static_cast<double>(rand.below(6));
  o.tile_rows = one_of({0, 0, 1, 7, 16, 64}), o.tile_cols = one_of({0, 0, 1, 7, 16, 64});
  s.dropout_seed = rand.bits() % 1000;
  if (s.dropout_seed % 5 == 0) o.softcap = 0.5 + static_cast<double>(s.dropout_seed) / 300;
  return s;
}

AttentionSample AttentionSample::in(DType dtype) const {
  AttentionSample s = *this;
  for (Tensor* x : {&s.q, &s.k, &s.v, &s.options.bias, &s.options.relative_bias, &s.options.sink, &s.options.row_scale})
    if (x->defined()) *x = to(*x, dtype);
  return s;
}

std::string AttentionSample::text() const {
  const AttentionOptions& o = options;
  std::string t = str("weighting ", static_cast<int>(o.weighting), " q", q, " k", k, " v", v, " tiles ", o.tile_rows,
                      "×", o.tile_cols);
  if (o.scale) t += str(" scale ", *o.scale);
  if (o.softcap > 0) t += str(" softcap ", o.softcap);
  if (o.mask.causal) t += " causal";
  if (o.mask.window) t += str(" window ", o.mask.window);
  if (o.mask.dilation > 1) t += str(" dilation ", o.mask.dilation);
  for (int64_t g : o.mask.global) t += str(" global ", g);
  auto with = [&](const char* name, const Tensor& x) {
    if (x.defined()) t += str(" ", name, x);
  };
  with("keys", o.mask.keys), with("query_segments", o.mask.query_segments), with("key_segments", o.mask.key_segments);
  with("blocks", o.mask.blocks), with("dense", o.mask.dense), with("bias", o.bias),
      with("relative_bias", o.relative_bias);
  with("sink", o.sink), with("row_scale", o.row_scale);
  if (o.mask.blocks.defined()) t += str(" of ", o.mask.block);
  if (o.dropout > 0) t += str(" dropout ", o.dropout, " seed ", dropout_seed);
  return t;
}

Tensor AttentionSample::visible() const {
  const Shape all{q.dim(0), q.dim(1), q.dim(2), k.dim(2)};
  return contiguous(expand(visible_pairs(options.mask, all[0], all[1], all[2], all[3]), all));
}

std::vector<Tensor> run_attention(AttentionFunction f, const AttentionSample& s, const Tensor& cotangent,
                                  bool recorded) {
  AttentionOptions o = s.options;
  std::vector<Tensor> leaves;
  auto leaf = [&](const Tensor& x) {
    leaves.push_back(x.detach());
    return leaves.back().requires_grad_();
  };
  const Tensor q = leaf(s.q), k = leaf(s.k), v = leaf(s.v);
  for (Tensor* x : {&o.bias, &o.relative_bias, &o.sink})
    if (x->defined()) *x = leaf(*x);
  Rng rng(s.dropout_seed);
  const Tensor y = f(q, k, v, o, &rng);
  Rand rand(77);
  const Tensor g = cotangent.defined() ? cotangent : random_tensor(y.shape(), y.dtype(), rand);
  std::vector<Tensor> all = grad({y}, leaves, {.create_graph = recorded, .allow_unused = true, .grad_outputs = {g}});
  for (std::size_t i = 0; i < all.size(); ++i)
    if (!all[i].defined()) all[i] = zeros_like(leaves[i]);
  all.insert(all.begin(), y.detach());
  return all;
}

void check_all_close(const std::vector<Tensor>& got, const std::vector<Tensor>& want, double tolerance,
                     double gradient_tolerance, const std::string& text) {
  REQUIRE(got.size() == want.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double allowed = (i == 0 ? tolerance : gradient_tolerance) * std::max(0.05, max_abs(want[i]));
    const double error = max_abs_diff(got[i], to(want[i], got[i].dtype()));
    if (!(error <= allowed)) FAIL_CHECK(text << ": result " << i << " is off by " << error << ", allowed " << allowed);
  }
}
void check_all_same(const std::vector<Tensor>& got, const std::vector<Tensor>& want, const std::string& text) {
  REQUIRE(got.size() == want.size());
  for (std::size_t i = 0; i < got.size(); ++i)
    if (!same_bits(got[i], want[i]))
      FAIL_CHECK(text << ": result " << i << " differs by " << max_abs_diff(got[i], want[i]));
}

Tensor filled(const Tensor& x, const Tensor& where, double value) { return masked_fill(x, where, value).detach(); }
bool all_finite(const Tensor& x) { return all(isfinite(x)).item() != 0; }

}  // namespace sluice::testing
