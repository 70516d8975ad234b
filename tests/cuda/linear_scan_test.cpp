// The scan on the device against plain loops: every decay and order, beyond every tile.
#include "support/catch.h"
#include "support/scan_samples.h"

#include <sluice/cuda/emulator/emulator.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/gemm/precision.h>
#include <sluice/ops/shape/view.h>

#include <array>
#include <cmath>

using namespace sluice;
using namespace sluice::testing;

namespace {

/// On the device, as far as the op takes it; `heads_inside`: from memory [batch, n, heads, channels].
Tensor run_on_device(const ScanSample& s, bool heads_inside = false) {
  const auto moved = [&](const Tensor& x) {
    if (!x.defined()) return x;
    return heads_inside && x.rank() == 4 ? transpose(to(contiguous(transpose(x, 1, 2)), Device::cuda()), 1, 2)
                                         : to(x, Device::cuda());
  };
  return to(contiguous(linear_scan(moved(s.q), moved(s.k), moved(s.v), moved(s.decay), s.options)), cpu);
}

void check_sample(const ScanSample& s, bool heads_inside) {
  const Tensor want = recurrence(s);
  check_scan_close({run_on_device(s, heads_inside)}, {want}, 1e-12, s.text());
  check_scan_close({run_on_device(s.in(f32), heads_inside)}, {want}, 4e-6, s.text() + " in f32");
}

constexpr ScanKind kKinds[] = {ScanKind::none, ScanKind::scalar, ScanKind::keys, ScanKind::values};

}  // namespace

TEST_CASE("cuda scan: every decay and order", "[cuda]") {
  Rand rand(41);
  const Strength strengths[] = {Strength::mild, Strength::mixed, Strength::none, Strength::strong, Strength::total};
  int i = 0;
  for (ScanKind kind : kKinds)
    for (Strength strength : strengths)
      for (bool reverse : {false, true}) {
        ScanSample s = random_scan(rand, kind, strength, {1 + i % 2, 1 + i % 3, 1 + rand.below(30), 1 + rand.below(20)},
                                   1 + rand.below(9));
        s.options.reverse = reverse, s.options.chunk = 1 + rand.below(12), s.options.exclusive = i % 5 < 2;
        check_sample(s, ++i % 2);
      }
}

TEST_CASE("cuda scan: beyond every tile, by one and more", "[cuda]") {
  Rand rand(42);
  // f64 and up to 32 channels: 32 of each and 32 steps (16 with decays per channel). More, in f32: 64.
  const int64_t sizes[][3] = {{1, 1, 1},     {32, 32, 32},  {33, 33, 33}, {31, 1, 65},  {65, 65, 1}, {64, 64, 64},
                              {63, 129, 63}, {129, 5, 129}, {16, 31, 2},  {17, 97, 34}, {3, 200, 3}, {4, 0, 3}};
  int i = 0;
  for (const auto& [n, m, e] : sizes)
    for (ScanKind kind : kKinds) {
      ScanSample s = random_scan(rand, kind, Strength::mild, {1 + ++i % 2, 1 + i / 2 % 2, n, m}, e);
      s.options.reverse = i % 3 == 1, s.options.chunk = i % 2 ? 40 : 7, s.options.exclusive = i / 4 % 2;
      check_sample(s, i % 2);
    }
}

TEST_CASE("cuda scan: few heads, their sequences cut into pieces", "[cuda]") {
  Rand rand(45);
  int i = 0;
  for (ScanKind kind : kKinds)
    for (int64_t n : {511, 512, 513, 800})  // from 512 steps on two pieces, from 768 on three
      for (bool reverse : {false, true}) {
        ScanSample s = random_scan(rand, kind, ++i % 4 ? Strength::mild : Strength::mixed, {1, 2, n, 3}, 5);
        s.options.reverse = reverse, s.options.exclusive = i % 3 == 0;
        s.options.chunk = std::vector<int64_t>{1, 9, 100, 300, 1000}[static_cast<std::size_t>(rand.below(5))];
        check_sample(s, i % 2);
      }
  for (ScanKind kind : kKinds) {  // several passes and columns of each piece, too
    ScanSample s = random_scan(rand, kind, Strength::mild, {1, 1, 520, 33}, 34);
    s.options.reverse = ++i % 2;
    check_sample(s, i % 2);
  }
}

TEST_CASE("cuda scan: a state of one row or one column without decay, few numbers and many", "[cuda]") {
  Rand rand(48);
  int i = 0;
  for (const auto& [n, m, e] : {std::array<int64_t, 3>{40, 1, 3}, {700, 1, 3}, {700, 3, 1}, {40, 3, 1}, {1100, 1, 1}})
    for (const bool exclusive : {false, true})
      for (const bool reverse : {false, true}) {
        ScanSample s = random_scan(rand, ScanKind::none, Strength::none, {2, 2, n, m}, e);
        s.options.exclusive = exclusive, s.options.reverse = reverse;
        check_sample(s, ++i % 2);
        const Tensor got = run_on_device(s.in(bf16), i % 2);
        CHECK(got.dtype() == bf16);
        CHECK(max_abs(to(got, f64) - recurrence(s.in(bf16).in(f64))) <= 0x1p-8 * max_abs(recurrence(s)));
      }
}

TEST_CASE("cuda scan: ten thousand steps that forget slowly, in f32", "[cuda]") {
  Rand rand(43);
  for (double g : {-1e-4, -3e-5, -1e-7})
    for (ScanKind kind : {ScanKind::scalar, ScanKind::keys, ScanKind::values}) {
      ScanSample s = random_scan(rand, ScanKind::none, Strength::none, {1, 1, 10000, 1}, 1);
      s.q = abs(s.q), s.k = abs(s.k), s.v = abs(s.v);  // nothing cancels
      s.decay =
          tensor_of({static_cast<float>(g)}, kind == ScanKind::scalar ? Shape{1, 1, 1} : Shape{1, 1, 1, 1}, f64, cpu);
      s.options.decay_on_values = kind == ScanKind::values;
      check_scan_close({run_on_device(s.in(f32))}, {recurrence(s)}, 4e-6, s.text());
    }
}

TEST_CASE("cuda scan: factors near 1 of many chunks are not all off in the same direction", "[cuda]") {
  Rand rand(46);
  ScanSample s = random_scan(rand, ScanKind::none, Strength::none, {1, 264, 2500, 1}, 1);  // so many heads are not cut
  s.q = abs(s.q), s.k = abs(s.k), s.v = abs(s.v);
  const auto g =
      static_cast<float>(std::log1p(-100.5 * 0x1p-24) / 16);  // of a chunk: in the middle between two numbers of f32
  s.decay = tensor_of({g}, {1, 1, 1, 1}, f64, cpu);
  check_scan_close({run_on_device(s.in(f32))}, {recurrence(s)}, 1.2e-6, s.text());
}

TEST_CASE("cuda scan: a log decay of −∞ forgets, and nothing is NaN", "[cuda]") {
  Rand rand(47);
  for (ScanKind kind : {ScanKind::scalar, ScanKind::keys, ScanKind::values})
    for (DType dtype : {f64, f32}) {
      ScanSample s = random_scan(rand, kind, Strength::total, {1, 2, 70, 18}, 17);
      const Tensor want = recurrence(s);
      s.decay = full(s.decay.shape(), -INFINITY, {f64});
      check_scan_close({run_on_device(s.in(dtype))}, {want}, dtype == f64 ? 1e-12 : 4e-6, s.text());
      if (kind == ScanKind::keys || kind == ScanKind::values || dtype == f64) continue;
      PrecisionScope scope(Precision::bf16);
      check_scan_close({run_on_device(s.in(dtype))}, {want}, 2e-2, s.text() + " on tensor cores");
    }
}

TEST_CASE("cuda scan: NaN of a later step does not reach an earlier one; the same bits in every schedule", "[cuda]") {
  Rand rand(44);
  for (ScanKind kind : kKinds)
    for (bool reverse : {false, true}) {
      ScanSample s = random_scan(rand, kind, Strength::mild, {1, 2, 21, 18}, 5);
      s.options.reverse = reverse;
      const Tensor want = run_on_device(s);
      cuda::emulator::set_schedule(7);
      CHECK(same_bits(run_on_device(s), want));
      cuda::emulator::set_schedule(0);
      const int64_t at = 13, first = reverse ? at + 1 : 0, count = reverse ? 20 - at : at;
      for (Tensor* x : {&s.q, &s.k, &s.v}) {
        Tensor y = contiguous(*x);
        for (int64_t h = 0; h < 2; ++h)
          for (int64_t c = 0; c < y.dim(3); ++c) y.mutable_data<double>()[(h * 21 + at) * y.dim(3) + c] = NAN;
        *x = y;
      }
      const Tensor got = run_on_device(s);
      CHECK(same_bits(contiguous(narrow(got, 2, first, count)), contiguous(narrow(want, 2, first, count))));
      CHECK(std::isnan(narrow(got, 2, at, 1).to_vector<double>()[0]));
    }
}
