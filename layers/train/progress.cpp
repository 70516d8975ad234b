#include <sluice/layers/train/progress.h>

#include <sluice/core/memory/allocator.h>
#include <sluice/core/kernel/backend.h>
#include <sluice/core/number/number.h>
#include <sluice/core/text/utf8.h>

#include <algorithm>
#include <cmath>

#include <sys/ioctl.h>
#include <unistd.h>

namespace sluice {
namespace {

using detail::format;

std::string duration(double seconds) {
  if (!(seconds >= 0) || seconds > 3.6e8) return "-:--";
  const long long s = std::llround(seconds);
  if (s >= 3600) return format("%lld:%02lld:%02lld", s / 3600, s / 60 % 60, s % 60);
  return format("%lld:%02lld", s / 60, s % 60);
}

/// A number with few digits: 0.0312, 2.718, 12.3k, 4.5e-06.
std::string readable(double v) {
  if (std::isnan(v)) return "nan";  // printf would write "-nan" for a negative NaN
  const double size = std::abs(v);
  if (size >= 1e12) return format("%.3g", v);
  if (size >= 1e7) return format("%.1fM", v / 1e6);
  if (size >= 1e4) return format("%.1fk", v / 1e3);
  if (size != 0 && size < 1e-3) return format("%.1e", v);
  return format("%.*f", size >= 100 ? 1 : size >= 10 ? 2 : size >= 1 ? 3 : 4, v);
}

std::size_t terminal_columns(std::FILE* out) {
  winsize size{};
  if (ioctl(fileno(out), TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return 80;
  return size.ws_col;
}

double seconds_between(auto from, auto to) { return std::chrono::duration<double>(to - from).count(); }

}  // namespace

Progress::Progress(ProgressOptions options)
    : options_(options), terminal_(isatty(fileno(options.out))), done_(std::clamp(options.done, 0.0, 1.0)),
      before_(done_) {}

Progress::~Progress() { finish(); }

void Progress::update(int64_t step, std::initializer_list<std::pair<const char*, double>> values, double done) {
  if (finished_) return;
  const Clock::time_point now = Clock::now();
  before_ = done_;
  done_ = done >= 0            ? std::min(done, 1.0)
          : options_.steps > 0 ? std::clamp(static_cast<double>(step) / static_cast<double>(options_.steps), 0.0, 1.0)
                               : -1;
  step_ = step;
  values_.assign(values.begin(), values.end());
  const bool first = !any_;
  if (first) first_done_ = done_, first_seconds_ = seconds_between(start_, now);
  any_ = stale_ = true;
  if (first || seconds_between(shown_, now) >= (terminal_ ? 0.1 : options_.log_seconds)) draw();
}

bool Progress::milestone(int64_t parts) const {
  const auto reached = [&](double share) { return std::floor(share * static_cast<double>(parts) + 1e-9); };
  return any_ && done_ >= 0 && reached(done_) > reached(std::max(before_, 0.0));
}

/// The line without the bar, with the first `values` values.
std::string Progress::line(std::size_t values, bool memory) const {
  const double elapsed = seconds_between(start_, Clock::now());
  std::string text = "step " + std::to_string(step_);
  if (options_.steps > 0) text += '/' + std::to_string(options_.steps);
  for (std::size_t i = 0; i < std::min(values, values_.size()); ++i)
    text += "  " + values_[i].first + ' ' + readable(values_[i].second);
  if (memory) {
    const MemoryStats stats = memory_stats(options_.device);
    text += format("  %.0f MiB (peak %.0f)", static_cast<double>(stats.live) / (1 << 20),
                   static_cast<double>(stats.peak) / (1 << 20));
  }
  text += "  " + duration(elapsed);
  if (done_ >= 0) {
    // From the pace of this run only: `elapsed` does not include the steps of earlier runs.
    const double gained = done_ - first_done_;
    const double pace = (elapsed - first_seconds_) / gained;
    text += " left " + (done_ >= 1 ? "0:00" : duration(gained > 0 ? pace * (1 - done_) : -1));
  }
  return text;
}

void Progress::draw() {
  shown_ = Clock::now();
  stale_ = false;
  std::string text = done_ >= 0 ? format("%3.0f%% ", std::floor(100 * done_ + 1e-9)) : "";
  if (terminal_) {
    // Leave the last column empty: some terminals wrap after it, and each redraw would start a new line.
    const std::size_t room = std::max<std::size_t>(terminal_columns(options_.out), 2) - 1;
    constexpr std::size_t kShortest = 8, kLongest = 24, kFrame = 3;
    std::size_t values = values_.size();
    bool memory = true;
    std::string rest = line(values, memory);
    while ((values > 1 || memory) && text.size() + kFrame + kShortest + rest.size() > room) {
      if (values > 1) --values;
      else memory = false;
      rest = line(values, memory);
    }
    if (done_ >= 0 && text.size() + kFrame + kShortest + rest.size() <= room) {
      const std::size_t width = std::min(room - text.size() - kFrame - rest.size(), kLongest);
      const auto full = static_cast<std::size_t>(done_ * static_cast<double>(width));
      text += '[' + std::string(full, '#') + std::string(width - full, '.') + "] ";
    }
    text += rest;
    if (text.size() > room) text.resize(detail::char_begin(text, room));
    std::fprintf(options_.out, "\r%s\x1b[K", text.c_str());  // \x1b[K clears the rest of a longer line
    open_ = true;
  } else {
    std::fprintf(options_.out, "%s%s\n", text.c_str(), line(values_.size(), true).c_str());
  }
  std::fflush(options_.out);
}

void Progress::note(std::string_view text) {
  if (open_) std::fputs("\r\x1b[K", options_.out);
  std::fprintf(options_.out, "%.*s\n", static_cast<int>(text.size()), text.data());
  std::fflush(options_.out);
  if (open_) {
    open_ = false;
    draw();
  }
}

void Progress::finish() {
  if (finished_) return;
  finished_ = true;
  if (any_ && (stale_ || terminal_)) draw();
  if (open_) std::fputc('\n', options_.out);
  std::fflush(options_.out);
  open_ = false;
}

}  // namespace sluice
