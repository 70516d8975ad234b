// What reports to Catch2 of rows and samples: a file of its own, as sluice_fuzz uses them without it.
#include "support/catch.h"
#include "support/delta_samples.h"
#include "support/op_cases.h"
#include "support/scan_samples.h"
#include "support/table_samples.h"

#include <sluice/ops/shape/create.h>

#include <algorithm>

namespace sluice::testing {

void for_each_row(const std::function<void(const OpCase&)>& check) {
  for (const OpCase& row : all_cases()) {
    INFO(row.name());
    try {
      check(row);
    } catch (const std::exception& e) { FAIL_CHECK("threw: " << e.what()); }
  }
}

void each_sample(const std::function<void(LayerSample&)>& f) {
  for (const LayerRow& row : layer_table())
    for (const Json& sample : samples_of(row)) {
      LayerSample s = make_sample(row, sample);
      INFO(s.text);
      try {
        f(s);
      } catch (const Error& e) { FAIL_CHECK(e.what()); }
    }
}

void check_scan_close(const std::vector<Tensor>& got, const std::vector<Tensor>& want, double tolerance,
                      const std::string& text, double decay_steps) {
  REQUIRE(got.size() == want.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double size = std::max({0.1, max_abs(want[i]), i == 4 ? decay_steps : 0.0});
    const double error = max_abs_diff(to(got[i], f64), to(want[i], f64));
    if (!(error <= tolerance * size)) FAIL_CHECK(text << ": result " << i << " is off by " << error << " of " << size);
  }
}

void check_delta(const std::vector<Tensor>& got, const std::vector<Tensor>& want, double tolerance,
                 const std::string& text) {
  check_scan_close(got, want, tolerance, text);
}

}  // namespace sluice::testing
