#include <sluice/layers/train/schedule.h>

#include <sluice/core/error.h>

#include "support/catch.h"

#include <cmath>

using namespace sluice;

TEST_CASE("schedule: constant", "[schedule]") {
  const Schedule s = constant_schedule(0.3);
  CHECK(s(0) == 0.3);
  CHECK(s(1'000'000'000'000) == 0.3);
}

TEST_CASE("schedule: warmup", "[schedule]") {
  const Schedule s = warmup_schedule(2, 3);
  CHECK(s(0) == 0.5);
  CHECK(s(1) == 1);
  CHECK(s(2) == 1.5);
  CHECK(s(3) == 2);
  CHECK(s(99) == 2);
  CHECK(warmup_schedule(2, 0)(0) == 2);
}

TEST_CASE("schedule: cosine", "[schedule]") {
  const Schedule s = cosine_schedule({.lr = 1, .warmup = 4, .total = 10, .floor = 0.25});
  CHECK(s(0) == Approx(0.2).epsilon(1e-15));
  CHECK(s(3) == Approx(0.8).epsilon(1e-15));
  CHECK(s(4) == 1);
  CHECK(s(6) == Approx(0.25 + 0.75 * 0.75).epsilon(1e-15));  // a third of the way: cos = 1/2
  CHECK(s(7) == Approx(0.625).epsilon(1e-15));
  CHECK(s(10) == 0.25);
  CHECK(s(11) == 0.25);
  for (int64_t i = 4; i < 10; ++i) CHECK(s(i + 1) < s(i));
  CHECK(cosine_schedule({.lr = 1, .total = 1})(0) == 1);
}

TEST_CASE("schedule: piecewise linear", "[schedule]") {
  const double r = 1.76e-3;
  const Schedule s = piecewise_schedule({{0, r}, {160'000, r / 2}, {640'000, r / 10}, {1'280'000, r / 100}});
  CHECK(s(0) == r);
  CHECK(s(80'000) == Approx(0.75 * r).epsilon(1e-15));
  CHECK(s(160'000) == r / 2);
  CHECK(s(400'000) == Approx(0.3 * r).epsilon(1e-15));
  CHECK(s(640'000) == r / 10);
  CHECK(s(1'280'000) == r / 100);
  CHECK(s(9'000'000) == r / 100);

  const Schedule late = piecewise_schedule({{10, 1}, {11, 0}});
  CHECK(late(0) == 1);
  CHECK(late(10) == 1);
  CHECK(late(11) == 0);
  CHECK(piecewise_schedule({{5, 2}})(0) == 2);
}

TEST_CASE("schedule: arguments outside their domain are refused", "[schedule]") {
  CHECK_THROWS_AS(constant_schedule(-1), ValueError);
  CHECK_THROWS_AS(constant_schedule(NAN), ValueError);
  CHECK_THROWS_AS(warmup_schedule(INFINITY, 1), ValueError);
  CHECK_THROWS_AS(warmup_schedule(1, -1), ValueError);
  CHECK_THROWS_AS(cosine_schedule({.lr = 1}), ValueError);  // total is missing
  CHECK_THROWS_AS(cosine_schedule({.lr = 1, .warmup = 5, .total = 5}), ValueError);
  CHECK_THROWS_AS(cosine_schedule({.lr = 1, .total = 5, .floor = 2}), ValueError);
  CHECK_THROWS_AS(cosine_schedule({.lr = 1, .total = 5, .floor = -1}), ValueError);
  CHECK_THROWS_AS(piecewise_schedule({}), ValueError);
  CHECK_THROWS_AS(piecewise_schedule({{1, 1}, {1, 2}}), ValueError);
  CHECK_THROWS_AS(piecewise_schedule({{-1, 1}}), ValueError);
  CHECK_THROWS_AS(piecewise_schedule({{0, 1}, {1, -2}}), ValueError);
  for (const Schedule& s :
       {constant_schedule(1), warmup_schedule(1, 1), cosine_schedule({.total = 1}), piecewise_schedule({{0, 1}})})
    CHECK_THROWS_AS(s(-1), ValueError);
}
