#include <sluice/ops/attention/attention.h>

#include <sluice/core/node.h>
#include <sluice/core/operands.h>
#include <sluice/ops/attention/attention_kernels.h>
#include <sluice/ops/attention/attention_reference.h>
#include <sluice/ops/attention/gated.h>
#include <sluice/ops/attention/heads.h>
#include <sluice/ops/basic.h>
#include <sluice/ops/elementwise/map.h>

#include <limits>

namespace sluice {

namespace {

/// Forward pass and history. lse_out, if not null, receives lse: softmax only. With logits `gate`, *gates tells whether
/// the result is gated.
Tensor attend(const char* op, const Tensor& q_in, const Tensor& k_in, const Tensor& v_in, const AttentionOptions& given,
              Rng* rng, Tensor* lse_out, Tensor gate = {}, bool* gates = nullptr);

}  // namespace

Tensor attention(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& options, Rng* rng) {
  return attend("attention", q, k, v, options, rng, nullptr);
}

AttentionAndLse attention_with_lse(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& options,
                                   Rng* rng) {
  if (options.weighting != Weighting::softmax)
    fail<ValueError>("attention_with_lse: only softmax weights have a log-sum-exp");
  AttentionAndLse result;
  result.out = attend("attention_with_lse", q, k, v, options, rng, &result.lse);
  return result;
}

namespace {

Tensors composed_vjp(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& o, RngBlocks random,
                     Tensor g, const Tensor& g_lse);

/// What a node saves: the nine tensors of the options; q, k, v; lse for softmax; out for softmax or a gated result; the
/// gate's logits if the result is gated.
namespace kept {
enum : std::size_t { options, q = 9, k, v, lse, out, logits };
}
/// The inputs of a node, in the order of its gradients.
namespace input {
enum : std::size_t { q, k, v, bias, relative_bias, sink, logits };
}

struct Attention final : Op<"attention"> {
  AttentionOptions options;  // without tensors: see given()
  RngBlocks random;
  Attention(AttentionOptions o, RngBlocks r) : options(std::move(o)), random(r) {
    detail::change_tensors(options, [this](Tensor& x) { save(x), x = Tensor(); });
  }

  Tensors vjp_all(const Tensors& gs) override {
    const Tensor g_lse = gs.size() > 1 ? gs[1] : Tensor();
    return grad_enabled() ? recorded_vjp(gs[0], g_lse) : fused_vjp(gs[0], g_lse);
  }

 private:
  /// The options of the forward pass.
  AttentionOptions given() const {
    AttentionOptions o = options;
    detail::change_tensors(o, [this, i = std::size_t{kept::options}](Tensor& x) mutable { x = saved(i++); });
    return o;
  }

  Tensors recorded_vjp(const Tensor& g_out, const Tensor& g_lse) const {
    const DType dtype = saved(kept::q).dtype();
    const Tensor q = detail::widened(saved(kept::q)), k = detail::widened(saved(kept::k)),
                 v = detail::widened(saved(kept::v)), z = detail::widened(saved(kept::logits));
    const AttentionOptions o = detail::widened(given());
    Tensor g = detail::widened(g_out), dgate;
    if (z.defined()) {
      const Tensor factor = sigmoid(z);
      dgate = to_logits(g * attention(q, k, v, o) * (factor * (1.0 - factor)), z);
      g = g * factor;
    }
    const PrecisionScope scope(o.precision.value_or(precision()));
    Tensors grads = composed_vjp(q, k, v, o, random, g, g_lse);
    grads.push_back(dgate);
    for (Tensor& x : grads)
      if (x.defined()) x = to(x, dtype);
    return grads;
  }

  Tensors fused_vjp(Tensor g, const Tensor& g_lse) const {
    const Tensor q = saved(kept::q), k = saved(kept::k), v = saved(kept::v), lse = saved(kept::lse),
                 out = saved(kept::out), z = saved(kept::logits);
    const AttentionOptions o = given();
    g = g.defined() ? detail::readable_rows(g) : zeros_like(out);
    const bool gated = z.defined() && precision_of(q.dtype()) == Precision::bf16;  // bf16, as the forward pass was
    Tensor delta, dgate;
    if (z.defined() && !gated) {
      const Tensor factor = sigmoid(detail::widened(z)), gy = detail::widened(g) * detail::widened(out);
      if (needs(input::logits)) dgate = to(to_logits(gy * (1.0 - factor), z), q.dtype());
      delta = contiguous(sum(gy, {-1})), g = detail::readable_rows(to(detail::widened(g) * factor, q.dtype()));
    } else if (!gated && o.weighting == Weighting::softmax) {
      delta = contiguous(sum(detail::widened(g) * detail::widened(out), {-1}));
      if (g_lse.defined()) delta = delta - g_lse;
    }
    detail::AttentionGradients grads = wanted(q, k, v, gated ? z : Tensor());
    if (g.numel() == 0 && !g_lse.defined()) {  // the result is empty, even if q is not
      for (Tensor* x : {&grads.dq, &grads.dk, &grads.dv})
        if (x->defined()) fill_(*x, 0);
    } else if (k.dim(0) * k.dim(1) > 0 && (q.numel() + k.numel() + v.numel() > 0 || lse.defined())) {
      const Tensor rq = detail::readable_rows(q), rk = detail::readable_rows(k), rv = detail::readable_rows(v);
      const PrecisionScope scope(detail::precision_of(o, q.dtype()));
      detail::AttentionCall call{rq, rk, rv, o, random};
      if (gated) call.gate = detail::readable_rows(z), call.gated = out;
      kernel::attention_backward(call, g, lse, delta, grads);
    }
    if (gated) delta = grads.delta, dgate = grads.gate;
    Tensors result{grads.dq, grads.dk, grads.dv, grads.bias};
    result.push_back(grads.relative.defined() ? to(sum(grads.relative, {0, 2}), q.dtype()) : Tensor());
    result.push_back(needs(input::sink) ? detail::sink_gradient(o.sink, lse, delta) : Tensor());
    result.push_back(dgate);
    return result;
  }

  /// Allocates the gradients that are needed. `logits`: those of the gate if the kernel applied the gate, else
  /// undefined.
  detail::AttentionGradients wanted(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& logits) const {
    const Shape rows{q.dim(0), q.dim(1), q.dim(2)};
    const int64_t m = q.dim(2), n = k.dim(2);
    detail::AttentionGradients grads;
    if (needs(input::q)) grads.dq = detail::empty_heads(q.shape(), q.options(), op_name());
    if (needs(input::k)) grads.dk = detail::empty_heads(k.shape(), k.options(), op_name());
    if (needs(input::v)) grads.dv = detail::empty_heads(v.shape(), v.options(), op_name());
    if (needs(input::bias)) grads.bias = detail::filled(op_name(), {q.dim(0), q.dim(1), m, n}, 0, q.options());
    if (needs(input::relative_bias))
      grads.relative =
          detail::filled(op_name(), {q.dim(0), q.dim(1), detail::attention_splits(k), std::max<int64_t>(0, n + m - 1)},
                         0, detail::widened(q.options()));
    if (logits.defined()) grads.delta = empty(rows, {f32, q.device()}, op_name());
    if (logits.defined() && needs(input::logits))
      grads.gate = detail::empty_heads(logits.shape(), logits.options(), op_name());
    return grads;
  }

  /// dz in the shape of the logits z: the logit of a whole row gets the sum of the row's gradients.
  static Tensor to_logits(const Tensor& dz, const Tensor& z) {
    return z.dim(3) == dz.dim(3) ? dz : sum(dz, {-1}, keep);
  }
};

/// The same gradients composed of ops, from the definition. Gradients of higher order run through them.
Tensors composed_vjp(const Tensor& q_in, const Tensor& k, const Tensor& v, const AttentionOptions& o, RngBlocks random,
                     Tensor g, const Tensor& g_lse) {
  const int64_t batch = q_in.dim(0), heads = q_in.dim(1), m = q_in.dim(2), n = k.dim(2), kv_heads = k.dim(1);
  const Tensor visible = detail::visibility_of(o, q_in, k), q = detail::hide_blind(q_in, visible);
  const Tensor keys = detail::hide_unseen(k, visible, heads),
               values = detail::spread_heads(detail::hide_unseen(v, visible, heads), heads);
  Tensor sink_weight;
  const Tensor scores = detail::attention_scores(q, keys, o), w = detail::weights_of(scores, visible, o, &sink_weight);
  if (!g.defined()) g = zeros({batch, heads, m, v.dim(3)}, q.options());
  Tensor dp = matmul(g, transpose(values, -2, -1)), dropped = w;
  if (visible.defined()) dp = masked_fill(dp, logical_not(visible), 0);  // a value there may be NaN
  if (o.dropout > 0) {
    const Tensor keep_mask = detail::attention_keep_mask(o.dropout, random, w.shape(), w.options());
    dp = dp * keep_mask, dropped = w * keep_mask;
  }
  Tensor dv = detail::gather_heads(matmul(transpose(dropped, -2, -1), g), kv_heads), ds, dsink;
  if (o.weighting == Weighting::softmax) {
    Tensor delta = sum(dp * w, {-1}, keep);
    if (g_lse.defined()) delta = delta - unsqueeze(g_lse, -1);
    ds = w * (dp - delta);
    if (o.sink.defined()) dsink = sum(neg(sink_weight * delta), {0, 2, 3});
  } else {
    const Tensor s = visible.defined() ? masked_fill(scores, logical_not(visible), 0) : scores;
    detail::with_formula(o.weighting, [&](auto phi) {
      using D = Dual<Tensor, 1>;
      ds = PartialOps<Tensor>::mul(dp, phi(D::variable(s, 0, detail::unit(s))).d[0]);
    });
  }
  if (visible.defined()) ds = masked_fill(ds, logical_not(visible), 0);
  if (o.row_scale.defined()) ds = ds * unsqueeze(o.row_scale.detach(), -1);
  Tensor dx = ds;  // of scale·q·k
  if (o.softcap > 0) {
    const Tensor slope = 1.0 - square(detail::attention_products(q, keys, o) * (1 / o.softcap));
    dx = ds * (visible.defined() ? masked_fill(slope, logical_not(visible), 0) : slope);
  }
  Tensors result{matmul(dx, detail::spread_heads(keys, heads)) * *o.scale,
                 detail::gather_heads(matmul(transpose(dx, -2, -1), q), kv_heads) * *o.scale, dv,
                 o.bias.defined() ? ds : Tensor()};
  // relative_matrix() is a flipped unfold of the table; this is its adjoint.
  result.push_back(!o.relative_bias.defined() ? Tensor()
                   : m > 0 && n > 0           ? fold(flip(sum(ds, {0}), {1}), 1, n + m - 1, 1)
                                              : zeros_like(o.relative_bias));
  result.push_back(dsink);
  return result;
}

/// True if the heads that share a key head can be rows of one head, which reads K and V once: for a single query, and
/// if no option tells the heads apart but the sink. Not on CUDA from 16 rows on: its tensor cores would not split the
/// keys.
bool heads_are_rows(const Tensor& q, const Tensor& k, const AttentionOptions& o) {
  const AttentionMask& m = o.mask;
  for (const Tensor* x : {&o.bias, &o.relative_bias, &o.row_scale, &m.query_segments, &m.blocks})
    if (x->defined()) return false;
  return q.dim(2) == 1 && q.dim(1) > k.dim(1) && k.dim(1) > 0 &&
         (q.device().kind != DeviceKind::cuda || q.dim(1) / k.dim(1) < 16) && o.dropout == 0 &&
         !detail::varies_by_head(m) && m.dilation == 1 && m.global.empty();
}

/// attend() of one query [batch, heads, 1, d], with the heads that share a key head as its rows.
Tensor attend_by_rows(const char* op, const Tensor& q, Tensor k, Tensor v, AttentionOptions o, Tensor* lse_out) {
  const int64_t batch = q.dim(0), heads = q.dim(1), kv_heads = k.dim(1), n = k.dim(2), window = o.mask.window;
  o.mask.causal = false, o.mask.window = 0;  // the query is the last position: it sees the last keys of all
  if (window > 0 && window < n) {
    for (Tensor* x : {&k, &v}) *x = narrow(*x, 2, n - window, window);
    for (Tensor* x : {&o.mask.keys, &o.mask.dense})
      if (x->defined() && x->rank() > 0 && x->dim(-1) == n) *x = narrow(*x, -1, n - window, window);
  }
  const Tensor sink = std::exchange(o.sink, {});
  Tensor lse;
  Tensor out = attend(op, reshape(q, {batch, kv_heads, heads / kv_heads, q.dim(3)}), k, v, o, nullptr,
                      lse_out || sink.defined() ? &lse : nullptr);
  out = reshape(out, {batch, heads, 1, v.dim(3)});
  if (lse.defined()) lse = reshape(lse, {batch, heads, 1});
  if (sink.defined()) {  // a score without a value takes the share 1/(1 + e^{lse − sink}) of the weights
    const Tensor score = unsqueeze(detail::widened(sink), -1),
                 seen = masked_fill(lse, lse.detach() == -std::numeric_limits<double>::infinity(), 0);
    out = to(detail::widened(out) * unsqueeze(sigmoid(seen - score), -1), q.dtype());
  }
  if (lse_out) *lse_out = lse;
  return out;
}

Tensor attend(const char* op, const Tensor& q_in, const Tensor& k_in, const Tensor& v_in, const AttentionOptions& given,
              Rng* rng, Tensor* lse_out, Tensor gate, bool* gates) {
  auto [q, k, v, o, rank] = detail::attention_operands(op, q_in, k_in, v_in, given);
  if (!rng) o.dropout = 0;
  if (!gate.defined() && heads_are_rows(q, k, o) && !(o.sink.defined() && lse_out)) {
    const Tensor out = attend_by_rows(op, q, k, v, o, lse_out);
    if (lse_out) *lse_out = detail::restore_rank(*lse_out, rank);
    return detail::restore_rank(out, rank);
  }
  const Shape weights{q.dim(0), q.dim(1), q.dim(2), k.dim(2)};
  RngBlocks random;
  if (o.dropout > 0) random = rng->draw(detail::keep_mask_blocks(weights), q.device());
  for (Tensor* x : {&o.bias, &o.relative_bias, &o.sink, &o.row_scale})
    if (x->defined() && x->rank() > 0 && x->strides()[x->rank() - 1] != 1) *x = contiguous(*x);
  const bool softmax = o.weighting == Weighting::softmax;
  Tensor out = detail::empty_heads({q.dim(0), q.dim(1), q.dim(2), v.dim(3)}, q.options(), op);
  Tensor lse = softmax ? empty({q.dim(0), q.dim(1), q.dim(2)}, detail::widened(q.options()), op) : Tensor();
  if (out.numel() > 0 || (softmax && lse.numel() > 0)) {
    const Tensor rq = detail::readable_rows(q), rk = detail::readable_rows(k), rv = detail::readable_rows(v);
    const PrecisionScope scope(detail::precision_of(o, q.dtype()));
    detail::AttentionCall call{rq, rk, rv, o, random};
    if (gate.defined()) call.gate = detail::readable_rows(gate), call.gates = gates;
    kernel::attention(call, out, lse);
  }
  if (gates && !*gates) gate = Tensor();
  const Tensor kept_lse = softmax ? alias(lse, lse.layout()) : Tensor(),
               kept = softmax || gate.defined() ? out : Tensor();
  out = record<Attention>(out, {q, k, v, o.bias, o.relative_bias, o.sink, gate}, {q, k, v, kept_lse, kept, gate}, o,
                          random);
  if (lse_out) {
    if (out.requires_grad()) out.impl().history->add_output(lse);
    *lse_out = detail::restore_rank(lse, rank);
  }
  return detail::restore_rank(out, rank);
}

}  // namespace

namespace detail {

// The sink has the weight p_sink = e^{sink − lse} and the value 0, so the gradient of its score is p_sink (0 − δ). With
// a sink of −∞, a row that sees no key has lse = −∞, too.
Tensor sink_gradient(const Tensor& sink, const Tensor& lse, const Tensor& delta) {
  const Tensor total = masked_fill(lse, lse == -std::numeric_limits<double>::infinity(), 0);
  return to(sum(neg(exp(reshape(widened(sink), {sink.dim(0), 1}) - total) * delta), {0, 2}), sink.dtype());
}

bool may_gate(const Tensor& q) {
  return q.device().kind == DeviceKind::cuda && q.dtype() != f64 && precision_of(q.dtype()) == Precision::bf16;
}

MaybeGated attention_and_gate(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& gate,
                              const AttentionOptions& options, Rng* rng) {
  const bool fits = q.rank() == 4 && v.rank() == 4 && gate.rank() == 4 && gate.dtype() == q.dtype() &&
                    gate.dim(0) == q.dim(0) && gate.dim(1) == q.dim(1) && gate.dim(2) == q.dim(2) &&
                    (gate.dim(3) == v.dim(3) || gate.dim(3) == 1);
  if (!fits)
    fail("attention: got q=", q, ", v=", v, ", gate=", gate, "; need a gate [batch, heads, m, dv or 1] of their dtype");
  MaybeGated result{{}, false};
  result.out = attend("attention", q, k, v, options, rng, nullptr, may_gate(q) ? gate : Tensor(), &result.gated);
  return result;
}

}  // namespace detail

AttentionAndLse merge_attention(const AttentionAndLse& a, const AttentionAndLse& b) {
  detail::check_defined("merge_attention", {{"a.out", a.out}, {"a.lse", a.lse}, {"b.out", b.out}, {"b.lse", b.lse}});
  detail::check_devices("merge_attention", {a.out, a.lse, b.out, b.lse});
  const double inf = std::numeric_limits<double>::infinity();
  if (a.out.shape() != b.out.shape() || a.lse.shape() != b.lse.shape())
    fail("merge_attention: the two parts differ — got out ", a.out, " and ", b.out, ", lse ", a.lse, " and ", b.lse);
  if (a.out.dtype() == bf16) {  // lse in f32, as attention_with_lse gives it, or in bf16
    const AttentionAndLse y =
        merge_attention({to(a.out, f32), detail::widened(a.lse)}, {detail::widened(b.out), detail::widened(b.lse)});
    return {to(y.out, bf16), to(y.lse, a.lse.dtype())};
  }
  for (const Tensor* x : {&a.lse, &b.out, &b.lse})
    if (x->dtype() != a.out.dtype())
      fail<DTypeError>("merge_attention: dtypes differ — got a.out=", a.out.dtype(), a.out, " and ", x->dtype(), *x);
  detail::check_float("merge_attention", a.out);
  if (a.out.rank() != a.lse.rank() + 1 || Shape(std::span(a.out.shape().begin(), a.lse.rank())) != a.lse.shape())
    fail("merge_attention: lse=", a.lse, " does not fit out=", a.out, "; need one number a row");
  Tensor top = maximum(a.lse, b.lse).detach();
  top = masked_fill(top, top == -inf, 0);
  Tensor wa = exp(a.lse - top), wb = exp(b.lse - top), total = wa + wb;
  const Tensor none = total.detach() == 0.0, divisor = masked_fill(total, none, 1);  // neither part sees a key
  Tensor lse = masked_fill(log(divisor) + top, none, -inf);
  return {a.out * unsqueeze(wa / divisor, -1) + b.out * unsqueeze(wb / divisor, -1), lse};
}

}  // namespace sluice
