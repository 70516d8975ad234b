// A file of its own: programs without Catch2 use the samples, too.
#include "support/catch.h"
#include "support/delta_samples.h"

#include <sluice/ops/basic.h>

#include <algorithm>

namespace sluice::testing {

void check_delta(const std::vector<Tensor>& got, const std::vector<Tensor>& want, double tolerance,
                 const std::string& text) {
  REQUIRE(got.size() == want.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    const Tensor x = to(to(got[i], cpu), f64), y = to(want[i], f64);
    const double off = max_abs_diff(x, y), largest = y.numel() ? std::max(0.1, max_abs(y)) : 1;
    if (!(off <= tolerance * largest))
      FAIL_CHECK(text << ": result " << i << " is off by " << off << " of " << largest);
  }
}

}  // namespace sluice::testing
