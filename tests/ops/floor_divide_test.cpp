// Quotients that are rounded down, powers of whole numbers, numbers before tensors: what is written as in Python means
// the same.
#include "support/catch.h"

#include <sluice/autograd/engine.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/rows/reduce.h>
#include <sluice/ops/shape/create.h>

#include <cmath>

using namespace sluice;
using Doubles = std::vector<double>;
using Whole = std::vector<int64_t>;

TEST_CASE("whole numbers: floor_divide is what remainder leaves, also at the ends", "[numbers]") {
  for (DType t : {i64, i32}) {
    const int64_t lowest = t == i64 ? INT64_MIN : INT32_MIN;
    const Tensor a = to(Tensor::from<int64_t>({7, -7, 7, -7, -6, 7, lowest, lowest, 0}), t),
                 b = to(Tensor::from<int64_t>({3, 3, -3, -3, 3, 0, -1, 2, -5}), t), q = floor_divide(a, b);
    CHECK(to(q, i64).to_vector<int64_t>() == Whole{2, -3, -3, 2, -2, 0, lowest, lowest / 2, 0});
    CHECK(all(q * b + remainder(a, b) == a).item() == 1);
    CHECK(floor_divide(a, 2).dtype() == t);
  }
  for (DType t : {f32, f64, bf16}) {
    const Tensor a = to(Tensor::from<double>({5.5, -5.5, 5.5, -5.5, 1, -1, 0, -0.5, 0.5, INFINITY, 1, -0.0, -1}), t),
                 b = to(Tensor::from<double>({2, 2, -2, -2, 0, 0, 0, INFINITY, INFINITY, 2, NAN, 3, -4}), t);
    const Doubles q = to(floor_divide(a, b), f64).to_vector<double>();
    CHECK(Doubles(q.begin(), q.begin() + 6) == Doubles{2, -3, -3, 2, INFINITY, -INFINITY});
    CHECK((std::isnan(q[6]) && std::isnan(q[9]) && std::isnan(q[10])));
    CHECK(Doubles{q[7], q[8], q[11], q[12]} == Doubles{-1, 0, 0, 0});
    CHECK((!std::signbit(q[8]) && std::signbit(q[11]) && !std::signbit(q[12])));
  }
  CHECK(floor_divide(full({1}, 0.7, {f64}), 0.1).item() == 6);  // 0.1 is a little more than a tenth
  const Tensor x = Tensor({-1.5f, 4}).requires_grad_();
  const Tensor g = Tensor({INFINITY, 1});
  CHECK(grad(floor_divide(x, 0.7), x, {.grad_outputs = {g}}).to_vector<double>() == Doubles{0, 0});
  // The slope of the remainder in the divisor, where that is infinite.
  const Tensor far = Tensor({INFINITY, -INFINITY, INFINITY}).requires_grad_();
  CHECK(grad(sum(remainder(Tensor({-1, 1, 1}), far)), far).to_vector<double>() == Doubles{1, 1, 0});
}

TEST_CASE("whole numbers: the lowest one is a number like others", "[numbers]") {
  for (const DType t : {i32, i64}) {
    const int64_t lowest = t == i64 ? INT64_MIN : INT32_MIN;
    const double c = static_cast<double>(lowest);
    const Tensor x = to(Tensor::from<int64_t>({-5, 7}), t);
    CHECK(to(x - c, i64).to_vector<int64_t>() == Whole{-5 - lowest, lowest + 7});
    CHECK(to(c - x, i64).to_vector<int64_t>() == Whole{lowest + 5, -(lowest + 1) - 6});
    CHECK(to(x + c, i64).to_vector<int64_t>() == Whole{-(lowest + 5), lowest + 7});
  }
}

TEST_CASE("whole numbers: powers wrap around, and are never fractions", "[numbers]") {
  const Tensor x = Tensor::from<int64_t>({0, -3, 2, INT64_MIN, 3'037'000'500});
  CHECK(pow(x, 0).to_vector<int64_t>() == Whole{1, 1, 1, 1, 1});
  CHECK(pow(x, 1).to_vector<int64_t>() == x.to_vector<int64_t>());
  CHECK(pow(x, 2).to_vector<int64_t>() == square(x).to_vector<int64_t>());
  CHECK(pow(x, 3).to_vector<int64_t>() == (x * x * x).to_vector<int64_t>());
  CHECK(pow(x, 63).to_vector<int64_t>()[2] == INT64_MIN);
  CHECK(pow(to(x, i32), 31).to_vector<int64_t>()[2] == INT32_MIN);
  CHECK(pow(to(x, i32), 5).dtype() == i32);
  CHECK_THROWS_WITH(pow(x, -1), Contains("pow: an i64 tensor [5] to the power -1"));
  CHECK_THROWS_WITH(pow(x, 0.5), Contains("pow: an i64 tensor [5] and the fraction 0.5"));
  CHECK_THROWS_WITH(pow(to(x, i32), 3e9), Contains("pow: 3e+09 does not fit into i32"));
  CHECK_THROWS_AS(pow(x > 0, 2), DTypeError);
}

TEST_CASE("numbers may come first, and mean the same as behind", "[numbers]") {
  const Tensor x = Tensor::from(Doubles{-1, 0.1, 2}), whole = Tensor::from(Whole{-1, 2, (1 << 24) + 1});
  const auto same = [](const Tensor& a, const Tensor& b) { return a.dtype() == b.dtype() && allclose(a, b, 0, 0); };
  // 0.1 is no float, nor is 2^24 + 1: each would be rounded as a tensor.
  CHECK(same(0.1 == x, x == 0.1));
  CHECK(same(0.1 != x, x != 0.1));
  CHECK(same(0.1 < x, x > 0.1));
  CHECK(same(0.1 <= x, x >= 0.1));
  CHECK(same(0.1 > x, x < 0.1));
  CHECK(same(0.1 >= x, x <= 0.1));
  CHECK(any(0.1 > x).item<bool>());
  CHECK(sum(0.1 > x).item<int>() == 1);
  CHECK(sum((1 << 24) + 1 == whole).item<int>() == 1);
  CHECK(same(maximum(0.3, x), maximum(x, 0.3)));
  CHECK(same(minimum(0.3, x), minimum(x, 0.3)));
  CHECK(allclose(pow(2, x), Tensor::from(Doubles{std::pow(2, -1), std::pow(2, 0.1), std::pow(2, 2)}), 1e-15, 0));
  CHECK(remainder(7, Tensor::from(Whole{2, -2, 5})).to_vector<int64_t>() == Whole{1, -1, 2});
  CHECK(floor_divide(7, Tensor::from(Whole{2, -2, 5})).to_vector<int64_t>() == Whole{3, -4, 1});
  CHECK(same(7 % whole, remainder(7, whole)));
  CHECK(same(whole % 7, remainder(whole, 7)));
  CHECK(same(x % x, remainder(x, x)));
  const Tensor chosen = where(x > 0, 1, 0);
  CHECK(chosen.dtype() == f32);
  CHECK(chosen.to_vector() == std::vector<float>{0, 1, 1});
  CHECK(same(~(x > 0), x <= 0));
  CHECK_THROWS_WITH(pow(2, whole), Contains("pow: needs f32, f64 or bf16"));
  CHECK_THROWS_WITH(where(x, 1, 0), Contains("where: the mask must be bool"));
}
