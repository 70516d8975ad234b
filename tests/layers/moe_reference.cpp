// Reference of the mixture of experts, token by token.
#include "layers/nn_reference.h"

#include <algorithm>

namespace sluice::testing {

namespace {

/// Expert e's rows of the maps [experts, in, out].
Matrix expert(const LayerFacts& l, const std::string& name, std::size_t e, std::size_t in) {
  const std::vector<double> all = l.values(name + ".weight");
  const std::size_t out = all.size() / l.size("experts") / in;
  Matrix m(in, std::vector<double>(out));
  for (std::size_t i = 0; i < in; ++i)
    for (std::size_t j = 0; j < out; ++j) m[i][j] = all[(e * in + i) * out + j];
  return m;
}

/// x [1][in] through the map `name` of expert e; empty if there is none.
Matrix mapped(const LayerFacts& l, const std::string& name, std::size_t e, const Matrix& x) {
  if (!l.has(name + ".weight")) return {};
  Matrix y = times(x, expert(l, name, e, x[0].size()));
  const std::vector<double> bias = l.values(name + ".bias");
  if (!bias.empty())
    for (std::size_t j = 0; j < y[0].size(); ++j) y[0][j] += bias[e * y[0].size() + j];
  return y;
}

/// The hidden layer of an expert, [1][hidden].
Matrix hidden_layer(const LayerFacts& l, Matrix up, const Matrix& gate) {
  if (l.text("activation") == "relu2") return activated(up, "relu2");
  if (l.text("activation") == "swiglu") return product(activated(gate, "silu"), up);
  if (l.text("activation") == "geglu_tanh") return product(activated(gate, "gelu_tanh"), up);
  const double limit = l.real("swiglu_limit"), alpha = l.real("swiglu_alpha");
  for (std::size_t j = 0; j < up[0].size(); ++j) {
    const double g = gate[0][j] < limit ? gate[0][j] : limit, u = std::clamp(up[0][j], -limit, limit);
    up[0][j] = l.text("activation") == "swiglu_limited" ? u * g / (1 + std::exp(-g))
                                                        : (1 + u) * g / (1 + std::exp(-alpha * g));
  }
  return up;
}

/// Which experts the groups allow, from what each expert is worth.
std::vector<bool> allowed(const LayerFacts& l, const std::vector<double>& worth) {
  const std::size_t groups = l.size("groups"), members = worth.size() / groups;
  std::vector<std::pair<double, std::size_t>> ranked;  // minus its score, group
  for (std::size_t g = 0; g < groups; ++g) {
    std::vector<double> own(worth.begin() + static_cast<std::ptrdiff_t>(g * members),
                            worth.begin() + static_cast<std::ptrdiff_t>((g + 1) * members));
    std::sort(own.rbegin(), own.rend());
    ranked.emplace_back(0, g);
    for (std::size_t i = 0; i < l.size("group_best"); ++i) ranked.back().first -= own[i];
  }
  std::sort(ranked.begin(), ranked.end());
  std::vector<bool> yes(worth.size(), false);
  for (std::size_t i = 0; i < l.size("top_groups"); ++i)
    for (std::size_t e = 0; e < members; ++e) yes[ranked[i].second * members + e] = true;
  return yes;
}

Matrix moe(const LayerFacts& l, const LayerSequence& s) {
  const std::size_t experts = l.size("experts"), k = l.size("top_k"), dim = s.x.empty() ? 0 : s.x[0].size();
  const std::vector<double> bias = l.values("router_bias");
  const auto normed = [&](const char* name, const std::vector<double>& x) {
    return l.yes("norms") ? norm_of(l, name, "rms", l.real("norm_eps"), {x})[0] : x;
  };
  const std::vector<double> factor = l.values("expert_factor");
  Matrix y;
  for (const auto& given : s.x) {
    const std::vector<double> row = normed("norm", given);
    std::vector<double> seen = normed("router_norm", given);
    for (double& v : seen) v /= l.yes("norms") ? std::sqrt(static_cast<double>(dim)) : 1;
    std::vector<double> score = dense(l, "router", {seen})[0];
    if (l.text("router") == "softmax") {
      double total = 0;
      for (double& v : score) v = std::exp(v), total += v;
      for (double& v : score) v /= total;
    } else {
      const bool root = l.text("router") == "sqrt_softplus";
      for (double& v : score) v = root ? std::sqrt(std::log1p(std::exp(v))) : 1 / (1 + std::exp(-v));
    }
    std::vector<std::size_t> best(experts);
    std::iota(best.begin(), best.end(), std::size_t{0});
    std::vector<double> worth = score;
    for (std::size_t e = 0; e < bias.size(); ++e) worth[e] += bias[e];
    const std::vector<bool> open = allowed(l, worth);
    std::stable_sort(best.begin(), best.end(),
                     [&](std::size_t a, std::size_t b) { return open[a] != open[b] ? open[a] : worth[a] > worth[b]; });
    double total = l.real("norm_topk_eps");
    for (std::size_t i = 0; i < k; ++i) total += score[best[i]];
    const bool latent = l.size("latent") > 0;
    const Matrix read = latent ? dense(l, "latent_down", {row}) : Matrix{row};
    std::vector<double> sum(read[0].size(), 0.0);
    for (std::size_t i = 0; i < k; ++i) {
      const std::size_t e = best[i];
      const double weight =
          l.real("scale") * (l.yes("norm_topk") ? score[e] / total : score[e]) * (factor.empty() ? 1 : factor[e]);
      const bool first = l.yes("weigh_input");
      Matrix taken = read;
      for (double& v : taken[0]) v *= first ? weight : 1;
      const Matrix inner = hidden_layer(l, mapped(l, "up", e, taken), mapped(l, "gate", e, taken));
      const Matrix one = mapped(l, "down", e, inner);
      for (std::size_t c = 0; c < sum.size(); ++c) sum[c] += (first ? 1 : weight) * one[0][c];
    }
    if (latent) sum = dense(l, "latent_up", {sum})[0];
    if (l.size("shared_hidden") > 0) {
      const auto weight = [&](const char* name) { return l.part(name).matrix("weight"); };
      const bool gated = l.has("shared_gate_proj.weight");
      const Matrix inner = hidden_layer(l, times({row}, weight("shared_up")),
                                        gated ? times({row}, weight("shared_gate_proj")) : Matrix());
      const Matrix one = times(inner, weight("shared_down"));
      const double by = l.yes("shared_gate") ? 1 / (1 + std::exp(-times({row}, weight("shared_gate"))[0][0])) : 1;
      for (std::size_t c = 0; c < dim; ++c) sum[c] += by * one[0][c];
    }
    y.push_back(sum);
  }
  return y;
}

const bool registered[] = {register_reference("moe", moe)};

}  // namespace

}  // namespace sluice::testing
