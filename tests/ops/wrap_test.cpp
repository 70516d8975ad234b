#include "support/catch.h"

#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/index/gather.h>
#include <sluice/ops/rows/reduce.h>
#include <sluice/ops/scan/scan.h>
#include <sluice/ops/shape/view.h>

#include <limits>

using namespace sluice;

TEST_CASE("integers wrap around in elementwise ops", "[ops]") {
  constexpr int64_t low = std::numeric_limits<int64_t>::min(), high = std::numeric_limits<int64_t>::max();
  const Tensor x = Tensor::from<int64_t>({low, high}), y = Tensor::from<int64_t>({-1, 3});
  CHECK((x + y).to_vector<int64_t>() == std::vector<int64_t>{high, low + 2});
  CHECK((x * y).to_vector<int64_t>() == std::vector<int64_t>{low, high - 2});
  CHECK((y - x).to_vector<int64_t>() == std::vector<int64_t>{high, low + 4});
  CHECK((x * 4).to_vector<int64_t>() == std::vector<int64_t>{0, -4});
  CHECK((-x).to_vector<int64_t>() == std::vector<int64_t>{low, -high});
}

TEST_CASE("integers wrap around in sums", "[ops]") {
  constexpr int64_t low = std::numeric_limits<int64_t>::min(), high = std::numeric_limits<int64_t>::max();
  const Tensor x = Tensor::from<int64_t>({high, 1, 1});
  CHECK(sum(x).item<int64_t>() == low + 1);
  CHECK(sum(reshape(x, {3, 1}), {0}).to_vector<int64_t>() == std::vector<int64_t>{low + 1});
  CHECK(cumsum(x, 0).to_vector<int64_t>() == std::vector<int64_t>{high, low, low + 1});
  CHECK(cumsum(reshape(x, {3, 1}), 0).to_vector<int64_t>() == std::vector<int64_t>{high, low, low + 1});
  const Tensor place = Tensor::from<int64_t>({0, 0, 0}), y = Tensor::from<int64_t>({high});
  CHECK(scatter_add(y, 0, place, x).to_vector<int64_t>() == std::vector<int64_t>{-1 + 1 + 0});
  CHECK(index_add(y, 0, place, x).to_vector<int64_t>() == std::vector<int64_t>{0});
}
