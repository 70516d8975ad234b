// c = x − mean x (layer norm) or x (rms);  r = (mean c² + eps)^(−½);  x̂ = c·r;  y = x̂ ⊙ w + b
// With h = g ⊙ w:   dx = r·(h − [mean h] − x̂·mean(h ⊙ x̂))     (the bracket only when centred)
//                   dw = Σ_rows g ⊙ x̂,   db = Σ_rows g
#include <sluice/ops/rows/norm.h>

#include <sluice/core/node.h>
#include <sluice/core/operands.h>
#include <sluice/ops/basic.h>
#include <sluice/ops/kernels.h>
#include <sluice/ops/rows/column_exp.h>
#include <sluice/ops/rows/rows.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace sluice {

namespace {

/// norm_cpu() of short rows, which are copied to be columns.
template <class T> void norm_short_rows(const Tensor& x, const T* w, const T* b, Tensor& y, T* stats, NormSpec spec) {
  const int64_t n = x.dim(-1);
  detail::for_each_short_block<T>(x, n, [=, &y](const T* __restrict__ p, int64_t row, int64_t m) {
    const ReduceShape s{1, n, m};
    T mean[detail::kColumns] = {}, total[detail::kColumns], r[detail::kColumns];
    T out[detail::kShort<T> * detail::kColumns];
    // The mean is taken relative to the first number, because r makes an ulp of a row of equal numbers large. The
    // second pass recovers what the first one lost: beside a much larger first number that is most of the other
    // numbers' mean.
    if (spec.centred) std::copy_n(p, m, mean);
    for (int pass = 0; spec.centred && pass < 2; ++pass) {
      detail::row_totals<T>(s, m, total, [&](int64_t i, int64_t k) { return p[i] - mean[k]; });
      for (int64_t k = 0; k < m; ++k) mean[k] += total[k] / T(n);
    }
    detail::row_totals<T>(s, m, total, [&](int64_t i, int64_t k) { return (p[i] - mean[k]) * (p[i] - mean[k]); });
    for (int64_t k = 0; k < m; ++k) r[k] = T(1) / math::sqrt(total[k] / T(n) + T(spec.eps));
    for (int64_t i = 0; i < n; ++i)
      for (int64_t k = 0; k < m; ++k) {
        const T unit = (p[i * m + k] - mean[k]) * r[k];
        out[i * m + k] = b ? unit * w[i] + b[i] : w ? unit * w[i] : unit;
      }
    for (int64_t k = 0; k < m; ++k) stats[2 * (row + k)] = mean[k], stats[2 * (row + k) + 1] = r[k];
    detail::columns_to_rows(out, y, row, n, m);
  });
}

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
    // Where less is computed, as in the backward pass, only shorter rows repay the copies.
    if ((spec.centred || n < 32) && detail::are_short_rows<T>(x.numel() / n, n))
      return norm_short_rows<T>(x, pw, pb, y, ps, spec);
    detail::for_each_rows(x.numel() / n, n, [&](int64_t row, int64_t m) {
      const T* const from = in.part(row * n, m * n);
      T* const to = out.rows(row, m);
      T mean[detail::kTogether] = {}, r[detail::kTogether];
      for (int64_t k = 0; spec.centred && k < m; ++k) mean[k] = from[k * n];
      for (int pass = 0; spec.centred && pass < 2; ++pass)
        for (int64_t k = 0; k < m; ++k) {
          const T *p = from + k * n, at = mean[k];
          mean[k] = at + detail::row_total<T>(n, [=](int64_t i) { return p[i] - at; }) / T(n);
        }
      for (int64_t k = 0; k < m; ++k) {
        const T *p = from + k * n, at = mean[k];
        const T ss = detail::row_total<T>(n, [=](int64_t i) { return (p[i] - at) * (p[i] - at); });
        r[k] = T(1) / std::sqrt(ss / T(n) + T(spec.eps));
      }
      for (int64_t k = 0; k < m; ++k) {
        const T* __restrict__ p = from + k * n;
        T* __restrict__ q = to + k * n;
        const T at = mean[k], by = r[k];
        if (pb)
          for (int64_t i = 0; i < n; ++i) q[i] = (p[i] - at) * by * pw[i] + pb[i];
        else if (pw)
          for (int64_t i = 0; i < n; ++i) q[i] = (p[i] - at) * by * pw[i];
        else
          for (int64_t i = 0; i < n; ++i) q[i] = (p[i] - at) * by;
        ps[2 * (row + k)] = at, ps[2 * (row + k) + 1] = by;
      }
      out.done(row, m);
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

/// norm_backward_cpu() of short rows, which are copied to be columns. What the rows of block b add to dw and db stands
/// at part[b·sums·n].
template <class T>
void norm_backward_short_rows(const Tensor& x, const T* w, const Tensor& g, const T* stats, Tensor& dx, T* part,
                              int64_t sums, bool weighs, NormSpec spec) {
  const int64_t n = x.dim(-1);
  detail::for_each_short_block<T>(x, n, [=, &g, &dx](const T* p, int64_t row, int64_t m) {
    const ReduceShape s{1, n, m};
    T q[detail::kShort<T> * detail::kColumns], out[detail::kShort<T> * detail::kColumns];
    T mean[detail::kColumns], r[detail::kColumns], hx[detail::kColumns], hm[detail::kColumns] = {};
    detail::rows_to_columns(g, row, n, m, q);
    for (int64_t k = 0; k < m; ++k) mean[k] = stats[2 * (row + k)], r[k] = stats[2 * (row + k) + 1];
    T* to = part + row / detail::kColumns * sums * n;
    const auto add_up = [&](auto term) {
      for (int64_t i = 0; i < n; ++i) *to++ = detail::row_total<T>(m, [=](int64_t k) { return term(i * m + k, k); });
    };
    if (weighs) add_up([&](int64_t i, int64_t k) { return q[i] * ((p[i] - mean[k]) * r[k]); });
    if (sums > weighs) add_up([&](int64_t i, int64_t) { return q[i]; });
    const auto fill = [&](auto h) {
      detail::row_totals<T>(s, m, hx, [&](int64_t i, int64_t k) { return h(i, k) * (p[i] - mean[k]); });
      if (spec.centred) detail::row_totals<T>(s, m, hm, h);
      for (int64_t k = 0; k < m; ++k) hx[k] = hx[k] * r[k] / T(n), hm[k] /= T(n);
      for (int64_t line = 0; line < n * m; line += m)
        for (int64_t k = 0; k < m; ++k) {
          const int64_t i = line + k;
          out[i] = r[k] * (h(i, k) - hm[k] - (p[i] - mean[k]) * r[k] * hx[k]);
        }
    };
    if (w) fill([&](int64_t i, int64_t k) { return q[i] * w[(i - k) / m]; });
    else fill([&](int64_t i, int64_t) { return q[i]; });
    detail::columns_to_rows(out, dx, row, n, m);
  });
}

/// dx, and dw and db when defined. Rows are cut into fixed slabs with one partial dw, db each.
void norm_backward_cpu(const Tensor& x, const Tensor& w, const Tensor& g, const Tensor& stats, Tensor& dx, Tensor& dw,
                       Tensor& db, NormSpec spec) {
  const int64_t n = x.dim(-1), rows = x.numel() / n;
  const int64_t sums = dw.defined() + db.defined();  // of each slab: dw, then db
  const Tensor weight = detail::widened(w);
  detail::dispatch_rows("norm", x.dtype(), [&]<class T>() {
    const detail::RowsIn<T> in(x, n, 0), pg(g, n, 1);
    const detail::RowsOut<T> out(dx, n, 2);
    const T* ps = stats.data<T>();
    const T* pw = w.defined() ? weight.data<T>() : nullptr;
    // Sums in T are at most kBlock rows long; their totals are f64.
    constexpr int64_t kBlock = 512;
    const bool short_rows = n < 24 && detail::are_short_rows<T>(rows, n);
    const int64_t slab = short_rows
                             ? detail::kColumns
                             : std::clamp(ceil_div(rows, 64), std::clamp((1 << 16) / n, int64_t{1}, kBlock), kBlock);
    const int64_t slabs = ceil_div(rows, slab);
    std::vector<T> part(static_cast<std::size_t>(sums * slabs * n));
    if (short_rows) norm_backward_short_rows(x, pw, g, ps, dx, part.data(), sums, dw.defined(), spec);
    else
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
