// The delta rule and its layers against other packages, in f64 (numbers only): outputs, states, and the gradients of
// Σ ⟨cotangent, output⟩. A file of tests/golden/next says in its metadata what it is.
#include "golden/next.h"
#include "support/approx.h"
#include "support/catch.h"

#include <sluice/autograd/engine.h>
#include <sluice/layers/table.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/index/gather.h>
#include <sluice/ops/rows/reduce.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/shape/view.h>

#include <cmath>

using namespace sluice;
using namespace sluice::testing;

namespace {

/// Output and state of a layer with decays, from its parts; the layer's own output is the same.
template <class M> struct Opened : M {
  explicit Opened(M m) : M(std::move(m)) {}
  std::map<std::string, Tensor> results(const char* name, const Tensor& x, const Tensor& gate, Act activation,
                                        const Tensor& mask) const {
    const Pass pass{.key_mask = mask};
    const DeltaOptions& h = this->options.heads;
    Call call(static_cast<const M&>(*this), name, x, this->options.heads.dim, pass);
    const DeltaMixer::Rows rows = this->unit_rows(h, call);
    Tensor beta = squeeze(this->strength(h, call), -1), g = this->log_decay(call.x);
    if (mask.defined()) {
      const Tensor padding = unsqueeze(logical_not(mask), -1);
      beta = masked_fill(beta, padding, 0), g = masked_fill(g, padding, 0);
    }
    const auto heads = [](const Tensor& t) { return transpose(t, 1, 2); };
    const DeltaScanResult y =
        delta_rule(heads(rows.q), heads(rows.k), heads(rows.v), heads(beta), heads(g), {}, {.chunk = h.chunk});
    const Tensor out = this->finish(h, call, y.out, gate, activation);
    CHECK(max_abs_diff(out, static_cast<const M&>(*this)(x, {.key_mask = mask})) <= 1e-12);
    return {{"", out}, {"state", y.state}};
  }
};

}  // namespace

TEST_CASE("golden: the delta rule", "[golden][delta_scan]") {
  for (const char* name : {"delta_rule_plain", "delta_rule_head_decay", "delta_rule_channel_decay"}) {
    INFO(name);
    const Golden g(name);
    const Tensor k = g.input("k");
    const DeltaScanResult y = delta_rule(g.input("q") * (1 / std::sqrt(static_cast<double>(k.dim(3)))), k, g.input("v"),
                                         g.input("beta"), g.input("log_decay"), g.input("initial"), {.chunk = 4});
    g.check({{"", y.out}, {"state", y.state}});
  }
  const Golden g("delta_rule_erase_write");
  const Tensor k = g.input("k"), v = g.input("v");
  const int64_t group = v.dim(1) / k.dim(1);
  const DeltaScanResult y =
      delta_scan(g.input("q"), k, g.input("erase") * (group > 1 ? repeat_interleave(k, group, 1) : k),
                 g.input("write") * v, g.input("log_decay"), g.input("initial"), {.chunk = 4});
  g.check({{"", y.out}, {"state", y.state}});
}

TEST_CASE("golden: Gated DeltaNet, Kimi Delta Attention, and their states", "[golden][layers]") {
  for (const char* name : {"gated_delta_net", "gated_delta_net_padded"}) {
    INFO(name);
    const Golden g(name);
    const Opened<GatedDeltaNet> layer(loaded<GatedDeltaNet, GatedDeltaNetOptions>(g));
    const Tensor x = g.input("x");
    const auto y = layer.results("gated_delta_net", x, layer.output_gate(x), Act::silu, g.input("key_mask"));
    g.check(y, state_dict(static_cast<const GatedDeltaNet&>(layer)));
  }
  for (const char* name : {"kda", "kda_lower_bound"}) {
    INFO(name);
    const Golden g(name);
    const Opened<Kda> layer(loaded<Kda, KdaOptions>(g));
    const Tensor x = g.input("x");
    const auto y = layer.results("kda", x, layer.gate_logits(x), Act::sigmoid, g.input("key_mask"));
    g.check(y, state_dict(static_cast<const Kda&>(layer)));
  }
}
