// Times and how they grow: alternating runs, exponents by least squares, and where two curves cross.
#pragma once

#include "claims/claim.h"

#include <sluice/layers/train/curve.h>

#include <functional>

namespace sluice::examples {

/// Seconds of a program, round by round.
using Rounds = std::vector<double>;

/// Seconds of each program: the programs take turns, so that a busy machine slows all of them. One round more than
/// `rounds` runs first and is not counted. Fewer rounds, but at least 3, when `run` has used `share` of its time.
std::vector<Rounds> alternating(const std::vector<std::function<void()>>& programs, int64_t rounds, const Run& run,
                                double share = 1);
/// The median of each program.
std::vector<Measured> medians_of(const std::vector<Rounds>& seconds);
/// The median of a/b in a round: its two times are neighbours, so that the machine's moods cancel.
Measured ratio_in_rounds(const Rounds& a, const Rounds& b);
/// The median of the exponents of a round: seconds[i] are those at x[i].
Measured slope_in_rounds(const std::vector<double>& x, const std::vector<Rounds>& seconds);

/// The exponent b of y = a·xᵇ by least squares of the logarithms; spread 0 for two points. ValueError for less, and for
/// values that are not positive.
Measured log_log_slope(const std::vector<double>& x, const std::vector<double>& y);

/// Where y = a falls below y = b: between two points the logarithms are straight. `found` is false when a is smaller
/// nowhere; when a is smaller everywhere, `at` is the first x, and `first` is true. The interval takes the spreads in.
struct Crossover {
  bool found = false, first = false;
  double at = 0, low = 0, high = 0;
};
Crossover crossover(const std::vector<double>& x, const std::vector<Measured>& a, const std::vector<Measured>& b);
/// "from 1200 tokens on (between 900 and 1500)", "at every length from 512 on", "at no length up to 8192".
std::string text(const Crossover& c, const std::vector<double>& x);

/// Draws curves over the length into the picture of the result, CLAIM.svg; their x are replaced by log2(lengths).
void draw_over_length(const Run& run, Result& r, const std::string& title, const std::string& y_label,
                      const std::vector<double>& lengths, std::vector<Series> curves);

}  // namespace sluice::examples
