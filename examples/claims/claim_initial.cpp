// What "Does GAU still need warm-up?" (Su 2022, https://spaces.ac.cn/archives/8990) derives about initial weights:
// claims C1 to C5 and C43. The setting is the source's: x ~ N(0, 1), d = 768, e = 1536, kernels N(0, 1/fan-in), γ = 1,
// β = 0, no bias, no positions, A = relu²(Z·Zᵀ)/(ns).
#include "claims/claim.h"
#include "claims/fit.h"

#include <sluice/sluice.h>

#include <cmath>

using namespace sluice;
using namespace sluice::examples;

namespace {

struct Sizes {
  int64_t dim = 768, key_dim = 128, n = 512, seeds = 5;
};
Sizes sizes(const Run& run) { return run.smoke ? Sizes{32, 16, 24, 2} : Sizes{}; }

/// The branch F(x) alone.
GauOptions branch(const Sizes& s) {
  GauOptions o{.dim = s.dim, .key_dim = s.key_dim, .linear_bias = false};
  o.use_rope = false, o.norm = NormKind::none, o.residual = false, o.init = Init::lecun();
  return o;
}
double rms(const Tensor& x) { return std::sqrt(mean(square(x)).item()); }

/// A of a Gau's initial weights, [n, n].
Tensor initial_map(const Sizes& s, Rng& rng) {
  const Gau gau(branch(s), rng);
  const Tensor z = silu(narrow(gau.in(normal({s.n, s.dim}, 0, 1, rng)), 1, 4 * s.dim, s.key_dim));
  return relu2(matmul(z, transpose(z, 0, 1))) / double(s.n * s.key_dim);
}
struct Diagonal {
  std::vector<double> over_entry, over_row;  // of each seed: A_ii/A_ij, and Σ_j≠i A_ij/A_ii
};
Diagonal diagonal(const Sizes& s, const Run& run) {
  NoGrad guard;
  Diagonal d;
  for (int64_t i = 0; i < s.seeds; ++i) {
    Rng rng(static_cast<uint64_t>(100 * run.seed + i));
    const Tensor a = initial_map(s, rng);
    const double trace = sum(a * eye(s.n)).item(), rest = sum(a).item() - trace;
    d.over_entry.push_back(trace / (rest / double(s.n - 1)));
    d.over_row.push_back(rest / trace);
  }
  return d;
}
/// rms of the branch for each seed.
std::vector<double> outputs(const Sizes& s, const GauOptions& o, const Run& run) {
  NoGrad guard;
  std::vector<double> r;
  for (int64_t i = 0; i < s.seeds; ++i) {
    Rng rng(static_cast<uint64_t>(100 * run.seed + i));
    const Gau gau(o, rng);
    r.push_back(rms(gau(normal({1, s.n, s.dim}, 0, 1, rng))));
  }
  return r;
}

void c1(const Run&, Result& r) {
  const ActivationMoments m = activation_moments(Act::silu);
  const double limit = std::pow(m.second / (m.mean * m.mean), 2);
  r.add("μ", m.mean, "", 0.2066);
  r.add("ν²", m.second, "", 0.3557);
  r.add("ν⁴/μ⁴", limit, "", 69);
  // One unit of the last digit that is printed.
  r.verdict = all({equals({m.mean}, 0.2066, 1e-4 / 0.2066), equals({m.second}, 0.3557, 1e-4 / 0.3557),
                   equals({limit}, 69, 1.0 / 69)});
  r.why = "quadrature gives μ = " + text(m.mean) + ", ν² = " + text(m.second) + " and ν⁴/μ⁴ = " + text(limit);
}

void c2(const Run& run, Result& r) {
  Measured at_128;
  for (const int64_t key_dim : {32, 128, 512}) {
    Sizes s = sizes(run);
    if (!run.smoke) s.key_dim = key_dim;
    const Measured m = mean_of(diagonal(s, run).over_entry);
    if (key_dim == 128) at_128 = m;
    r.add("A_ii/A_ij, s = " + std::to_string(key_dim), m, "", key_dim == 128 ? std::optional(69.0) : std::nullopt);
  }
  const GauAtInit theory = gau_at_init(128, 512);
  r.verdict = equals(at_128, 69, 0.02);
  r.size = "more seeds";
  r.why = "the ratio is " + text(at_128) + " at s = 128: scores have a variance, with which the derivation gives " +
          text(theory.ratio) + "; " + text(theory.ratio_limit) + " is its limit for s → ∞";
}

void c3(const Run& run, Result& r) {
  const Measured rest = mean_of(diagonal(sizes(run), run).over_row);
  r.add("sum of a row without its diagonal entry, over the diagonal entry", rest, "", 0);
  r.verdict = below(rest, 0.1);  // close to the diagonal: the rest of a row adds less than a tenth
  r.why = "the other n − 1 entries of a row add up to " + text(rest) + " times its diagonal entry at n = 512, s = 128";
}

void c4(const Run& run, Result& r) {
  std::vector<double> lengths, su, code;
  Measured at_512;
  for (const int64_t n : {128, 512, 2048, 8192}) {
    if (n == 8192 && !run.has_time(0.25)) break;
    Sizes s = sizes(run);
    if (run.smoke) s.n = n / 32;
    else s.n = n, s.seeds = n > 2048 ? 2 : 4;
    GauOptions o = branch(s);
    const Measured scaled = mean_of(outputs(s, o, run));
    o.kind = GauKind::paper_code;
    const Measured unscaled = mean_of(outputs(s, o, run));
    if (n == 512) at_512 = scaled;
    const std::optional<double> said = n == 512 ? std::optional(0.01) : std::nullopt;
    r.add("rms of GAU(x), A = relu²/(ns), n = " + std::to_string(n), scaled, "", said);
    r.add("the same, A = relu²/n², n = " + std::to_string(n), unscaled);
    lengths.push_back(double(n)), su.push_back(scaled.value), code.push_back(unscaled.value);
  }
  const Measured slope = log_log_slope(lengths, su), slope_code = log_log_slope(lengths, code);
  r.add("exponent of n, A = relu²/(ns)", slope, "", -1);
  r.add("exponent of n, A = relu²/n²", slope_code);
  // "Of the order of 0.01" allows a factor of two; the order sν⁶/n has the exponent −1.
  r.verdict = all({equals(at_512, 0.01, 1), equals(slope, -1, 0.2)});
  r.size = "more seeds";
  r.why = "the output is " + text(at_512) + " of its input at n = 512 and falls with the exponent " + text(slope) +
          ", not −1: V has a mean, to which all keys add νμ(sμ⁴ + ν⁴ − μ⁴) = " +
          text(gau_at_init(128, 512).output_from_mean) + " at any length; with 1/n² it is " +
          text(r.figures[3].measured) + " at n = 512";
}

void c5(const Run& run, Result& r) {
  const Sizes s = sizes(run);
  const auto shrunk = [&](Act act, double from, double to) {  // the same draws with weights times either λ
    GauOptions o = branch(s);
    o.activation = act, o.init.scale = from;
    const std::vector<double> before = outputs(s, o, run);
    o.init.scale = to;
    const std::vector<double> after = outputs(s, o, run);
    std::vector<double> q;
    for (std::size_t i = 0; i < before.size(); ++i) q.push_back(after[i] / before[i]);
    return q;
  };
  const double law = std::pow(0.5, 7);
  const Measured half = mean_of(shrunk(Act::silu, 1, 0.5)), relu_half = mean_of(shrunk(Act::relu, 1, 0.5));
  r.add("rms of the output with weights halved, over that before: SiLU", half, "", law);
  r.add("the same with relu", relu_half, "", law);
  std::vector<double> exponents = shrunk(Act::silu, 0.1, 0.05);
  for (double& x : exponents) x = -std::log2(x);
  const Measured local = mean_of(exponents);
  r.add("local exponent of λ between 0.05 and 0.1: SiLU", local, "", 7);
  r.verdict = equals(half, law, 0.1);
  r.why = "halving all weights multiplies the output by " + text(half) + ", an exponent of " +
          text(std::log2(1 / half.value)) + ", not 7: SiLU is not homogeneous; with relu it is " + text(relu_half) +
          ", and with SiLU the law is the limit of small weights (exponent " + text(local) + " at λ = 0.1)";
}

void c43(const Run& run, Result& r) {
  const auto spread_of = [&](Init init) {
    std::vector<double> d;
    for (int64_t i = 0; i < 3; ++i) {
      Rng rng(static_cast<uint64_t>(100 * run.seed + i));
      d.push_back(std_dev(init_weight(768, 1536, init, rng)).item());
    }
    return mean_of(d);
  };
  NoGrad guard;
  const Measured share = ratio(spread_of(Init::paper()), spread_of(Init::lecun()));
  r.add("standard deviation 0.02 over LeCun's at d = 768", share, "", 0.5);
  const double seventh = std::pow(share.value, 7);
  r.add("its seventh power", {seventh, 7 * seventh / share.value * share.spread}, "", std::pow(0.5, 7));
  r.verdict = equals(share, 0.5, 0.15);  // "about half"
  r.why = "0.02 is " + text(share) + " of LeCun's standard deviation for d = 768";
}

}  // namespace

int main(int argc, char** argv) {
  return run_claims("claim_initial", {{"C1", c1}, {"C2", c2}, {"C3", c3}, {"C4", c4}, {"C5", c5}, {"C43", c43}}, argc,
                    argv);
}
