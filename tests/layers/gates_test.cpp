// Textbook gates and gated residuals: initial values, sizes, errors. heads_reference.cpp says what they compute.
#include "layers/gau_reference.h"
#include "layers/streamed.h"

#include <sluice/layers/attention/gated_attention.h>
#include <sluice/layers/nn/gated_residual.h>
#include <sluice/layers/nn/hyper_connection.h>
#include <sluice/ops/elementwise/activation.h>
#include <sluice/ops/rows/reduce.h>
#include <sluice/ops/shape/create.h>

using namespace sluice;
using namespace sluice::testing;

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
  for (const auto& [name, position] : {std::pair{"output", GatePosition::g1},
                                       {"query", GatePosition::g4},
                                       {"key", GatePosition::g3},
                                       {"value", GatePosition::g2}})
    for (const AttentionGate& gate : four.gates) {
      const auto named = std::ranges::find(state, str(name, "_gate.map.weight"), &NamedTensor::name);
      REQUIRE(named != state.end());
      CHECK(named->tensor.shares_storage(gate.map.weight) == (gate.options.position == position));
    }
  CHECK(count(l) == 4 * 36 + 2 * (36 + 6));
  CHECK(max_abs(GatedAttention({.heads = {.dim = 6}}, rng).gates[0].map.bias) == 0);
  CHECK(count(GatedAttention({.heads = {.dim = 6, .heads = 2, .head_dim = 4}, .output = OutputGate::from_query},
                             rng)) == 4 * 6 * 8 + 8 * 8 + 8);
}

TEST_CASE("gated attention: what is refused, and by which words", "[gates]") {
  Rng rng(1);
  CHECK_THROWS_WITH(GatedAttention({.heads = {.dim = 5, .heads = 2}}, rng), Contains("heads=2") && Contains("dim=5"));
  const GatedAttention l({.heads = {.dim = 4, .heads = 2}}, rng);
  CHECK_THROWS_WITH(stream_of(l, ones({1, 1, 4})), Contains("causal"));
}

TEST_CASE("gated residual: its gate, sizes, what is refused", "[gates]") {
  for (ResidualGate kind :
       {ResidualGate::scalar, ResidualGate::per_channel, ResidualGate::input, ResidualGate::input_token}) {
    Rng rng(1);
    Rand rand(static_cast<uint64_t>(kind) + 1);
    GatedResidualOptions o{.dim = 3, .kind = kind, .dtype = f64};
    const GatedResidual r = randomised(GatedResidual(o, rng), rand);
    const Tensor x = random_tensor({2, 4, 3}, f64, rand), f = random_tensor({2, 4, 3}, f64, rand);
    CHECK(max_abs_diff(x + r.gate(x) * f, r(x, f)) < 1e-13);
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

TEST_CASE("hyper-connections: rows and columns sum to 1, equal streams are a residual, what is refused", "[gates]") {
  Rng rng(1);
  Rand rand(2);
  for (const int64_t s : {1, 2, 5}) {
    HyperConnection c({.dim = 3, .streams = s, .iterations = 60, .eps = 1e-9, .dtype = f64}, rng);
    const Tensor x = random_tensor({2, 4, 3}, f64, rand), equal = repeat(x, s, -1);
    // As it begins the streams are x + F(x), but for `scale`, which is small. Of one stream σ(8) is read.
    {
      NoGrad guard;
      fill_(c.scale, 0);
    }
    const auto branch = [](const Tensor& t) { return silu(t); };
    CHECK(max_abs_diff(c(equal, branch), repeat(x + silu(s == 1 ? x / (1 + std::exp(-8)) : x), s, -1)) < 1e-7);
    Rand others(3);
    const Tensor apart = random_tensor({2, 4, 3 * s}, f64, others);  // they hardly mix: e^{−8} = 3e-4
    CHECK(max_abs_diff(c.read(apart).kept, unflatten(apart, -1, {s, 3})) < 5e-3);
    c = randomised(c, rand);
    const Tensor h = random_tensor({2, 4, 3 * s}, f64, rand), other = random_tensor({2, 4, 3 * s}, f64, rand);
    // With columns that sum to 1 the streams' sum is kept; with rows that do, equal streams stay equal.
    const HyperConnection::Reading r = c.read(h);
    CHECK(max_abs_diff(sum(r.kept, {-2}), sum(unflatten(h, -1, {s, 3}), {-2})) < 1e-6);
    CHECK(max_abs_diff(c.read(equal).kept, unflatten(equal, -1, {s, 3})) < 1e-6);
    CHECK(same_bits(c(h, branch), c.write(r, silu(r.x))));
    CHECK_THROWS_WITH(c(narrow(h, 2, 0, 2), branch), Contains("hyper_connection") && Contains(str("= ", 3 * s)));
    CHECK_THROWS_WITH(c.write(r, narrow(r.x, 1, 0, 1)), Contains("[2,1,3]") && Contains("[2,4,3]"));
    HyperConnection reads = c;  // the end of a model
    reads.read_only();
    CHECK(max_abs_diff(reads.read(h).x, r.x) <= 1e-14);
    CHECK(count(reads) == 3 * s * s + s + 1);
    CHECK_THROWS_WITH(reads.write(reads.read(h), r.x), Contains("read_only"));
  }
  CHECK_THROWS_WITH(HyperConnection({.dim = int64_t{1} << 62, .streams = 4}, rng), Contains("hyper_connection"));
  // Of bf16 the weights of the mixture are computed in f32.
  const HyperConnection half({.dim = 8, .dtype = bf16}, rng);
  const Tensor h = to(random_tensor({1, 3, 32}, f64, rand), bf16);
  const HyperConnection::Reading r = half.read(h);
  CHECK(r.kept.dtype() == bf16);
  CHECK(r.x.dtype() == bf16);
  // Weights that stay f32 beside h of bf16 give what they give for h in f32, rounded once.
  for (const HyperKind kind : {HyperKind::doubly_stochastic, HyperKind::gated}) {
    HyperConnection c = randomised(HyperConnection({.dim = 8, .kind = kind, .dtype = f64}, rng), rand);
    to(c, f32);
    const HyperConnection::Reading got = c.read(h), want = c.read(to(h, f32));
    CHECK(same_bits(got.post, to(want.post, bf16)));
    if (kind == HyperKind::gated) CHECK(same_bits(got.x, to(want.x, bf16)));
    else CHECK(max_abs_diff(to(got.x, f32), want.x) <= 0x1p-7 * max_abs(want.x));
    const Tensor y = c(h, [](const Tensor& t) { return t; });
    CHECK(y.dtype() == bf16);
    for (const Tensor& g : grad({sum(to(y, f32))}, {c.map.weight})) CHECK(g.dtype() == f32);
  }
}
