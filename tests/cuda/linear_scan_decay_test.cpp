// The gradients of a scan with learned decays in f32 and f64 on the device, of every form, against the CPU in f64.
#include "support/catch.h"
#include "support/scan_samples.h"

#include <sluice/autograd/engine.h>
#include <sluice/core/kernel/backend.h>
#include <sluice/cuda/emulator/emulator.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/kernels.h>
#include <sluice/ops/rows/reduce.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/shape/view.h>

#include <array>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <string_view>

using namespace sluice;
using namespace sluice::testing;

namespace {

constexpr ScanKind kLearned[] = {ScanKind::scalar, ScanKind::keys, ScanKind::values};
constexpr double kForgets = -std::numeric_limits<double>::infinity();

/// q and k of `groups` heads, values `v`, and decays for each step and channel; every fifth is up to `strong`, others
/// are as small as −0.02.
ScanSample sample(Rand& rand, ScanKind kind, const Shape& v, int64_t m, int64_t groups, double strong = -3) {
  ScanSample s = random_scan(rand, ScanKind::none, Strength::none, {v[0], groups, v[2], m}, v[3]);
  s.v = random_tensor(v, f64, rand);
  Shape shape{v[0], v[1], v[2]};
  if (kind != ScanKind::scalar) shape.push_back(kind == ScanKind::keys ? m : v[3]);
  const Tensor draw = random_tensor(shape, f64, rand, 0, 1);
  const Tensor large = std::isfinite(strong) ? (draw * 2.5 + 0.5) * strong : full(shape, strong, {f64});
  s.decay = to(to(where(draw < 0.2, large, draw * -0.02), f32), f64);
  s.options.decay_on_values = kind == ScanKind::values;
  return s;
}

/// The gradients of q, k, v and the decay, for a gradient of y that is `dout`, or random.
std::vector<Tensor> gradients(const ScanSample& s, Device device, DType dtype, const Tensor& dout = {}) {
  Rand rand(5);
  const Tensor g = dout.defined() ? dout : random_tensor(s.v.shape(), f64, rand);
  std::vector<Tensor> leaves, results;
  for (const Tensor& x : {s.q, s.k, s.v, s.decay})
    leaves.push_back(to(to(x, dtype), device).detach()), leaves.back().requires_grad_();
  const Tensor y = linear_scan(leaves[0], leaves[1], leaves[2], leaves[3], s.options);
  for (const Tensor& x : grad({y}, leaves, {.grad_outputs = {to(to(g, dtype), device)}}))
    results.push_back(to(to(contiguous(x), cpu), f64));
  return results;
}

/// Within 1e-12 and 1e-5 of the largest.
void check(const ScanSample& s) {
  const auto want = gradients(s, cpu, f64);
  for (DType dtype : {f64, f32}) {
    const auto got = gradients(s, Device::cuda(), dtype);
    for (std::size_t i = 0; i < 4; ++i) {
      INFO(s.text() << ", heads " << s.v.dim(1) << ", gradient " << i << (dtype == f64 ? " in f64" : " in f32"));
      CHECK(got[i].shape() == want[i].shape());
      CHECK(max_abs_diff(got[i], want[i]) <= (dtype == f64 ? 1e-12 : 1e-5) * std::max(1.0, max_abs(want[i])));
    }
    if (s.v.dim(2) > 0) CHECK(max_abs(narrow(got[3], 2, 0, 1)) == 0);  // nothing comes before the first step
  }
}

}  // namespace

TEST_CASE("cuda scan decays: every form, beyond every tile", "[cuda]") {
  Rand rand(71);
  // f64 and up to 32 channels: tiles of 32; more, in f32: 64. By channel 16 steps.
  const int64_t sizes[][3] = {{0, 3, 2},   {1, 2, 3},    {2, 1, 1},    {17, 16, 1},   {33, 1, 17},  {64, 17, 16},
                              {65, 65, 1}, {47, 1, 129}, {70, 129, 3}, {130, 16, 65}, {79, 65, 70}, {128, 33, 33}};
  int i = 0;
  for (const auto& [n, m, e] : sizes)
    for (ScanKind kind : kLearned) {
      const int64_t share = 1 + ++i % 2;
      ScanSample s = sample(rand, kind, {1 + i / 2 % 2, share * (1 + i % 3), n, e}, m, 1 + i % 3);
      s.options.reverse = i % 4 >= 2, s.options.exclusive = i % 5 < 2;
      check(s);
    }
  for (ScanKind kind : kLearned)
    for (bool reverse : {false, true})
      for (bool exclusive : {false, true}) {
        ScanSample s = sample(rand, kind, {2, 4, 75, 5}, 6, 2);
        s.options.reverse = reverse, s.options.exclusive = exclusive;
        check(s);
      }
}

TEST_CASE("cuda scan decays: few heads, their sequences cut into pieces; several turns of heads", "[cuda]") {
  Rand rand(72);
  int i = 0;
  for (ScanKind kind : kLearned)
    for (const auto& [n, m, e] : {std::array<int64_t, 3>{521, 3, 5}, {800, 2, 34}, {530, 33, 3}}) {
      ScanSample s = sample(rand, kind, {1, 2, n, e}, m, 1 + i % 2);
      s.options.reverse = ++i % 2, s.options.exclusive = i % 3 == 0;
      check(s);
    }
  for (ScanKind kind : kLearned) {  // an emulated device takes 2^18 bytes of states at once
    check(sample(rand, kind, {3, 2, 70, 64}, 64, 2));
    check(sample(rand, kind, {1, 5, 70, 64}, 64, 5));
    check(sample(rand, kind, {2, 6, 70, 64}, 64, 3));
  }
}

TEST_CASE("cuda scan decays: heads of one batch take turns, too, so that memory for states is bounded", "[cuda]") {
  const char* const device = std::getenv("SLUICE_CUDA");
  if (device && std::string_view(device) == "gpu") return;  // which takes 1 GiB at once
  Rand rand(75);
  const auto random = [&](const Shape& shape) { return to(random_tensor(shape, f32, rand), Device::cuda()); };
  const Shape rows{2, 16, 64, 64};
  for (const Shape& decays : {Shape{2, 16, 64}, rows}) {
    const Tensor a = random(rows), b = random(rows), c = random(rows), x = random(rows), g = -abs(random(decays));
    Tensor y = empty(rows, a.options()), z = empty(rows, a.options()), dg = empty(decays, a.options());
    const detail::Backend& gpu = detail::backend(Device::cuda());
    const int64_t before = gpu.memory_stats(0).live;
    gpu.reset_peak(0);
    kernel::linear_scan_decay_backward(a, b, c, x, g, {}, y, z, dg);
    // States of one batch: 512 KiB, or 1 MiB by channel. A turn has half as much beside them in sums by channel.
    CHECK(gpu.memory_stats(0).peak - before < 5 << 17);
  }
}

TEST_CASE("cuda scan decays: strong decays beside weak ones keep the digits of their gradients in f32", "[cuda]") {
  for (ScanKind kind : kLearned)
    for (bool reverse : {false, true})
      for (double strong : {-5.0, -16.0, -50.0}) {
        Rand rand(73);
        ScanSample s = sample(rand, kind, {1, 2, 515, 40}, 40, 2, strong);
        s.options.reverse = reverse;
        const Tensor want = gradients(s, cpu, f64)[3] * s.decay, got = gradients(s, Device::cuda(), f32)[3] * s.decay;
        INFO(s.text() << ", strong decays up to " << strong << ", " << max_abs(want));
        // By channel, pairs in 16 steps are a difference in f32; of 515 steps it would be off by 5e-5 times |strong|.
        const double tolerance = kind == ScanKind::scalar ? 2e-6 : -5e-6 * strong;
        CHECK(max_abs_diff(got, want) <= 2 * tolerance * max_abs(want));
        // Σ dg·g, the gradient of the logarithm of a rate
        CHECK(max_abs_diff(sum(got, {2}), sum(want, {2})) <= tolerance * max_abs(sum(want, {2})));
        if (kind == ScanKind::scalar && strong == -16) {  // the pairs that pass them, beside 10⁴ times as large ones
          const auto strongest = [&](const Tensor& x) { return where(s.decay < -8.0, x, zeros(x.shape(), {f64})); };
          CHECK(max_abs_diff(strongest(got), strongest(want)) <= 1e-4 * max_abs(strongest(want)));
        }
      }
}

TEST_CASE("cuda scan decays: a decay of −∞, and what is not finite", "[cuda]") {
  Rand rand(74);
  for (ScanKind kind : kLearned) {
    const ScanSample s = sample(rand, kind, {1, 2, 70, 9}, 7, 2, kForgets);
    check(s);
    const auto got = gradients(s, Device::cuda(), f32);
    CHECK(max_abs(got[3] * to(s.decay == kForgets, f64)) == 0);

    // dq_t reads k_j and v_j of j <= t, dk_j and dv_j read q_t and dout_t of t >= j; a decay's gradient, both.
    const int64_t at = 37, n = 70;
    const ScanSample mild = sample(rand, kind, {1, 2, n, 9}, 7, 2);
    const Tensor dout = random_tensor(mild.v.shape(), f64, rand);
    const auto want = gradients(mild, Device::cuda(), f32, dout);
    cuda::emulator::set_schedule(7);
    const auto again = gradients(mild, Device::cuda(), f32, dout);
    cuda::emulator::set_schedule(0);
    for (std::size_t i = 0; i < 4; ++i) CHECK(same_bits(again[i], want[i]));
    for (int which = 0; which < 4; ++which) {
      ScanSample t = mild;
      Tensor d = clone(dout);
      Tensor& x = which == 0 ? t.q : which == 1 ? t.k : which == 2 ? t.v : d;
      x = clone(x);
      Tensor row = narrow(x, 2, at, 1);
      fill_(row, NAN);
      const auto spoilt = gradients(t, Device::cuda(), f32, d);
      const bool of_result = which == 0 || which == 3;
      const auto same = [&](std::size_t i, int64_t from, int64_t to) {
        INFO("operand " << which << ", gradient " << i);
        CHECK(max_abs_diff(narrow(spoilt[i], 2, from, to - from), narrow(want[i], 2, from, to - from)) <=
              1e-5 * max_abs(want[i]));
      };
      if (of_result) same(0, 0, at), same(0, at + 1, n), same(1, at + 1, n), same(2, at + 1, n);
      else same(0, 0, at), same(1, 0, at), same(1, at + 1, n), same(2, 0, at), same(2, at + 1, n);
      // Of decays NaN reaches what it passes, and at most the rest of its chunk of 16, 32 or 64 steps.
      of_result ? same(3, 64, n) : same(3, 0, 32);
    }
  }
}
