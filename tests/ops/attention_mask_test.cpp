// Mask rules: pictures of each, random combinations against one question per pair, and that whole tiles are
// judged without a lie.
#include "support/attention_samples.h"
#include "support/catch.h"
#include "support/layouts.h"
#include "support/naive_attention.h"

#include <sluice/ops/shape/create.h>
#include <sluice/ops/shape/view.h>

using namespace sluice;
using namespace sluice::testing;
using sluice::detail::Visibility;

namespace {

/// Rows of a mask for one batch and head: "x" sees, "." does not, rows separated by spaces.
std::string picture(const AttentionMask& mask, int64_t m, int64_t n, int64_t batch = 1, int64_t b = 0,
                    int64_t heads = 1, int64_t h = 0) {
  const Tensor pairs = visible_pairs(mask, batch, heads, m, n);
  const Array a = array_of(pairs);
  std::string s;
  for (int64_t i = 0; i < m; ++i) {
    if (i > 0) s += ' ';
    for (int64_t j = 0; j < n; ++j)
      s += a({std::min(b, a.shape[0] - 1), std::min(h, a.shape[1] - 1), i, j}) != 0 ? 'x' : '.';
  }
  return s;
}
Tensor bools(const std::vector<double>& v, const Shape& shape) { return tensor_of(v, shape, boolean); }
Tensor numbers(const std::vector<double>& v, const Shape& shape) { return tensor_of(v, shape, i64); }

struct RandomMask {
  AttentionMask mask;
  int64_t batch, heads, m, n;
};
void each_random_mask(int count, uint64_t seed, const std::function<void(const RandomMask&, const std::string&)>& f) {
  Rand rand(seed);
  for (int i = 0; i < count; ++i) {
    const AttentionSample s = random_attention(rand, {.sizes = {1, 2, 3, 6, 11, 20, 33}});
    f({s.options.mask, s.q.dim(0), s.q.dim(1), s.q.dim(2), s.k.dim(2)}, s.text());
  }
}

}  // namespace

TEST_CASE("mask: what each rule allows", "[attention][mask]") {
  CHECK(picture({}, 2, 3) == "xxx xxx");
  CHECK(picture({.causal = true}, 3, 3) == "x.. xx. xxx");
  CHECK(picture({.causal = true}, 2, 4) == "xxx. xxxx");    // the last query stands on the last key
  CHECK(picture({.causal = true}, 4, 2) == ".. .. x. xx");  // the first two stand before all keys
  CHECK(picture({.window = 1}, 3, 3) == "x.. .x. ..x");     // W counts the own position
  CHECK(picture({.window = 2}, 4, 4) == "xx.. xxx. .xxx ..xx");
  CHECK(picture({.causal = true, .window = 2}, 4, 4) == "x... xx.. .xx. ..xx");
  CHECK(picture({.causal = true, .window = 3}, 2, 5) == ".xxx. ..xxx");
  CHECK(picture({.dilation = 2}, 4, 4) == "x.x. .x.x x.x. .x.x");
  CHECK(picture({.window = 2, .dilation = 2}, 5, 5) == "x.x.. .x.x. x.x.x .x.x. ..x.x");
  CHECK(picture({.causal = true, .window = 2, .dilation = 3}, 1, 6) == "..x..x");
  CHECK(picture({.window = 1, .global = {1}}, 4, 4) == "xx.. xxxx .xx. .x.x");
  CHECK(picture({.causal = true, .window = 1, .global = {2, 9}}, 4, 4) == "x... .x.. xxx. ..xx");
  CHECK(picture({.global = {1}}, 2, 2) == "xx xx");  // there is nothing to be free of
  CHECK(picture({.keys = bools({1, 0, 1}, {1, 3})}, 2, 3) == "x.x x.x");
  CHECK(picture({.keys = bools({1, 0, 1, 0, 1, 1}, {2, 3})}, 1, 3, 2, 1) == ".xx");
  const AttentionMask documents{.query_segments = numbers({0, 0, 1, 1}, {1, 4}),
                                .key_segments = numbers({0, 0, 1, 1}, {1, 4})};
  CHECK(picture(documents, 4, 4) == "xx.. xx.. ..xx ..xx");
  const AttentionMask both{.query_segments = numbers({7, 8}, {1, 2}),
                           .key_segments = numbers({8, 7, 7, 8, 7, 9}, {2, 3})};
  CHECK(picture(both, 2, 3, 2, 0) == ".xx x..");
  CHECK(picture(both, 2, 3, 2, 1) == ".x. x..");
  CHECK(picture({.blocks = bools({1, 0, 1, 1}, {2, 2}), .block = 2}, 3, 3) == "xx. xx. xxx");
  const AttentionMask by_head{.blocks = bools({1, 0, 0, 1}, {2, 1, 2}), .block = 2};
  CHECK(picture(by_head, 1, 4, 1, 0, 2, 0) == "xx..");
  CHECK(picture(by_head, 1, 4, 1, 0, 2, 1) == "..xx");
  CHECK(picture({.causal = true, .blocks = bools({1, 0, 1, 1}, {2, 2}), .block = 2}, 4, 4) == "x... xx.. xxx. xxxx");
  const AttentionMask by_query{.causal = true, .blocks = bools({1, 0, 0, 1, 1, 0, 1, 1}, {2, 1, 2, 2}), .block = 2};
  CHECK(picture(by_query, 2, 4, 2, 0) == "xx.. ..xx");
  CHECK(picture(by_query, 2, 3, 2, 1) == "xx. xxx");
  const AttentionMask by_group{.blocks = bools({1, 0, 0, 1, 0, 1, 1, 0}, {1, 2, 2, 2}), .block = 3};
  CHECK(picture(by_group, 2, 4, 3, 2, 4, 1) == "xxx. ...x");  // heads 0 and 1 read group 0
  CHECK(picture(by_group, 2, 4, 3, 2, 4, 2) == "...x xxx.");
  CHECK(picture({.dense = bools({1, 0, 0, 1}, {2, 2})}, 2, 2) == "x. .x");
  CHECK(picture({.dense = bools({1, 0}, {2})}, 2, 2) == "x. x.");
  CHECK(picture({.causal = true, .dense = bools({1, 0, 0, 1}, {2, 1, 1, 2})}, 2, 2, 2, 1) == ".. .x");
}

TEST_CASE("mask: random combinations, pair by pair; no larger than its rules need", "[attention][mask]") {
  each_random_mask(300, 31, [](const RandomMask& r, const std::string& text) {
    const Array got = array_of(visible_pairs(r.mask, r.batch, r.heads, r.m, r.n));
    const NaiveMask naive(r.mask, r.m, r.n);
    bool right = true;
    each_index({r.batch, r.heads, r.m, r.n},
               [&](const Dims& i) { right &= (got.stretched(i) != 0) == naive.sees(i[0], i[1], i[2], i[3]); });
    if (!right) FAIL_CHECK(text);
    const bool by_batch =
        (r.mask.keys.defined() && r.mask.keys.dim(0) > 1) ||
        (r.mask.query_segments.defined() && r.mask.query_segments.dim(0) + r.mask.key_segments.dim(0) > 2) ||
        (r.mask.blocks.defined() && r.mask.blocks.rank() == 4 && r.mask.blocks.dim(0) > 1) ||
        (r.mask.dense.defined() && r.mask.dense.rank() == 4 && r.mask.dense.dim(0) > 1);
    if (!by_batch) CHECK(got.shape[0] == 1);
    if (!r.mask.blocks.defined() && !r.mask.dense.defined()) CHECK(got.shape[1] == 1);
  });
}

TEST_CASE("mask: tiles are judged truly, and rows in pieces", "[attention][mask]") {
  int64_t none = 0, all = 0, total = 0;
  each_random_mask(250, 32, [&](const RandomMask& r, const std::string& text) {
    const Visibility v(r.mask, r.batch, r.heads, r.m, r.n);
    const NaiveMask naive(r.mask, r.m, r.n);
    const bool plain_band = !r.mask.keys.defined() && !r.mask.query_segments.defined() && !r.mask.blocks.defined() &&
                            !r.mask.dense.defined() && r.mask.dilation == 1 && r.mask.global.empty();
    for (auto [rows, cols] : {std::pair<int64_t, int64_t>{1, 1}, {4, 3}, {16, 7}, {64, 64}})
      for (int64_t b = 0; b < r.batch; ++b)
        for (int64_t h = 0; h < r.heads; h += 2)
          for (int64_t row = 0; row < r.m; row += rows)
            for (int64_t col = 0; col < r.n; col += cols) {
              const int64_t height = std::min(rows, r.m - row), width = std::min(cols, r.n - col);
              const auto kind = v.classify(b, h, row, height, col, width);
              int64_t seen = 0;
              std::vector<uint8_t> line(static_cast<std::size_t>(width), 9);
              bool same = true;
              for (int64_t i = row; i < row + height; ++i) {
                v.fill_row(b, h, i, col, width, line.data());
                for (int64_t j = 0; j < width; ++j) {
                  const bool sees = naive.sees(b, h, i, col + j);
                  same &= line[static_cast<std::size_t>(j)] == (sees ? 1 : 0);
                  seen += sees;
                }
              }
              bool right = same;
              if (kind == Visibility::Sees::none) right &= seen == 0;
              if (kind == Visibility::Sees::all) right &= seen == height * width;
              if (kind == Visibility::Sees::some && plain_band) right &= seen > 0 && seen < height * width;
              if (!right)
                FAIL_CHECK(text << " tile at " << row << "," << col << " of " << height << "×" << width << ", " << seen
                                << " seen");
              none += kind == Visibility::Sees::none, all += kind == Visibility::Sees::all, ++total;
            }
  });
  CHECK(none > total / 5);
  CHECK(all > total / 10);
}

TEST_CASE("mask: spans and counts of rows", "[attention][mask]") {
  int only = 0;
  each_random_mask(400, 33, [&](const RandomMask& r, const std::string& text) {
    const Visibility v(r.mask, r.batch, r.heads, r.m, r.n);
    const NaiveMask naive(r.mask, r.m, r.n);
    only += v.only_span();
    bool right = true;
    const Tensor counts = expand(visible_count(r.mask, r.batch, r.heads, r.m, r.n), {r.batch, r.heads, r.m});
    const std::vector<int64_t> counted = counts.to_vector<int64_t>();
    std::size_t row = 0;
    for (int64_t b = 0; b < r.batch; ++b)
      for (int64_t h = 0; h < r.heads; ++h)
        for (int64_t i = 0; i < r.m; ++i) {
          const Visibility::Span span = v.span(i);
          right &= 0 <= span.begin && span.begin <= span.end && span.end <= r.n;
          int64_t count = 0;
          for (int64_t j = 0; j < r.n; ++j) {
            const bool sees = naive.sees(b, h, i, j), inside = span.begin <= j && j < span.end;
            right &= v.only_span() ? sees == inside : !sees || inside;
            count += sees;
          }
          right &= counted[row++] == count;
        }
    if (!right) FAIL_CHECK(text);
  });
  CHECK(only > 60);
}

TEST_CASE("mask: tensors in any memory layout", "[attention][mask]") {
  int compared = 0;
  each_random_mask(150, 34, [&](const RandomMask& r, const std::string& text) {
    const Tensor want = visible_pairs(r.mask, r.batch, r.heads, r.m, r.n);
    for (Storing how : {Storing::permuted, Storing::gapped, Storing::reversed, Storing::offset}) {
      AttentionMask other = r.mask;
      for (Tensor* x : {&other.keys, &other.query_segments, &other.key_segments, &other.blocks, &other.dense})
        if (x->defined()) *x = stored(*x, how);
      if (!same_bits(visible_pairs(other, r.batch, r.heads, r.m, r.n), want)) FAIL_CHECK(text << " " << name_of(how));
      ++compared;
    }
  });
  CHECK(compared >= 500);
}

TEST_CASE("mask: empty sizes, and a mask is unrestricted only without rules", "[attention][mask]") {
  CHECK(visible_pairs({.causal = true}, 1, 1, 0, 3).shape() == Shape{1, 1, 0, 3});
  CHECK(visible_pairs({.window = 2}, 1, 1, 3, 0).shape() == Shape{1, 1, 3, 0});
  CHECK(visible_pairs({}, 0, 2, 2, 2).shape() == Shape{0, 1, 2, 2});
  CHECK(visible_pairs({.keys = bools({}, {0, 2})}, 0, 2, 2, 2).shape() == Shape{0, 1, 2, 2});
  CHECK(visible_pairs({}, 2, 0, 2, 2).shape() == Shape{1, 0, 2, 2});
  CHECK(AttentionMask{}.unrestricted());
  CHECK(AttentionMask{.global = {1}}.unrestricted());
  for (const AttentionMask& mask :
       {AttentionMask{.causal = true}, AttentionMask{.window = 1}, AttentionMask{.dilation = 2},
        AttentionMask{.keys = bools({1}, {1, 1})}, AttentionMask{.query_segments = numbers({1}, {1, 1})},
        AttentionMask{.blocks = bools({1}, {1, 1})}, AttentionMask{.dense = bools({1}, {1, 1})}})
    CHECK_FALSE(mask.unrestricted());
}

TEST_CASE("mask: what does not fit, and by which words", "[attention][mask]") {
  auto pairs = [](const AttentionMask& mask) { return visible_pairs(mask, 2, 4, 6, 8); };
  CHECK_THROWS_AS(pairs({.window = -1}), ValueError);
  CHECK_THROWS_WITH(pairs({.window = -1}), Contains("visible_pairs") && Contains("window") && Contains("-1"));
  CHECK_THROWS_WITH(pairs({.dilation = 0}), Contains("dilation") && Contains("0"));
  CHECK_THROWS_WITH(pairs({.window = 1, .global = {3, -2}}), Contains("global") && Contains("-2"));
  CHECK_THROWS_WITH(pairs({.keys = bools(std::vector<double>(6), {1, 6})}),
                    Contains("keys") && Contains("[1,6]") && Contains("8"));
  CHECK_THROWS_WITH(pairs({.keys = bools(std::vector<double>(24), {3, 8})}), Contains("keys") && Contains("[3,8]"));
  CHECK_THROWS_WITH(pairs({.keys = bools(std::vector<double>(8), {8})}), Contains("keys") && Contains("[8]"));
  CHECK_THROWS_AS(pairs({.keys = zeros({2, 8})}), DTypeError);
  CHECK_THROWS_WITH(pairs({.keys = zeros({2, 8})}), Contains("keys") && Contains("bool") && Contains("f32"));
  CHECK_THROWS_AS(pairs({.query_segments = zeros({2, 6}, {i64})}), ValueError);
  CHECK_THROWS_WITH(pairs({.key_segments = zeros({2, 8}, {i64})}),
                    Contains("query_segments") && Contains("key_segments"));
  CHECK_THROWS_WITH(pairs({.query_segments = zeros({2, 8}, {i64}), .key_segments = zeros({2, 8}, {i64})}),
                    Contains("query_segments") && Contains("[2,8]") && Contains("6"));
  CHECK_THROWS_AS(pairs({.query_segments = zeros({2, 6}), .key_segments = zeros({2, 8})}), DTypeError);
  CHECK_THROWS_WITH(pairs({.blocks = bools({1}, {1, 1})}), Contains("block") && Contains("positive"));
  CHECK_THROWS_WITH(pairs({.blocks = bools(std::vector<double>(4), {2, 2}), .block = 3}),
                    Contains("blocks") && Contains("[2,2]") && Contains("[2,3]"));
  CHECK_THROWS_WITH(pairs({.blocks = bools(std::vector<double>(18), {3, 2, 3}), .block = 3}),
                    Contains("[3,2,3]") && Contains("[4,2,3]"));
  CHECK_THROWS_AS(pairs({.blocks = zeros({2, 3}), .block = 3}), DTypeError);
  CHECK_THROWS_WITH(pairs({.blocks = bools(std::vector<double>(6), {1, 1, 2, 3}), .block = 3}),
                    Contains("blocks") && Contains("[1,1,2,3]") && Contains("each query"));
  CHECK_THROWS_WITH(pairs({.dense = bools(std::vector<double>(9), {3, 3})}), Contains("[3,3]"));
  CHECK_THROWS_AS(pairs({.dense = zeros({6, 8})}), DTypeError);
  CHECK_THROWS_WITH(pairs({.dense = zeros({6, 8})}), Contains("dense") && Contains("bias"));
  CHECK_THROWS_AS(pairs({.dense = bools(std::vector<double>(48), {1, 1, 1, 6, 8})}), ShapeError);
  CHECK_THROWS_AS(visible_pairs({}, 1, 1, -1, 2), ShapeError);
  const Tensor q = zeros({2, 4, 6, 3}), k = zeros({2, 4, 8, 3});
  CHECK_THROWS_WITH(attention(q, k, k, {.mask = {.window = -1}}), Contains("attention:") && Contains("window"));
}
