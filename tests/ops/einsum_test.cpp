#include <sluice/ops/matmul/einsum.h>

#include <sluice/ops/shape/create.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/shape/view.h>

#include "support/catch.h"

#include <cmath>
#include <map>

using namespace sluice;

namespace {

/// Values without pattern, the same on every run.
Tensor noise(const Shape& shape, int seed, DType dtype = f64) {
  std::vector<double> v(static_cast<std::size_t>(shape.numel()));
  for (std::size_t i = 0; i < v.size(); ++i) v[i] = std::sin(1.0 + 12.9898 * static_cast<double>(i) + seed);
  return to(Tensor::from(v, shape), dtype);
}

/// The definition: a loop over every value of every label. Explicit output, no ellipsis.
std::vector<double> naive(const std::string& equation, const std::vector<Tensor>& xs) {
  std::vector<std::string> specs{""};
  const std::size_t arrow = equation.find("->");
  const std::string out = equation.substr(arrow + 2);
  for (char c : equation.substr(0, arrow)) c == ',' ? specs.emplace_back() : specs.back() += c;
  std::map<char, int64_t> size, value;
  for (std::size_t i = 0; i < xs.size(); ++i)
    for (std::size_t d = 0; d < specs[i].size(); ++d) size[specs[i][d]] = xs[i].dim(static_cast<int64_t>(d));
  std::vector<std::vector<double>> data;
  for (const Tensor& x : xs) data.push_back(x.to_vector<double>());
  auto at = [&](const std::string& labels) {
    int64_t i = 0;
    for (char c : labels) i = i * size[c] + value[c];
    return static_cast<std::size_t>(i);
  };
  int64_t outputs = 1, total = 1;
  for (char c : out) outputs *= size[c];
  for (auto [c, n] : size) total *= n;
  std::vector<double> result(static_cast<std::size_t>(outputs), 0.0);
  for (int64_t step = 0; step < total; ++step) {
    int64_t rest = step;
    for (auto [c, n] : size) value[c] = rest % n, rest /= n;
    double product = 1;
    for (std::size_t i = 0; i < xs.size(); ++i) product *= data[i][at(specs[i])];
    result[at(out)] += product;
  }
  return result;
}

void check_equal(const Tensor& y, const std::vector<double>& want, double tolerance = 1e-13) {
  const auto got = y.to_vector<double>();
  REQUIRE(got.size() == want.size());
  for (std::size_t i = 0; i < got.size(); ++i) REQUIRE(std::abs(got[i] - want[i]) <= tolerance);
}

void check_error(const char* equation, const std::vector<Tensor>& xs, const std::string& what) {
  INFO(equation);
  CHECK_THROWS_AS(einsum(equation, xs), ShapeError);
  CHECK_THROWS_WITH(einsum(equation, xs),
                    Contains("einsum: ") && Contains(what) && Contains(std::string("\"") + equation + "\""));
}

}  // namespace

TEST_CASE("einsum: one, two and three operands against loops", "[einsum]") {
  const std::map<char, int64_t> sizes{{'a', 2}, {'b', 3}, {'c', 4}, {'d', 1}, {'e', 5}, {'f', 2}};
  const char* equation =
      GENERATE("ab->ab", "ab->ba", "abc->b", "abc->", "aab->ab", "aab->b", "aaa->", "abab->ba", "->", "a,a->", "a,a->a",
               "a,b->ab", "a,b->ba", "a,->a", ",->", "ab,bc->ac", "ab,bc->ca", "ab,cb->ac", "ba,bc->ac", "ab,b->a",
               "abc,abe->ace", "bac,bea->eabc", "abce,abf->cfe", "abce,cbe->a", "abc,bce->ae", "abc,ecb->ae",
               "abd,dbc->ac", "ab,c->b", "ab,ab->", "aab,bb->a", "abc,abc->abc", "cabe,cfbe->cbaf", "ab,bc,ce->ae",
               "ab,ac,ae->bce", "a,a,a->", "ab,b,bc,cc->ac", "abc,c,b->a", "ea,fb,abc,cb->efc");
  const DType dtype = GENERATE(f64, f32);
  INFO(equation << " " << name_of(dtype));
  std::vector<Tensor> xs;
  Shape shape, reversed;
  auto finish = [&] {
    // Stored in reverse order of dims: every operand is a non-contiguous view.
    Shape order;
    for (int d = shape.rank() - 1; d >= 0; --d) order.push_back(d), reversed.push_back(shape[d]);
    xs.push_back(permute(noise(reversed, static_cast<int>(xs.size()), dtype), order));
    shape = {}, reversed = {};
  };
  for (const char* c = equation; *c != '-'; ++c) {
    if (*c == ',') finish();
    else shape.push_back(sizes.at(*c));
  }
  finish();
  const Tensor y = einsum(equation, xs);
  CHECK(y.dtype() == dtype);
  check_equal(y, naive(equation, xs), dtype == f64 ? 1e-13 : 1e-5);
}

TEST_CASE("einsum: shapes, implicit results and white space", "[einsum]") {
  const Tensor a = noise({2, 3}, 1), b = noise({3, 4}, 2), square = noise({3, 3}, 3);
  CHECK(einsum("ij,jk->ki", {a, b}).shape() == Shape{4, 2});
  check_equal(einsum("ij,jk", {a, b}), naive("ij,jk->ik", {a, b}));
  check_equal(einsum("kj,ji", {a, b}), naive("kj,ji->ik", {a, b}));  // alphabetical, not in order
  check_equal(einsum("ba", {a}), naive("ba->ab", {a}));
  check_equal(einsum("ii", {square}), naive("ii->", {square}));
  check_equal(einsum("  i j , j k -> i k ", {a, b}), naive("ij,jk->ik", {a, b}));
  check_equal(einsum("aZ", {a}), naive("aZ->Za", {a}));  // capitals first
  CHECK_FALSE(einsum("ij->ij", {a}).shares_storage(a));
  // Products without a sum lie in memory as the result is written.
  CHECK(einsum("ij,j->ij", {a, select(a, 0, 0)}).is_contiguous());
  CHECK(einsum("j,ij->ij", {select(a, 0, 0), a}).is_contiguous());
  CHECK(einsum("ij,i->ji", {a, select(a, 1, 0)}).is_contiguous());
}

TEST_CASE("einsum: the ellipsis broadcasts", "[einsum]") {
  const Tensor a = noise({2, 1, 3, 4}, 1), b = noise({5, 4, 3}, 2);
  const Tensor y = einsum("...ij,...jk->...ik", {a, b});
  REQUIRE(y.shape() == Shape{2, 5, 3, 3});
  check_equal(y, naive("aij,bjk->abik", {reshape(a, {2, 3, 4}), b}));
  CHECK(einsum("...ij,...jk", {a, b}).shape() == Shape{2, 5, 3, 3});
  check_equal(einsum("i...,...i->i...", {noise({3, 2, 4}, 3), noise({4, 3}, 4)}),
              naive("iab,bi->iab", {noise({3, 2, 4}, 3), noise({4, 3}, 4)}));
  check_equal(einsum("...,...->...", {noise({3, 1}, 5), noise({1, 3}, 6)}),
              naive("a,b->ab", {noise({3}, 5), noise({3}, 6)}));
  CHECK(einsum("...ii->...", {noise({2, 5, 3, 3}, 1)}).shape() == Shape{2, 5});
  CHECK(einsum("...i->i...", {noise({1, 3}, 1)}).shape() == Shape{3, 1});
  CHECK(einsum("...i,i->...", {noise({3}, 1), noise({3}, 2)}).rank() == 0);
}

TEST_CASE("einsum: seven labels that repeat, and one that is summed", "[einsum]") {
  const Tensor a = noise({2, 1, 2, 1, 3, 1, 2, 4}, 1), b = noise({2, 1, 2, 1, 3, 1, 2, 4}, 2);
  check_equal(einsum("abcdefgk,abcdefgk->abcdefg", {a, b}), naive("abcdefgk,abcdefgk->abcdefg", {a, b}));
  check_equal(einsum("abcdefgk,gfkedcba->gfedcba", {a, permute(b, {6, 5, 7, 4, 3, 2, 1, 0})}),
              naive("abcdefgk,abcdefgk->gfedcba", {a, b}));
}

TEST_CASE("einsum: of bf16 tensors is rounded once", "[einsum]") {
  const Tensor a = to(Tensor({1, 0x1p-8f}), bf16), b = to(Tensor({3}), bf16);
  // (1 + 2^-8)·3 = 3.01171875, between 3 and 3.015625. The sum alone is 1 in bf16.
  CHECK(einsum("i,j->j", {a, b}).item() == 3.015625);
  CHECK(einsum("j,i->j", {b, a}).item() == 3.015625);
  CHECK(einsum("i,j->j", {a, b}).dtype() == bf16);
}

TEST_CASE("einsum: empty dims", "[einsum]") {
  const Tensor a = empty({2, 0}), b = empty({0, 3});
  CHECK(einsum("ij,jk->ik", {a, b}).to_vector() == std::vector<float>(6, 0.f));
  CHECK(einsum("bij,bjk->bik", {empty({0, 2, 3}), empty({0, 3, 4})}).shape() == Shape{0, 2, 4});
  CHECK(einsum("bij,bjk->bki", {empty({2, 0, 3}), empty({2, 3, 4})}).shape() == Shape{2, 4, 0});
  CHECK(einsum("ij,j->i", {a, empty({0})}).to_vector() == std::vector<float>{0, 0});
  CHECK(einsum("i,j->ij", {empty({0}), empty({3})}).shape() == Shape{0, 3});
  CHECK(einsum("ii->i", {empty({0, 0})}).shape() == Shape{0});
}

TEST_CASE("einsum: errors repeat the equation and say what is wrong", "[einsum]") {
  const Tensor a = noise({2, 3}, 1), b = noise({4, 3}, 2);
  check_error("ij,jk->ik", {a}, "the equation has 2 operands");
  check_error("ij,jk->ik", {a, b}, "'j' has sizes 3 and 4");
  check_error("ii->i", {a}, "'i' has sizes 2 and 3");
  check_error("ijk->i", {a}, "operand 0 is written \"ijk\" and has rank 2");
  check_error("...ijk->i", {a}, "operand 0 is written \"...ijk\" and has rank 2");
  check_error("ij->ik", {a}, "'k' of the result is in no operand");
  check_error("ij->ii", {a}, "'i' appears twice in the result");
  check_error("i1->i", {a}, "unexpected '1'");
  check_error("ij->i->j", {a}, "unexpected '-'");
  check_error("i..->i", {a}, "unexpected '.'");
  check_error("i...->i", {a}, "lacks the '...'");
  check_error("ij->...i", {a}, "'...' appears in the result only");
  check_error("...j,...j->...", {a, b}, "do not broadcast: sizes 2 and 4");
  CHECK_THROWS_AS(einsum("ij->i", {}), ShapeError);
  CHECK_THROWS_AS(einsum("ij,kj->ik", {a, to(b, f32)}), DTypeError);
  CHECK_THROWS_AS(einsum("ij->i", {to(a, i64)}), DTypeError);
}
