#include "support/catch.h"

#include <sluice/sluice.h>

using namespace sluice;

TEST_CASE("forgetting attention: the definition, a gate for each query head", "[heads]") {
  Rng rng(3);
  const ForgettingAttention f({.heads = {.dim = 6, .heads = 4, .kv_heads = 2, .head_dim = 3, .dtype = f64}}, rng);
  const Tensor x = normal({2, 7, 6}, 0, 1, rng, {f64}), c = cumsum(log(sigmoid(transpose(f.forget(x), 1, 2))), -1);
  const auto [q, k, v] = f.heads.project(f.options.heads, x);
  Tensor s =
      matmul(q, transpose(repeat_interleave(k, 2, 1), -1, -2)) / std::sqrt(3.0) + unsqueeze(c, -1) - unsqueeze(c, -2);
  s = masked_fill(s, logical_not(causal_mask(7, 7)), -INFINITY);
  const Tensor y = f.heads.finish(f.options.heads, matmul(softmax(s, -1), repeat_interleave(v, 2, 1)), x);
  CHECK(max(abs(f(x) - y)).item() < 1e-13);
}
