// Metrics: numbers without gradients.
#include "registry.h"

#include <sluice/layers/report/metrics.h>
#include <sluice/ops/create.h>
#include <sluice/ops/view.h>

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
  const std::vector<InputInfo> maps{{.name = "maps", .shape = "[layers, batch, heads, m, n]", .meaning =
                                     "after softmax",
                                     .sample = Sample::unit}};
  const std::vector<InputInfo> matrix{{.name = "matrix", .shape = "[rows, cols]"}};
  all.push_back({
      .name = "first_token_share",
      .family = "metrics",
      .formula = "F-Attn: mean over layers, heads and rows of the weight of key 0",
      .source = "Qiu et al. 2025",
      .inputs = maps,
      .outputs = {{"", "[]"}},
      .examples = {{{"include_row_0", true}}},
      .sizes = {{"layers", 2}},
      .draft = function_layer<ShareOptions>(
          [](const ShareOptions& o, const Inputs& in) {
            return number(first_token_share(by_layer(in["maps"]), o.include_row_0));
          }),
  });
  all.push_back({
      .name = "attention_entropy",
      .family = "metrics",
      .formula = "mean over rows of -sum p ln p",
      .source = "",
      .inputs = maps,
      .outputs = {{"", "[]"}},
      .sizes = {{"layers", 2}},
      .draft = plain_function([](const Inputs& in) { return number(attention_entropy(in["maps"].detach())); }),
  });
  all.push_back({
      .name = "max_activation",
      .family = "metrics",
      .formula = "M-Act: mean over layers of max |hidden state|",
      .source = "Qiu et al. 2025",
      .inputs = {{.name = "hidden", .shape = "[layers, batch, n, d]"}},
      .outputs = {{"", "[]"}},
      .sizes = {{"layers", 2}},
      .draft = plain_function([](const Inputs& in) { return number(max_activation(by_layer(in["hidden"]))); }),
  });
  all.push_back({
      .name = "gate_statistics",
      .family = "metrics",
      .formula = "mean, min, max, shares with |s| < 1/2, 1e-2, 1e-3",
      .source = "Qiu et al. 2025",
      .inputs = {{.name = "scores", .shape = "[...]", .sample = Sample::unit}},
      .outputs = {{"", "[6]", "in that order"}},
      .draft = plain_function([](const Inputs& in) {
        const GateStatistics s = gate_statistics(in["scores"].detach());
        return Tensor::from(std::vector<double>{s.mean, s.min, s.max, s.below_half, s.below_1e2, s.below_1e3});
      }),
  });
  all.push_back({
      .name = "singular_values",
      .family = "metrics",
      .formula = "largest first",
      .source = "LAPACK",
      .inputs = matrix,
      .outputs = {{"", "[min(rows, cols)]"}},
      .draft = plain_function([](const Inputs& in) { return Tensor::from(singular_values(in["matrix"].detach())); }),
  });
  all.push_back({
      .name = "effective_rank",
      .family = "metrics",
      .formula = "e^H of the normalised singular values; output.rank: those above tolerance times the largest",
      .source = "Roy & Vetterli 2007",
      .inputs = matrix,
      .outputs = {{"", "[]"}, {"rank", "[]", "i64"}},
      .draft = function_layer<RankOptions>(
          [](const RankOptions& o, const Inputs& in) -> Results {
            const Tensor m = in["matrix"].detach();
            return {{"", number(effective_rank(m))},
                    {"rank", full({}, static_cast<double>(matrix_rank(m, o.tolerance)), {i64})}};
          }),
  });
}

}  // namespace layer_check
