// linear_scan() against the recurrence step by step and against its definition, for every decay from none to
// total, at the edges of chunks; streams in pieces; later steps; errors. Its rows are in support/cases_scan.cpp.
#include "ops/gemm_samples.h"
#include "support/attention_samples.h"
#include "support/catch.h"
#include "support/scan_samples.h"

#include <sluice/autograd/engine.h>
#include <sluice/core/memory/allocator.h>
#include <sluice/core/kernel/parallel.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/rows/reduce.h>
#include <sluice/ops/scan/linear_scan.h>
#include <sluice/ops/shape/view.h>

#include <cmath>
#include <limits>

using namespace sluice;
using namespace sluice::testing;

namespace {

void each_variant(const std::function<void(ScanKind, LinearScanOptions)>& f) {
  for (ScanKind kind : kScanKinds)
    for (bool reverse : {false, true})
      for (bool exclusive : {false, true})
        f(kind, {.reverse = reverse, .decay_on_values = kind == ScanKind::values, .exclusive = exclusive});
}

}  // namespace

TEST_CASE("linear_scan: equals the recurrence for every decay, at the edges of chunks", "[linear_scan]") {
  Rand rand(1);
  int compared = 0;
  each_variant([&](ScanKind kind, LinearScanOptions o) {
    for (Strength strength : kStrengths)
      for (int64_t n : {1, 2, 15, 16, 17, 33, 63, 64, 65, 130})
        for (int64_t chunk : {int64_t{1}, int64_t{3}, int64_t{16}, int64_t{64}, n, n + 9}) {
          if ((kind == ScanKind::none && strength != Strength::mild) || (n > 64 && chunk == 1)) continue;
          ScanSample s = random_scan(rand, kind, strength, {1 + rand.below(2), 1 + rand.below(2), n, 1 + rand.below(5)},
                                     1 + rand.below(5));
          s.options = o, s.options.chunk = chunk;
          const Tensor want = recurrence(s);
          auto scan = [](const ScanSample& x) { return linear_scan(x.q, x.k, x.v, x.decay, x.options); };
          const double size = std::max(0.1, max_abs(want));
          const double wide = max_abs_diff(scan(s), want), narrow32 = max_abs_diff(to(scan(s.in(f32)), f64), want);
          if (!(wide <= 1e-13 * size))
            FAIL_CHECK(s.text() << " strength " << static_cast<int>(strength) << ": off by " << wide << " of " << size);
          if (!(narrow32 <= 2e-6 * size))
            FAIL_CHECK(s.text() << " strength " << static_cast<int>(strength) << " f32: off by " << narrow32 << " of "
                                << size);
          ++compared;
        }
  });
  CHECK(compared > 100);
}

TEST_CASE("linear_scan: first gradients equal those of the definition", "[linear_scan]") {
  Rand rand(5);
  each_variant([&](ScanKind kind, LinearScanOptions o) {
    for (Strength strength : kStrengths)
      for (int64_t n : {1, 5, 16, 17, 40, 66})
        for (int64_t chunk : {int64_t{1}, int64_t{3}, int64_t{16}, int64_t{64}, n}) {
          if (kind == ScanKind::none && strength != Strength::mild) continue;
          ScanSample s = random_scan(rand, kind, strength, {1 + rand.below(2), 1 + rand.below(2), n, 1 + rand.below(4)},
                                     1 + rand.below(4));
          s.options = o, s.options.chunk = chunk;
          // The definition takes differences of running sums: of 1e4 · n it loses six digits.
          const bool exact = strength != Strength::mixed && strength != Strength::total;
          const std::vector<Tensor> want = run_scan(scan_by_pairs, s);
          const std::string text = s.text() + str(" strength ", static_cast<int>(strength));
          check_scan_close(run_scan(linear_scan, s), want, exact ? 1e-12 : 1e-8, text);
          ScanSample each = s;  // a decay for each step
          if (kind == ScanKind::scalar) each.decay = contiguous(expand(s.decay, Shape{s.q.dim(0), s.q.dim(1), n}));
          if (kind == ScanKind::keys) each.decay = contiguous(expand(s.decay, s.q.shape()));
          if (kind == ScanKind::values) each.decay = contiguous(expand(s.decay, s.v.shape()));
          const double steps = kind == ScanKind::none ? 0 : max_abs(run_scan(scan_by_pairs, each)[4]);
          check_scan_close(run_scan(linear_scan, s.in(f32)), want, 2e-5, text + " f32", steps);
        }
  });
}

TEST_CASE("linear_scan: the gradient of a strong decay keeps its digits", "[linear_scan]") {
  // What a step reads of itself has no decay. Were it in both sums whose difference dg is, its rounding errors would
  // be larger than dg.
  Rand rand(6);
  each_variant([&](ScanKind kind, LinearScanOptions o) {
    if (kind == ScanKind::none) return;
    for (double decay : {-1.0, -5.0, -10.0, -30.0}) {
      ScanSample s = random_scan(rand, kind, Strength::mild, {1, 2, 700, 6}, 5);
      s.options = o, s.decay = full(s.decay.shape(), decay, {f64});
      const Tensor wide = run_scan(linear_scan, s)[4], narrow = run_scan(linear_scan, s.in(f32))[4];
      INFO(s.text() << ", decay " << decay);
      CHECK(max_abs_diff(to(narrow, f64), wide) <= 1e-4 * max_abs(wide));  // a broadcast decay's: sums of sums
    }
  });
}

TEST_CASE("linear_scan: a decay of f32 beside bf16 is not rounded", "[linear_scan]") {
  Rand rand(12);
  for (ScanKind kind : {ScanKind::scalar, ScanKind::keys, ScanKind::values})
    for (bool reverse : {false, true}) {
      ScanSample s = random_scan(rand, kind, Strength::mild, {1, 2, 700, 3}, 3);
      s.options.reverse = reverse, s.options.decay_on_values = kind == ScanKind::values;
      // Of 700 steps of −1/300 little is left, and less or more by a sixth where bf16 rounds each.
      s.decay = full({1, 2, 1}, -1.0 / 300 * (1 + 0x1p-9), {f64});
      if (kind != ScanKind::scalar) s.decay = expand(unsqueeze(s.decay, -1), {1, 2, 700, 3});
      const Tensor exact = s.decay;
      s = s.in(bf16);
      const std::vector<Tensor> wide = run_scan(linear_scan, [&] {
        ScanSample x = s.in(f32);
        x.decay = to(exact, f32);
        return x;
      }());
      s.decay = to(exact, f32);
      const std::vector<Tensor> half = run_scan(linear_scan, s);
      INFO(s.text());
      for (std::size_t i = 0; i < half.size(); ++i) {
        CHECK(half[i].dtype() == (i == 4 ? f32 : bf16));
        CHECK(max_abs_diff(to(half[i], f32), wide[i]) <= 6e-3 * max_abs(wide[i]));
      }
      if (reverse || kind == ScanKind::values) continue;
      const Tensor k = to(s.k, f32), v = to(s.v, f32), state = linear_scan_state(k, v, s.decay);
      CHECK(max_abs_diff(to(linear_scan_state(s.k, s.v, s.decay), f32), state) <= 5e-3 * max_abs(state));
      const Tensor before = to(state, bf16), carried = linear_scan_carry(k, to(before, f32), s.decay);
      CHECK(max_abs_diff(to(linear_scan_carry(s.k, before, s.decay), f32), carried) <= 5e-3 * max_abs(carried));
    }
  const Tensor x = zeros({1, 1, 2, 2}, {bf16});
  CHECK_THROWS_AS(linear_scan(x, x, x, zeros({1, 1, 2}, {f64})), DTypeError);
  CHECK_THROWS_AS(linear_scan(to(x, f32), to(x, f32), to(x, f32), zeros({1, 1, 2}, {bf16})), DTypeError);
}

TEST_CASE("linear_scan: a long sequence neither overflows nor fades to NaN", "[linear_scan]") {
  Rand rand(4);
  for (ScanKind kind : kScanKinds)
    for (Strength strength : kStrengths)
      for (bool reverse : {false, true}) {
        if (kind == ScanKind::none && strength != Strength::mild) continue;
        ScanSample s = random_scan(rand, kind, strength, {1, 1, 1000, 4}, 3);
        s.options.reverse = reverse;
        const Tensor want = recurrence(s);
        const std::vector<Tensor> wide = run_scan(linear_scan, s), half = run_scan(linear_scan, s.in(f32));
        INFO(s.text() << " strength " << static_cast<int>(strength));
        CHECK(max_abs_diff(wide[0], want) <= 1e-13 * std::max(1.0, max_abs(want)));
        CHECK(max_abs_diff(to(half[0], f64), want) <= 3e-6 * std::max(1.0, max_abs(want)));
        check_scan_close(half, wide, 2e-5, s.text() + str(" strength ", static_cast<int>(strength)));
        for (const auto& results : {wide, half})
          for (const Tensor& x : results) CHECK(all_finite(x));
      }
}

TEST_CASE("linear_scan: numbers near the largest overflow no earlier than their sums", "[linear_scan]") {
  Rand rand(9);
  for (ScanKind kind : {ScanKind::keys, ScanKind::values})
    for (bool reverse : {false, true})
      for (double large : {1e30, 3e33, 1e34, 1e35, 1e36}) {
        ScanSample s = random_scan(rand, kind, Strength::mild, {1, 2, 70, 3}, 3);
        s.options.reverse = reverse, s.options.decay_on_values = kind == ScanKind::values;
        s.decay = full(s.decay.shape(), -0.5, {f64});  // e^{−8} over a block
        if (kind == ScanKind::keys) s.k = to(to(s.k * large, f32), f64), s.q = to(to(s.q / std::sqrt(large), f32), f64);
        else s.v = to(to(s.v * large, f32), f64);
        const Tensor want = recurrence(s),
                     got = to(linear_scan(to(s.q, f32), to(s.k, f32), to(s.v, f32), to(s.decay, f32), s.options), f64);
        INFO(s.text() << " times " << large);
        CHECK(max_abs_diff(got, want) <= 3e-6 * max_abs(want));
      }
}

TEST_CASE("linear_scan: what is not finite stays in its sequence, and out of what came before it", "[linear_scan]") {
  Rand rand(10);
  const double inf = std::numeric_limits<double>::infinity();
  for (ScanKind kind : {ScanKind::keys, ScanKind::values})
    for (double bad : {inf, std::numeric_limits<double>::quiet_NaN()}) {
      ScanSample s = random_scan(rand, kind, Strength::mild, {1, 2, 40, 2}, 2);
      s.options.decay_on_values = kind == ScanKind::values;
      const Tensor want = recurrence(s);
      Tensor& x = kind == ScanKind::keys ? s.k : s.v;
      x = clone(x);
      x.mutable_data<double>()[21 * 2] = bad;  // step 21 of the first head; later ones and the other head follow it
      const int threads = num_threads();
      set_num_threads(1);  // in the same memory
      const Tensor got = linear_scan(s.q, s.k, s.v, s.decay, s.options);
      set_num_threads(threads);
      CHECK(max_abs_diff(narrow(narrow(got, 1, 0, 1), 2, 0, 21), narrow(narrow(want, 1, 0, 1), 2, 0, 21)) < 1e-13);
      CHECK(!all_finite(narrow(narrow(got, 1, 0, 1), 2, 21, 1)));
      CHECK(max_abs_diff(narrow(got, 1, 1, 1), narrow(want, 1, 1, 1)) < 1e-13);
    }
}

TEST_CASE("linear_scan: total decay leaves the own step, no decay everything; −∞ is total", "[linear_scan]") {
  Rand rand(5);
  for (ScanKind kind : {ScanKind::scalar, ScanKind::keys, ScanKind::values})
    for (bool reverse : {false, true})
      for (DType dtype : {f64, f32}) {
        ScanSample s = random_scan(rand, kind, Strength::total, {2, 2, 40, 3}, 3).in(dtype);
        s.options.reverse = reverse;
        const Tensor own = sum(s.q * s.k, {-1}, keep) * s.v;
        CHECK(max_abs_diff(linear_scan(s.q, s.k, s.v, s.decay, s.options), own) < (dtype == f64 ? 1e-14 : 1e-6));
        ScanSample infinite = s;
        infinite.decay = full(s.decay.shape(), -INFINITY, s.decay.options());
        for (const Tensor& x : run_scan(linear_scan, infinite)) CHECK(all_finite(x));
        CHECK(max_abs_diff(linear_scan(s.q, s.k, s.v, infinite.decay, s.options), own) < (dtype == f64 ? 1e-14 : 1e-6));
        const Tensor still = linear_scan(s.q, s.k, s.v, s.decay * 0.0, s.options),
                     plain = linear_scan(s.q, s.k, s.v, {}, s.options);
        CHECK(max_abs_diff(still, plain) < (dtype == f64 ? 1e-13 : 1e-5));
      }
}

TEST_CASE("linear_scan: a stream in pieces carries its state", "[linear_scan]") {
  Rand rand(6);
  for (ScanKind kind : {ScanKind::none, ScanKind::scalar, ScanKind::keys})
    for (Strength strength : kStrengths) {
      const ScanSample s = random_scan(rand, kind, strength, {2, 2, 70, 3}, 4);
      const Tensor decay =
          s.decay.defined()
              ? contiguous(expand(s.decay, kind == ScanKind::scalar ? Shape{2, 2, 70} : Shape{2, 2, 70, 3}))
              : Tensor();
      const Tensor full = linear_scan(s.q, s.k, s.v, decay);
      for (const std::vector<int64_t>& sizes : {std::vector<int64_t>{1}, {7}, {64, 1}, {20, 1, 3}, {70}}) {
        Tensor state;
        std::vector<Tensor> outputs;
        for (int64_t at = 0, i = 0; at < 70; ++i) {
          const int64_t size = std::min(sizes[static_cast<std::size_t>(i) % sizes.size()], 70 - at);
          auto piece = [&](const Tensor& x) { return x.defined() ? narrow(x, 2, at, size) : x; };
          Tensor y = linear_scan(piece(s.q), piece(s.k), piece(s.v), piece(decay));
          if (state.defined()) y = y + linear_scan_carry(piece(s.q), state, piece(decay));
          state = linear_scan_state(piece(s.k), piece(s.v), piece(decay), state);
          outputs.push_back(y);
          at += size;
        }
        INFO(s.text() << " pieces of " << sizes[0]);
        CHECK(max_abs_diff(cat(outputs, 2), full) < 1e-12);
        CHECK(max_abs_diff(state, linear_scan_state(s.k, s.v, decay)) < 1e-12);
      }
    }
  // Nothing new leaves the state as it is.
  const Tensor state = random_tensor({1, 2, 3, 4}, f64, rand), k = zeros({1, 2, 0, 3}, {f64}),
               v = zeros({1, 2, 0, 4}, {f64});
  CHECK(max_abs_diff(linear_scan_state(k, v, zeros({1, 2, 0}, {f64}), state), state) == 0);
  CHECK(linear_scan_carry(k, state).shape() == Shape{1, 2, 0, 4});
}

TEST_CASE("linear_scan: of keys without channels no decay is read", "[linear_scan]") {
  Fenced<float> none(0);  // reading a number there ends the program
  const Tensor g = Tensor::from_blob(none.data(), {1, 2, 3, 0}), k = zeros({1, 2, 3, 0}), v = ones({1, 2, 3, 1});
  for (const bool reverse : {false, true})
    CHECK(max_abs(linear_scan(k, k, v, g, {.reverse = reverse, .exclusive = !reverse})) == 0);
}

TEST_CASE("linear_scan: later steps change no bit of earlier ones", "[linear_scan][bits]") {
  Rand rand(8);
  for (ScanKind kind : kScanKinds)
    for (bool reverse : {false, true})
      for (int64_t chunk : {1, 16, 64})
        for (DType dtype : {f64, f32}) {
          ScanSample s = random_scan(rand, kind, Strength::mild, {1, 2, 100, 3}, 4).in(dtype);
          if (s.decay.defined())
            s.decay = contiguous(expand(s.decay, kind == ScanKind::scalar
                                                     ? Shape{1, 2, 100}
                                                     : Shape{1, 2, 100, kind == ScanKind::keys ? 3 : 4}));
          s.options.chunk = chunk, s.options.reverse = reverse;
          const Tensor y = linear_scan(s.q, s.k, s.v, s.decay, s.options);
          for (int64_t t : {1, 30, 64, 99}) {
            const Tensor position = reshape(arange(100), {100, 1}),
                         changed = reverse ? position < static_cast<double>(t) : position >= static_cast<double>(t);
            auto with = [&](const Tensor& x, double value) {
              return x.defined() ? masked_fill(x, x.rank() == 3 ? squeeze(changed, 1) : changed, value) : x;
            };
            const Tensor z = linear_scan(with(s.q, 3), with(s.k, 3), with(s.v, 1e10), with(s.decay, -2), s.options);
            INFO(s.text() << " from " << t);
            if (reverse) CHECK(same_bits(narrow(z, 2, t, 100 - t), narrow(y, 2, t, 100 - t)));
            else CHECK(same_bits(narrow(z, 2, 0, t), narrow(y, 2, 0, t)));
            CHECK_FALSE(same_bits(z, y));
          }
        }
}

TEST_CASE("linear_scan: a state of one row or one column, of every width", "[linear_scan][bits]") {
  Rand rand(12);
  for (ScanKind kind : kScanKinds)
    for (bool reverse : {false, true})
      for (const auto& [m, e] :
           {std::pair<int64_t, int64_t>{1, 1}, {1, 2}, {2, 1}, {1, 16}, {16, 1}, {1, 65}, {65, 1}, {1, 300}})
        for (DType dtype : {f64, f32}) {
          ScanSample s = random_scan(rand, kind, Strength::mild, {2, 3, 131, m}, e);
          s.options.reverse = reverse, s.options.decay_on_values = kind == ScanKind::values;
          const Tensor want = recurrence(s);
          const double size = std::max(0.1, max_abs(want));
          const ScanSample given = s.in(dtype);
          const auto scan = [&](const Tensor& v) {
            return linear_scan(given.q, given.k, v, given.decay, given.options);
          };
          const Tensor y = scan(given.v);
          INFO(s.text());
          CHECK(max_abs_diff(to(y, f64), want) <= (dtype == f64 ? 1e-13 : 2e-6) * size);
          const Tensor position =
              reshape(arange(131), {131, 1});  // step 70 sees what is not a number there, and those after it
          const Tensor z = scan(masked_fill(given.v, position == 70.0, std::numeric_limits<double>::quiet_NaN()));
          const int64_t before = reverse ? 71 : 0, count = reverse ? 60 : 70;
          CHECK(same_bits(narrow(z, 2, before, count), narrow(y, 2, before, count)));
          CHECK(!any(isfinite(narrow(z, 2, reverse ? 0 : 70, reverse ? 71 : 61))).item());
        }
}

TEST_CASE("linear_scan: memory grows with n, not with its square", "[linear_scan][memory]") {
  Rand rand(11);
  const int64_t n = 4000;
  for (ScanKind kind : kScanKinds) {
    ScanSample s = random_scan(rand, kind, Strength::mild, {1, 1, n, 4}, 4).in(f32);
    const int64_t before = memory_stats().live;
    reset_peak_memory();
    run_scan(linear_scan, s);
    INFO(s.text());
    CHECK(memory_stats().peak - before < 4 * n * 4 * 40 + (1 << 18));
  }
}

TEST_CASE("linear_scan: what does not fit, and by which words", "[linear_scan]") {
  auto f = [](const Shape& shape) { return zeros(shape); };
  const Tensor q = f({2, 3, 5, 4}), v = f({2, 3, 5, 6});
  CHECK_THROWS_WITH(linear_scan(q, f({2, 3, 5, 3}), v),
                    Contains("linear_scan:") && Contains("[2,3,5,4]") && Contains("[2,3,5,3]"));
  CHECK_THROWS_WITH(linear_scan(q, q, f({2, 3, 4, 6})), Contains("[2,3,4,6]"));
  CHECK_THROWS_AS(linear_scan(f({3, 5, 4}), f({3, 5, 4}), f({3, 5, 6})), ShapeError);
  CHECK_THROWS_AS(linear_scan(q, to(q, f64), v), DTypeError);
  CHECK_THROWS_AS(linear_scan(to(q, i64), to(q, i64), to(v, i64)), DTypeError);
  CHECK_THROWS_WITH(linear_scan(q, q, v, f({2, 3, 4})), Contains("log_decay=[2,3,4]"));
  CHECK_THROWS_AS(linear_scan(q, q, v, f({2, 3, 5, 6})), ShapeError);
  CHECK_NOTHROW(linear_scan(q, q, v, f({2, 3, 5, 6}), {.decay_on_values = true}));
  CHECK_THROWS_AS(linear_scan(q, q, v, f({2, 3, 5, 4}), {.decay_on_values = true}), ShapeError);
  CHECK_NOTHROW(linear_scan(q, q, v, f({5})));
  CHECK_THROWS_AS(linear_scan(q, q, v, f({4})), ShapeError);
  CHECK_THROWS_WITH(linear_scan(q, q, v, zeros({2, 3, 5}, {f64})), Contains("log_decay") && Contains("f64"));
  CHECK_THROWS_AS(linear_scan(q, q, v, {}, {.chunk = 0}), ValueError);
  CHECK_THROWS_WITH(linear_scan(q, q, v, {}, {.chunk = -2}), Contains("chunk") && Contains("-2"));
  CHECK_THROWS_WITH(linear_scan_state(q, f({2, 3, 4, 6})),
                    StartsWith("linear_scan_state: got k=[2,3,5,4], v=[2,3,4,6]; "));
  CHECK_THROWS_WITH(linear_scan_state(q, v, {}, f({2, 3, 6, 4})),
                    Contains("linear_scan_state") && Contains("initial") && Contains("[2,3,6,4]"));
  CHECK_THROWS_WITH(linear_scan_carry(q, f({2, 3, 5, 6})), Contains("linear_scan_carry") && Contains("[2,3,5,6]"));
  CHECK_THROWS_WITH(linear_scan_state(q, v, {}, zeros({2, 3, 4, 6}, {f64})),
                    "linear_scan_state: initial is f64[2,3,4,6] beside k=f32[2,3,5,4]");
  CHECK_THROWS_AS(linear_scan_carry(q, f({2, 3, 4, 6}), f({2, 2, 5})), ShapeError);
}
