// Step times on paper: worked by hand.
#include "support/scaling.h"

#include <sluice/core/error.h>

#include "support/approx.h"
#include "support/catch.h"

using namespace sluice;
using namespace sluice::testing;

TEST_CASE("scaling: collectives", "[cost]") {
  const Network net{.latency = 1e-5, .bandwidth = 1e9};
  CHECK(net.all_reduce(1, 1 << 20) == 0);
  CHECK(net.agreement(2) == Approx(1e-5));
  CHECK(net.agreement(4) == Approx(2e-5));
  CHECK(net.agreement(5) == Approx(3e-5));
  // 3 pieces of 1 MB to their ranks, and 3 back to all
  CHECK(net.all_reduce(4, 4'000'000) == Approx(2e-5 + 6 * (1e-5 + 1e-3)));
  CHECK(net.all_gather(4, 1'000'000) == Approx(2e-5 + 3 * (1e-5 + 1e-3)));
  CHECK(net.ring_step(4, 1'000'000) == Approx(2e-5 + 1e-5 + 1e-3));
  Network shared = net;
  shared.shared = true;
  CHECK(shared.ring_step(4, 1'000'000) == Approx(2e-5 + 1e-5 + 4e-3));
  CHECK_THROWS_AS(net.all_reduce(0, 1), ValueError);
  CHECK_THROWS_AS(net.all_reduce(2, -1), ValueError);
  CHECK_THROWS_AS(Network{}.ring_step(2, 1), ValueError);
}

TEST_CASE("scaling: a step hides what it sends behind its backward pass", "[cost]") {
  const Network net{.latency = 0, .bandwidth = 1e9};
  StepParts step{.forward = 1, .backward = 2, .update = 0.5, .gradient_bytes = 40'000'000, .bucket_bytes = 10'000'000};
  CHECK(step.data_parallel(net, 1) == Approx(3.5));
  CHECK(step.data_parallel(net, 2) == Approx(3.5 + 0.01));  // the last of four buckets
  step.overlap = false;
  CHECK(step.data_parallel(net, 2) == Approx(3.5 + 0.04));
  step.overlap = true, step.gradient_bytes = 4'000'000'000;  // the network is slower than the backward pass
  CHECK(step.data_parallel(net, 2) == Approx(1 + 2.0 / 400 + 4 + 0.5));
  CHECK(step.data_parallel({.latency = 0, .bandwidth = 1e15}, 4096) == Approx(3.5).epsilon(1e-4));
}

TEST_CASE("scaling: the ring waits for the slower of work and network", "[cost]") {
  const Network net{.latency = 0, .bandwidth = 1e9};
  CHECK(ring_attention_seconds(4, 1'000'000, net, 4) == Approx(4));
  CHECK(ring_attention_seconds(0.004, 10'000'000, net, 4) == Approx(0.001 + 3 * 0.01));
  CHECK(ring_attention_seconds(4, 1'000'000, net, 1) == Approx(4));
}
