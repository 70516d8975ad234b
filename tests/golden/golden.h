// Reference cases computed by an independent float64 program: data/index.json names them, and every array
// is a file of raw little-endian float64. A file that knows how to run some of them registers a runner; one
// test then runs every case of the index, so that a case without a runner is a failure.
#pragma once

#include <sluice/core/tensor.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace sluice::testing {

class GoldenCase {
 public:
  GoldenCase(const void* entry, std::string name) : name(std::move(name)), entry_(entry) {}
  std::string name;

  /// The array as a constant of that dtype; IOError when the case has none of this name, or the file is
  /// not as long as the index says.
  Tensor get(const std::string& array, DType dtype = f64) const;
  bool has(const std::string& array) const;
  std::vector<std::string> arrays() const;
  /// Entries of `meta`; `otherwise` where the case has none.
  std::string text(const std::string& key, const std::string& otherwise = {}) const;
  double number(const std::string& key, double otherwise = 0) const;

 private:
  const void* entry_;  // its JSON value
};

/// All cases of the index, in its order.
const std::vector<GoldenCase>& golden_cases();
const GoldenCase& golden_case(const std::string& name);

/// What a runner computed, by the name of the array that it must equal; "out (by hand)" is compared with
/// "out".
using GoldenResults = std::vector<std::pair<std::string, Tensor>>;
struct GoldenRunner {
  std::string prefix;  // of the names of its cases; the longest one wins
  std::function<GoldenResults(const GoldenCase&, DType)> run;
  double tolerance = 1e-9;       // f64: |got − want|
  double tolerance_f32 = 1e-5;   // f32: |got − want| / max |want|
};
/// Returns true, so that a namespace-scope constant can hold the registration.
bool register_golden(GoldenRunner runner);
const GoldenRunner* find_runner(const std::string& case_name);

/// One line of golden_table.txt, which is written and printed when the program ends.
struct GoldenRow {
  std::string name;  // case, array
  double error = 0, tolerance = 0, error_f32 = 0, tolerance_f32 = 0;
};
void note_golden(GoldenRow row);

}  // namespace sluice::testing
