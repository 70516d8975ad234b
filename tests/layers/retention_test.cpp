// Retention and GroupNorm: defaults, errors. linear_layers_reference.cpp says what they compute.
#include "layers/linear_attention_reference.h"

#include <sluice/autograd/engine.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/rows/reduce.h>

using namespace sluice;
using namespace sluice::testing;

TEST_CASE("GroupNorm: errors", "[retention]") {
  CHECK_THROWS_WITH(GroupNorm({2, 3})(ones({4, 5})), Contains("[4,5]") && Contains("6"));
  CHECK_THROWS_WITH(GroupNorm({2, 3, NormKind::scale}), Contains("rms_plain"));
}

TEST_CASE("Retention: defaults, counts, errors", "[retention]") {
  Rng rng(1);
  const Retention r({.dim = 64}, rng);
  CHECK(r.key_dim() == 8);
  CHECK(r.value_dim() == 16);
  CHECK(count(r) == 64 * 64 * (1 + 1 + 2 + 2 + 2) + 2 * 128);  // GroupNorm: 128 channels
  for (std::size_t h = 0; h < 8; ++h) {
    CHECK(r.options.gamma[h] == 1 - std::pow(2.0, -5.0 - static_cast<double>(h)));
    CHECK(std::exp(r.log_gamma.to_vector<double>()[h]) == Approx(r.options.gamma[h]).epsilon(1e-7));
  }
  CHECK_FALSE(r.log_gamma.requires_grad());
  CHECK_THROWS_WITH(Retention({.dim = 8, .heads = 3}, rng), Contains("heads=3") && Contains("expand_k"));
  CHECK_THROWS_WITH(Retention({.dim = 8, .heads = 2, .expand_v = 0.3}, rng), Contains("expand_v"));
  CHECK_THROWS_WITH(Retention({.dim = 8, .heads = 8}, rng), Contains("pairs"));
  CHECK_NOTHROW(Retention({.dim = 8, .heads = 8, .use_rope = false}, rng));
  CHECK_THROWS_WITH(Retention({.dim = 8, .heads = 2, .gamma = {0.5}}, rng), Contains("heads=2"));
}
