#include <sluice/layers/attention/forget_gate.h>

#include <sluice/layers/nn/init.h>
#include <sluice/ops/attention/exact_parts.h>
#include <sluice/ops/basic.h>

#include <cmath>

namespace sluice {

namespace {

/// b_f [heads]. With decay times T, σ(b_f) = e^{−1/T}.
Tensor initial_bias(const ForgetGateOptions& o, int64_t heads, DType dtype) {
  const bool shape_only = detail::initial(dtype).device == meta;
  if (o.decay_first == 0 || shape_only) return init_vector(heads, o.gate_bias, dtype);
  std::vector<double> bias;
  for (int64_t h = 0; h < heads; ++h) {
    const double share = heads == 1 ? 0 : static_cast<double>(h) / static_cast<double>(heads - 1);
    const double time = o.decay_first * std::pow(o.decay_last / o.decay_first, share);
    bias.push_back(-1 / time - std::log(-std::expm1(-1 / time)));
  }
  return to(Tensor::from(bias, {heads}), dtype).requires_grad_();
}

/// c of the call's tokens, f64 [batch, heads, n]. f64, because c sums many small numbers and its differences count.
Tensor sums(Call& call, const Linear& map, const Tensor& x) {
  Tensor z = detail::widened(map.bias);
  if (map.weight.defined()) z = linear(detail::widened(x), detail::widened(map.weight), z);
  const Tensor log_f = neg(softplus(neg(expand(z, {x.dim(0), x.dim(1), z.dim(-1)}))));  // log σ
  return transpose(call.running_sum(to(detail::filled_tokens(log_f, call.padding(), 0), f64), 1), 1, 2);
}

}  // namespace

Linear detail::forget_map(const ForgetGateOptions& o, const HeadsOptions& h, Rng& rng) {
  Linear map;
  if (o.gate == ForgetGate::input) map = Linear({h.dim, h.heads, true, h.init, exact(h.dtype)}, rng);
  if (o.gate != ForgetGate::none) map.bias = initial_bias(o, h.heads, exact(h.dtype));
  if (o.gate == ForgetGate::fixed) map.bias = map.bias.detach();
  return map;
}

void detail::add_forget_columns(Call& call, const Linear& map, const Tensor& x, double scale, Tensor& q, Tensor& k) {
  const int64_t batch = q.dim(0), heads = q.dim(1), n = q.dim(2), kv_heads = k.dim(1), group = heads / kv_heads;
  const Tensor w = sums(call, map, x) * (1 / scale);  // the gate's map has f32 weights, which are not rounded
  const PrecisionScope scope(precision_of(q.dtype()));
  // The gradient of log f_t sums differences of the columns' gradients over all later tokens, and they nearly cancel:
  // rounded to bf16 they would leave noise. A stream needs none.
  if (!call.streams()) q = widened(q), k = widened(k);
  // Column 0 adds c_i to all scores of query i. Of the other columns, query head g·group + r has 1 in column r, where
  // KV head g has −c_j of this query head. Products of many queries add up column by column and begin with these
  // columns: c_i − c_j is formed before the rest, part by part. Products of few queries add up in lanes: their errors
  // are up to 8 times larger.
  const Tensor own =
                   expand(reshape(expand(eye(group, group, q.options()), {kv_heads, group, group}), {heads, 1, group}),
                          {batch, heads, n, group}),
               one = ones({batch, kv_heads, n, 1}, k.options());
  std::vector<Tensor> queries, keys;
  for (const Tensor& part : exact_parts(w, q.dtype())) queries.insert(queries.end(), {unsqueeze(part, -1), own});
  for (const Tensor& part : exact_parts(neg(w), q.dtype()))
    keys.insert(keys.end(), {one, transpose(reshape(part, {batch, kv_heads, group, n}), 2, 3)});
  queries.push_back(q), keys.push_back(k);
  q = cat(queries, -1), k = cat(keys, -1);
}

}  // namespace sluice
