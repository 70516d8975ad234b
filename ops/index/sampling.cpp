// The race of Efraimidis & Spirakis (2006): category i arrives at time E_i / w_i, E_i exponential. The first n are the
// sample.
#include <sluice/ops/index/sampling.h>

#include <sluice/core/node.h>
#include <sluice/ops/basic.h>
#include <sluice/ops/elementwise/map.h>
#include <sluice/ops/index/sort.h>

#include <algorithm>

namespace sluice {

Tensor multinomial(const Tensor& weights, int64_t n, Rng& rng, bool replacement) {
  detail::check_float("multinomial", weights);
  if (weights.rank() == 0) fail("multinomial: needs weights [..., C] — got a scalar");
  if (n < 0) fail<ValueError>("multinomial: needs n >= 0 — got ", n);
  NoGrad guard;
  const Tensor w = to(weights.detach(), f64), most = w.numel() > 0 ? max(w, -1, keep) : w;
  if (w.device() != meta && w.numel() > 0 && all(isfinite(most) & (min(w, -1, keep) >= 0.0)).item() == 0)
    fail<ValueError>("multinomial: weights ", weights, " must be finite and >= 0");
  const int64_t needed = replacement ? std::min<int64_t>(n, 1) : n;
  if (w.dim(-1) < needed)
    fail<ValueError>("multinomial: ", w.dim(-1), " categories are too few for ", needed, " of them — got ", weights);
  const Tensor choices = sum(w > 0.0, -1);
  if (w.device() != meta && choices.numel() > 0 && needed > 0 && min(choices).item<int64_t>() < needed)
    fail<ValueError>("multinomial: each row needs at least ", needed, " positive weights — got one with ",
                     min(choices).item<int64_t>(), " in weights ", weights);
  if (replacement) detail::check_rank("multinomial", w.rank() + 1, weights);
  Shape draws = w.shape();
  if (replacement) draws.insert(draws.rank() - 1, n);
  checked_numel("multinomial", draws);
  if (needed == 0) {
    draws = w.shape(), draws[draws.rank() - 1] = n;
    return zeros(draws, {i64, w.device()});
  }
  // Weights of a row that are all vast or all tiny are taken in units of the largest. A weight above 0 has a speed
  // above 0, however far below the others it is.
  const Tensor unit = masked_fill(most, (most > 1e-200) & (most < 1e200), 1);
  const auto race = [](auto weight, auto chance, auto one) {
    const auto arrival = max(-log1p(-chance), 1e-300);
    return select(weight > 0.0, max(weight / one / arrival, 0x1p-1022), 0.0);
  };
  const Tensor speed = map(race, replacement ? unsqueeze(w, -2) : w, uniform(draws, 0, 1, rng, {f64, w.device()}),
                           replacement ? unsqueeze(unit, -2) : unit);
  return replacement || n == 1 ? argmax(speed, -1, !replacement) : topk(speed, n).indices;
}

}  // namespace sluice
