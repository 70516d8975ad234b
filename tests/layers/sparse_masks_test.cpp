// The patterns of sparse attention, pair by pair against their definitions.
#include "support/approx.h"
#include "support/catch.h"
#include "support/identities.h"

#include <sluice/layers/attention/sparse_masks.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/shape/view.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <map>
#include <set>

using namespace sluice;
using namespace sluice::testing;

namespace {

using MaskRule = std::function<bool(int64_t p, int64_t j)>;  // p: the query's position

/// bool [1, m, n] by the rule.
Tensor by_rule(int64_t m, int64_t n, const MaskRule& rule) {
  std::vector<bool> all;
  for (int64_t i = 0; i < m; ++i)
    for (int64_t j = 0; j < n; ++j) all.push_back(rule(i + n - m, j));
  return Tensor::from(all, {1, m, n});
}

struct Sizes {
  int64_t m, n;
};
const Sizes kSizes[] = {{9, 9}, {1, 1}, {3, 9}, {9, 4}, {1, 7}, {0, 5}, {5, 0}, {0, 0}};

void check_pattern(const char* what, const std::function<AttentionMask(bool causal)>& mask, const MaskRule& rule) {
  for (bool causal : {false, true})
    for (auto [m, n] : kSizes) {
      INFO(what << ", causal " << causal << ", " << m << "×" << n);
      const Tensor want = by_rule(m, n, [&](int64_t p, int64_t j) { return rule(p, j) && (!causal || j <= p); });
      CHECK(same_bits(dense_mask(mask(causal), m, n), want));
      const Tensor lists = neighbours_of(mask(causal), m, n);
      CHECK(same_bits(mask_of_neighbours(lists, n), want));
    }
}

/// The entries of row r of lists [heads, m, K], without −1; checks that they ascend and that −1 comes last.
std::vector<int64_t> row_of(const Tensor& lists, int64_t head, int64_t r) {
  std::vector<int64_t> row;
  bool ended = false;
  for (int64_t j : select(select(lists, 0, head), 0, r).to_vector<int64_t>()) {
    if (j < 0) {
      CHECK(j == -1);
      ended = true;
      continue;
    }
    CHECK_FALSE(ended);
    if (!row.empty()) CHECK(row.back() < j);
    row.push_back(j);
  }
  return row;
}

}  // namespace

TEST_CASE("sparse masks: sliding, dilated, residue class and global-local", "[sparse]") {
  for (int64_t w : {0, 1, 3, 20}) {
    check_pattern(
        "sliding", [&](bool c) { return sliding_mask(w, c); },
        [&](int64_t p, int64_t j) { return std::abs(p - j) <= w; });
    for (int64_t d : {1, 2, 3, 10})
      check_pattern(
          "dilated", [&](bool c) { return dilated_mask(w, d, c); },
          [&](int64_t p, int64_t j) { return std::abs(p - j) <= w * d && (p - j) % d == 0; });
    for (const std::vector<int64_t>& global : {std::vector<int64_t>{}, {0}, {2, 8}, {3, 100}})
      check_pattern(
          "global-local", [&](bool c) { return global_local_mask(w, global, c); },
          [&](int64_t p, int64_t j) {
            auto is_global = [&](int64_t x) { return std::count(global.begin(), global.end(), x) > 0; };
            return std::abs(p - j) <= w || is_global(p) || is_global(j);
          });
  }
  for (int64_t d : {1, 2, 4})
    check_pattern(
        "residue", [&](bool c) { return residue_mask(d, c); }, [&](int64_t p, int64_t j) { return (p - j) % d == 0; });
}

TEST_CASE("sparse masks: numbers of keys", "[sparse]") {
  // In the interior: 2w + 1 keys, causal w + 1; dilated over a receptive field of 2wδ + 1.
  const Tensor sliding = neighbours_of(sliding_mask(3), 20, 20), causal = neighbours_of(sliding_mask(3, true), 20, 20);
  CHECK(row_of(sliding, 0, 10).size() == 7);
  CHECK(row_of(causal, 0, 10).size() == 4);
  const std::vector<int64_t> dilated = row_of(neighbours_of(dilated_mask(2, 3), 20, 20), 0, 10);
  CHECK(dilated == std::vector<int64_t>{4, 7, 10, 13, 16});
  CHECK(dilated.back() - dilated.front() + 1 == 2 * 2 * 3 + 1);
  CHECK(sliding.shape() == Shape{1, 20, 7});
  CHECK(row_of(sliding, 0, 0) == std::vector<int64_t>{0, 1, 2, 3});
}

TEST_CASE("sparse masks: identities between patterns", "[sparse]") {
  auto differ = [](const AttentionMask& a, const AttentionMask& b) {
    return max_abs_diff(to(dense_mask(a, 12, 12), f64), to(dense_mask(b, 12, 12), f64));
  };
  for (bool causal : {false, true}) {
    const AttentionMask full{.causal = causal};
    check_identity("sparse: window >= n is full", differ(sliding_mask(11, causal), full), 0);
    check_identity("sparse: dilation 1 is sliding", differ(dilated_mask(3, 1, causal), sliding_mask(3, causal)), 0);
    std::vector<int64_t> all(12);
    for (int64_t i = 0; i < 12; ++i) all[static_cast<std::size_t>(i)] = i;
    check_identity("sparse: all global is full", differ(global_local_mask(1, all, causal), full), 0);
    check_identity("sparse: no global is sliding", differ(global_local_mask(2, {}, causal), sliding_mask(2, causal)),
                   0);
    CHECK(differ(dilated_mask(6, 2, causal), residue_mask(2, causal)) == 0);  // w·δ >= n
    CHECK(differ(sliding_mask(10, causal), full) == 1);
  }
}

TEST_CASE("sparse masks: random neighbours", "[sparse]") {
  for (bool causal : {false, true})
    for (auto [m, n] : {Sizes{30, 30}, {5, 30}, {30, 20}, {1, 1}, {0, 3}, {3, 0}})
      for (int64_t k : {0, 1, 4, 100}) {
        INFO("causal " << causal << ", " << m << "×" << n << ", k=" << k);
        const Tensor lists = random_neighbours(m, n, {.k = k, .causal = causal, .heads = 2, .seed = 7});
        const Tensor drawn = random_neighbours(m, n, {.k = k, .causal = causal, .self = false, .heads = 2, .seed = 7});
        CHECK(lists.shape() == Shape{2, m, k < n ? k + 1 : n});
        CHECK(drawn.shape() == Shape{2, m, std::min(k, n)});
        for (int64_t h = 0; h < 2; ++h)
          for (int64_t i = 0; i < m; ++i) {
            const int64_t p = i + n - m, range = causal ? std::max<int64_t>(0, p + 1) : n;
            const std::vector<int64_t> row = row_of(lists, h, i), own = row_of(drawn, h, i);
            CHECK(static_cast<int64_t>(own.size()) == std::min(k, range));
            std::set<int64_t> want(own.begin(), own.end());
            if (p >= 0) want.insert(p);
            CHECK(std::vector<int64_t>(want.begin(), want.end()) == row);
            for (int64_t j : own) CHECK((j >= 0 && j < range));
          }
      }
  // The seed decides, and heads differ.
  const RandomNeighbours o{.k = 5, .heads = 2, .seed = 1};
  const Tensor a = random_neighbours(40, 40, o);
  CHECK(same_bits(a, random_neighbours(40, 40, o)));
  CHECK_FALSE(same_bits(a, random_neighbours(40, 40, {.k = 5, .heads = 2, .seed = 2})));
  CHECK_FALSE(same_bits(contiguous(select(a, 0, 0)), contiguous(select(a, 0, 1))));
  // A causal row does not depend on how many keys follow, so a stream can draw it anew.
  const RandomNeighbours c{.k = 5, .causal = true, .seed = 3};
  const Tensor whole = random_neighbours(40, 40, c);
  CHECK(same_bits(contiguous(narrow(whole, 1, 0, 25)), random_neighbours(25, 25, c)));
  CHECK(same_bits(contiguous(narrow(whole, 1, 30, 10)), random_neighbours(10, 40, c)));
}

TEST_CASE("sparse masks: random neighbours are uniform", "[sparse]") {
  // 4000 draws of 3 from 6: each key is expected 2000 times, with standard deviation 32; each of the 20 sets
  // 200 times, with 13.8.
  std::vector<int64_t> count(6);
  std::map<std::vector<int64_t>, int64_t> sets;
  const Tensor lists = random_neighbours(4000, 6, {.k = 3, .self = false, .seed = 5});
  const auto* p = lists.data<int64_t>();
  for (int64_t i = 0; i < 4000; ++i) {
    for (int64_t c = 0; c < 3; ++c) ++count[static_cast<std::size_t>(p[3 * i + c])];
    ++sets[{p[3 * i], p[3 * i + 1], p[3 * i + 2]}];
  }
  for (int64_t c : count) CHECK(std::abs(c - 2000) < 5 * 32);
  CHECK(sets.size() == 20);
  for (const auto& [set, c] : sets) CHECK(std::abs(c - 200) < 5 * 14);
}

TEST_CASE("sparse masks: BigBird blocks", "[sparse]") {
  for (bool causal : {false, true})
    for (int64_t n : {1, 7, 40, 61})
      for (int64_t random : {0, 2, 50}) {
        INFO("causal " << causal << ", n=" << n << ", r=" << random);
        const BigBirdOptions o{.block = 4, .random = random, .causal = causal, .heads = 3, .seed = 11};
        const Tensor blocks = bigbird_blocks(n, o);
        const int64_t g = (n + 3) / 4;
        REQUIRE(blocks.shape() == Shape{3, g, g});
        const std::vector<bool> b = blocks.to_vector<bool>();
        for (int64_t h = 0; h < 3; ++h)
          for (int64_t row = 0; row < g; ++row) {
            int64_t drawn = 0, free = 0;
            for (int64_t col = 0; col < g; ++col) {
              const bool on = b[static_cast<std::size_t>((h * g + row) * g + col)];
              const bool fixed = std::abs(row - col) <= 1 || row == 0 || col == 0 || row == g - 1 || col == g - 1;
              if (causal && col > row) CHECK_FALSE(on);
              else if (fixed) CHECK(on);
              else ++free, drawn += on;
            }
            CHECK(drawn == std::min(random, free));
          }
      }
  const BigBirdOptions o{.block = 2, .random = 3, .heads = 2, .seed = 4};
  const Tensor a = bigbird_blocks(60, o);
  CHECK(same_bits(a, bigbird_blocks(60, o)));
  CHECK_FALSE(same_bits(a, bigbird_blocks(60, {.block = 2, .random = 3, .heads = 2, .seed = 5})));
  CHECK_FALSE(same_bits(select(a, 0, 0), select(a, 0, 1)));
  // Without globals only the band remains.
  const BigBirdOptions bare{.block = 3, .window = 5, .random = 0, .first_global = false, .last_global = false};
  CHECK(same_bits(dense_mask(bigbird_mask(20, bare), 20, 20),
                  by_rule(20, 20, [](int64_t i, int64_t j) { return std::abs(i / 3 - j / 3) <= 2; })));
  // Blocks of one token: the band is a sliding window.
  const BigBirdOptions single{.block = 1, .window = 5, .random = 0, .first_global = false, .last_global = false};
  CHECK(same_bits(dense_mask(bigbird_mask(20, single), 20, 20), dense_mask(sliding_mask(2), 20, 20)));
  const double all =
      max_abs_diff(to(dense_mask(bigbird_mask(23, {.block = 4, .random = 6}), 23, 23), f64), ones({1, 23, 23}, {f64}));
  check_identity("sparse: all blocks is full", all, 0);
  // The mask is causal within blocks too.
  const Tensor causal = dense_mask(bigbird_mask(23, {.block = 4, .random = 6, .causal = true}), 23, 23);
  CHECK(same_bits(causal, by_rule(23, 23, [](int64_t i, int64_t j) { return j <= i; })));
}

TEST_CASE("sparse masks: a block mask and its expansion", "[sparse]") {
  Rand rand(1);
  for (auto [m, n] : {Sizes{10, 10}, {5, 9}, {12, 8}, {1, 3}, {0, 3}}) {
    const int64_t rows = (m + 3) / 4, cols = (n + 3) / 4;
    std::vector<bool> b;
    for (int64_t i = 0; i < 2 * rows * cols; ++i) b.push_back(rand.below(2) == 1);
    const Tensor blocks = Tensor::from(b, {2, rows, cols}), dense = expand_blocks(blocks, 4, m, n);
    REQUIRE(dense.shape() == Shape{2, m, n});
    const std::vector<bool> d = dense.to_vector<bool>();
    for (int64_t h = 0; h < 2; ++h)
      for (int64_t i = 0; i < m; ++i)
        for (int64_t j = 0; j < n; ++j)
          CHECK(d[static_cast<std::size_t>((h * m + i) * n + j)] ==
                b[static_cast<std::size_t>((h * rows + i / 4) * cols + j / 4)]);
    CHECK(same_bits(dense, dense_mask(block_mask(blocks, 4), m, n, 2)));
    if (m > 0) CHECK(same_bits(mask_of_neighbours(neighbours_of(block_mask(blocks, 4), m, n, 2), n), dense));
  }
}

TEST_CASE("sparse masks: errors", "[sparse]") {
  CHECK_THROWS_AS(sliding_mask(-1), ValueError);
  CHECK_THROWS_WITH(sliding_mask(-2), Contains("sliding_mask") && Contains("-2"));
  CHECK_THROWS_WITH(dilated_mask(1, 0), Contains("dilation=0"));
  CHECK_THROWS_AS(residue_mask(0), ValueError);
  CHECK_THROWS_AS(global_local_mask(-1, {}), ValueError);
  CHECK_THROWS_WITH(bigbird_blocks(8, {.window = 2}), Contains("odd window") && Contains("window=2"));
  CHECK_THROWS_WITH(expand_blocks(zeros({2, 2}, {boolean}), 4, 9, 8), Contains("[2,2]") && Contains("[..., 3,2]"));
  CHECK_THROWS_AS(expand_blocks(zeros({2, 2}, {boolean}), 0, 9, 8), ValueError);
  CHECK_THROWS_WITH(neighbours_of({.keys = ones({1, 4}, {boolean})}, 5, 5),
                    Contains("neighbours_of") && Contains("keys"));
  CHECK_THROWS_WITH(mask_of_neighbours(full({1, 1, 1}, 5, {i64}), 5), Contains("entry 5"));
  CHECK_THROWS_AS(mask_of_neighbours(zeros({1, 1, 1}), 5), DTypeError);
  CHECK_THROWS_WITH(mask_of_neighbours(zeros({3}, {i64}), 5),
                    "mask_of_neighbours: got neighbours=[3]; need [heads, m, K] or [m, K]");
  CHECK_THROWS_WITH(neighbours_of({}, 5, 5, 0),
                    "neighbours_of: got m=5, n=5, heads=0; need sizes >= 0 and at least one head");
  CHECK_THROWS_AS(random_neighbours(3, 3, {.k = -1}), ValueError);
}
