#include "support/scan_samples.h"

#include "support/naive_attention.h"

#include <sluice/autograd/engine.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/matmul/matmul.h>
#include <sluice/ops/rows/reduce.h>
#include <sluice/ops/scan/scan.h>
#include <sluice/ops/shape/view.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace sluice::testing {

ScanSample ScanSample::in(DType dtype) const {
  ScanSample s = *this;
  for (Tensor* x : {&s.q, &s.k, &s.v, &s.decay})
    if (x->defined()) *x = to(*x, dtype);
  return s;
}

std::string ScanSample::text() const {
  return str("q", q, " v", v, decay.defined() ? str(" decay", decay) : "", " chunk ", options.chunk,
             options.reverse ? " reverse" : "", options.decay_on_values ? " on values" : "",
             options.exclusive ? " exclusive" : "");
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

Array scan_by_steps(const Arrays& xs, const LinearScanOptions& o) {
  const bool decays = xs.size() > 3, by_channel = decays && xs[3].rank() == 4,
             by_key = by_channel && !o.decay_on_values;
  const Array &q = xs[0], &k = xs[1], &v = xs[2];
  const int64_t n = q.shape[2], m = q.shape[3], e = v.shape[3];
  Array y(v.shape);
  each_index({q.shape[0], q.shape[1]}, [&](const Dims& i) {
    const int64_t first = (q.shape[1] * i[0] + i[1]) * n;
    std::vector<double> state(static_cast<std::size_t>(m * e));
    std::vector<double> keep(static_cast<std::size_t>(std::max<int64_t>({m, e, 1})));
    for (int64_t step = 0; step < n; ++step) {
      const int64_t t = o.reverse ? n - 1 - step : step, from = o.reverse ? t + 1 : t - 1;
      if (step > 0 && decays) {
        Dims at{i[0], i[1], std::max(t, from), 0};
        if (!by_channel) at.pop_back();
        const int64_t channels = by_key ? m : by_channel ? e : 1;
        for (int64_t c = 0; c < channels; ++c) {
          if (by_channel) at[3] = c;
          keep[static_cast<std::size_t>(c)] = std::exp(xs[3].stretched(at));
        }
        for (int64_t c = 0; c < m; ++c)
          for (int64_t d = 0; d < e; ++d)
            state[static_cast<std::size_t>(c * e + d)] *= keep[static_cast<std::size_t>(by_key       ? c
                                                                                        : by_channel ? d
                                                                                                     : 0)];
      }
      const double *query = q.v.data() + (first + t) * m, *key = k.v.data() + (first + t) * m;
      const double* value = v.v.data() + (first + t) * e;
      double* out = y.v.data() + (first + t) * e;
      for (int64_t c = 0; c < m; ++c)
        for (int64_t d = 0; d < e; ++d) {
          double& s = state[static_cast<std::size_t>(c * e + d)];
          if (o.exclusive) out[d] += query[c] * s;
          s += key[c] * value[d];
          if (!o.exclusive) out[d] += query[c] * s;
        }
    }
  });
  return y;
}

Tensor recurrence(const ScanSample& s) {
  Arrays xs{array_of(s.q), array_of(s.k), array_of(s.v)};
  if (s.decay.defined()) {
    Shape shape{s.q.dim(0), s.q.dim(1), s.q.dim(2)};
    if (s.decay.rank() == 4) shape.push_back(s.options.decay_on_values ? s.v.dim(3) : s.q.dim(3));
    xs.push_back(array_of(expand(s.decay, shape)));
  }
  return tensor_of(scan_by_steps(xs, s.options).v, s.v.shape(), f64);
}

Tensor scan_by_pairs(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& log_decay,
                     const LinearScanOptions& o) {
  const int64_t n = q.dim(2);
  const Tensor i = arange(n, {i64, q.device()}), t = unsqueeze(i, 1), j = unsqueeze(i, 0);
  const Tensor later = o.reverse ? j < t : j > t, hidden = o.exclusive ? logical_or(later, j == t) : later,
               products = matmul(q, transpose(k, -2, -1));
  if (!log_decay.defined()) return matmul(masked_fill(products, hidden, 0), v);
  const bool by_channel = log_decay.rank() == 4;
  Shape shape{q.dim(0), q.dim(1), n};
  if (by_channel) shape.push_back(o.decay_on_values ? v.dim(3) : q.dim(3));
  // e^{±(G_t − G_j)} [batch, heads, t, j, (channels)], only where the pair counts: elsewhere it would overflow. Sums of
  // −∞ would have no differences.
  const Tensor sums = cumsum(to(clamp(expand(log_decay, shape), -1e4), f64), 2);
  const Tensor gap = to(unsqueeze(sums, 3) - unsqueeze(sums, 2), v.dtype());
  const Tensor weight = exp(masked_fill(o.reverse ? neg(gap) : gap, by_channel ? unsqueeze(hidden, -1) : hidden,
                                        -std::numeric_limits<double>::infinity()));
  if (!by_channel) return matmul(products * weight, v);
  if (!o.decay_on_values) return matmul(sum(unsqueeze(q, 3) * unsqueeze(k, 2) * weight, {-1}), v);
  return sum(unsqueeze(masked_fill(products, hidden, 0), -1) * weight * unsqueeze(v, 2), {3});
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

}  // namespace sluice::testing
