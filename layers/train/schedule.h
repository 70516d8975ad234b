// Learning rates as functions of the step: optimizer.set_lr(schedule(optimizer.steps())) before step().
//
// Step 0 is the first update. Learning rates are absolute, not factors. A Schedule is any function of the step, for
// example a lambda.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

namespace sluice {

/// The learning rate of a step. The schedules below throw ValueError for a step < 0.
using Schedule = std::function<double(int64_t step)>;

/// lr at every step. All functions below throw ValueError for a rate that is not finite and >= 0.
Schedule constant_schedule(double lr);

/// lr·(step+1)/(warmup+1) for the first `warmup` (>= 0) updates, then lr. The rate of the first update is not 0, and lr
/// is reached at step `warmup`.
Schedule warmup_schedule(double lr, int64_t warmup);

struct CosineOptions {
  double lr = 1e-3;    // the highest rate
  int64_t warmup = 0;  // number of updates before lr is reached; must be >= 0
  int64_t total = 0;   // the step at which the floor is reached; must be > warmup
  double floor = 0;    // the rate from step `total` on; must be <= lr
};

/// Warmup as in warmup_schedule(), then half a cosine (Loshchilov & Hutter 2017, without restarts):
/// floor + (lr − floor)·(1 + cos(π·(step − warmup)/(total − warmup)))/2. Throws ValueError for options outside the
/// bounds stated beside them.
Schedule cosine_schedule(CosineOptions options);

/// Linear interpolation between the knots (step, rate). Before the first knot the rate is the first rate, after the
/// last knot the last rate. Throws ValueError without knots, and unless steps are >= 0 and increase strictly. GAU-α was
/// trained with r = 1.76e-3 and {{0, r}, {160'000, r/2}, {640'000, r/10}, {1'280'000, r/100}}.
Schedule piecewise_schedule(std::vector<std::pair<int64_t, double>> knots);

}  // namespace sluice
