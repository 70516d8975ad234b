// Runs every reference case through the layers of layer_check, in this process.
#include "../../examples/layer_check/run.h"
#include "golden/golden.h"
#include "support/approx.h"
#include "support/catch.h"
#include "support/folders.h"

#include <sluice/core/error.h>

#include <cstdio>
#include <set>

using namespace sluice;
using namespace sluice::testing;

namespace {

/// One line of golden_table.txt, which is written and printed when the program ends.
struct Row {
  std::string name;
  double error, tolerance, error_f32, tolerance_f32;
};

struct Table {
  std::vector<Row> rows;

  void print(std::FILE* out) const {
    std::fprintf(out, "%-40s %12s %12s %12s %7s\n", "golden case, array", "f64 error", "f32 error", "f32 allowed",
                 "used");
    for (const Row& r : rows)
      std::fprintf(out, "%-40s %12.2e %12.2e %12.2e %5.1f %%%s\n", r.name.c_str(), r.error, r.error_f32,
                   r.tolerance_f32, r.tolerance_f32 > 0 ? 100 * r.error_f32 / r.tolerance_f32 : 0.0,
                   r.error <= r.tolerance && r.error_f32 <= r.tolerance_f32 ? "" : "  FAILED");
  }
  ~Table() {
    if (rows.empty()) return;
    print(stdout);
    if (test_device() != cpu) return;
    if (std::FILE* f = std::fopen((output_folder() + "/golden_table.txt").c_str(), "w")) {
      print(f);
      std::fclose(f);
    }
  }
};

}  // namespace

TEST_CASE("golden: every reference case, in f64 and f32", "[golden]") {
  static Table table;  // its destructor writes it
  for (const GoldenRun& run : golden_runs()) {
    INFO("case " << run.name << run.label);
    const auto compute = [&](DType dtype) { return layer_check::run_case(run.file, {dtype, test_device()}).tensors; };
    const std::map<std::string, Tensor> in_f64 = compute(f64), in_f32 = compute(f32);
    CHECK_FALSE(run.results.empty());
    for (const GoldenResult& r : run.results) {
      INFO(r.name << ", which must be " << r.array);
      const Row row{run.name + ", " + r.array + run.label, run.error(r, in_f64), r.tolerance, run.error(r, in_f32),
                    r.tolerance_f32};
      CHECK(row.error <= row.tolerance);
      CHECK(row.error_f32 <= row.tolerance_f32);
      table.rows.push_back(row);
    }
  }
}

TEST_CASE("golden: the loader says what is wrong", "[golden]") {
  CHECK_THROWS_AS(golden_runs("no such case"), IOError);
  std::set<std::string> names;
  for (const GoldenRun& run : golden_runs()) CHECK(names.insert(run.name + run.label + run.results.at(0).array).second);
  const GoldenRun run = golden_runs("gau_pad_su").at(0);
  std::map<std::string, Tensor> written{{"output", run.results.at(0).want}};
  CHECK(run.error(run.results[0], written) == 0);
  written["output"] = -written["output"];
  CHECK(run.error(run.results[0], written) > 1e-3);
  CHECK(std::isinf(run.error(run.results[0], {})));
}
