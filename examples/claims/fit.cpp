#include "claims/fit.h"

#include <sluice/core/error.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>

namespace sluice::examples {

namespace {

/// The first x from which on a is below b, with the middle values moved by `shift` spreads in favour of a; infinite if
/// there is none, 0 if a is below b at the first x.
double crossing(const std::vector<double>& x, const std::vector<Measured>& a, const std::vector<Measured>& b,
                double shift) {
  double before = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const Measured q = ratio(a[i], b[i]);
    const double gap = std::log(std::max(q.value - shift * q.spread, 1e-9));
    if (gap < 0) {
      if (i == 0) return 0;
      const double step = before / (before - gap);
      return std::exp(std::log(x[i - 1]) + step * std::log(x[i] / x[i - 1]));
    }
    before = gap;
  }
  return std::numeric_limits<double>::infinity();
}

}  // namespace

std::vector<Rounds> alternating(const std::vector<std::function<void()>>& programs, int64_t rounds, const Run& run,
                                double share) {
  using Clock = std::chrono::steady_clock;
  std::vector<Rounds> seconds(programs.size());
  for (int64_t round = 0; round <= rounds; ++round) {
    if (round > 3 && !run.has_time(share)) break;
    for (std::size_t i = 0; i < programs.size(); ++i) {
      const auto begun = Clock::now();
      programs[i]();
      if (round > 0) seconds[i].push_back(std::chrono::duration<double>(Clock::now() - begun).count());
    }
  }
  return seconds;
}

std::vector<Measured> medians_of(const std::vector<Rounds>& seconds) {
  std::vector<Measured> medians;
  for (const Rounds& s : seconds) medians.push_back(median_of(s));
  return medians;
}
Measured ratio_in_rounds(const Rounds& a, const Rounds& b) {
  std::vector<double> q;
  for (std::size_t k = 0; k < a.size(); ++k) q.push_back(a[k] / b[k]);
  return median_of(q);
}
Measured slope_in_rounds(const std::vector<double>& x, const std::vector<Rounds>& seconds) {
  std::vector<double> slopes;
  for (std::size_t k = 0; k < seconds.front().size(); ++k) {
    std::vector<double> y;
    for (const Rounds& s : seconds) y.push_back(s[k]);
    slopes.push_back(log_log_slope(x, y).value);
  }
  return median_of(slopes);
}

Measured log_log_slope(const std::vector<double>& x, const std::vector<double>& y) {
  const std::size_t n = x.size();
  if (n < 2 || y.size() != n) fail<ValueError>("log_log_slope: ", n, " and ", y.size(), " values");
  std::vector<double> u(n), v(n);
  for (std::size_t i = 0; i < n; ++i) {
    if (!(x[i] > 0 && y[i] > 0)) fail<ValueError>("log_log_slope: a value is not positive");
    u[i] = std::log(x[i]), v[i] = std::log(y[i]);
  }
  const double mu = mean_of(u).value, mv = mean_of(v).value;
  double uu = 0, uv = 0, rest = 0;
  for (std::size_t i = 0; i < n; ++i) uu += (u[i] - mu) * (u[i] - mu), uv += (u[i] - mu) * (v[i] - mv);
  const double slope = uv / uu;
  for (std::size_t i = 0; i < n; ++i) rest += std::pow(v[i] - mv - slope * (u[i] - mu), 2);
  return {slope, n > 2 ? interval(std::sqrt(rest / double(n - 2) / uu), n - 2) : 0};
}

Crossover crossover(const std::vector<double>& x, const std::vector<Measured>& a, const std::vector<Measured>& b) {
  Crossover c;
  c.at = crossing(x, a, b, 0), c.low = crossing(x, a, b, 1), c.high = crossing(x, a, b, -1);
  c.found = std::isfinite(c.at), c.first = c.at == 0;
  return c;
}
std::string text(const Crossover& c, const std::vector<double>& x) {
  const auto whole = [](double v) { return std::to_string(std::llround(v)); };
  if (!c.found) return "at no length up to " + whole(x.back());
  if (c.first) return "at every length from " + whole(x.front()) + " on";
  const std::string low = c.low == 0 ? "less than " + whole(x.front()) : whole(c.low);
  const std::string high = std::isfinite(c.high) ? whole(c.high) : "more than " + whole(x.back());
  return "from " + whole(c.at) + " tokens on (between " + low + " and " + high + ")";
}

void draw_over_length(const Run& run, Result& r, const std::string& title, const std::string& y_label,
                      const std::vector<double>& lengths, std::vector<Series> curves) {
  for (Series& curve : curves) {
    curve.x.clear();
    for (const double n : lengths) curve.x.push_back(std::log2(n));
  }
  r.picture = run.claim + ".svg";
  write_svg_curve(run.file(r.picture), {.title = title, .x_label = "log2 of the length", .y_label = y_label}, curves);
}

}  // namespace sluice::examples
