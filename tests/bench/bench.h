// Timing for the benchmarks: medians over warm runs, never asserted.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <vector>

namespace sluice::bench {

inline double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// Median seconds of f over `runs` runs after two warm-up runs.
inline double median_seconds(const std::function<void()>& f, int runs = 15) {
  f(), f();
  std::vector<double> t;
  for (int i = 0; i < runs; ++i) {
    double start = now();
    f();
    t.push_back(now() - start);
  }
  std::sort(t.begin(), t.end());
  return t[t.size() / 2];
}

}  // namespace sluice::bench
