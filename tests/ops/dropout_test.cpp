// What dropout draws, beside its rows in support/cases_loss.cpp.
#include "support/approx.h"
#include "support/catch.h"

#include <sluice/ops/shape/create.h>
#include <sluice/ops/elementwise/dropout.h>

using namespace sluice;
using namespace sluice::testing;

TEST_CASE("dropout: no two calls share a block of random words", "[ops][dropout]") {
  for (int64_t n : {0, 1, 3, 4, 5, 8, 63, 65}) {
    Rng rng(3);
    dropout(ones({n}), 0.5, rng);
    CHECK(rng.offset() == static_cast<uint64_t>((n + 3) / 4));
  }
  Rng idle(3);
  dropout(ones({9}), 0, idle);
  CHECK(idle.offset() == 0);
}
