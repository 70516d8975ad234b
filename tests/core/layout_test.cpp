// Shape and Layout against an oracle that lists every element's address.
#include <sluice/core/layout.h>

#include "support/approx.h"
#include "support/catch.h"

using namespace sluice;
using sluice::testing::Rand;
using Addresses = std::vector<int64_t>;

namespace {

/// The address of each element in row-major order, by definition.
Addresses addresses(const Layout& l) {
  Addresses out;
  std::vector<int64_t> index(static_cast<std::size_t>(l.rank()), 0);
  for (int64_t k = 0; k < l.numel(); ++k) {
    int64_t at = l.offset, rest = k;
    for (int d = l.rank() - 1; d >= 0; --d) {
      at += rest % l.shape[d] * l.strides[d];
      rest /= l.shape[d];
    }
    out.push_back(at);
  }
  return out;
}

/// Can strides say `to`? Only if the address is linear in each index of `to`.
bool expressible(const Layout& l, const Shape& to) {
  const Addresses a = addresses(l);
  if (a.empty()) return true;
  Shape steps = to;  // distance in elements, then the stride that the first two entries suggest
  int64_t step = 1;
  for (int d = to.rank() - 1; d >= 0; --d) {
    steps[d] = to[d] > 1 ? a[static_cast<std::size_t>(step)] - a[0] : 0;
    step *= to[d];
  }
  return addresses(Layout(to, steps, l.offset)) == a;
}

Layout random_layout(Rand& r, bool zero_sizes) {
  Shape shape, strides;
  const int rank = static_cast<int>(r.below(5));
  for (int i = 0; i < rank; ++i) shape.push_back(zero_sizes && r.below(6) == 0 ? 0 : 1 + r.below(4));
  Layout base(shape);
  strides = base.strides;
  const int64_t kind = r.below(4);
  for (int i = 0; i < rank; ++i) {
    if (kind == 1 && r.below(2)) strides[i] = r.below(13) - 6;   // anything, negative and zero too
    if (kind == 2) strides[i] *= r.below(2) ? 2 : -1;            // stepped and flipped
    if (kind == 3 && r.below(3) == 0) strides[i] = 0;            // expanded
    if (shape[i] == 1 && r.below(2)) strides[i] = r.below(100);  // a size-1 dim's stride means nothing
  }
  if (rank > 1 && r.below(3) == 0) {
    int a = static_cast<int>(r.below(rank)), b = static_cast<int>(r.below(rank));
    std::swap(shape[a], shape[b]), std::swap(strides[a], strides[b]);
  }
  return Layout(shape, strides, r.below(50));
}

/// A random shape of the same number of elements.
Shape random_target(Rand& r, int64_t n) {
  Shape to;
  if (n == 0) {
    for (int64_t i = r.below(3); i > 0; --i) to.push_back(r.below(4));
    to.insert(static_cast<int>(r.below(to.rank() + 1)), 0);
    return to;
  }
  while (n > 1 && to.rank() < 6) {
    int64_t f = 1 + r.below(n);
    if (n % f) continue;
    to.push_back(f);
    n /= f;
  }
  if (n > 1) to.push_back(n);
  if (r.below(2)) to.insert(static_cast<int>(r.below(to.rank() + 1)), 1);
  return to;
}

}  // namespace

TEST_CASE("layout: reshaped keeps every element's place, and refuses only what strides cannot say", "[layout]") {
  Rand r(1);
  int views = 0, copies = 0;
  for (int i = 0; i < 40000; ++i) {
    const Layout l = random_layout(r, true);
    const Shape to = random_target(r, l.numel());
    INFO("shape " << str(l.shape) << " strides " << str(l.strides) << " to " << str(to));
    const auto got = l.reshaped(to);
    if (got) {
      ++views;
      if (!(got->shape == to) || addresses(*got) != addresses(l)) FAIL("wrong: strides " << str(got->strides));
    } else {
      ++copies;
      // An expressible view that is refused costs a copy, and reshape() of a leaf's view would lose the sharing.
      if (expressible(l, to)) FAIL("refused although strides can say it");
    }
  }
  CHECK(views > 5000);
  CHECK(copies > 1000);
}

TEST_CASE("layout: contiguous means addresses one after the other", "[layout]") {
  Rand r(2);
  int yes = 0;
  for (int i = 0; i < 40000; ++i) {
    const Layout l = random_layout(r, true);
    const Addresses a = addresses(l);
    bool one_by_one = true;
    for (std::size_t k = 0; k < a.size(); ++k) one_by_one &= a[k] == l.offset + static_cast<int64_t>(k);
    yes += one_by_one;
    if (l.is_contiguous() != one_by_one) FAIL("shape " << str(l.shape) << " strides " << str(l.strides));
  }
  CHECK(yes > 1000);
  CHECK(yes < 39000);
}

TEST_CASE("layout: expanded repeats along size-1 and new dims", "[layout]") {
  Rand r(3);
  for (int i = 0; i < 5000; ++i) {
    const Layout l = random_layout(r, true);
    Shape to;
    for (int64_t extra = r.below(3); extra > 0; --extra) to.push_back(r.below(4));
    const int shift = to.rank();
    for (int d = 0; d < l.rank(); ++d) to.push_back(l.shape[d] == 1 ? r.below(4) : l.shape[d]);
    const Layout e = l.expanded(to);
    REQUIRE(e.shape == to);
    // Element i of the result is the element whose index is 0 wherever the source has one entry.
    Addresses want;
    for (int64_t k = 0; k < to.numel(); ++k) {
      int64_t rest = k, at = l.offset;
      for (int d = to.rank() - 1; d >= 0; --d) {
        if (d >= shift && l.shape[d - shift] != 1) at += rest % to[d] * l.strides[d - shift];
        rest /= to[d];
      }
      want.push_back(at);
    }
    if (addresses(e) != want) FAIL("shape " << str(l.shape) << " strides " << str(l.strides) << " to " << str(to));
  }
}

TEST_CASE("layout: row-major strides", "[layout]") {
  Layout l(Shape{2, 3, 4});
  CHECK(l.strides == Shape{12, 4, 1});
  CHECK(l.numel() == 24);
  CHECK(Layout(Shape{}).numel() == 1);
  CHECK(Layout(Shape{}).is_contiguous());
  CHECK(Layout(Shape{3, 0, 2}).numel() == 0);
}

TEST_CASE("shape: at most eight dims, inserted and erased in place", "[layout]") {
  Shape s{1, 2, 3};
  s.insert(1, 9);
  CHECK(s == Shape{1, 9, 2, 3});
  s.insert(4, 7);
  s.erase(0);
  CHECK(s == Shape{9, 2, 3, 7});
  CHECK(s.numel() == 9 * 2 * 3 * 7);
  CHECK(s.back() == 7);
  CHECK_FALSE(s == Shape{9, 2, 3});
  Shape eight = Shape::filled(8, 1), copy = eight;
  CHECK_THROWS_AS(eight.push_back(1), ShapeError);
  CHECK_THROWS_AS(eight.insert(0, 1), ShapeError);
  CHECK(eight == copy);
  for (int n = 0; n <= 8; ++n) {  // copies of every length
    Shape a;
    for (int i = 0; i < n; ++i) a.push_back(10 * n + i);
    Shape b = a, c = Shape::filled(8, -1);
    c = a;
    CHECK(b == a);
    CHECK(c == a);
    c = *&c;
    CHECK(c == a);
  }
  CHECK(str(Shape{2, 3}) == "[2,3]");
  CHECK(str(Shape{}) == "[]");
}

TEST_CASE("shape: broadcasting aligns at the right and names the op when it cannot", "[layout]") {
  CHECK(broadcast("op", {2, 1, 4}, {3, 1}) == Shape{2, 3, 4});
  CHECK(broadcast("op", {}, {5}) == Shape{5});
  CHECK(broadcast("op", {1}, {0}) == Shape{0});
  CHECK(broadcast("op", {0, 3}, {1, 1}) == Shape{0, 3});
  CHECK_THROWS_WITH(broadcast("my_op", {2, 3}, {2, 4}),
                    Contains("my_op") && Contains("[2,3]") && Contains("[2,4]") && Contains("dim -1"));
  CHECK_THROWS_AS(broadcast("op", {0}, {2}), ShapeError);
}

TEST_CASE("shape: dims wrap, and their errors name the op", "[layout]") {
  CHECK(wrap_dim("op", -1, 3) == 2);
  CHECK(wrap_dim("op", -3, 3) == 0);
  CHECK(wrap_dim("op", 0, 0) == 0);
  CHECK_THROWS_WITH(wrap_dim("my_op", 3, 3), Contains("my_op") && Contains("dim 3") && Contains("rank 3"));
  CHECK_THROWS_AS(wrap_dim("op", -4, 3), ShapeError);
  CHECK_THROWS_AS(wrap_dim("op", INT64_MIN, 3), ShapeError);
  CHECK(wrap_dims("op", {-1, 0}, 3) == Shape{0, 2});
  CHECK(wrap_dims("op", {}, 3) == Shape{0, 1, 2});
  CHECK_THROWS_WITH(wrap_dims("my_op", {2, -1}, 3), Contains("my_op") && Contains("twice"));
}
