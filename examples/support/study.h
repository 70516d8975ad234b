// What the programs share that examples/report.sh runs: curves of a training, and the line of results that it reads.
#pragma once

#include <sluice/layers/train/curve.h>

#include <cstdint>
#include <cstdio>
#include <numeric>
#include <string>
#include <vector>

namespace sluice::examples {

/// A number as text: fixed(0.123, 2) == "0.12".
inline std::string fixed(double value, int digits) {
  char text[64];
  std::snprintf(text, sizeof text, "%.*f", digits, value);
  return text;
}

/// y over first, first + 1, …
inline Series series(std::string name, const std::vector<double>& y, bool noisy, double first = 0) {
  Series s{std::move(name), std::vector<double>(y.size()), y, noisy};
  std::iota(s.x.begin(), s.x.end(), first);
  return s;
}
/// The mean of the last tenth of y.
inline double last_tenth(const std::vector<double>& y) {
  const auto n = static_cast<long>(y.size() / 10 + 1);
  return std::accumulate(y.end() - n, y.end(), 0.0) / double(n);
}

/// Prints what the program found, one line of fields separated by tabs: `figure` of the model that the program is
/// about, `baseline` of what it must beat, whether it does, and the seed.
inline void print_result(const char* program, const std::string& figure, const std::string& baseline, bool beaten,
                         int64_t seed) {
  std::printf("result\t%s\t%s\t%s\t%s\t%lld\n", program, figure.c_str(), baseline.c_str(), beaten ? "yes" : "no",
              (long long)seed);
}

}  // namespace sluice::examples
