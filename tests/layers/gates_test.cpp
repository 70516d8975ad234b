// Textbook gates: output, query, key and value gates, and gated residuals.
#include "layers/gates_reference.h"
#include "layers/multi_head_attention_reference.h"
#include "layers/streamed.h"

#include <sluice/layers/heads/gated_attention.h>
#include <sluice/layers/nn/gated_residual.h>
#include <sluice/ops/activation.h>
#include <sluice/ops/create.h>

using namespace sluice;
using namespace sluice::testing;

namespace {

constexpr OutputGate kOutputs[] = {OutputGate::none, OutputGate::from_input, OutputGate::from_query};

GatedAttention make(GatedAttentionOptions o, Rand& rand) {
  o.heads.dtype = f64;
  Rng rng(1);
  return randomised(GatedAttention(o, rng), rand);
}

/// The loops of MultiHeadAttention, with the gates that these options mean.
Tensor reference(const GatedAttention& l, const Tensor& x, const Tensor& mask = {}) {
  const GatedAttentionOptions& o = l.options;
  std::vector<GatePosition> positions;
  if (o.output != OutputGate::none) positions.push_back(GatePosition::g1);
  if (o.gate_query) positions.push_back(GatePosition::g4);
  if (o.gate_key) positions.push_back(GatePosition::g3);
  if (o.gate_value) positions.push_back(GatePosition::g2);
  REQUIRE(l.gates.size() == positions.size());
  for (std::size_t i = 0; i < positions.size(); ++i) {
    const AttentionGateOptions& g = l.gates[i].options;
    CHECK(g.position == positions[i]);
    CHECK(g.granularity == o.granularity);
    CHECK((g.source == GateSource::query) == (i == 0 && o.output == OutputGate::from_query));
    CHECK((g.bias && g.activation == Act::sigmoid && g.mode == GateMode::multiply && g.sharing == GateSharing::none));
  }
  return mha_reference(l, x, {.key_mask = mask}).out;
}

std::vector<GatedAttentionOptions> all_options() {
  std::vector<GatedAttentionOptions> all;
  for (OutputGate output : kOutputs)
    for (int bits = 0; bits < 32; ++bits) {
      GatedAttentionOptions o{.heads = {.dim = 4, .heads = 2}};
      o.output = output, o.gate_query = bits & 1, o.gate_key = bits & 2, o.gate_value = bits & 4;
      o.granularity = bits & 8 ? GateGranularity::headwise : GateGranularity::elementwise;
      o.heads.causal = bits & 16;
      // The other options in turn.
      o.heads.use_rope = bits % 3 == 1, o.heads.project_out = bits % 5 != 2,
          o.heads.qkv_bias = o.heads.out_bias = bits % 4 == 1;
      all.push_back(o);
    }
  return all;
}
std::string describe(const GatedAttentionOptions& o) {
  return str("output ", static_cast<int>(o.output), " q ", o.gate_query, " k ", o.gate_key, " v ", o.gate_value,
             " headwise ", static_cast<int>(o.granularity), " causal ", o.heads.causal, " rope ", o.heads.use_rope);
}

}  // namespace

TEST_CASE("gated attention: every combination of gates equals loops", "[gates]") {
  for (const GatedAttentionOptions& o : all_options()) {
    Rand rand(11);
    const GatedAttention l = make(o, rand);
    const Tensor x = random_tensor({2, 5, 4}, f64, rand), mask = prefix_mask(5, 3, 5);
    INFO(describe(o));
    CHECK(max_abs_diff(l(x), reference(l, x)) < 1e-12);
    CHECK(max_abs_diff(real_rows(l(x, {.key_mask = mask}), mask), real_rows(reference(l, x, mask), mask)) < 1e-12);
  }
}

TEST_CASE("gated attention: initial gates, sizes", "[gates]") {
  Rng rng(1);
  GatedAttentionOptions o{.heads = {.dim = 6, .heads = 2}, .gate_query = true, .gate_bias = 2.5};
  const GatedAttention l(o, rng);
  CHECK(max_abs_diff(l.gates[0].map.bias, full({6}, 2.5)) == 0);
  CHECK(max_abs_diff(l.gates[1].map.bias, full({6}, 2.5)) == 0);
  CHECK(l.gates.size() == 2);
  GatedAttentionOptions all = o;
  all.gate_key = all.gate_value = true;
  const GatedAttention four(all, rng);
  const auto state = state_dict(four);
  for (const auto& [name, position] : {std::pair{"output", GatePosition::g1}, {"query", GatePosition::g4},
                                       {"key", GatePosition::g3}, {"value", GatePosition::g2}})
    for (const AttentionGate& gate : four.gates) {
      const auto named = std::ranges::find(state, str(name, "_gate.map.weight"), &NamedTensor::name);
      REQUIRE(named != state.end());
      CHECK(named->tensor.shares_storage(gate.map.weight) == (gate.options.position == position));
    }
  CHECK(count(l) == 4 * 36 + 2 * (36 + 6));
  CHECK(max_abs(GatedAttention({.heads = {.dim = 6}}, rng).gates[0].map.bias) == 0);
  CHECK(count(GatedAttention({.heads = {.dim = 6, .heads = 2, .head_dim = 4}, .output = OutputGate::from_query},
                             rng)) ==
        4 * 6 * 8 + 8 * 8 + 8);
}

TEST_CASE("gated attention: what is refused, and by which words", "[gates]") {
  Rng rng(1);
  CHECK_THROWS_AS(GatedAttention({.heads = {.dim = 0}}, rng), ValueError);
  CHECK_THROWS_WITH(GatedAttention({.heads = {.dim = 5, .heads = 2}}, rng), Contains("heads=2") && Contains("dim=5"));
  const GatedAttention l({.heads = {.dim = 4, .heads = 2}}, rng);
  CHECK_THROWS_WITH(stream_of(l, ones({1, 1, 4})), Contains("causal"));
  CHECK_THROWS_AS(l(ones({3, 4})), ShapeError);
  CHECK_THROWS_WITH(l(ones({2, 3, 5})), Contains("[2,3,5]") && Contains("gated_attention"));
  CHECK_THROWS_WITH(l(ones({2, 3, 4}), {.key_mask = ones({2, 4}) > 0.0}), Contains("[2,4]") && Contains("[2,3,4]"));
}

TEST_CASE("gated residual: every kind equals its formula", "[gates]") {
  for (ResidualGate kind :
       {ResidualGate::scalar, ResidualGate::per_channel, ResidualGate::input, ResidualGate::input_token}) {
    Rng rng(1);
    Rand rand(static_cast<uint64_t>(kind) + 1);
    GatedResidualOptions o{.dim = 3, .kind = kind, .dtype = f64};
    const GatedResidual r = randomised(GatedResidual(o, rng), rand);
    const Tensor x = random_tensor({2, 4, 3}, f64, rand), f = random_tensor({2, 4, 3}, f64, rand);
    const Tensor want = each_sequence(cat({x, f}, -1), {}, [&](const Matrix& xf, const std::vector<bool>&) {
      Matrix y = columns(xf, 0, 3);
      const Matrix logits = r.map.weight.defined() ? linear_reference(r.map, y) : Matrix{};
      const std::vector<double> w = r.weight.defined() ? r.weight.to_vector<double>() : std::vector<double>{};
      for (std::size_t i = 0; i < y.size(); ++i)
        for (std::size_t c = 0; c < 3; ++c)
          y[i][c] += (w.empty() ? logistic(logits[i][c % logits[i].size()]) : w[c % w.size()]) * xf[i][3 + c];
      return y;
    });
    CHECK(max_abs_diff(r(x, f), want) < 1e-13);
    CHECK(max_abs_diff(x + r.gate(x) * f, want) < 1e-13);
    CHECK(same_bits(r(x, [](const Tensor& h) { return silu(h); }), r(x, silu(x))));
    CHECK_THROWS_WITH(r(x, narrow(f, 1, 0, 2)), Contains("[2,4,3]") && Contains("[2,2,3]"));
    // What a formula of elements would broadcast is refused, too.
    CHECK_THROWS_WITH(r(x, narrow(f, 1, 0, 1)), Contains("gated_residual") && Contains("[2,1,3]"));
    const Tensor thin = narrow(x, 2, 0, 1);
    CHECK_THROWS_WITH(r(thin, thin), Contains("gated_residual") && Contains("[2,4,1]"));
  }
  Rng rng(1);
  CHECK(count(GatedResidual({.dim = 5}, rng)) == 1);
  CHECK(GatedResidual({.dim = 5, .initial = 0}, rng).weight.item() == 0);
  CHECK(count(GatedResidual({.dim = 5, .kind = ResidualGate::per_channel}, rng)) == 5);
  CHECK(count(GatedResidual({.dim = 5, .kind = ResidualGate::input}, rng)) == 30);
  CHECK(count(GatedResidual({.dim = 5, .kind = ResidualGate::input_token}, rng)) == 6);
  CHECK(GatedResidual({.dim = 5, .kind = ResidualGate::input_token, .bias = 2}, rng).map.bias.item() == 2);
  CHECK_THROWS_WITH(GatedResidual({.dim = 0}, rng), Contains("gated_residual") && Contains("0"));
}
