// Layers of softmax attention to test with: every option, alone and in company.
#pragma once

#include "layers/multi_head_attention_reference.h"

namespace sluice::testing {

/// A layer in f64 with random parameters.
inline MultiHeadAttention random_attention(MultiHeadAttentionOptions o, Rand& rand) {
  o.heads.dtype = f64;
  Rng rng(1);
  return randomised(MultiHeadAttention(o, rng), rand);
}

struct AttentionLayerSample {
  std::string name;
  MultiHeadAttentionOptions options;
};

/// Every option that changes the formula of self attention, alone and in company. `causal` for streaming.
inline std::vector<AttentionLayerSample> attention_samples(bool causal) {
  std::vector<AttentionLayerSample> all;
  auto add = [&](std::string name, const std::function<void(MultiHeadAttentionOptions&)>& change) {
    MultiHeadAttentionOptions o{.heads = {.dim = 6, .heads = 4, .kv_heads = 2, .head_dim = 4}};
    o.heads.causal = causal, o.max_length = 40;
    change(o);
    all.push_back({std::move(name), o});
  };
  using O = MultiHeadAttentionOptions;
  add("plain", [](O&) {});
  add("multi-head", [](O& o) { o.heads.heads = 3, o.heads.kv_heads = 0, o.heads.head_dim = 0; });
  add("multi-query", [](O& o) { o.heads.kv_heads = 1, o.heads.value_dim = 3; });
  add("biases", [](O& o) { o.heads.qkv_bias = o.heads.out_bias = true; });
  add("window", [](O& o) { o.window = 3; });
  add("window 1", [](O& o) { o.window = 1; });
  add("dilated window", [](O& o) { o.window = 3, o.dilation = 2, o.heads.use_rope = true; });
  add("dilation alone", [](O& o) { o.dilation = 3; });
  add("window and globals", [](O& o) { o.window = 2, o.global = {4, 0, 4}, o.heads.use_rope = true; });
  add("scale", [](O& o) { o.scale = 0.3; });
  add("RoPE", [](O& o) { o.heads.use_rope = true, o.heads.rope.offset = 2; });
  add("RoPE interleaved, half of the channels", [](O& o) {
    o.heads.use_rope = true, o.heads.rope.pairing = RopePairing::interleaved, o.heads.rope.rot_dim = 2, o.window = 4;
  });
  add("QK-norm", [](O& o) { o.qk_norm = o.heads.use_rope = true; });
  for (NormKind kind : {NormKind::rms, NormKind::layer, NormKind::rms_plain})
    for (QkNormOver over : {QkNormOver::shared, QkNormOver::per_head, QkNormOver::width})
      add(str("QK-norm ", name_of(kind), " over ", name_of(over)), [&](O& o) {
        o.qk_norm = o.heads.use_rope = true, o.qk_norm_kind = kind, o.qk_norm_over = over, o.qk_norm_eps = 0.1;
      });
  add("QK-norm of ScaleNorm, gates after it", [&](O& o) {
    o.qk_norm = true, o.qk_norm_kind = NormKind::scale_l2, o.qk_norm_over = QkNormOver::width;
    o.gates = {{.position = GatePosition::g4, .after_qk_norm = true}, {.position = GatePosition::g3}};
  });
  add("soft cap", [](O& o) { o.softcap = 0.4, o.scale = 2; });
  add("soft cap, T5, sink, window", [](O& o) {
    o.softcap = 0.4, o.scale = 2, o.position_bias = PositionBias::t5, o.sink = AttentionSink::learned, o.window = 4;
  });
  add("RoPE of given frequencies", [](O& o) {
    o.heads.use_rope = true, o.heads.rope.frequencies = {0.9, 0.05}, o.heads.rope.factor = 1.3;
  });
  add("xPos", [](O& o) { o.heads.use_rope = true, o.heads.rope.xpos = 7, o.heads.rope.offset = 2; });
  add("T5", [](O& o) { o.position_bias = PositionBias::t5, o.t5.buckets = 8, o.t5.max_distance = 12; });
  add("T5 and window", [](O& o) { o.position_bias = PositionBias::t5, o.window = 4; });
  add("Toeplitz", [](O& o) { o.position_bias = PositionBias::toeplitz; });
  add("ALiBi, window", [](O& o) { o.position_bias = PositionBias::alibi, o.window = 5; });
  add("off by one", [](O& o) { o.sink = AttentionSink::off_by_one; });
  add("learned sink, window", [](O& o) { o.sink = AttentionSink::learned, o.window = 3; });
  add("pre-norm", [](O& o) { o.norm = NormKind::layer, o.heads.residual = true; });
  add("gate G5 under the sandwich norm", [](O& o) {
    o.norm = NormKind::rms, o.sandwich_norm = o.heads.residual = true;
    o.gates = {{.position = GatePosition::g5}};
  });
  add("sandwich norm", [](O& o) { o.norm = NormKind::rms, o.sandwich_norm = o.heads.residual = true; });
  add("head norm", [](O& o) { o.ablation = SdpaAblationKind::head_norm, o.heads.value_dim = 3; });
  add("head norm of another eps", [](O& o) { o.ablation = SdpaAblationKind::head_norm, o.ablation_eps = 0.1; });
  add("bare SiLU", [](O& o) { o.ablation = SdpaAblationKind::silu; });
  auto gate = [](GatePosition p) { return AttentionGateOptions{.position = p, .init = Init::lecun()}; };
  for (GatePosition p : {GatePosition::g1, GatePosition::g2, GatePosition::g3, GatePosition::g4, GatePosition::g5})
    add(str("gate G", static_cast<int>(p) + 1), [&](O& o) {
      o.gates = {gate(p)};
      o.norm = NormKind::rms, o.qk_norm = p == GatePosition::g4, o.heads.use_rope = p == GatePosition::g3,
          o.heads.value_dim = 3;
    });
  add("gates of Q", [&](O& o) {
    o.norm = NormKind::rms, o.qk_norm = o.heads.use_rope = true, o.heads.value_dim = 3;
    for (GatePosition p : {GatePosition::g1, GatePosition::g4, GatePosition::g5})
      o.gates.push_back({.position = p, .source = GateSource::query, .init = Init::lecun()});
  });
  add("no projection, gate G1", [&](O& o) { o.heads.project_out = false, o.gates = {gate(GatePosition::g1)}; });
  add("headwise gates G5", [&](O& o) {
    o.heads.heads = 3, o.heads.kv_heads = 1;
    o.gates = {gate(GatePosition::g5), gate(GatePosition::g5)};
    for (AttentionGateOptions& g : o.gates) g.granularity = GateGranularity::headwise, g.bias = true;
    o.gates[1].mode = GateMode::add;
  });
  add("gate G5, sandwich norm", [&](O& o) {
    o.gates = {gate(GatePosition::g5)};
    o.norm = NormKind::layer, o.sandwich_norm = o.heads.residual = true;
  });
  add("all gates", [&](O& o) {
    o.norm = NormKind::rms, o.qk_norm = o.heads.use_rope = o.heads.residual = true, o.window = 4;
    for (GatePosition p : {GatePosition::g4, GatePosition::g3, GatePosition::g2, GatePosition::g1, GatePosition::g5})
      o.gates.push_back(gate(p));
    o.gates[0].after_qk_norm = true;
    o.gates[1].after_qk_norm = true, o.gates[1].granularity = GateGranularity::headwise;
    o.gates[2].mode = GateMode::add, o.gates[2].activation = Act::silu;
    o.gates[3].sharing = GateSharing::scores, o.gates[3].bias = true;
    o.gates.push_back(gate(GatePosition::g1));
    o.gates[5].activation = Act::ns_sigmoid, o.gates[5].input_independent = true;
    o.gates.push_back(gate(GatePosition::g3));
    o.gates[6].sharing = GateSharing::logits;
  });
  return all;
}

/// Those that cannot be streamed.
inline std::vector<AttentionLayerSample> global_samples(bool causal) {
  std::vector<AttentionLayerSample> all;
  for (int kind = 0; kind < 4; ++kind) {
    MultiHeadAttentionOptions o{.heads = {.dim = 6, .heads = 4, .kv_heads = 2, .head_dim = 4}};
    o.heads.causal = causal, o.window = kind == 3 ? 0 : 2, o.global = {5, 1, 11}, o.separate_global_projections = true;
    if (kind == 1) o.heads.use_rope = o.qk_norm = o.heads.qkv_bias = true, o.heads.rope.offset = 1, o.heads.rope.xpos = 9,
        o.qk_norm_over = QkNormOver::width, o.softcap = 0.5, o.sink = AttentionSink::learned;
    if (kind == 2) o.position_bias = PositionBias::toeplitz, o.max_length = 20, o.gates = {AttentionGateOptions{}};
    if (kind == 3) o.position_bias = PositionBias::t5;
    all.push_back({str("separate global projections ", kind), o});
  }
  return all;
}

inline std::vector<AttentionLayerSample> all_attention_samples() {
  std::vector<AttentionLayerSample> all;
  for (bool causal : {false, true})
    for (const auto& list : {attention_samples(causal), global_samples(causal)})
      for (AttentionLayerSample s : list) {
        s.name += causal ? ", causal" : "";
        all.push_back(std::move(s));
      }
  return all;
}

// -- what a call brings ----------------------------------------------------------------------------------

inline Tensor random_bools(const Shape& shape, Rand& rand, double share = 0.6) {
  return random_tensor(shape, f64, rand, 0, 1) < share;
}
inline Tensor documents(const std::vector<int64_t>& a, const std::vector<int64_t>& b) {
  std::vector<int64_t> all = a;
  all.insert(all.end(), b.begin(), b.end());
  return Tensor::from(all, {2, static_cast<int64_t>(a.size())});
}

}  // namespace sluice::testing
