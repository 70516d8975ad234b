// The arms that claim_sinks.cpp compares on the Bigram-Backcopy task, and one training of an arm.
//
// All arms of a seed have the same weights apart from their gate, and see the same batches. One layer, its GLU before
// its attention: nothing but the head reads the attention, so that nothing can take out what it adds at tokens that
// need nothing.
#pragma once

#include "claims/bigram_backcopy.h"
#include "claims/small_lm.h"
#include "claims/training.h"

#include <algorithm>
#include <cmath>
#include <functional>

namespace sluice::examples {

/// Chosen, with RoPE on an eighth of the channels, so that the baseline grows a sink; about ten other settings did not.
/// The number of steps was raised after 500 had left G1's share as large as the baseline's.
struct SinkSizes {
  int64_t dim = 64, hidden = 32, n = 16, batch = 32, steps = 1500, probes = 128;
};

/// What an arm changes in the attention of the baseline, which has one head.
struct SinkArm {
  const char* name;
  std::function<void(MultiHeadAttentionOptions&)> change;
};
inline std::function<void(MultiHeadAttentionOptions&)> gated(AttentionGateOptions gate) {
  return [gate](MultiHeadAttentionOptions& o) { o.gates = {gate}; };
}
/// Scores that heads share differ from others where there are several heads.
inline std::function<void(MultiHeadAttentionOptions&)> two_heads(AttentionGateOptions gate) {
  return [gate](MultiHeadAttentionOptions& o) { o.heads.heads = 2, o.gates = {gate}; };
}
inline const std::vector<SinkArm>& sink_arms() {
  using G = AttentionGateOptions;
  static const std::vector<SinkArm> all{
      {"no gate", [](MultiHeadAttentionOptions&) {}},
      {"G1", gated(G{})},
      {"G2", gated(G{.position = GatePosition::g2})},
      {"G3", gated(G{.position = GatePosition::g3})},
      {"G4", gated(G{.position = GatePosition::g4})},
      {"G5", gated(G{.position = GatePosition::g5})},
      {"headwise", gated(G{.granularity = GateGranularity::headwise})},
      {"additive", gated(G{.mode = GateMode::add, .activation = Act::silu})},
      {"SiLU", gated(G{.activation = Act::silu})},
      {"input-independent", gated(G{.input_independent = true})},
      {"never sparse", gated(G{.activation = Act::ns_sigmoid})},
      {"two heads", [](MultiHeadAttentionOptions& o) { o.heads.heads = 2; }},
      {"two heads, G1", two_heads(G{})},
      {"two heads, shared", two_heads(G{.sharing = GateSharing::scores})},
      {"sink logit", [](MultiHeadAttentionOptions& o) { o.sink = AttentionSink::off_by_one; }},
  };
  return all;
}
inline constexpr const char* kRelu2 = "relu²";  // its weights need no sink: they do not sum to 1
inline constexpr const char* kLate = "G1 added late";
inline constexpr const char* kTwice = "no gate, twice";  // its control: the baseline, trained as long

inline SmallLm make_sink_model(const std::string& arm, const BigramBackcopy& task, const SinkSizes& s, int64_t seed) {
  Rng rng(static_cast<uint64_t>(seed)), gate_rng(static_cast<uint64_t>(seed) + 500);
  const SmallLmOptions o{.vocabulary = task.vocabulary(),
                         .dim = s.dim,
                         .layers = 1,
                         .hidden = s.hidden,
                         .feed_first = true,
                         .embedding_std = 0.3};
  // RoPE on an eighth of the channels: the others match by content at any distance, as a sink needs.
  const HeadsOptions heads{.dim = s.dim, .heads = 1, .causal = true, .use_rope = true, .rope = {.rot_dim = s.dim / 8}};
  return SmallLm(
      o,
      [&](int64_t) -> SmallLm::Attention {
        if (arm == kRelu2) return Relu2Attention(heads, o.norm, rng);
        MultiHeadAttentionOptions plain{.heads = heads, .norm = o.norm}, changed = plain;
        for (const SinkArm& a : sink_arms())
          if (arm == a.name) a.change(changed);
        // The baseline's weights; the gate's come from a generator of their own.
        MultiHeadAttention layer(plain, rng), with_gate(changed, gate_rng);
        with_gate.heads = layer.heads;
        return with_gate;
      },
      rng);
}

/// Of a trained model: Findings, and the loss of all tokens and of those at triggers, in nats.
inline Figures sink_figures(const SmallLm& model, const BigramBackcopy& task, const Batch& probe) {
  NoGrad guard;
  const Findings f = look_inside(model, probe.inputs);
  Figures r{{"first token", f.first_token},
            {"largest", f.largest},
            {"spike", f.spike},
            {"drain", std::isfinite(f.drain) ? f.drain : 1},
            {"gate", f.gate},
            {"below half", f.below_half},
            {"gate 1e-2", f.below_1e2},
            {"before", f.before},
            {"output", f.output},
            {"output 1e-2", f.output_1e2},
            {"output 1e-3", f.output_1e3}};
  const auto loss =
      cross_entropy(model(probe.inputs), probe.targets, {.reduction = Reduction::none}).to_vector<double>();
  const auto tokens = probe.inputs.to_vector<int64_t>();
  std::vector<double> at[2];
  for (std::size_t i = 0; i < loss.size(); ++i) at[task.is_trigger(tokens[i])].push_back(loss[i]);
  r["loss"] = mean_of(loss).value;
  r["loss at triggers"] = at[1].empty() ? 0 : mean_of(at[1]).value;
  return r;
}

/// One training. "G1 added late" trains the baseline, then puts in a gate that is open (σ(6) = 0.998) and goes on for
/// as many steps again.
inline Figures train_sink_arm(const std::string& arm, int64_t seed, const BigramBackcopy& task, const SinkSizes& s) {
  const bool late = arm == kLate, twice = late || arm == kTwice;
  SmallLm model = make_sink_model(twice ? "no gate" : arm, task, s, seed);
  Rng data(static_cast<uint64_t>(seed) + 1000), test(77);
  const Batch probe = task.batch(s.probes, s.n, test);
  const TrainOptions o{.steps = s.steps, .warmup = s.steps / 50, .lr = 3e-3, .weight_decay = 0.1};
  const auto next = [&] { return task.batch(s.batch, s.n, data); };
  Figures curve;
  train(model, next, o, [&](int64_t step) {
    if (step % std::max<int64_t>(1, s.steps / 20) == 0)
      curve[str("at ", step)] = look_inside(model, probe.inputs).first_token;
  });
  if (twice) {
    const double before = look_inside(model, probe.inputs).first_token;
    if (late) {
      auto& layer = std::get<MultiHeadAttention>(model.attention[0].layer);
      MultiHeadAttentionOptions with = layer.options;
      with.gates = {AttentionGateOptions{.bias = true, .bias_init = 6}};
      Rng rng(static_cast<uint64_t>(seed) + 500);
      MultiHeadAttention gated_layer(with, rng);
      gated_layer.norm = layer.norm, gated_layer.heads = layer.heads;
      layer = gated_layer;
    }
    train(model, next, o);
    curve["before the gate"] = before;
  }
  Figures r = sink_figures(model, task, probe);
  r.merge(curve);
  return r;
}

}  // namespace sluice::examples
