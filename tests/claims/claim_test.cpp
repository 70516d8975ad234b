// The rules by which examples/claims makes verdicts, and the fits of its times.
#include "claims/claim.h"
#include "claims/fit.h"
#include "support/catch.h"

#include <sluice/core/error.h>

#include <cmath>

using namespace sluice::examples;

TEST_CASE("claims: an interval is as wide as the number of values makes it") {
  CHECK(interval(2, 1) == Approx(2 * 12.706));
  CHECK(interval(1, 4) == Approx(2.776).epsilon(0.003));  // quantiles as tables of Student's t print them
  CHECK(interval(1, 9) == Approx(2.262).epsilon(1e-3));
  CHECK(interval(1, 29) == Approx(2.045).epsilon(1e-3));
  CHECK(interval(1, 100000) == Approx(1.96).epsilon(1e-3));
}

TEST_CASE("claims: means, medians and differences have intervals of 95 %") {
  const Measured m = mean_of({1, 2, 3, 4});
  CHECK(m.value == Approx(2.5));
  CHECK(m.spread == Approx(interval(std::sqrt(5.0 / 3 / 4), 3)));
  CHECK(mean_of({7}).spread == 0);
  CHECK(median_of({1, 2, 100}).value == 2);
  CHECK(median_of({4, 1, 3, 2}).value == Approx(2.5));
  CHECK(median_of({7}).spread == 0);
  CHECK(median_of({1, 2, 3}).spread == Approx(interval(1.2533 * 1.4826 / std::sqrt(3.0), 2)));
  // A machine that was slow for half of the time: independent values would give 0.99.
  const Measured drift = median_of({1, 1, 1, 1, 1, 1, 1, 1, 3, 3, 3, 3, 3, 3, 3, 3});
  CHECK(drift.value == 2);
  CHECK(drift.spread == Approx(interval(1 / std::sqrt(3.0), 3)));
  const Measured d = paired_difference({11, 22, 33}, {10, 20, 30});
  CHECK(d.value == Approx(2));
  CHECK(d.spread == Approx(interval(1 / std::sqrt(3.0), 2)));
  CHECK(ratio({6, 0.6}, {3, 0}).spread == Approx(0.2));
  CHECK(ratio({6, 0}, {3, 0.3}).spread == Approx(0.2));
  CHECK(difference({5, 3}, {1, 4}).spread == Approx(5));
  CHECK_THROWS_AS(mean_of({}), sluice::ValueError);
  CHECK_THROWS_AS(median_of({}), sluice::ValueError);
  CHECK_THROWS_AS(paired_difference({1}, {1, 2}), sluice::ValueError);
}

TEST_CASE("claims: figures are written with the digits that their spread leaves") {
  CHECK(text(Measured{45.63, 0.7}) == "45.6 ± 0.7");
  CHECK(text(Measured{45.63, 0.13}) == "45.63 ± 0.13");
  CHECK(text(Measured{1234.5, 20}) == "1234 ± 20");
  CHECK(text(Measured{69.4471, 0}) == "69.447");
  CHECK(text(Measured{1, 1e-16}) == "1");
  CHECK(text(-std::nan("")) == "nan");
  CHECK(text(Measured{-std::nan(""), 1}) == "nan");
}

TEST_CASE("claims: equals allows the tolerance and the spread") {
  CHECK(equals({69.4, 0}, 69, 0.01) == Verdict::shown);
  CHECK(equals({71, 0}, 69, 0.01) == Verdict::contradicted);
  CHECK(equals({71, 2}, 69, 0.01) == Verdict::shown);
  CHECK(equals({46, 1.4}, 69, 0.02) == Verdict::contradicted);
  CHECK(equals({46, 40}, 69, 0.02) == Verdict::not_visible);
  CHECK(equals({8192, 0}, 8192) == Verdict::shown);
  CHECK(equals({8191, 0}, 8192) == Verdict::contradicted);
}

TEST_CASE("claims: an order needs its spread") {
  CHECK(exceeds({1, 0.8}) == Verdict::shown);
  CHECK(exceeds({1, 1.2}) == Verdict::not_visible);
  CHECK(exceeds({-1, 0.8}) == Verdict::contradicted);
  CHECK(below({1, 0.2}, 2) == Verdict::shown);
  CHECK(below({3, 0.2}, 2) == Verdict::contradicted);
  CHECK(below({2.1, 0.2}, 2) == Verdict::not_visible);
  using enum Verdict;
  CHECK(all({shown, not_visible, contradicted}) == contradicted);
  CHECK(all({shown, not_visible}) == not_visible);
  CHECK(all({shown, shown}) == shown);
  CHECK(can_only_show(contradicted) == not_visible);
  CHECK(can_only_show(shown) == shown);
}

TEST_CASE("claims: an exponent by least squares") {
  const std::vector<double> x = {1, 2, 4, 8};
  const Measured exact = log_log_slope(x, {3, 12, 48, 192});
  CHECK(exact.value == Approx(2));
  CHECK(exact.spread < 1e-9);
  CHECK(log_log_slope(x, {3, 14, 40, 192}).spread > 0.05);
  CHECK_THROWS_AS(log_log_slope({1}, {1}), sluice::ValueError);
  CHECK_THROWS_AS(log_log_slope({1, 2}, {1, 0}), sluice::ValueError);
}

TEST_CASE("claims: rounds are compared within themselves") {
  const std::vector<Rounds> seconds = {{1, 10, 1}, {2, 20, 3}};  // the machine was slow in the second round
  CHECK(ratio_in_rounds(seconds[1], seconds[0]).value == 2);
  CHECK(slope_in_rounds({1, 2}, seconds).value == Approx(1));
  CHECK(medians_of(seconds)[1].value == 3);
}

TEST_CASE("claims: a crossover with its interval") {
  const std::vector<double> x = {1, 10, 100};
  const Crossover c = crossover(x, {{2, 0}, {2, 0}, {2, 0}}, {{0.2, 0}, {2.2, 0}, {20, 0}});
  CHECK((c.found && !c.first));
  CHECK(c.at == Approx(std::pow(10, std::log(10.0) / std::log(11.0))));
  CHECK(c.low == Approx(c.at));
  const Crossover wide = crossover(x, {{2, 0.2}, {2, 0.2}, {2, 0.2}}, {{0.2, 0}, {2.2, 0}, {20, 0}});
  CHECK(wide.low < wide.at);
  CHECK(wide.high > wide.at);
  CHECK_FALSE(crossover(x, {{2, 0}, {20, 0}, {200, 0}}, {{1, 0}, {1, 0}, {1, 0}}).found);
  CHECK(crossover(x, {{1, 0}, {1, 0}, {1, 0}}, {{2, 0}, {2, 0}, {2, 0}}).first);
}

TEST_CASE("claims: programs take turns") {
  std::string order;
  Run over;  // began when the clock did, so that its time is over
  const auto seconds = alternating({[&] { order += 'a'; }, [&] { order += 'b'; }}, 9, over);
  CHECK(order == "abababab");  // one round first, which does not count, then three
  REQUIRE(seconds.size() == 2);
  CHECK(seconds[0].size() == 3);
}
