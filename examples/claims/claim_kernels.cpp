// What softmax, feature maps and Sinkhorn's iteration can do, and what texts say of it: claims C38 to C42. All by
// arithmetic in f64, or by a construction.
#include "claims/claim.h"
#include "claims/fit.h"

#include <sluice/layers/attention/sinkhorn.h>
#include <sluice/layers/linear_attention/linear_attention.h>
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
  Rng rng = rng_of(run, 0);
  const Tensor x = normal({pairs, d}, 0, 0.5, rng, kWide), y = normal({pairs, d}, 0, 0.5, rng, kWide);
  const Tensor product = sum(x * y, {1});
  const FeatureMapOptions wide{.dim = d, .dtype = f64};
  const auto with = [&](FeatureMapKind kind) {
    FeatureMapOptions o = wide;
    o.kind = kind;
    return o;
  };
  const double exponential = kernel_error(with(FeatureMapKind::exp), x, y, exp(product), rng);
  r.add("exp(x)ᵀexp(y) against exp(xᵀy), relative error", exponential, "", 0);
  // Any c is allowed: the best of many.
  double powers = 1e9, outer = 0;
  for (double c = 0; c <= 4; c += 0.125) {
    const Tensor said = square(product + c);
    powers = std::min(powers, kernel_error(with(FeatureMapKind::poly_elem), x, y, said, rng));
    FeatureMapOptions o = with(FeatureMapKind::poly_kernel);
    o.constant = c;
    outer = std::max(outer, kernel_error(o, x, y, said, rng));
  }
  r.add("[x, x²] against (xᵀy + c)², the best c, relative error", powers, "", 0);
  r.add("outer products [x, √c] ⊗ [x, √c] against the same, the worst c", outer);
  std::vector<double> counts, errors;
  Measured at_most;
  for (const int64_t features : {16, 64, 256, 1024}) {
    FeatureMapOptions o = with(FeatureMapKind::fourier);
    o.features = features;
    std::vector<double> e;
    for (int64_t i = 0; i < draws; ++i) e.push_back(kernel_error(o, x, y, exp(sum(square(x - y), {1}) * -0.5), rng));
    at_most = mean_of(e);
    r.add("cos and sin of " + std::to_string(features) + " normal directions against the Gaussian kernel", at_most);
    counts.push_back(double(features)), errors.push_back(at_most.value);
  }
  const Measured slope = log_log_slope(counts, errors);
  r.add("exponent of that error in the number of directions", slope, "", -0.5);
  // A kernel counts as given when the error is below 1 %; that of random directions when it falls like 1/√m.
  r.verdict = all({below({exponential}, 0.01), below({powers}, 0.01), equals(slope, -0.5, 0.2)});
  r.why = "exp(x)ᵀexp(y) misses exp(xᵀy) by " + text(100 * exponential) +
          " % and elementwise powers miss the polynomial" + " kernel by " + text(100 * powers) +
          " % with the best constant, where outer products give it exactly (" + text(outer) +
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
  Rng rng = rng_of(run, 0);
  const Tensor scores = normal({n, n}, 0, 1, rng, kWide), i = arange(n);
  SinkhornOptions o{.lambda = 1, .allowed = le(unsqueeze(i, 0), unsqueeze(i, 1))};
  std::vector<double> steps, distances;
  for (const int64_t iterations : {1, 10, 100, 1000, 10000}) {
    if (run.smoke && iterations > 100) break;
    o.iterations = iterations;
    const double distance = max(abs(sinkhorn(scores, o) - eye(n, n, kWide))).item();
    r.add("largest distance to the identity after " + std::to_string(iterations) + " iterations", distance);
    if (iterations > 1) steps.push_back(double(iterations)), distances.push_back(distance);
  }
  const Measured slope = log_log_slope(steps, distances);
  r.add("exponent of the distance in the number of iterations, from 10 on", slope);
  r.verdict = all({below({distances.back()}, 0.01), below(slope, -0.5)});
  r.why = "a causal 8 × 8 matrix is within " + text(distances.back()) + " of the identity after " + text(steps.back()) +
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
