// A progress line for training.
//
//   Progress progress({.steps = 1000});
//   for (int64_t step = 1; step <= 1000; ++step) {
//     …
//     progress.update(step, {{"loss", loss.item()}});
//     if (progress.milestone(10)) progress.note(str("validation ", evaluate()));   // ten times, evenly spaced
//   }
//
//    43% [##########..............] step 430/1000  loss 0.3127  24 MiB (peak 31)  0:12 left 0:16
#pragma once

#include <sluice/core/memory/no_copy.h>
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
  int64_t steps = 0;        // of the whole training; 0: unknown, then bar and time left need `done` of update()
  double done = 0;          // share of the work that earlier runs have done, 0 … 1
  std::FILE* out = stderr;  // stderr keeps stdout free for results
  double log_seconds = 10;  // seconds between lines if `out` is not a terminal
  Device device = cpu;      // the device whose memory is shown
};

/// On a terminal the line is redrawn in place, at most ten times per second; a narrow terminal shows fewer values.
/// Elsewhere a plain line is printed for the first step, every `log_seconds`, and at the end. Not thread-safe. Never
/// throws after construction; write errors are ignored.
class Progress : private NoCopy {
 public:
  explicit Progress(ProgressOptions options = {});
  ~Progress();  // calls finish(), so that an error message starts on a new line

  /// Takes the newest values, the most important value first, and draws the line if it is due. `step` is the number of
  /// finished steps of the whole training. `done` is the finished share of the work, for a training that is limited by
  /// time and not by the number of steps; negative: step / steps.
  void update(int64_t step, std::initializer_list<std::pair<const char*, double>> values, double done = -1);
  /// Returns true if the last update() completed another 1/parts of the work. This is true `parts` times, the last time
  /// at the end, or in each step if there are fewer steps than parts. A resumed run has the same milestones as a run
  /// without interruption.
  bool milestone(int64_t parts) const;
  /// Prints a line of text above the progress line.
  void note(std::string_view text);
  /// Shows the last values and ends the line. update() and finish() do nothing from then on; note() still prints.
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
  double done_, before_;      // share done at the last update, and at the update before; negative: unknown
  double first_done_ = -1;    // share done at the first update
  double first_seconds_ = 0;  // seconds from construction to the first update
  // any_: there was an update. stale_: the newest values are not drawn yet. open_: the cursor is on an unfinished line.
  bool any_ = false, stale_ = false, open_ = false, finished_ = false;
};

}  // namespace sluice
