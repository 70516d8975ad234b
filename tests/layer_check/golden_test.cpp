// Some golden cases through the binary and its files; golden/golden_test.cpp runs all of them without.
#include "golden/golden.h"
#include "layer_check/case.h"
#include "support/catch.h"

using namespace sluice;
using namespace sluice::testing;

TEST_CASE("layer_check: golden cases with padding, in a stream, and with gradients", "[layer_check]") {
  for (const char* name : {"gau_pad_su", "flash_c1_C3_su", "grad_qwen_G1_elementwise"})
    for (const GoldenRun& run : golden_runs(name)) {
      const std::map<std::string, Tensor> written =
          outputs({run.file.metadata.at("layer"), run.file.metadata.at("config"), run.file.tensors});
      for (const GoldenResult& r : run.results) {
        INFO(run.name << run.label << ": " << r.name << ", which must be " << r.array);
        CHECK(run.error(r, written) <= r.tolerance);
      }
    }
}
