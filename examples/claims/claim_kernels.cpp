// What softmax, feature maps and Sinkhorn's iteration can do, and what texts say of it: claims C38 to C42. All by
// arithmetic in f64, or by a construction.
#include "claims/claim.h"
#include "claims/fit.h"

#include <sluice/sluice.h>

#include <cmath>

using namespace sluice;
using namespace sluice::examples;

namespace {

constexpr TensorOptions kWide{f64};
Rng rng_of(const Run& run, int64_t draw) { return Rng(static_cast<uint64_t>(100 * run.seed + draw)); }
double rms(const Tensor& x) { return std::sqrt(mean(square(x)).item()); }

void c38(const Run&, Result& r) {
  const Tensor scores = to(Tensor({100, 90, 80}), f64), shifted = scores - 200;
  const Tensor weights = softmax(scores), again = softmax(shifted);
  const double difference = max(abs(weights - again)).item();
  r.add("largest difference between the weights of scores and of scores − 200", difference, "", 0);
  std::vector<Verdict> parts = {equals({difference}, 0)};
  const double printed[] = {0.7, 0.2, 0.1};
  for (int64_t i = 0; i < 3; ++i) {
    const double w = select(weights, 0, i).item();
    r.add("weight of " + text(select(scores, 0, i).item()), w, "", printed[i]);
    parts.push_back(equals({w}, printed[i], 0.05));
  }
  r.verdict = all(parts);
  r.why = "the shift changes nothing (" + text(difference) + "), but the weights are " + text(r.figures[1].measured) +
          ", " + text(r.figures[2].measured) + " and " + text(r.figures[3].measured) +
          ": the printed ones need steps of " + text(std::log(0.7 / 0.2)) + " and " + text(std::log(0.2 / 0.1)) +
          " between the scores, not of 10";
}

/// The error of φ(x)·φ(y) as a kernel, relative to the root mean square of the kernel `said`, over pairs of rows.
double kernel_error(const FeatureMapOptions& o, const Tensor& x, const Tensor& y, const Tensor& said, Rng& rng) {
  const FeatureMap map(o, rng);
  return rms(sum(map(x) * map(y), {1}) - said) / rms(said);
}
void c39(const Run& run, Result& r) {
  NoGrad guard;
  const int64_t d = 8, pairs = run.smoke ? 16 : 1000, draws = run.smoke ? 2 : 8;
  const std::vector<double> directions = {16, 64, 256, 1024};
  const auto with = [&](FeatureMapKind kind) { return FeatureMapOptions{.kind = kind, .dim = d, .dtype = f64}; };
  // Of each draw of pairs: the errors, the last by the number of directions, and the exponent of these.
  std::vector<double> of_exp, of_powers, slopes;
  std::vector<std::vector<double>> of_directions(directions.size());
  double outer = 0;
  for (int64_t draw = 0; draw < draws; ++draw) {
    Rng rng = rng_of(run, draw);
    const Tensor x = normal({pairs, d}, 0, 0.5, rng, kWide), y = normal({pairs, d}, 0, 0.5, rng, kWide);
    const Tensor product = sum(x * y, {1}), gaussian = exp(sum(square(x - y), {1}) * -0.5);
    of_exp.push_back(kernel_error(with(FeatureMapKind::exp), x, y, exp(product), rng));
    double best = 1e9;  // any c is allowed: the best of many
    for (double c = 0; c <= 4; c += 0.125) {
      const Tensor said = square(product + c);
      best = std::min(best, kernel_error(with(FeatureMapKind::poly_elem), x, y, said, rng));
      FeatureMapOptions o = with(FeatureMapKind::poly_kernel);
      o.constant = c;
      outer = std::max(outer, kernel_error(o, x, y, said, rng));
    }
    of_powers.push_back(best);
    std::vector<double> errors;
    for (std::size_t i = 0; i < directions.size(); ++i) {
      FeatureMapOptions o = with(FeatureMapKind::fourier);
      o.features = static_cast<int64_t>(directions[i]);
      errors.push_back(kernel_error(o, x, y, gaussian, rng));
      of_directions[i].push_back(errors.back());
    }
    slopes.push_back(log_log_slope(directions, errors).value);
  }
  const Measured exponential = mean_of(of_exp), powers = mean_of(of_powers), slope = mean_of(slopes);
  r.add("exp(x)ᵀexp(y) against exp(xᵀy), relative error", exponential, "", 0);
  r.add("[x, x²] against (xᵀy + c)², the best c, relative error", powers, "", 0);
  r.add("outer products [x, √c] ⊗ [x, √c] against the same, the worst c, below 1e-12 (1: yes)", outer < 1e-12);
  for (std::size_t i = 0; i < directions.size(); ++i)
    r.add("cos and sin of " + text(directions[i]) + " normal directions against the Gaussian kernel",
          mean_of(of_directions[i]));
  r.add("exponent of that error in the number of directions", slope, "", -0.5);
  // A kernel counts as given when the error is below 1 %; that of random directions when it falls like 1/√m.
  r.verdict = all({below(exponential, 0.01), below(powers, 0.01), equals(slope, -0.5, 0.2)});
  r.why = "exp(x)ᵀexp(y) misses exp(xᵀy) by a factor of " + text(exponential) +
          ", and elementwise powers miss the polynomial kernel by a factor of " + text(powers) +
          " with the best constant, where outer products give it exactly (" + text(outer) +
          "); cosines and sines of normal directions do tend to the Gaussian kernel, with the exponent " + text(slope);
}

/// The mean entropy of a row over that of equal weights: 1 uniform, 0 a permutation.
double entropy(const Tensor& weights) {
  const Tensor w = clamp(weights, 1e-300);
  return -sum(w * log(w)).item() / double(w.dim(0)) / std::log(double(w.dim(1)));
}
void c40(const Run& run, Result& r) {
  const int64_t n = 8, draws = run.smoke ? 2 : 20;
  const std::vector<double> lambdas = {0.25, 1, 4};
  std::vector<Measured> falls;
  for (const SinkhornVariant variant : {SinkhornVariant::correct, SinkhornVariant::literal}) {
    const std::string name =
        variant == SinkhornVariant::correct ? "exponential before the iteration" : "exponential in each iteration";
    std::vector<std::vector<double>> h(lambdas.size());
    for (int64_t i = 0; i < draws; ++i) {
      Rng rng = rng_of(run, i);
      const Tensor scores = normal({n, n}, 0, 1, rng, kWide);
      for (std::size_t l = 0; l < lambdas.size(); ++l)
        h[l].push_back(entropy(sinkhorn(scores, {.lambda = lambdas[l], .iterations = 50, .variant = variant})));
    }
    for (std::size_t l = 0; l < lambdas.size(); ++l)
      r.add("entropy of a row over ln n, λ = " + text(lambdas[l]) + ", " + name, mean_of(h[l]));
    falls.push_back(paired_difference(h.front(), h.back()));
    r.add("its fall from λ = 0.25 to 4, " + name, falls.back());
  }
  // λ controls the weights when it takes at least a tenth of their entropy away.
  r.verdict = exceeds(falls[1], 0.1);
  r.size = "more draws";
  const std::string fall = std::abs(falls[1].value) < 1e-9 ? "less than 1e-9" : text(falls[1]);
  r.why =
      "as printed, with the exponential in each iteration, the entropy of 8 × 8 weights falls by " + fall +
      " from λ = 0.25 to 4: every entry tends to 1/n whatever A is; with the exponential once, before, it falls by " +
      text(falls[0]);
}

void c41(const Run& run, Result& r) {
  const int64_t n = 8;
  const Tensor i = arange(n);
  SinkhornOptions o{.lambda = 1, .allowed = le(unsqueeze(i, 0), unsqueeze(i, 1))};
  std::vector<double> steps = {1, 10, 100, 1000, 10000}, slopes;
  if (run.smoke) steps.resize(3);
  std::vector<std::vector<double>> distances(steps.size());
  for (int64_t draw = 0; draw < 5; ++draw) {
    Rng rng = rng_of(run, draw);
    const Tensor scores = normal({n, n}, 0, 1, rng, kWide);
    std::vector<double> fall;
    for (std::size_t k = 0; k < steps.size(); ++k) {
      o.iterations = static_cast<int64_t>(steps[k]);
      fall.push_back(max(abs(sinkhorn(scores, o) - eye(n, n, kWide))).item());
      distances[k].push_back(fall.back());
    }
    slopes.push_back(log_log_slope({steps.begin() + 1, steps.end()}, {fall.begin() + 1, fall.end()}).value);
  }
  for (std::size_t k = 0; k < steps.size(); ++k)
    r.add("largest distance to the identity after " + text(steps[k]) + " iterations", mean_of(distances[k]));
  const Measured slope = mean_of(slopes), last = mean_of(distances.back());
  r.add("exponent of the distance in the number of iterations, from 10 on", slope);
  r.verdict = all({below(last, 0.01), below(slope, -0.5)});
  r.why = "a causal 8 × 8 matrix is within " + text(last) + " of the identity after " + text(steps.back()) +
          " iterations, and the distance falls with the exponent " + text(slope);
}

/// The largest difference between n × n weights of linear attention with φ = relu and the pattern in which token i
/// attends to token i + 1 alone, the last to the first.
double cyclic_error(int64_t n) {
  Rng rng(0);
  const FeatureMap map({.kind = FeatureMapKind::relu, .dim = n, .dtype = f64}, rng);
  const Tensor keys = reshape(eye(n, n, kWide), {1, 1, n, n}), queries = roll(keys, 1, 3);
  const Tensor weights = linear_attention(map(queries), map(keys), keys, {.eps = 0});  // values one-hot: the weights
  return max(abs(weights - queries)).item();
}
void c42(const Run&, Result& r) {
  const double three = cyclic_error(3), many = cyclic_error(64);
  r.add("distance of the best weights found from the cycle of 3 tokens", three);
  r.add("the same for 64 tokens, 64 features", many);
  r.verdict = exceeds({std::max(three, many)}, 0.01);  // the claim: a cycle stays out of reach
  r.why = "queries q_i = e_(i+1) and keys k_j = e_j with φ = relu give the cycle with an error of " + text(three) +
          " for 3 tokens and " + text(many) + " for 64; as many features as tokens suffice";
}

}  // namespace

int main(int argc, char** argv) {
  return run_claims("claim_kernels", {{"C38", c38}, {"C39", c39}, {"C40", c40}, {"C41", c41}, {"C42", c42}}, argc,
                    argv);
}
