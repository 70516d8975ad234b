// What tests compare with (support/approx.h): no bound admits what cannot be compared.
#include "support/approx.h"
#include "support/catch.h"
#include "support/worse.h"

#include <sluice/ops/elementwise/elementwise.h>

#include <limits>
#include <utility>

using namespace sluice;
using namespace sluice::testing;

TEST_CASE("approx: NaN, an infinite difference and another shape are neither close nor far", "[support]") {
  constexpr float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
  const Tensor x({1, 2, 3}), with_nan({1, nan, 3}), with_inf({1, inf, 3}), longer({1, 2, 3, 4});
  CHECK(max_abs_diff(x, Tensor({1, 2.5f, 3})) == 0.5);
  CHECK(max_abs_diff(with_inf, Tensor({1, inf, 2})) == 1);
  CHECK(max_abs(with_inf) == inf);
  const std::pair<Tensor, Tensor> odd[] = {{x, with_nan},         {with_nan, x},      {with_nan, with_nan},
                                           {x, with_inf},         {with_inf, x},      {x, longer},
                                           {with_inf, -with_inf}, {longer, with_inf}, {with_nan, longer}};
  for (const auto& [got, want] : odd) {
    CHECK_FALSE(max_abs_diff(got, want) <= 1e-6 * max_abs(want));
    CHECK_FALSE(max_abs_diff(got, want) > 1e-6);
  }
  CHECK_FALSE(max_abs(with_nan) < 1);
  CHECK(worse(2.0f, 1.0f) == 2);
  CHECK(worse(1.0f, 2.0f) == 2);
  CHECK_FALSE(worse(worse(1.0f, nan), 2.0f) < 3);  // wherever it stands
}

TEST_CASE("approx: a bound that a NaN or an infinity has made admits nothing", "[support]") {
  constexpr float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
  for (const float odd : {nan, inf}) {
    const Tensor want({1, odd, 3}), got({7, odd, 3});
    CHECK(all_close(want, want, 1e-6, max_abs(want)));
    CHECK_FALSE(all_close(got, want, 1e-6, max_abs(want)));
  }
  CHECK_FALSE(all_close({1, 2}, {1, 2, 3}, {1, 1, 1}));
  CHECK_FALSE(all_close({1, 2, 3}, {1, 2}, {1, 1}));
  CHECK(all_close({1, 2}, {1, 2.5}, {0, 1}).used == 0.5);
}
