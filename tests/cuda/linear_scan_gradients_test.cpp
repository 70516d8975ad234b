// The gradients of a scan with learned decays on tensor cores, on the emulator: against the CPU in f64, for operands
// that bf16 has, too.
#include "support/catch.h"
#include "support/scan_samples.h"

#include <sluice/autograd/engine.h>
#include <sluice/cuda/emulator/emulator.h>
#include <sluice/ops/attention/heads.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/gemm/precision.h>
#include <sluice/ops/kernels.h>
#include <sluice/ops/rows/reduce.h>
#include <sluice/ops/scan/scan.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/shape/view.h>

#include <cmath>
#include <limits>

using namespace sluice;
using namespace sluice::testing;

namespace {

constexpr double kForgets = -std::numeric_limits<double>::infinity();

struct Sample {
  ScanSample scan;  // q and k may have fewer heads than v; decay [batch, heads, n] or undefined
  Tensor dout;
};

Tensor narrow_numbers(const Tensor& x) { return to(to(x, bf16), f64); }

/// Operands that bf16 has; decays g·x with x from 0.5 to 1.5, or all g where it is not finite.
Sample sample(Rand& rand, const Shape& v, int64_t m, int64_t groups, double g, bool reverse = false) {
  Sample s;
  const Shape keys{v[0], groups, v[2], m};
  s.scan.q = narrow_numbers(random_tensor(keys, f64, rand)), s.scan.k = narrow_numbers(random_tensor(keys, f64, rand));
  s.scan.v = narrow_numbers(random_tensor(v, f64, rand)), s.dout = narrow_numbers(random_tensor(v, f64, rand));
  std::vector<double> decay(static_cast<std::size_t>(v[0] * v[1] * v[2]));
  for (double& x : decay) x = std::isfinite(g) ? g * rand.uniform(0.5, 1.5) : g;
  s.scan.decay = narrow_numbers(tensor_of(decay, {v[0], v[1], v[2]}, f64));
  s.scan.options.reverse = reverse;
  return s;
}

struct How {
  DType dtype = f32, decay = f32;
  Precision precision = Precision::bf16;
  bool heads_inside = false;  // from memory [batch, n, heads, channels]
  bool learned = true;        // the decay
  bool graph = false;         // create_graph
};
constexpr How kBf16{.dtype = bf16, .precision = Precision::f32, .heads_inside = true};

/// The gradients of q, k, v and, if learned, the decay.
std::vector<Tensor> gradients(const Sample& s, Device device, const How& how) {
  PrecisionScope scope(how.precision);
  const auto moved = [&](const Tensor& x, DType dtype) {
    const Tensor y = to(x, dtype);
    return how.heads_inside && y.rank() == 4 ? transpose(to(contiguous(transpose(y, 1, 2)), device), 1, 2)
                                             : to(y, device);
  };
  std::vector<Tensor> leaves, results;
  for (const Tensor& x : {s.scan.q, s.scan.k, s.scan.v}) leaves.push_back(moved(x, how.dtype).detach());
  leaves.push_back(moved(s.scan.decay, how.decay).detach());
  const Tensor decay = leaves[3];
  if (!how.learned) leaves.pop_back();
  for (Tensor& x : leaves) x.requires_grad_();
  const Tensor y = linear_scan(leaves[0], leaves[1], leaves[2], how.learned ? leaves[3] : decay, s.scan.options);
  for (const Tensor& x : grad({sum(y * moved(s.dout, how.dtype))}, leaves, {.create_graph = how.graph}))
    results.push_back(to(to(contiguous(x.detach()), cpu), f64));
  return results;
}
std::vector<Tensor> exact(const Sample& s) { return gradients(s, cpu, {f64, f64, Precision::f32}); }

/// A, P, S and dL/dS are rounded once each: 2e-3; results in bf16, too: 2.6e-3. The gradient of a decay: 1e-7 inside a
/// chunk, else up to `decay`/2.
void check_close(const Sample& s, double decay = 8e-3) {
  const auto want = exact(s), got = gradients(s, Device::cuda(), {}), rounded = gradients(s, Device::cuda(), kBf16);
  INFO(s.scan.text());
  const char* const names[] = {"dq", "dk", "dv", "dg"};
  for (std::size_t i = 0; i < 4; ++i) {
    INFO(names[i]);
    CHECK(relative_distance(got[i], want[i]) < (i == 3 ? decay : 4e-3));
    CHECK(relative_distance(rounded[i], want[i]) < (i == 3 ? decay : 5e-3));
  }
  CHECK(relative_distance(got[0], want[0]) > 1e-6);  // on tensor cores
}

}  // namespace

TEST_CASE("cuda scan gradients, bf16: below, at and beyond every tile", "[cuda]") {
  Rand rand(61);
  const int64_t sizes[][3] = {{16, 16, 16},   {63, 17, 33},   {64, 64, 64},   {65, 65, 17},
                              {130, 100, 64}, {129, 128, 65}, {192, 33, 100}, {70, 128, 128}};
  const double decays[] = {-0.001, -0.1, -1, -5};
  int i = 0;
  for (const auto& [n, m, e] : sizes)
    for (int heads : {1, 3}) {
      ++i;
      check_close(sample(rand, {1 + i % 2, heads, n, e}, m, heads, decays[i * 7 % 4], i % 4 >= 2));
    }
}

TEST_CASE("cuda scan gradients, bf16: few heads, their sequences cut into pieces", "[cuda]") {
  Rand rand(62);
  check_close(sample(rand, {1, 1, 1000, 33}, 65, 1, -0.01));
  check_close(sample(rand, {1, 2, 600, 64}, 64, 2, -0.1, true));
  check_close(sample(rand, {1, 1, 770, 65}, 16, 1, -1));
}

TEST_CASE("cuda scan gradients, bf16: the gradient of a decay where nearly all of longer sums cancels", "[cuda]") {
  Rand rand(63);
  const auto first = [](const Tensor& x) { return narrow(x, 2, 1, 20); };  // few pairs of many
  Sample s = sample(rand, {1, 2, 2000, 16}, 16, 2, -1e-4);
  for (Tensor* x : {&s.scan.q, &s.scan.k, &s.scan.v, &s.dout}) *x = abs(*x);  // sums grow with the sequence
  const auto want = exact(s), got = gradients(s, Device::cuda(), {});
  CHECK(relative_distance(got[3], want[3]) < 1e-3);
  CHECK(relative_distance(first(got[3]), first(want[3])) < 1e-3);
  s = sample(rand, {1, 2, 500, 16}, 16, 2, -50);  // beside the pairs j = t the others are small
  const auto strong = exact(s), of_strong = gradients(s, Device::cuda(), {});
  CHECK(relative_distance(of_strong[3], strong[3]) < 1e-3);
  const Tensor terms = s.scan.q * of_strong[0] - s.scan.k * of_strong[1];
  CHECK(relative_distance(cumsum(sum(terms, {-1}), 2, {.reverse = true}), strong[3]) > 1);
}

TEST_CASE("cuda scan gradients, bf16: heads that share q and k", "[cuda]") {
  Rand rand(64);
  check_close(sample(rand, {2, 6, 70, 64}, 128, 2, -0.1));
  check_close(sample(rand, {3, 4, 130, 17}, 33, 1, -0.01, true));
  check_close(sample(rand, {1, 3, 64, 65}, 65, 1, -1));

  // In f64, in every form: by scans.
  for (bool by_key : {false, true})
    for (bool exclusive : {false, true}) {
      Sample s = sample(rand, {2, 4, 40, 18}, 17, 2, -0.1);
      if (by_key) s.scan.decay = unsqueeze(s.scan.decay, -1) * abs(random_tensor({2, 4, 40, 17}, f64, rand));
      s.scan.options.exclusive = exclusive;
      const auto want = exact(s), got = gradients(s, Device::cuda(), {f64, f64, Precision::f32});
      for (std::size_t i = 0; i < 4; ++i) CHECK(relative_distance(got[i], want[i]) < 1e-12);
    }

  // Parts of three heads, whose dq and dk a block adds up; in several turns.
  const Sample s = sample(rand, {2, 12, 130, 33}, 100, 2, -0.1);
  const auto want = exact(s);
  const auto moved = [](const Tensor& x) { return to(to(x, f32), Device::cuda()); };
  const Tensor q = moved(s.scan.q), v = moved(s.scan.v), g = moved(s.scan.decay);
  Tensor dq = empty({2, 4, 130, 100}, q.options()), dk = empty(dq.shape(), q.options()),
         dv = empty(v.shape(), v.options()), dg = empty(g.shape(), g.options());
  kernel::linear_scan_bf16_backward(q, moved(s.scan.k), v, g, moved(s.dout), dq, dk, dv, dg);
  const Tensor got[] = {detail::gather_heads(dq, 2), detail::gather_heads(dk, 2), dv, dg};
  for (std::size_t i = 0; i < 4; ++i)
    CHECK(relative_distance(to(to(got[i], cpu), f64), want[i]) < (i == 3 ? 8e-3 : 4e-3));
}

TEST_CASE("cuda scan gradients, bf16: decays from none to −∞", "[cuda]") {
  Rand rand(65);
  for (double g : {0.0, -5.0, -50.0, kForgets}) {
    Sample s = sample(rand, {1, 2, 150, 33}, 40, 2, g);
    check_close(s);
    const Tensor some = random_tensor(s.scan.decay.shape(), f64, rand) > 0.6;  // a fifth of them
    s.scan.decay = masked_fill(full(s.scan.decay.shape(), -0.0078125, {f64}), some, g);
    check_close(s);
    const auto got = gradients(s, Device::cuda(), {});
    for (const Tensor& x : got) CHECK(all(isfinite(x)).item() == 1);
    if (g == kForgets) CHECK(max_abs(got[3] * to(some, f64)) == 0);
    else CHECK(relative_distance(got[3] * s.scan.decay, exact(s)[3] * s.scan.decay) < 8e-3);  // by logarithms of rates
  }
}

TEST_CASE(
    "cuda scan gradients, bf16: numbers that are not finite stay where they count; the same bits in every schedule",
    "[cuda]") {
  Rand rand(66);
  const int64_t n = 150, at = 77, heads = 2;
  for (double bad : {double(NAN), double(INFINITY)}) {
    const Sample s = sample(rand, {1, heads, n, 70}, 18, heads, -0.1);
    const auto want = gradients(s, Device::cuda(), {});
    cuda::emulator::set_schedule(7);
    const auto again = gradients(s, Device::cuda(), {});
    cuda::emulator::set_schedule(0);
    for (std::size_t i = 0; i < 4; ++i) CHECK(same_bits(again[i], want[i]));
    for (int which = 0; which < 4; ++which) {
      Sample t = s;
      Tensor& x = which == 0 ? t.scan.q : which == 1 ? t.scan.k : which == 2 ? t.scan.v : t.dout;
      x = clone(x);
      for (int64_t h = 0; h < heads; ++h)
        for (int64_t c = 0; c < x.dim(3); ++c) x.mutable_data<double>()[(h * n + at) * x.dim(3) + c] = bad;
      const auto got = gradients(t, Device::cuda(), {});
      for (std::size_t i = 0; i < 3; ++i)
        for (bool before : {false, true}) {
          // dq_t reads k_j and v_j of j <= t, dk_j and dv_j read q_t and do_t of t >= j, and each its own step.
          const bool reads = i == 0 ? which == 1 || which == 2 : which == 0 || which == 3;
          if (reads && before == (i != 0)) continue;
          INFO("result " << i << ", operand " << which << (before ? " before" : " behind"));
          const auto part = [&](const Tensor& y) {
            return contiguous(narrow(y, 2, before ? 0 : at + 1, before ? at : n - 1 - at));
          };
          CHECK(max_abs_diff(part(got[i]), part(want[i])) < 1e-5 * max_abs(part(want[i])));
        }
    }
  }
}

TEST_CASE("cuda scan gradients, bf16: which calls go there", "[cuda]") {
  Rand rand(67);
  const auto rounds = [&](const Shape& v, int64_t m, const How& how, bool exclusive = false) {
    Sample s = sample(rand, v, m, v[1], -0.1);
    s.scan.options.exclusive = exclusive;
    const auto want = exact(s), got = gradients(s, Device::cuda(), how);
    if (got.size() > 3) CHECK(relative_distance(got[3], want[3]) < 8e-3);
    return relative_distance(got[0], want[0]) > 1e-5;
  };
  CHECK(rounds({1, 1, 16, 16}, 16, {}));
  CHECK(rounds({1, 1, 20, 128}, 128, {}));
  CHECK(rounds({1, 1, 20, 20}, 20, {.learned = false}));  // by three scans
  CHECK_FALSE(rounds({1, 1, 1, 16}, 16, {}));
  CHECK_FALSE(rounds({1, 1, 15, 16}, 16, {}));
  CHECK_FALSE(rounds({1, 1, 16, 15}, 16, {}));
  CHECK_FALSE(rounds({1, 1, 16, 16}, 15, {}));
  CHECK_FALSE(rounds({1, 1, 16, 129}, 16, {}));
  CHECK_FALSE(rounds({1, 1, 16, 16}, 129, {}));
  CHECK_FALSE(rounds({1, 1, 16, 16}, 16, {.precision = Precision::f32}));
  CHECK_FALSE(rounds({1, 1, 16, 16}, 16, {.dtype = f64, .decay = f64}));
  CHECK_FALSE(rounds({1, 1, 16, 16}, 16, {.graph = true}));
  CHECK_FALSE(rounds({1, 1, 20, 16}, 16, {}, true));
}
