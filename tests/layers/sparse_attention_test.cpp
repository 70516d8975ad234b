// Sparse attention over lists, by top-k, and with global rows, against masks and loops.
#include "layers/sparse_reference.h"
#include "support/identities.h"

#include <sluice/autograd/engine.h>
#include <sluice/layers/attention/sparse_attention.h>
#include <sluice/layers/attention/sparse_masks.h>
#include <sluice/layers/gau/gau.h>
#include <sluice/layers/train/models.h>
#include <sluice/ops/attention/attention_reference.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/index/gather.h>
#include <sluice/ops/matmul/matmul.h>
#include <sluice/ops/rows/reduce.h>
#include <sluice/ops/shape/view.h>

#include <cmath>

using namespace sluice;
using namespace sluice::testing;

namespace {

/// 1 where fewer than k allowed keys of the row come before j in the order of scores.
Array naive_topk(const Array& scores, int64_t k, TopKTies ties, const std::function<bool(const Dims&)>& allowed) {
  Array can(scores.shape), keep(scores.shape);
  each_index(scores.shape, [&](const Dims& i) { can(i) = allowed(i); });
  const auto n = static_cast<std::size_t>(scores.shape.back());
  for (std::size_t row = 0; row < scores.v.size(); row += n)
    for (std::size_t j = 0; j < n; ++j) {
      int64_t before = 0;
      const double mine = scores.v[row + j];
      for (std::size_t other = 0; other < n; ++other) {
        const double s = scores.v[row + other];
        before += can.v[row + other] != 0 && (s > mine || (s == mine && ties == TopKTies::index && other < j));
      }
      keep.v[row + j] = can.v[row + j] != 0 && before < k;
    }
  return keep;
}

}  // namespace

TEST_CASE("sparse: neighbour lists give the attention of the mask, forward and backward", "[sparse]") {
  Rand rand(1);
  struct Pattern {
    const char* name;
    AttentionMask mask;
    int64_t m, n;
  };
  const int64_t n = 13;
  std::vector<Pattern> patterns;
  for (bool causal : {false, true}) {
    for (auto [m, keys] : {std::pair<int64_t, int64_t>{n, n}, {4, n}, {n, 6}}) {
      patterns.push_back({"sliding", sliding_mask(2, causal), m, keys});
      patterns.push_back({"dilated", dilated_mask(2, 3, causal), m, keys});
      patterns.push_back({"residue", residue_mask(4, causal), m, keys});
      patterns.push_back({"global-local", global_local_mask(1, {0, 7}, causal), m, keys});
      patterns.push_back({"full", {.causal = causal}, m, keys});
    }
    patterns.push_back(
        {"BigBird", bigbird_mask(n, {.block = 2, .random = 1, .causal = causal, .heads = 4, .seed = 3}), n, n});
    patterns.push_back({"window 0", sliding_mask(0, causal), n, n});
    const Tensor random = random_neighbours(n, n, {.k = 3, .causal = causal, .heads = 4, .seed = 2});
    patterns.push_back({"random", {.dense = mask_of_neighbours(random, n)}, n, n});
  }
  for (const Pattern& p : patterns)
    for (int64_t kv_heads : {4, 2}) {
      INFO(p.name << (p.mask.causal ? ", causal" : "") << ", " << p.m << "×" << p.n << ", kv heads " << kv_heads);
      Qkv x = random_qkv(rand, 2, 4, kv_heads, p.m, p.n);
      for (Tensor* t : {&x.q, &x.k, &x.v}) t->requires_grad_();
      const Tensor lists = neighbours_of(p.mask, p.m, p.n, 4), cotangent = random_tensor({2, 4, p.m, 4}, f64, rand);
      const Tensor a = neighbour_attention(x.q, x.k, x.v, lists), b = attention(x.q, x.k, x.v, {.mask = p.mask});
      check_identity("sparse: neighbour list = masked dense", a, b, 1e-13);
      CHECK(max_abs_diff(a, naive(x, {.mask = p.mask})) < 1e-13);
      const auto da = grad({a}, {x.q, x.k, x.v}, {.grad_outputs = {cotangent}});
      const auto db = grad({b}, {x.q, x.k, x.v}, {.grad_outputs = {cotangent}});
      for (std::size_t i = 0; i < 3; ++i) check_identity("sparse: neighbour list = masked dense", da[i], db[i], 1e-12);
    }
}

TEST_CASE("sparse: identities of the fixed patterns", "[sparse]") {
  Rand rand(2);
  const int64_t n = 11;
  const Qkv x = random_qkv(rand, 2, 2, 2, n, n);
  auto masked = [&](const AttentionMask& m) { return attention(x.q, x.k, x.v, {.mask = m}); };
  auto listed = [&](const Tensor& lists) { return neighbour_attention(x.q, x.k, x.v, lists); };
  for (bool causal : {false, true}) {
    const Tensor full_attention = masked({.causal = causal});
    check_identity("sparse: window >= n is full", masked(sliding_mask(n - 1, causal)), full_attention, 1e-13);
    check_identity("sparse: window >= n is full", listed(neighbours_of(sliding_mask(n + 5, causal), n, n)),
                   full_attention, 1e-13);
    check_identity("sparse: window 0 is V", masked(sliding_mask(0, causal)), x.v, 1e-15);
    check_identity("sparse: window 0 is V", listed(neighbours_of(sliding_mask(0, causal), n, n)), x.v, 1e-15);
    check_identity("sparse: dilation 1 is sliding", masked(dilated_mask(3, 1, causal)), masked(sliding_mask(3, causal)),
                   0);
    const Tensor random = random_neighbours(n, n, {.k = n, .causal = causal, .heads = 2, .seed = 1});
    check_identity("sparse: random k = n is full", listed(random), full_attention, 1e-13);
    check_identity("sparse: random k = n is full", masked({.dense = mask_of_neighbours(random, n)}), full_attention,
                   1e-13);
    check_identity("sparse: no global is sliding", masked(global_local_mask(2, {}, causal)),
                   masked(sliding_mask(2, causal)), 0);
    std::vector<int64_t> all;
    for (int64_t i = 0; i < n; ++i) all.push_back(i);
    check_identity("sparse: all global is full", masked(global_local_mask(1, all, causal)), full_attention, 1e-13);
    const BigBirdOptions everything{.block = 2, .random = 6, .causal = causal};
    check_identity("sparse: all blocks is full", masked(bigbird_mask(n, everything)), full_attention, 1e-13);
  }
  CHECK(max_abs_diff(masked(sliding_mask(n - 2)), masked({})) > 1e-6);
}

TEST_CASE("sparse: neighbour lists — padding, repeated keys, empty rows, ranks, gradients", "[sparse]") {
  Rand rand(3);
  const Qkv x = random_qkv(rand, 2, 2, 1, 5, 7);
  const Tensor lists = random_neighbours(5, 7, {.k = 3, .heads = 2, .seed = 1});
  const Tensor keys = Tensor::from(std::vector<bool>{0, 1, 1, 1, 1, 1, 0, 1, 1, 1, 1, 0, 0, 0}, {2, 7});
  Qkv spoilt = x;
  spoilt.k = where(unsqueeze(unsqueeze(keys, 1), -1), x.k, full({}, NAN, {f64}));
  spoilt.v = where(unsqueeze(unsqueeze(keys, 1), -1), x.v, full({}, NAN, {f64}));
  for (Tensor* t : {&spoilt.q, &spoilt.k, &spoilt.v}) *t = clone(*t).requires_grad_();
  const Tensor y = neighbour_attention(spoilt.q, spoilt.k, spoilt.v, lists, {.keys = keys});
  CHECK(max_abs_diff(y, naive(x, {.mask = {.keys = keys, .dense = mask_of_neighbours(lists, 7)}})) < 1e-13);
  for (const Tensor& g : grad({sum(y)}, {spoilt.q, spoilt.k, spoilt.v})) CHECK(std::isfinite(max_abs(g)));

  // A key listed twice counts twice; a row of −1 gives 0.
  const Tensor one = neighbour_attention(x.q, x.k, x.v, Tensor::from(std::vector<int64_t>(10, 2), {5, 2}));
  CHECK(max_abs_diff(one, expand(narrow(x.v, 2, 2, 1), {2, 2, 5, 4})) < 1e-14);
  const Tensor none = neighbour_attention(x.q, x.k, x.v, full({1, 5, 3}, -1, {i64}));
  CHECK(max_abs(none) == 0);
  CHECK(none.shape() == Shape{2, 2, 5, 4});
  const Tensor q = clone(x.q).requires_grad_(),
               unlisted = neighbour_attention(q, x.k, x.v, zeros({1, 5, 0}, {i64}), {.keys = keys});
  CHECK(
      (unlisted.shape() == Shape{2, 2, 5, 4} && max_abs(unlisted) == 0 && max_abs(grad({sum(unlisted)}, {q})[0]) == 0));

  // Rank 2 and 3, f32, and empty sizes.
  auto first = [](const Tensor& t) { return select(select(t, 0, 0), 0, 0); };
  const Tensor shared = random_neighbours(5, 7, {.k = 3, .seed = 1});
  const Tensor whole = neighbour_attention(x.q, x.k, x.v, shared, {.scale = 0.3});
  CHECK(max_abs_diff(neighbour_attention(first(x.q), first(x.k), first(x.v), shared, {.scale = 0.3}), first(whole)) <
        1e-14);
  CHECK(
      max_abs_diff(neighbour_attention(select(x.q, 1, 1), select(x.k, 1, 0), select(x.v, 1, 0), shared, {.scale = 0.3}),
                   select(whole, 1, 1)) < 1e-14);
  CHECK(max_abs_diff(to(neighbour_attention(to(x.q, f32), to(x.k, f32), to(x.v, f32), shared, {.scale = 0.3}), f64),
                     whole) < 1e-6);
  const Qkv nobody = random_qkv(rand, 0, 2, 2, 5, 7), no_keys = random_qkv(rand, 1, 2, 2, 5, 0);
  CHECK(neighbour_attention(nobody.q, nobody.k, nobody.v, shared).shape() == Shape{0, 2, 5, 4});
  CHECK(max_abs(neighbour_attention(no_keys.q, no_keys.k, no_keys.v, full({1, 5, 2}, -1, {i64}),
                                    {.keys = zeros({1, 0}, {boolean})})) == 0);

  const Qkv t = random_qkv(rand, 1, 2, 1, 3, 4, 2, 2);
  const Tensor few = Tensor::from(std::vector<int64_t>{0, 2, -1, 1, -1, -1, 0, 1, 3}, {1, 3, 3});
  check_gradients([&](const std::vector<Tensor>& in) { return neighbour_attention(in[0], in[1], in[2], few); },
                  {t.q, t.k, t.v});

  // Dropout keeps the mean.
  Rng rng(1);
  Tensor mean = zeros({2, 2, 5, 4}, {f64});
  for (int i = 0; i < 400; ++i)
    mean = mean + neighbour_attention(x.q, x.k, x.v, shared, {.scale = 0.3, .dropout = 0.25}, &rng) * (1.0 / 400);
  // Σ w v has the variance p/(1 − p) Σ w² v²: the mean of 400 lies within 5 standard deviations.
  const Tensor map = attention_map(x.q, x.k, {.scale = 0.3, .mask = {.dense = mask_of_neighbours(shared, 7)}});
  const Tensor deviation = sqrt(matmul(square(map), square(x.v)) * (0.25 / 0.75 / 400));
  CHECK(max(abs(mean - whole) / deviation).item() < 5);
  CHECK(max_abs_diff(mean, whole) > 0);
  CHECK(same_bits(neighbour_attention(x.q, x.k, x.v, shared, {.scale = 0.3, .dropout = 0.25}), whole));
}

TEST_CASE("sparse: top-k against loops", "[sparse]") {
  Rand rand(4);
  for (bool causal : {false, true})
    for (TopKTies ties : {TopKTies::index, TopKTies::threshold})
      for (int64_t k : {1, 3, 8, 40})
        for (auto [m, n] : {std::pair<int64_t, int64_t>{9, 9}, {3, 9}, {9, 5}, {1, 1}, {300, 20}}) {
          const int64_t shift = n - m;
          INFO("causal " << causal << ", ties " << static_cast<int>(ties) << ", k=" << k << ", " << m << "×" << n);
          const Qkv x = random_qkv(rand, 2, 2, 1, m, n);
          const Array kept =
              naive_topk(naive_scores(x), k, ties, [&](const Dims& i) { return !causal || i[3] <= i[2] + shift; });
          TopKOptions o{.k = k, .ties = ties};
          o.attention.mask.causal = causal;
          CHECK(max_abs_diff(topk_attention(x.q, x.k, x.v, o), naive_dense(x, kept)) < 1e-13);
        }
}

TEST_CASE("sparse: top-k — every option of attention takes part in the choice", "[sparse]") {
  Rand rand(5);
  const int64_t m = 140, n = 150;  // two blocks of rows
  const Qkv x = random_qkv(rand, 1, 2, 2, m, n);
  const Tensor bias = random_tensor({2, m, n}, f64, rand), row_scale = random_tensor({2, m}, f64, rand, -1, 2);
  const Tensor relative = random_tensor({2, n + m - 1}, f64, rand, -2, 2);
  const Tensor window_bias = random_tensor({2, 1, n}, f64, rand);
  for (int variant = 0; variant < 5; ++variant) {
    TopKOptions o{.k = 4};
    AttentionOptions& a = o.attention;
    if (variant == 0) a.bias = bias;
    if (variant == 1) a.relative_bias = relative, a.weighting = Weighting::relu2;
    if (variant == 2) a.row_scale = row_scale, a.scale = 1.5;
    if (variant == 3) a.bias = window_bias, a.sink = zeros({1}, {f64}), a.mask.window = 9, a.mask.global = {3};
    if (variant == 4) a.bias = bias, a.relative_bias = relative, a.row_scale = row_scale, a.mask.causal = true;
    // Scores by loops, then the choice.
    Array s = naive_scores(x);
    const Array b = array_of(a.bias), t = array_of(a.relative_bias), r = array_of(a.row_scale);
    each_index(s.shape, [&](const Dims& i) {
      double value = s(i) * (a.scale ? *a.scale * std::sqrt(3.0) : 1);
      if (a.bias.defined()) value += b.stretched(i);
      if (a.relative_bias.defined()) value += t({i[1], n - 1 + i[3] - (i[2] + n - m)});
      s(i) = value * (a.row_scale.defined() ? r({i[1], i[2]}) : 1);
    });
    const NaiveMask mask(a.mask, m, n);
    const Array kept =
        naive_topk(s, 4, TopKTies::index, [&](const Dims& i) { return mask.sees(i[0], i[1], i[2], i[3]); });
    AttentionOptions dense = a;
    std::vector<bool> flags;
    for (double f : kept.v) flags.push_back(f != 0);
    dense.mask = {.dense = Tensor::from(flags, {1, 2, m, n})};
    INFO("variant " << variant);
    CHECK(max_abs_diff(topk_attention(x.q, x.k, x.v, o), naive(x, dense)) < 1e-12);
  }
}

TEST_CASE("sparse: top-k — ties", "[sparse]") {
  // Scores 1 0 1 1 0 1: k = 2 keeps keys 0 and 2, or all four.
  const Tensor scores = Tensor::from(std::vector<double>{1, 0, 1, 1, 0, 1}, {1, 6});
  auto kept = [&](int64_t k, TopKTies ties, const Tensor& allowed = {}) {
    return topk_mask(scores, k, ties, allowed).to_vector<int64_t>();
  };
  CHECK(kept(2, TopKTies::index) == std::vector<int64_t>{1, 0, 1, 0, 0, 0});
  CHECK(kept(2, TopKTies::threshold) == std::vector<int64_t>{1, 0, 1, 1, 0, 1});
  CHECK(kept(5, TopKTies::index) == std::vector<int64_t>{1, 1, 1, 1, 0, 1});
  CHECK(kept(5, TopKTies::threshold) == std::vector<int64_t>{1, 1, 1, 1, 1, 1});
  CHECK(kept(0, TopKTies::index) == std::vector<int64_t>(6, 0));
  CHECK(kept(6, TopKTies::index) == std::vector<int64_t>(6, 1));
  const Tensor allowed = Tensor::from(std::vector<bool>{0, 1, 0, 0, 0, 1}, {6});
  for (TopKTies ties : {TopKTies::index, TopKTies::threshold}) {
    CHECK(kept(1, ties, allowed) == std::vector<int64_t>{0, 0, 0, 0, 0, 1});
    CHECK(kept(3, ties, allowed) == std::vector<int64_t>{0, 1, 0, 0, 0, 1});  // fewer than k: all
    CHECK(kept(9, ties, allowed) == std::vector<int64_t>{0, 1, 0, 0, 0, 1});
  }
  // Through attention: equal keys, so that the output is the mean of those kept.
  const Tensor q = ones({2, 3}, {f64}), k = ones({6, 3}, {f64}), v = reshape(arange(6, {f64}), {6, 1});
  CHECK(max_abs_diff(topk_attention(q, k, v, {.k = 2}), full({2, 1}, 0.5, {f64})) < 1e-15);
  CHECK(max_abs_diff(topk_attention(q, k, v, {.k = 2, .ties = TopKTies::threshold}), full({2, 1}, 2.5, {f64})) < 1e-15);
}

TEST_CASE("sparse: top-k — identities and gradients", "[sparse]") {
  Rand rand(6);
  Qkv x = random_qkv(rand, 2, 2, 2, 8, 8);
  for (bool causal : {false, true})
    for (TopKTies ties : {TopKTies::index, TopKTies::threshold}) {
      TopKOptions all{.k = 8, .ties = ties};
      all.attention.mask.causal = causal;
      check_identity("sparse: top-k with k = n is dense", topk_attention(x.q, x.k, x.v, all),
                     attention(x.q, x.k, x.v, {.mask = {.causal = causal}}), 1e-14);
      TopKOptions one{.k = 1, .ties = ties};
      one.attention.mask.causal = causal;
      Tensor s = matmul(x.q, transpose(x.k, -2, -1));
      if (causal) s = masked_fill(s, logical_not(causal_mask(8, 8)), -kInf);
      const Tensor best = expand(unsqueeze(argmax(s, -1), -1), {2, 2, 8, 4});
      check_identity("sparse: top-1 is v[argmax]", topk_attention(x.q, x.k, x.v, one), gather(x.v, 2, best), 1e-14);
    }
  // Only kept keys and values get a gradient: k = 1 leaves q and k without any.
  for (Tensor* t : {&x.q, &x.k, &x.v}) t->requires_grad_();
  const std::vector<Tensor> g = grad({sum(topk_attention(x.q, x.k, x.v, {.k = 1}))}, {x.q, x.k, x.v});
  CHECK(max_abs(g[0]) < 1e-15);
  CHECK(max_abs(g[1]) < 1e-15);
  CHECK(max_abs_diff(sum(g[2]), full({}, 2 * 2 * 8 * 4, {f64})) < 1e-12);

  // NaN behind the mask leaks neither into the choice nor into the result.
  const Tensor keys = Tensor::from(std::vector<bool>{1, 1, 0, 1, 0, 1, 1, 1}, {1, 8});
  const Tensor hidden = unsqueeze(logical_not(keys), -1);
  TopKOptions o{.k = 3};
  o.attention.mask.keys = keys;
  const Tensor clean = topk_attention(x.q, x.k, x.v, o);
  const Tensor spoilt = topk_attention(x.q, masked_fill(x.k, hidden, NAN), masked_fill(x.v, hidden, NAN), o);
  CHECK(max_abs_diff(spoilt.detach(), clean.detach()) < 1e-14);  // tiles with NaN add up in another order
}

TEST_CASE("sparse: global rows with projections of their own", "[sparse]") {
  Rand rand(10);
  const int64_t n = 9;
  const Qkv x = random_qkv(rand, 2, 2, 1, n, n), g = random_qkv(rand, 2, 2, 1, n, n);
  const std::vector<int64_t> global{7, 0};
  const Tensor positions = Tensor::from(global);
  const AttentionMask mask = global_local_mask(1, global);
  const AttentionOptions o{.mask = mask};
  CHECK(max_abs_diff(global_local_attention(x.q, x.k, x.v, o), naive(x, {.mask = mask})) < 1e-13);
  CHECK(max_abs_diff(global_local_attention(x.q, x.k, x.v, o, {index_select(x.q, 2, positions), x.k, x.v}),
                     naive(x, {.mask = mask})) < 1e-13);
  // Longformer: rows 7 and 0 come from the second set, all others see global keys of the first.
  const Tensor local = naive(x, {.mask = mask}), other = naive(g, {});
  std::vector<Tensor> want;
  for (int64_t i = 0; i < n; ++i) want.push_back(select(i == 0 || i == 7 ? other : local, 2, i));
  const GlobalRows rows{index_select(g.q, 2, positions), g.k, g.v};
  CHECK(max_abs_diff(global_local_attention(x.q, x.k, x.v, o, rows), stack(want, 2)) < 1e-13);
  CHECK(same_bits(global_local_attention(x.q, x.k, x.v, {.mask = sliding_mask(1)}, rows),
                  global_local_attention(x.q, x.k, x.v, {.mask = sliding_mask(1)})));

  // Causal rows see keys j <= i; documents, pairs, biases and sinks hold for them, too.
  AttentionOptions all = o;
  all.mask.causal = true, all.mask.dense = random_tensor({n, n}, f64, rand, 0, 1) < 0.7;
  all.bias = random_tensor({2, 2, n, n}, f64, rand), all.sink = random_tensor({2}, f64, rand), all.softcap = 2;
  AttentionOptions full = all;
  full.mask.window = 0, full.mask.global.clear();
  const Tensor bounded = naive(x, all), free = naive(g, full);
  want.clear();
  for (int64_t i = 0; i < n; ++i) want.push_back(select(i == 0 || i == 7 ? free : bounded, 2, i));
  CHECK(max_abs_diff(global_local_attention(x.q, x.k, x.v, all, rows), stack(want, 2)) < 1e-13);

  const Qkv a = random_qkv(rand, 1, 1, 1, 3, 3, 2, 2), b = random_qkv(rand, 1, 1, 1, 1, 3, 2, 2);
  check_gradients(
      [&](const std::vector<Tensor>& in) {
        return global_local_attention(in[0], in[1], in[2], {.mask = global_local_mask(0, {1})}, {in[3], in[4], in[5]});
      },
      {a.q, a.k, a.v, b.q, b.k, b.v});

  CHECK_THROWS_WITH(global_local_attention(x.q, x.k, x.v, {.mask = global_local_mask(1, {0, 0})}),
                    Contains("distinct"));
  CHECK_THROWS_AS(global_local_attention(x.q, x.k, x.v, {.mask = global_local_mask(1, {n})}), ValueError);
  CHECK_THROWS_WITH(global_local_attention(x.q, x.k, x.v, o, {g.q, g.k, g.v}), Contains("2 global positions"));
  CHECK_THROWS_WITH(global_local_attention(narrow(x.q, 2, 0, 3), x.k, x.v, o), Contains("as many queries"));
}

TEST_CASE("sparse: errors of the functions", "[sparse]") {
  Rand rand(11);
  const Qkv x = random_qkv(rand, 1, 2, 2, 3, 4);
  const Tensor lists = zeros({1, 3, 2}, {i64}), f = zeros({3, 4}, {f64});
  CHECK_THROWS_AS(neighbour_attention(x.q, x.k, x.v, to(lists, f32)), DTypeError);
  CHECK_THROWS_WITH(neighbour_attention(x.q, x.k, x.v, zeros({3, 3, 2}, {i64})),
                    Contains("[3,3,2]") && Contains("[2 or 1, 3, K]"));
  CHECK_THROWS_WITH(neighbour_attention(x.q, x.k, x.v, full({1, 3, 2}, 4, {i64})),
                    Contains("index 4") && Contains("4)"));
  CHECK_THROWS_AS(neighbour_attention(x.q, x.k, x.v, full({1, 3, 2}, -2, {i64})), ValueError);
  CHECK_THROWS_WITH(neighbour_attention(x.q, x.k, x.v, lists, {.keys = ones({1, 3}, {boolean})}), Contains("keys"));
  CHECK_THROWS_WITH(neighbour_attention(x.q, x.k, x.v, lists, {.keys = ones({1, 1, x.k.dim(2)}, {boolean})}),
                    Contains("neighbour_attention: keys=[1,1,") && Contains("does not fit k="));
  CHECK_THROWS_WITH(topk_attention(x.q, x.k, x.v, {.k = 0}), Contains("topk_attention") && Contains("0"));
  CHECK_THROWS_AS(topk_attention(x.q, narrow(x.k, 3, 0, 2), x.v, {.k = 1}), ShapeError);
  CHECK_THROWS_AS(topk_mask(f, -1), ValueError);
  CHECK_THROWS_WITH(topk_mask(f, 1, TopKTies::index, ones({5}, {boolean})), Contains("[5]"));
}

TEST_CASE("top-k: keys of bf16 whose scores bf16 cannot tell apart", "[sparse][bf16]") {
  const auto rows = [](const std::vector<double>& values, int64_t n) {
    return to(Tensor::from(values, {1, 1, n, std::ssize(values) / n}), bf16);
  };
  const Tensor q = rows({1, 1}, 1), k = rows({1, 1.0 / 1024, 1, 3.0 / 1024}, 2), v = rows({10, 20}, 2);
  CHECK(topk_attention(q, k, v, {.k = 1, .attention = {.scale = 1000.}}).item() == 20);

  Rng rng(1);
  for (const GauKind kind : {GauKind::su, GauKind::softmax_plus, GauKind::laplace}) {
    const Gau half({.dim = 4, .expansion = 4, .key_dim = 4, .kind = kind, .causal = true, .top_k = 2, .dtype = bf16},
                   rng);
    Gau full = clone(half);
    to(full, f32);
    const Tensor x = to(normal({1, 5, 4}, 0, 1, rng), bf16);
    CHECK(max(abs(to(half(x), f32) - full(to(x, f32)))).item() < 0.05);
  }
}
