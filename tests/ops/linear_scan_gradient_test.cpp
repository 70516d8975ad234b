// The gradients of linear_scan(): the kernel that makes all of them in one pass beside the scans that they are by
// definition; heads of q and k that several heads of v read; what is not finite.
#include "support/catch.h"
#include "support/scan_samples.h"

#include <sluice/autograd/engine.h>
#include <sluice/core/kernel/observer.h>
#include <sluice/core/kernel/parallel.h>
#include <sluice/core/memory/allocator.h>
#include <sluice/ops/attention/heads.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/rows/reduce.h>
#include <sluice/ops/scan/linear_scan.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/shape/view.h>

#include <limits>
#include <string>
#include <vector>

using namespace sluice;
using namespace sluice::testing;

namespace {

struct Sizes {
  int64_t batch, groups, heads, n, m, e, chunk;
};

/// A call with q and k of `groups` heads and v of `heads`.
ScanSample grouped_scan(Rand& rand, ScanKind kind, const Sizes& s, Strength strength = Strength::mild) {
  ScanSample x = random_scan(rand, kind, strength, {s.batch, s.heads, s.n, s.m}, s.e);
  x.q = narrow(x.q, 1, 0, s.groups), x.k = narrow(x.k, 1, 0, s.groups), x.options.chunk = s.chunk;
  x.options.decay_on_values = kind == ScanKind::values;
  return x;
}

/// The gradients of q, k, v and the decay; with `by_scans` those that can be differentiated again.
std::vector<Tensor> gradients(const ScanSample& s, const Tensor& g, bool by_scans) {
  std::vector<Tensor> leaves;
  for (const Tensor& x : {s.q, s.k, s.v, s.decay})
    if (x.defined()) leaves.push_back(x.detach()), leaves.back().requires_grad_();
  const Tensor y = linear_scan(leaves[0], leaves[1], leaves[2], leaves.size() > 3 ? leaves[3] : Tensor(), s.options);
  return grad({y}, leaves, {.create_graph = by_scans, .grad_outputs = {g}});
}

Tensor random_output(const Tensor& v, uint64_t seed = 5) {
  Rand rand(seed);
  return random_tensor(v.shape(), v.dtype(), rand);
}

bool finite_rows(const Tensor& x, int64_t from, int64_t to) {
  return all(isfinite(narrow(x, 2, from, to - from))).item() != 0;
}

}  // namespace

TEST_CASE("linear_scan: gradients in one pass are those by scans, beyond every tile", "[linear_scan]") {
  Rand rand(21);
  for (const Sizes& s : {Sizes{1, 1, 1, 1, 2, 2, 64},
                         {1, 2, 2, 65, 17, 3, 64},
                         {2, 1, 1, 193, 129, 65, 64},
                         {1, 1, 3, 130, 64, 129, 64},
                         {1, 2, 4, 129, 33, 31, 128},
                         {3, 2, 6, 40, 5, 7, 3},
                         {1, 1, 32, 70, 16, 8, 16},
                         {1, 1, 64, 70, 16, 1, 16},
                         {2, 1, 3, 193, 5, 1, 64}})
    for (ScanKind kind : {ScanKind::none, ScanKind::scalar, ScanKind::keys}) {
      const ScanSample x = grouped_scan(rand, kind, s), narrow32 = x.in(f32);
      const Tensor g = random_output(x.v);
      const std::vector<Tensor> want = gradients(x, g, true), got = gradients(x, g, false),
                                half = gradients(narrow32, to(g, f32), false);
      for (std::size_t i = 0; i < want.size(); ++i) {
        INFO(x.text() << ", gradient " << i);
        const double size = std::max(1.0, max_abs(want[i]));
        CHECK(got[i].shape() == want[i].shape());
        CHECK(max_abs_diff(got[i], want[i].detach()) <= 1e-12 * size);
        CHECK(max_abs_diff(to(half[i], f64), want[i].detach()) <= 1e-4 * size);
      }
    }
}

TEST_CASE("linear_scan: strong decays beside weak ones keep the digits of their gradients", "[linear_scan]") {
  // Σ dg·g of a head, the gradient of the logarithm of its rate: strong decays weigh most in it.
  for (double strong : {-5.0, -16.0, -40.0}) {
    Rand rand(12);
    ScanSample s = random_scan(rand, ScanKind::scalar, Strength::mild, {1, 8, 515, 32}, 24);
    const Tensor draw = random_tensor({1, 8, 515}, f64, rand, 0, 1), gy = random_output(s.v);
    s.decay = to(to(where(draw < 0.1, (draw * 5.0 + 0.5) * strong, draw * -0.02), f32), f64);
    const auto rate_gradient = [&](const ScanSample& x, const Tensor& g) {
      return sum(to(gradients(x, g, false).back(), f64) * s.decay, {2});
    };
    const Tensor want = rate_gradient(s, gy), got = rate_gradient(s.in(f32), to(gy, f32));
    INFO("strong decays up to " << strong << ", " << max_abs(want));
    CHECK(max_abs_diff(got, want) <= 2e-5 * max_abs(want));
  }
}

TEST_CASE("linear_scan: heads of q and k that several heads of v read", "[linear_scan]") {
  Rand rand(22);
  for (ScanKind kind : kScanKinds)
    for (bool reverse : {false, true})
      for (bool exclusive : {false, true})
        for (const Sizes& s : {Sizes{2, 1, 6, 9, 3, 2, 4},
                               {1, 2, 4, 17, 2, 5, 16},
                               {1, 3, 3, 5, 1, 4, 64},
                               {2, 1, 2, 7, 4, 1, 3},
                               {1, 2, 6, 0, 3, 2, 4},
                               {0, 1, 2, 3, 2, 2, 4},
                               {16, 1, 3, 37, 3, 2, 16},   // the heads of a group share their pairs
                               {4, 2, 8, 70, 17, 5, 64}})  // half of them do
          for (Strength strength : {Strength::mild, Strength::mixed}) {
            ScanSample one = grouped_scan(rand, kind, s, strength);
            one.options.reverse = reverse, one.options.exclusive = exclusive;
            ScanSample each = one;
            each.q = detail::spread_heads(one.q, s.heads), each.k = detail::spread_heads(one.k, s.heads);
            INFO(one.text() << ", groups " << s.groups);
            const Tensor y = linear_scan(each.q, each.k, each.v, each.decay, each.options);
            // Where a total decay cuts a chunk, products may have other sizes.
            CHECK(max_abs_diff(linear_scan(one.q, one.k, one.v, one.decay, one.options), y) <=
                  (strength == Strength::mild ? 0 : 1e-14 * max_abs(y)));
            if (kind != ScanKind::values && !reverse && !exclusive)
              CHECK(max_abs_diff(linear_scan_state(one.k, one.v, one.decay),
                                 linear_scan_state(each.k, each.v, each.decay)) == 0);
            const Tensor g = random_output(one.v);
            for (bool by_scans : {false, true}) {
              std::vector<Tensor> got = gradients(one, g, by_scans), want = gradients(each, g, true);
              for (std::size_t i = 0; i < 2; ++i) want[i] = detail::gather_heads(want[i], s.groups);
              for (std::size_t i = 0; i < want.size(); ++i) {
                REQUIRE(got[i].shape() == want[i].shape());
                CHECK(max_abs_diff(got[i].detach(), want[i].detach()) <= 1e-12 * std::max(1.0, max_abs(want[i])));
              }
            }
          }
  const Tensor q = zeros({1, 2, 3, 4}), v = zeros({1, 3, 3, 4});
  CHECK_THROWS_WITH(linear_scan(q, q, v), Contains("linear_scan:") && Contains("divide") && Contains("[1,3,3,4]"));
  CHECK_THROWS_AS(linear_scan(v, v, q), ShapeError);
  CHECK_THROWS_AS(linear_scan(zeros({1, 0, 3, 4}), zeros({1, 0, 3, 4}), q), ShapeError);
}

TEST_CASE("linear_scan: a gradient of a gradient where heads share q and k", "[linear_scan]") {
  Rand rand(23);
  const ScanSample s = grouped_scan(rand, ScanKind::scalar, {1, 1, 3, 5, 2, 2, 2});
  const auto second = [&](bool shared) {
    std::vector<Tensor> leaves;
    for (const Tensor& x : {s.q, s.k, s.v, s.decay}) leaves.push_back(x.detach()), leaves.back().requires_grad_();
    const Tensor q = shared ? leaves[0] : detail::spread_heads(leaves[0], 3),
                 k = shared ? leaves[1] : detail::spread_heads(leaves[1], 3);
    const std::vector<Tensor> first =
        grad({sum(square(linear_scan(q, k, leaves[2], leaves[3], s.options)))}, leaves, {.create_graph = true});
    Tensor total = sum(square(first[0]));
    for (std::size_t i = 1; i < first.size(); ++i) total = total + sum(square(first[i]));
    return grad({total}, leaves);
  };
  const std::vector<Tensor> got = second(true), want = second(false);
  for (std::size_t i = 0; i < want.size(); ++i) CHECK(max_abs_diff(got[i], want[i]) <= 1e-12 * max_abs(want[i]));
}

TEST_CASE("linear_scan: gradients in one pass have the same bits on any number of threads", "[linear_scan][bits]") {
  Rand rand(24);
  const ScanSample s = grouped_scan(rand, ScanKind::keys, {1, 1, 24, 100, 8, 8, 16}).in(f32);
  const Tensor g = random_output(s.v);
  const int before = num_threads();
  set_num_threads(1);
  const std::vector<Tensor> want = gradients(s, g, false);
  set_num_threads(3);
  const std::vector<Tensor> got = gradients(s, g, false);
  set_num_threads(before);
  for (std::size_t i = 0; i < want.size(); ++i) CHECK(max_abs_diff(got[i], want[i]) == 0);
}

TEST_CASE("linear_scan: gradients with short chunks do not hold a state for each step", "[linear_scan][memory]") {
  Rand rand(26);
  const ScanSample s = grouped_scan(rand, ScanKind::scalar, {1, 1, 1, 512, 128, 128, 1}).in(f32);
  const Tensor g = random_output(s.v);
  const int64_t before = memory_stats().live;
  reset_peak_memory();
  gradients(s, g, false);
  CHECK(memory_stats().peak - before < 512 * 128 * 4 * 40);  // the states of all steps are 128 times a row's
}

TEST_CASE("linear_scan: gradients in bf16 need no copy of f32 results", "[linear_scan][bf16]") {
  struct Calls final : detail::Observer {
    void on_call(const detail::KernelCall& call) override { names.emplace_back(call.op); }
    std::vector<std::string> names;
  };
  Rand rand(27);
  for (ScanKind kind : {ScanKind::none, ScanKind::scalar, ScanKind::keys}) {
    const ScanSample s = grouped_scan(rand, kind, {2, 2, 2, 40, 3, 5, 16}).in(bf16);
    const Tensor x = random_output(s.v);
    const std::vector<Tensor> leaves{clone(s.q).requires_grad_(), clone(s.k).requires_grad_(),
                                     clone(s.v).requires_grad_()};
    const Tensor y = linear_scan(leaves[0], leaves[1], leaves[2], s.decay, s.options);
    Calls calls;
    const std::vector<Tensor> grads = grad({y}, leaves, {.grad_outputs = {x}});
    CHECK(calls.names.back() == "linear_scan");
    for (const Tensor& g : grads) CHECK(g.dtype() == bf16);
  }
}

TEST_CASE("linear_scan: what is not finite reaches only the gradients that read it", "[linear_scan]") {
  Rand rand(25);
  const int64_t n = 40, at = 21;
  for (ScanKind kind : {ScanKind::scalar, ScanKind::keys})
    for (double bad : {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()})
      for (int which = 0; which < 4; ++which)  // q, k, v or the gradient of the result
        for (const auto& [batch, chunk] : {std::pair<int64_t, int64_t>{1, 8}, {1, 64}, {16, 8}, {16, 64}}) {
          ScanSample s = grouped_scan(rand, kind, {batch, 1, 2, n, 3, 5, chunk});
          Tensor g = clone(random_output(s.v));
          for (Tensor* x : {&s.q, &s.k, &s.v}) *x = clone(*x);
          Tensor& spoilt = which == 3 ? g : which == 0 ? s.q : which == 1 ? s.k : s.v;
          Tensor row = narrow(spoilt, 2, at, 1);
          fill_(row, bad);
          const std::vector<Tensor> d = gradients(s, g, false);
          INFO("kind " << static_cast<int>(kind) << ", operand " << which << ", " << s.text() << ", " << bad);
          // dq_t reads g_t, and k_j and v_j of j <= t; dk_j and dv_j read q_t and g_t of t >= j, and v_j or k_j.
          CHECK(finite_rows(d[0], 0, at));
          CHECK(finite_rows(d[1], at + 1, n));
          CHECK(finite_rows(d[2], at + 1, n));
          if (which == 0 || which == 3) CHECK(finite_rows(d[0], at + 1, n));
          else CHECK((finite_rows(d[1], 0, at) && finite_rows(d[2], 0, at)));
        }
}
