#include <sluice/ops/scan/linear_scan.h>

#include <sluice/core/node.h>
#include <sluice/core/operands.h>
#include <sluice/ops/attention/heads.h>
#include <sluice/ops/basic.h>
#include <sluice/ops/elementwise/formulas_of_layers.h>
#include <sluice/ops/elementwise/map.h>
#include <sluice/ops/gemm/precision.h>
#include <sluice/ops/kernels.h>
#include <sluice/ops/scan/scan.h>

#include <limits>

namespace sluice {

Tensor detail::expanded_decay(const char* op, const Tensor& log_decay, const char* name, const Tensor& operand,
                              const Shape& channels) {
  if (!log_decay.defined()) return {};
  if (log_decay.dtype() != operand.dtype() && !(log_decay.dtype() == f32 && operand.dtype() == bf16))
    fail<DTypeError>(op, ": log_decay is ", log_decay.dtype(), log_decay, " beside ", name, "=", operand.dtype(),
                     operand);
  check_devices(op, {operand, log_decay});
  const Shape scalar{channels[0], channels[1], channels[2]};
  const Shape& full = log_decay.rank() == 4 ? channels : scalar;
  if (stretches_to(log_decay.shape(), full)) return expand(log_decay, full);
  fail(op, ": log_decay=", log_decay, " does not fit; need ", scalar, " or ", channels);
}

namespace {

/// Chunks of 64 steps times parts that give a GPU work: four rounds of two blocks on each of 132 multiprocessors.
constexpr int64_t kGpuTasks = 1056;

/// The decay broadcast to [batch, heads, n] or [batch, heads, n, channels]; checks all operands. An op without q passes
/// k for q.
Tensor checked_decay(const char* op, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& log_decay,
                     const LinearScanOptions& o) {
  const bool has_q = &q != &k;
  if (has_q) detail::check_floats(op, {{"q", q}, {"k", k}, {"v", v}});
  else detail::check_floats(op, {{"k", k}, {"v", v}});
  const bool ranks = q.rank() == 4 && v.rank() == 4;
  const int64_t groups = ranks ? q.dim(1) : 0, heads = ranks ? v.dim(1) : 0;
  const bool heads_fit = heads == groups || (groups > 0 && heads % groups == 0);
  if (!ranks || k.shape() != q.shape() || v.dim(0) != q.dim(0) || !heads_fit || v.dim(2) != q.dim(2))
    fail(op, ": got ", has_q ? str("q=", q, ", ") : "", "k=", k, ", v=", v, "; need [batch, heads, n, m], ",
         has_q ? "the same, " : "", "[batch, heads, n, e], where the heads of k may also divide those of v");
  if (o.chunk < 1) fail<ValueError>(op, ": chunk must be positive — got ", o.chunk);
  return detail::expanded_decay(op, log_decay, "q", q,
                                {q.dim(0), heads, q.dim(2), o.decay_on_values ? v.dim(3) : q.dim(3)});
}

// With the pair weights w_c(t, j) = e^{G_tc − G_jc}:
//   dq_t = Σ_j w (do_t·v_j) k_j       dk_j = Σ_t w (do_t·v_j) q_t       dv_j = Σ_t (Σ_c w q_tc k_jc) do_t
// are the scans below. The log decay g_s enters the weights of the pairs j < s <= t. These are all pairs with t >= s
// except those with j >= s, so  dlog_decay_s = Σ_{t >= s} q_t∘dq_t − Σ_{j >= s} k_j∘dk_j  (or o∘do − v∘dv by value
// channel). The pairs j = t, which no decay weakens, stand in both sums. They are left out of both: beside strong
// decays their rounding errors would be larger than all that is left.
struct LinearScan final : Op<"linear_scan"> {
  LinearScanOptions o;
  explicit LinearScan(const LinearScanOptions& options) : o(options) {}
  Tensors vjp(const Tensor& gy) override {
    // A decay's gradient is a sum of numbers that nearly cancel: in f32, but for rounded_pass().
    const Precision given = precision_of(gy.dtype());
    const PrecisionScope scope(needs(3) ? Precision::f32 : given);
    Tensors grads = rounded_pass(gy, given) ? fused_vjp(gy, true)
                    : one_pass(gy)          ? fused_vjp(gy, false)
                                            : composed_vjp(detail::widened(gy), given);
    for (std::size_t i = 0; i < 4; ++i)
      if (grads[i].defined()) grads[i] = to(grads[i], saved(i).dtype());
    return grads;
  }

 private:
  /// True if linear_scan_backward serves this call, and pays. It computes all gradients; three scans compute some of
  /// them faster, but a decay's with larger errors. A thread holds the states between all chunks of a head, which must
  /// not take much more memory than the rows of the head. States of one row or column have a kernel of their own, in
  /// f64; on a CPU linear_scan_backward has one for values of one channel with a decay by key channel.
  bool one_pass(const Tensor& gy) const {
    const Tensor q = saved(0), g = saved(3);
    const int64_t m = q.dim(3), e = gy.dim(3);
    const bool column = e == 1 && (gy.device() == cpu || gy.device() == meta) && g.defined() && g.rank() == 4;
    return !grad_enabled() && gy.numel() > 0 && kernel::linear_scan_backward.installed(gy.device()) && !o.exclusive &&
           m > 1 && (e > 1 || column) && !(o.decay_on_values && g.defined() && g.rank() == 4) &&
           m * e / (m + e) / 4 <= o.chunk &&
           (needs(3) || (!o.reverse && (q.dim(1) < gy.dim(1) || (needs(0) && needs(1) && needs(2)))));
  }

  /// True if linear_scan_bf16_backward serves this call. There only sums over one chunk's pairs are a difference.
  bool rounded_pass(const Tensor& gy, Precision given) const {
    const int64_t n = gy.dim(2), m = saved(0).dim(3), e = gy.dim(3);
    return !grad_enabled() && gy.device() != meta && kernel::linear_scan_bf16_backward.installed(gy.device()) &&
           given == Precision::bf16 && gy.dtype() != f64 && !o.exclusive && gy.numel() > 0 && needs(3) &&
           saved(3).rank() == 3 && n >= 16 && m >= 16 && m <= 128 && e >= 16 && e <= 128;
  }

  Tensors fused_vjp(const Tensor& gy, bool rounded) const {
    const auto in_order = [this](const Tensor& x) { return o.reverse ? flip(x, {2}) : x; };
    const auto decays = [this](const Tensor& g) { return o.reverse ? detail::backward_decay(g) : g; };
    const Tensor q = in_order(saved(0)), k = in_order(saved(1)), v = in_order(saved(2)), g = decays(saved(3));
    const int64_t groups = k.dim(1), heads = k.dim(0) * groups, group = v.dim(1) / groups;
    const int64_t parts = rounded ? detail::parts_of_group(heads * ceil_div(v.dim(2), 64), group, kGpuTasks)
                                  : detail::parts_of_group(heads, group);
    const auto result = [rounded](int64_t heads, const Tensor& like) {
      const Shape shape{like.dim(0), heads, like.dim(2), like.dim(3)};
      const bool summed = heads > like.dim(1) && !rounded;  // by gather_heads()
      return detail::empty_heads(shape, summed ? detail::widened(like.options()) : like.options(), op_name());
    };
    Tensor dq = result(groups * parts, q), dk = result(groups * parts, k), dv = result(v.dim(1), v), dg;
    const Tensor steps = g.defined() ? contiguous(rounded ? detail::widened(g) : g) : g;
    if (needs(3)) dg = empty(steps.shape(), steps.options(), op_name());
    const Tensor rows[] = {detail::readable_rows(q), detail::readable_rows(k), detail::readable_rows(v),
                           detail::readable_rows(in_order(gy))};
    if (rounded) kernel::linear_scan_bf16_backward(rows[0], rows[1], rows[2], steps, rows[3], dq, dk, dv, dg);
    else kernel::linear_scan_backward(rows[0], rows[1], rows[2], steps, rows[3], o.chunk, dq, dk, dv, dg);
    return {in_order(detail::gather_heads(dq, groups)), in_order(detail::gather_heads(dk, groups)), in_order(dv),
            decays(dg)};
  }

  /// True if linear_scan_decay_backward serves this call. There only sums over one chunk's pairs are a difference.
  bool decays_by_chunks(const Tensor& gy) const {
    return !grad_enabled() && gy.device() != meta && gy.numel() > 0 && saved(0).numel() > 0 &&
           kernel::linear_scan_decay_backward.installed(gy.device());
  }
  /// y, z, the gradient of c, and dg from a, b, c and x, the gradient of y, as linear_scan_decay_backward names them.
  void by_chunks(const Tensor& a, const Tensor& b, const Tensor& c, const Tensor& x, const Tensor& g, Tensor& y,
                 Tensor& z, Tensor& dg) const {
    const Tensor steps = contiguous(g);
    y = detail::empty_heads(c.shape(), c.options(), op_name());
    z = detail::empty_heads(c.shape(), c.options(), op_name());
    dg = empty(g.shape(), g.options(), op_name());
    kernel::linear_scan_decay_backward(detail::readable_rows(a), detail::readable_rows(b), detail::readable_rows(c),
                                       detail::readable_rows(x), steps, o, y, z, dg);
  }

  /// `given`: the precision of what makes no decay's gradient.
  Tensors composed_vjp(const Tensor& gy, Precision given) const {
    const int64_t groups = saved(0).dim(1), heads = gy.dim(1);
    const Tensor q = detail::spread_heads(detail::widened(saved(0)), heads),
                 k = detail::spread_heads(detail::widened(saved(1)), heads), v = detail::widened(saved(2)),
                 g = detail::widened(saved(3));
    const bool want_decay = needs(3), by_value = want_decay && g.rank() == 4 && o.decay_on_values;
    LinearScanOptions same = o, other = o;  // decay_on_values as given, and exchanged
    other.decay_on_values = !o.decay_on_values;
    LinearScanOptions same_back = same, other_back = other;
    same_back.reverse = other_back.reverse = !o.reverse;
    const auto scan = [&g](const Tensor& a, const Tensor& b, const Tensor& c, LinearScanOptions x, bool exclusive) {
      x.exclusive = x.exclusive || exclusive;
      return linear_scan(a, b, c, g, x);
    };
    Tensors grads(4);
    auto &dq = grads[0], &dk = grads[1], &dv = grads[2], &dg = grads[3];
    if (want_decay && decays_by_chunks(gy)) {
      Tensor y;  // of by_value: not wanted
      if (by_value) by_chunks(q, k, v, gy, g, y, dv, dg);
      else by_chunks(gy, v, k, q, g, dq, dk, dg);
    }
    const bool by_difference = want_decay && !dg.defined(), by_key = by_difference && !by_value;
    if (!dq.defined() && (needs(0) || by_key)) dq = scan(gy, v, k, other, by_key);
    if (!dk.defined() && (needs(1) || by_key)) dk = scan(v, gy, q, other_back, by_key);
    if (!dv.defined() && (needs(2) || (by_difference && by_value))) {
      const PrecisionScope scope(by_value ? precision() : given);
      dv = scan(k, q, gy, same_back, by_value);
    }
    if (by_difference) {
      Tensor from = by_value ? scan(q, k, v, same, true) * gy : q * dq, to = by_value ? v * dv : k * dk;
      if (g.rank() == 3) from = sum(from, {-1}), to = sum(to, {-1});
      dg = detail::decay_gradient(o.reverse ? to - from : from - to, g);
    }
    if (by_key && !o.exclusive) {
      const Tensor own = sum(gy * v, {-1}, keep);
      dq = map(formula::ScaleOffset{}, k, own, dq), dk = map(formula::ScaleOffset{}, q, own, dk);
    }
    if (by_difference && by_value && !o.exclusive) dv = map(formula::ScaleOffset{}, gy, sum(q * k, {-1}, keep), dv);
    dq = detail::gather_heads(dq, groups), dk = detail::gather_heads(dk, groups);
    return grads;
  }
};

}  // namespace

Tensor linear_scan(const Tensor& q_in, const Tensor& k_in, const Tensor& v, const Tensor& log_decay,
                   const LinearScanOptions& o) {
  const Tensor g = checked_decay("linear_scan", q_in, k_in, v, log_decay, o);
  const bool spread =
      !kernel::linear_scan_backward.installed(v.device()) && !kernel::linear_scan_bf16_backward.installed(v.device());
  const Tensor q = spread ? detail::spread_heads(q_in, v.dim(1)) : q_in,
               k = spread ? detail::spread_heads(k_in, v.dim(1)) : k_in;
  Tensor y = detail::empty_heads(v.shape(), v.options(), "linear_scan");
  if (y.numel() > 0) {
    const Tensor decay = g.defined() ? contiguous(g.detach()) : g;
    const PrecisionScope scope(precision_of(q.dtype()));
    kernel::linear_scan(detail::readable_rows(q), detail::readable_rows(k), detail::readable_rows(v), decay, o, y);
  }
  return record<LinearScan>(y, {q, k, v, g}, {q, k, v, g}, o);
}

Tensor linear_scan_state(const Tensor& k, const Tensor& v, const Tensor& log_decay, const Tensor& initial) {
  const Tensor g = checked_decay("linear_scan_state", k, k, v, log_decay, {});
  const Shape shape{k.dim(0), v.dim(1), k.dim(3), v.dim(3)};
  checked_numel("linear_scan_state", shape);
  if (initial.defined() && initial.shape() != shape)
    fail("linear_scan_state: initial=", initial, " does not fit k=", k, ", v=", v, "; need [batch, heads, m, e]");
  detail::check_devices("linear_scan_state", {k, initial});
  if (initial.defined() && initial.dtype() != k.dtype())
    fail<DTypeError>("linear_scan_state: initial is ", initial.dtype(), initial, " beside k=", k.dtype(), k);
  if (k.dtype() == bf16) return detail::in_f32(linear_scan_state, k, v, log_decay, initial);
  const Tensor keys = detail::spread_heads(k, v.dim(1));
  if (!g.defined()) {
    const Tensor state = matmul(transpose(keys, -2, -1), v);
    return initial.defined() ? state + initial : state;
  }
  const Tensor steps = g.rank() == 3 ? unsqueeze(g, -1) : g;  // [batch, heads, n, 1 or m]
  const Tensor state =
      detail::decayed_state(keys, v, detail::running_decay(steps, 2, {.exclusive = true, .reverse = true}));
  return initial.defined() ? state + map(formula::Decayed{}, initial, unsqueeze(detail::total_decay(steps, 2), -1))
                           : state;
}

constexpr double kForgets = -std::numeric_limits<double>::infinity();

/// False only if no number is −∞ or NaN. On other devices than the CPU true without a look, which would wait for them.
static bool may_forget(const Tensor& g) {
  if (g.device() == meta || g.numel() == 0) return false;
  return g.device() != cpu || !(min(g.detach()).item() > kForgets);
}

Tensor detail::running_decay(const Tensor& g, int64_t dim, CumsumOptions o) {
  if (!may_forget(g)) return cumsum(g, dim, o);
  const Tensor forgets = cumsum(to(g.detach() == kForgets, f32), dim, o) > 0.0;
  return masked_fill(cumsum(g, dim, o), forgets, kForgets);
}
Tensor detail::total_decay(const Tensor& g, int64_t dim) {
  if (!may_forget(g)) return sum(g, {dim});
  return masked_fill(sum(g, {dim}), any(g.detach() == kForgets, {dim}), kForgets);
}

Tensor detail::backward_decay(const Tensor& g) {
  if (!g.defined() || g.dim(2) == 0) return g;
  return pad(flip(narrow(g, 2, 1, g.dim(2) - 1), {2}), 2, 1, 0);
}

Tensor detail::decay_gradient(const Tensor& x, const Tensor& g) {
  if (g.device() != cpu || !may_forget(g)) return cumsum(x, 2, {.reverse = true});
  const Tensor rows = g.rank() == 3 ? unsqueeze(x, -1) : x, one = ones({g.dim(0), g.dim(1), g.dim(2), 1}, x.options());
  const Tensor forgets = masked_fill(zeros(g.shape(), x.options()), g.detach() == kForgets, kForgets);
  return reshape(linear_scan(one, one, rows, forgets, {.reverse = true, .decay_on_values = true}), g.shape());
}

/// Where all channels decay by e^−∞: bool [batch, heads, n, 1].
static Tensor forgotten(const Tensor& g) { return all(g.detach() == kForgets, {-1}, keep); }
/// x, 0 where all channels of g decay by e^−∞.
static Tensor without_forgotten(const Tensor& x, const Tensor& g) {
  return may_forget(g) ? masked_fill(x, forgotten(g), 0) : x;
}

Tensor detail::decayed_state(const Tensor& k, const Tensor& v, const Tensor& left) {
  return matmul(transpose(map(formula::Decayed{}, k, left), -2, -1), without_forgotten(v, left));
}

Tensor detail::carried(const Tensor& q, const Tensor& state, const Tensor& upto) {
  const Tensor rows = map(formula::Decayed{}, q, upto);
  if (!may_forget(upto)) return matmul(rows, state);
  const Tensor gone = forgotten(upto);  // clears the rows, too: their gradients are products with the state
  return masked_fill(matmul(masked_fill(rows, gone, 0), state), gone, 0);
}

Tensor linear_scan_carry(const Tensor& q, const Tensor& initial, const Tensor& log_decay) {
  detail::check_floats("linear_scan_carry", {{"q", q}, {"initial", initial}});
  if (q.rank() != 4 || initial.rank() != 4 || initial.dim(0) != q.dim(0) || initial.dim(1) != q.dim(1) ||
      initial.dim(2) != q.dim(3))
    fail("linear_scan_carry: got q=", q, ", initial=", initial, "; need [batch, heads, n, m], [batch, heads, m, e]");
  const Tensor g = checked_decay("linear_scan_carry", q, q, q, log_decay, {});
  checked_numel("linear_scan_carry", {q.dim(0), q.dim(1), q.dim(2), initial.dim(3)});
  if (q.dtype() == bf16) return detail::in_f32(linear_scan_carry, q, initial, log_decay);
  if (!g.defined()) return matmul(q, initial);
  return detail::carried(q, initial, detail::running_decay(g.rank() == 3 ? unsqueeze(g, -1) : g, 2));
}

}  // namespace sluice
