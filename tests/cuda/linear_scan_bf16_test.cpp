// The scan on tensor cores, under Precision::bf16 and of bf16 tensors, on the emulator: against plain loops over the
// operands as they are rounded.
#include "support/catch.h"
#include "support/scan_samples.h"

#include <sluice/autograd/engine.h>
#include <sluice/cuda/emulator/emulator.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/gemm/precision.h>
#include <sluice/ops/shape/join.h>
#include <sluice/ops/rows/reduce.h>
#include <sluice/ops/shape/view.h>

#include <cmath>

using namespace sluice;
using namespace sluice::testing;

namespace {

/// Operands that bf16 has, too; a decay, of which only bf16 tensors are rounded, likewise.
ScanSample rounded(ScanSample s) {
  for (Tensor* x : {&s.q, &s.k, &s.v, &s.decay})
    if (x->defined()) *x = to(to(*x, bf16), f64);
  return s;
}

/// `heads_inside`: from memory [batch, n, heads, channels].
Tensor run(const ScanSample& s, DType dtype, Precision precision = Precision::bf16, bool heads_inside = false) {
  PrecisionScope scope(precision);
  const auto moved = [&](const Tensor& x) {
    if (!x.defined()) return x;
    const Tensor y = to(x, dtype);
    return heads_inside && y.rank() == 4 ? transpose(to(contiguous(transpose(y, 1, 2)), Device::cuda()), 1, 2)
                                         : to(y, Device::cuda());
  };
  const Tensor y = linear_scan(moved(s.q), moved(s.k), moved(s.v), moved(s.decay), s.options);
  CHECK(y.dtype() == dtype);
  return to(contiguous(to(y, cpu)), f64);
}

void check_sample(const ScanSample& given, bool heads_inside) {
  const ScanSample s = rounded(given);
  const Tensor want = recurrence(s);
  INFO(s.text());
  const Tensor got = run(s, f32, Precision::bf16, heads_inside), narrow = run(s, bf16, Precision::f32, heads_inside);
  CHECK(relative_distance(got, want) < 4e-3);  // A, S and what is carried to the end of a chunk are rounded once each
  CHECK(relative_distance(narrow, want) < 5e-3);  // and the result
  CHECK(max_abs_diff(got, want) < 2e-2 * max_abs(want));
  CHECK(max_abs_diff(narrow, to(to(got, bf16), f64)) == 0);  // the same sums
}

}  // namespace

TEST_CASE("cuda scan, bf16: below, at and beyond every tile", "[cuda]") {
  Rand rand(51);
  const int64_t sizes[][3] = {{16, 16, 16}, {17, 33, 40},    {63, 64, 64},    {64, 65, 17},
                              {65, 64, 65}, {129, 128, 128}, {130, 127, 129}, {192, 48, 24}};
  int i = 0;
  for (const auto& [n, m, e] : sizes)
    for (ScanKind kind : {ScanKind::none, ScanKind::scalar}) {
      ++i;
      ScanSample s =
          random_scan(rand, kind, i % 3 ? Strength::mild : Strength::mixed, {1 + i % 2, 1 + i / 2 % 2, n, m}, e);
      s.options.reverse = i % 4 >= 2;
      check_sample(s, i % 2);
    }
}

TEST_CASE("cuda scan, bf16: few heads, their sequences cut into pieces", "[cuda]") {
  Rand rand(52);
  int i = 0;
  for (ScanKind kind : {ScanKind::none, ScanKind::scalar})
    for (int64_t n : {513, 770})
      for (bool reverse : {false, true}) {
        ScanSample s = random_scan(rand, kind, Strength::none, {1, 1 + ++i % 2, n, i % 3 ? 16 : 70}, 18);
        if (s.decay.defined()) s.decay = full({1, 1, n}, -0.0078125, {f64});
        s.options.reverse = reverse;
        check_sample(s, i % 2);
      }
}

TEST_CASE("cuda scan, bf16: numbers that are not finite stay out of what came before; the same bits in every schedule",
          "[cuda]") {
  Rand rand(53);
  for (ScanKind kind : {ScanKind::none, ScanKind::scalar})
    for (bool reverse : {false, true})
      for (double bad : {double(NAN), double(INFINITY)}) {
        ScanSample s = rounded(random_scan(rand, kind, Strength::mild, {1, 2, 100, 18}, 70));
        s.options.reverse = reverse;
        const Tensor want = run(s, f32);
        cuda::emulator::set_schedule(7);
        CHECK(same_bits(run(s, f32), want));
        cuda::emulator::set_schedule(0);
        const int64_t at = 77, first = reverse ? at + 1 : 0, count = reverse ? 99 - at : at;
        for (Tensor* x : {&s.q, &s.k, &s.v}) {
          *x = clone(contiguous(*x));
          for (int64_t h = 0; h < 2; ++h)
            for (int64_t c = 0; c < x->dim(3); ++c) x->mutable_data<double>()[(h * 100 + at) * x->dim(3) + c] = bad;
        }
        const Tensor got = run(s, f32), before = narrow(want, 2, first, count);
        CHECK(max_abs_diff(narrow(got, 2, first, count), before) <
              1e-5 * max_abs(before));  // other sums on the diagonal
        CHECK(std::isnan(narrow(got, 2, at, 1).to_vector<double>()[0]));
      }
}

TEST_CASE("cuda scan, bf16: columns of wider tensors", "[cuda]") {
  Rand rand(56);
  const int64_t sizes[][2] = {{16, 24}, {17, 23}, {65, 16}, {24, 65}};
  for (const auto& [m, e] : sizes)
    for (int64_t skip : {0, 4, 8}) {  // columns before; rows begin at multiples of 16 bytes, but not with 4
      const ScanSample s = rounded(random_scan(rand, ScanKind::scalar, Strength::mild, {1, 2, 70, m}, e));
      INFO(s.text() << ", skipped " << skip);
      const auto inside = [&](const Tensor& x) {
        Shape before = x.shape(), behind = before;
        before[3] = skip, behind[3] = 16 - x.dim(3) % 8 - skip % 8;
        const Tensor wide = cat({full(before, NAN, {bf16}), to(x, bf16), full(behind, NAN, {bf16})}, 3);
        CHECK(wide.dim(3) % 8 == 0);
        return narrow(to(wide, Device::cuda()), 3, skip, x.dim(3));
      };
      const Tensor decay = to(to(s.decay, bf16), Device::cuda());
      const Tensor y = linear_scan(inside(s.q), inside(s.k), inside(s.v), decay, s.options);
      CHECK(same_bits(to(contiguous(to(y, cpu)), f64), run(s, bf16, Precision::f32)));
    }
}

TEST_CASE("cuda scan, bf16: which calls go to the tensor cores", "[cuda]") {
  Rand rand(54);
  const auto goes = [&](ScanKind kind, int64_t n, int64_t m, int64_t e, DType dtype = f32) {
    const ScanSample s = random_scan(rand, kind, Strength::mild, {1, 1, n, m}, e);
    return !same_bits(run(s, dtype, Precision::f32), run(s, dtype, Precision::bf16));
  };
  for (ScanKind kind : {ScanKind::none, ScanKind::scalar}) {
    CHECK(goes(kind, 16, 16, 16));
    CHECK(goes(kind, 20, 128, 20));
    CHECK_FALSE(goes(kind, 15, 16, 16));
    CHECK_FALSE(goes(kind, 16, 15, 16));
    CHECK_FALSE(goes(kind, 16, 129, 16));
    CHECK_FALSE(goes(kind, 16, 16, 15));
    CHECK_FALSE(goes(kind, 16, 16, 16, f64));
  }
  CHECK_FALSE(goes(ScanKind::keys, 20, 16, 16));  // decays per channel stay exact
  CHECK_FALSE(goes(ScanKind::values, 20, 16, 16));
  for (ScanKind kind : kScanKinds) {  // bf16 tensors of these calls are computed in f32
    ScanSample s = rounded(random_scan(rand, kind, Strength::mild, {1, 2, 15, 5}, 7));
    CHECK(same_bits(run(s, bf16), to(to(run(s, f32), bf16), f64)));
  }
}

TEST_CASE("cuda scan, bf16: gradients", "[cuda]") {
  Rand rand(55);
  for (bool reverse : {false, true})
    for (ScanKind kind : {ScanKind::none, ScanKind::scalar}) {
      ScanSample s = rounded(random_scan(rand, kind, Strength::mild, {1, 2, 70, 17}, 33));
      s.options.reverse = reverse;
      const Tensor weights = to(to(random_tensor(s.v.shape(), f64, rand), bf16), f64);
      const auto gradients = [&](Device device, DType dtype, Precision precision) {
        PrecisionScope scope(precision);
        std::vector<Tensor> leaves, results;
        for (const Tensor& x : {s.q, s.k, s.v})
          leaves.push_back(to(to(x, dtype), device).detach()), leaves.back().requires_grad_();
        const Tensor decay = s.decay.defined() ? to(to(s.decay, dtype), device) : Tensor();
        const Tensor y = linear_scan(leaves[0], leaves[1], leaves[2], decay, s.options);
        for (const Tensor& x : grad({sum(y * to(to(weights, dtype), device))}, leaves))
          results.push_back(to(to(contiguous(x), cpu), f64));
        return results;
      };
      const auto want = gradients(cpu, f64, Precision::f32), got = gradients(Device::cuda(), f32, Precision::bf16);
      const auto fine = gradients(Device::cuda(), f32, Precision::f32);
      for (std::size_t i = 0; i < got.size(); ++i) {
        INFO(s.text() << " result " << i);
        CHECK(relative_distance(got[i], want[i]) < 1e-2);
        CHECK(relative_distance(got[i], want[i]) > 1e-5);  // on tensor cores
        CHECK(relative_distance(fine[i], want[i]) < 1e-6);
      }
    }
}
