// Elementwise ops of transposed operands: the bits of their copies, whether all are transposed alike or not.
#include <sluice/ops/elementwise/elementwise.h>

#include "support/approx.h"
#include "support/catch.h"

#include <sluice/autograd/engine.h>
#include <sluice/core/number/random.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/shape/view.h>

#include <vector>

using namespace sluice;
using sluice::testing::same_bits;

TEST_CASE("elementwise: operands that are transposed, alike or not", "[elementwise]") {
  Rng rng(1);
  for (DType t : {f32, f64, bf16, i64})
    for (const Shape& shape : {Shape{131, 70}, Shape{3, 67, 65}, Shape{40, 33, 17}, Shape{2, 9000}}) {
      const Tensor a = to(normal(shape, 0, 90, rng), t), b = to(normal(shape, 0, 90, rng), t);
      const Tensor mask = bernoulli(shape, 0.5, rng);
      std::vector<Shape> orders{{1, 0}, {0, 1}};
      if (shape.rank() == 3) orders = {{2, 1, 0}, {1, 2, 0}, {2, 0, 1}, {0, 2, 1}};
      for (const Shape& order : orders) {
        const auto view = [&](const Tensor& x) { return permute(x, order); };
        const auto part = [&](const Tensor& x) { return flip(slice(view(x), 0, 1, std::nullopt, 2), {1}); };
        const auto same = [&](const Tensor& x, const Tensor& y, const Tensor& m) {
          INFO(name_of(t) << " " << str(x.shape()) << " by " << str(x.strides()) << ", " << str(y.strides()));
          const Tensor p = clone(contiguous(x)), q = clone(contiguous(y)), n = clone(contiguous(m));
          CHECK(same_bits(x - y, p - q));
          CHECK((x - y).is_contiguous());
          CHECK(same_bits(where(m, x, y), where(n, p, q)));
          CHECK(same_bits(x * 3.0, p * 3.0));
        };
        same(view(a), view(b), view(mask));
        same(part(a), part(b), part(mask));
        same(view(a), contiguous(view(b)), view(mask));
        same(contiguous(view(a)), view(b), contiguous(view(mask)));
        if (shape.rank() == 3 && order == Shape{1, 2, 0})  // of one shape, in another order
          same(view(a), transpose(contiguous(transpose(view(b), 1, 2)), 1, 2), view(mask));
      }
    }
}

TEST_CASE("elementwise: gradients of operands and gradients that are transposed alike", "[elementwise]") {
  Rng rng(2);
  for (DType t : {f32, f64, bf16}) {
    const Tensor a = transpose(normal({140, 75}, 0, 1, rng, {t}), 0, 1),
                 b = transpose(normal({140, 75}, 0, 1, rng, {t}), 0, 1);
    const Tensor g = transpose(normal({140, 75}, 0, 1, rng, {t}), 0, 1);
    const auto slopes = [](const Tensor& x, const Tensor& y, const Tensor& of) {
      Tensor u = x.detach(), v = y.detach();
      u.requires_grad_(), v.requires_grad_();
      return grad({u / v}, {u, v}, {.grad_outputs = {of}});
    };
    const auto got = slopes(a, b, g), want = slopes(contiguous(a), contiguous(b), contiguous(g));
    CHECK(same_bits(got[0], want[0]));
    CHECK(same_bits(got[1], want[1]));
  }
}
