// Values and shapes at the ends of their ranges.
#include "support/approx.h"
#include "support/catch.h"
#include "support/scan_samples.h"
#include "support/worse.h"

#include <sluice/autograd/engine.h>
#include <sluice/core/number/math.h>
#include <sluice/core/number/random.h>
#include <sluice/ops/attention/attention.h>
#include <sluice/ops/elementwise/activation.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/elementwise/map.h>
#include <sluice/ops/index/gather.h>
#include <sluice/ops/rows/loss.h>
#include <sluice/ops/rows/norm.h>
#include <sluice/ops/rows/reduce.h>
#include <sluice/ops/rows/softmax.h>
#include <sluice/ops/scan/scan.h>
#include <sluice/ops/shape/join.h>
#include <sluice/ops/scan/linear_scan.h>
#include <sluice/ops/shape/view.h>

#include <cmath>
#include <limits>

using namespace sluice;

namespace {
double in_ulps(float y, long double want) {
  int e;
  std::frexp(static_cast<double>(want), &e);
  return static_cast<double>(std::abs(y - want)) / std::ldexp(1.0, std::max(e - 24, -149));
}
long double cdf(long double x) { return std::erfc(-x / std::sqrt(2.0L)) / 2; }
}  // namespace

TEST_CASE("normal_cdf and gelu keep the left tail", "[ops][formulas]") {
  double worst = 0, worst_gelu = 0, worst_wide = 0, worst_density = 0;
  for (float x = -14.0f, density; x < 6; x += 0.00137f) {
    worst = testing::worse(worst, in_ulps(math::normal_cdf(x, density), cdf(x)));
    if (x > -13)
      worst_density = testing::worse(worst_density, in_ulps(density, std::exp(-0.5L * x * x) / std::sqrt(2 * M_PI)));
    if (x > -12.5f && std::abs(x) > 0.01f)  // later the result is denormal
      worst_gelu = testing::worse(worst_gelu, in_ulps(formula::Gelu{}(Value<float>{x, {}}).v, x * cdf(x)));
    worst_wide = testing::worse(worst_wide, static_cast<double>(std::abs(math::normal_cdf(double{x}) / cdf(x) - 1)));
  }
  CHECK((worst < 5 && worst_gelu < 6 && worst_density < 1.7 && worst_wide < 1e-13));
  const float inf = std::numeric_limits<float>::infinity();
  CHECK(math::normal_cdf(-inf) == 0);
  CHECK(math::normal_cdf(inf) == 1);
  CHECK(math::normal_cdf(0.0f) == 0.5f);
  CHECK(math::normal_cdf(-0.0f) == 0.5f);
  CHECK(std::isnan(math::normal_cdf(std::numeric_limits<float>::quiet_NaN())));
  // The rounding of (x − √½)·√4π is amplified by its square.
  for (float x = -3.0f; x < 2; x += 0.0071f) {
    const long double u = (x - std::sqrt(0.5L)) * std::sqrt(4 * std::acos(-1.0L));
    CHECK(in_ulps(formula::Laplace{}(Value<float>{x, {}}).v, cdf(u)) < 8 + 4 * static_cast<double>(u * u));
  }
  // The slope of gelu on the left, Φ(x) + x·φ(x).
  for (double x : {-9.0, -7.5, -5.0}) {
    const Tensor t = full({}, x).requires_grad_();
    const double want = static_cast<double>(cdf(x)) + x * std::exp(-x * x / 2) / std::sqrt(2 * M_PI);
    CHECK(grad(gelu(t), t).item() == Approx(want).epsilon(2e-5));
  }
}

TEST_CASE("norm: values of any size", "[ops][reduce]") {
  for (DType t : {f32, f64})
    for (double size : {1e25, 1e-25, 3.0}) {
      INFO(str(t) << " " << size);
      const Tensor x = (to(Tensor({{3, 4}, {0, 0}, {-4, 3}}), t) * size).requires_grad_();
      const Tensor y = norm(x, {-1});
      const double tolerance = 1e-6;
      CHECK(y.to_vector<double>()[0] == Approx(5 * size).epsilon(tolerance));
      CHECK(y.to_vector<double>()[1] == 0);
      CHECK(norm(x, {-1}, keep).shape() == Shape{3, 1});
      const std::vector<double> g = grad(sum(y), x).to_vector<double>();
      CHECK(g[0] == Approx(0.6).epsilon(tolerance));
      CHECK(g[2] == 0);
      CHECK(g[4] == Approx(-0.8).epsilon(tolerance));
    }
  const double inf = std::numeric_limits<double>::infinity();
  CHECK(norm(Tensor::from(std::vector<double>{1, -inf})).item() == inf);
  CHECK(std::isnan(norm(Tensor::from(std::vector<double>{1, std::nan("")})).item()));
  CHECK(norm(zeros({2, 0}), {-1}).to_vector() == std::vector<float>{0, 0});
  CHECK(norm(Tensor::from(std::vector<double>{3e200, 4e200})).item() == Approx(5e200));
  CHECK(norm(full({}, -3, {f32})).item() == 3);
}

TEST_CASE("norm: every way through memory, against sums in f64", "[ops][reduce]") {
  const Tensor wide = [] {
    Rng rng(3);
    return normal({3 * 70'001}, 0, 1e30, rng, {f64});
  }();
  for (DType t : {f32, bf16})
    for (const Shape& s : {Shape{1, 1, 1}, {2, 65, 1}, {1, 210'003, 1}, {1, 70'001, 3}, {3, 129, 257}, {2, 3, 5'001}}) {
      INFO(str(t, " ", s));
      const Tensor x = to(reshape(narrow(wide, 0, 0, s.numel()), s), t);
      const auto close = [&](const Shape& dims) {
        const double error = max(abs(to(norm(x, dims), f64) / sqrt(sum(square(to(x, f64)), dims)) - 1)).item();
        CHECK(error < (t == f32 ? 1.2e-7 : 4e-3));
      };
      close({1}), close({2}), close({0, 2}), close({});
      for (double odd : {std::numeric_limits<double>::infinity(), std::nan("")}) {
        const Tensor y = norm(masked_fill(x, reshape(arange(s.numel()) == double(s.numel() - 1), s), odd), {1});
        CHECK(logical_not(isfinite(y)).to_vector<bool>().back());
        CHECK(sum(logical_not(isfinite(y))).item() == 1);
      }
    }
}

TEST_CASE("log_softmax, cross_entropy: logits far from 0 cost no digits", "[ops][loss]") {
  const double from_next = std::log1p(std::exp(1.0)), from_last = std::log1p(std::exp(-1.0));
  for (DType t : {f32, f64})
    for (double far : {1e4, -1e4, 1e6}) {
      INFO(name_of(t) << " " << far);
      const double tolerance = t == f32 ? 1e-6 : 1e-13;
      const Tensor equal = testing::tensor_of({far, far}, {1, 2}, t), x = testing::tensor_of({far, far + 1}, {1, 2}, t);
      const Tensor target = testing::tensor_of({0}, {1}, i64);
      CHECK(cross_entropy(equal, target).item() == Approx(std::log(2.0)).epsilon(tolerance));
      CHECK(cross_entropy(equal, target, {.label_smoothing = 0.1}).item() == Approx(std::log(2.0)).epsilon(tolerance));
      CHECK(cross_entropy(x, target).item() == Approx(from_next).epsilon(tolerance));
      CHECK(cross_entropy(x, target, {.label_smoothing = 0.5}).item() ==
            Approx(0.75 * from_next + 0.25 * from_last).epsilon(tolerance));
      const std::vector<double> y = log_softmax(x).to_vector<double>();
      CHECK(y[0] == Approx(-from_next).epsilon(tolerance));
      CHECK(y[1] == Approx(-from_last).epsilon(tolerance));
    }
}

TEST_CASE("bce_with_logits: a sure and right answer has a loss, and slopes of every order", "[ops][loss]") {
  const auto at = [](double x, double target, DType t) {  // the loss, its slope and that one's
    const Tensor logit = full({}, x, {t}).requires_grad_(), y = bce_with_logits(logit, full({}, target, {t}));
    const Tensor fused = grad(y, logit, {.retain_graph = true});
    const Tensor slope = grad({y}, {logit}, {.create_graph = true})[0];
    CHECK(fused.item() == Approx(slope.item()).epsilon(1e-5));
    return std::vector<double>{y.item(), slope.item(), grad(slope, logit).item()};
  };
  for (DType t : {f32, f64})
    for (double x : {20.0, 40.0, 80.0})
      for (double side : {1.0, -1.0}) {
        INFO(name_of(t) << " " << side * x);
        const double tiny = std::exp(-x), tolerance = t == f32 ? 1e-5 : 1e-8;
        const std::vector<double> right = at(side * x, side > 0, t), wrong = at(side * x, side < 0, t);
        CHECK(right[0] == Approx(tiny).epsilon(tolerance));
        CHECK(right[1] == Approx(-side * tiny).epsilon(tolerance));
        CHECK(wrong[0] == Approx(x).epsilon(tolerance));
        CHECK(wrong[1] == Approx(side).epsilon(tolerance));
      }
  for (double target : {0.0, 0.25, 1.0}) {
    const std::vector<double> middle = at(0, target, f64);
    CHECK(middle[0] == Approx(std::log(2.0)).epsilon(1e-15));
    CHECK(middle[1] == 0.5 - target);
    CHECK(middle[2] == 0.25);
  }
}

TEST_CASE("a quotient by the largest power of two is exact", "[ops]") {
  for (DType t : {f32, bf16, f64}) {
    const double most = t == f64 ? 0x1p1023 : 0x1p127;
    CHECK((full({1}, most, {t}) / most).item() == 1);
    CHECK((full({1}, most, {t}) / (most / 2)).item() == 2);
    CHECK((full({1}, 3, {t}) / (2 / most)).item() == 1.5 * most);
  }
}

TEST_CASE("norms refuse a negative eps", "[ops][norm]") {
  const Tensor x = ones({2, 3}), g = ones({});
  for (double eps : {-1.0, -1e-30, std::nan("")}) {
    CHECK_THROWS_AS(layer_norm(x, {}, {}, eps), ValueError);
    CHECK_THROWS_AS(rms_norm(x, {}, eps), ValueError);
    CHECK_THROWS_AS(scale_norm(x, g, eps), ValueError);
    CHECK_THROWS_AS(scale_norm(x, g, eps, ScaleNormForm::l2_max), ValueError);
  }
  CHECK(rms_norm(x, {}, 0).to_vector() == x.to_vector());
}

TEST_CASE("fold: no windows, or windows of nothing, have a gradient", "[ops][view]") {
  for (const auto& [windows, length] :
       {std::pair{Shape{0, 2, 3}, 2}, {Shape{1, 2, 0}, 0}, {Shape{3, 2, 0}, 4}, {Shape{2, 0, 3}, 5}}) {
    INFO(str(windows));
    const Tensor w = zeros(windows).requires_grad_();
    const Tensor y = fold(w, 0, length, 2);
    CHECK(y.shape() == Shape{length, windows[1]});
    CHECK(sum(y).item() == 0);
    CHECK(grad(sum(y), w).shape() == windows);
  }
  CHECK_THROWS_AS(fold(zeros({1, 3}), 0, 2, 1), ShapeError);
}

TEST_CASE("linear_scan: a log decay of −∞ forgets, and no gradient is NaN", "[linear_scan]") {
  const double inf = std::numeric_limits<double>::infinity();
  Rng rng(5);
  for (bool reverse : {false, true}) {
    std::vector<Tensor> in;
    for (int i = 0; i < 3; ++i) in.push_back(normal({1, 1, 4, 2}, 0, 1, rng, {.dtype = f64}).requires_grad_());
    in.push_back(Tensor::from(std::vector<double>{-inf, -0.5, -inf, -0.25}, {1, 1, 4}).requires_grad_());
    const LinearScanOptions o{.reverse = reverse};
    const Tensor want = linear_scan(in[0], in[1], in[2], in[3], o),
                 got = testing::scan_by_pairs(in[0], in[1], in[2], in[3], o);
    for (std::size_t i = 0; i < 8; ++i)
      CHECK(got.to_vector<double>()[i] == Approx(want.to_vector<double>()[i]).margin(1e-13));
    const auto g = grad({sum(square(want))}, in), h = grad({sum(square(got))}, in);
    for (std::size_t k = 0; k < 3; ++k)
      for (std::size_t i = 0; i < 8; ++i)
        CHECK(h[k].to_vector<double>()[i] == Approx(g[k].to_vector<double>()[i]).margin(1e-12));
    for (double v : h[3].to_vector<double>()) CHECK(std::isfinite(v));
  }
}

TEST_CASE("reductions: slopes where all numbers are equal, 0 or large", "[ops][extremes]") {
  const auto leaf = [](const std::vector<double>& v, DType dtype) {
    return to(Tensor::from(v), dtype).requires_grad_();
  };
  const Tensor equal = leaf({2, 2, 2}, f64), zero = leaf({0, 0}, f64);
  CHECK(testing::max_abs(grad(std_dev(equal), equal)) == 0);
  CHECK(std_dev(Tensor::from<double>({1.0, 3.0})).item() == Approx(std::sqrt(2.0)).epsilon(1e-15));
  const Tensor first = grad(norm(zero), zero, {.create_graph = true});
  CHECK(testing::max_abs(first) == 0);
  CHECK(testing::max_abs(grad(sum(first), zero)) == 0);
  for (double c : {1e3, 1e6, 1e7}) {
    const Tensor large = leaf({c, c}, f32);
    CHECK(testing::max_abs(grad(logsumexp(large, {0}), large) - 0.5) < 1e-7);
  }
  const Tensor hidden = leaf({-INFINITY, -INFINITY}, f64);
  CHECK(testing::max_abs(grad(logsumexp(hidden, {0}), hidden)) == 0);
}

TEST_CASE("losses: what is ignored or infinite", "[ops][extremes]") {
  const Tensor x = Tensor::from<double>({NAN, 0.5, 1.0, INFINITY, 0.25, 0.75}, {3, 2}).requires_grad_();
  const Tensor targets = to(Tensor::from<double>({-100.0, -100.0, 1.0}), i64);
  const Tensor recorded = grad(cross_entropy(x, targets), x, {.create_graph = true});
  CHECK(testing::max_abs(narrow(recorded, 0, 0, 2)) == 0);
  CHECK(testing::max_abs(recorded - grad(cross_entropy(x, targets), x)) < 1e-15);
  CHECK(testing::max_abs(narrow(grad(sum(square(recorded)), x), 0, 0, 2)) == 0);
  const Tensor far = Tensor::from<double>({INFINITY, -INFINITY, 3.0, 0.5}).requires_grad_(), origin = zeros({4}, {f64});
  CHECK(grad(huber_loss(far, origin, 2, Reduction::sum), far).to_vector<double>() ==
        std::vector<double>{2, -2, 2, 0.5});
  const Tensor logits = Tensor::from<double>({-INFINITY, 0.0}, {1, 2});
  CHECK(cross_entropy(logits, zeros({1}, {i64}), {.label_smoothing = 1}).item() == INFINITY);
}

TEST_CASE("formulas of f32: slopes at the ends", "[ops][extremes]") {
  const auto slope = [](auto f, double at) {
    const Tensor x = full({1}, at).requires_grad_();
    return grad(f(x), x).item();
  };
  CHECK(slope([](const Tensor& x) { return rsqrt(x); }, 1.6e-26) == Approx(-2.47e38).epsilon(1e-2));
  CHECK(slope([](const Tensor& x) { return sigmoid(x); }, 20) == Approx(std::exp(-20.0)).epsilon(1e-5));
  CHECK(slope([](const Tensor& x) { return gelu_tanh(x); }, 1e20) == 1);
  CHECK(slope([](const Tensor& x) { return gelu_tanh(x); }, -1e20) == 0);
  const Tensor tiny = full({64}, 1e-40);  // flushed, as every op does
  CHECK(testing::max_abs(pow(tiny, 0.25)) == 0);
  CHECK(min(pow(tiny, -0.25)).item() == INFINITY);
  CHECK(testing::max_abs(pow(neg(tiny), 0.25)) == 0);
}

TEST_CASE("in place: windows that overlap are refused", "[ops][extremes]") {
  Tensor x = Tensor::from<double>({1.0, 2.0, 3.0, 4.0});
  Tensor windows = unfold(x, 0, 2, 1), apart = unfold(x, 0, 2, 2);
  CHECK_THROWS_WITH(add_(windows, ones({3, 2}, {f64})), Contains("share one place in memory"));
  add_(apart, ones({2, 2}, {f64}));
  Tensor turned = transpose(zeros({2, 3}), 0, 1), part = narrow(turned, 0, 1, 2);
  add_(part, ones({2, 2}));
  CHECK(x.to_vector<double>() == std::vector<double>{2, 3, 4, 5});
}

TEST_CASE("attention: a sink of −∞ beside a row that sees no key has no gradient of NaN", "[ops][extremes]") {
  const Tensor q = ones({1, 2, 3, 4}), sink = full({2}, -std::numeric_limits<double>::infinity()).requires_grad_();
  AttentionOptions o{.mask = {.keys = zeros({1, 3}, {boolean})}};
  o.sink = sink;
  CHECK(testing::max_abs(grad(sum(attention(q, q, q, o)), sink)) == 0);
}

TEST_CASE("cross_entropy: rows that are ignored, or all -inf", "[loss]") {
  const Tensor t = Tensor::from<int64_t>({-100, 1}), w = ones({2});
  for (const float bad : {NAN, INFINITY, -INFINITY})
    for (const Tensor& weight : {Tensor(), w}) {
      Tensor x = Tensor({{bad, 1}, {1, 2}}).requires_grad_();
      const Tensor loss = cross_entropy(x, t, {.weight = weight});
      CHECK(loss.item() == Approx(std::log1p(std::exp(-1))));
      for (const bool again : {true, false}) {
        const Tensor g = grad({loss}, {x}, {.create_graph = again, .retain_graph = true})[0];
        CHECK(max(abs(select(g, 0, 0))).item() == 0);
        CHECK(std::isfinite(sum(g).item()));
      }
    }
  for (const double smoothing : {0.0, 0.1, 1.0})
    for (const Tensor& weight : {Tensor(), w}) {
      Tensor x = Tensor({{-INFINITY, -INFINITY}}).requires_grad_();
      const Tensor loss =
          cross_entropy(x, Tensor::from<int64_t>({1}), {.label_smoothing = smoothing, .weight = weight});
      INFO("smoothing " << smoothing << ", weight " << weight.defined());
      if (smoothing == 0 || !weight.defined()) CHECK(loss.item() == INFINITY);
      if (smoothing > 0) continue;
      for (const bool again : {true, false}) {
        const Tensor g = grad({loss}, {x}, {.create_graph = again, .retain_graph = true})[0];
        CHECK(g.to_vector<double>() == std::vector<double>{0, -1});
      }
    }
}

TEST_CASE("prod, cumprod: what leaves the range of f32 on the way comes back", "[reduce]") {
  CHECK(prod(Tensor({0, 1e30f, 1, 1e30f})).item() == 0);
  CHECK(prod(Tensor({1e30f, 1e30f, 1e-30f, 1e-30f})).item() == Approx(1));
  CHECK(cumprod(Tensor({0, 1, 1e30f, 1e30f}), 0).to_vector<double>() == std::vector<double>{0, 0, 0, 0});
  Tensor x = Tensor({0, 1e30f, 1, 1e30f}).requires_grad_();
  const auto g = grad({prod(x)}, {x})[0].to_vector<double>();
  CHECK(std::vector(g.begin() + 1, g.end()) == std::vector<double>{0, 0, 0});
  Tensor empty = Tensor({1, 2}).requires_grad_();
  const Tensor one = prod(narrow(empty, 0, 0, 0));
  CHECK(one.item() == 1);
  CHECK(max(abs(grad({one}, {empty})[0])).item() == 0);
}

TEST_CASE("pad, roll, repeat: the result is a copy where there is nothing to do, too", "[shape]") {
  Tensor x = Tensor({1, 2, 3});
  for (Tensor y : {pad(x, 0, 0, 0), roll(x, 0, 0), roll(x, 3, 0), repeat(x, 1, 0), repeat_interleave(x, 1, 0),
                   cumprod(narrow(x, 0, 0, 1), 0), prod(narrow(x, 0, 0, 1))}) {
    fill_(y, 7);
    CHECK(x.to_vector<double>() == std::vector<double>{1, 2, 3});
  }
}

TEST_CASE("views of all of a tensor are tensors of their own", "[shape]") {
  const std::vector<std::function<Tensor(const Tensor&)>> views{
      [](const Tensor& x) { return narrow(x, 0, 0, 4); }, [](const Tensor& x) { return slice(x, 0, 0, 4); },
      [](const Tensor& x) { return reshape(x, {4}); }, [](const Tensor& x) { return expand(x, {4}); }};
  for (const auto& view : views) {
    Tensor w = ones({4}).requires_grad_(), v = view(w);
    CHECK(v.raw() == w.raw());
    CHECK(grad({sum(v * 2) + sum(w * 3)}, {v})[0].to_vector<double>() == std::vector<double>(4, 2));
    Tensor u = view(w);
    u.register_hook([](const Tensor& g) { return g * 10; });
    backward(sum(u) + sum(w));
    CHECK(w.grad().to_vector<double>() == std::vector<double>(4, 11));
    const Tensor x = ones({4});
    view(x).requires_grad_();
    CHECK_FALSE(x.requires_grad());
  }
}

TEST_CASE("numbers: options at the ends of a dtype", "[extremes]") {
  CHECK_THROWS_WITH(huber_loss(Tensor({2}), Tensor({0}), 1e300), Contains("huber_loss: delta") && Contains("in f32"));
  CHECK(huber_loss(Tensor::from<double>({2}), zeros({1}, {f64}), 1e300).item() == 2);
  const Tensor q = ones({1, 1, 2, 4});
  CHECK_THROWS_WITH(attention(q, q, q, {.scale = 1e300}), Contains("scale must be finite in f32"));
  for (const double cap : {1e300, 1e-300}) CHECK_THROWS_WITH(attention(q, q, q, {.softcap = cap}), Contains("softcap"));
  CHECK(linspace(-1e308, 1e308, 3, {f64}).to_vector<double>() == std::vector<double>{-1e308, 0, 1e308});
  CHECK(linspace(-1e308, 1e308, 2, {f64}).to_vector<double>() == std::vector<double>{-1e308, 1e308});
  CHECK(linspace(-1e308, 1e308, 1, {f64}).item() == -1e308);
  CHECK(var(Tensor({2, 3, 7}), {}, false, 5).item() == INFINITY);

  const Tensor a = Tensor({1e8f}), b = Tensor({1});
  CHECK(lerp(a, b, 1).item() == 1);
  CHECK(lerp(a, b, 0).item() == 1e8);
  for (const double w : {0.0, 0.3, 0.5, 0.8, 1.0}) {
    Tensor from = Tensor::from<double>({2}).requires_grad_(), end = Tensor::from<double>({5}).requires_grad_(),
           share = Tensor::from<double>({w}).requires_grad_();
    const std::vector<Tensor> g = grad({lerp(from, end, share)}, {from, end, share});
    CHECK(g[0].item() == Approx(1 - w));
    CHECK(g[1].item() == Approx(w).margin(1e-15));
    CHECK(g[2].item() == Approx(3));
  }

  const Tensor put = scatter(Tensor({5, 5}), 0, Tensor::from<int64_t>({0, 0}), Tensor({3, -0.0f}));
  CHECK(put.to_vector<double>() == std::vector<double>{0, 5});
  CHECK(std::signbit(put.to_vector<double>()[0]));

  for (const double sign : {1.0, -1.0}) {
    const Tensor x = Tensor::from<double>({sign});
    Tensor beyond = Tensor::from<double>({-sign * INFINITY}).requires_grad_();
    const Tensor y = remainder(x, beyond);
    CHECK(y.item() == -sign * INFINITY);
    CHECK(grad({y}, {beyond})[0].item() == 1);
  }
}

TEST_CASE("i64: numbers beside it are exact or refused", "[extremes]") {
  constexpr int64_t past = (int64_t{1} << 53) + 1, largest = std::numeric_limits<int64_t>::max(),
                    least = std::numeric_limits<int64_t>::min();
  const Tensor ids = Tensor::from<int64_t>({past}), ends = Tensor::from<int64_t>({least, least + 1, largest});
  const Tensor yes = Tensor::from<bool>({true});
  for (const auto& f : std::vector<std::function<void()>>{
           [&] { eq(ids, 0x1p53); }, [&] { gt(ids, 0x1p53); }, [&] { where(yes, 0x1p60, ids); },
           [&] { maximum(ids, -0x1p53); }, [&] { masked_fill(ids, yes, 0x1p53); }, [&] { full({2}, 0x1p53, {i64}); }})
    CHECK_THROWS_WITH(f(), Contains("may have been rounded") && Contains("Tensor::from<int64_t>"));
  const auto holds = [](const Tensor& y) { return to(y, f64).to_vector<double>(); };
  using V = std::vector<double>;
  CHECK(holds(gt(ids, 0x1p53 - 1)) == V{1});
  CHECK(holds(lt(ends, 0x1p63)) == V{1, 1, 1});
  CHECK(holds(eq(ends, -0x1p63)) == V{1, 0, 0});
  CHECK(holds(gt(ends, -0x1p63)) == V{0, 1, 1});
  CHECK(holds(ge(ends, -INFINITY)) == V{1, 1, 1});
  CHECK(holds(ne(ends, NAN)) == V{1, 1, 1});
  CHECK(holds(lt(ends, 0.5)) == V{1, 1, 0});
  CHECK(full({1}, static_cast<double>(largest), {i64}).item<int64_t>() == largest);
}
