#include <sluice/layers/attention/gated_attention.h>

namespace sluice {

MultiHeadAttentionOptions gated_attention_options(const GatedAttentionOptions& o) {
  MultiHeadAttentionOptions m{.heads = checked_layer("gated_attention", o).heads};
  auto gate = [&](bool on, GatePosition position, GateSource source = GateSource::input) {
    if (on)
      m.gates.push_back({.position = position,
                         .granularity = o.granularity,
                         .source = source,
                         .bias = true,
                         .bias_init = o.gate_bias,
                         .init = o.gate_init});
  };
  gate(o.output != OutputGate::none, GatePosition::g1,
       o.output == OutputGate::from_query ? GateSource::query : GateSource::input);
  gate(o.gate_query, GatePosition::g4), gate(o.gate_key, GatePosition::g3), gate(o.gate_value, GatePosition::g2);
  return m;
}

GatedAttention::GatedAttention(GatedAttentionOptions o, Rng& rng)
    : MultiHeadAttention({type, "gated_attention"}, gated_attention_options(o), rng), options(o) {
  options.heads = MultiHeadAttention::options.heads;
}

const char* GatedAttention::name_of_gate(GatePosition position) {
  switch (position) {
    case GatePosition::g2: return "value_gate";
    case GatePosition::g3: return "key_gate";
    case GatePosition::g4: return "query_gate";
    default: return "output_gate";
  }
}

}  // namespace sluice
