// The tutorial's GAU: sizes and errors. units_reference.cpp says what it computes.
#include "support/catch.h"

#include <sluice/layers/gau/tutorial_gau.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/rows/reduce.h>

using namespace sluice;

TEST_CASE("tutorial_gau: number of parameters, defaults, refusals", "[tutorial_gau]") {
  Rng rng(1);
  const int64_t d = 24, e = 40;  // 2.5·d·e, and d·e/2 for the output map
  CHECK(count(TutorialGau({.dim = d, .expansion = e}, rng)) == 5 * d * e / 2);
  CHECK(count(TutorialGau({.dim = d, .expansion = e, .project_out = true}, rng)) == 3 * d * e);
  const TutorialGau g({.dim = 6}, rng);
  CHECK(g.options.expansion == 12);
  CHECK(g(zeros({2, 3, 6})).shape() == Shape{2, 3, 6});  // e = 2·dim stacks without an output map
  CHECK_THROWS_AS(TutorialGau({.dim = 6, .expansion = 7}, rng), ValueError);
}
