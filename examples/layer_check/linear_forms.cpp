#include "linear_forms.h"

#include <sluice/ops/shape/create.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/elementwise/formulas_of_layers.h>
#include <sluice/ops/elementwise/map.h>
#include <sluice/ops/matmul/matmul.h>
#include <sluice/ops/rows/reduce.h>
#include <sluice/ops/scan/scan.h>

namespace layer_check {

using namespace sluice;

namespace {

/// The operands, scaled, and 0 at padding, which does not decay either.
struct Operands {
  Tensor q, k, v, decay;      // decay [batch, heads, n], or [batch, heads, n, f] with a decay of each feature
  Tensor turned_q, turned_k;  // by RoPE, for the numerator

  Operands(const Tensor& phi_q, const Tensor& phi_k, const Tensor& values, const LinearAttentionForm& f)
      : q(phi_q * f.scale), k(phi_k), v(values) {
    if (f.log_decay.defined()) {
      Shape shape{k.dim(0), k.dim(1), k.dim(2)};
      if (f.log_decay.rank() == 4) shape.push_back(k.dim(3));
      decay = expand(f.log_decay, shape);
    }
    if (f.key_mask.defined()) {
      const Tensor hidden = unsqueeze(logical_not(f.key_mask), 1), rows = unsqueeze(hidden, -1);
      k = masked_fill(k, rows, 0), v = masked_fill(v, rows, 0);
      if (decay.defined()) decay = masked_fill(decay, decay.rank() == 4 ? rows : hidden, 0);
    }
    turned_q = f.rope ? rope(q, *f.rope) : q, turned_k = f.rope ? rope(k, f.rope->of_keys()) : k;
  }
};

Tensor divided(const Tensor& numerator, const Tensor& denominator, const LinearAttentionForm& f) {
  return f.normalize == LinearNormalize::none ? numerator : map(formula::Quotient{f.eps}, numerator, denominator);
}

}  // namespace

Tensor quadratic_attention(const Tensor& phi_q, const Tensor& phi_k, const Tensor& v, const LinearAttentionForm& f) {
  const Operands x(phi_q, phi_k, v, f);
  Tensor kept;  // e^{−|G_i − G_j|} [batch, heads, n, n, (f)]: G decreases, so the absolute value fits both directions
  if (x.decay.defined()) {
    const Tensor sums = cumsum(to(clamp(x.decay, -1e4), f64), 2);
    kept = exp(neg(abs(to(unsqueeze(sums, 3) - unsqueeze(sums, 2), v.dtype()))));
  }
  const auto weights = [&](const Tensor& q, const Tensor& k) {
    if (kept.defined() && kept.rank() == 5) return sum(unsqueeze(q, 3) * unsqueeze(k, 2) * kept, {-1});
    const Tensor products = matmul(q, transpose(k, -2, -1));
    return kept.defined() ? products * kept : products;
  };
  const auto over = [&](const Tensor& seen) {
    const auto those = [&](const Tensor& a) { return seen.defined() ? masked_fill(a, logical_not(seen), 0) : a; };
    return divided(matmul(those(weights(x.turned_q, x.turned_k)), x.v), sum(those(weights(x.q, x.k)), {-1}, keep), f);
  };
  const Tensor steps = arange(phi_k.dim(2), {i64, v.device()}), i = unsqueeze(steps, 1), j = unsqueeze(steps, 0);
  switch (f.direction) {
    case LinearDirection::full:
    case LinearDirection::bidirectional: return over({});
    case LinearDirection::causal: return over(j <= i);
    case LinearDirection::two_direction_mean: return (over(j <= i) + over(j >= i)) * 0.5;
  }
  fail<ValueError>("quadratic_attention: unknown direction");
}

Recurrent recurrent_attention(const Tensor& phi_q, const Tensor& phi_k, const Tensor& v, const LinearAttentionForm& f) {
  if (f.direction != LinearDirection::causal)
    fail<ValueError>(
        "recurrent_attention: only the causal direction can be streamed; in the others every earlier "
        "output would change");
  const Operands x(phi_q, phi_k, v, f);
  const Tensor one = ones({v.dim(0), v.dim(1), 1, 1}, v.options());
  Tensor u, z;
  std::vector<Tensor> rows;
  for (int64_t t = 0; t < v.dim(2); ++t) {
    const auto at = [&](const Tensor& a) { return a.defined() ? narrow(a, 2, t, 1) : a; };
    const Tensor n = detail::continued_scan(at(x.turned_q), at(x.turned_k), at(x.v), at(x.decay), {}, u),
                 d = detail::continued_scan(at(x.q), at(x.k), one, at(x.decay), {}, z);
    rows.push_back(divided(n, d, f));
  }
  return {cat(rows, 2), f.normalize == LinearNormalize::none ? u : cat({u, z}, -1)};
}

}  // namespace layer_check
