// Strided reading, writing and conversion, element by element against indices.
#include <sluice/core/kernel/strided.h>

#include "support/approx.h"
#include "support/catch.h"

#include <sluice/core/kernel/parallel.h>
#include <sluice/core/tensor.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/shape/view.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

using namespace sluice;
using sluice::testing::Rand;

namespace {

/// Element k (row-major) of a tensor, by definition.
template <class T> T element(const Tensor& x, int64_t k) {
  int64_t at = 0;
  for (int d = x.rank() - 1; d >= 0; --d) {
    at += k % x.shape()[d] * x.strides()[d];
    k /= x.shape()[d];
  }
  return x.data<T>()[at];
}

/// A random view of 120 f32 values: permuted, stepped, flipped, expanded, of any rank.
Tensor random_view(Rand& r, const Tensor& base = arange(2 * 3 * 4 * 5, {f32})) {
  Tensor x = reshape(base, {2, 3, 4, 5});
  for (int i = 0; i < 4; ++i) {
    const int64_t d = r.below(x.rank());
    switch (r.below(6)) {
      case 0: x = transpose(x, d, r.below(x.rank())); break;
      case 1: x = flip(x, {d}); break;
      case 2: x = slice(x, d, r.below(2), std::nullopt, 1 + r.below(2)); break;
      case 3:
        if (x.rank() < 7)
          x = expand(unsqueeze(x, 0), [&] {
            Shape s = x.shape();
            s.insert(0, 1 + r.below(3));
            return s;
          }());
        break;
      case 4:
        if (x.rank() > 1 && x.dim(d) > 0) x = select(x, d, r.below(x.dim(d)));
        break;
      case 5:
        if (x.rank() < 7) x = unsqueeze(x, d);
        break;
    }
  }
  return x;
}

}  // namespace

TEST_CASE("strided: any view reads as its elements", "[strided]") {
  Rand r(1);
  int64_t compared = 0;
  for (int i = 0; i < 3000; ++i) {
    Tensor x = random_view(r);
    const auto got = x.to_vector<double>();
    REQUIRE(static_cast<int64_t>(got.size()) == x.numel());
    compared += x.numel();
    for (int64_t k = 0; k < x.numel(); ++k)
      if (got[static_cast<std::size_t>(k)] != static_cast<double>(element<float>(x, k)))
        FAIL("shape " << str(x.shape()) << " strides " << str(x.strides()) << " element " << k);
  }
  CHECK(compared > 100'000);
}

TEST_CASE("strided: a tile may start and end anywhere", "[strided]") {
  Rand r(2);
  for (int i = 0; i < 2000; ++i) {
    Tensor x = random_view(r);
    const int64_t n = x.numel();
    if (n == 0) continue;
    const int64_t start = r.below(n), count = 1 + r.below(n - start);
    std::vector<float> out(static_cast<std::size_t>(count) + 2, -7);
    detail::read_tile(detail::StridedRange(x.layout()), x.raw(), x.dtype(), start, count, out.data() + 1);
    for (int64_t k = 0; k < count; ++k)
      if (out[static_cast<std::size_t>(k) + 1] != element<float>(x, start + k))
        FAIL("shape " << str(x.shape()) << " strides " << str(x.strides()) << " from " << start);
    REQUIRE(out.front() == -7);
    REQUIRE(out.back() == -7);
  }
}

TEST_CASE("strided: writing through a view touches its elements and nothing else", "[strided]") {
  Rand r(3);
  for (int i = 0; i < 2000; ++i) {
    Tensor whole = full({120}, -1), view = random_view(r, whole);
    bool overlaps = !view.shares_storage(whole);  // unsqueeze may copy

    for (int d = 0; d < view.rank(); ++d) overlaps |= view.strides()[d] == 0 && view.dim(d) > 1;
    if (overlaps) continue;
    Tensor source = reshape(arange(0, static_cast<double>(view.numel()), 1), view.shape());
    copy_(view, source);
    INFO("shape " << str(view.shape()) << " strides " << str(view.strides()));
    int64_t untouched = 0;
    for (float v : whole.to_vector()) untouched += v == -1;
    REQUIRE(untouched == 120 - view.numel());
    for (int64_t k = 0; k < view.numel(); ++k) REQUIRE(element<float>(view, k) == static_cast<float>(k));
  }
}

namespace {

/// Bytes of any kind; of bool only 0 and 1.
Tensor scrambled(const Shape& shape, DType type) {
  Tensor x = empty(shape, {type});
  auto* bytes = reinterpret_cast<uint8_t*>(x.raw());
  for (int64_t i = 0; i < x.numel() * size_of(type); ++i) {
    const uint64_t bits = static_cast<uint64_t>(i + 1) * 0x9e3779b97f4a7c15u;
    bytes[i] = static_cast<uint8_t>(type == boolean ? bits >> 63 : bits >> 56);
  }
  return x;
}

/// Whether y holds the elements of x, each found by its indices; x of rank 4 or less.
bool same_elements(const Tensor& x, const Tensor& y) {
  Shape size{1, 1, 1, 1}, sx{0, 0, 0, 0}, sy{0, 0, 0, 0};
  for (int d = 0; d < x.rank(); ++d) size[d] = x.dim(d), sx[d] = x.strides()[d], sy[d] = y.strides()[d];
  const std::size_t bytes = static_cast<std::size_t>(size_of(x.dtype()));
  for (int64_t a = 0; a < size[0]; ++a)
    for (int64_t b = 0; b < size[1]; ++b)
      for (int64_t c = 0; c < size[2]; ++c)
        for (int64_t d = 0; d < size[3]; ++d)
          if (std::memcmp(x.raw() + (a * sx[0] + b * sx[1] + c * sx[2] + d * sx[3]) * int64_t(bytes),
                          y.raw() + (a * sy[0] + b * sy[1] + c * sy[2] + d * sy[3]) * int64_t(bytes), bytes) != 0)
            return false;
  return true;
}

}  // namespace

TEST_CASE("strided: copies of transposed dims, beyond every tile", "[strided]") {
  for (DType type : {boolean, bf16, f32, f64}) {
    const int64_t side = type == boolean ? 128 : type == f64 ? 32 : 64;
    for (int rank = 2; rank <= 4; ++rank) {
      Shape order;
      for (int d = 0; d < rank; ++d) order.push_back(d);
      do {
        // The two dims that are contiguous before and after are long, and not multiples of anything; or one is short.
        const std::pair<int64_t, int64_t> lengths[] = {
            {2 * side + 1, side + 3}, {side, 2 * side}, {3, 70 * side + 1}, {70 * side + 1, 3}};
        for (const auto& [before, after] : lengths) {
          Shape size;
          for (int d = 0; d < rank; ++d) size.push_back(2 + d % 2);
          size[rank - 1] = before;
          if (order[rank - 1] != rank - 1) size[order[rank - 1]] = after;
          const Tensor x = scrambled(size, type), y = permute(x, order);
          INFO(name_of(type) << " " << str(size) << " in order " << str(order));
          REQUIRE(same_elements(y, contiguous(permute(x, order))));
          // Into a view, beside which nothing changes; from elements that are not aligned.
          Shape wide = y.shape();
          wide[rank - 1] += 2;
          Tensor whole = scrambled(wide, type), old = clone(whole), inside = slice(whole, -1, 1, wide[rank - 1] - 1);
          copy_(inside, y);
          REQUIRE(same_elements(y, inside));
          REQUIRE(same_elements(slice(old, -1, 0, 1), slice(whole, -1, 0, 1)));
          REQUIRE(same_elements(slice(old, -1, wide[rank - 1] - 1), slice(whole, -1, wide[rank - 1] - 1)));
          // And back: here the target is transposed.
          Tensor z = scrambled(size, type), back = permute(z, order);
          copy_(back, inside);
          REQUIRE(same_elements(x, z));
        }
      } while (std::next_permutation(order.begin(), order.end()));
    }
    // Repeated: along what is contiguous before, after, and elsewhere.
    const Tensor x = scrambled({side + 1, 1, 2 * side + 5}, type);
    for (const Shape& order : {Shape{2, 1, 0}, Shape{1, 2, 0}, Shape{2, 0, 1}, Shape{0, 2, 1}}) {
      const Tensor y = permute(expand(x, {side + 1, 3, 2 * side + 5}), order);
      INFO(name_of(type) << " repeated, in order " << str(order));
      REQUIRE(same_elements(y, contiguous(y)));
    }
  }
  // What is larger than a cache is written past it, if lines are written whole.
  for (int64_t columns : {2112, 2113}) {
    const Tensor x = scrambled({1040, columns}, f32), y = transpose(x, 0, 1);
    REQUIRE(same_elements(y, contiguous(y)));
    Tensor whole = scrambled({columns, 1056}, f32), inside = slice(whole, -1, 1, 1041);  // begins within a line
    copy_(inside, y);
    REQUIRE(same_elements(y, inside));
  }
}

TEST_CASE("strided: short rows and flipped ones, beyond every tile", "[strided]") {
  for (DType type : {boolean, bf16, f32, f64})
    for (int64_t width : {2, 3, 7, 8, 9, 16, 17, 129})
      for (int64_t rows : {int64_t{7}, int64_t{129}, 500 + 2000 / width}) {
        const Tensor x = scrambled({3, rows, width + 2}, type), y = slice(x, 2, 1, width + 1);
        const Tensor column = slice(x, 2, 0, 1), repeated = expand(column, {3, rows, width});
        INFO(name_of(type) << " " << rows << " rows of " << width);
        for (const Tensor& from : {y, flip(y, {2}), flip(y, {1}), transpose(y, 0, 1), repeated}) {
          const Tensor copy = contiguous(from);
          REQUIRE(same_elements(from, copy));
          Tensor whole = scrambled({from.dim(0), from.dim(1), width + 2}, type), old = clone(whole);
          Tensor inside = slice(whole, 2, 1, width + 1);
          copy_(inside, from);
          REQUIRE(same_elements(from, inside));
          for (int64_t beside : {int64_t{0}, width + 1})
            REQUIRE(same_elements(select(old, 2, beside), select(whole, 2, beside)));
          // A tile that begins and ends within a row.
          const auto read = [n = copy.numel() - 3](const Tensor& t) {
            std::vector<double> tile(static_cast<std::size_t>(n));
            detail::read_tile(detail::StridedRange(t.layout()), t.raw(), t.dtype(), 1, n, tile.data());
            return tile;
          };
          const std::vector<double> got = read(from), want = read(copy);
          REQUIRE(std::memcmp(got.data(), want.data(), got.size() * sizeof(double)) == 0);
        }
      }
}

TEST_CASE("strided: two short dims behind a long one, as of windows", "[strided]") {
  for (DType type : {boolean, bf16, f32, f64})
    for (int64_t n : {1, 2, 7, 14, 129, 300})
      for (const auto& [a, b] : {std::pair{2, 2}, {2, 3}, {3, 2}, {6, 6}, {6, 7}, {7, 2}, {1, 4}})
        for (const Shape& order : {Shape{0, 1, 3, 2}, Shape{0, 3, 1, 2}, Shape{2, 1, 3, 0}, Shape{0, 2, 1, 3}}) {
          INFO(name_of(type) << " " << n << " of " << a << " x " << b << " by " << str(order));
          const Tensor x = scrambled({2, n, a, b}, type), view = permute(x, order), copy = contiguous(view);
          REQUIRE(same_elements(view, copy));
          Tensor whole = scrambled({2, n, a, b}, type), target = permute(whole, order);
          copy_(target, copy);
          REQUIRE(same_elements(whole, x));
        }
}

TEST_CASE("strided: copies to any place of a page behind their source", "[strided]") {
  constexpr int64_t page = 4096;
  for (DType t : {boolean, bf16, f32, f64}) {
    const int64_t size = size_of(t), most = page / size, longest = 3 * most + 1;
    const Tensor source = scrambled({longest}, t);
    Tensor whole = empty({longest + 2 * most}, {t});
    const int64_t apart = (whole.raw() - source.raw()) % page;
    for (int64_t behind : {0, 8, 56, 64, 72, 2048, 4088})
      for (int64_t n : {int64_t{1}, 512 / size, 512 / size + 1, 1024 / size - 1, most, most + 1, longest}) {
        INFO(name_of(t) << " " << n << ", " << behind << " bytes behind");
        const int64_t first = 1 + ((behind - apart + 2 * page) % page) / size % most;
        fill_(whole, 1);
        Tensor target = narrow(whole, 0, first, n);
        const Tensor from = narrow(source, 0, 1, n - 1 + (n < longest));
        Tensor inside = narrow(target, 0, 0, from.dim(0)), rest = narrow(whole, 0, first + from.dim(0), 1);
        copy_(inside, from);
        REQUIRE(same_elements(from, inside));
        for (const Tensor& beside : {narrow(whole, 0, first - 1, 1), rest})
          REQUIRE(same_elements(ones({1}, {t}), beside));
      }
  }
}

TEST_CASE("strided: long rows are cut into tiles without a seam", "[strided]") {
  for (int64_t n : {511, 512, 513, 32767, 32769, 100003}) {
    Tensor x = arange(0, 2.0 * static_cast<double>(n), 1, {i32}), odd = slice(x, 0, 1, std::nullopt, 2),
           back = flip(odd, {0});
    auto a = odd.to_vector<int64_t>(), b = back.to_vector<int64_t>();
    REQUIRE((static_cast<int64_t>(a.size()) == n && static_cast<int64_t>(b.size()) == n));
    for (int64_t k = 0; k < n; ++k) {
      if (a[static_cast<std::size_t>(k)] != 2 * k + 1) FAIL(n << " at " << k);
      if (b[static_cast<std::size_t>(n - 1 - k)] != 2 * k + 1) FAIL(n << " at " << k);
    }
    Tensor y = zeros({2 * n}), even = slice(y, 0, 0, std::nullopt, 2);
    copy_(even, odd);  // strided to strided, with a conversion
    auto c = y.to_vector();
    for (int64_t k = 0; k < n; ++k)
      if (c[static_cast<std::size_t>(2 * k)] != static_cast<float>(2 * k + 1) ||
          c[static_cast<std::size_t>(2 * k + 1)] != 0)
        FAIL(n << " at " << k);
  }
}

TEST_CASE("strided: conversion between every pair of dtypes", "[strided]") {
  constexpr DType types[] = {f32, f64, bf16, i64, i32, boolean};
  const std::vector<double> values{0, 1, -1, 2, 100, -128};
  for (DType a : types)
    for (DType b : types) {
      INFO(name_of(a) << " to " << name_of(b));
      std::vector<double> want = values;
      if (a == boolean || b == boolean)
        for (double& v : want) v = v != 0;
      Tensor x = to(Tensor::from(values), a);
      CHECK(to(x, b).dtype() == b);
      CHECK(to(x, b).to_vector<double>() == want);
      CHECK(to(flip(x, {0}), b).to_vector<double>() == std::vector<double>(want.rbegin(), want.rend()));
      CHECK(to(expand(select(x, 0, 3), {3}), b).to_vector<double>() == std::vector<double>(3, want[3]));
      Tensor target = zeros({6, 2}, {b}), column = select(target, 1, 1);
      copy_(column, x);
      CHECK(column.to_vector<double>() == want);
    }
}

TEST_CASE("strided: conversions at the borders of a type", "[strided]") {
  const double inf = std::numeric_limits<double>::infinity(), nan = std::nan("");
  Tensor x = Tensor::from<double>(
      {inf, -inf, nan, 1e300, -1e300, 2147483647.0, 2147483648.0, -2147483648.0, -2147483649.0, 2.9, -2.9});
  CHECK(x.to_vector<int32_t>() == std::vector<int32_t>{INT32_MAX, INT32_MIN, 0, INT32_MAX, INT32_MIN, INT32_MAX,
                                                       INT32_MAX, INT32_MIN, INT32_MIN, 2, -2});
  auto wide = x.to_vector<int64_t>();
  CHECK(wide[0] == INT64_MAX);
  CHECK(wide[1] == INT64_MIN);
  CHECK(wide[2] == 0);
  CHECK(wide[6] == 2147483648);
  CHECK(to(x, f32).to_vector<int32_t>()[5] == INT32_MAX);  // 2^31 in f32
  // Of bool only 0 is false, even where denormals are flushed.
  const Tensor small = Tensor::from<double>({nan, 0.0, -0.0, 1e-320, -1e-320, 1e-307, 0.5});
  const Tensor narrow = Tensor({NAN, 0.f, -0.f, 0x1p-133f, -0x1p-133f, 1e-37f, 0.5f});  // 2^-133: least of bf16
  for (const Tensor& numbers : {small, narrow, to(narrow, bf16)})
    for (const bool flush : {true, false}) {
      set_flush_denormals(flush);
      CHECK(numbers.to_vector<bool>() == std::vector<bool>{true, false, false, true, true, true, true});
      CHECK(flip(numbers, {0}).to_vector<bool>() == std::vector<bool>{true, true, true, true, false, false, true});
    }
  set_flush_denormals(true);
  CHECK(full({1}, 1e-320, {boolean}).item() == 1);
  CHECK(std::isnan(to(to(x, bf16), f64).to_vector<double>()[2]));
  CHECK(std::isinf(to(to(x, bf16), f64).to_vector<double>()[3]));
  // bf16 rounds to nearest, ties to even.
  CHECK(to(Tensor({1 + 0x1p-8f, 1 + 3 * 0x1p-8f, 1 + 0x1p-9f}), bf16).to_vector() ==
        std::vector<float>{1, 1 + 4 * 0x1p-8f, 1});
}

namespace {
/// Elements of `x`, from S to T one by one.
template <class T, class S> std::vector<T> each_converted(const Tensor& x) {
  std::vector<T> out;
  for (int64_t k = 0; k < x.numel(); ++k) out.push_back(detail::convert<T>(element<S>(x, k)));
  return out;
}
/// Some numbers of every kind: large, small, negative, NaN, infinite, −0.
Tensor numbers(const Shape& shape, DType dtype) {
  const Tensor x = reshape(arange(shape.numel(), {f64}), shape) * 37.75 - 20000;
  if (!is_float(dtype)) return to(x, dtype);
  Tensor y = clone(x), flat = reshape(y, {shape.numel()});
  const double inf = std::numeric_limits<double>::infinity();
  const double rare[] = {inf, -inf, std::nan(""), -0.0, 3e9, -3e9, 9.3e18, -9.3e18, -2147483648.0, 2147483648.0};
  for (int64_t k = 0; k < shape.numel(); k += 11) {
    Tensor one = narrow(flat, 0, k, 1);
    fill_(one, rare[k / 11 % 10]);
  }
  return to(y, dtype);
}
}  // namespace

TEST_CASE("strided: transposed dims are converted, beyond every tile", "[strided]") {
  constexpr DType types[] = {f32, f64, bf16, i64, i32, boolean};
  for (DType from : types)
    for (const Shape& shape : {Shape{131, 70}, Shape{3, 67, 35}, Shape{2, 1, 300}, Shape{33, 9, 17}}) {
      const Tensor x = numbers(shape, from);
      for (const Tensor& view :
           {transpose(x, 0, -1), transpose(x, -1, -2), narrow(transpose(x, 0, -1), 0, 1, shape[shape.rank() - 1] - 2)})
        for (DType t : types)
          dispatch_all(from, [&]<class S>() {
            dispatch_all(t, [&]<class T>() {
              INFO(name_of(from) << " to " << name_of(t) << ", " << str(view.shape()) << " by " << str(view.strides()));
              const std::vector<T> want = each_converted<T, S>(view);
              CHECK(testing::same_bits(to(view, t), reshape(Tensor::from<T>(want), view.shape())));
              Tensor target = zeros({view.dim(0), view.numel() / view.dim(0) + 3}, {t});
              Tensor part = reshape(narrow(target, 1, 0, view.numel() / view.dim(0)), view.shape());
              if (part.shares_storage(target)) {
                copy_(part, view);
                CHECK(testing::same_bits(contiguous(part), reshape(Tensor::from<T>(want), view.shape())));
                CHECK(to(target, f64).to_vector<double>().back() == 0);
              }
            });
          });
    }
}

TEST_CASE("strided: short and long rows side by side, as of heads", "[strided]") {
  for (DType t : {f32, f64, bf16, boolean})
    for (int64_t width : {7, 8, 15, 16, 17, 32, 33, 64, 128, 129, 255, 256, 300})
      for (const Shape& order : {Shape{0, 2, 1, 3}, Shape{2, 1, 0, 3}, Shape{1, 0, 2, 3}}) {
        INFO(name_of(t) << " " << width << " by " << str(order));
        const Tensor x = to(reshape(arange(2 * 300 * 3 * width), {2, 300, 3, width}) * 3 - 7, t);
        const Tensor view = permute(x, order), part = narrow(view, 1, 1, view.dim(1) - 1);
        dispatch_all(t, [&]<class T>() {
          for (const Tensor& y : {view, part})
            CHECK(testing::same_bits(contiguous(y), reshape(Tensor::from<T>(each_converted<T, T>(y)), y.shape())));
        });
        Tensor target = zeros(view.shape(), {t}), across = permute(target, {0, 1, 3, 2});
        copy_(across, permute(view, {0, 1, 3, 2}));
        CHECK(testing::same_bits(target, contiguous(view)));
      }
}
