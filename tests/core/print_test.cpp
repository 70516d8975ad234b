#include <sluice/core/text/print.h>

#include <sluice/core/node.h>

#include "support/catch.h"

#include <cmath>
#include <limits>
#include <sstream>

using namespace sluice;

namespace {

struct Doubled final : Node {
  static constexpr const char* op_name() { return "doubled"; }
  const char* name() const override { return op_name(); }
};

Tensor counting(const Shape& shape) {
  std::vector<int64_t> v(static_cast<std::size_t>(shape.numel()));
  for (std::size_t i = 0; i < v.size(); ++i) v[i] = static_cast<int64_t>(i);
  return Tensor::from(v, shape);
}

}  // namespace

TEST_CASE("print: header and values", "[print]") {
  CHECK(to_string(Tensor({{1, 2.5, 3}, {-4, 5, 6}})) ==
        "Tensor[2,3] f32 cpu\n"
        "[[ 1.0,  2.5,  3.0],\n"
        " [-4.0,  5.0,  6.0]]");
  CHECK(to_string(Tensor(3.14159265f)) == "Tensor[] f32 cpu\n3.1416");
  CHECK(to_string(Tensor(3.14159265f), {.precision = 2}) == "Tensor[] f32 cpu\n3.14");
  CHECK(to_string(Tensor(2.7f), {.precision = 0}) == "Tensor[] f32 cpu\n3");
  CHECK(to_string(empty({2, 0})) == "Tensor[2,0] f32 cpu\n[]");
  CHECK(to_string(Tensor()) == "Tensor(undefined)");
  CHECK(to_string(Tensor::from<bool>({true, false})) == "Tensor[2] bool cpu\n[ true, false]");
  CHECK(to_string(Tensor::from<int64_t>({-1, 9007199254740993})) ==
        "Tensor[2] i64 cpu\n[              -1, 9007199254740993]");
  CHECK(to_string(Tensor::from<BFloat16>({BFloat16(1.5f)})) == "Tensor[1] bf16 cpu\n[1.5]");
  std::ostringstream out;
  out << Tensor({1.f});
  CHECK(out.str() == "Tensor[1] f32 cpu\n[1.0]");
}

TEST_CASE("print: a view shows its own elements", "[print]") {
  Tensor x({{1, 2, 3}, {4, 5, 6}});
  CHECK(to_string(alias(x, Layout({2, 2}, {1, 3}, 1))) == "Tensor[2,2] f32 cpu\n[[2.0, 5.0],\n [3.0, 6.0]]");
}

TEST_CASE("print: nan, inf and magnitudes that span too far", "[print]") {
  const float inf = std::numeric_limits<float>::infinity();
  CHECK(to_string(Tensor({NAN, inf, -inf, 1})) == "Tensor[4] f32 cpu\n[ nan,  inf, -inf,  1.0]");
  CHECK(to_string(Tensor({1e-10f, -1, inf})) == "Tensor[3] f32 cpu\n[ 1.0000e-10, -1.0000e+00,         inf]");
  CHECK_THAT(to_string(Tensor({1e8f})), Contains("[1.0000e+08]"));
  CHECK_THAT(to_string(Tensor({0.001f, 99})), Contains("[ 0.001, 99.000]"));
  CHECK_THAT(to_string(Tensor({0.0005f, 99})), Contains("[5.0000e-04, 9.9000e+01]"));
  CHECK_THAT(to_string(Tensor::from<double>({1.7e308, 5e-324})), Contains("[1.7000e+308, 4.9407e-324]"));
}

TEST_CASE("print: nested rows, wrapped rows and summaries", "[print]") {
  CHECK(to_string(counting({2, 2, 1})) == "Tensor[2,2,1] i64 cpu\n[[[0],\n  [1]],\n\n [[2],\n  [3]]]");
  CHECK(to_string(counting({10}), {.line_width = 12}) == "Tensor[10] i64 cpu\n[0, 1, 2, 3,\n 4, 5, 6, 7,\n 8, 9]");
  const std::string whole = to_string(counting({1000}));
  CHECK_THAT(whole, !Contains("...") && Contains("499"));
  std::istringstream lines(whole);
  for (std::string line; std::getline(lines, line);) CHECK(line.size() <= 80);
  CHECK(to_string(counting({1001})) == "Tensor[1001] i64 cpu\n[   0,    1,    2, ...,  998,  999, 1000]");
  CHECK(to_string(counting({4, 3}), {.threshold = 5, .edge_items = 1}) ==
        "Tensor[4,3] i64 cpu\n[[ 0, ...,  2],\n ...,\n [ 9, ..., 11]]");
}

TEST_CASE("print: history", "[print]") {
  Tensor x({1, 2});
  x.requires_grad_();
  CHECK_THAT(to_string(x), Contains("Tensor[2] f32 cpu requires_grad\n"));
  const Tensor y = record<Doubled>(Tensor({2, 4}), {x}, {});
  CHECK_THAT(to_string(y), Contains("Tensor[2] f32 cpu grad_fn=doubled\n"));
  CHECK_THAT(describe(y), Contains("grad_fn=doubled"));
}

TEST_CASE("describe: statistics of the finite values", "[print]") {
  const float inf = std::numeric_limits<float>::infinity();
  CHECK(describe(Tensor({1, 3, NAN, inf, -inf, 0, 0})) ==
        "Tensor[7] f32 cpu min=0 max=3 mean=1 std=1.22474 zeros=2 nan=1 inf=2 28 bytes contiguous");
  CHECK(describe(alias(Tensor({{1, 2}, {3, 4}}), Layout({2, 2}, {1, 2}, 0))) ==
        "Tensor[2,2] f32 cpu min=1 max=4 mean=2.5 std=1.11803 zeros=0 nan=0 inf=0 16 bytes "
        "strides=[1,2]");
  CHECK_THAT(describe(Tensor({NAN})), Contains("no finite values") && Contains("nan=1"));
  CHECK_THAT(describe(empty({0})), Contains("no finite values") && Contains("0 bytes"));
  CHECK_THAT(describe(Tensor::from<bool>({true, false})), Contains("mean=0.5"));
  // A large mean does not swallow the spread.
  CHECK_THAT(describe(Tensor::from<double>({1e9 + 1, 1e9 + 3})), Contains("std=1 "));
  // Sums beyond the largest double, and squares below the smallest.
  CHECK_THAT(describe(Tensor::from<double>({1e308, 1e308, 1e308})), Contains("mean=1e+308 std=0 "));
  CHECK_THAT(describe(Tensor::from<double>({1e308, -1e308})), Contains("mean=0 std=1e+308 "));
  CHECK_THAT(describe(Tensor::from<double>({1e-200, 3e-200})), Contains("mean=2e-200 std=1e-200 "));
  CHECK(describe(Tensor()) == "Tensor(undefined)");
}

TEST_CASE("aligned: columns as wide as their widest cell, at either side", "[print]") {
  CHECK(detail::aligned({{"op", "n", "of"}, {"matmul", "12", "x"}, {"", "3", ""}}, "lrl") ==
        "op       n  of\n"
        "matmul  12  x\n"
        "         3  \n");
  CHECK(detail::aligned({{"a", "b"}, {"cc", "dd"}}, "lr") == "a    b\ncc  dd\n");
}
