// The slots of attention under Precision::bf16 against double loops: what they fill, each number within its bound, the
// same bits in every schedule of the emulator, and of tensors of bf16 the same results, rounded.
#pragma once

#include "support/approx.h"
#include "support/catch.h"
#include "support/naive_attention.h"

#include <sluice/cuda/emulator/emulator.h>
#include <sluice/ops/attention/attention_kernels.h>
#include <sluice/ops/attention/heads.h>
#include <sluice/ops/gemm/precision.h>
#include <sluice/ops/kernels.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/shape/view.h>

#include <cmath>
#include <cstring>
#include <limits>

namespace sluice::testing::bf16_attention {

enum class Poison { none, key, query, k, v, q, g };
struct Sample {
  int64_t batch, heads, kv_heads, m, n, d;
  Weighting weighting = Weighting::softmax;
  AttentionMask mask = {};
  bool keys = false,
       sink = false;             // keys: batch 0 loses every third, and the next all of them; what is there then is NaN
  Poison poison = Poison::none;  // NaN in a row of k and v, of q, g and delta, or of one
  int64_t dv = 0;                // of values, if it is not d

  int64_t values() const { return dv ? dv : d; }
};

struct Operands {
  Array q, k, v, g, delta, sink;
  AttentionOptions options;  // on the CPU, f32

  Operands(const Sample& c, uint64_t seed) {
    Rand rand(seed);
    const auto numbers = [&](Dims shape, double range) {
      Array x(std::move(shape));
      for (double& value : x.v)
        value = static_cast<double>(float(BFloat16(static_cast<float>(rand.uniform(-range, range)))));
      return x;
    };
    q = numbers({c.batch, c.heads, c.m, c.d}, 2), k = numbers({c.batch, c.kv_heads, c.n, c.d}, 1);
    v = numbers({c.batch, c.kv_heads, c.n, c.values()}, 1), g = numbers({c.batch, c.heads, c.m, c.values()}, 1);
    delta = numbers({c.batch, c.heads, c.m}, 1), sink = numbers({c.heads}, 3);
    options = {.weighting = c.weighting, .scale = 0.125, .mask = c.mask};
    if (c.sink) options.sink = tensor_of(sink.v, {c.heads}, f32);
    if (c.keys) {
      std::vector<double> real;
      each_index({c.batch, c.n}, [&](const Dims& i) { real.push_back(i[0] == 0 && i[1] % 3 != 1); });
      options.mask.keys = tensor_of(real, {c.batch, c.n}, boolean);
    }
    const NaiveMask mask(options.mask, c.m, c.n, c.heads);
    const auto row_of = [&](Array& x, const Dims& i) {
      for (int64_t e = 0; e < x.shape[3]; ++e) x({i[0], i[1], i[2], e}) = NAN;
    };
    each_index({c.batch, c.kv_heads, c.n}, [&](const Dims& i) {
      bool seen = false;
      for (int64_t row = 0; row < c.m; ++row) seen |= mask.sees(i[0], i[1] * c.heads / c.kv_heads, row, i[2]);
      const Poison bad = i[2] == c.n - 9 ? c.poison : Poison::none;
      if (!seen || bad == Poison::key || bad == Poison::k) row_of(k, i);
      if (!seen || bad == Poison::key || bad == Poison::v) row_of(v, i);
    });
    each_index({c.batch, c.heads, c.m}, [&](const Dims& i) {
      bool sees = false;
      for (int64_t j = 0; j < c.n; ++j) sees |= mask.sees(i[0], i[1], i[2], j);
      const Poison bad = i[2] == c.m / 2 ? c.poison : Poison::none;
      if (!sees || bad == Poison::query || bad == Poison::q) row_of(q, i);
      if (!sees || bad == Poison::query || bad == Poison::g) row_of(g, i);
      if (!sees || bad == Poison::query) delta(i) = NAN;
    });
  }
};

/// What the slots fill, and how far a number may be from it: each of a sum's terms is rounded to 8 bits once, an error
/// of at most 2^-8 of it, and f32 adds a little.
struct Expected {
  Array out, lse, dq, dk, dv, out_error, dq_error, dk_error, dv_error;
};
inline Expected expected(const Sample& c, const Operands& x) {
  constexpr double u = 1.02 * 0x1p-8, f32_error = 0x1p-18, inf = std::numeric_limits<double>::infinity();
  Expected y{Array(x.g.shape), Array(x.delta.shape), Array(x.q.shape), Array(x.k.shape), Array(x.v.shape),
             Array(x.g.shape), Array(x.q.shape),     Array(x.k.shape), Array(x.v.shape)};
  const NaiveMask mask(x.options.mask, c.m, c.n, c.heads);
  each_index(x.delta.shape, [&](const Dims& row) {
    const int64_t b = row[0], h = row[1], i = row[2], kv = h * c.kv_heads / c.heads;
    const auto at = [&](const Array& a, int64_t head, int64_t r) { return a.v.data() + a.at({b, head, r, 0}); };
    const auto to = [&](Array& a, int64_t head, int64_t r) { return a.v.data() + a.at({b, head, r, 0}); };
    const double *q = at(x.q, h, i), *g = at(x.g, h, i), delta = x.delta(row);
    std::vector<double> score(static_cast<std::size_t>(c.n)), size(score), dp(score), dp_size(score);
    double total = c.sink ? std::exp(x.sink({h})) : 0;
    for (std::size_t j = 0; j < score.size(); ++j) {
      const double *k = at(x.k, kv, static_cast<int64_t>(j)), *v = at(x.v, kv, static_cast<int64_t>(j));
      for (int64_t e = 0; e < c.d; ++e) score[j] += q[e] * k[e] * 0.125, size[j] += std::fabs(q[e] * k[e]) * 0.125;
      for (int64_t e = 0; e < c.values(); ++e) dp[j] += g[e] * v[e], dp_size[j] += std::fabs(g[e] * v[e]);
      if (mask.sees(b, h, i, static_cast<int64_t>(j))) total += std::exp(score[j]);
    }
    y.lse(row) = total == 0 ? -inf : std::log(total);
    for (int64_t j = 0; j < c.n; ++j) {
      if (!mask.sees(b, h, i, j)) continue;
      const std::size_t at_j = static_cast<std::size_t>(j);
      const double s = score[at_j], z = (s - std::sqrt(0.5)) / std::sqrt(0.5 / M_PI);  // MEGA's μ and σ·√2 below
      double p = 0, slope = 0, bend = 3;  // φ, φ' and what |φ''| is at most
      switch (c.weighting) {
        case Weighting::softmax: p = slope = bend = std::exp(s) / total; break;
        case Weighting::relu2: p = s > 0 ? s * s : s != s ? s : 0, slope = s > 0 ? 2 * s : s != s ? s : 0; break;
        case Weighting::laplace:
          p = 0.5 * (1 + std::erf(z)), slope = std::exp(-z * z) / std::sqrt(M_PI) / std::sqrt(0.5 / M_PI), bend = 4;
          break;
        case Weighting::sigmoid: p = 1 / (1 + std::exp(-s)), slope = p * (1 - p); break;
        default: p = s, slope = 1;
      }
      const bool softmax = c.weighting == Weighting::softmax;
      const double ds = slope * (dp[at_j] - (softmax ? delta : 0));
      const double p_error = u * std::fabs(p) + f32_error * (std::fabs(p) + std::fabs(slope) * size[at_j]);
      const double ds_error = u * std::fabs(ds) + f32_error * (std::fabs(slope) + bend * size[at_j]) *
                                                      (dp_size[at_j] + (softmax ? std::fabs(delta) : 0));
      const double *k = at(x.k, kv, j), *v = at(x.v, kv, j);
      double *out = to(y.out, h, i), *dq = to(y.dq, h, i), *dk = to(y.dk, kv, j), *dv = to(y.dv, kv, j);
      double *out_error = to(y.out_error, h, i), *dq_error = to(y.dq_error, h, i), *dk_error = to(y.dk_error, kv, j),
             *dv_error = to(y.dv_error, kv, j);
      for (int64_t e = 0; e < c.values(); ++e) {
        out[e] += p * v[e], out_error[e] += p_error * std::fabs(v[e]);
        dv[e] += p * g[e], dv_error[e] += p_error * std::fabs(g[e]);
      }
      for (int64_t e = 0; e < c.d; ++e) {
        dq[e] += ds * k[e] * 0.125, dq_error[e] += ds_error * std::fabs(k[e]) * 0.125;
        dk[e] += ds * q[e] * 0.125, dk_error[e] += ds_error * std::fabs(q[e]) * 0.125;
      }
    }
  });
  return y;
}

/// out, lse (softmax), and of dq, dk and dv those whose bits `wanted` has, of the device, on the CPU. lse and delta are
/// the reference's. Gradients are full of NaN before.
inline std::vector<Tensor> run_slots(const Sample& c, const Operands& x, const Array& lse_before, bool heads_inside,
                                     int wanted = 7, DType dtype = f32) {
  const Device device = Device::cuda();
  const auto stored = [&](const Array& a) {
    const Tensor y = to(tensor_of(a.v, {a.shape[0], a.shape[1], a.shape[2], a.shape[3]}, f32), dtype);
    return heads_inside ? transpose(to(contiguous(transpose(y, 1, 2)), device), 1, 2) : to(y, device);
  };
  const Tensor q = stored(x.q), k = stored(x.k), v = stored(x.v), g = stored(x.g);
  AttentionOptions o = x.options;
  o.mask = to(o.mask, device);
  if (o.sink.defined()) o.sink = to(o.sink, device);
  const detail::AttentionCall call{q, k, v, o};
  const bool softmax = c.weighting == Weighting::softmax;
  const Shape rows{c.batch, c.heads, c.m};
  Tensor out = heads_inside ? detail::empty_heads(g.shape(), g.options()) : empty(g.shape(), g.options()), lse, delta;
  if (softmax) lse = empty(rows, {f32, device}), delta = to(tensor_of(x.delta.v, rows, f32), device);
  kernel::attention(call, out, lse);
  std::vector<Tensor> all{out};
  if (softmax) all.push_back(lse), lse = to(tensor_of(lse_before.v, rows, f32), device);
  detail::AttentionGradients grads;
  if (wanted & 1) grads.dq = detail::empty_heads(q.shape(), q.options());
  if (wanted & 2) grads.dk = empty(k.shape(), q.options());
  if (wanted & 4) grads.dv = detail::empty_heads(v.shape(), q.options());
  std::vector<Tensor> gradients;
  for (Tensor* y : {&grads.dq, &grads.dk, &grads.dv})
    if (y->defined()) kernel::fill(*y, NAN), gradients.push_back(*y);
  kernel::attention_backward(call, g, lse, delta, grads);
  all.insert(all.end(), gradients.begin(), gradients.end());
  for (Tensor& y : all) y = to(contiguous(y), cpu);
  return all;
}

/// NaN where it is wanted and nowhere else; each number within its bound, all within ¾·2^-8 in L2: roundings are
/// 0.4·2^-8 on average, and independent.
inline void check_numbers(const char* name, const Tensor& got, const Array& want, const Array& error) {
  INFO(name);
  const std::vector<double> y = to(got, f64).to_vector<double>();
  double worst = 0, error2 = 0, size2 = 0;
  int64_t astray = 0;
  for (std::size_t i = 0; i < y.size(); ++i) {
    if (std::isnan(want.v[i]) || std::isnan(y[i])) {
      astray += std::isnan(want.v[i]) != std::isnan(y[i]);
      continue;
    }
    const double off = std::fabs(y[i] - want.v[i]);
    const double used = error.v[i] == 0 ? (off == 0 ? 0 : INFINITY) : off / error.v[i];
    worst = used > worst ? used : worst, error2 += off * off, size2 += want.v[i] * want.v[i];
  }
  CHECK(astray == 0);
  CHECK(worst <= 1);
  CHECK(std::sqrt(error2) <= 0x1.8p-9 * std::sqrt(size2));
}

inline void check(const Sample& c, uint64_t seed = 1) {
  INFO("m " << c.m << ", n " << c.n << ", d " << c.d << ", dv " << c.values() << ", weighting "
            << static_cast<int>(c.weighting) << ", causal " << c.mask.causal << ", window " << c.mask.window
            << ", keys " << c.keys << ", sink " << c.sink << ", poison " << static_cast<int>(c.poison));
  PrecisionScope scope(Precision::bf16);
  const Operands x(c, seed);
  const Expected want = expected(c, x);
  const auto run = [&](uint64_t schedule, DType dtype) {
    cuda::emulator::set_schedule(2 * seed + schedule);
    std::vector<Tensor> got = run_slots(c, x, want.lse, seed % 2, 7, dtype);
    cuda::emulator::set_schedule(0);
    return got;
  };
  const std::vector<Tensor> first = run(0, f32);
  if (seed / 2 % 2) {  // of every layout half the samples; the others' bits are compared as bf16, below
    const std::vector<Tensor> got = run(1, f32);
    for (std::size_t i = 0; i < got.size(); ++i)
      CHECK(std::memcmp(got[i].data<float>(), first[i].data<float>(),
                        static_cast<std::size_t>(got[i].numel()) * sizeof(float)) == 0);
  }
  const std::size_t grads = first.size() - 3;
  check_numbers("out", first[0], want.out, want.out_error);
  if (grads == 2) {
    const std::vector<double> lse = to(first[1], f64).to_vector<double>();
    for (std::size_t i = 0; i < lse.size(); ++i)
      if (!std::isnan(want.lse.v[i]) || !std::isnan(lse[i]))
        REQUIRE((lse[i] == want.lse.v[i] || std::fabs(lse[i] - want.lse.v[i]) <= 1e-5));
  }
  check_numbers("dq", first[grads], want.dq, want.dq_error);
  check_numbers("dk", first[grads + 1], want.dk, want.dk_error);
  check_numbers("dv", first[grads + 2], want.dv, want.dv_error);
  // The operands are bf16 numbers: tensors of bf16 have the same results, rounded, whatever the schedule.
  const std::vector<Tensor> narrow = run(1, bf16);
  for (std::size_t i = 0; i < first.size(); ++i) CHECK(same_bits(narrow[i], to(first[i], narrow[i].dtype())));
  CHECK(narrow[0].dtype() == bf16);
}

}  // namespace sluice::testing::bf16_attention
