// Keys chosen in pools: against loops over real keys, what is seen and what is not, and the layers that choose so.
#include "layers/streamed.h"
#include "support/approx.h"
#include "support/catch.h"
#include "support/naive_attention.h"

#include <sluice/autograd/engine.h>
#include <sluice/layers/attention/key_pools.h>
#include <sluice/layers/attention/mla.h>
#include <sluice/layers/attention/qsa_attention.h>
#include <sluice/ops/basic.h>
#include <sluice/parallel/sequence.h>

#include <algorithm>
#include <cmath>
#include <string>

using namespace sluice;
using namespace sluice::testing;

namespace {

/// The real keys of sequence b in pools; the last one may not be whole, or empty.
std::vector<std::vector<int64_t>> pools_of(const Array& real, int64_t b, int64_t n, int64_t size) {
  std::vector<std::vector<int64_t>> pools(1);
  for (int64_t j = 0; j < n; ++j) {
    if (real({b, j}) == 0) continue;
    pools.back().push_back(j);
    if (std::ssize(pools.back()) == size) pools.emplace_back();
  }
  return pools;
}

std::string picture(const Tensor& pairs) {
  std::string s;
  const std::vector<bool> all = pairs.to_vector<bool>();
  for (std::size_t i = 0; i < all.size(); ++i)
    s += (i > 0 && i % static_cast<std::size_t>(pairs.dim(3)) == 0 ? " " : ""), s += all[i] ? 'x' : '.';
  return s;
}

}  // namespace

TEST_CASE("pools: rows of pools and pools of keys are those of a loop", "[layers][pools]") {
  Rand rand(1);
  const int64_t n = 151, d = 3;
  Tensor x = random_tensor({2, n, d}, f64, rand);
  x.requires_grad_();
  const Tensor some = random_tensor({2, n}, f64, rand) > -0.3, all = ones({2, n}, {boolean});
  for (const int64_t size : {1, 4, 7, 150, 152})
    for (const bool padded : {false, true}) {
      INFO(size << ", " << padded);
      const Tensor keys = padded ? some : Tensor(), pools = key_pools(x, size, keys);
      REQUIRE(pools.shape() == Shape{2, n / size, size, d});
      const Tensor means = mean(pools, {2}), back = at_keys(means, n, size, keys);
      REQUIRE(back.shape() == Shape{2, n, d});
      const Array got = array_of(pools.detach()), of_keys = array_of(back.detach()), rows = array_of(x.detach()),
                  mean_of = array_of(means.detach());
      for (int64_t b = 0; b < 2; ++b) {
        const auto want = pools_of(array_of(padded ? some : all), b, n, size);
        for (std::size_t p = 0; p < want.size(); ++p)
          for (std::size_t i = 0; std::ssize(want[p]) == size && i < want[p].size(); ++i)
            for (int64_t c = 0; c < d; ++c) {
              const auto at = static_cast<int64_t>(p), place = static_cast<int64_t>(i);
              CHECK(got({b, at, place, c}) == rows({b, want[p][i], c}));
              CHECK(of_keys({b, want[p][i], c}) == mean_of({b, at, c}));
            }
      }
      if (n / size == 0) continue;
      // Both are linear in x: the gradient's product with another v is what they make of v.
      const Tensor c = random_tensor(back.shape(), f64, rand), v = random_tensor(x.shape(), f64, rand),
                   of_v = at_keys(mean(key_pools(v, size, keys), {2}), n, size, keys);
      CHECK(std::abs(sum(grad({sum(back * c)}, {x})[0] * v).item() - sum(of_v * c).item()) < 1e-11);
    }
  CHECK_THROWS_AS(key_pools(x, 0), ValueError);
  CHECK_THROWS_WITH(key_pools(x, 2, ones({2, 9}, {boolean})), Contains("key_pools: keys=[2,9]"));
  CHECK_THROWS_WITH(key_pools(x, 2, ones({2, n})), Contains("key_pools: keys="));
  CHECK_THROWS_WITH(key_pools(select(x, 0, 0), 2), Contains("need [batch, rows, d]"));
  CHECK_THROWS_WITH(at_keys(x, n, 2), Contains("at_keys: pools=[2,151,3]"));
}

TEST_CASE("pools: whole ones before the query compete, its own counts until it is whole", "[layers][pools]") {
  const auto chosen = [](std::vector<double> scores, int64_t n, int64_t size, int64_t count, const Tensor& keys = {}) {
    // One head, q = w = 1: the score of a pool is its row.
    const int64_t pools = std::ssize(scores);
    const KeyIndex index{ones({1, 1, n, 1}, {f64}), tensor_of(scores, {1, pools, 1}, f64), ones({1, n, 1}, {f64})};
    const AttentionMask mask = choose_pools(index, n, {size, count}, {.causal = true, .keys = keys});
    return picture(visible_pairs(mask, 1, 1, n, n));
  };
  CHECK(chosen({1, 3, 2}, 7, 2, 1) == "x...... xx..... xxx.... ..xx... ..xxx.. ..xx... ..xx..x");
  CHECK(chosen({1, 3, 2}, 7, 2, 2) == "x...... xx..... xxx.... xxxx... xxxxx.. ..xxxx. ..xxxxx");
  CHECK(chosen({5, 5}, 5, 2, 1) == "x.... xx... xxx.. xx... xx..x");  // the first of equals
  CHECK(chosen({}, 3, 4, 2) == "x.. xx. xxx");
  CHECK(chosen({1, 9}, 4, 2, 9) == "x... xx.. xxx. xxxx");
  // Padding is in no pool: keys 1, 2 | 4, 5 | 6.
  const Tensor keys = tensor_of({0, 1, 1, 0, 1, 1, 1}, {1, 7}, boolean);
  CHECK(chosen({1, 3, 7}, 7, 2, 1, keys) == "....... .x..... .xx.... .xx.... .xx.x.. ....xx. ....xxx");
  const KeyIndex index{ones({1, 1, 4, 1}), ones({1, 2, 1}), ones({1, 4, 1})};
  CHECK_THROWS_WITH(choose_pools(index, 4, {2, 1}, {}), Contains("choose_pools: needs a causal mask"));
  CHECK_THROWS_AS(choose_pools(index, 4, {0, 1}, {.causal = true}), ValueError);
  CHECK_THROWS_AS(choose_pools(index, 4, {2, 0}, {.causal = true}), ValueError);
  CHECK_THROWS_WITH(choose_pools(index, 6, {2, 1}, {.causal = true}), Contains("for 6 keys"));
  const Tensor one = zeros({1, 4}, {i64});
  CHECK_THROWS_AS(choose_pools(index, 4, {2, 1}, {.causal = true, .query_segments = one, .key_segments = one}),
                  ValueError);
}

TEST_CASE("pools: many queries behind others, with and without padding, against a loop", "[layers][pools]") {
  Rand rand(4);
  const int64_t m = 150, n = 163, heads = 3, d = 4, size = 5, count = 6;
  const KeyIndex index{random_tensor({2, heads, m, d}, f64, rand), random_tensor({2, n / size, d}, f64, rand),
                       random_tensor({2, m, heads}, f64, rand)};
  const Array q = array_of(index.q), k = array_of(index.k), w = array_of(index.w);
  const Tensor some = random_tensor({2, n}, f64, rand) > -0.3, everyone = ones({2, n}, {boolean});
  for (const bool padded : {false, true}) {
    const AttentionMask given{.causal = true, .keys = padded ? some : Tensor()};
    const AttentionMask mask = choose_pools(index, n, {size, count}, given);
    CHECK(mask.blocks.defined() == !padded);
    const Array got = array_of(visible_pairs(mask, 2, 1, m, n)), real = array_of(padded ? some : everyone);
    int64_t wrong = 0;
    for (int64_t b = 0; b < 2; ++b) {
      const auto pools = pools_of(real, b, n, size);
      for (int64_t i = 0; i < m; ++i) {
        const int64_t own = n - m + i;
        std::vector<std::pair<double, std::size_t>> ranked;
        std::vector<bool> seen(static_cast<std::size_t>(n));
        for (std::size_t p = 0; p < pools.size(); ++p) {
          if (std::ssize(pools[p]) == size && pools[p].back() <= own) {
            double score = 0;
            for (int64_t h = 0; h < heads; ++h) {
              double dot = 0;
              for (int64_t c = 0; c < d; ++c) dot += q({b, h, i, c}) * k({b, static_cast<int64_t>(p), c});
              score += w({b, i, h}) * std::max(dot, 0.0);
            }
            ranked.emplace_back(-score, p);
          } else {
            for (const int64_t j : pools[p])
              if (j <= own) seen[static_cast<std::size_t>(j)] = true;  // of the one that is not whole up to here
          }
        }
        std::sort(ranked.begin(), ranked.end());
        for (std::size_t r = 0; r < std::min<std::size_t>(count, ranked.size()); ++r)
          for (const int64_t j : pools[ranked[r].second]) seen[static_cast<std::size_t>(j)] = true;
        for (int64_t j = 0; j < n; ++j) wrong += (got({b, 0, i, j}) != 0) != seen[static_cast<std::size_t>(j)];
      }
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE("pools: all of them are plain attention, streams in any pieces, nothing of documents", "[layers][pools]") {
  Rand rand(5);
  Rng rng(2);
  const Tensor x = random_tensor({2, 130, 12}, f64, rand), real = random_tensor({2, 130}, f64, rand) > -0.8;
  const HeadsOptions heads{.dim = 12, .heads = 4, .kv_heads = 2, .head_dim = 6, .use_rope = true, .dtype = f64};
  const QsaAttention qsa({.heads = heads, .topk = 12, .pool = 4, .index_heads = 3, .index_dim = 6}, rng);
  QsaAttention every = qsa;
  every.options.topk = 4 * 40;
  const MultiHeadAttention& plain = qsa;  // the same weights
  for (const Tensor& mask : {Tensor(), real}) {
    const Tensor want = plain(x, {.key_mask = mask});
    CHECK(max_abs_diff(every(x, {.key_mask = mask}), want) < 1e-13);
    CHECK(max_abs_diff(qsa(x, {.key_mask = mask}), want) > 1e-3);
  }
  MlaOptions o{.dim = 12,
               .heads = 3,
               .nope_dim = 6,
               .rope_dim = 0,
               .value_dim = 5,
               .kv_rank = 7,
               .q_rank = 8,
               .topk = 12,
               .index_heads = 4,
               .index_dim = 6,
               .index_pool = 3,
               .dtype = f64};
  const Mla mla(o, rng);
  const auto check = [&](const auto& layer) {
    const Tensor y = layer(x);
    for (const std::vector<int64_t>& pieces : {std::vector<int64_t>{1}, {99, 1, 1, 3}, {64, 5, 61}})
      CHECK(max_abs_diff(streamed(layer, x, pieces), y) <= 1e-12 * max_abs(y));
    CHECK_THROWS_WITH(layer(x, {.segments = zeros({2, 130}, {i64})}), Contains("documents"));
    for (const NamedTensor& p : parameters(layer))
      if (p.name.starts_with("indexer."))
        CHECK_FALSE(grad({sum(layer(x))}, {p.tensor}, {.allow_unused = true})[0].defined());
  };
  check(qsa), check(mla);
  Stream of_qsa, of_mla;
  step(qsa, x, of_qsa), step(mla, x, of_mla);
  CHECK(of_qsa.numel() == 2 * 130 * (2 * (6 + 6) + 6));
  CHECK(of_mla.numel() == 2 * 130 * (7 + 2 * 6));
  // A loss on the scores trains the indexer, its pools included.
  const Tensor z = random_tensor({2, 130, 8}, f64, rand);
  for (const NamedTensor& p : parameters(mla.indexer)) {
    INFO(p.name);
    const KeyIndex index = mla.indexer(x, z);
    const Tensor scores = index_scores({index.q, mla.indexer.pooled(index.k), index.w});
    CHECK(max_abs(grad({sum(square(scores))}, {p.tensor})[0]) > 0);
  }
}

TEST_CASE("pools: of a sequence cut over ranks, beside padding and masks of pairs", "[layers][pools][sequence]") {
  Rand rand(7);
  Rng rng(3);
  const int64_t n = 90;
  const HeadsOptions heads{.dim = 12, .heads = 2, .use_rope = true, .dtype = f64};
  const QsaAttention layer({.heads = heads, .topk = 8, .pool = 4, .index_heads = 3, .index_dim = 6}, rng);
  const Tensor x = random_tensor({2, n, 12}, f64, rand), real = random_tensor({2, n}, f64, rand) > -0.8,
               pairs = random_tensor({2, 1, n, n}, f64, rand) > -0.5;
  const std::vector<int64_t> first{0, 37, 60}, lengths{37, 23, 30};
  for (const Tensor& key_mask : {Tensor(), real})
    for (const Tensor& mask : {Tensor(), pairs}) {
      std::vector<Tensor> cut(3);
      run_ranks(3, [&](const Communicator& c) {
        const auto r = static_cast<std::size_t>(c.rank());
        const auto piece = [&](const Tensor& t, int64_t dim) {
          return t.defined() ? narrow(t, dim, first[r], lengths[r]) : t;
        };
        SequenceScope scope(c);
        NoGrad guard;
        cut[r] = layer(piece(x, 1), {.key_mask = piece(key_mask, 1), .mask = piece(mask, 2)});
      });
      const Tensor y = layer(x, {.key_mask = key_mask, .mask = mask});
      const auto shown = [&](const Tensor& t) {
        return key_mask.defined() ? masked_fill(t, unsqueeze(logical_not(key_mask), -1), 0) : t;
      };
      CHECK(max_abs_diff(shown(cat(cut, 1)), shown(y)) < 1e-13);
    }
}

TEST_CASE("pools: options that do not fit", "[layers][pools]") {
  Rng rng(1);
  const HeadsOptions heads{.dim = 8, .heads = 2};
  CHECK_THROWS_WITH(QsaAttention({.heads = heads, .topk = 10, .pool = 4}, rng),
                    Contains("pool=4") && Contains("topk=10"));
  CHECK_THROWS_WITH(QsaAttention({.heads = {.dim = 8, .heads = 2, .use_rope = true}, .index_dim = 2}, rng),
                    Contains("qsa_attention") && Contains("index_dim=2"));
  MlaOptions o{.dim = 8, .rope_dim = 0, .q_rank = 4, .topk = 6, .index_pool = 4};
  CHECK_THROWS_WITH(Mla(o, rng), Contains("index_pool=4") && Contains("topk=6"));
  o.index_pool = 3, o.causal = false;
  CHECK_THROWS_WITH(Mla(o, rng), Contains("index_pool=3") && Contains("causal"));
  o.causal = true, o.rope_dim = 4;
  CHECK_THROWS_WITH(Mla(o, rng), Contains("indexer") && Contains("use_rope"));
  o.use_rope = false;
  CHECK_NOTHROW(Mla(o, rng));
}
