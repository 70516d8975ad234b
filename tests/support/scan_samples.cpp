#include "support/scan_samples.h"

#include "support/catch.h"

#include <sluice/autograd/engine.h>
#include <sluice/ops/create.h>
#include <sluice/ops/view.h>

#include <algorithm>
#include <cmath>

namespace sluice::testing {

ScanSample ScanSample::in(DType dtype) const {
  ScanSample s = *this;
  for (Tensor* x : {&s.q, &s.k, &s.v, &s.decay})
    if (x->defined()) *x = to(*x, dtype);
  return s;
}

std::string ScanSample::text() const {
  return str("q", q, " v", v, decay.defined() ? str(" decay", decay) : "", " chunk ", options.chunk,
             options.reverse ? " reverse" : "", options.chunks_only ? " chunks_only" : "",
             options.decay_on_values ? " on values" : "");
}

namespace {

Tensor decays(const Shape& shape, Strength strength, Rand& rand) {
  std::vector<double> v(static_cast<std::size_t>(shape.numel()));
  const double sizes[] = {0, -0.0078125, -1, -50, -1e4};
  for (double& x : v) switch (strength) {
      case Strength::mild: x = static_cast<float>(rand.uniform(-0.3, 0)); break;
      case Strength::mixed: x = sizes[rand.below(5)]; break;
      case Strength::none: x = 0; break;
      case Strength::strong: x = -50; break;
      case Strength::total: x = -1e4; break;
    }
  return tensor_of(v, shape, f64);
}
}  // namespace

ScanSample random_scan(Rand& rand, ScanKind kind, Strength strength, const Shape& q, int64_t e) {
  ScanSample s;
  const int64_t batch = q[0], heads = q[1], n = q[2], m = q[3];
  s.q = random_tensor(q, f64, rand), s.k = random_tensor(q, f64, rand),
  s.v = random_tensor({batch, heads, n, e}, f64, rand);
  s.options.decay_on_values = kind == ScanKind::values;
  if (kind == ScanKind::none) return s;
  Shape shape{rand.below(4) ? batch : 1, rand.below(4) ? heads : 1, rand.below(5) ? n : 1};
  if (kind != ScanKind::scalar) shape.push_back(!rand.below(5) ? 1 : kind == ScanKind::keys ? m : e);
  s.decay = decays(shape, strength, rand);
  return s;
}

Tensor recurrence(const ScanSample& s) {
  const int64_t batch = s.q.dim(0), heads = s.q.dim(1), n = s.q.dim(2), m = s.q.dim(3), e = s.v.dim(3);
  const auto q = s.q.to_vector<double>(), k = s.k.to_vector<double>(), v = s.v.to_vector<double>();
  const LinearScanOptions& o = s.options;
  std::vector<double> g(static_cast<std::size_t>(batch * heads * n * m * e), 0),
      out(static_cast<std::size_t>(batch * heads * n * e));
  if (s.decay.defined()) {
    Tensor full = s.decay;  // to [batch, heads, n, m, e]
    full = full.rank() == 3 ? unsqueeze(unsqueeze(full, -1), -1) : unsqueeze(full, o.decay_on_values ? -2 : -1);
    g = expand(full, {batch, heads, n, m, e}).to_vector<double>();
  }
  for (int64_t b = 0; b < batch * heads; ++b) {
    std::vector<double> state(static_cast<std::size_t>(m * e), 0), start = state;
    for (int64_t step = 0; step < n; ++step) {
      const int64_t t = o.reverse ? n - 1 - step : step, before = o.reverse ? t + 1 : t - 1;
      // Forwards the decay of step t lies between t − 1 and t; backwards that of t + 1 lies between t + 1 and t.
      for (int64_t i = 0; i < m * e; ++i) {
        const double left =
            step == 0 ? 1 : std::exp(g[static_cast<std::size_t>((b * n + (o.reverse ? before : t)) * m * e + i)]);
        state[static_cast<std::size_t>(i)] *= left;
        start[static_cast<std::size_t>(i)] *= left;
      }
      if (step > 0 && before / o.chunk != t / o.chunk) start = state;  // decayed to here, without step t
      for (int64_t c = 0; c < m; ++c)
        for (int64_t d = 0; d < e; ++d) {
          double& x = state[static_cast<std::size_t>(c * e + d)];
          x += k[static_cast<std::size_t>((b * n + t) * m + c)] * v[static_cast<std::size_t>((b * n + t) * e + d)];
          out[static_cast<std::size_t>((b * n + t) * e + d)] +=
              q[static_cast<std::size_t>((b * n + t) * m + c)] *
              (o.chunks_only ? start[static_cast<std::size_t>(c * e + d)] : x);
        }
    }
  }
  return tensor_of(out, s.v.shape(), f64);
}

std::vector<Tensor> run_scan(ScanFunction f, const ScanSample& s) {
  std::vector<Tensor> leaves;
  for (const Tensor& x : {s.q, s.k, s.v, s.decay})
    if (x.defined()) leaves.push_back(x.detach()), leaves.back().requires_grad_();
  const Tensor y = f(leaves[0], leaves[1], leaves[2], s.decay.defined() ? leaves[3] : Tensor(), s.options);
  Rand rand(5);
  std::vector<Tensor> all = grad({y}, leaves, {.grad_outputs = {random_tensor(y.shape(), y.dtype(), rand)}});
  all.insert(all.begin(), y.detach());
  return all;
}
void check_scan_close(const std::vector<Tensor>& got, const std::vector<Tensor>& want, double tolerance,
                      const std::string& text) {
  REQUIRE(got.size() == want.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    double size = std::max(0.1, max_abs(want[i]));
    if (i == 4) size = std::max(size, max_abs(want[1]));
    const double error = max_abs_diff(to(got[i], f64), to(want[i], f64));
    if (!(error <= tolerance * size)) FAIL_CHECK(text << ": result " << i << " is off by " << error << " of " << size);
  }
}

}  // namespace sluice::testing
