// Choices of keys against loops; which of equal scores is taken; operands and errors.
#include "support/approx.h"
#include "support/catch.h"
#include "support/naive_attention.h"

#include <sluice/ops/attention/key_selection.h>
#include <sluice/ops/index/gather.h>
#include <sluice/ops/attention/top_k.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/rows/reduce.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/shape/view.h>

#include <algorithm>
#include <cmath>

using namespace sluice;
using namespace sluice::testing;

namespace {

/// The blocks of each row of one sequence with one head, as "x" and ".".
std::string picture(const Tensor& chosen) {
  std::string s;
  const std::vector<bool> all = chosen.to_vector<bool>();
  const auto columns = static_cast<std::size_t>(chosen.dim(3));
  for (std::size_t i = 0; i < all.size(); ++i) s += (i > 0 && i % columns == 0 ? " " : ""), s += all[i] ? 'x' : '.';
  return s;
}
Tensor row_scores(const std::vector<double>& v, int64_t rows) {
  return tensor_of(v, {1, 1, rows, static_cast<int64_t>(v.size()) / rows}, f64);
}

}  // namespace

TEST_CASE("selection: forced blocks, ties by index, no later block", "[attention][selection]") {
  const auto rows = [](std::vector<double> line, int64_t m) {
    std::vector<double> all;
    for (int64_t i = 0; i < m; ++i) all.insert(all.end(), line.begin(), line.end());
    return row_scores(all, m);
  };
  // Of equal scores the first block; the own one always.
  CHECK(picture(choose_blocks(rows({0, 0, 0, 0}, 8), 0, {.block = 2, .count = 2})) ==
        "x... x... xx.. xx.. x.x. x.x. x..x x..x");
  CHECK(picture(choose_blocks(rows({1, 3, 2, 9}, 3), 5, {.block = 2, .count = 2})) == ".xx. .x.x .x.x");
  CHECK(picture(choose_blocks(rows({1, 3, 2, 9}, 1), 7, {.block = 2, .count = 1})) == "...x");
  CHECK(picture(choose_blocks(rows({1, 3, 2, 9}, 1), 7, {.block = 2, .count = 3, .initial = 1, .local = 2})) == "x.xx");
  CHECK(picture(choose_blocks(rows({1, 2, 3, 9}, 1), 7, {.block = 2, .count = 3, .initial = 1})) == "x.xx");
  CHECK(picture(choose_blocks(rows({-INFINITY, -INFINITY, -1, 0}, 1), 7, {.block = 2, .count = 2})) == "..xx");
  CHECK(picture(choose_blocks(rows({1, 3, 2, 9}, 1), 7, {.block = 2, .count = 9})) == "xxxx");
  // A block of padding alone is not chosen, even where it is forced.
  const Tensor keys = tensor_of({0, 0, 1, 0, 0, 0, 1, 1}, {1, 8}, boolean);
  CHECK(picture(choose_blocks(rows({7, 3, 9, 9}, 2), 6, {.block = 2, .count = 2, .initial = 1}, keys)) == ".x.x .x.x");
  const Tensor s = zeros({1, 1, 2, 3});
  CHECK_THROWS_AS(choose_blocks(s, 0, {.block = 0, .count = 1}), ValueError);
  CHECK_THROWS_AS(choose_blocks(s, 0, {.block = 2, .count = 2, .initial = 2}), ValueError);
  CHECK_THROWS_AS(choose_blocks(s, 5, {.block = 2, .count = 1}), ShapeError);
  CHECK_THROWS_AS(choose_blocks(s, 4, {.block = 2, .count = 1}, zeros({1, 4}, {boolean})), ShapeError);
  CHECK_THROWS_WITH(choose_blocks(s, 4, {.block = 2, .count = 1}, zeros({3, 6}, {boolean})), Contains("keys=[3,6]"));
  CHECK_THROWS_AS(choose_blocks(s, 4, {.block = 2, .count = 1}, zeros({1, 6})), DTypeError);
}

TEST_CASE("selection: an allowed key of any score stands before one that is not allowed", "[attention][selection]") {
  using Whole = std::vector<int64_t>;
  for (DType dtype : {f32, f64, bf16}) {
    const Tensor scores = tensor_of({9, 8, -INFINITY, 1, -INFINITY, 7}, {1, 6}, dtype);
    const Tensor allowed = tensor_of({0, 0, 1, 1, 1, 0}, {6}, boolean);
    const auto kept = [&](int64_t k, TopKTies ties) {
      return topk_mask(scores, k, ties, allowed).to_vector<int64_t>();
    };
    INFO(name_of(dtype));
    CHECK(kept(1, TopKTies::index) == Whole{0, 0, 0, 1, 0, 0});
    CHECK(kept(2, TopKTies::index) == Whole{0, 0, 1, 1, 0, 0});
    CHECK(kept(3, TopKTies::index) == Whole{0, 0, 1, 1, 1, 0});
    CHECK(kept(5, TopKTies::index) == Whole{0, 0, 1, 1, 1, 0});
    CHECK(kept(2, TopKTies::threshold) == Whole{0, 0, 1, 1, 1, 0});
    CHECK(kept(4, TopKTies::threshold) == Whole{0, 0, 1, 1, 1, 0});
    const Tensor unknown = tensor_of({9, NAN, 1}, {3}, dtype), last = tensor_of({0, 1, 1}, {3}, boolean);
    for (TopKTies ties : {TopKTies::index, TopKTies::threshold})
      CHECK(topk_mask(unknown, 2, ties, last).to_vector<int64_t>() == Whole{0, 1, 1});
    const Tensor holes = tensor_of({1, NAN, NAN, 0}, {4}, dtype);
    CHECK(topk_mask(holes, 2, TopKTies::threshold).to_vector<int64_t>() == Whole{1, 0, 0, 1});
    CHECK(topk_mask(holes, 3, TopKTies::threshold).to_vector<int64_t>() == Whole{1, 1, 1, 1});
    CHECK(topk_mask(holes, 3, TopKTies::index).to_vector<int64_t>() == Whole{1, 1, 0, 1});
  }
  CHECK_THROWS_AS(topk_mask(ones({3}), 1, TopKTies::index, ones({3})), DTypeError);
}

TEST_CASE("selection: means of blocks, of the real rows alone", "[attention][selection]") {
  Rand rand(3);
  const int64_t n = 23, d = 3;
  const Tensor x = random_tensor({2, 2, n, d}, f64, rand), keys = random_tensor({2, n}, f64, rand) > 0.4;
  const Array a = array_of(x), real = array_of(keys);
  for (const auto& [block, stride] : {std::pair<int64_t, int64_t>{4, 2}, {6, 2}, {5, 5}, {1, 1}, {23, 1}, {24, 8}})
    for (const bool padded : {false, true}) {
      const BlockRows got = block_means(x, block, stride, padded ? keys : Tensor());
      const int64_t blocks = n < block ? 0 : (n - block) / stride + 1;
      REQUIRE(got.rows.shape() == Shape{2, 2, blocks, d});
      REQUIRE(got.real.defined() == padded);
      const Array rows = array_of(got.rows);
      for (int64_t b = 0; b < 2; ++b)
        for (int64_t i = 0; i < blocks; ++i) {
          double count = 0;
          for (int64_t j = i * stride; j < i * stride + block; ++j) count += padded ? real({b, j}) : 1;
          if (padded) CHECK((array_of(got.real)({b, i}) != 0) == (count > 0));
          for (int64_t c = 0; c < d; ++c) {
            double sum = 0;
            for (int64_t j = i * stride; j < i * stride + block; ++j)
              sum += padded && real({b, j}) == 0 ? 0 : a({b, 1, j, c});
            CHECK(std::abs(rows({b, 1, i, c}) - (count > 0 ? sum / count : 0)) < 1e-14);
          }
        }
    }
  CHECK(block_means(ones({1, 1, 49, 1}, {f64}), 49, 49).rows.item() == 1);
  CHECK_THROWS_AS(block_means(x, 4, 3), ValueError);
  CHECK_THROWS_AS(block_means(x, 4, 4, zeros({2, 4}, {boolean})), ShapeError);
}

TEST_CASE("selection: largest products of a block", "[attention][selection]") {
  Rand rand(4);
  const int64_t m = 150, n = 163, d = 3, block = 7, blocks = 24;
  const Tensor q = random_tensor({2, 2, m, d}, f64, rand), keys = random_tensor({2, n}, f64, rand) > -0.5;
  for (const int64_t heads : {1, 2}) {
    const Tensor k = random_tensor({2, heads, n, d}, f64, rand);
    const Tensor y = block_maxima(q, k, block, keys);
    REQUIRE(y.shape() == Shape{2, 2, m, blocks});
    const Array got = array_of(y), aq = array_of(q), ak = array_of(k), real = array_of(keys);
    bool right = true;
    each_index({2, 2, m, blocks}, [&](const Dims& i) {
      double best = -INFINITY;
      for (int64_t j = i[3] * block; j < std::min(n, (i[3] + 1) * block); ++j) {
        if (j > i[2] + n - m || real({i[0], j}) == 0) continue;
        double s = 0;
        for (int64_t c = 0; c < d; ++c) s += aq({i[0], i[1], i[2], c}) * ak({i[0], heads == 1 ? 0 : i[1], j, c});
        best = std::max(best, s);
      }
      right &= got(i) == best || std::abs(got(i) - best) < 1e-14;
    });
    CHECK(right);
  }
  const Tensor vast = expand(ones({1, 2, 3, 1}), {1, 2, 3, int64_t{1} << 40});
  CHECK_THROWS_WITH(block_maxima(vast, vast, 2),
                    "block_maxima: a dimension exceeds 2^31 — got q=[1,2,3,1099511627776], k=[1,2,3,1099511627776]");
}

TEST_CASE("selection: the index of keys, and its best ones", "[attention][selection]") {
  Rand rand(5);
  const int64_t heads = 3, m = 140, n = 151, d = 4, top = 9;
  const KeyIndex x{random_tensor({2, heads, m, d}, f64, rand), random_tensor({2, n, d}, f64, rand),
                   random_tensor({2, m, heads}, f64, rand)};
  const Tensor keys = random_tensor({2, n}, f64, rand) > -0.5;
  const Array q = array_of(x.q), k = array_of(x.k), w = array_of(x.w), real = array_of(keys);
  const Array scores = array_of(index_scores(x)), got = array_of(index_mask(x, top, {.causal = true, .keys = keys}));
  REQUIRE(got.shape == Dims{2, 1, m, n});
  bool right = true;
  for (int64_t b = 0; b < 2; ++b)
    for (int64_t i = 0; i < m; ++i) {
      std::vector<std::pair<double, int64_t>> seen;
      for (int64_t j = 0; j < n; ++j) {
        double s = 0;
        for (int64_t h = 0; h < heads; ++h) {
          double dot = 0;
          for (int64_t c = 0; c < d; ++c) dot += q({b, h, i, c}) * k({b, j, c});
          s += w({b, i, h}) * std::max(0.0, dot);
        }
        right &= std::abs(s - scores({b, i, j})) < 1e-13;
        if (j <= i + n - m && real({b, j}) != 0) seen.emplace_back(-s, j);
      }
      std::sort(seen.begin(), seen.end());  // of equal scores the first key: relu makes many zeros
      std::vector<bool> best(static_cast<std::size_t>(n));
      for (std::size_t r = 0; r < std::min<std::size_t>(seen.size(), top); ++r)
        best[static_cast<std::size_t>(seen[r].second)] = true;
      for (int64_t j = 0; j < n; ++j) right &= best[static_cast<std::size_t>(j)] == (got({b, 0, i, j}) != 0);
    }
  CHECK(right);
  // Scores of −∞: the visible keys are chosen either way.
  const KeyIndex low{full({1, 1, 2, 1}, 1e200, {f64}), full({1, 5, 1}, 1e200, {f64}), full({1, 2, 1}, -1, {f64})};
  const Tensor mask = index_mask(low, 2, {.causal = true}), chosen = index_keys(low, 2, {.causal = true});
  CHECK(sum(mask, {-1}).to_vector<int64_t>() == std::vector<int64_t>{2, 2});
  CHECK(max_abs_diff(to(gather(to(mask, i64), -1, chosen), f64), ones(chosen.shape(), {f64})) == 0);
  CHECK_THROWS_AS(index_scores({x.q, x.k, x.k}), ShapeError);
  CHECK_THROWS_AS(index_mask(x, 0, {}), ValueError);
}
