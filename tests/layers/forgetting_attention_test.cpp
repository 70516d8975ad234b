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

TEST_CASE("forgetting attention: the Pro block", "[heads]") {
  Rng rng(3);
  ForgettingAttentionOptions o =
      forgetting_pro_options({.dim = 6, .heads = 4, .kv_heads = 2, .head_dim = 3, .value_dim = 5, .dtype = f64});
  const ForgettingAttention plain({.heads = o.heads}, rng), pro(o, rng);
  const int64_t shifts = 2 * 6 * 2, norms = (4 + 2) * 3 + 4 * 5, gate = 6 * 4 * 5;
  CHECK(count(pro) == count(plain) + shifts + norms + gate);
  o.shared_qk_norm = true;
  CHECK(count(ForgettingAttention(o, rng)) == count(pro) - (4 + 2) * 3 + 2 * 3);
  CHECK(cost(o, 9).state == cost(ForgettingAttentionOptions{.heads = o.heads}, 9).state + 2 * (3 + 5));
  // What stands in padding is nothing to the token behind it.
  const Tensor x = normal({1, 7, 6}, 0, 1, rng, {f64}), mask = unsqueeze(arange(7) != 2.0, 0);
  const Tensor padded = where(unsqueeze(mask, -1), x, 5), other = where(unsqueeze(mask, -1), x, -3);
  const Tensor y = pro(padded, {.key_mask = mask}), z = pro(other, {.key_mask = mask});
  CHECK(max(abs(masked_fill(y - z, unsqueeze(logical_not(mask), -1), 0))).item() == 0);
}
