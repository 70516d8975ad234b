// Without replacement, and for one draw, the race of Efraimidis & Spirakis (2006): category i arrives at time E_i /
// w_i, E_i exponential. The first n are the sample. With replacement, inversion of the distribution function.
#include <sluice/ops/index/sampling.h>

#include <sluice/core/kernel/parallel.h>
#include <sluice/core/node.h>
#include <sluice/ops/basic.h>
#include <sluice/ops/elementwise/map.h>
#include <sluice/ops/index/sort.h>

#include <algorithm>
#include <numeric>
#include <vector>

namespace sluice {

static Tensor inverted(const Tensor& weights, const Tensor& chances);

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
  const Tensor choices = needed == 1 ? to(most > 0.0, i64) : sum(w > 0.0, -1);  // of one, the largest tells
  if (w.device() != meta && choices.numel() > 0 && needed > 0 && min(choices).item<int64_t>() < needed)
    fail<ValueError>("multinomial: each row needs ", needed, " or more positive weights — got one with ",
                     min(choices).item<int64_t>(), " in weights ", weights);
  Shape draws = w.shape();
  draws[draws.rank() - 1] = n;
  checked_numel("multinomial", draws);
  const TensorOptions on{f64, w.device()};
  if (needed == 0) return zeros(draws, {i64, w.device()});
  // Weights of a row that are all vast or all tiny are taken in units of the largest.
  const Tensor unit = masked_fill(most, (most > 1e-200) & (most < 1e200), 1);
  if (replacement && n > 1) return inverted(w / unit, uniform(draws, 0, 1, rng, on));
  // A weight above 0 has a speed above 0, however far below the others it is.
  const auto race = [](auto weight, auto chance, auto one) {
    const auto arrival = max(-log1p(-chance), 1e-300);
    return select(weight > 0.0, max(weight / one / arrival, 0x1p-1022), 0.0);
  };
  const Tensor speed = map(race, w, uniform(w.shape(), 0, 1, rng, on), unit);
  return n == 1 ? argmax(speed, -1, keep) : topk(speed, n).indices;
}

/// For each chance in [0, 1), the first category whose sum of weights so far is above this share of the last sum. Sums
/// one after the other never fall, so a weight of 0 is never drawn. weights [..., C], chances [..., n] → i64 [..., n].
static Tensor inverted(const Tensor& weights, const Tensor& chances) {
  const Device device = weights.device();
  if (device == meta) return empty(chances.shape(), {i64, meta});
  const Tensor w = contiguous(detail::on_cpu("multinomial", weights)), u = detail::on_cpu("multinomial", chances);
  Tensor drawn = empty(u.shape(), {i64});
  const int64_t categories = w.dim(-1), n = u.dim(-1);
  parallel_for(
      u.numel() / n, 1,
      [&, w = w.data<double>(), u = u.data<double>(), out = drawn.mutable_data<int64_t>()](int64_t begin, int64_t end) {
        std::vector<double> sums(static_cast<std::size_t>(categories));
        for (int64_t row = begin; row < end; ++row) {
          std::partial_sum(w + row * categories, w + (row + 1) * categories, sums.begin());
          for (int64_t i = row * n; i < (row + 1) * n; ++i)
            out[i] = std::upper_bound(sums.begin(), sums.end(), u[i] * sums.back()) - sums.begin();
        }
      });
  return to(drawn, device);
}

}  // namespace sluice
