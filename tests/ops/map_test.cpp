// map(): operands that are slices, or rows repeated, are read where they lie; the results are those of copies.
#include <sluice/ops/elementwise/map.h>

#include "support/approx.h"
#include "support/catch.h"

#include <sluice/autograd/engine.h>
#include <sluice/core/number/random.h>
#include <sluice/ops/elementwise/activation.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/rows/reduce.h>
#include <sluice/ops/shape/join.h>
#include <sluice/ops/shape/view.h>

#include <limits>
#include <vector>

using namespace sluice;
using namespace sluice::testing;

namespace {

/// Values and gradients of swiglu(x, g) + row.
std::vector<Tensor> results(const Tensor& x, const Tensor& g, const Tensor& row, const Tensor& seed) {
  Tensor a = x.detach(), b = g.detach(), c = row.detach();
  for (Tensor* t : {&a, &b, &c}) t->requires_grad_();
  const Tensor y = map([](auto u, auto v, auto w) { return u * sigmoid(v) * w; }, a, b, c);
  std::vector<Tensor> all = grad({y}, {a, b, c}, {.grad_outputs = {seed}});
  all.push_back(y.detach());
  return all;
}

}  // namespace

TEST_CASE("map: slices of columns equal their copies, whatever the width", "[map]") {
  Rng rng(11);
  for (int64_t width : {1, 31, 32, 33, 100, 512, 513, 1300})
    for (int64_t rows : {1, 2, 70}) {
      INFO(rows << " × " << width);
      const Tensor wide = normal({3, rows, 2 * width + 7}, 0, 1, rng), row = normal({width}, 0, 1, rng);
      const Tensor x = narrow(wide, 2, 3, width), g = narrow(wide, 2, width + 5, width);
      const Tensor seed = narrow(normal({3, rows, width + 1}, 0, 1, rng), 2, 1, width);
      const std::vector<Tensor> in_place = results(x, g, row, seed);
      const std::vector<Tensor> copied = results(clone(x), clone(g), clone(expand(row, x.shape())), clone(seed));
      for (std::size_t i = 0; i < in_place.size(); ++i)
        if (i != 2) CHECK(same_bits(in_place[i], copied[i]));  // the row's gradient is a sum over the others
      // Heads side by side, and one operand whose runs are of another length.
      const Tensor heads = transpose(unflatten(normal({2, rows, 4 * width}, 0, 1, rng), 2, {4, width}), 1, 2);
      const Tensor halves = normal({2, 4, rows, width}, 0, 1, rng),
                   part = narrow(normal({2, 4, rows + 1, width}, 0, 1, rng), 2, 1, rows);
      const std::vector<Tensor> mixed = results(heads, part, row, halves);
      const std::vector<Tensor> plain = results(clone(heads), clone(part), clone(expand(row, heads.shape())), halves);
      for (std::size_t i = 0; i < mixed.size(); ++i)
        if (i != 2) CHECK(same_bits(mixed[i], plain[i]));
    }
}

TEST_CASE("map: repeated operands equal their copies, whatever repeats how often", "[map]") {
  const DType dtype = GENERATE(f32, f64, bf16, i64, i32);
  const Shape of = GENERATE(Shape{}, Shape{3}, Shape{1, 1, 511}, Shape{512}, Shape{513}, Shape{60, 1}, Shape{4, 1, 1},
                            Shape{4, 60, 1}, Shape{60, 513}, Shape{1});
  const int64_t last = of.rank() > 0 ? of[of.rank() - 1] : 1, width = last > 1 ? last : GENERATE(3, 16, 700, 2500);
  Rng rng(12);
  const auto some = [&](const Shape& shape) { return to(uniform(shape, -100, 100, rng), dtype); };
  const Tensor x = some({4, 60, width}), y = some(of), z = some({60, 1}), mask = uniform(of, -1, 1, rng) > 0.0;
  const auto copied = [&](const Tensor& t) { return clone(expand(t, x.shape())); };
  CHECK(all(x + y == x + copied(y)).item() != 0);
  CHECK(all(where(mask, x, y * z) == where(copied(mask), x, copied(y) * copied(z))).item() != 0);
}

TEST_CASE("map: a column beside a matrix equals its copy, on either side", "[map]") {
  constexpr float inf = std::numeric_limits<float>::infinity(), not_a_number = std::numeric_limits<float>::quiet_NaN();
  Rng rng(13);
  for (DType dtype : {f32, f64, bf16, i64, i32})
    for (int64_t width : {1, 191, 192, 193, 511, 512, 513, 1025, 2100})
      for (int64_t rows : {0, 1, 2, 45}) {
        INFO(str(rows, " × ", width, " ", dtype));
        const Tensor x = to(uniform({2, rows, width}, -100, 100, rng), dtype);
        const Tensor column = to(uniform({2, rows, 1}, 1, 100, rng), dtype), copy = clone(expand(column, x.shape()));
        const Tensor narrow_column = expand(narrow(to(uniform({2, rows, 3}, 1, 9, rng), dtype), 2, 1, 1), x.shape());
        CHECK(same_bits(x + column, x + copy));
        CHECK(same_bits(column + x, copy + x));
        CHECK(same_bits(x - column, x - copy));
        CHECK(same_bits(column - x, copy - x));
        CHECK(same_bits(maximum(x, column), maximum(x, copy)));
        CHECK(same_bits(narrow_column - expand(column, x.shape()), clone(narrow_column) - copy));  // two columns
        const Tensor channels = to(uniform({rows, 1}, 1, 9, rng), dtype), turned = transpose(select(x, 2, 0), 0, 1);
        for (const Tensor& y : {channels, flip(column, {0, 1}), unsqueeze(transpose(clone(turned), 0, 1), 2)})
          CHECK(same_bits(x - y, x - clone(expand(y, x.shape()))));
        if (!is_float(dtype)) continue;
        CHECK(same_bits(x / column, x / copy));
        CHECK(same_bits(column / x, copy / x));
        CHECK(same_bits(column * select(x, 0, 1), copy * select(x, 0, 1)));
        const Tensor flags = column > 50.0;  // bool beside numbers
        CHECK(same_bits(x * flags, x * clone(expand(flags, x.shape()))));
      }
  const Tensor odd = reshape(Tensor({inf, -inf, not_a_number, 0.f, -0.f}), {5, 1});
  const Tensor row = cat({odd, normal({600, 1}, 0, 1, rng)}, 0), x = reshape(row, {605});
  CHECK(same_bits(odd * x, clone(expand(odd, {5, 605})) * x));
  CHECK(same_bits(x - odd, x - clone(expand(odd, {5, 605}))));
}

TEST_CASE("add_, scale_, fill_: rows that are apart are written as their copies, and nothing else", "[map]") {
  const DType dtype = GENERATE(f32, f64, bf16);
  const int64_t width = GENERATE(1, 191, 192, 511, 513, 1025, 2100);
  Rng rng(9);
  const auto some = [&](const Shape& shape) { return to(normal(shape, 0, 1, rng), dtype); };
  for (const Shape& rows : {Shape{0}, Shape{1}, Shape{2, 3}, Shape{40}}) {
    Shape inner = rows, outer = rows;
    inner.push_back(width), outer.push_back(width + 3);
    INFO(str(dtype, " ", inner));
    const Tensor all = some(outer), y = some(inner), turned = transpose(some({width, 40}), 0, 1);
    const Tensor before = clone(narrow(all, -1, 2, width));
    const auto check = [&](auto write) {
      Tensor base = clone(all), part = narrow(base, -1, 2, width), copy = clone(before);
      write(part), write(copy);
      CHECK(same_bits(clone(part), copy));
      CHECK(same_bits(clone(narrow(base, -1, 0, 2)), clone(narrow(all, -1, 0, 2))));
      CHECK(same_bits(clone(narrow(base, -1, width + 2, 1)), clone(narrow(all, -1, width + 2, 1))));
    };
    const DType wide = detail::widened(dtype);
    Tensor sum = clone(before);
    add_(sum, y, 2);  // 2·y is exact
    CHECK(same_bits(sum, to(to(before, wide) + to(y, wide) * 2, dtype)));
    for (double factor : {1.0, 0x1.01p-3}) {
      check([&](Tensor& x) { add_(x, y, factor); });
      check([&](Tensor& x) { add_(x, expand(narrow(y, -1, 0, 1), y.shape()), factor); });
      check([&](Tensor& x) { add_(x, x, factor); });
      if (rows == Shape{40}) check([&](Tensor& x) { add_(x, turned, factor); });
    }
    check([&](Tensor& x) { scale_(x, 0.1); });
    check([&](Tensor& x) { fill_(x, 0.1); });
  }
  // y begins where x does, and lies behind what x has written.
  Tensor base = some({9, 400}), x = narrow(base, 1, 0, 200), y = narrow(reshape(base, {18, 200}), 0, 0, 9);
  const Tensor sum = x + y;
  add_(x, y);
  CHECK(same_bits(clone(x), sum));
}

TEST_CASE("map: transposed operands equal their copies, in every dtype", "[map]") {
  Rng rng(12);
  for (const Shape& shape : {Shape{91, 130}, Shape{3, 65, 47}, Shape{16, 2, 600}, Shape{15, 700}})
    for (DType dtype : {f32, f64, bf16}) {
      const Tensor whole = normal(shape, 0, 1, rng, {dtype}), x = transpose(whole, 0, -1), other = clone(x) + 1.0;
      const Tensor copy = clone(x), pair = unsqueeze(x, 0), wide = expand(pair, stack({x, x}, 0).shape());
      INFO(str(x.shape(), " ", dtype));
      CHECK(same_bits(gelu(x), gelu(copy)));
      CHECK(same_bits(x + other, copy + other));
      CHECK(same_bits(other * x, other * copy));
      CHECK(same_bits(wide + other, expand(copy + other, wide.shape())));
      CHECK(same_bits(to(x, dtype == f32 ? bf16 : f32), to(copy, dtype == f32 ? bf16 : f32)));
      CHECK(same_bits(where(copy > 0.0, x, other), where(copy > 0.0, copy, other)));
    }
}

TEST_CASE("map: a formula may assign, and choose by a captured bool", "[map]") {
  const Tensor a = Tensor({1.5f, -2, 4}).requires_grad_(), b = Tensor({0.5f, 3, -1}).requires_grad_();
  auto assigned = [](auto x, auto y) {
    auto s = x;
    s += y;
    s *= x;
    s -= 0.25;
    s /= y;
    return s;
  };
  auto written = [](auto x, auto y) { return ((x + y) * x - 0.25) / y; };
  const Tensor seed({1, 2, -3});
  const auto second = [&](const Tensor& y) {  // of gradients that are recorded, so that tensors go through the formula
    const std::vector<Tensor> once = grad({y}, {a, b}, {.create_graph = true, .grad_outputs = {seed}});
    return grad({once[0] * once[1]}, {a, b}, {.grad_outputs = {seed}});
  };
  const Tensor y = map(assigned, a, b), z = map(written, a, b);
  CHECK(same_bits(y, z));
  const auto dy = second(y), dz = second(z);
  for (std::size_t i = 0; i < 2; ++i) CHECK(same_bits(dy[i], dz[i]));
  CHECK(max(abs(dy[0])).item() > 0.1);
  for (bool first : {false, true}) {
    const auto chosen = [first](auto u, auto v) { return select(first, u * v, v / u); };
    const Tensor w = map(chosen, a, b), same = first ? a * b : b / a;
    CHECK(same_bits(w, same));
    const auto dw = second(w), ds = second(same);
    for (std::size_t i = 0; i < 2; ++i) CHECK(same_bits(dw[i], ds[i]));
  }
}

TEST_CASE("map: constants, ++, ! and select between two numbers mean what they mean elsewhere", "[map]") {
  const auto compare = [](const Tensor& x, auto short_form, auto long_form) {
    const Tensor a = x.detach().requires_grad_();
    const Tensor seed = x * 0 + 1.5;
    const auto orders = [&](const Tensor& y) {  // y, dy and, of tensors that go through the formula, ddy
      const Tensor dy = grad({y}, {a}, {.create_graph = true, .allow_unused = true, .grad_outputs = {seed}})[0];
      std::vector<Tensor> all{y.detach(), dy.defined() ? dy.detach() : like(x, 0)};
      if (dy.defined() && dy.requires_grad())
        all.push_back(grad({dy}, {a}, {.allow_unused = true, .grad_outputs = {seed}})[0]);
      if (all.size() < 3 || !all.back().defined()) all.resize(2), all.push_back(like(x, 0));
      return all;
    };
    const auto found = orders(map(short_form, a)), expected = orders(map(long_form, a));
    for (std::size_t i = 0; i < 3; ++i) {
      CHECK(found[i].dtype() == x.dtype());
      CHECK(to(found[i], f64).template to_vector<double>() == to(expected[i], f64).template to_vector<double>());
    }
    return to(found[0], f64).template to_vector<double>();
  };
  for (DType dtype : {f32, f64, bf16}) {
    INFO(name_of(dtype));
    const Tensor x = to(Tensor({-2, -0.5, 0, 0.5, 3}), dtype);
    using V = std::vector<double>;
    CHECK(compare(
              x, [](auto) { return 1.5; }, [](auto v) { return like(v, 1.5); }) == V{1.5, 1.5, 1.5, 1.5, 1.5});
    CHECK(compare(
              x, [](auto) { return 2; }, [](auto v) { return like(v, 2); }) == V{2, 2, 2, 2, 2});
    CHECK(compare(
              x, [](auto v) { return v * select(v > 0.0, 1.0, -1); },
              [](auto v) { return v * select(v > 0.0, like(v, 1), like(v, -1)); }) == V{2, 0.5, 0, 0.5, 3});
    CHECK(compare(
              x, [](auto v) { return select(v <= 0.0, 1, 0); },
              [](auto v) { return select(v <= 0.0, like(v, 1), like(v, 0)); }) == V{1, 1, 1, 0, 0});
    CHECK(compare(
              x, [](auto v) { return select((v > -1.0) & (v < 1.0), 1.0, 0); },
              [](auto v) { return select(abs(v) < 1.0, like(v, 1), 0); }) == V{0, 1, 1, 1, 0});
    CHECK(compare(
              x, [](auto v) { return v * select((v < -1.0) | !(v <= 1.0), 3, 1); },
              [](auto v) { return select(abs(v) > 1.0, v * 3, v); }) == V{-6, -0.5, 0, 0.5, 9});
    CHECK(compare(
              x, [](auto v) { return select(!v, 7.0, v); }, [](auto v) { return select(v == 0.0, 7.0, v); }) ==
          V{-2, -0.5, 7, 0.5, 3});
    CHECK(compare(
              x,
              [](auto v) {
                const auto before = v++;
                return before * ++v;
              },
              [](auto v) { return v * (v + 2); }) == V{0, -0.75, 0, 1.25, 15});
    CHECK(compare(
              x,
              [](auto v) {
                const auto before = v--;
                return before * --v;
              },
              [](auto v) { return v * (v - 2); }) == V{8, 1.25, 0, -0.75, 3});
    CHECK(compare(
              x, [](auto v) { return pow(2, v); }, [](auto v) { return pow(like(v, 2), v); })[4] == 8);
  }
  const Tensor a({1, 2}), b = reshape(Tensor({1, 2, 3}), {3, 1});  // a constant has the shape of all operands
  CHECK(map([](auto, auto) { return 1; }, a, b).shape() == Shape{3, 2});
}
