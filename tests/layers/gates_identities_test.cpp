// Identities of gates: what a gate of 0, ½ or 1 leaves of a layer.
#include "layers/gau_reference.h"
#include "support/catch.h"
#include "support/identities.h"

#include <sluice/autograd/engine.h>
#include <sluice/layers/attention/fused_attention.h>
#include <sluice/layers/attention/gated_attention.h>
#include <sluice/layers/nn/gated_residual.h>
#include <sluice/ops/elementwise/activation.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/matmul/matmul.h>
#include <sluice/ops/rows/reduce.h>
#include <sluice/ops/scan/linear_scan.h>

using namespace sluice;
using namespace sluice::testing;

namespace {

constexpr double kOpen = 40;  // σ(40) is 1 in f64, σ(−40) = 4e-18

GatedAttentionOptions options(bool causal, GateGranularity granularity, OutputGate output) {
  GatedAttentionOptions o{.heads = {.dim = 6, .heads = 2, .head_dim = 4, .causal = causal}, .output = output};
  o.granularity = granularity;
  o.heads.use_rope = granularity == GateGranularity::headwise;
  o.heads.dtype = f64;
  return o;
}

/// The gate's W becomes 0 and its b the given value.
void set_gate(AttentionGate& gate, double bias) {
  NoGrad guard;
  fill_(gate.map.weight, 0), fill_(gate.map.bias, bias);
}

/// The same layer without gates.
GatedAttention ungated(const GatedAttention& l) {
  GatedAttention u = l;
  u.gates.clear();
  return u;
}

void each_layer(const std::function<void(const GatedAttentionOptions&)>& f) {
  for (bool causal : {false, true})
    for (GateGranularity granularity : {GateGranularity::elementwise, GateGranularity::headwise})
      for (OutputGate output : {OutputGate::from_input, OutputGate::from_query})
        f(options(causal, granularity, output));
}

/// Σ_h Attn_h·Wo_h by ops, with the weights of the layer: the ungated layer written again.
Tensor attention_by_ops(const GatedAttention& l, const Tensor& x) {
  const GatedAttentionOptions& o = l.options;
  auto heads = [&](const Linear& f) {
    Tensor y = transpose(unflatten(f(x), -1, {o.heads.heads, o.heads.head_dim}), 1, 2);
    return o.heads.use_rope && &f != &l.heads.v ? rope(y, o.heads.rope) : y;
  };
  AttentionOptions a;
  a.mask.causal = o.heads.causal;
  return l.heads.out(
      flatten(transpose(attention(heads(l.heads.q), heads(l.heads.k), heads(l.heads.v), a), 1, 2), 2, 3));
}

}  // namespace

TEST_CASE("gates: an output gate of 1 and of 1/2", "[gates][identity]") {
  each_layer([](const GatedAttentionOptions& o) {
    Rng rng(1);
    Rand rand(2);
    GatedAttention l = randomised(GatedAttention(o, rng), rand);
    const Tensor x = random_tensor({2, 7, 6}, f64, rand), plain = attention_by_ops(l, x);
    check_identity("gates: output gate 1 is the ungated layer", ungated(l)(x), plain, 1e-13);
    CHECK(max_abs_diff(l(x), plain) > 1e-2);
    set_gate(l.gates[0], kOpen);
    check_identity("gates: output gate 1 is the ungated layer", l(x), plain, 1e-13);
    set_gate(l.gates[0], 0);
    check_identity("gates: output gate 1/2 is half the ungated layer", l(x), plain * 0.5, 1e-13);
  });
}

TEST_CASE("gates: doubling W_V undoes a gate of 1/2: the ungated layer is among the gated ones", "[gates][identity]") {
  each_layer([](const GatedAttentionOptions& o) {
    Rng rng(1);
    Rand rand(3);
    GatedAttention l = randomised(GatedAttention(o, rng), rand);
    const Tensor x = random_tensor({2, 7, 6}, f64, rand), plain = ungated(l)(x);
    set_gate(l.gates[0], 0);
    l.heads.v.weight = l.heads.v.weight * 2.0;
    check_identity("gates: doubled W_V with g = 1/2 is the ungated layer", l(x), plain, 0);  // powers of two: exactly
  });
}

TEST_CASE("gates: gates of 1 on queries, keys and values", "[gates][identity]") {
  for (int bits = 1; bits < 8; ++bits)
    for (bool causal : {false, true})
      for (GateGranularity granularity : {GateGranularity::elementwise, GateGranularity::headwise}) {
        GatedAttentionOptions o = options(causal, granularity, OutputGate::none);
        o.gate_query = bits & 1, o.gate_key = bits & 2, o.gate_value = bits & 4;
        Rng rng(1);
        Rand rand(4);
        GatedAttention l = randomised(GatedAttention(o, rng), rand);
        const Tensor x = random_tensor({2, 7, 6}, f64, rand), plain = attention_by_ops(l, x);
        CHECK(max_abs_diff(l(x), plain) > 1e-3);
        for (AttentionGate& gate : l.gates) set_gate(gate, kOpen);
        check_identity("gates: Q/K/V gates 1 are the ungated layer", l(x), plain, 1e-13);
      }
}

TEST_CASE("gates: residual gates of 0 and 1", "[gates][identity]") {
  Rng rng(1);
  Rand rand(5);
  const GatedAttentionOptions plain = options(true, GateGranularity::elementwise, OutputGate::none);
  const GatedAttention l = randomised(GatedAttention(plain, rng), rand);
  const Tensor x = random_tensor({2, 7, 6}, f64, rand);
  const auto attention_of = [&](const Tensor& h) { return l(h); };
  for (ResidualGate kind :
       {ResidualGate::scalar, ResidualGate::per_channel, ResidualGate::input, ResidualGate::input_token})
    for (bool open : {false, true}) {
      GatedResidualOptions o{.dim = 6, .kind = kind, .initial = open ? 1.0 : 0.0, .bias = open ? kOpen : -kOpen};
      o.init = {InitKind::zeros}, o.dtype = f64;
      const GatedResidual r(o, rng);
      const Tensor y = r(x, attention_of);
      if (open) check_identity("gates: residual gate 1 is x + Attn(x)", y, x + attention_by_ops(l, x), 1e-13);
      else check_identity("gates: residual gate 0 is x", y, x, 1e-15);
    }
}

TEST_CASE("gates: fused attention with a gate of 1 and of 0", "[gates][identity]") {
  for (bool causal : {false, true})
    for (FusedGate gate : {FusedGate::per_channel, FusedGate::per_head, FusedGate::per_token}) {
      FusedAttentionOptions o{
          .heads = {.dim = 6, .heads = 2, .causal = causal, .dtype = f64}, .gate = gate, .chunk = 3};
      Rng rng(1);
      Rand rand(6);
      FusedAttention l = randomised(FusedAttention(o, rng), rand);
      const Tensor x = random_tensor({2, 7, 6}, f64, rand);
      auto heads = [&](const Linear& f) { return transpose(unflatten(f(x), -1, {2, 3}), 1, 2); };
      auto merged = [&](const Tensor& y) { return l.heads.out(flatten(transpose(y, 1, 2), 2, 3)); };
      const Tensor q = heads(l.heads.q), k = heads(l.heads.k), v = heads(l.heads.v);
      AttentionOptions a;
      a.mask.causal = causal;
      const Tensor softmax = merged(attention(q, k, v, a));
      // Σ_j w_ij v_j / (Σ_j w_ij + eps) with all weights at once.
      const Tensor w = matmul(elu1(q), transpose(elu1(k), -2, -1)), seen = causal ? tril(w) : w;
      const Tensor linear = merged(matmul(seen, v) / (sum(seen, {-1}, keep) + o.eps));
      NoGrad guard;
      fill_(l.gate.weight, 0), fill_(l.gate.bias, kOpen);
      check_identity("gates: fused 1 is softmax attention", l(x), softmax, 1e-13);
      fill_(l.gate.bias, -kOpen);
      check_identity("gates: fused 0 is linear attention", l(x), linear, 1e-13);
      fill_(l.gate.bias, 0);
      CHECK(max_abs_diff(l(x), (softmax + linear) * 0.5) < 1e-13);
    }
}

TEST_CASE("gates: the gradient of a gate is the output's times the attention", "[gates][identity]") {
  // dL/dg = dL/dy ⊙ Attn(x), for g as a tensor of its own and through σ(x·W + b): dL/db = Σ dL/dg ⊙ g(1 − g).
  Rand rand(7);
  const Tensor x = random_tensor({2, 7, 6}, f64, rand), cotangent = random_tensor({2, 7, 8}, f64, rand);
  Rng rng(1);
  GatedAttentionOptions o = options(true, GateGranularity::elementwise, OutputGate::from_input);
  o.heads.project_out = false;
  const GatedAttention l = randomised(GatedAttention(o, rng), rand);
  const Tensor attended = ungated(l)(x).detach();
  Tensor g = random_tensor({2, 7, 8}, f64, rand, 0, 1).requires_grad_();
  const Tensor dg = grad(g * attended, g, {.grad_outputs = {cotangent}});
  check_identity("gates: dL/dg = dL/dy * Attn(x)", dg, cotangent * attended, 1e-15);

  const Tensor score = flatten(transpose(l.gates[0].scores(x), 1, 2), 2, 3).detach();
  const Tensor db = grad(l(x), l.gates[0].map.bias, {.grad_outputs = {cotangent}});
  const Tensor along = cotangent * attended * score * (1.0 - score);
  check_identity("gates: dL/dg = dL/dy * Attn(x)", db, sum(along, {0, 1}), 1e-13);
  const Tensor dw = grad(l(x), l.gates[0].map.weight, {.grad_outputs = {cotangent}});
  const Tensor dlogit = flatten(along, 0, 1);
  check_identity("gates: dL/dg = dL/dy * Attn(x)", dw, matmul(transpose(flatten(x, 0, 1), 0, 1), dlogit), 1e-13);
}
