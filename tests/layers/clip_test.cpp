#include <sluice/layers/train/clip.h>

#include <sluice/autograd/engine.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/rows/reduce.h>
#include <sluice/ops/shape/view.h>

#include "support/catch.h"

#include <cmath>

using namespace sluice;
using Doubles = std::vector<double>;

namespace {

Tensor leaf(const Doubles& values, const Shape& shape, DType dtype = f64) {
  Tensor t = to(Tensor::from(values, shape), dtype);
  return t.requires_grad_();
}

}  // namespace

TEST_CASE("clip: clip_grad_norm scales all gradients by one factor", "[clip]") {
  Tensor a = leaf({0, 0}, {2}), b = leaf({0}, {1}), none = leaf({0}, {1});
  a.set_grad(Tensor::from<double>({3, 4}));
  b.set_grad(Tensor::from<double>({12}));
  CHECK(clip_grad_norm({a, b, none}, 13) == 13);
  CHECK(a.grad().to_vector<double>() == Doubles{3, 4});
  const std::byte* memory = a.grad().raw();
  const uint32_t version = a.grad().version();
  CHECK(clip_grad_norm({{"a", a}, {"b", b}}, 6.5) == 13);
  CHECK(a.grad().raw() == memory);
  CHECK(a.grad().version() == version + 1);  // edited: what saved it must notice
  CHECK(a.grad().to_vector<double>() == Doubles{1.5, 2});
  CHECK(b.grad().to_vector<double>() == Doubles{6});
  CHECK_FALSE(none.grad().defined());

  b.set_grad(Tensor::from<double>({NAN}));
  CHECK(std::isnan(clip_grad_norm({a, b}, 1)));
  b.set_grad(Tensor::from<double>({-INFINITY}));
  CHECK(clip_grad_norm({a, b}, 1) == INFINITY);
  CHECK(a.grad().to_vector<double>() == Doubles{1.5, 2});
  CHECK_THROWS_AS(clip_grad_norm({a, b}, 0), ValueError);
  CHECK_THROWS_AS(clip_grad_norm({a, b}, NAN), ValueError);
  CHECK_THROWS_AS(clip_grad_norm({a, b, a}, 1), ValueError);

  Tensor far = leaf({0, 0}, {2}, f32);  // the factor 7e-39 is no normal f32
  far.set_grad(full({2}, 1e38));
  CHECK(clip_grad_norm({far}, 1) == Approx(1.41421356e38));
  for (const double g : far.grad().to_vector<double>()) CHECK(g == Approx(0.70710678));

  Tensor big = leaf(Doubles(100'000, 0), {100'000}, f32);
  big.set_grad(full({100'000}, 0.1));
  CHECK(clip_grad_norm({big}, 1e9) == Approx(std::sqrt(1e5) * static_cast<double>(0.1f)).epsilon(1e-14));
}

TEST_CASE("clip: clipping leaves alone what others can see", "[clip]") {
  Tensor a = leaf({0, 0}, {2}), b = leaf({0, 0}, {2});
  const Tensor shared = Tensor::from<double>({3, 4});
  backward(a + b, shared);  // the same tensor arrives at both
  CHECK(clip_grad_norm({a, b}, std::sqrt(50) / 2) == Approx(std::sqrt(50)).epsilon(1e-15));
  for (const Tensor& x : {a, b}) {
    CHECK(x.grad().to_vector<double>()[0] == Approx(1.5).epsilon(1e-15));
    CHECK(x.grad().to_vector<double>()[1] == Approx(2).epsilon(1e-15));
  }
  CHECK(shared.to_vector<double>() == Doubles{3, 4});
  // Two gradients that overlap in memory: each is clipped once, and nobody's numbers change beneath them.
  const Tensor memory = Tensor::from<double>({3, 4, 12});
  const auto overlap = [&] { a.set_grad(narrow(memory, 0, 0, 2)), b.set_grad(narrow(memory, 0, 1, 2)); };
  overlap();
  CHECK(clip_grad_norm({a, b}, std::sqrt(185) / 2) == Approx(std::sqrt(185)).epsilon(1e-15));
  CHECK(max(abs(a.grad() - Tensor::from<double>({1.5, 2}))).item() < 1e-15);
  CHECK(max(abs(b.grad() - Tensor::from<double>({2, 6}))).item() < 1e-15);
  overlap();
  clip_grad_value({a, b}, 3.5);
  CHECK(a.grad().to_vector<double>() == Doubles{3, 3.5});
  CHECK(b.grad().to_vector<double>() == Doubles{3.5, 3.5});
  CHECK(memory.to_vector<double>() == Doubles{3, 4, 12});
}

TEST_CASE("clip: clip_grad_value limits each element", "[clip]") {
  Tensor a = leaf({0, 0, 0, 0, 0}, {5}, f32);
  a.set_grad(Tensor({-3, -0.5, 0, INFINITY, NAN}));
  const uint32_t version = a.grad().version();
  clip_grad_value({a}, 1);
  CHECK(a.grad().version() == version + 1);
  const auto g = a.grad().to_vector<double>();
  CHECK(Doubles(g.begin(), g.begin() + 4) == Doubles{-1, -0.5, 0, 1});
  CHECK(std::isnan(g[4]));
  CHECK_THROWS_AS(clip_grad_value({a}, 0), ValueError);
  clip_grad_value(std::vector<NamedTensor>{{"a", a}}, 0.25);
  CHECK(a.grad().to_vector<double>()[3] == 0.25);
}
