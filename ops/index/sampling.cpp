// The race of Efraimidis & Spirakis (2006): category i arrives at time E_i / w_i, E_i exponential. The first n are the
// sample.
#include <sluice/ops/index/sampling.h>

#include <sluice/core/node.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/rows/reduce.h>
#include <sluice/ops/index/sort.h>
#include <sluice/ops/shape/view.h>

#include <algorithm>

namespace sluice {

Tensor multinomial(const Tensor& weights, int64_t n, Rng& rng, bool replacement) {
  detail::check_float("multinomial", weights);
  if (weights.rank() == 0) fail("multinomial: needs weights [..., C] — got a scalar");
  if (n < 0) fail<ValueError>("multinomial: needs n >= 0 — got ", n);
  NoGrad guard;
  Tensor w = to(weights.detach(), f64);
  if (w.device() != meta && w.numel() > 0 && all(isfinite(w) & (w >= 0.0)).item() == 0)
    fail<ValueError>("multinomial: weights ", weights, " must be finite and >= 0");
  const int64_t needed = replacement ? std::min<int64_t>(n, 1) : n;
  if (w.dim(-1) < needed)
    fail<ValueError>("multinomial: ", w.dim(-1), " categories are too few for ", needed, " of them — got ", weights);
  const Tensor choices = sum(w > 0.0, -1);
  if (w.device() != meta && choices.numel() > 0 && needed > 0 && min(choices).item<int64_t>() < needed)
    fail<ValueError>("multinomial: each row needs at least ", needed, " positive weights — got one with ",
                     min(choices).item<int64_t>(), " in weights ", weights);
  Shape draws = w.shape();
  if (replacement) draws.insert(draws.rank() - 1, n);
  checked_numel("multinomial", draws);
  if (needed == 0) {
    draws = w.shape(), draws[draws.rank() - 1] = n;
    return zeros(draws, {i64, w.device()});
  }
  const Tensor arrival = maximum(neg(log1p(neg(uniform(draws, 0, 1, rng, {f64, w.device()})))), 1e-300);
  const Tensor speed = (replacement ? unsqueeze(w, -2) : w) / arrival;  // 0 for a weight of 0
  return replacement || n == 1 ? argmax(speed, -1, !replacement) : topk(speed, n).indices;
}

}  // namespace sluice
