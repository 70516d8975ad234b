// delta_scan() against the recurrence step by step, for every decay, at the edges of chunks and beyond every tile;
// gradients by chunks against those composed of ops; its identities; what is not finite; errors. Its rows are in
// support/cases_delta.cpp.
#include "support/catch.h"
#include "support/delta_samples.h"

#include <sluice/autograd/engine.h>
#include <sluice/core/kernel/parallel.h>
#include <sluice/core/memory/allocator.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/gemm/precision.h>
#include <sluice/ops/rows/reduce.h>
#include <sluice/ops/scan/linear_scan.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/shape/join.h>
#include <sluice/ops/shape/view.h>

#include <cmath>
#include <limits>

using namespace sluice;
using namespace sluice::testing;

namespace {

Tensor piece(const Tensor& x, int64_t at, int64_t count) { return x.defined() ? narrow(x, 2, at, count) : x; }

}  // namespace

TEST_CASE("delta_scan: equals the recurrence for every decay, at the edges of chunks", "[delta_scan]") {
  Rand rand(1);
  for (DeltaDecay decay : kDeltaDecays)
    for (int64_t n : {1, 2, 4, 5, 15, 16, 17, 33, 63, 64, 65, 130})
      for (int64_t chunk : {int64_t{1}, int64_t{3}, int64_t{5}, int64_t{13}, int64_t{16}, int64_t{64}, n, n + 9}) {
        if (n > 64 && chunk == 1) continue;
        const int64_t heads = 1 + rand.below(2);
        DeltaSample s = random_delta(
            rand, decay,
            {1 + rand.below(2), heads, heads * (1 + rand.below(3)), n, 1 + rand.below(5), 1 + rand.below(5)});
        s.options.chunk = chunk;
        const std::vector<Tensor> want = delta_recurrence(s);
        const DeltaScanResult wide = delta_rule(s.q, s.k, s.v, s.beta, s.decay, s.initial, s.options);
        const DeltaSample half = s.in(f32);
        const DeltaScanResult narrow32 =
            delta_rule(half.q, half.k, half.v, half.beta, half.decay, half.initial, s.options);
        check_delta({wide.out, wide.state}, want, 1e-12, s.text());
        check_delta({narrow32.out, narrow32.state}, want, 1e-5, s.text() + " f32");
      }
}

TEST_CASE("delta_scan: beyond every tile, with keys that are alike and strengths up to 2", "[delta_scan]") {
  Rand rand(2);
  for (DeltaDecay decay : kDeltaDecays)
    for (double alike : {0.0, 0.9})
      for (const DeltaSizes& size :
           {DeltaSizes{1, 2, 2, 1024, 64, 64}, {2, 1, 3, 193, 129, 17}, {1, 2, 4, 129, 33, 257}}) {
        const DeltaSample s = random_delta(rand, decay, size, alike);
        const std::vector<Tensor> want = delta_recurrence(s);
        const auto run = [](const DeltaSample& x) {
          const DeltaScanResult y = delta_rule(x.q, x.k, x.v, x.beta, x.decay, x.initial, x.options);
          return std::vector<Tensor>{y.out, y.state};
        };
        check_delta(run(s), want, 1e-11, s.text());
        check_delta(run(s.in(f32)), want, 1e-5, s.text() + " f32");
      }
}

TEST_CASE("delta_scan: gradients by chunks equal those composed of ops", "[delta_scan]") {
  Rand rand(3);
  for (DeltaDecay decay : kDeltaDecays)
    for (double alike : {0.0, 0.9})
      for (const DeltaSizes& size : {DeltaSizes{1, 1, 1, 1, 3, 2},
                                     {2, 1, 3, 5, 2, 4},
                                     {1, 2, 2, 17, 4, 3},
                                     {2, 2, 4, 65, 5, 3},
                                     {1, 1, 2, 130, 3, 6},
                                     {1, 1, 2, 193, 65, 33}})
        for (int64_t chunk : {3, 16, 64}) {
          if (size.n > 100 && chunk == 3) continue;
          DeltaSample s = random_delta(rand, decay, size, alike);
          s.options.chunk = chunk;
          const std::vector<Tensor> want = run_delta(s, true);
          check_delta(run_delta(s), want, 1e-11, s.text());
          check_delta(run_delta(s.in(f32)), want, 1e-5, s.text() + " f32");
        }
}

TEST_CASE("delta_scan: a cotangent of one result alone", "[delta_scan]") {
  Rand rand(4);
  const DeltaSample s = random_delta(rand, DeltaDecay::keys, {1, 2, 4, 70, 4, 3});
  for (bool of_state : {false, true}) {
    std::vector<Tensor> results;
    for (bool composed : {false, true}) {
      const Tensor k = clone(s.k).requires_grad_(), v = clone(s.v).requires_grad_(),
                   g = clone(s.decay).requires_grad_();
      const DeltaScanResult y = delta_rule(s.q, k, v, s.beta, g, s.initial);
      const std::vector<Tensor> grads = grad({sum(of_state ? y.state : y.out)}, {k, v, g}, {.create_graph = composed});
      if (composed) check_delta(results, grads, 1e-11, of_state ? "state" : "out");
      results = grads;
    }
  }
}

TEST_CASE("delta_scan: in pieces it carries its state", "[delta_scan]") {
  Rand rand(5);
  for (DeltaDecay decay : kDeltaDecays) {
    const DeltaSample s = random_delta(rand, decay, {2, 1, 2, 70, 3, 4});
    const DeltaScanResult full = delta_rule(s.q, s.k, s.v, s.beta, s.decay, s.initial);
    for (const std::vector<int64_t>& sizes : {std::vector<int64_t>{1}, {7}, {64, 1}, {20, 1, 3}, {70}}) {
      Tensor state = s.initial;
      std::vector<Tensor> outputs;
      for (int64_t at = 0, i = 0; at < 70; ++i) {
        const int64_t size = std::min(sizes[static_cast<std::size_t>(i) % sizes.size()], 70 - at);
        const auto of = [&](const Tensor& x) { return piece(x, at, size); };
        const DeltaScanResult y = delta_rule(of(s.q), of(s.k), of(s.v), of(s.beta), of(s.decay), state);
        state = y.state, outputs.push_back(y.out), at += size;
      }
      check_delta({cat(outputs, 2), state}, {full.out, full.state}, 1e-12, s.text() + str(" pieces of ", sizes[0]));
    }
  }
}

TEST_CASE("delta_scan: nothing to erase is linear_scan; no decay is a decay of 0; equal channels are one decay",
          "[delta_scan]") {
  Rand rand(6);
  for (DeltaDecay decay : kDeltaDecays) {
    const DeltaSample s = random_delta(rand, decay, {2, 2, 2, 130, 5, 3});
    const DeltaScanResult y = delta_scan(s.q, s.k, zeros(s.k.shape(), {f64}), s.v, s.decay);
    CHECK(max_abs_diff(y.out, linear_scan(s.q, s.k, s.v, s.decay)) <= 1e-12);
    CHECK(max_abs_diff(y.state, linear_scan_state(s.k, s.v, s.decay)) <= 1e-12);
  }
  const DeltaSample s = random_delta(rand, DeltaDecay::scalar, {2, 2, 4, 130, 5, 3});
  const auto run = [&](const Tensor& g) { return delta_rule(s.q, s.k, s.v, s.beta, g, s.initial).out; };
  CHECK(max_abs_diff(run(s.decay * 0.0), run({})) != 0);  // −∞·0 is NaN, and reaches the result
  CHECK(max_abs_diff(run(zeros(s.decay.shape(), {f64})), run({})) <= 1e-12);
  CHECK(max_abs_diff(run(contiguous(expand(unsqueeze(s.decay, -1), {2, 4, 130, 5}))), run(s.decay)) <= 1e-12);
  CHECK(max_abs_diff(run(zeros({4, 1}, {f64})), run({})) <= 1e-12);  // broadcast
}

TEST_CASE("delta_rule: a strength of 0 writes nothing, of 1 replaces, of 2 reflects", "[delta_scan]") {
  Rand rand(7);
  DeltaSample s = random_delta(rand, DeltaDecay::none, {1, 2, 2, 40, 6, 5});
  if (!s.initial.defined()) s.initial = random_tensor({1, 2, 6, 5}, f64, rand);
  const auto with = [&](double beta) {
    return delta_rule(s.k, s.k, s.v, full(s.beta.shape(), beta, {f64}), {}, s.initial, {.chunk = 16});
  };
  CHECK(max_abs_diff(with(0).state, s.initial) == 0);
  CHECK(max_abs_diff(with(1).out, s.v) <= 1e-6);  // keys are rounded to f32
  const Tensor nothing = zeros(s.v.shape(), {f64});
  const DeltaScanResult turned =
      delta_rule(s.q, s.k, nothing, full(s.beta.shape(), 2, {f64}), {}, s.initial, {.chunk = 16});
  CHECK(sum(turned.state * turned.state).item() == Approx(sum(s.initial * s.initial).item()).epsilon(1e-5));
}

TEST_CASE("delta_scan: the gradient of a strong decay keeps its digits", "[delta_scan]") {
  // As of linear_scan(): by chunks, and composed of ops.
  Rand rand(11);
  const auto decay_gradient = [](const DeltaSample& s, bool differentiable) {
    const Tensor g = s.decay.detach().requires_grad_();
    Rand cotangents(3);
    const Tensor y = delta_rule(s.q, s.k, s.v, s.beta, g, {}, s.options).out,
                 gy = random_tensor(y.shape(), y.dtype(), cotangents);
    return grad({y}, {g}, {.create_graph = differentiable, .grad_outputs = {gy}})[0].detach();
  };
  for (DeltaDecay kind : {DeltaDecay::scalar, DeltaDecay::keys})
    for (bool differentiable : {false, true}) {
      for (double decay : {-1.0, -5.0, -10.0, -30.0}) {
        DeltaSample s = random_delta(rand, kind, {1, 2, 4, 300, 6, 5});
        s.decay = full(s.decay.shape(), decay, {f64});
        const Tensor wide = decay_gradient(s, differentiable), narrow = decay_gradient(s.in(f32), differentiable);
        INFO(s.text() << ", decay " << decay << ", differentiable " << differentiable);
        CHECK(max_abs_diff(to(narrow, f64), wide) <= 2e-5 * max_abs(wide));
      }
      const DeltaSample one = random_delta(rand, kind, {2, 2, 4, 1, 6, 5});
      CHECK(max_abs(decay_gradient(one.in(f32), differentiable)) == 0);  // a first step decays nothing
    }
}

TEST_CASE("delta_scan: the gradient of strong decays beside weak ones is as exact as its operands", "[delta_scan]") {
  // Σ dg·g of a head, the gradient of the logarithm of its rate: strong decays weigh most in it. The measure of bf16 is
  // what rounding operands to it changes in it.
  Rand rand(12);
  for (double strong : {-5.0, -16.0, -40.0}) {
    const Shape keys{1, 8, 512, 32};
    const auto operand = [&](double size) { return to(to(random_tensor(keys, f64, rand, -size, size), bf16), f64); };
    const Tensor q = operand(1), k = operand(0.3), w = operand(1), gy = operand(1),
                 draw = random_tensor({1, 8, 512}, f64, rand, 0, 1),
                 decay = to(to(where(draw < 0.1, (draw * 5.0 + 0.5) * strong, draw * -0.02), f32), f64);
    const auto rate_gradient = [&](DType dtype, bool moved = false) {
      Rand by(9);
      const auto given = [&](const Tensor& x) {
        return to(moved ? x * (random_tensor(keys, f64, by, -1, 1) * 0x1p-9 + 1.0) : x, dtype);
      };
      const Tensor g = to(decay, dtype == f64 ? f64 : f32).detach().requires_grad_(), key = given(k),
                   y = delta_scan(given(q), key, key, given(w), g).out;
      return sum(to(grad({y}, {g}, {.grad_outputs = {to(gy, dtype)}})[0], f64) * decay, {2});
    };
    const Tensor want = rate_gradient(f64);
    const double moved = max_abs_diff(rate_gradient(f64, true), want);
    INFO("strong decays up to " << strong << ", roundings change " << moved << " of " << max_abs(want));
    CHECK(max_abs_diff(rate_gradient(f32), want) <= 2e-5 * max_abs(want));
    CHECK(max_abs_diff(rate_gradient(bf16), want) <= 2 * moved);
    const PrecisionScope scope(Precision::bf16);
    CHECK(max_abs_diff(rate_gradient(f32), want) <= 2 * moved);
  }
}

TEST_CASE("delta_scan: a strong decay's gradient from the last state keeps its digits", "[delta_scan]") {
  // The last step writes k ⊙ u, which passes no decay, straight to the last state.
  Rand rand(13);
  for (DeltaDecay kind : {DeltaDecay::scalar, DeltaDecay::keys})
    for (bool differentiable : {false, true})
      for (double decay : {-5.0, -12.0, -20.0}) {
        DeltaSample s = random_delta(rand, kind, {1, 2, 4, 70, 6, 5});
        s.decay = full(s.decay.shape(), decay, {f64});
        const auto last_gradient = [&](const DeltaSample& x) {
          const Tensor g = x.decay.detach().requires_grad_(),
                       state = delta_rule(x.q, x.k, x.v, x.beta, g, x.initial, x.options).state;
          Rand cotangents(3);
          const Tensor gs = random_tensor(state.shape(), state.dtype(), cotangents);
          return to(narrow(grad({state}, {g}, {.create_graph = differentiable, .grad_outputs = {gs}})[0], 2, 69, 1),
                    f64)
              .detach();
        };
        const Tensor want = last_gradient(s), got = last_gradient(s.in(f32));
        INFO(s.text() << ", decay " << decay << ", differentiable " << differentiable);
        CHECK(max_abs_diff(got, want) <= 2e-5 * max_abs(want));
      }
}

TEST_CASE("delta_scan: a decay of −∞ drops what was, and has no gradient", "[delta_scan]") {
  Rand rand(8);
  for (DeltaDecay decay : {DeltaDecay::scalar, DeltaDecay::keys})
    for (DType dtype : {f64, f32}) {
      DeltaSample s = random_delta(rand, decay, {1, 1, 2, 100, 3, 4});
      const Tensor position = reshape(arange(100), decay == DeltaDecay::keys ? Shape{100, 1} : Shape{100});
      s.decay = masked_fill(clamp(s.decay, -0.5), position == 40.0, -std::numeric_limits<double>::infinity());
      s = s.in(dtype);
      const std::vector<Tensor> all = run_delta(s), again = run_delta(s, true);
      const DeltaScanResult after =
          delta_rule(piece(s.q, 40, 60), piece(s.k, 40, 60), piece(s.v, 40, 60), piece(s.beta, 40, 60),
                     masked_fill(piece(s.decay, 40, 60), piece(expand(position, s.decay.shape()), 40, 60) == 40.0, 0));
      CHECK(max_abs_diff(piece(all[0], 40, 60), after.out) <= (dtype == f64 ? 1e-12 : 1e-5));
      for (const auto& results : {all, again})
        for (const Tensor& x : results) CHECK(sluice::all(isfinite(x)).item() != 0);
      CHECK(max_abs(piece(all[6], 40, 1)) == 0);
      CHECK(max_abs(piece(again[6], 40, 1)) <= (dtype == f64 ? 1e-12 : 1e-4));
      s.k = masked_fill(s.k, unsqueeze(arange(100), 1) == 3.0, std::numeric_limits<double>::quiet_NaN());
      for (const auto& results : {run_delta(s), run_delta(s, true)})
        CHECK(sluice::all(isfinite(piece(results[6], 41, 59))).item() != 0);  // also the gradient of a gradient's graph
    }
}

TEST_CASE("delta_scan: later steps change no bit of earlier ones, whatever they hold", "[delta_scan][bits]") {
  Rand rand(9);
  for (DeltaDecay decay : kDeltaDecays)
    for (int64_t chunk : {1, 16, 64})
      for (DType dtype : {f64, f32}) {
        DeltaSample s = random_delta(rand, decay, {1, 1, 2, 100, 3, 4}).in(dtype);
        s.options.chunk = chunk;
        const auto run = [](const DeltaSample& x) {
          return delta_rule(x.q, x.k, x.v, x.beta, x.decay, x.initial, x.options).out;
        };
        const Tensor y = run(s);
        for (int64_t t : {1, 30, 64, 99})
          for (double value :
               {0.3, std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
            DeltaSample x = s;
            const Tensor later = reshape(arange(100), {100, 1}) >= static_cast<double>(t);
            for (Tensor* rows : {&x.q, &x.k, &x.v}) *rows = masked_fill(*rows, later, value);
            INFO(s.text() << " from " << t << ": " << value);
            const Tensor z = run(x);
            const Tensor kept = narrow(z, 2, 0, t), want = narrow(y, 2, 0, t);
            if (std::isfinite(value)) CHECK(same_bits(kept, want));
            else CHECK(max_abs_diff(kept, want) <= (dtype == f64 ? 1e-12 : 1e-5));
            CHECK_FALSE(same_bits(z, y));
          }
      }
}

TEST_CASE("delta_scan: threads change no bit", "[delta_scan][bits]") {
  Rand rand(10);
  const int before = num_threads();
  for (DeltaDecay decay : kDeltaDecays) {
    const DeltaSample s = random_delta(rand, decay, {2, 2, 4, 150, 8, 5}).in(f32);
    set_num_threads(1);
    const std::vector<Tensor> one = run_delta(s);
    set_num_threads(3);
    const std::vector<Tensor> three = run_delta(s);
    set_num_threads(before);
    for (std::size_t i = 0; i < one.size(); ++i) CHECK(same_bits(one[i], three[i]));
  }
}

TEST_CASE("delta_scan: memory of a recorded call grows with n by a state for each chunk", "[delta_scan][memory]") {
  Rand rand(11);
  const int64_t n = 4096, width = 16;
  for (DeltaDecay decay : kDeltaDecays) {
    const DeltaSample s = random_delta(rand, decay, {1, 1, 1, n, width, width}).in(f32);
    const int64_t before = memory_stats().live;
    reset_peak_memory();
    run_delta(s);
    // operands, results and gradients, 16 rows a token at most, the states, and buffers of a chunk
    CHECK(memory_stats().peak - before < 4 * (n * width * 16 + n / 64 * width * width) + (1 << 19));
  }
}

TEST_CASE("delta_scan: bf16 operands have a state of f32", "[delta_scan]") {
  Rand rand(12);
  const DeltaSample s = random_delta(rand, DeltaDecay::scalar, {1, 2, 2, 80, 8, 8});
  const DeltaSample half = s.in(bf16);
  const DeltaScanResult y = delta_rule(half.q, half.k, half.v, half.beta, half.decay, half.initial);
  CHECK(y.out.dtype() == bf16);
  CHECK(y.state.dtype() == f32);
  const std::vector<Tensor> want = delta_recurrence(half.in(f64));
  check_delta({y.out, y.state}, want, 2e-2, s.text());
  const Tensor initial = to(random_tensor({1, 2, 8, 8}, f64, rand), bf16);  // S_0 may be either
  const auto from = [&](const Tensor& x) { return delta_rule(half.q, half.k, half.v, half.beta, half.decay, x); };
  CHECK(same_bits(from(initial).out, from(to(initial, f32)).out));
  CHECK(from(initial).state.dtype() == f32);
  for (const Tensor& x : run_delta(half)) CHECK(all(isfinite(x)).item() != 0);
}

TEST_CASE("delta_scan: what does not fit, and by which words", "[delta_scan]") {
  const auto f = [](const Shape& shape) { return zeros(shape); };
  const Tensor k = f({2, 2, 5, 4}), e = f({2, 4, 5, 4}), w = f({2, 4, 5, 6});
  CHECK_NOTHROW(delta_scan(k, k, e, w));
  CHECK_THROWS_WITH(delta_scan(k, k, f({2, 3, 5, 4}), f({2, 3, 5, 6})),
                    Contains("delta_scan:") && Contains("[2,3,5,4]") && Contains("divides value_heads"));
  CHECK_THROWS_WITH(delta_scan(f({2, 2, 5, 3}), k, e, w), Contains("delta_scan: got q=") && Contains("[2,2,5,3]"));
  CHECK_THROWS_AS(delta_scan(k, k, e, f({2, 4, 4, 6})), ShapeError);
  CHECK_THROWS_AS(delta_scan(f({2, 5, 4}), f({2, 5, 4}), f({2, 5, 4}), f({2, 5, 6})), ShapeError);
  CHECK_THROWS_AS(delta_scan(k, k, e, to(w, f64)), DTypeError);
  CHECK_THROWS_AS(delta_scan(to(k, f64), k, e, w), DTypeError);
  CHECK_THROWS_AS(delta_scan(to(k, i64), to(k, i64), to(e, i64), to(w, i64)), DTypeError);
  CHECK_THROWS_WITH(delta_scan(k, k, e, w, f({2, 4, 4})), Contains("log_decay") || Contains("[2,4,4]"));
  CHECK_NOTHROW(delta_scan(k, k, e, w, f({5})));
  CHECK_THROWS_AS(delta_scan(k, k, e, w, f({2, 4, 5, 6})), ShapeError);
  CHECK_THROWS_WITH(delta_scan(k, k, e, w, zeros({2, 4, 5}, {f64})), Contains("log_decay") && Contains("f64"));
  CHECK_THROWS_WITH(delta_scan(k, k, e, w, {}, f({2, 4, 6, 4})), Contains("initial") && Contains("[2,4,4,6]"));
  CHECK_THROWS_WITH(delta_scan(k, k, e, w, {}, zeros({2, 4, 4, 6}, {f64})), Contains("initial is f64"));
  CHECK_THROWS_WITH(delta_scan(k, k, e, w, {}, {}, {.chunk = 0}), Contains("chunk must be positive"));
  CHECK_THROWS_WITH(delta_rule(k, k, w, f({2, 4, 4})), Contains("delta_rule: got k=") && Contains("[2,4,4]"));
  CHECK_THROWS_AS(delta_rule(k, k, w, zeros({2, 4, 5}, {f64})), DTypeError);
  CHECK_THROWS_WITH(delta_rule(k, k, w, zeros({2, 4, 5}, {f64})),
                    Contains("delta_rule: needs") && Contains("beta=f64"));
  CHECK_THROWS_WITH(delta_values(k, e, w), Contains("delta_values:") && Contains("need one shape"));
}
