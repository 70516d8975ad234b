// Few queries, as in a step of decoding, whose heads may be rows of one; and K and V of bf16, which are read or packed
// where they lie.
#include <sluice/ops/attention/attention.h>

#include "support/approx.h"
#include "support/catch.h"
#include "support/isa_scope.h"

#include <sluice/autograd/engine.h>
#include <sluice/sluice.h>

#include <limits>

using namespace sluice;
using namespace sluice::testing;

namespace {

/// [batch, heads, n, d] of bf16, as rows of heads lie in a cache, or beside one another in one row.
Tensor drawn(const Shape& shape, bool merged, Rng& rng) {
  if (!merged) return to(normal(shape, 0, 1, rng), bf16);
  return permute(to(normal({shape[0], shape[2], shape[1], shape[3]}, 0, 1, rng), bf16), {0, 2, 1, 3});
}

/// The call in bf16 is the one in f32 of the same numbers, rounded: to the bit, if f32 has few queries, too.
void check(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& o) {
  INFO("q " << q.shape() << " k " << k.shape() << " v " << v.shape());
  const Tensor got = attention(q, k, v, o);
  CHECK(got.dtype() == bf16);
  AttentionOptions wide = o;
  for (Tensor* x : {&wide.bias, &wide.sink})
    if (x->defined()) *x = to(*x, f32);
  const Tensor want = attention(to(q, f32), to(k, f32), to(v, f32), wide);
  if (q.dim(2) <= 4 && q.dim(1) == k.dim(1) && !o.mask.blocks.defined()) CHECK(same_bits(got, to(want, bf16)));
  CHECK(max_abs_diff(got, to(want, bf16)) <= 0x1p-7 * max_abs(want));
}

}  // namespace

TEST_CASE("attention: few queries of bf16 are those of f32, rounded", "[attention][bf16][skinny]") {
  Rng rng(3);
  for (const int64_t m : {1, 2, 3, 4, 5, 7, 8, 9})
    for (const auto& [n, d] : {std::pair<int64_t, int64_t>{1, 3}, {9, 16}, {513, 33}, {1029, 128}, {70, 130}})
      for (const int64_t kv_heads : {4, 2, 1})
        for (const bool merged : {false, true}) {
          if (n < m) continue;
          const Tensor q = drawn({2, 4, m, d}, merged, rng), k = drawn({2, kv_heads, n, d}, merged, rng),
                       v = drawn({2, kv_heads, n, d + 1}, merged, rng);
          check(q, k, v, {});
          check(q, k, v, {.mask = {.causal = true, .window = 50}});
          AttentionOptions o{.mask = {.causal = true}};
          o.softcap = 3, o.bias = to(normal({4, m, n}, 0, 1, rng), bf16), o.sink = to(normal({4}, 0, 1, rng), bf16);
          check(q, k, v, o);
        }
}

TEST_CASE("attention: keys and values of bf16 are packed as they lie", "[attention][bf16]") {
  Rng rng(8);
  for (const int64_t m : {10, 16, 63, 64, 129, 300})
    for (const auto& [n, d] : {std::pair<int64_t, int64_t>{300, 1}, {513, 33}, {600, 64}, {1029, 130}})
      for (const int64_t kv_heads : {2, 1})
        for (const bool merged : {false, true}) {
          const Tensor q = drawn({2, 2, m, d}, merged, rng), k = drawn({2, kv_heads, n, d}, merged, rng),
                       v = drawn({2, kv_heads, n, d + 1}, merged, rng);
          check(q, k, v, {});
          check(q, k, v, {.mask = {.causal = true, .window = 50}});
          check(q, k, v, {.weighting = Weighting::relu2, .mask = {.causal = true}});
          check(q, k, v, {.mask = {.causal = true}, .tile_rows = 7, .tile_cols = 37});
        }
}

TEST_CASE("attention: the heads of one query that share keys are rows", "[attention][skinny]") {
  Rng rng(9);
  const int64_t n = 37, heads = 6;
  for (const int64_t kv_heads : {1, 2, 3})
    for (const int64_t window : {0, 1, 5, 37, 50})
      for (const int sink : {0, 1, 6})
        for (const int masks : {0, 1, 2, 3}) {
          INFO(kv_heads << " heads of keys, window " << window << ", sink " << sink << ", masks " << masks);
          const auto leaf = [&](const Shape& s) { return normal(s, 0, 1, rng, {.dtype = f64}).requires_grad_(); };
          std::vector<Tensor> x{leaf({2, heads, 1, 5}), leaf({2, kv_heads, n, 5}), leaf({2, kv_heads, n, 4})};
          if (sink > 0) x.push_back(leaf({sink}));
          AttentionOptions o{.mask = {.causal = true, .window = window}};
          if (sink > 0) o.sink = x[3];
          if (masks & 1) o.mask.keys = uniform({2, n}, 0, 1, rng) < 0.7;
          if (masks & 2) o.mask.dense = uniform({1, n}, 0, 1, rng) < 0.7;
          // With keys and values for each head there are no rows to make.
          const auto each = [&](const Tensor& t) { return repeat_interleave(t, heads / kv_heads, 1); };
          const Tensor got = attention(x[0], x[1], x[2], o), want = attention(x[0], each(x[1]), each(x[2]), o);
          CHECK(max_abs_diff(got, want) < 1e-13);
          const Tensor c = normal(got.shape(), 0, 1, rng, {.dtype = f64});
          const auto of_got = grad({got}, x, {.grad_outputs = {c}}), of_want = grad({want}, x, {.grad_outputs = {c}});
          for (std::size_t i = 0; i < x.size(); ++i) CHECK(max_abs_diff(of_got[i], of_want[i]) < 1e-12);
          if (sink > 0) continue;
          const Tensor lse = attention_with_lse(x[0], x[1], x[2], o).lse;
          CHECK(max_abs_diff(exp(lse), exp(attention_with_lse(x[0], each(x[1]), each(x[2]), o).lse)) < 1e-9);
        }
}

TEST_CASE("attention: rows of one head that see neither a key nor a sink are 0", "[attention][skinny]") {
  Rng rng(10);
  Tensor x = normal({1, 4, 1, 3}, 0, 1, rng).requires_grad_();
  AttentionOptions o{.mask = {.keys = zeros({1, 5}, {boolean})}};
  o.sink = full({4}, -std::numeric_limits<double>::infinity());
  const Tensor y = attention(x, ones({1, 2, 5, 3}), ones({1, 2, 5, 2}), o);
  CHECK(same_bits(y, zeros({1, 4, 1, 2})));
  backward(sum(y));
  CHECK(same_bits(x.grad(), zeros({1, 4, 1, 3})));
}

TEST_CASE("attention: few queries of bf16 see nothing of what is masked", "[attention][bf16][skinny]") {
  Rng rng(4);
  const double inf = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
  const Tensor q = drawn({1, 2, 3, 16}, false, rng);
  Tensor k = drawn({1, 2, 40, 16}, false, rng), v = drawn({1, 2, 40, 20}, false, rng);
  const Tensor mask = lt(arange(0, 40), 37.0);
  const AttentionOptions o{.mask = {.keys = unsqueeze(mask, 0)}};
  const Tensor want = attention(q, k, v, o);
  for (const double bad : {inf, -inf, nan}) {
    Tensor hidden_k = narrow(k, 2, 37, 3), hidden_v = narrow(narrow(v, 2, 37, 3), 3, 17, 3);
    fill_(hidden_k, bad), fill_(hidden_v, bad);
    CHECK(same_bits(attention(q, k, v, o), want));
  }
  Tensor seen = narrow(v, 2, 5, 1);
  fill_(seen, nan);
  CHECK(std::isnan(max(abs(attention(q, k, v, o))).item()));
}

TEST_CASE("attention: few queries of bf16, each with its blocks of keys", "[attention][bf16][skinny]") {
  Rng rng(6);
  for (const int64_t m : {1, 3, 8}) {
    AttentionOptions o{.mask = {.causal = true}};
    o.mask.block = 32, o.mask.blocks = uniform({2, 1, m, 7}, 0, 1, rng) < 0.4;
    check(drawn({2, 4, m, 16}, false, rng), drawn({2, 4, 200, 16}, false, rng), drawn({2, 4, 200, 9}, false, rng), o);
  }
}

TEST_CASE("attention: one query of many keys or values without channels", "[attention][skinny]") {
  const int64_t n = 1 << 19;
  for (const DType t : {f32, f64, bf16}) {
    const Tensor v = ones({1, 1, n, 8}, {t}), none = ones({1, 1, n, 0}, {t});
    CHECK(max_abs_diff(attention(ones({1, 1, 1, 0}, {t}), none, v), ones({1, 1, 1, 8}, {t})) < 1e-6);
    CHECK(attention(ones({1, 1, 1, 8}, {t}), v, none).shape() == Shape{1, 1, 1, 0});
  }
}

TEST_CASE("attention: few queries of bf16 have gradients", "[attention][bf16][skinny]") {
  Rng rng(5);
  for (const int64_t m : {1, 4, 6, 8}) {
    std::vector<Tensor> x, wide;
    for (const Shape& s : {Shape{2, 4, m, 24}, Shape{2, 2, 65, 24}, Shape{2, 2, 65, 8}}) {
      x.push_back(drawn(s, true, rng));
      wide.push_back(to(x.back(), f64).requires_grad_()), x.back().requires_grad_();
    }
    const AttentionOptions o{.mask = {.causal = true}};
    const Tensor c = drawn({2, 4, m, 8}, false, rng);
    const auto got = grad({attention(x[0], x[1], x[2], o)}, x, {.grad_outputs = {c}});
    const auto want = grad({attention(wide[0], wide[1], wide[2], o)}, wide, {.grad_outputs = {to(c, f64)}});
    for (std::size_t i = 0; i < 3; ++i) CHECK(max_abs_diff(to(got[i], f64), want[i]) <= 0x1p-6 * max_abs(want[i]));
  }
}
