// RoPE of heads where a projection left them: the numbers of a copy, in the memory of x.
#include "support/approx.h"
#include "support/catch.h"

#include <sluice/autograd/engine.h>
#include <sluice/core/number/random.h>
#include <sluice/ops/rows/rope.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/shape/view.h>

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
