// A gated attention, backward, on the emulator: the gate's pass and then rung 4, against double loops.
#include "support/approx.h"
#include "support/catch.h"

#include <sluice/cuda/attention/gate_backward.cuh>
#include <sluice/cuda/attention/wgmma_backward.cuh>

#include <cmath>
#include <vector>

using namespace sluice;
using namespace sluice::cuda;
using namespace sluice::testing;

namespace {

/// Numbers of bf16, 16-byte aligned.
struct Numbers {
  std::vector<BFloat16> memory;
  explicit Numbers(std::size_t n) : memory(n + 8) {}
  Numbers(std::size_t n, Rand& rand) : Numbers(n) {
    for (std::size_t i = 0; i < n; ++i) at()[i] = BFloat16(static_cast<float>(rand.uniform(-1, 1)));
  }
  BFloat16* at() { return memory.data() + (16 - reinterpret_cast<std::uintptr_t>(memory.data()) % 16) % 16 / 2; }
  double operator[](std::size_t i) { return static_cast<double>(float(at()[i])); }
};

/// |got − want| over |want|, in L2: one wrong number of some thousands is more than what the checks below allow.
double off(const std::vector<float>& got, const std::vector<double>& want) {
  double error = 0, size = 0;
  for (std::size_t i = 0; i < want.size(); ++i)
    error += std::pow(static_cast<double>(got[i]) - want[i], 2), size += want[i] * want[i];
  return std::sqrt(error / size);
}

/// One head of m queries and keys, causal softmax or relu².
template <class W, bool headwise> void check(int m, uint64_t seed) {
  constexpr int D = 64;
  const auto rows = static_cast<std::size_t>(m), all = rows * D, gates = headwise ? rows : all;
  Rand rand(seed);
  Numbers q(all, rand), k(all, rand), v(all, rand), z(gates, rand), g(all, rand), rounded(all);
  const double scale = 0.25;
  std::vector<double> dq(all), dk(all), dv(all), dz(gates), lse(rows);
  std::vector<float> y(all), upstream(all), delta(rows), got_dz(gates), got_q(all), got_k(all), got_v(all), lse32(rows);
  for (std::size_t i = 0; i < rows; ++i) {
    std::vector<double> score(i + 1), p(i + 1), slope(i + 1), o(D), to_o(D);
    double total = 0, sum = 0;
    for (std::size_t j = 0; j <= i; ++j) {
      for (std::size_t e = 0; e < D; ++e) score[j] += scale * q[i * D + e] * k[j * D + e];
      total += std::exp(score[j]);
    }
    lse[i] = std::log(total), lse32[i] = static_cast<float>(lse[i]);
    for (std::size_t j = 0; j <= i; ++j) {
      const double s = score[j] > 0 ? score[j] : 0;
      p[j] = W::online ? std::exp(score[j]) / total : s * s, slope[j] = W::online ? p[j] : 2 * s;
      for (std::size_t e = 0; e < D; ++e) o[e] += p[j] * v[j * D + e];
    }
    for (std::size_t e = 0; e < D; ++e) {
      const std::size_t at = headwise ? i : i * D + e;
      const double factor = 1 / (1 + std::exp(-z[at])), gi = g[i * D + e];
      y[i * D + e] = static_cast<float>(o[e] * factor), upstream[i * D + e] = static_cast<float>(gi);
      to_o[e] = gi * factor, sum += to_o[e] * o[e], dz[at] += gi * o[e] * factor * (1 - factor);
    }
    for (std::size_t j = 0; j <= i; ++j) {
      double dp = 0;
      for (std::size_t e = 0; e < D; ++e) dp += to_o[e] * v[j * D + e];
      const double ds = slope[j] * (W::online ? dp - sum : dp) * scale;
      for (std::size_t e = 0; e < D; ++e)
        dq[i * D + e] += ds * k[j * D + e], dk[j * D + e] += ds * q[i * D + e], dv[j * D + e] += p[j] * to_o[e];
    }
  }
  emulator::set_schedule(seed);
  const auto head = [](std::vector<float>& x) { return HeadRows<float>(x.data(), 0, 0, D); };
  run_attention_gate_backward<D, headwise>(GateBackwardProblem<float>{.g = {upstream.data(), 0, 0, D},
                                                                      .y = {y.data(), 0, 0, D},
                                                                      .gate = z.at(),
                                                                      .out = rounded.at(),
                                                                      .delta = delta.data(),
                                                                      .dgate = {got_dz.data(), 0, 0, headwise ? 1 : D},
                                                                      .batch = 1,
                                                                      .heads = 1,
                                                                      .m = m});
  const AttentionBackwardProblem back{.q = q.at(),
                                      .k = k.at(),
                                      .v = v.at(),
                                      .g = rounded.at(),
                                      .lse = lse32.data(),
                                      .delta = delta.data(),
                                      .dq = head(got_q),
                                      .dk = head(got_k),
                                      .dv = head(got_v),
                                      .batch = 1,
                                      .heads = 1,
                                      .kv_heads = 1,
                                      .m = m,
                                      .n = m,
                                      .scale = static_cast<float>(scale)};
  const Window mask{1 << 30, true};
  run_attention_wgmma_backward<false, D, W>(back, mask), run_attention_wgmma_backward<true, D, W>(back, mask);
  emulator::set_schedule(0);
  CHECK(off(got_dz, dz) < 1e-6);
  CHECK(off(got_q, dq) < 0x1p-8);  // P and dS are rounded to 8 bits, and so was the gradient
  CHECK(off(got_k, dk) < 0x1p-8);
  CHECK(off(got_v, dv) < 0x1p-8);
}

}  // namespace

TEST_CASE("cuda attention: a gate, backward", "[cuda]") {
  check<Softmax, false>(131, 1);
  check<Softmax, true>(129, 2);
  check<Relu2, false>(130, 3);
  check<Relu2, true>(3, 4);
}
