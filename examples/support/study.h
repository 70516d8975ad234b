// What the programs share that examples/report.sh runs: the line of results that it reads.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>

namespace sluice::examples {

/// A number as text: fixed(0.123, 2) == "0.12".
inline std::string fixed(double value, int digits) {
  char text[64];
  std::snprintf(text, sizeof text, "%.*f", digits, value);
  return text;
}

/// Prints what the program found, one line of fields separated by tabs: `figure` of the model that the program is about,
/// `baseline` of what it must beat, whether it does, and the seed.
inline void print_result(const char* program, const std::string& figure, const std::string& baseline, bool beaten,
                         int64_t seed) {
  std::printf("result\t%s\t%s\t%s\t%s\t%lld\n", program, figure.c_str(), baseline.c_str(), beaten ? "yes" : "no",
              (long long)seed);
}

}  // namespace sluice::examples
