// One line that tells how training goes.
//
//   Progress progress({.steps = 1000});
//   for (int64_t step = 1; step <= 1000; ++step) {
//     …
//     progress.update(step, {{"loss", loss.item()}});
//     if (progress.milestone(10)) progress.note(str("validation ", evaluate()));   // ten times, evenly
//   }
//
//    43% [##########..............] step 430/1000  loss 0.3127  24 MiB (peak 31)  0:12 left 0:16
#pragma once

#include <sluice/core/device.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace sluice {

struct ProgressOptions {
  int64_t steps = 0;         // of the whole training; 0: unknown, so no bar and no time left, unless update() is told the share done
  double done = 0;           // share of the work, 0 … 1, that earlier runs have done
  std::FILE* out = stderr;   // so that stdout stays clean for results
  double log_seconds = 10;   // between lines where `out` is no terminal
  Device device = cpu;       // whose memory is shown
};

/// On a terminal the line is redrawn in place, at most ten times a second, its last values left out where it is narrow;
/// elsewhere a plain line is printed for the first step, every `log_seconds`, and at the end. Not for use from several threads.
/// Never throws once built; write errors are ignored.
class Progress {
 public:
  explicit Progress(ProgressOptions options = {});
  ~Progress();  // finishes the line, so that an error message starts on a line of its own
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// Takes the newest values, the most important first, and shows them when it is time to. `step`: steps finished since the
  /// start of the whole training. `done`: share of the work done, where time rather than the number of steps is the limit;
  /// negative: step / steps.
  void update(int64_t step, std::initializer_list<std::pair<const char*, double>> values, double done = -1);
  /// Whether the last update() completed another 1/parts of the work: true `parts` times, at the latest at the end, or as
  /// often as there are steps. A run that is resumed meets the milestones that it would have met.
  bool milestone(int64_t parts) const;
  /// Prints a line of text above the bar.
  void note(std::string_view text);
  /// Shows the last values given and ends the line. Later calls do nothing.
  void finish();

 private:
  using Clock = std::chrono::steady_clock;
  void draw();
  std::string line(std::size_t values, bool memory) const;

  ProgressOptions options_;
  bool terminal_;
  Clock::time_point start_ = Clock::now(), shown_{};
  int64_t step_ = 0;
  std::vector<std::pair<std::string, double>> values_;
  double done_, before_;       // now, and at the update before; negative: unknown
  double first_done_ = -1;     // at the first update,
  double first_seconds_ = 0;   // which came then
  bool any_ = false, stale_ = false, open_ = false, finished_ = false;  // stale: the newest values have not been shown; open: the
                                                                        // cursor stands on an unfinished line
};

}  // namespace sluice
