// Numbers beside tensors, indexing, assignment operators, whole numbers: what is written as in Python means the same.
#include "support/approx.h"
#include "support/catch.h"

#include <sluice/autograd/engine.h>
#include <sluice/autograd/gradcheck.h>
#include <sluice/core/text/print.h>
#include <sluice/core/number/random.h>
#include <sluice/ops/elementwise/activation.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/index/gather.h>
#include <sluice/ops/rows/loss.h>
#include <sluice/ops/elementwise/map.h>
#include <sluice/ops/rows/reduce.h>
#include <sluice/ops/rows/softmax.h>
#include <sluice/ops/shape/view.h>

#include <limits>
#include <sstream>

using namespace sluice;
using Doubles = std::vector<double>;
using Whole = std::vector<int64_t>;

TEST_CASE("numbers take the dtype of the tensor beside them", "[numbers]") {
  const Tensor x = full({2}, 0.1, {f64});  // 0.1 is not 0.1f
  CHECK(all(eq(x, 0.1)).item() == 1);
  CHECK(all(ge(x, 0.1)).item() == 1);
  CHECK(any(ne(x, 0.1)).item() == 0);
  const Tensor yes = ones({2}, {boolean});
  CHECK(where(yes, 0.1, x * 2).to_vector<double>() == Doubles{0.1, 0.1});
  CHECK(where(!yes, x * 2, 0.1).to_vector<double>() == Doubles{0.1, 0.1});
  CHECK(maximum(x, 0.3).to_vector<double>() == Doubles{0.3, 0.3});
  CHECK(minimum(x, -0.3).to_vector<double>() == Doubles{-0.3, -0.3});
  CHECK(remainder(x, 0.3).dtype() == f64);
  CHECK(lerp(x, x, 0.5).dtype() == f64);
  for (DType t : {f32, f64, bf16, i64, i32}) {
    const Tensor v = ones({2}, {t});
    CHECK(maximum(v, 3).dtype() == t);
    CHECK(where(yes, v, 2).dtype() == t);
    CHECK(masked_fill(v, yes, 2).dtype() == t);
    CHECK(clamp(v, 0, 5).dtype() == t);
    CHECK(remainder(v, 2).dtype() == t);
  }
  const Tensor i = Tensor::from<int32_t>({-5, 0, 7});
  CHECK_THROWS_WITH(maximum(i, 0.5), Contains("maximum: an i32 tensor [3] and the fraction 0.5"));
  CHECK_THROWS_WITH(clamp(i, -0.5, 1), Contains("clamp"));
  CHECK_THROWS_WITH(masked_fill(i, i > 0, 0.5), Contains("masked_fill"));
  CHECK_THROWS_WITH(where(i > 0, i, NAN), Contains("where"));
  CHECK_THROWS_WITH(where(i > 0, i > 1, 2), Contains("where: a bool tensor [3] and the number 2"));
  CHECK_THROWS_WITH(i + 1e10, Contains("add_scalar: 1e+10 does not fit into i32"));
  CHECK((2.0 + i).to_vector<int32_t>() == (i + 2.0).to_vector<int32_t>());
  CHECK_THROWS_WITH(to(i, i64) * 1e300, Contains("does not fit into i64"));
  // What a dtype cannot hold is taken to its end.
  CHECK(clamp(i, 0).to_vector<int64_t>() == Whole{0, 0, 7});
  CHECK(minimum(i, 1e300).to_vector<int64_t>() == Whole{-5, 0, 7});
  CHECK(masked_fill(i, i == 0, -INFINITY).to_vector<int64_t>() == Whole{-5, std::numeric_limits<int32_t>::min(), 7});
}

TEST_CASE("comparisons: sides of any layout and dtype, in place, through a buffer or a single number", "[numbers]") {
  const DType left = GENERATE(f32, f64, bf16, i64, i32, boolean), right = GENERATE(f32, f64, bf16, i64, i32, boolean);
  if (left != right && is_float(left) != is_float(right)) return;
  Rng rng(1);
  const auto noise = [&rng](const Shape& shape, DType dtype) {
    const Tensor v = randint(-2, 3, shape, rng);
    if (is_float(dtype)) return to(where(v == -2.0, std::numeric_limits<double>::quiet_NaN(), to(v, f64)), dtype);
    return to(dtype == boolean ? v > 0.0 : v, dtype);
  };
  const int64_t rows = 67, n = 250, step = 3;  // more than one task, none of whole tiles
  const auto views = [&](DType t) {
    return std::vector<Tensor>{noise({rows, n}, t),
                               narrow(noise({rows, n + 5}, t), 1, 3, n),
                               slice(noise({rows, step * n}, t), 1, 0, step * n, step),
                               transpose(noise({n, rows}, t), 0, 1),
                               noise({n}, t),
                               noise({rows, 1}, t),
                               noise({}, t),
                               noise({1, 1}, t)};
  };
  for (const Tensor& a : views(left))
    for (const Tensor& b : views(right)) {
      const Shape shape = broadcast("", a.shape(), b.shape());
      const auto u = expand(a, shape).to_vector<double>(), v = expand(b, shape).to_vector<double>();
      const auto check = [&](const Tensor& y, auto f) {
        const std::vector<double> got = y.to_vector<double>();
        int64_t wrong = got.size() != u.size();
        for (std::size_t i = 0; i < got.size() && !wrong; ++i) wrong += got[i] != f(u[i], v[i]);
        CHECK(wrong == 0);
      };
      check(eq(a, b), [](double x, double y) { return x == y; });
      check(ne(a, b), [](double x, double y) { return x != y; });
      check(lt(a, b), [](double x, double y) { return x < y; });
      check(le(a, b), [](double x, double y) { return x <= y; });
      check(gt(a, b), [](double x, double y) { return x > y; });
      check(ge(a, b), [](double x, double y) { return x >= y; });
      if (left != boolean || right != boolean) continue;
      check(a & b, [](double x, double y) { return x != 0 && y != 0; });
      check(a | b, [](double x, double y) { return x != 0 || y != 0; });
      check(expand(logical_not(a), shape), [](double x, double) { return x == 0; });
    }
}

TEST_CASE("whole numbers: remainder has the sign of the divisor, also at the ends", "[numbers]") {
  const Tensor a = Tensor::from<int64_t>({7, -7, 7, -7, 7, INT64_MIN}),
               b = Tensor::from<int64_t>({3, 3, -3, -3, 0, -1});
  CHECK(remainder(a, b).to_vector<int64_t>() == Whole{1, 2, -2, -1, 7, 0});
  const Tensor x = Tensor::from<double>({5.5, -5.5, 5.5, -5.5, 1, -0.5}),
               y = Tensor::from<double>({2, 2, -2, -2, 0, INFINITY});
  const Doubles r = remainder(x, y).to_vector<double>();
  CHECK(Doubles(r.begin(), r.begin() + 4) == Doubles{1.5, 0.5, -0.5, -1.5});
  CHECK(std::isnan(r[4]));
  CHECK(r[5] == INFINITY);                                                   // as numpy
  CHECK(remainder(full({1}, 1e30, {f64}), 7).item() == std::fmod(1e30, 7));  // exact for any quotient
}

TEST_CASE("whole numbers: mean, max, min and where of integers and bool", "[numbers]") {
  const Tensor i = Tensor::from<int64_t>({3, INT64_MAX, -4, INT64_MIN}, {2, 2});
  CHECK(max(i).item<int64_t>() == INT64_MAX);
  CHECK(min(i, 1).to_vector<int64_t>() == Whole{3, INT64_MIN});
  CHECK(max(i, 0, keep).shape() == Shape{1, 2});
  CHECK(max(i).dtype() == i64);
  const Tensor hit = Tensor::from<bool>({true, false, true, true});
  CHECK(mean(hit).dtype() == f32);
  CHECK(mean(hit).item() == 0.75);
  CHECK(mean(argmax(Tensor({{1, 2}, {4, 3}}), 1) == Tensor::from<int64_t>({1, 1})).item() == 0.5);  // an accuracy
  CHECK(max(hit).dtype() == boolean);
  CHECK(min(hit).item() == 0);
  CHECK(std::isnan(mean(zeros({0}, {i64})).item()));
  CHECK_THROWS_AS(max(zeros({0}, {i64})), ShapeError);
  CHECK_THROWS_WITH(mean(hit, 1), Contains("mean"));
}

TEST_CASE("whole numbers: none is rounded on its way through a double", "[numbers]") {
  const int64_t odd = (int64_t{1} << 53) + 1;
  CHECK(arange(odd, odd + 3).to_vector<int64_t>() == Whole{odd, odd + 1, odd + 2});
  CHECK(arange(odd + 2, odd, -1).to_vector<int64_t>() == Whole{odd + 2, odd + 1});
  CHECK(arange(odd, odd).shape() == Shape{0});
  CHECK(arange(INT64_MAX - 2, INT64_MAX).to_vector<int64_t>() == Whole{INT64_MAX - 2, INT64_MAX - 1});
  CHECK(arange(INT64_MIN, INT64_MAX, INT64_MAX).to_vector<int64_t>() == Whole{INT64_MIN, -1, INT64_MAX - 1});
  CHECK(arange(INT64_MAX, INT64_MIN, INT64_MIN).to_vector<int64_t>() == Whole{INT64_MAX, -1});
  CHECK(arange(odd, odd + 2, 1, {i32}).to_vector<int64_t>() == Whole{INT32_MAX, INT32_MAX});  // saturates, as to()
  CHECK_THROWS_WITH(arange(odd, 0), Contains("arange: step 1 does not lead from 9007199254740993 to 0"));
  CHECK_THROWS_AS(arange(odd, odd + 3, 0), ValueError);
  CHECK_THROWS_WITH(arange(INT64_MIN, INT64_MAX), Contains("arange: 18446744073709551615 values are too many"));
  const Tensor x = Tensor::from<int64_t>({odd});
  CHECK_THROWS_WITH(x + 0x1p53, Contains("add_scalar: ") && Contains("may have been rounded"));
  CHECK_THROWS_WITH(x * -0x1p53, Contains("scale: ") && Contains("may have been rounded"));
  CHECK_THROWS_WITH(0x1p53 - x, Contains("sub: ") && Contains("may have been rounded"));
  CHECK((x - (0x1p53 - 1)).item<int64_t>() == 2);
  CHECK((x - Tensor::from<int64_t>({odd})).item<int64_t>() == 0);
}

TEST_CASE("means and variances are quotients, rounded once", "[numbers]") {
  for (int64_t n = 1; n < 200; ++n) CHECK(mean(full({n}, 3, {f64})).item() == 3);  // 49·(1/49) is not 1
  std::vector<double> v(50);
  v[0] = 7, v[1] = -7;
  CHECK(var(Tensor::from(v)).item() == 2);
  const Tensor leaf = ones({49}, {f64}).requires_grad_();
  CHECK(grad(mean(leaf), leaf).to_vector<double>() == Doubles(49, 1.0 / 49));
}

TEST_CASE("add_: the layout of x changes no bits", "[numbers]") {
  const Tensor one = ones({2, 2}, {bf16});
  Tensor plain = clone(one), turned = transpose(clone(one), 0, 1), itself = clone(one);
  for (Tensor* x : {&plain, &turned}) add_(*x, one, 0x1.01p-8);
  add_(itself, transpose(itself, 0, 1), 0x1.01p-8);
  // 1 + 2^-8 + 2^-16, rounded once. Rounded before the sum, too, it would be 1.
  for (const Tensor& x : {plain, turned, itself}) CHECK(x.to_vector<double>() == Doubles(4, 1 + 0x1p-7));
}

TEST_CASE("scale_: as the product, in place or not", "[numbers]") {
  const DType dtype = GENERATE(f32, f64, bf16);
  Rng rng(6);
  const Tensor values = to(normal({65, 300}, 0, 1, rng), dtype), want = values * 0.1;
  Tensor x = clone(values), across = transpose(clone(transpose(values, 0, 1)), 0, 1), other = x;
  const uint64_t before = x.version();
  scale_(x, 0.1), scale_(across, 0.1);
  CHECK(testing::same_bits(x, want));
  CHECK(testing::same_bits(across, want));
  CHECK(testing::same_bits(other, want));
  CHECK(x.version() > before);
}

TEST_CASE("sum, max: bf16 over any dim is the f32 result, rounded once", "[numbers]") {
  const int64_t dim = GENERATE(0, 1, 2);
  Rng rng(7);
  for (const Shape& shape : {Shape{130, 3, 260}, Shape{1, 300, 300}, Shape{4, 150, 1030}}) {
    const Tensor x = to(normal(shape, 0, 1, rng), bf16);
    CHECK(testing::same_bits(sum(x, {dim}), to(sum(to(x, f32), {dim}), bf16)));
    CHECK(testing::same_bits(max(x, {dim}), to(max(to(x, f32), {dim}), bf16)));
  }
}

TEST_CASE("one dim is written as a number in every reduction", "[numbers]") {
  Rng rng(1);
  const Tensor x = normal({2, 3, 4}, 0, 1, rng);
  CHECK(sum(x, 1).shape() == Shape{2, 4});
  CHECK(sum(x, -1, keep).shape() == Shape{2, 3, 1});
  CHECK(mean(x, 0).shape() == softmax(x, 0)[0].shape());
  CHECK(testing::same_bits(sum(x, 1), sum(x, {1})));
  CHECK(testing::same_bits(max(x, 2), max(x, {2})));
  CHECK(sum(x, {}).shape() == Shape{});
  CHECK(zeros(3).shape() == Shape{3});
  CHECK(reshape(x, -1).shape() == Shape{24});
}

TEST_CASE("arange of whole numbers is i64, with one, two or three of them", "[numbers]") {
  CHECK(arange(3).to_vector<int64_t>() == Whole{0, 1, 2});
  CHECK(arange(2, 5).to_vector<int64_t>() == Whole{2, 3, 4});
  CHECK(arange(5, 0, -2).to_vector<int64_t>() == Whole{5, 3, 1});
  for (const Tensor& x : {arange(3), arange(2, 5), arange(5, 0, -2)}) CHECK(x.dtype() == i64);
  CHECK(arange(2, 5, 1, {f64}).dtype() == f64);
  CHECK(arange(0, 1, 0.25).dtype() == f32);
  CHECK(arange(0., 3.).dtype() == f32);
}

TEST_CASE("x[i] is a view of an entry, with history", "[numbers]") {
  Tensor x = Tensor({{1, 2, 3}, {4, 5, 6}}).requires_grad_();
  CHECK(x[1].to_vector<double>() == Doubles{4, 5, 6});
  CHECK(x[-1][0].item() == 4);
  CHECK(x[0].shares_storage(x));
  backward(sum(x[1]) + x[0][2]);
  CHECK(x.grad().to_vector<double>() == Doubles{0, 0, 1, 1, 1, 1});
  CHECK_THROWS_AS(x[2], Error);
  CHECK_THROWS_AS(x[0][0][0], ShapeError);
}

TEST_CASE("x += y gives x a new value and leaves other handles alone", "[numbers]") {
  Tensor w = Tensor({1, 2}).requires_grad_();
  Tensor x = w * 2;
  const Tensor before = x;
  x += w, x -= 1, x *= x, x /= 2, x += 3, x *= 2, x -= w, x /= w;
  CHECK(before.to_vector<double>() == Doubles{2, 4});
  const auto by_hand = [](const Tensor& v) { return ((square(3 * v - 1) / 2 + 3) * 2 - v) / v; };
  CHECK(testing::max_abs_diff(x, by_hand(w)) < 1e-5);
  CHECK(testing::max_abs_diff(grad(sum(x), w), grad(sum(by_hand(w)), w)) < 1e-5);
  CHECK_THROWS_WITH(w += 1, Contains("+=: x [2] is a parameter"));
  CHECK_THROWS_AS(w *= x, AutogradError);
  CHECK(w.to_vector<double>() == Doubles{1, 2});
  Tensor total(0.f);
  for (int i = 0; i < 3; ++i) total += sum(w * double(i));
  CHECK(grad(total, w).to_vector<double>() == Doubles{3, 3});
}

TEST_CASE("allclose: NumPy's rule", "[numbers]") {
  const Tensor b({1, 100, 0});
  CHECK(allclose(b, b));
  CHECK(allclose(b + Tensor({5e-6f, 5e-4f, 0}), b));
  CHECK_FALSE(allclose(b + Tensor({2e-5f, 0, 0}), b));
  CHECK_FALSE(allclose(b + Tensor({0, 0, 1e-6f}), b));
  CHECK(allclose(b + Tensor({0, 0, 1e-6f}), b, 0, 1e-5));
  CHECK(allclose(Tensor(100.f), Tensor(101.f), 0.01, 0));
  CHECK_FALSE(allclose(Tensor(101.1f), Tensor(100.f), 0.01, 0));  // relative to the second
  constexpr float inf = INFINITY;
  CHECK(allclose(Tensor({inf, -inf}), Tensor({inf, -inf})));
  CHECK_FALSE(allclose(Tensor({inf}), Tensor({-inf})));
  CHECK_FALSE(allclose(Tensor({1}), Tensor({inf})));
  CHECK_FALSE(allclose(Tensor({inf}), Tensor({1})));
  CHECK_FALSE(allclose(Tensor({NAN}), Tensor({NAN})));
  CHECK(allclose(Tensor({NAN}), Tensor({NAN}), 1e-5, 1e-8, true));
  CHECK_FALSE(allclose(Tensor({NAN}), Tensor({1}), 1e-5, 1e-8, true));
  CHECK(allclose(ones({2, 3}), ones({3}, {f64})));  // broadcast, and in f64
  CHECK(allclose(arange(3), arange(3)));
  CHECK_FALSE(allclose(arange(3), arange(1, 4)));
  // f32 would round the difference away.
  CHECK_FALSE(allclose(ones({2}, {f64}) + 1e-9, ones({2}, {f64}), 1e-10, 0));
  CHECK_FALSE(allclose(Tensor::from<int64_t>({(1 << 24) + 1}), Tensor::from<int64_t>({1 << 24}), 0, 0));
  CHECK(allclose(zeros({0}), zeros({0})));
  CHECK_THROWS_WITH(allclose(ones({2}), ones({3})), Contains("allclose"));
  CHECK_THROWS_WITH(allclose(ones({2}), arange(2)), Contains("allclose: dtypes differ"));
}

TEST_CASE("scatter: of several the last counts, and alone has a gradient; NaN that is written over is gone",
          "[numbers]") {
  Tensor x = full({4}, NAN), src = Tensor({1, 2, 3});
  x.requires_grad_(), src.requires_grad_();
  const Tensor y = scatter(x, 0, Tensor::from<int64_t>({2, 0, 2}), src);
  CHECK(std::isnan(y[1].item()));
  CHECK(y[0].item() == 2);
  CHECK(y[2].item() == 3);
  const auto g = grad({y}, {x, src}, {.grad_outputs = {Tensor({1, 10, 100, 1000})}});
  CHECK(g[0].to_vector<double>() == Doubles{0, 10, 0, 1000});
  CHECK(g[1].to_vector<double>() == Doubles{0, 1, 100});
  CHECK(scatter(arange(3), 0, arange(2), full({2}, 9, {i64})).to_vector<int64_t>() == Whole{9, 9, 2});
  const Tensor i = Tensor::from<int64_t>({0, 4});
  CHECK_THROWS_WITH(scatter(ones({3}), 0, i, ones({2})), Contains("scatter: index 4 is outside [0, 3)"));
  CHECK_THROWS_WITH(scatter(ones({3}), 0, i, ones({3})), Contains("scatter: needs a source"));
  CHECK_THROWS_AS(scatter(ones({3}), 0, i, ones({2}, {f64})), DTypeError);
  CHECK_THROWS_AS(scatter(ones({3, 3}), 0, i, ones({2})), ShapeError);
  CHECK_THROWS_WITH(masked_select(ones({3}), arange(3)), Contains("masked_select: the mask must be bool"));
  CHECK_THROWS_WITH(masked_select(ones({3}), ones({2}, {boolean})), Contains("masked_select"));
}

TEST_CASE("losses: weights and options that do not fit are refused", "[numbers]") {
  const Tensor x = zeros({2, 3}), t = zeros({2}, {i64});
  CHECK_THROWS_WITH(cross_entropy(x, t, {.weight = ones({2})}),
                    Contains("cross_entropy: weight=[2] does not fit logits=[2,3]"));
  CHECK_THROWS_WITH(nll_loss(x, t, {.weight = ones({3}, {f64})}), Contains("nll_loss: dtypes differ"));
  CHECK_THROWS_WITH(nll_loss(x, Tensor::from<int64_t>({0, 3})), "nll_loss: target 3 is outside [0, 3)");
  CHECK_THROWS_WITH(cross_entropy(x, Tensor::from<int64_t>({-1, 2}), {.weight = ones({3})}),
                    "cross_entropy: target -1 is outside [0, 3)");
  CHECK_THROWS_WITH(bce_with_logits(x, x, Reduction::mean, ones({2})), Contains("bce_with_logits"));
  CHECK_THROWS_WITH(bce_with_logits(x, x, Reduction::mean, ones({2, 2, 3})),
                    Contains("pos_weight=[2,2,3] does not fit"));
  CHECK_THROWS_AS(huber_loss(x, x, 0), ValueError);
  CHECK_THROWS_AS(huber_loss(x, x, INFINITY), ValueError);
  CHECK_THROWS_WITH(l1_loss(x, t), Contains("l1_loss: shapes must be equal"));
  // Without weights it is the same loss by another way.
  Rng rng(1);
  const Tensor logits = normal({5, 3}, 0, 1, rng, {f64}), targets = Tensor::from<int64_t>({0, 2, 1, 1, 0});
  CHECK(cross_entropy(logits, targets, {.label_smoothing = 0.1, .weight = ones({3}, {f64})}).item() ==
        Approx(cross_entropy(logits, targets, {.label_smoothing = 0.1}).item()).epsilon(1e-14));
}

TEST_CASE("the lowest and the highest integer: magnitude, sign, roundings, and a quotient that is refused",
          "[numbers]") {
  const auto check = [](auto lowest, auto highest) {
    const Tensor x = Tensor::from<decltype(lowest)>({lowest, highest});
    const Whole same{lowest, highest};
    CHECK(abs(x).to_vector<int64_t>() == same);  // the lowest has no magnitude
    CHECK(sign(x).to_vector<int64_t>() == Whole{-1, 1});
    CHECK(relu(x).to_vector<int64_t>() == Whole{0, highest});
    Tensor (*const roundings[])(const Tensor&) = {sluice::floor, sluice::ceil, sluice::round, sluice::trunc};
    for (const auto f : roundings) {
      const Tensor y = f(x);
      CHECK(y.to_vector<int64_t>() == same);
      CHECK(y.dtype() == x.dtype());
      CHECK_FALSE(y.shares_storage(x));
    }
    CHECK_THROWS_WITH(x / x,
                      str("div: needs f32, f64 or bf16 — got ", x.dtype(), " of shape [2]; convert with to(x, f32)"));
    CHECK_THROWS_WITH(1.0 / x, Contains("div: ") && Contains("convert with to(x, f32)"));
  };
  check(std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max());
  check(std::numeric_limits<int32_t>::min(), std::numeric_limits<int32_t>::max());
  CHECK_THROWS_WITH(abs(ones({2}, {boolean})), Contains("abs: needs f32, f64, bf16, i64 or i32 — got bool"));
}

TEST_CASE("map: every function that ops/elementwise/map.h lists, with derivatives of both orders", "[numbers][map]") {
  Rng rng(3);
  const Tensor x = uniform({7}, 0.2, 0.9, rng, {f64}), y = uniform({7}, 1.1, 1.9, rng, {f64});
  const auto checked = [&](const char* name, auto formula, auto ops) {
    INFO(name);
    const auto f = [&](const std::vector<Tensor>& in) { return map(formula, in[0], in[1]); };
    CHECK(testing::max_abs_diff(f({x, y}), ops(x, y)) < 1e-14);
    Tensor a = x.detach().requires_grad_(), b = y.detach().requires_grad_();
    const auto first = gradcheck(f, {a, b}), second = gradgradcheck(f, {a, b});
    INFO(first.message << " | " << second.message);
    CHECK(first.ok);
    CHECK(second.ok);
  };
  const auto both = [&](auto f) { checked("the same text on numbers and on tensors", f, f); };
  both([](const auto& x, const auto& y) { return (x + 2.0) * (1.0 - y) / (y * 3.0 - x) - x / 2.0 + 1.0 / y; });
  both([](const auto& x, const auto& y) { return exp(x) + expm1(y) * log(x) - log1p(y) * sqrt(x) + rsqrt(y); });
  both([](const auto& x, const auto& y) {
    return sin(x) * cos(y) + tanh(x) * sigmoid(y) - softplus(x) * erf(y) + normal_cdf(x * y);
  });
  both([](const auto& x, const auto& y) {
    return pow(x, 3.0) + pow(y, x) * abs(x - y) + sign(x - y) * x + floor(y) * x + ceil(y) * x;
  });
  both([](const auto& x, const auto& y) {
    return round(y * 3.3) * x * x + trunc(y * 2.1) * x + remainder(y * 5.0, x + 2.0) * x;
  });
  both([](const auto& x, const auto& y) { return clamp(x, 0.1, 0.95) * y + clamp(y, 2.0, 3.0) + square(x) * y; });
  both([](const auto& x, const auto& y) {
    return relu(x - y) + relu(y) * relu2(x) + leaky_relu(x - y, 0.2) * y + elu(x - y, 0.7) * x;
  });
  both([](const auto& x, const auto& y) {
    return silu(x) * gelu(y) - gelu_tanh(x) * silu(y) + leaky_relu(x - y) + elu(x - y);
  });
  checked(
      "max, min with numbers",
      [](const auto& x, const auto& y) {
        return max(x, 0.1) * max(1.0, y) + min(y, 5.0) * min(0.1, x) + max(x, y) * min(x, y) * x;
      },
      [](const auto& x, const auto& y) { return x * y + y * 0.1 + y * x * x; });
  checked(
      "remainder with numbers",
      [](const auto& x, const auto& y) {
        return remainder(y, 1.0) * x + remainder(7.5, y + 1.5) * x + floor_divide(7.5, y + 1.5) * x;
      },
      [](const auto& x, const auto& y) {
        return (y - 1) * x + (7.5 - floor(7.5 / (y + 1.5)) * (y + 1.5)) * x + floor(7.5 / (y + 1.5)) * x;
      });
  checked(
      "select with numbers",
      [](const auto& x, const auto& y) {
        return select(x < y, x * x, 0.0) + select(1.0 < x, 5.0, y) * y +
               select((x > 0.1) & !(y <= 0.0), x, like(x, 3)) + select((0.1 >= x) | (y != y), 1.0, y * x);
      },
      [](const auto& x, const auto& y) { return x * x + y * y + x + y * x; });
}

TEST_CASE("shapes, dtypes and devices print themselves", "[numbers]") {
  std::ostringstream out;
  out << ones({2, 3}).shape() << ' ' << f32 << ' ' << boolean << ' ' << cpu << ' ' << meta << ' ' << Shape{};
  CHECK(out.str() == "[2,3] f32 bool cpu meta []");
}
