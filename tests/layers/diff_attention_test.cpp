// What differential attention alone promises: identities of both versions, and what their streams keep.
#include "layers/streamed.h"
#include "support/approx.h"
#include "support/catch.h"

#include <sluice/layers/attention/diff_attention.h>
#include <sluice/layers/attention/multi_head_attention.h>
#include <sluice/layers/report/cost.h>
#include <sluice/layers/report/summary.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/index/gather.h>
#include <sluice/ops/rows/reduce.h>

#include <cmath>

using namespace sluice;
using namespace sluice::testing;

namespace {

constexpr int64_t kDim = 20, kHeads = 4, kGroups = 2, kWidth = 6;

DiffAttentionOptions options_of(int64_t version) {
  return {.dim = kDim, .heads = kHeads, .kv_heads = kGroups, .head_dim = kWidth, .version = version, .dtype = f64};
}
DiffAttention layer_of(const DiffAttentionOptions& o) {
  Rng rng(7);
  return DiffAttention(o, rng);
}
Tensor input() {
  Rand rand(3);
  return random_tensor({2, 70, kDim}, f64, rand);
}
/// Softmax attention of so many heads with the layer's maps, [batch, heads, n, ·], before its output map.
Tensor attended(const DiffAttention& diff, const Tensor& x, int64_t heads, int64_t kv_heads) {
  const HeadsOptions h{.dim = kDim, .heads = heads, .kv_heads = kv_heads, .use_rope = true, .rope = diff.options.rope};
  const auto [q, k, v] = diff.heads.project(h, x);
  return attention(q, k, v, {.mask = {.causal = true}});
}
/// The given heads of a weight [in, heads·kWidth], side by side.
Tensor reordered(const Tensor& weight, const std::vector<int64_t>& order) {
  const Tensor parts = unflatten(weight.detach(), 1, {weight.dim(1) / kWidth, kWidth});
  return flatten(index_select(parts, 1, Tensor::from(order)), 1, 2);
}

}  // namespace

TEST_CASE("differential attention 2: without Wλ half of the second map is subtracted", "[layers][diff]") {
  DiffAttention diff = layer_of(options_of(2));
  const Tensor x = input();
  diff.lambda.weight = zeros({kDim, kHeads}, {f64});
  const Tensor a = unflatten(attended(diff, x, 2 * kHeads, kGroups), 1, {kHeads, 2});
  const Tensor want = select(a, 2, 0) - 0.5 * select(a, 2, 1);
  CHECK(max_abs_diff(diff(x), diff.heads.out(detail::merge_heads(want))) <= 1e-13);
}

TEST_CASE("differential attention 2: a λ of 0 leaves the first maps", "[layers][diff]") {
  DiffAttention diff = layer_of(options_of(2));
  Tensor x = input();
  x = cat({full({2, 70, 1}, 1, {f64}), narrow(x, 2, 1, kDim - 1)}, 2);  // a constant channel, which drives σ to 0
  diff.lambda.weight = cat({full({1, kHeads}, -800, {f64}), zeros({kDim - 1, kHeads}, {f64})}, 0);
  const Tensor a = unflatten(attended(diff, x, 2 * kHeads, kGroups), 1, {kHeads, 2});
  CHECK(max_abs_diff(diff(x), diff.heads.out(detail::merge_heads(select(a, 2, 0)))) <= 1e-13);
}

TEST_CASE("differential attention 1: two equal maps are (1 − λ) of one", "[layers][diff]") {
  DiffAttentionOptions o = options_of(1);
  o.norm = NormKind::none, o.lambda_init = 0.3;
  DiffAttention diff = layer_of(o);
  const Tensor x = input();
  const std::vector<int64_t> first_twice{0, 0, 2, 2, 4, 4, 6, 6};
  diff.heads.q.weight = reordered(diff.heads.q.weight, first_twice);
  diff.heads.k.weight = reordered(diff.heads.k.weight, {0, 0, 2, 2});
  const double share = std::exp(sum(diff.lambda_q1 * diff.lambda_k1).item()) -
                       std::exp(sum(diff.lambda_q2 * diff.lambda_k2).item()) + 0.3;
  CHECK(diff.share_of_second(x).item() == Approx(share).epsilon(1e-14));
  DiffAttention single = diff;
  single.heads.q.weight = reordered(diff.heads.q.weight, {0, 2, 4, 6});
  single.heads.k.weight = reordered(diff.heads.k.weight, {0, 2});
  const Tensor want = attended(single, x, kHeads, kGroups) * ((1 - share) * 0.7);
  CHECK(max_abs_diff(diff(x), diff.heads.out(detail::merge_heads(want))) <= 1e-13);
}

TEST_CASE("differential attention 1: adjacent heads and halves are one function of permuted maps", "[layers][diff]") {
  for (const int64_t groups : {1, 2, 4}) {
    DiffAttentionOptions o = options_of(1);
    o.kv_heads = groups;
    const DiffAttention adjacent = layer_of(o);
    o.pairing = DiffPairing::halves;
    DiffAttention halves = layer_of(o);
    const auto order = [](int64_t pairs) {
      std::vector<int64_t> all;
      for (int64_t member = 0; member < 2; ++member)
        for (int64_t i = 0; i < pairs; ++i) all.push_back(2 * i + member);
      return all;
    };
    halves.heads.q.weight = reordered(adjacent.heads.q.weight, order(kHeads));
    halves.heads.k.weight = reordered(adjacent.heads.k.weight, order(groups));
    halves.heads.v.weight = reordered(adjacent.heads.v.weight, order(groups));
    const Tensor x = input();
    CHECK(max_abs_diff(halves(x), adjacent(x)) <= 1e-13);
  }
}

TEST_CASE("differential attention 1: with shared keys the two maps of a pair read two keys", "[layers][diff]") {
  // With equal queries in a pair, λ = 1 and no norm, what is left of a pair is the difference of its two keys.
  DiffAttentionOptions o = options_of(1);
  o.norm = NormKind::none, o.lambda_init = 1 - 1e-6;
  DiffAttention diff = layer_of(o);
  diff.heads.q.weight = reordered(diff.heads.q.weight, {0, 0, 2, 2, 4, 4, 6, 6});
  for (Tensor* v : {&diff.lambda_q1, &diff.lambda_q2}) *v = zeros({kWidth}, {f64});
  const Tensor x = input();
  CHECK(max_abs(diff(x)) * 1e6 > 1e-2);
  diff.heads.k.weight = reordered(diff.heads.k.weight, {0, 0, 2, 2});
  CHECK(max_abs(diff(x)) * 1e6 < 1e-4);
}

TEST_CASE("differential attention: streams keep what version and groups say", "[layers][diff][stream]") {
  const Tensor x = input();
  for (const int64_t version : {1, 2}) {
    const DiffAttentionOptions o = options_of(version);
    const DiffAttention diff = layer_of(o);
    const int64_t numbers = (version == 1 ? 4 : 2) * kGroups * kWidth;
    CHECK(stream_of(diff, x).numel() == 2 * 70 * numbers);
    CHECK(cost(o, 9).state == 9 * numbers);
    const Tensor y = diff(x);
    for (const std::vector<int64_t>& pieces : {std::vector<int64_t>{1}, {33, 1, 7}})
      CHECK(max_abs_diff(streamed(diff, x, pieces), y) <= 1e-12);
  }
}

TEST_CASE("differential attention: products as counted", "[layers][diff][cost]") {
  const int64_t n = 9, d = kDim, h = kHeads, g = kGroups, w = kWidth;
  CHECK(cost(options_of(1), n).flops ==
        2 * n * d * (2 * h * w + 4 * g * w + 2 * h * w) + 2 * n * n * h * (2 * w + 4 * w));
  CHECK(cost(options_of(2), n).flops == 2 * n * d * (2 * h * w + 2 * g * w + h + h * w) + 2 * n * n * 2 * h * (w + w));
}

TEST_CASE("differential attention 1: reports name its norm by its path", "[layers][diff][cost]") {
  const DiffAttention diff = layer_of(options_of(1));
  int norms = 0;
  for (const ModuleCost& row : module_costs(diff, input()))
    if (row.path == "norm") {
      ++norms;
      CHECK(row.output == Shape{2, kHeads, 70, 2 * kWidth});
    }
  CHECK(norms == 1);
}

TEST_CASE("differential attention: defaults and errors", "[layers][diff]") {
  CHECK(diff_lambda_init(0) == Approx(0.2));
  CHECK(diff_lambda_init(3) == Approx(0.5560582041556406).epsilon(1e-15));
  const auto built = [](DiffAttentionOptions o) {
    o.dtype = f64;
    return layer_of(o);
  };
  CHECK(built({.dim = 16, .heads = 2, .version = 1}).options.head_dim == 4);
  CHECK(built({.dim = 16, .heads = 2, .version = 2}).options.head_dim == 8);
  CHECK(built({.dim = 16, .heads = 2, .version = 1}).heads.out.weight.shape() == Shape{16, 16});
  CHECK(built({.dim = 16, .heads = 2, .version = 2}).heads.out.weight.shape() == Shape{16, 16});
  CHECK_THROWS_WITH(built({.dim = 18, .heads = 2, .version = 1}),
                    Contains("diff_attention: dim=18 must be a multiple of 4"));
  CHECK_THROWS_WITH(built({.dim = 16, .heads = 4, .kv_heads = 3}), Contains("kv_heads=3 must divide heads=4"));
  CHECK_THROWS_WITH(built({.dim = 16, .heads = 2, .pairing = DiffPairing::halves}), Contains("share a KV head"));
  CHECK_THROWS_WITH(built({.dim = 15, .heads = 3}),
                    Contains("diff_attention: RoPE turns pairs") && Contains("head_dim=5"));
}
