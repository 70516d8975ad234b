// Which lines of memory a scan fetches ahead: all of the rows it will read, each once, and none outside of tensors.
#include <sluice/ops/scan/rows_ahead.h>

#include <sluice/ops/shape/create.h>
#include <sluice/ops/shape/view.h>

#include "support/catch.h"

#include <vector>

using namespace sluice;
using detail::HeadView;

TEST_CASE("rows ahead: part by part all lines of the rows, and no others", "[scan]") {
  constexpr int64_t kBatch = 2, kSteps = 5, kHeads = 3, kWidth = 20;  // a row begins two lines of 16 numbers
  const Tensor x = transpose(zeros({kBatch, kSteps, kHeads, kWidth}), 1, 2), y = zeros({kBatch, kHeads, kSteps, 4});
  const HeadView<const float> rows(x), contiguous(y);
  detail::RowsAhead<float> ahead;
  const auto lines = [&](int64_t first, int64_t count, int64_t parts) {  // of each call, as numbers from x's start
    ahead.begin(first, count, kSteps, parts);
    ahead.add(1, 2, 0, kWidth, rows, contiguous), ahead.add(0, 1, 4, 10, rows);
    std::vector<std::vector<int64_t>> of(static_cast<std::size_t>(parts) + 1);
    for (auto& part : of) ahead.each_line([&](const float* line) { part.push_back(line - x.data<float>()); });
    return of;
  };
  const auto step = [](int64_t t) {
    const int64_t full = ((kSteps + t) * kHeads + 2) * kWidth;
    return std::vector<int64_t>{full, full + 16, (t * kHeads + 1) * kWidth + 4};
  };
  const auto both = [&](int64_t t) {
    std::vector<int64_t> of = step(t);
    for (int64_t at : step(t + 1)) of.push_back(at);
    return of;
  };
  const std::vector<int64_t> none;
  CHECK(lines(0, 3, 2) == std::vector{both(0), step(2), none});
  CHECK(lines(3, 4, 2) == std::vector{both(3), none, none});  // the last chunk is shorter
  CHECK(lines(-2, 4, 1) == std::vector{both(0), none});
  CHECK(lines(-4, 4, 1) == std::vector{none, none});  // before the first, behind the last
  CHECK(lines(kSteps, 4, 1) == std::vector{none, none});
}
