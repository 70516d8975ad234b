// Multi-head attention in all its forms, its gates, and stacks of it.
#include "option_lists.h"
#include "registry.h"

namespace layer_check {

using namespace sluice;

namespace {

struct GateModule {
  static constexpr const char* type = "AttentionGate";
  AttentionGate gate;
  GateModule(const GateCall& o, Rng& rng) : gate(o.gate, o.dim, o.heads, o.head_dim, rng, o.dtype) {}
  static void visit(auto& self, auto&& f) { AttentionGate::visit(self.gate, f); }
};

struct MultiHeadCall : MultiHeadAttentionOptions {
  bool map = false;
  static void describe(auto& o, auto& f) {
    MultiHeadAttentionOptions::describe(o, f);
    f("map", o.map, "write output.map");
  }
};

/// The tensors of a gate, whose options' names begin with `item`.
void gate_parameters(Layer& l, const std::string& path, const std::string& item, const std::string& in,
                     const std::string& width, const std::string& heads) {
  const std::string free = item + "input_independent";
  l.parameter(path + "map.weight [" + in + ", " + width + "]", "", "not " + free)
      .parameter(path + "map.bias [" + width + "]", "", "not " + free + " and " + item + "bias")
      .parameter(path + "theta [" + width + "]", "", free)
      .parameter(path + "head_bias [" + heads + "]", "", item + "head_bias");
}

void multi_head_parameters(Layer& l) {
  const std::string in = "heads*dk if item.source == 'query' else c if item.position in ('g2', 'g3') else dim";
  const std::string heads =
      "(1 if item.position == 'g5' and item.granularity == 'elementwise' else g if item.position "
      "in ('g2', 'g3') else heads)";
  const std::string channels =
      "(1 if item.granularity == 'headwise' else dim if item.position == 'g5' else dv if "
      "item.position in ('g1', 'g2') else dk)";
  l.derive({{"g", "kv_heads or heads"},
            {"dk", "head_dim or dim // heads"},
            {"dv", "value_dim or dk"},
            {"c", "context_dim or dim"}})
      .norm("norm", "norm", "dim")
      .dense("q", "dim", "heads*dk", "qkv_bias")
      .dense("k", "c", "g*dk", "qkv_bias")
      .dense("v", "c", "g*dv", "qkv_bias", "", "not tied_values")
      .dense("out", "heads*dv", "dim", "out_bias", "", "project_out")
      .norm("q_norm", "qk_norm_kind", "(heads*dk if qk_norm_over != 'shared' else dk)", "qk_norm")
      .norm("k_norm", "qk_norm_kind", "(g*dk if qk_norm_over != 'shared' else dk)", "qk_norm")
      .parameter("forget.weight [dim, heads]", "", "forget_gate == 'input'")
      .parameter("forget.bias [heads]", "", "forget_gate != 'none'")
      .dense("k_shift", "dim", "g", "False", "", "kv_shift")
      .dense("v_shift", "dim", "g", "False", "", "kv_shift");
  const std::size_t first = l.parameters.size();
  gate_parameters(l, "gates.{i}.", "item.", in, heads + "*" + channels, heads);
  for (std::size_t i = first; i < l.parameters.size(); ++i) l.parameters[i].repeat = "gates";
  const std::string own = "separate_global_projections";
  l.norm("ablation", "ablation_norm", "(heads*dv if ablation_per_head else dv)", "ablation == 'head_norm'")
      .parameter("t5_bias [buckets, heads]", "", "position_bias == 't5'")
      .parameter("toeplitz_bias [heads, 2*max_length - 1]", "b_ij = w[h, max_length - 1 + j - i]",
                 "position_bias == 'toeplitz'")
      .parameter("sink [heads]", "", "sink == 'learned'")
      .dense("global_q", "dim", "heads*dk", "qkv_bias", "", own)
      .dense("global_k", "c", "g*dk", "qkv_bias", "", own)
      .dense("global_v", "c", "g*dv", "qkv_bias", "", own)
      .norm("sandwich", "norm", "dim", "sandwich_norm");
}

/// What may be given beside x of `rows` tokens; segments under the condition `alone`.
void beside_x(Layer& l, const std::string& rows, const std::string& alone) {
  l.key_mask()
      .input(Kind::integer, "segments? [batch, " + rows + "]", "document numbers", alone + "len(stream) == 0")
      .input(Kind::boolean, "mask? broadcast [batch, heads, " + rows + ", n]", "true: may be seen", "len(stream) == 0")
      .input("bias? broadcast [batch, heads, " + rows + ", n]", "added to the scores", "len(stream) == 0");
}
void sequence(Layer& l) { beside_x(l.input("x [batch, n, dim]"), "n", ""); }
void perhaps_two_sequences(Layer& l) {
  l.input("x [batch, n, dim]", "", "context_dim == 0")
      .input("x [batch, m, dim]", "", "context_dim > 0")
      .input("context [batch, n, c]", "already normalised", "context_dim > 0");
  beside_x(l, "n if context_dim == 0 else m", "context_dim == 0 and chunk_size == 0 and ");
}

const Values gate_1{{"position", "g1"}};
/// A grouped, causal layer with RoPE, and more.
Values gqa(const Values& more) {
  Values v{{"dim", 12}, {"heads", 4}, {"kv_heads", 2}, {"causal", true}, {"use_rope", true}, {"head_dim", 4}};
  for (const auto& [name, value] : more) v[name] = value;
  return v;
}
Json gates(const std::vector<Values>& list) {
  Json::List all;
  for (const Values& gate : list) all.push_back(object(gate));
  return all;
}

std::vector<Values> multi_head_samples() {
  return {
      gqa({}),
      {{"heads", 2}, {"context_dim", 5}, {"map", true}, {"gates", gates({{{"position", "g2"}}, {{"position", "g4"}}})}},
      gqa({{"qk_norm", true}, {"norm", "rms"}, {"residual", true}, {"gates", gates({gate_1})}, {"map", true}}),
      gqa({{"gates", gates({{{"granularity", "headwise"}, {"bias", true}},
                            {{"position", "g2"}, {"sharing", "scores"}},
                            {{"position", "g3"}, {"mode", "add"}, {"activation", "silu"}},
                            {{"position", "g4"}, {"after_qk_norm", true}},
                            {{"position", "g5"}, {"input_independent", true}}})}}),
      gqa({{"window", 2}, {"dilation", 2}, {"global_positions", Json::List{0}}, {"separate_global_projections", true}}),
      gqa({{"position_bias", "t5"}, {"sink", "learned"}, {"qkv_bias", true}, {"out_bias", true}}),
      gqa({{"position_bias", "toeplitz"}, {"sink", "off_by_one"}, {"ablation", "head_norm"}, {"value_dim", 3}}),
      gqa({{"position_bias", "alibi"}, {"norm", "layer"}, {"sandwich_norm", true}, {"ablation", "silu"}}),
      gqa({{"window", 3}, {"stream", Json::List{3, 1, 2}}}),
      gqa({{"qk_norm", true},
           {"qk_norm_kind", "layer"},
           {"qk_norm_over", "width"},
           {"softcap", 1.5},
           {"rope_frequencies", Json::List{1, 0.3}},
           {"rope_factor", 1.2},
           {"gates", gates({{{"position", "g5"}, {"granularity", "headwise"}}})}}),
      gqa({{"qk_norm", true},
           {"qk_norm_over", "per_head"},
           {"qk_norm_late", true},
           {"rope_xpos", 8},
           {"qkv_limit", 0.4}}),
      gqa({{"qk_norm", true},
           {"qk_norm_kind", "rms_plain"},
           {"scale", 1.7},
           {"ablation", "head_norm"},
           {"ablation_norm", "rms_plain"},
           {"gates", gates({{{"head_bias", true}}, {{"granularity", "headwise"}, {"activation", "softplus"}}})}}),
      gqa({{"tied_values", true}, {"v_norm", true}, {"chunk_size", 3}, {"growth_beta", 0.7}, {"growth_length", 2}}),
      gqa({{"forget_gate", "input"}, {"kv_shift", true}, {"ablation", "head_norm"}, {"ablation_per_head", true}})};
}

}  // namespace

void add_multi_head(std::vector<Layer>& all) {
  const Layer multi_head =
      add(all, "multi_head_attention", "attention",
          "x^ = norm(x); Q = x^ Wq, K = c Wk, V = c Wv, c = x^ or the context; gates g4, g3, g2; Q, K <- norm, RoPE; Y "
          "= softmax(cap(Q K'/sqrt(dk)) + bias) V; gate g1; O = concat(Y) Wo; gate g5; y = [x +] [norm'](O)",
          "Vaswani et al. 2017, Shazeer 2019 (MQA), Ainslie et al. 2023 (GQA), Qiu et al. 2025 (gates)")
          .note(
              "The attention of Qwen's gated models: causal, use_rope, qk_norm, residual, norm rms with norm_eps "
              "1e-6, gates [{}].")
          .also(multi_head_parameters)
          .also(perhaps_two_sequences)
          .output("[batch, n if context_dim == 0 else m, dim if project_out else heads*dv]")
          .output("map [batch, heads, n if context_dim == 0 else m, n]", "the attention map",
                  "map and len(stream) == 0")
          .samples(multi_head_samples());
  all.back().draft = module_layer<MultiHeadAttention, MultiHeadCall>(
      [](const MultiHeadAttention& l, const Inputs& in, const MultiHeadCall& o) {
        Results results{{"", l(in["x"], pass_of(in))}};
        if (o.map) results.push_back({"map", l.map(in["x"], pass_of(in))});
        return results;
      },
      true);
  const auto stack = [](const AttentionStack& l, const Inputs& in) { return l(in["x"], pass_of(in)); };
  add(all, "attention_stack", "attention",
      "layers of multi_head_attention that differ in their window: hierarchical attention", "hierarchical attention")
      .derive(multi_head.derived)
      .also(sequence)
      .parts(multi_head, "layers.{i}.", "len(windows)")
      .output("[batch, n, dim]")
      .samples({gqa({{"windows", Json::List{2, 3, 0}}, {"gates", gates({gate_1, {{"position", "g5"}}})}}),
                gqa({{"residual", true}, {"norm", "rms"}, {"stream", Json::List{5, 1}}})})
      .draft = module_layer<AttentionStack, StackCall>(stack, true);
  add(all, "local_global_attention_stack", "attention",
      "two layers of multi_head_attention: a window, then all keys, or every dilation-th, or global positions",
      "Beltagy et al. 2020, Zaheer et al. 2020")
      .derive(multi_head.derived)
      .also(sequence)
      .parts(multi_head, "layers.{i}.", "2")
      .output("[batch, n, dim]")
      .require({{"stage_window", 3}, {"dim", 8}})
      .samples({gqa({{"stage_dilation", 2}}), gqa({{"stage_global_positions", Json::List{0, 3}}})})
      .draft = module_layer<AttentionStack, LocalGlobalCall>(stack, true);
  add(all, "attention_gate", "gates", "y' = y * s or y + s, s = act(x W [+ b])", "Qiu et al. 2025, arXiv 2505.06708")
      .derive({{"dense", "position == 'g5'"}, {"width", "heads*head_dim if granularity == 'elementwise' else heads"}})
      .input("x [batch, n, dim]")
      .input("y [batch, heads, n, head_dim]", "", "not dense")
      .input("y [batch, n, heads*head_dim]", "", "dense")
      .also([](Layer& l) { gate_parameters(l, "", "", "dim", "width", "heads"); })
      .output("[batch, heads, n, head_dim]", "", "not dense")
      .output("[batch, n, heads*head_dim]", "", "dense")
      .output("scores [...]", "what multiplies or is added")
      .require({{"dim", 8}, {"heads", 2}, {"head_dim", 4}})
      .samples({{{"granularity", "headwise"}, {"bias", true}},
                {{"sharing", "logits"}, {"activation", "ns_sigmoid"}},
                {{"position", "g5"}, {"heads", 1}, {"head_dim", 8}},
                {{"input_independent", true}, {"mode", "add"}},
                {{"head_bias", true}, {"activation", "softplus"}},
                {{"position", "g5"}, {"granularity", "headwise"}}})
      .draft = module_layer<GateModule, GateCall>([](const GateModule& l, const Inputs& in) -> Results {
    return {{"", l.gate(in["y"], in["x"])}, {"scores", l.gate.scores(in["x"])}};
  });
}

}  // namespace layer_check
