// Runs every reference case, and holds the runners of the plain functions: norms, activations, positions.
#include "golden/golden.h"
#include "support/approx.h"
#include "support/catch.h"

#include <sluice/ops/elementwise/activation.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/rows/norm.h>
#include <sluice/ops/rows/rope.h>

#include <cmath>
#include <filesystem>
#include <set>

using namespace sluice;
using namespace sluice::testing;

namespace {

const bool norms = register_golden({"norms", [](const GoldenCase& c, DType dtype) -> GoldenResults {
                                      const Tensor x = c.get("x", dtype);
                                      const double eps = c.number("eps"), g = c.number("g");
                                      return {{"layer", layer_norm(x, {}, {}, eps)},
                                              {"rms", rms_norm(x, {}, eps)},
                                              {"scale", scale_norm(x, full({1}, g, {dtype}), eps)}};
                                    }});

const bool acts = register_golden({"acts", [](const GoldenCase& c, DType dtype) -> GoldenResults {
                                     GoldenResults results;
                                     const Tensor x = c.get("x", dtype);
                                     for (const std::string& array : c.arrays())
                                       if (array != "x")
                                         results.emplace_back(array, activate(from_name<Act>(array), x));
                                     return results;
                                   }});

const bool ropes = register_golden({"rope", [](const GoldenCase& c, DType dtype) -> GoldenResults {
                                      const Tensor x = c.get("x", dtype);
                                      return {{"half", rope(x)},
                                              {"inter", rope(x, RopeOptions{.pairing = RopePairing::interleaved})},
                                              {"half_rot4", rope(x, RopeOptions{.rot_dim = 4})}};
                                    }});

// Offset by offset, and as the matrices that a layer uses. Buckets are integers: no tolerance.
const bool buckets =
    register_golden({"t5_buckets",
                     [](const GoldenCase& c, DType) -> GoldenResults {
                       GoldenResults results;
                       const std::vector<double> rel = c.get("rel").to_vector<double>();
                       for (bool causal : {false, true}) {
                         const T5BucketOptions o{.causal = causal};
                         const auto reach = static_cast<int64_t>(rel.back());
                         const Tensor matrix = t5_buckets(1, 2 * reach + 1, o, reach),
                                      square = t5_buckets(reach + 1, reach + 1, o);
                         const auto row = matrix.to_vector<int64_t>(), all = square.to_vector<int64_t>();
                         std::vector<double> got;
                         for (double r : rel) {
                           const auto offset = static_cast<int64_t>(r);
                           const int64_t bucket = t5_bucket(offset, o);
                           const int64_t i = std::max<int64_t>(0, -offset), j = i + offset;
                           const bool agree = row[static_cast<std::size_t>(offset + reach)] == bucket &&
                                              all[static_cast<std::size_t>(i * (reach + 1) + j)] == bucket;
                           got.push_back(agree ? static_cast<double>(bucket) : NAN);
                         }
                         results.emplace_back(causal ? "causal" : "bidir", Tensor::from(got));
                       }
                       return results;
                     },
                     0, 0});

double largest_error(const Tensor& got, const Tensor& want) {
  const double e = max_abs_diff(to(got, f64), want);
  return std::isnan(e) ? INFINITY : e;
}

}  // namespace

TEST_CASE("golden: every reference case, in f64 and f32", "[golden]") {
  CHECK_FALSE(golden_cases().empty());
  for (const GoldenCase& c : golden_cases()) {
    INFO("case " << c.name);
    const GoldenRunner* runner = find_runner(c.name);
    REQUIRE(runner);
    const GoldenResults in_f64 = runner->run(c, f64), in_f32 = runner->run(c, f32);
    REQUIRE(in_f64.size() == in_f32.size());
    CHECK_FALSE(in_f64.empty());
    for (std::size_t i = 0; i < in_f64.size(); ++i) {
      const auto& [label, got] = in_f64[i];
      const Tensor want = c.get(label.substr(0, label.find(' ')));
      const GoldenRow row{c.name + ", " + label, largest_error(got, want), runner->tolerance,
                          largest_error(in_f32[i].second, want), runner->tolerance_f32 * max_abs(want)};
      INFO("array " << label);
      CHECK(row.error <= row.tolerance);
      CHECK(row.error_f32 <= row.tolerance_f32);
      note_golden(row);
    }
  }
}

TEST_CASE("golden: the loader says what is wrong", "[golden]") {
  CHECK_THROWS_AS(golden_case("no such case"), IOError);
  CHECK_THROWS_AS(golden_case("norms").get("no such array"), IOError);
  CHECK(golden_case("norms").get("x", f32).dtype() == f32);
  CHECK(golden_case("norms").get("x").shape() == Shape{10, 8});
  CHECK(golden_case("norms").number("eps") == 1e-5);
  CHECK(golden_case("norms").text("eps of another kind", "default") == "default");
  std::set<std::string> names;
  for (const GoldenCase& c : golden_cases()) CHECK(names.insert(c.name).second);
}
