// The slots of attention called by themselves on a device, with every option, forward and backward.
#pragma once

#include "support/attention_samples.h"

#include <sluice/ops/attention/attention_kernels.h>
#include <sluice/ops/attention/attention_reference.h>
#include <sluice/ops/attention/heads.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/rows/reduce.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/shape/view.h>

#include <cmath>
#include <functional>
#include <vector>

namespace sluice::testing {

inline Tensor on(Device device, const Tensor& x) { return x.defined() ? to(x, device) : x; }
/// x [batch, heads, rows, width] on a device, stored as [batch, rows, heads, width] if `heads_inside`.
inline Tensor stored_on(Device device, const Tensor& x, bool heads_inside) {
  return heads_inside ? transpose(on(device, contiguous(transpose(x, 1, 2))), 1, 2) : on(device, x);
}

/// Forward: out and lse (softmax only). Backward: gradients of q, k, v, bias and relative bias, from random g and
/// delta. The kernels' own results, on the CPU. `after` is called after each slot.
struct SlotResults {
  std::vector<Tensor> forward, backward;
};
inline SlotResults run_slots(
    const AttentionSample& sample, Device device, bool heads_inside, const Tensor& poison = {},
    const std::function<void()>& after = [] {}) {
  const auto [q0, k0, v0, o0, rank] = detail::attention_operands("test", sample.q, sample.k, sample.v, sample.options);
  AttentionOptions o = o0;
  for (Tensor* x : {&o.bias, &o.relative_bias, &o.sink, &o.row_scale, &o.mask.keys, &o.mask.query_segments,
                    &o.mask.key_segments, &o.mask.blocks, &o.mask.dense})
    *x = on(device, *x);
  const Tensor q = stored_on(device, q0, heads_inside), k = stored_on(device, k0, heads_inside),
               v = stored_on(device, v0, !heads_inside);
  const detail::AttentionCall call{q, k, v, o, {sample.dropout_seed, 0xFFFF'FFF0}};
  const int64_t batch = q.dim(0), heads = q.dim(1), m = q.dim(2), n = k.dim(2);
  const TensorOptions options = q.options();
  const bool softmax = o.weighting == Weighting::softmax;

  SlotResults r;
  Tensor out = heads_inside ? detail::empty_heads({batch, heads, m, v.dim(3)}, options)
                            : empty({batch, heads, m, v.dim(3)}, options);
  Tensor lse = softmax ? empty({batch, heads, m}, options) : Tensor();
  if (m > 0) kernel::attention(call, out, lse), after();
  r.forward.push_back(on(cpu, contiguous(out)));
  if (softmax) r.forward.push_back(on(cpu, lse));

  Rand rand(9);
  Tensor g = random_tensor({batch, heads, m, v.dim(3)}, f64, rand), delta;
  if (softmax) delta = random_tensor({batch, heads, m}, f64, rand);
  if (poison.defined()) {  // [batch, heads, m]: rows that may hold anything
    g = filled(g, expand(unsqueeze(poison, 3), g.shape()), NAN);
    if (softmax) delta = filled(delta, poison, NAN);
  }
  const Tensor dg = stored_on(device, to(g, options.dtype), !heads_inside),
               dd = softmax ? on(device, to(delta, options.dtype)) : Tensor();
  detail::AttentionGradients grads;
  grads.dq = detail::empty_heads(q.shape(), options), grads.dk = empty(k.shape(), options);
  grads.dv = detail::empty_heads(v.shape(), options);
  grads.bias = zeros({batch, heads, m, n}, options);
  if (o.relative_bias.defined())
    grads.relative = zeros({batch, heads, detail::attention_splits(k), n + m - 1}, options);
  kernel::attention_backward(call, dg, lse, dd, grads), after();
  for (const Tensor& x : {grads.dq, grads.dk, grads.dv, grads.bias}) r.backward.push_back(on(cpu, contiguous(x)));
  if (grads.relative.defined()) r.backward.push_back(sum(on(cpu, grads.relative), {2}));
  return r;
}

/// NaN and infinities in keys that no query sees, and in queries that see no key, change no result of `run`,
/// run_slots() of a sample and of the rows that may hold anything.
template <class Run> void check_hidden_values(Rand& rand, const SampleLimits& limits, int samples, Run run) {
  int hidden_keys = 0, hidden_queries = 0;
  for (int i = 0; i < samples; ++i) {
    AttentionSample s = random_attention(rand, limits);
    const Tensor visible = s.visible();
    const int64_t kv_heads = s.k.dim(1), group = s.q.dim(1) / kv_heads;
    const Tensor unseen =
        logical_not(any(unflatten(any(visible, {2}), 1, {kv_heads, group}), {2}));  // [batch, kv_heads, n]
    const Tensor blind = logical_not(any(visible, {3}));                            // [batch, heads, m]
    const SlotResults want = run(s, Tensor());
    hidden_keys += any(unseen).item() != 0, hidden_queries += any(blind).item() != 0;
    s.k = filled(s.k, expand(unsqueeze(unseen, 3), s.k.shape()), NAN);
    s.v = filled(s.v, expand(unsqueeze(unseen, 3), s.v.shape()), INFINITY);
    s.q = filled(s.q, expand(unsqueeze(blind, 3), s.q.shape()), NAN);
    const SlotResults got = run(s, blind);
    check_all_same(got.forward, want.forward, s.text());
    check_all_same(got.backward, want.backward, s.text());
  }
  CHECK(hidden_keys > 10);
  CHECK(hidden_queries > 10);
}

}  // namespace sluice::testing
