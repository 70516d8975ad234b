#include "progress.h"

#include <algorithm>
#include <cmath>

#include <sys/ioctl.h>
#include <unistd.h>

namespace sluice::examples {
namespace {

template <class... Args>
std::string format(const char* pattern, Args... args) {
  char text[160];
  std::snprintf(text, sizeof text, pattern, args...);
  return text;
}

std::string duration(double seconds) {
  if (!(seconds >= 0) || seconds > 3.6e8) return "-:--";
  const long long s = std::llround(seconds);
  if (s >= 3600) return format("%lld:%02lld:%02lld", s / 3600, s / 60 % 60, s % 60);
  return format("%lld:%02lld", s / 60, s % 60);
}

std::string count(double n) {
  if (n >= 1e7) return format("%.1fM", n / 1e6);
  if (n >= 1e4) return format("%.1fk", n / 1e3);
  return format("%.0f", n);
}

double mib(std::int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

std::size_t terminal_columns(std::FILE* out) {
  winsize size{};
  if (ioctl(fileno(out), TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return 80;
  return size.ws_col;
}

double seconds_between(auto from, auto to) {
  return std::chrono::duration<double>(to - from).count();
}

}  // namespace

Progress::Progress(std::int64_t total_steps, std::FILE* out, double log_seconds)
    : total_(total_steps), out_(out), log_seconds_(log_seconds), terminal_(isatty(fileno(out))) {}

Progress::~Progress() { finish(); }

double Progress::share(const ProgressRow& row) const {
  if (row.done >= 0) return std::min(row.done, 1.0);
  if (total_ <= 0) return -1;
  return std::clamp(static_cast<double>(row.step) / static_cast<double>(total_), 0.0, 1.0);
}

void Progress::update(const ProgressRow& row) {
  if (finished_) return;
  const Clock::time_point now = Clock::now();
  const bool first = !any_;
  if (first) {
    first_share_ = share(row);
    first_seconds_ = seconds_between(start_, now);
  }
  row_ = row;
  any_ = stale_ = true;
  if (first || seconds_between(shown_, now) >= (terminal_ ? 0.1 : log_seconds_)) draw();
}

/// The line without the bar. `brevity` leaves parts out for narrow terminals: 1 the loss (bits/char
/// says the same in another unit), 2 the memory as well.
std::string Progress::line(int brevity) const {
  const double elapsed = seconds_between(start_, Clock::now());
  const double done = share(row_);
  std::string text = "step " + std::to_string(row_.step);
  if (total_ > 0) text += '/' + std::to_string(total_);
  if (brevity < 1) text += format("  loss %.4f", row_.loss);
  text += format("  %.3f bits/char  ", row_.bits_per_char) + count(row_.tokens_per_second) + " tok/s";
  if (brevity < 2) text += format("  %.0f MiB (peak %.0f)", mib(row_.live_bytes), mib(row_.peak_bytes));
  text += "  " + duration(elapsed);
  if (done >= 0) {
    // From this run's own pace: the steps before a resume took no time of ours.
    const double gained = done - first_share_;
    const double pace = (elapsed - first_seconds_) / gained;
    text += " left " + (done >= 1 ? "0:00" : duration(gained > 0 ? pace * (1 - done) : -1));
  }
  return text;
}

void Progress::draw() {
  shown_ = Clock::now();
  stale_ = false;
  const double done = share(row_);
  std::string text = done >= 0 ? format("%3.0f%% ", std::floor(100 * done)) : "";
  if (terminal_) {
    // The last column stays empty: writing there makes some terminals wrap, and the bar would climb.
    const std::size_t room = std::max<std::size_t>(terminal_columns(out_), 2) - 1;
    constexpr std::size_t kShortest = 8, kLongest = 24, kFrame = 3;
    int brevity = 0;
    std::string rest = line(0);
    while (brevity < 2 && text.size() + kFrame + kShortest + rest.size() > room) rest = line(++brevity);
    if (done >= 0 && text.size() + kFrame + kShortest + rest.size() <= room) {
      const std::size_t width = std::min(room - text.size() - kFrame - rest.size(), kLongest);
      const auto full = static_cast<std::size_t>(done * static_cast<double>(width));
      text += '[' + std::string(full, '#') + std::string(width - full, '.') + "] ";
    }
    text += rest;
    text.resize(std::min(text.size(), room));
    std::fprintf(out_, "\r%s\x1b[K", text.c_str());  // \x1b[K wipes what is left of a longer line
    open_ = true;
  } else {
    std::fprintf(out_, "%s%s\n", text.c_str(), line(0).c_str());
  }
  std::fflush(out_);
}

void Progress::note(std::string_view text) {
  if (open_) std::fputs("\r\x1b[K", out_);
  std::fprintf(out_, "%.*s\n", static_cast<int>(text.size()), text.data());
  std::fflush(out_);
  if (open_) {
    open_ = false;
    draw();
  }
}

void Progress::finish() {
  if (finished_) return;
  finished_ = true;
  if (any_ && (stale_ || terminal_)) draw();
  if (open_) std::fputc('\n', out_);
  std::fflush(out_);
  open_ = false;
}

}  // namespace sluice::examples
