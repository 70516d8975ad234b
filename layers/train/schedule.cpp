#include <sluice/layers/train/schedule.h>

#include <sluice/core/error.h>

#include <algorithm>
#include <cmath>
#include <numbers>

namespace sluice {

namespace {

void check_rate(const char* op, const char* what, double rate) {
  if (!std::isfinite(rate) || rate < 0) fail<ValueError>(op, ": ", what, " must be finite and >= 0 — got ", rate);
}

void check_warmup(const char* op, int64_t warmup) {
  if (warmup < 0) fail<ValueError>(op, ": warmup must be >= 0 — got ", warmup);
}

double checked_step(const char* op, int64_t step) {
  if (step < 0) fail<ValueError>(op, ": the step must be >= 0 — got ", step);
  return static_cast<double>(step);
}

double warm(double lr, double step, int64_t warmup) { return lr * ((step + 1) / (static_cast<double>(warmup) + 1)); }

}  // namespace

Schedule constant_schedule(double lr) {
  check_rate("constant_schedule", "lr", lr);
  return [=](int64_t step) { return checked_step("constant_schedule", step), lr; };
}

Schedule warmup_schedule(double lr, int64_t warmup) {
  check_rate("warmup_schedule", "lr", lr);
  check_warmup("warmup_schedule", warmup);
  return [=](int64_t step) {
    const double s = checked_step("warmup_schedule", step);
    return step < warmup ? warm(lr, s, warmup) : lr;
  };
}

Schedule cosine_schedule(CosineOptions o) {
  const char* op = "cosine_schedule";
  check_rate(op, "lr", o.lr);
  check_rate(op, "floor", o.floor);
  check_warmup(op, o.warmup);
  if (o.floor > o.lr) fail<ValueError>(op, ": floor must be <= lr — got floor=", o.floor, ", lr=", o.lr);
  if (o.total <= o.warmup)
    fail<ValueError>(op, ": total must be > warmup — got total=", o.total, ", warmup=", o.warmup);
  return [=](int64_t step) {
    const double s = checked_step(op, step);
    if (step < o.warmup) return warm(o.lr, s, o.warmup);
    if (step >= o.total) return o.floor;
    const double done = static_cast<double>(step - o.warmup) / static_cast<double>(o.total - o.warmup);
    return o.floor + (o.lr - o.floor) * (1 + std::cos(std::numbers::pi * done)) / 2;
  };
}

Schedule piecewise_schedule(std::vector<std::pair<int64_t, double>> knots) {
  const char* op = "piecewise_schedule";
  if (knots.empty()) fail<ValueError>(op, ": needs at least one knot");
  for (std::size_t i = 0; i < knots.size(); ++i) {
    check_rate(op, "every rate", knots[i].second);
    checked_step(op, knots[i].first);
    if (i > 0 && knots[i].first <= knots[i - 1].first)
      fail<ValueError>(op, ": steps must increase — got ", knots[i - 1].first, " before ", knots[i].first);
  }
  return [knots = std::move(knots), op](int64_t step) {
    checked_step(op, step);
    const auto after =
        std::upper_bound(knots.begin(), knots.end(), step, [](int64_t s, const auto& knot) { return s < knot.first; });
    if (after == knots.begin()) return after->second;
    const auto& [s0, r0] = after[-1];
    if (after == knots.end()) return r0;
    return r0 + (after->second - r0) * (static_cast<double>(step - s0) / static_cast<double>(after->first - s0));
  };
}

}  // namespace sluice
