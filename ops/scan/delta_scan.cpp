#include <sluice/ops/scan/delta_scan.h>

#include <sluice/core/node.h>
#include <sluice/core/operands.h>
#include <sluice/ops/attention/heads.h>
#include <sluice/ops/basic.h>
#include <sluice/ops/elementwise/formulas_of_layers.h>
#include <sluice/ops/elementwise/map.h>
#include <sluice/ops/gemm/precision.h>
#include <sluice/ops/kernels.h>
#include <sluice/ops/scan/linear_scan.h>
#include <sluice/ops/scan/scan.h>

namespace sluice {

namespace {

/// Σ_j (a_t·b_j) e^{G_t − G_j} c_j over j < t, in reverse over j > t: a gradient in the channels of keys.
Tensor of_pairs(const Tensor& a, const Tensor& b, const Tensor& c, const Tensor& g, bool reverse, int64_t chunk) {
  return linear_scan(a, b, c, g, {.chunk = chunk, .reverse = reverse, .decay_on_values = true, .exclusive = true});
}

/// x read backwards in time.
Tensor backwards(const Tensor& x) { return flip(x, {2}); }

/// A gradient of k or e per channel, summed to the shape of the decay.
Tensor for_decay(const Tensor& x, const Tensor& g) { return g.rank() == 3 ? sum(x, {-1}) : x; }

struct PairGradients {
  Tensor k, erase, write;
};
/// Gradients of u = delta_values(k, e, w, g) from du. With dw = (I + A)⁻ᵀ du, dA_ij = −(dw_i·u_j) for i > j:
///   de_i = −Σ_{j<i} (dw_i·u_j) e^{G_i − G_j} k_j        dk_j = −Σ_{i>j} (dw_i·u_j) e^{G_i − G_j} e_i
PairGradients values_vjp(const Tensor& k, const Tensor& e, const Tensor& g, const Tensor& u, const Tensor& du,
                         int64_t chunk) {
  if (k.dim(2) == 0) return {zeros_like(k), zeros_like(e), du};
  const Tensor dw =
      backwards(delta_values(backwards(e), backwards(k), backwards(du), detail::backward_decay(g), {.chunk = chunk}));
  return {neg(of_pairs(u, dw, e, g, true, chunk)), neg(of_pairs(dw, u, k, g, false, chunk)), dw};
}

// dg_s = Σ_{t >= s} e_t ⊙ de_t − Σ_{j >= s} k_j ⊙ dk_j: the pairs j < s <= t pass g_s (linear_scan.cpp).
struct DeltaValues final : Op<"delta_values"> {
  int64_t chunk;
  explicit DeltaValues(int64_t c) : chunk(c) {}
  Tensors vjp(const Tensor& du) override {
    const DType dtype = du.dtype();
    const Tensor k = detail::widened(saved(0)), e = detail::widened(saved(1)), g = detail::widened(saved(2));
    const Tensor u = dtype == bf16 ? delta_values(k, e, detail::widened(saved(3)), g, {.chunk = chunk}) : saved(4);
    const PrecisionScope exact(Precision::f32);
    const PairGradients d = values_vjp(k, e, g, u, detail::widened(du), chunk);
    Tensors grads{d.k, d.erase, d.write, Tensor()};
    if (needs(3)) grads[3] = detail::decay_gradient(for_decay(e * d.erase - k * d.k, g), g);
    for (std::size_t i = 0; i < 3; ++i) grads[i] = to(grads[i], dtype);
    if (grads[3].defined()) grads[3] = to(grads[3], saved(2).dtype());
    return grads;
  }
};

struct Operands {
  Tensor q, k, erase, write, g, initial;
};

/// The gradients of delta_scan() composed of ops, from those of its results, either of which may be undefined:
///
///   u = delta_values(k, e, w − (e ∘ e^G) S_0)
///   o = linear_scan(q, k, u) + (q ∘ e^G) S_0
///   S_n = e^{G_n} ∘ S_0 + k̃ᵀ u, where k̃_j = k_j ∘ e^{G_n − G_j}
///
/// In the order of Operands.
Tensors composed_vjp(const Operands& x, Tensor dout, const Tensor& dstate, int64_t chunk) {
  const int64_t heads = x.write.dim(1), groups = x.k.dim(1);
  const Tensor q = detail::spread_heads(x.q, heads), k = detail::spread_heads(x.k, heads), &e = x.erase, &g = x.g;
  const auto carried = [&](const Tensor& t) { return linear_scan_carry(t, x.initial, g); };
  const Tensor u = delta_values(k, e, x.initial.defined() ? x.write - carried(e) : x.write, g, {.chunk = chunk});
  if (!dout.defined()) dout = zeros_like(u);
  // Without the pairs of a step with itself: see linear_scan.cpp.
  const Tensor own = sum(dout * u, {-1}, keep);
  Tensor dq = of_pairs(dout, u, k, g, false, chunk), dk = of_pairs(u, dout, q, g, true, chunk),
         du = linear_scan(k, q, dout, g, {.chunk = chunk, .reverse = true}), dinitial;
  // Log decays of a state from before to each step, of each step to the end, and of all steps, in the shape of keys or
  // [batch, heads, n or 1, 1]
  Tensor from_start, to_end, whole;
  if (g.defined()) {
    const Tensor steps = g.rank() == 3 ? unsqueeze(g, -1) : g;
    from_start = detail::running_decay(steps, 2);
    to_end = detail::running_decay(steps, 2, {.exclusive = true, .reverse = true});
    whole = unsqueeze(detail::total_decay(steps, 2), -1);
  }
  const auto times = [](const Tensor& t, const Tensor& decay) {
    return decay.defined() ? map(formula::Decayed{}, t, decay) : t;
  };
  Tensor to_last, kept;  // dk's part from dstate, and k times it; both 0 before a −∞, even of NaN
  if (dstate.defined()) {
    const Tensor at_end = matmul(u, transpose(dstate, -2, -1));
    du = du + matmul(times(k, to_end), dstate);
    to_last = times(at_end, to_end), kept = times(k * at_end, to_end);
  }
  const PairGradients d = values_vjp(k, e, g, u, du, chunk);
  Tensor de = d.erase;
  dk = dk + d.k;
  if (x.initial.defined()) {
    const Tensor back = transpose(x.initial, -2, -1);
    dq = dq + times(matmul(dout, back), from_start), de = de - times(matmul(d.write, back), from_start);
    dinitial = matmul(transpose(times(q, from_start), -2, -1), dout) -
               matmul(transpose(times(e, from_start), -2, -1), d.write);
    if (dstate.defined()) dinitial = dinitial + times(dstate, whole);
  }
  Tensor dg;
  if (g.defined()) {
    dg = detail::decay_gradient(for_decay(q * dq + e * de - k * dk, g), g);
    if (dstate.defined()) {  // every g scales what the last state has of earlier steps: see scan_backward.cpp
      dg = dg + cumsum(for_decay(kept, g), 2, {.exclusive = true});
      if (x.initial.defined()) {
        const Tensor passed = sum(times(x.initial, whole) * dstate, {-1});
        dg = dg + (g.rank() == 3 ? sum(passed, {-1}, keep) : unsqueeze(passed, 2));
      }
    }
  }
  if (dstate.defined()) dk = dk + to_last;
  dq = detail::gather_heads(dq + own * k, groups), dk = detail::gather_heads(dk + own * q, groups);
  return {dq, dk, de, d.write, dg, dinitial};
}

struct DeltaScan final : Op<"delta_scan"> {
  int64_t chunk;
  explicit DeltaScan(int64_t c) : chunk(c) {}
  Tensors vjp_all(const Tensors& gs) override {
    const DType dtype = saved(0).dtype();
    Tensor dout = gs[0], dstate = gs.size() > 1 ? gs[1] : Tensor();
    // A decay's gradient is a running sum of differences that nearly cancel.
    const PrecisionScope scope(needs(4) ? Precision::f32 : precision_of(dtype));
    Tensors grads;
    if (const Tensor states = saved(6); !grad_enabled() && states.defined()) grads = fused_vjp(dout, dstate, states);
    else {
      const PrecisionScope exact(Precision::f32);
      const auto wide = [this](std::size_t i) { return detail::widened(saved(i)); };
      grads =
          composed_vjp({wide(0), wide(1), wide(2), wide(3), wide(4), wide(5)}, detail::widened(dout), dstate, chunk);
    }
    for (std::size_t i = 0; i < 5; ++i)
      if (grads[i].defined()) grads[i] = to(grads[i], saved(i).dtype());
    return grads;
  }

 private:
  Tensors fused_vjp(Tensor dout, const Tensor& dstate, const Tensor& states) const {
    const Tensor q = saved(0), k = saved(1), e = saved(2), w = saved(3), g = saved(4);
    if (!dout.defined()) dout = zeros(w.shape(), w.options());
    const Tensor rq = detail::readable_rows(q), rk = detail::readable_rows(k), re = detail::readable_rows(e),
                 rw = detail::readable_rows(w), rg = detail::readable_rows(dout);
    const auto like = [](const Tensor& x) { return detail::empty_heads(x.shape(), x.options(), op_name()); };
    Tensor dq = like(q), dk = like(k), de = like(e), dw = like(w),
           dg = g.defined() ? empty(g.shape(), g.options(), op_name()) : Tensor(),
           carried =  // dL/dS, from last to first
           dstate.defined() ? clone(dstate)
                            : detail::filled(op_name(), {w.dim(0), w.dim(1), k.dim(3), w.dim(3)}, 0, states.options());
    kernel::delta_scan_backward(rq, rk, re, rw, g.defined() ? contiguous(g) : g, states, rg, chunk, dq, dk, de, dw, dg,
                                carried);
    return {dq, dk, de, dw, dg, needs(5) ? carried : Tensor()};
  }
};

/// The decay broadcast to [batch, heads, n] or [batch, heads, n, dk]; checks all operands but q.
Tensor checked_decay(const char* op, const Tensor& k, const Tensor& erase, const Tensor& write, const Tensor& log_decay,
                     const DeltaScanOptions& o) {
  detail::check_floats(op, {{"k", k}, {"erase", erase}, {"write", write}});
  const bool ranks = k.rank() == 4 && erase.rank() == 4 && write.rank() == 4;
  if (!ranks || erase.dim(0) != k.dim(0) || erase.dim(2) != k.dim(2) || erase.dim(3) != k.dim(3) ||
      write.dim(0) != k.dim(0) || write.dim(1) != erase.dim(1) || write.dim(2) != k.dim(2) ||
      (k.dim(1) == 0 ? erase.dim(1) != 0 : erase.dim(1) % k.dim(1) != 0))
    fail(op, ": got k=", k, ", erase=", erase, ", write=", write,
         "; need [batch, heads, n, dk], [batch, value_heads, n, dk], [batch, value_heads, n, dv], where heads divides "
         "value_heads");
  if (o.chunk < 1) fail<ValueError>(op, ": chunk must be positive — got ", o.chunk);
  checked_numel(op, {k.dim(0), erase.dim(1), k.dim(3), write.dim(3)});
  return detail::expanded_decay(op, log_decay, "k", k, erase.shape());
}

DeltaScanResult scanned(const char* op, const Tensor& q, const Tensor& k, const Tensor& erase, const Tensor& write,
                        const Tensor& log_decay, const Tensor& given, const DeltaScanOptions& o) {
  detail::check_defined(op, {{"q", q}});
  const Tensor g = checked_decay(op, k, erase, write, log_decay, o);
  detail::check_devices(op, {q, k, given});
  if (q.dtype() != k.dtype()) fail<DTypeError>(op, ": q is ", q.dtype(), q, " beside k=", k.dtype(), k);
  if (q.shape() != k.shape()) fail(op, ": got q=", q, " beside k=", k, "; need the same shape");
  const Shape shape{k.dim(0), erase.dim(1), k.dim(3), write.dim(3)};
  const TensorOptions wide = detail::widened(k.options());
  if (given.defined() && given.dtype() != wide.dtype && given.dtype() != k.dtype())
    fail<DTypeError>(op, ": initial is ", given.dtype(), given, "; need ", wide.dtype);
  if (given.defined() && given.shape() != shape) fail(op, ": initial=", given, " is no state; need ", shape);
  const Tensor initial = detail::widened(given);
  const int64_t n = k.dim(2), chunks = n == 0 ? 0 : (n - 1) / o.chunk + 1;
  Tensor out = detail::empty_heads(write.shape(), write.options(), op), states;
  Tensor state = initial.defined() ? clone(initial.detach()) : detail::filled(op, shape, 0, wide);
  if (out.numel() > 0 && k.numel() > 0) {
    const TensorRef inputs[] = {q, k, erase, write, g, initial};
    if (grad_enabled() && detail::any_requires_grad(inputs))
      states = empty({shape[0], shape[1], chunks, shape[2], shape[3]}, wide, op);
    const PrecisionScope scope(precision_of(k.dtype()));
    kernel::delta_scan(detail::readable_rows(q), detail::readable_rows(k), detail::readable_rows(erase),
                       detail::readable_rows(write), g.defined() ? contiguous(g.detach()) : g, o.chunk, out, state,
                       states);
  } else if (out.numel() > 0) {
    fill_(out, 0);
  }
  out = record<DeltaScan>(out, {q, k, erase, write, g, initial}, {q, k, erase, write, g, initial, states}, o.chunk);
  if (out.requires_grad()) out.impl().history->add_output(state);
  return {out, state};
}

}  // namespace

DeltaScanResult delta_scan(const Tensor& q, const Tensor& k, const Tensor& erase, const Tensor& write,
                           const Tensor& log_decay, const Tensor& initial, const DeltaScanOptions& options) {
  return scanned("delta_scan", q, k, erase, write, log_decay, initial, options);
}

DeltaScanResult delta_rule(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& beta,
                           const Tensor& log_decay, const Tensor& initial, const DeltaScanOptions& options) {
  detail::check_floats("delta_rule", {{"k", k}, {"v", v}, {"beta", beta}});
  if (k.rank() != 4 || v.rank() != 4 || beta.shape() != Shape{v.dim(0), v.dim(1), v.dim(2)} || v.dim(0) != k.dim(0) ||
      v.dim(2) != k.dim(2) || (k.dim(1) == 0 ? v.dim(1) != 0 : v.dim(1) % k.dim(1) != 0))
    fail("delta_rule: got k=", k, ", v=", v, ", beta=", beta,
         "; need [batch, heads, n, dk], [batch, value_heads, n, dv], [batch, value_heads, n], where heads divides "
         "value_heads");
  const Tensor strength = unsqueeze(beta, -1);
  return scanned("delta_rule", q, k, strength * detail::spread_heads(k, v.dim(1)), strength * v, log_decay, initial,
                 options);
}

Tensor delta_values(const Tensor& k, const Tensor& erase, const Tensor& write, const Tensor& log_decay,
                    const DeltaScanOptions& o) {
  const Tensor g = checked_decay("delta_values", k, erase, write, log_decay, o);
  if (erase.shape() != k.shape()) fail("delta_values: got k=", k, ", erase=", erase, "; need one shape");
  Tensor u = detail::empty_heads(write.shape(), write.options(), "delta_values"), none,
         state = detail::filled("delta_values", {k.dim(0), k.dim(1), k.dim(3), write.dim(3)}, 0,
                                detail::widened(k.options()));
  if (u.numel() > 0 && k.numel() > 0)
    kernel::delta_scan(Tensor(), detail::readable_rows(k), detail::readable_rows(erase), detail::readable_rows(write),
                       g.defined() ? contiguous(g.detach()) : g, o.chunk, u, state, none);
  else if (u.numel() > 0) copy_(u, write.detach());
  return record<DeltaValues>(u, {k, erase, write, g}, {k, erase, g, write, u}, o.chunk);
}

}  // namespace sluice
