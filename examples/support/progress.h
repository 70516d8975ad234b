// One line that tells how training goes.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>

namespace sluice::examples {

/// What the line shows after a step.
struct ProgressRow {
  std::int64_t step = 0;         // steps finished, counted from the start of the whole training
  double loss = 0;               // nats per byte
  double bits_per_char = 0;      // bits per byte, as the caller wants it shown (train or validation)
  double tokens_per_second = 0;  // bytes trained on per second
  std::int64_t live_bytes = 0;   // tensor memory in use now, bytes
  std::int64_t peak_bytes = 0;   // most tensor memory ever in use, bytes
  double done = -1;              // share of the work done, 0 … 1, when time rather than the number
                                 // of steps is the limit; negative: step / total_steps
};

/// Progress line on a stream (stderr by default, so that stdout stays clean for results). On a
/// terminal it is redrawn in place, at most ten times a second, parts left out where it is narrow;
/// elsewhere a plain line is printed for the first step, every `log_seconds`, and at the end.
/// Not for use from several threads. Never throws once built; write errors are ignored.
class Progress {
 public:
  /// total_steps ≤ 0: unknown; then no bar and no time left, unless rows carry `done`.
  explicit Progress(std::int64_t total_steps, std::FILE* out = stderr, double log_seconds = 10);
  ~Progress();  // finishes the line, so that an error message starts on a line of its own
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// Takes the newest values and shows them when it is time to. Costs about 0.1 µs otherwise.
  void update(const ProgressRow& row);

  /// Prints a line of text above the bar.
  void note(std::string_view text);

  /// Shows the last values given and ends the line. Later calls do nothing.
  void finish();

 private:
  using Clock = std::chrono::steady_clock;
  void draw();
  std::string line(int brevity) const;
  double share(const ProgressRow& row) const;

  std::int64_t total_;
  std::FILE* out_;
  double log_seconds_;
  bool terminal_;
  Clock::time_point start_ = Clock::now();
  Clock::time_point shown_{};
  ProgressRow row_{};
  double first_share_ = -1;    // a resumed run does not start at 0
  double first_seconds_ = 0;   // when the first row came
  bool any_ = false;           // a row was given
  bool stale_ = false;         // the newest row has not been shown
  bool open_ = false;          // the cursor stands on an unfinished line
  bool finished_ = false;
};

}  // namespace sluice::examples
