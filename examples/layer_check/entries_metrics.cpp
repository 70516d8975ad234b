// Metrics: numbers without gradients.
#include "registry.h"

#include <sluice/layers/report/metrics.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/shape/view.h>

namespace layer_check {

using namespace sluice;

namespace {

struct ShareOptions {
  bool include_row_0 = false;
  static void describe(auto& o, auto& f) { f("include_row_0", o.include_row_0, "a causal row 0 always gives 1"); }
};
struct RankOptions {
  double tolerance = -1;
  static void describe(auto& o, auto& f) {
    f("tolerance", o.tolerance, any_number(), "negative: max(rows, cols) times the epsilon of the dtype");
  }
};

Tensor number(double x) { return full({}, x, {f64}); }

/// Index 0 … of the first dim, one tensor a layer.
std::vector<Tensor> by_layer(const Tensor& x) {
  std::vector<Tensor> all;
  for (int64_t i = 0; i < x.dim(0); ++i) all.push_back(select(x.detach(), 0, i));
  return all;
}

}  // namespace

void add_metrics(std::vector<Layer>& all) {
  add(all, "first_token_share", "metrics", "F-Attn: mean over layers, heads and rows of the weight of key 0",
      "Qiu et al. 2025")
      .input("maps [layers, batch, heads, m, n]", "after softmax")
      .output("[]")
      .samples({{{"include_row_0", true}}})
      .runs<ShareOptions>([](const ShareOptions& o, const Inputs& in) {
        return number(first_token_share(by_layer(in["maps"]), o.include_row_0));
      });
  add(all, "attention_entropy", "metrics", "mean over rows of -sum p ln p")
      .input("maps [layers, batch, heads, m, n]", "after softmax")
      .output("[]")
      .runs([](const Inputs& in) { return number(attention_entropy(in["maps"].detach())); });
  add(all, "max_activation", "metrics", "M-Act: mean over layers of max |hidden state|", "Qiu et al. 2025")
      .input("hidden [layers, batch, n, d]")
      .output("[]")
      .runs([](const Inputs& in) { return number(max_activation(by_layer(in["hidden"]))); });
  add(all, "gate_statistics", "metrics", "mean, min, max, shares with |s| < 1/2, 1e-2, 1e-3", "Qiu et al. 2025")
      .input("scores [...]")
      .output("[6]", "in that order")
      .runs([](const Inputs& in) {
        const GateStatistics s = gate_statistics(in["scores"].detach());
        return Tensor::from(std::vector<double>{s.mean, s.min, s.max, s.below_half, s.below_1e2, s.below_1e3});
      });
  add(all, "singular_values", "metrics", "largest first", "LAPACK")
      .input("matrix [rows, cols]")
      .output("[min(rows, cols)]")
      .runs([](const Inputs& in) { return Tensor::from(singular_values(in["matrix"].detach())); });
  add(all, "effective_rank", "metrics",
      "e^H of the normalised singular values; output.rank: those above tolerance times the largest",
      "Roy & Vetterli 2007")
      .input("matrix [rows, cols]")
      .output("[]")
      .output("rank []", "i64")
      .runs<RankOptions>([](const RankOptions& o, const Inputs& in) -> Results {
        const Tensor m = in["matrix"].detach();
        return {{"", number(effective_rank(m))},
                {"rank", full({}, static_cast<double>(matrix_rank(m, o.tolerance)), {i64})}};
      });
}

}  // namespace layer_check
