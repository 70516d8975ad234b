// RoPE of heads where a projection left them: the numbers of a copy, in the memory of x; and its angles.
#include "support/approx.h"
#include "support/catch.h"

#include <sluice/autograd/engine.h>
#include <sluice/core/number/random.h>
#include <sluice/ops/rows/rope.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/shape/view.h>

#include <cmath>
#include <vector>

using namespace sluice;
using namespace sluice::testing;

TEST_CASE("rope: heads are rotated where they lie, forward and backward", "[rope]") {
  for (const DType t : {f32, f64, bf16})
    for (const RopePairing pairing : {RopePairing::half, RopePairing::interleaved})
      for (const int64_t width : {10, 66}) {
        INFO(str(t) << ", interleaved " << (pairing == RopePairing::interleaved) << ", width " << width);
        Rng rng(1);
        // [batch, n, heads, d] in memory; two channels stay as they are.
        const Tensor rows = normal({2, 7, 3, width}, 0, 1, rng, {t}), weight = normal({2, 3, 7, width}, 0, 1, rng, {t});
        RopeOptions o;
        o.rot_dim = width - 2, o.offset = 5, o.pairing = pairing;
        Tensor heads = transpose(rows, 1, 2).detach().requires_grad_(),
               copy = contiguous(transpose(rows, 1, 2)).detach().requires_grad_();
        const Tensor y = rope(heads, o), want = rope(copy, o);
        CHECK(same_bits(contiguous(y), want));
        CHECK(transpose(y, 1, 2).is_contiguous());
        CHECK(want.is_contiguous());
        backward(y, transpose(contiguous(transpose(weight, 1, 2)), 1, 2)), backward(want, weight);
        CHECK(same_bits(contiguous(heads.grad()), copy.grad()));
      }
}

TEST_CASE("rope: angles at positions near and far", "[rope]") {
  const std::vector<int64_t> at{0, 1, 1000, 1572863, 3000000, int64_t{1} << 40};
  const int64_t n = std::ssize(at), half = 35;
  const Tensor x = cat({ones({n, half}, {f64}), zeros({n, half}, {f64})}, 1);  // becomes cos | sin
  const std::vector<double> y = rope_at(x, Tensor::from(at), {.base = 100}).to_vector<double>();
  const std::vector<double> frequency = rope_frequencies(2 * half, 100);
  for (int64_t i = 0; i < n; ++i)
    for (int64_t k = 0; k < half; ++k) {
      const auto of = [&](int64_t c) { return y[static_cast<std::size_t>(i * 2 * half + c)]; };
      const double angle =
          static_cast<double>(at[static_cast<std::size_t>(i)]) * frequency[static_cast<std::size_t>(k)];
      INFO("position " << at[static_cast<std::size_t>(i)] << " pair " << k);
      CHECK(std::abs(of(k) - std::cos(angle)) < 2e-16);
      CHECK(std::abs(of(half + k) - std::sin(angle)) < 2e-16);
    }
}
