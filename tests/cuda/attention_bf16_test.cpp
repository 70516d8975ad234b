// The slots of attention under Precision::bf16, on the emulator, against double loops: forward and backward, one query
// or one key beyond every tile, groups of heads, masks, rows that see nothing, NaN behind the mask; the same bits in
// every schedule; and which calls go to the tensor cores.
#include "support/approx.h"
#include "support/catch.h"
#include "support/naive_attention.h"

#include <sluice/cuda/emulator/emulator.h>
#include <sluice/ops/attention/attention_kernels.h>
#include <sluice/ops/attention/heads.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/gemm/precision.h>
#include <sluice/ops/kernels.h>
#include <sluice/ops/shape/view.h>

#include <cmath>
#include <cstring>
#include <limits>

using namespace sluice;
using namespace sluice::testing;

namespace {

enum class Poison { none, key, query };
struct Sample {
  int64_t batch, heads, kv_heads, m, n, d;
  Weighting weighting = Weighting::softmax;
  AttentionMask mask = {};
  bool keys = false,
       sink = false;             // keys: batch 0 loses every third, and the next all of them; what is there then is NaN
  Poison poison = Poison::none;  // NaN in a row of k and v, or of q, g and delta
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
    const NaiveMask mask(options.mask, c.m, c.n);
    const auto row_of = [&](Array& x, const Dims& i) {
      for (int64_t e = 0; e < x.shape[3]; ++e) x({i[0], i[1], i[2], e}) = NAN;
    };
    each_index({c.batch, c.kv_heads, c.n}, [&](const Dims& i) {
      bool seen = false;
      for (int64_t row = 0; row < c.m; ++row) seen |= mask.sees(i[0], i[1] * c.heads / c.kv_heads, row, i[2]);
      if (!seen || (c.poison == Poison::key && i[2] == c.n - 9)) row_of(k, i), row_of(v, i);
    });
    each_index({c.batch, c.heads, c.m}, [&](const Dims& i) {
      bool sees = false;
      for (int64_t j = 0; j < c.n; ++j) sees |= mask.sees(i[0], i[1], i[2], j);
      if (!sees || (c.poison == Poison::query && i[2] == c.m / 2)) row_of(q, i), row_of(g, i), delta(i) = NAN;
    });
  }
};

/// What the slots fill, and how far a number may be from it: each of a sum's terms is rounded to 8 bits once, an error
/// of at most 2^-8 of it, and f32 adds a little.
struct Expected {
  Array out, lse, dq, dk, dv, out_error, dq_error, dk_error, dv_error;
};
Expected expected(const Sample& c, const Operands& x) {
  constexpr double u = 1.02 * 0x1p-8, f32_error = 0x1p-18, inf = std::numeric_limits<double>::infinity();
  Expected y{Array(x.g.shape), Array(x.delta.shape), Array(x.q.shape), Array(x.k.shape), Array(x.v.shape),
             Array(x.g.shape), Array(x.q.shape),     Array(x.k.shape), Array(x.v.shape)};
  const NaiveMask mask(x.options.mask, c.m, c.n);
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
std::vector<Tensor> run_slots(const Sample& c, const Operands& x, const Array& lse_before, bool heads_inside,
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
void check_numbers(const char* name, const Tensor& got, const Array& want, const Array& error) {
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

void check(const Sample& c, uint64_t seed = 1) {
  INFO("m " << c.m << ", n " << c.n << ", d " << c.d << ", dv " << c.values() << ", weighting "
            << static_cast<int>(c.weighting) << ", causal " << c.mask.causal << ", window " << c.mask.window
            << ", keys " << c.keys << ", sink " << c.sink << ", poison " << static_cast<int>(c.poison));
  PrecisionScope scope(Precision::bf16);
  const Operands x(c, seed);
  const Expected want = expected(c, x);
  std::vector<Tensor> first;
  for (uint64_t schedule : {seed, seed + 1}) {
    cuda::emulator::set_schedule(schedule);
    const std::vector<Tensor> got = run_slots(c, x, want.lse, seed % 2);
    cuda::emulator::set_schedule(0);
    if (first.empty()) first = got;
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
  // The operands are bf16 numbers: tensors of bf16 have the same results, rounded.
  const std::vector<Tensor> narrow = run_slots(c, x, want.lse, seed % 2, 7, bf16);
  for (std::size_t i = 0; i < first.size(); ++i) CHECK(same_bits(narrow[i], to(first[i], narrow[i].dtype())));
  CHECK(narrow[0].dtype() == bf16);
}

constexpr Weighting kAll[] = {Weighting::softmax, Weighting::relu2, Weighting::laplace, Weighting::sigmoid,
                              Weighting::linear};

}  // namespace

TEST_CASE("cuda attention, bf16: every weighting, masks and groups of heads", "[cuda]") {
  uint64_t seed = 1;
  for (Weighting w : kAll) {
    check({1, 2, 1, 65, 129, 64, w, {.causal = true}}, ++seed);
    check({1, 1, 1, 129, 65, 64, w, {.causal = true, .window = 30}}, ++seed);  // the first queries see nothing
    check({2, 2, 1, 65, 66, 64, w, {.causal = true}, true}, ++seed);
  }
  check({1, 4, 2, 17, 193, 64}, ++seed);
  check({1, 1, 1, 97, 129, 64, Weighting::softmax, {.window = 40}}, ++seed);
  check({1, 2, 2, 16, 16, 64, Weighting::relu2, {.window = 3}}, ++seed);
  check({1, 3, 1, 33, 65, 64, Weighting::softmax, {.causal = true}, false, true}, ++seed);
}

TEST_CASE("cuda attention, bf16: 128 columns", "[cuda]") {
  check({1, 2, 1, 65, 97, 128, Weighting::softmax, {.causal = true}}, 3);
  check({2, 1, 1, 97, 65, 128, Weighting::softmax, {}, true}, 4);
  check({1, 1, 1, 129, 65, 128, Weighting::relu2, {.window = 30}}, 5);
}

TEST_CASE("cuda attention, bf16: widths that are filled up with zeros", "[cuda]") {
  uint64_t seed = 20;
  const int64_t widths[][2] = {{16, 16}, {62, 64}, {64, 62}, {30, 66}, {96, 64}, {80, 80}, {126, 128}, {2, 128}};
  for (const auto& [d, dv] : widths)
    for (int64_t m : {65, 129})
      check({1,
             2,
             1,
             m,
             130,
             d,
             m == 65 ? Weighting::relu2 : Weighting::softmax,
             {.causal = true},
             false,
             false,
             Poison::none,
             dv},
            ++seed);
}

TEST_CASE("cuda attention, bf16: the edges of windows, wherever they fall in a tile", "[cuda]") {
  uint64_t seed = 40;
  for (int64_t before : {62, 63, 64}) {  // keys before that of the first query
    const AttentionMask masks[] = {{.causal = true},
                                   {.window = before + 63},
                                   {.causal = true, .window = before + 63},
                                   {.causal = true, .window = 64},
                                   {.window = 1}};
    for (const AttentionMask& mask : masks) check({1, 1, 1, 80, 80 + before, 64, Weighting::linear, mask}, ++seed);
  }
}

TEST_CASE("cuda attention, bf16: NaN reaches those who see it, and nobody else", "[cuda]") {
  uint64_t seed = 60;
  for (Poison poison : {Poison::key, Poison::query})
    for (Weighting w : {Weighting::softmax, Weighting::relu2, Weighting::linear}) {
      check({1, 2, 1, 80, 80, 64, w, {.causal = true}, false, false, poison}, ++seed);
      check({1, 1, 1, 130, 140, 64, w, {.window = 20}, false, false, poison}, ++seed);
    }
  check({1, 1, 1, 65, 65, 128, Weighting::softmax, {.causal = true}, false, false, Poison::key}, ++seed);
  check({1, 1, 1, 65, 65, 128, Weighting::softmax, {.causal = true}, false, false, Poison::query}, ++seed);
}

TEST_CASE("cuda attention, bf16: blocks of 128 queries or keys", "[cuda]") {
  uint64_t seed = 80;
  for (Weighting w : {Weighting::softmax, Weighting::relu2}) {
    check({1, 2, 1, 129, 257, 64, w, {.causal = true}}, ++seed);
    check({1, 1, 1, 257, 129, 64, w, {.causal = true}}, ++seed);  // the first queries see nothing
    check({2, 3, 1, 129, 193, 64, w, {}, true}, ++seed);  // the ring goes round, NaN in hidden keys of every tile
    check({1, 2, 1, 193, 129, 128, w, {.window = 70}}, ++seed);
    check({1, 1, 1, 129, 257, 128, w, {.causal = true}}, ++seed);
  }
  check({1, 2, 2, 161, 385, 64, Weighting::softmax, {.causal = true, .window = 30}, false, true}, ++seed);
  check({1, 1, 1, 129, 321, 64, Weighting::laplace}, ++seed);
  for (Weighting w : {Weighting::sigmoid, Weighting::laplace}) check({1, 1, 1, 129, 129, 128, w}, ++seed);
  for (int64_t before : {62, 63, 64, 65}) {  // the edges of windows
    check({1, 1, 1, 144, 144 + before, 64, Weighting::linear, {.window = before + 63}}, ++seed);
    check({1, 1, 1, 144, 144 + before, 128, Weighting::linear, {.causal = true, .window = 64}}, ++seed);
  }
  for (Poison poison : {Poison::key, Poison::query})
    for (Weighting w : {Weighting::softmax, Weighting::relu2}) {
      check({1, 2, 1, 150, 150, 64, w, {.causal = true}, false, false, poison}, ++seed);
      check({1, 1, 1, 130, 150, 128, w, {.window = 20}, false, false, poison}, ++seed);
    }
}

TEST_CASE("cuda attention, bf16: gradients of some operands are those of all", "[cuda]") {
  PrecisionScope scope(Precision::bf16);
  uint64_t seed = 120;
  const int64_t sizes[][3] = {{17, 65, 64}, {129, 129, 64}, {65, 129, 128}};
  for (const auto& [m, n, d] : sizes)
    for (Weighting w : {Weighting::softmax, Weighting::relu2}) {
      const Sample c{1, 2, 1, m, n, d, w, {.causal = true}};
      const Operands x(c, ++seed);
      const Array lse = expected(c, x).lse;
      const std::vector<Tensor> all = run_slots(c, x, lse, false);
      for (int wanted = 1; wanted < 7; ++wanted) {
        INFO("m " << m << ", n " << n << ", d " << d << ", weighting " << static_cast<int>(w) << ", wanted " << wanted);
        std::vector<Tensor> some = run_slots(c, x, lse, false, wanted);
        for (int i = 2; i >= 0; --i) {
          if (!(wanted >> i & 1)) continue;
          CHECK(same_bits(some.back(), all[all.size() - 3 + static_cast<std::size_t>(i)]));
          some.pop_back();
        }
      }
    }
}

TEST_CASE("cuda attention, bf16: which calls go to the tensor cores", "[cuda]") {
  Rand rand(7);
  const auto differs = [&](int64_t m, int64_t n, int64_t d, int64_t dv, const AttentionOptions& options) {
    const Tensor q = to(random_tensor({1, 1, m, d}, f32, rand), Device::cuda()),
                 k = to(random_tensor({1, 1, n, d}, f32, rand), Device::cuda());
    const Tensor v = to(random_tensor({1, 1, n, dv}, f32, rand), Device::cuda());
    const auto run = [&](Precision p) {
      PrecisionScope scope(p);
      return to(contiguous(attention(q, k, v, options)), cpu).to_vector();
    };
    return run(Precision::f32) != run(Precision::bf16);
  };
  CHECK(differs(16, 16, 64, 64, {}));
  CHECK(differs(17, 16, 128, 128, {.weighting = Weighting::laplace, .mask = {.causal = true, .window = 9}}));
  CHECK_FALSE(differs(15, 16, 64, 64, {}));
  CHECK_FALSE(differs(16, 15, 64, 64, {}));
  CHECK(differs(16, 16, 64, 128, {}));
  CHECK(differs(16, 16, 65, 65, {}));
  CHECK(differs(16, 16, 64, 64, {.mask = {.dilation = 2}}));
  CHECK(differs(16, 16, 64, 64, {.mask = {.window = 2, .global = {3}}}));
  CHECK(differs(16, 16, 64, 64, {.bias = full({16, 16}, 1.0, {f32, Device::cuda()})}));
  CHECK(differs(16, 16, 64, 64, {.row_scale = full({16}, 2.0, {f32, Device::cuda()})}));
}
