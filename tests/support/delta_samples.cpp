#include "support/delta_samples.h"

#include "support/naive_attention.h"

#include <sluice/autograd/engine.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/rows/reduce.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/shape/join.h>
#include <sluice/ops/shape/rearrange.h>
#include <sluice/ops/shape/view.h>

#include <cmath>

namespace sluice::testing {

Arrays delta_by_steps(const Array& q, const Array& k, const Array& erase, const Array& write, const Array* decay,
                      const Array* initial) {
  const int64_t n = k.shape[2], dk = k.shape[3], dv = write.shape[3], hv = write.shape[1];
  const int64_t group = k.shape[1] > 0 ? hv / k.shape[1] : 1;
  Array o(write.shape), u(write.shape), last({write.shape[0], hv, dk, dv});
  each_index({write.shape[0], hv}, [&](const Dims& i) {
    const int64_t h = i[0], head = i[1], key_head = head / group;
    std::vector<std::vector<double>> state(static_cast<std::size_t>(dk),
                                           std::vector<double>(static_cast<std::size_t>(dv)));
    const auto at = [&](int64_t c, int64_t j) -> double& {
      return state[static_cast<std::size_t>(c)][static_cast<std::size_t>(j)];
    };
    for (int64_t c = 0; initial && c < dk; ++c)
      for (int64_t j = 0; j < dv; ++j) at(c, j) = (*initial)({h, head, c, j});
    for (int64_t t = 0; t < n; ++t) {
      for (int64_t c = 0; decay && c < dk; ++c)
        for (int64_t j = 0; j < dv; ++j)
          at(c, j) *= std::exp(decay->stretched(decay->rank() == 4 ? Dims{h, head, t, c} : Dims{h, head, t}));
      for (int64_t j = 0; j < dv; ++j) {
        double said = 0;
        for (int64_t c = 0; c < dk; ++c) said += erase({h, head, t, c}) * at(c, j);
        u({h, head, t, j}) = write({h, head, t, j}) - said;
      }
      for (int64_t j = 0; j < dv; ++j)
        for (int64_t c = 0; c < dk; ++c) {
          at(c, j) += k({h, key_head, t, c}) * u({h, head, t, j});
          o({h, head, t, j}) += q({h, key_head, t, c}) * at(c, j);
        }
    }
    for (int64_t c = 0; c < dk; ++c)
      for (int64_t j = 0; j < dv; ++j) last({h, head, c, j}) = at(c, j);
  });
  return {o, last, u};
}

DeltaSample DeltaSample::in(DType dtype) const {
  DeltaSample s = *this;
  for (Tensor* x : {&s.q, &s.k, &s.v, &s.beta, &s.decay, &s.initial})
    if (x->defined()) *x = to(*x, x == &s.initial && dtype == bf16 ? f32 : dtype);
  return s;
}

DeltaSample DeltaSample::in(Device device) const {
  DeltaSample s = *this;
  for (Tensor* x : {&s.q, &s.k, &s.v, &s.beta, &s.decay, &s.initial})
    if (x->defined()) *x = to(*x, device);
  return s;
}

std::string DeltaSample::text() const {
  return str("q", q, " v", v, decay.defined() ? str(" decay", decay) : "", initial.defined() ? " continued" : "",
             " chunk ", options.chunk);
}

Tensor DeltaSample::write() const { return unsqueeze(beta, -1) * v; }
Tensor DeltaSample::erase() const {
  return unsqueeze(beta, -1) * (k.dim(1) > 0 ? repeat_interleave(k, v.dim(1) / k.dim(1), 1) : k);
}

DeltaSample random_delta(Rand& rand, DeltaDecay decay, const DeltaSizes& s, double alike) {
  DeltaSample x;
  const auto single = [](const Tensor& t) { return to(to(t, f32), f64); };
  const Shape rows{s.batch, s.heads, s.n, s.dk};
  x.q = random_tensor(rows, f64, rand);
  const auto unit = [](const Tensor& t) { return t / sqrt(sum(t * t, {-1}, keep) + 1e-12); };
  Tensor k = unit(random_tensor(rows, f64, rand));
  if (alike > 0) {  // a direction of all keys of a head, and one that is at a right angle to it
    const Tensor common = unit(random_tensor({s.batch, s.heads, 1, s.dk}, f64, rand));
    k = unit(k - sum(k * common, {-1}, keep) * common) * std::sqrt(1 - alike) + common * std::sqrt(alike);
  }
  x.k = single(k), x.v = random_tensor({s.batch, s.value_heads, s.n, s.dv}, f64, rand);
  std::vector<double> beta(static_cast<std::size_t>(s.batch * s.value_heads * s.n));
  for (double& b : beta) b = rand.below(6) == 0 ? double(rand.below(3)) : rand.uniform(0, 2);
  x.beta = single(tensor_of(beta, {s.batch, s.value_heads, s.n}, f64));
  if (decay != DeltaDecay::none) {
    Shape shape{s.batch, s.value_heads, s.n};
    if (decay == DeltaDecay::keys) shape.push_back(s.dk);
    std::vector<double> g(static_cast<std::size_t>(shape.numel()));
    const double rare[] = {0, -1e-9, -60, -1e4, -INFINITY};
    for (double& d : g) d = rand.below(20) == 0 ? rare[rand.below(5)] : rand.uniform(-0.4, 0);
    x.decay = single(tensor_of(g, shape, f64));
  }
  if (rand.below(2)) x.initial = random_tensor({s.batch, s.value_heads, s.dk, s.dv}, f64, rand);
  return x;
}

std::vector<Tensor> delta_recurrence(const DeltaSample& s) {
  const Array decay = s.decay.defined() ? array_of(s.decay) : Array(),
              initial = s.initial.defined() ? array_of(s.initial) : Array();
  const Arrays y = delta_by_steps(array_of(s.q), array_of(s.k), array_of(s.erase()), array_of(s.write()),
                                  s.decay.defined() ? &decay : nullptr, s.initial.defined() ? &initial : nullptr);
  return {tensor_of(y[0].v, s.v.shape(), f64),
          tensor_of(y[1].v, {s.v.dim(0), s.v.dim(1), s.k.dim(3), s.v.dim(3)}, f64)};
}

std::vector<Tensor> run_delta(const DeltaSample& s, bool differentiable) {
  std::vector<Tensor> leaves;
  const auto leaf = [&](const Tensor& x) {
    if (!x.defined()) return x;
    leaves.push_back(x.detach()), leaves.back().requires_grad_();
    return leaves.back();
  };
  const Tensor q = leaf(s.q), k = leaf(s.k), v = leaf(s.v), beta = leaf(s.beta), g = leaf(s.decay),
               s0 = leaf(s.initial);
  const DeltaScanResult y = delta_rule(q, k, v, beta, g, s0, s.options);
  Rand rand(5);
  const auto cotangent = [&](const Tensor& x) { return to(random_tensor(x.shape(), x.dtype(), rand), x.device()); };
  const Tensor gy = cotangent(y.out), gs = cotangent(y.state);
  std::vector<Tensor> all = grad({y.out, y.state}, leaves, {.create_graph = differentiable, .grad_outputs = {gy, gs}});
  all.insert(all.begin(), {y.out.detach(), y.state.detach()});
  return all;
}

}  // namespace sluice::testing
