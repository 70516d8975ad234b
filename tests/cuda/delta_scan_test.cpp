// The delta rule on the device: results against the recurrence step by step, gradients against those composed of ops on
// the CPU, which run through other kernels; every decay, beyond every tile.
#include "support/catch.h"
#include "support/delta_samples.h"

#include <sluice/autograd/engine.h>
#include <sluice/cuda/emulator/emulator.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/gemm/precision.h>
#include <sluice/ops/rows/reduce.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/shape/join.h>
#include <sluice/ops/shape/rearrange.h>
#include <sluice/ops/shape/view.h>

#include <cmath>

using namespace sluice;
using namespace sluice::testing;

namespace {

std::vector<Tensor> run(const DeltaSample& given) {
  const DeltaSample s = given.in(Device::cuda());
  const DeltaScanResult y = delta_rule(s.q, s.k, s.v, s.beta, s.decay, s.initial, s.options);
  return {to(contiguous(y.out), cpu), to(y.state, cpu)};
}

void check_results(const DeltaSample& s) {
  const std::vector<Tensor> want = delta_recurrence(s);
  check_delta(run(s), want, 1e-12, s.text());
  check_delta(run(s.in(f32)), want, 1e-5, s.text() + " f32");
}

}  // namespace

TEST_CASE("cuda delta rule: every decay, at the edges of tiles", "[cuda][delta_scan]") {
  Rand rand(61);
  for (DeltaDecay decay : kDeltaDecays)
    for (int64_t n : {1, 4, 5, 15, 17, 31, 33, 65, 70})
      for (int64_t chunk : {3, 16, 40, 64}) {
        if (chunk > n && chunk != 64) continue;
        const int64_t heads = 1 + rand.below(2);
        DeltaSample s = random_delta(
            rand, decay,
            {1 + rand.below(2), heads, heads * (1 + rand.below(3)), n, 1 + rand.below(9), 1 + rand.below(9)});
        s.options.chunk = chunk;
        check_results(s);
      }
}

TEST_CASE("cuda delta rule: beyond every tile, by one and more", "[cuda][delta_scan]") {
  Rand rand(62);
  int i = 0;
  for (DeltaDecay decay : kDeltaDecays)
    for (const DeltaSizes& size :
         {DeltaSizes{1, 1, 2, 65, 33, 1}, {1, 1, 1, 129, 65, 65}, {1, 2, 2, 33, 32, 33}, {2, 1, 1, 66, 129, 34}}) {
      DeltaSample s = random_delta(rand, decay, size, i % 2 ? 0.9 : 0);
      s.options.chunk = ++i % 3 ? 64 : 100;
      check_results(s);
    }
}

TEST_CASE("cuda delta rule: gradients, every decay, beyond every tile", "[cuda][delta_scan]") {
  Rand rand(63);
  const DeltaSizes sizes[] = {{1, 1, 1, 5, 3, 2},    {2, 1, 3, 17, 2, 4},   {1, 2, 4, 66, 5, 3},
                              {1, 1, 1, 34, 33, 35}, {1, 1, 2, 70, 65, 33}, {1, 1, 1, 65, 34, 66}};
  int i = 0;
  for (DeltaDecay decay : kDeltaDecays)
    for (const DeltaSizes& size : sizes) {
      DeltaSample s = random_delta(rand, decay, size, ++i % 2 ? 0.9 : 0);
      s.options.chunk = std::vector<int64_t>{64, 16, 40, 7}[static_cast<std::size_t>(i % 4)];
      const std::vector<Tensor> want = run_delta(s, true);
      check_delta(run_delta(s.in(Device::cuda())), want, 1e-11, s.text());
      check_delta(run_delta(s.in(f32).in(Device::cuda())), want, 1e-5, s.text() + " f32");
    }
}

TEST_CASE("cuda delta rule: gradients of one result alone", "[cuda][delta_scan]") {
  Rand rand(64);
  const DeltaSample s = random_delta(rand, DeltaDecay::keys, {1, 1, 2, 40, 4, 3});
  for (bool of_state : {false, true}) {
    std::vector<Tensor> results;
    for (Device device : {Device::cuda(), cpu}) {
      const DeltaSample here = s.in(device);
      const Tensor k = clone(here.k).requires_grad_(), v = clone(here.v).requires_grad_();
      const DeltaScanResult y = delta_rule(here.q, k, v, here.beta, here.decay, here.initial);
      const std::vector<Tensor> grads =
          grad({sum(of_state ? y.state : y.out)}, {k, v}, {.create_graph = device == cpu});
      if (device == cpu) check_delta(results, grads, 1e-11, of_state ? "state" : "out");
      results = grads;
    }
  }
}

TEST_CASE("cuda delta rule: the rows u alone", "[cuda][delta_scan]") {
  Rand rand(65);
  for (DeltaDecay decay : kDeltaDecays) {
    const DeltaSample s = random_delta(rand, decay, {1, 2, 2, 70, 6, 5}), here = s.in(Device::cuda());
    const Tensor want = delta_values(s.k, s.erase(), s.write(), s.decay);
    check_delta({contiguous(delta_values(here.k, here.erase(), here.write(), here.decay))}, {want}, 1e-12, s.text());
  }
}

TEST_CASE("cuda delta rule: a decay of −∞ drops what was, and has no gradient", "[cuda][delta_scan]") {
  Rand rand(66);
  for (DeltaDecay decay : {DeltaDecay::scalar, DeltaDecay::keys})
    for (DType dtype : {f64, f32}) {
      DeltaSample s = random_delta(rand, decay, {1, 1, 2, 70, 3, 4});
      const Tensor position = reshape(arange(70), decay == DeltaDecay::keys ? Shape{70, 1} : Shape{70});
      s.decay = masked_fill(clamp(s.decay, -0.5), position == 40.0, -std::numeric_limits<double>::infinity());
      const std::vector<Tensor> want = run_delta(s), got = run_delta(s.in(dtype).in(Device::cuda()));
      check_delta(got, want, dtype == f64 ? 1e-11 : 1e-5, s.text());
      CHECK(max_abs(narrow(to(got[6], cpu), 2, 40, 1)) == 0);
    }
}

TEST_CASE("cuda delta rule: what is not finite reaches no earlier step; the same bits in every schedule",
          "[cuda][delta_scan]") {
  Rand rand(67);
  for (DeltaDecay decay : kDeltaDecays) {
    DeltaSample s = random_delta(rand, decay, {1, 1, 2, 40, 18, 5});
    s.options.chunk = 20;
    const std::vector<Tensor> want = run_delta(s.in(Device::cuda()));
    for (uint64_t seed : {6, 7}) {
      cuda::emulator::set_schedule(seed);
      const std::vector<Tensor> again = run_delta(s.in(Device::cuda()));
      cuda::emulator::set_schedule(0);
      for (std::size_t i = 0; i < want.size(); ++i) CHECK(same_bits(to(again[i], cpu), to(want[i], cpu)));
    }
    for (int64_t t : {13, 30})
      for (double bad : {std::nan(""), double(INFINITY)}) {
        DeltaSample x = s;
        const Tensor there = reshape(arange(40), {40, 1}) == static_cast<double>(t);
        for (Tensor* rows : {&x.q, &x.k, &x.v}) *rows = masked_fill(*rows, there, bad);
        const Tensor got = run(x)[0];
        CHECK(same_bits(contiguous(narrow(got, 2, 0, t)), contiguous(narrow(to(contiguous(want[0]), cpu), 2, 0, t))));
        CHECK(std::isnan(narrow(got, 2, t, 1).to_vector<double>()[0]));
      }
  }
}

TEST_CASE("cuda delta rule: a state too large for shared memory", "[cuda][delta_scan]") {
  Rand rand(68);
  for (DeltaDecay decay : {DeltaDecay::none, DeltaDecay::scalar}) {
    const DeltaSample s = random_delta(rand, decay, {1, 1, 1, 6, 700, 2});  // in f64 22 pieces, in f32 11
    const std::vector<Tensor> want = run_delta(s, true);
    check_delta(run_delta(s.in(Device::cuda())), want, 1e-11, s.text());
    check_delta(run_delta(s.in(f32).in(Device::cuda())), want, 1e-5, s.text() + " f32");
  }
}

TEST_CASE("cuda delta rule: on tensor cores, below, at and beyond every tile", "[cuda][delta_scan]") {
  Rand rand(69);
  int i = 0;
  for (DeltaDecay decay : {DeltaDecay::none, DeltaDecay::scalar})
    for (const DeltaSizes& size :
         {DeltaSizes{1, 1, 2, 16, 16, 16}, {2, 1, 1, 65, 33, 17}, {1, 2, 2, 130, 65, 65}, {1, 1, 3, 70, 128, 34}}) {
      DeltaSample s = random_delta(rand, decay, size, ++i % 2 ? 0.5 : 0);
      s.options.chunk = i % 3 ? 64 : 100;
      for (Tensor* x : {&s.q, &s.k, &s.v}) *x = to(to(*x, bf16), f64);
      const std::vector<Tensor> want = run_delta(s, true), fine = run(s.in(f32));
      const PrecisionScope scope(Precision::bf16);
      const std::vector<Tensor> got = run(s.in(f32)), recorded = run_delta(s.in(f32).in(Device::cuda()));
      for (std::size_t j = 0; j < want.size(); ++j) {
        const double distance = relative_distance(recorded[j], want[j]);
        INFO(s.text() << ": result " << j << " is off by " << distance);
        CHECK(distance < (j < 2 ? 6e-3 : 4e-3));  // rows, S, P and u are rounded once each
        if (j >= 2) continue;
        CHECK(distance > 1e-5);
        CHECK(same_bits(to(contiguous(recorded[j]), cpu), got[j]));
        CHECK(max_abs_diff(to(fine[j], f64), want[j]) < 1e-5 * std::max(0.1, max_abs(want[j])));
      }
    }
}

TEST_CASE("cuda delta rule: bf16 tensors give what f32 ones of the same values give, rounded", "[cuda][delta_scan]") {
  Rand rand(71);
  for (DeltaDecay decay : kDeltaDecays)
    for (const DeltaSizes& size : {DeltaSizes{1, 1, 2, 65, 18, 17}, {1, 2, 2, 20, 16, 23}, {1, 1, 1, 9, 3, 5}}) {
      const DeltaSample s = random_delta(rand, decay, size);
      const PrecisionScope scope(Precision::bf16);
      std::vector<DeltaScanResult> results;
      for (DType dtype : {bf16, f32}) {
        const auto moved = [&](const Tensor& x) {
          return x.defined() ? to(to(to(x, bf16), dtype), Device::cuda()) : x;
        };
        const DeltaScanResult y = delta_scan(moved(s.q), moved(s.k), moved(s.erase()), moved(s.write()), moved(s.decay),
                                             s.initial.defined() ? to(to(s.initial, f32), Device::cuda()) : Tensor());
        CHECK(y.out.dtype() == dtype);
        results.push_back({to(to(contiguous(y.out), cpu), bf16), to(y.state, cpu)});
      }
      INFO(s.text());
      CHECK(same_bits(results[0].out, results[1].out));
      CHECK(same_bits(results[0].state, results[1].state));
    }
}

TEST_CASE(
    "cuda delta rule: on tensor cores what is not finite reaches no earlier step; the same bits in every schedule",
    "[cuda][delta_scan]") {
  Rand rand(70);
  const PrecisionScope scope(Precision::bf16);
  for (DeltaDecay decay : {DeltaDecay::none, DeltaDecay::scalar}) {
    const DeltaSample s = random_delta(rand, decay, {1, 1, 2, 70, 18, 17}).in(f32);
    const Tensor want = run(s)[0];
    cuda::emulator::set_schedule(7);
    CHECK(same_bits(run(s)[0], want));
    cuda::emulator::set_schedule(0);
    for (int64_t t : {13, 66}) {
      DeltaSample x = s;
      const Tensor there = reshape(arange(70), {70, 1}) == static_cast<double>(t);
      for (Tensor* rows : {&x.q, &x.k, &x.v}) *rows = masked_fill(*rows, there, std::nan(""));
      const Tensor got = run(x)[0], before = narrow(want, 2, 0, t);
      CHECK(max_abs_diff(narrow(got, 2, 0, t), before) < 1e-2 * max_abs(before));  // other sums on the diagonal
      CHECK(std::isnan(narrow(got, 2, t, 1).to_vector<float>()[0]));
    }
  }
}
