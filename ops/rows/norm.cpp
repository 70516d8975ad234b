// c = x − mean x (layer norm) or x (rms);  r = (mean c² + eps)^(−½);  x̂ = c·r;  y = x̂ ⊙ w + b
// With h = g ⊙ w:   dx = r·(h − [mean h] − x̂·mean(h ⊙ x̂))     (the bracket only when centred)
//                   dw = Σ_rows g ⊙ x̂,   db = Σ_rows g
#include <sluice/ops/rows/norm.h>

#include <sluice/core/node.h>
#include <sluice/core/operands.h>
#include <sluice/ops/basic.h>
#include <sluice/ops/kernels.h>
#include <sluice/ops/rows/rows.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace sluice {

namespace {

/// y, and stats [rows, 2]: mean (0 unless centred) and r of each row, kept for the backward pass.
void norm_cpu(const Tensor& x, const Tensor& w, const Tensor& b, Tensor& y, Tensor& stats, NormSpec spec) {
  const int64_t n = x.dim(-1);
  const Tensor weight = detail::widened(w), bias = detail::widened(b);
  detail::dispatch_rows("norm", x.dtype(), [&]<class T>() {
    const detail::RowsIn<T> in(x, n, 0);
    const detail::RowsOut<T> out(y, n, 1);
    const T* pw = w.defined() ? weight.data<T>() : nullptr;
    const T* pb = b.defined() ? bias.data<T>() : nullptr;
    T* ps = stats.mutable_data<T>();
    detail::for_each_row(x.numel() / n, n, [&](int64_t row) {
      const T* __restrict__ p = in[row];
      T* __restrict__ q = out[row];
      // The mean is taken relative to the first number, because r makes an ulp of a row of equal numbers large. The
      // second sum recovers what the first one lost: beside a much larger first number that is most of the other
      // numbers' mean.
      const auto mean_from = [=](T at) {
        return at + detail::row_total<T>(n, [=](int64_t i) { return p[i] - at; }) / T(n);
      };
      const T mean = spec.centred ? mean_from(mean_from(p[0])) : T(0);
      const T ss = detail::row_total<T>(n, [=](int64_t i) { return (p[i] - mean) * (p[i] - mean); });
      const T r = T(1) / std::sqrt(ss / T(n) + T(spec.eps));
      if (pb)
        for (int64_t i = 0; i < n; ++i) q[i] = (p[i] - mean) * r * pw[i] + pb[i];
      else if (pw)
        for (int64_t i = 0; i < n; ++i) q[i] = (p[i] - mean) * r * pw[i];
      else
        for (int64_t i = 0; i < n; ++i) q[i] = (p[i] - mean) * r;
      out.done(row);
      ps[2 * row] = mean, ps[2 * row + 1] = r;
    });
  });
}

/// One row of dx: two sums and one pass.
template <class T, class Weighted>
void norm_backward_row(const T* __restrict__ p, T* __restrict__ o, int64_t n, T mean, T r, bool centred, Weighted h) {
  const T hx = detail::row_total<T>(n, [=](int64_t i) { return h(i) * (p[i] - mean); }) * r / T(n);
  const T hm = centred ? detail::row_total<T>(n, h) / T(n) : T(0);
  for (int64_t i = 0; i < n; ++i) o[i] = r * (h(i) - hm - (p[i] - mean) * r * hx);
}

/// dx, and dw and db when defined. Rows are cut into fixed slabs with one partial dw, db each.
void norm_backward_cpu(const Tensor& x, const Tensor& w, const Tensor& g, const Tensor& stats, Tensor& dx, Tensor& dw,
                       Tensor& db, NormSpec spec) {
  const int64_t n = x.dim(-1), rows = x.numel() / n;
  // Sums in T are at most kBlock rows long; their totals are f64.
  constexpr int64_t kBlock = 512;
  const int64_t slab = std::clamp(ceil_div(rows, 64), std::clamp((1 << 16) / n, int64_t{1}, kBlock), kBlock);
  const int64_t slabs = ceil_div(rows, slab);
  const int64_t sums = dw.defined() + db.defined();  // of each slab: dw, then db
  const Tensor weight = detail::widened(w);
  detail::dispatch_rows("norm", x.dtype(), [&]<class T>() {
    const detail::RowsIn<T> in(x, n, 0), pg(g, n, 1);
    const detail::RowsOut<T> out(dx, n, 2);
    const T* ps = stats.data<T>();
    const T* pw = w.defined() ? weight.data<T>() : nullptr;
    std::vector<T> part(static_cast<std::size_t>(sums * slabs * n));
    parallel_for(slabs, ceil_div(1 << 16, slab * n), [&](int64_t begin, int64_t end) {
      for (int64_t s = begin; s < end; ++s) {
        T* const here = part.data() + sums * s * n;
        T* __restrict__ sw = dw.defined() ? here : nullptr, * __restrict__ sb =
                                                                db.defined() ? here + (sums - 1) * n : nullptr;
        for (int64_t row = s * slab; row < std::min(rows, (s + 1) * slab); ++row) {
          const T* __restrict__ p = in[row];
          const T* __restrict__ q = pg[row];
          const T mean = ps[2 * row], r = ps[2 * row + 1];
          if (pw) norm_backward_row(p, out[row], n, mean, r, spec.centred, [=](int64_t i) { return q[i] * pw[i]; });
          else norm_backward_row(p, out[row], n, mean, r, spec.centred, [=](int64_t i) { return q[i]; });
          out.done(row);
          if (sw)
            for (int64_t i = 0; i < n; ++i) sw[i] += q[i] * ((p[i] - mean) * r);
          if (sb)
            for (int64_t i = 0; i < n; ++i) sb[i] += q[i];
        }
      }
    });
    auto gather = [&](Tensor& to, int64_t offset) {
      if (!to.defined()) return;
      const detail::RowsOut<T> result(to, n, 2);
      T* o = result[0];
      constexpr int64_t kColumns = 64;
      parallel_for(ceil_div(n, kColumns), 16, [&](int64_t begin, int64_t end) {
        for (int64_t c = begin * kColumns; c < std::min(n, end * kColumns); c += kColumns) {
          const int64_t some = std::min(kColumns, n - c);
          double total[kColumns] = {};
          for (int64_t s = 0; s < slabs; ++s)
            for (int64_t i = 0; i < some; ++i)
              total[i] += part[static_cast<std::size_t>(sums * s * n + offset + c + i)];
          for (int64_t i = 0; i < some; ++i) o[c + i] = static_cast<T>(total[i]);
        }
      });
      result.done(0);
    };
    gather(dw, 0), gather(db, (sums - 1) * n);
  });
}

// Inputs: x, weight, bias (the last two may be undefined). Saved: x, weight or undefined, the rows' statistics.
struct NormRule {
  NormSpec spec;
  Tensors operator()(const Node& node, const Tensor& g) const {
    Tensor x = node.saved(0), w = node.saved(1);
    if (!grad_enabled()) {
      Tensor dx = empty(x.shape(), x.options());
      Tensor dw = node.needs(1) ? empty({x.dim(-1)}, x.options()) : Tensor();
      Tensor db = node.needs(2) ? empty({x.dim(-1)}, x.options()) : Tensor();
      kernel::norm_backward(contiguous(x), w.defined() ? contiguous(w) : w, contiguous(g), node.saved(2), dx, dw, db,
                            spec);
      return {dx, dw, db};
    }
    const DType dtype = x.dtype();
    const Tensor wide = detail::widened(g);
    x = detail::widened(x), w = detail::widened(w);
    Tensor c = spec.centred ? x - mean(x, {-1}, keep) : x;
    if (spec.centred) c = c - mean(c.detach(), {-1}, keep);  // the mean's rounding, which r makes large; 0 otherwise
    Tensor r = rsqrt(mean(square(c), {-1}, keep) + spec.eps), unit = c * r;
    Tensor h = w.defined() ? wide * w : wide;
    Tensor inner = h - unit * mean(h * unit, {-1}, keep);
    const Tensor dx = to(r * (spec.centred ? inner - mean(h, {-1}, keep) : inner), dtype);
    return {dx, node.needs(1) ? to(wide * unit, dtype) : Tensor(), g};  // the engine sums over the rows
  }
};

Tensor normalise(const char* op, const Tensor& x, const Tensor& w, const Tensor& b, NormSpec spec) {
  detail::check_float(op, x);
  detail::check_devices(op, {x, w, b});
  if (!(spec.eps >= 0)) fail<ValueError>(op, ": eps must not be negative — got ", spec.eps);
  if (x.rank() == 0 || x.dim(-1) == 0) fail(op, ": nothing to normalise in x=", x);
  for (const Tensor* p : {&w, &b}) {
    if (!p->defined()) continue;
    if (p->shape() != Shape{x.dim(-1)}) fail(op, ": parameter ", *p, " does not fit x=", x, "; need [", x.dim(-1), "]");
    if (p->dtype() != x.dtype())
      fail<DTypeError>(op, ": got x=", x.dtype(), x, ", a parameter ", p->dtype(), *p,
                       "; convert with to(x, dtype) or to(model, dtype)");
  }
  if (b.defined() && !w.defined())
    return to(normalise(op, detail::widened(x), w, {}, spec) + detail::widened(b), x.dtype());
  Tensor y = empty(x.shape(), x.options(), op),
         stats = empty({x.numel() / x.dim(-1), 2}, detail::widened(x.options()), op);
  {
    NoGrad guard;
    if (x.numel() > 0)
      kernel::norm(contiguous(x), w.defined() ? contiguous(w) : w, b.defined() ? contiguous(b) : b, y, stats, spec);
  }
  return record(op, y, {x, w, b}, {x, w, stats}, NormRule{spec});
}

}  // namespace

constinit decltype(kernel::norm) kernel::norm{"norm", &norm_cpu, Bf16::native};
constinit decltype(kernel::norm_backward) kernel::norm_backward{"norm backward", &norm_backward_cpu, Bf16::native};

Tensor layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps) {
  return normalise("layer_norm", x, weight, bias, {true, eps});
}

Tensor rms_norm(const Tensor& x, const Tensor& weight, double eps) {
  return normalise("rms_norm", x, weight, {}, {false, eps});
}

Tensor scale_norm(const Tensor& x, const Tensor& g, double eps, ScaleNormForm form) {
  detail::check_defined("scale_norm", {{"x", x}, {"g", g}});
  detail::check_devices("scale_norm", {x, g});
  if (g.numel() != 1) fail("scale_norm: needs one scalar g — got g=", g, " for x=", x);
  if (g.dtype() != x.dtype())
    fail<DTypeError>("scale_norm: dtypes differ — got x=", x.dtype(), x, ", g=", g.dtype(), g);
  detail::check_float("scale_norm", x);
  if (x.dtype() == bf16) return detail::in_f32(scale_norm, x, g, eps, form);
  Tensor scalar = reshape(g, {});
  if (form == ScaleNormForm::rms) return normalise("scale_norm", x, {}, {}, {false, eps}) * scalar;
  if (!(eps >= 0)) fail<ValueError>("scale_norm: eps must not be negative — got ", eps);
  if (x.rank() == 0) fail("scale_norm: nothing to normalise in x=", x);
  Tensor rms = norm(x, {-1}, keep) * (1.0 / std::sqrt(static_cast<double>(x.dim(-1))));
  return x / clamp(rms, eps) * scalar;
}

}  // namespace sluice
