// Multi-head attention in all its forms, its gates, stacks of it, and packed checkpoints.
#include "shared.h"
#include "option_lists.h"
#include "registry.h"

#include <sluice/layers/heads/attention_conversion.h>

namespace layer_check {

using namespace sluice;

namespace {

struct GateModule {
  static constexpr const char* type = "AttentionGate";
  AttentionGate gate;
  GateModule(const GateCall& o, Rng& rng) : gate(o.gate, o.dim, o.heads, o.head_dim, rng, o.dtype) {}
  static void visit(auto& self, auto&& f) { AttentionGate::visit(self.gate, f); }
};

const Values gate_1{{"position", "g1"}};
Json gates(const std::vector<Values>& list) {
  Json::List all;
  for (const Values& gate : list) all.push_back(object(gate));
  return all;
}

/// Formulas for the tensors of a gate; names of its options begin with `item`.
std::vector<ParameterInfo> gate_parameters(const std::string& path, const std::string& item, const std::string& in,
                                           const std::string& width, const std::string& repeat,
                                           const std::string& inner) {
  const std::string free = item + "input_independent";
  return {{.name = path + "map.weight", .shape = "[" + in + ", " + width + "]", .when = "not " + free, .repeat = repeat,
           .inner_repeat = inner},
          {.name = path + "map.bias", .shape = "[" + width + "]", .when = "not " + free + " and " + item + "bias",
           .repeat = repeat, .inner_repeat = inner},
          {.name = path + "theta", .shape = "[" + width + "]", .when = free, .repeat = repeat, .inner_repeat = inner}};
}

const std::vector<std::pair<std::string, std::string>> derived{{"g", "kv_heads or heads"},
                                                               {"dk", "head_dim or dim // heads"},
                                                               {"dv", "value_dim or dk"},
                                                               {"c", "context_dim or dim"}};

std::vector<ParameterInfo> qk_norm_parameters(const std::string& path, const std::string& width, const std::string& repeat) {
  std::vector<ParameterInfo> all = norm_parameters(path, "qk_norm_kind", width, repeat);
  for (ParameterInfo& i : all) i.when = "qk_norm and " + i.when;
  return all;
}

std::vector<ParameterInfo> multi_head_parameters(const std::string& p, const std::string& repeat) {
  const std::string in = "heads*dk if item.source == 'query' else c if item.position in ('g2', 'g3') else dim";
  const std::string heads = "(1 if item.position == 'g5' and item.granularity == 'elementwise' else g if item.position in ('g2', 'g3') else heads)";
  const std::string channels = "(1 if item.granularity == 'headwise' else dim if item.position == 'g5' else dv if "
                               "item.position in ('g1', 'g2') else dk)";
  const std::string gate_path = p + (repeat.empty() ? "gates.{i}." : "gates.{j}.");
  auto dense = [&](const std::string& path, const std::string& from, const std::string& width, const std::string& bias,
                   const std::string& when = "True") {
    return linear_parameters(p + path, from, width, bias, "", when, repeat);
  };
  std::vector<ParameterInfo> second = norm_parameters(p + "sandwich", "norm", "dim", repeat);
  for (ParameterInfo& i : second) i.when = "sandwich_norm and " + i.when;
  const std::string own = "separate_global_projections";
  return joined(
      {norm_parameters(p + "norm", "norm", "dim", repeat), dense("q", "dim", "heads*dk", "qkv_bias"),
       dense("k", "c", "g*dk", "qkv_bias"), dense("v", "c", "g*dv", "qkv_bias"),
       dense("out", "heads*dv", "dim", "out_bias", "project_out"),
       qk_norm_parameters(p + "q_norm", "(heads*dk if qk_norm_over != 'shared' else dk)", repeat),
       qk_norm_parameters(p + "k_norm", "(g*dk if qk_norm_over != 'shared' else dk)", repeat),
       gate_parameters(gate_path, "item.", in, heads + "*" + channels, repeat.empty() ? "gates" : repeat,
                       repeat.empty() ? "" : "gates"),
       {{.name = p + "ablation.weight", .shape = "[dv]", .when = "ablation == 'head_norm'", .repeat = repeat},
        {.name = p + "t5_bias", .shape = "[buckets, heads]", .when = "position_bias == 't5'", .repeat = repeat},
        {.name = p + "toeplitz_bias", .shape = "[heads, 2*max_length - 1]",
         .meaning = "b_ij = w[h, max_length - 1 + j - i]", .when = "position_bias == 'toeplitz'", .repeat = repeat},
        {.name = p + "sink", .shape = "[heads]", .when = "sink == 'learned'", .repeat = repeat}},
       dense("global_q", "dim", "heads*dk", "qkv_bias", own), dense("global_k", "c", "g*dk", "qkv_bias", own),
       dense("global_v", "c", "g*dv", "qkv_bias", own), second});
}

/// `x_rows` are the queries: n, or m for cross attention.
std::vector<InputInfo> multi_head_inputs(bool cross) {
  const std::string one = cross ? "context_dim == 0 and len(stream) == 0" : "len(stream) == 0";
  std::vector<InputInfo> all{{.name = "x", .shape = "[batch, n, dim]", .when = cross ? "context_dim == 0" : "True"}};
  const std::string rows = cross ? "n if context_dim == 0 else m" : "n";
  if (cross) {
    all.push_back({.name = "x", .shape = "[batch, m, dim]", .when = "context_dim > 0"});
    all.push_back({.name = "context", .shape = "[batch, n, c]", .meaning = "already normalised",
                   .when = "context_dim > 0"});
  }
  all.push_back(key_mask_input());
  all.push_back({.name = "segments", .shape = "[batch, " + rows + "]", .meaning = "document numbers",
                 .kind = Kind::integer, .optional = true, .when = one, .sample = Sample::index});
  all.push_back({.name = "mask", .shape = "broadcast [batch, heads, " + rows + ", n]", .meaning = "true: may be seen",
                 .kind = Kind::boolean, .optional = true, .when = "len(stream) == 0"});
  all.push_back({.name = "bias", .shape = "broadcast [batch, heads, " + rows + ", n]", .meaning = "added to the scores",
                 .optional = true, .when = "len(stream) == 0"});
  return all;
}

struct MultiHeadCall : MultiHeadAttentionOptions {
  bool map = false;
  static void describe(auto& o, auto& f) {
    MultiHeadAttentionOptions::describe(o, f);
    f("map", o.map, "write output.map");
  }
};

}  // namespace

void add_multi_head(std::vector<Layer>& all) {
  const Values gqa{{"dim", 12}, {"heads", 4}, {"kv_heads", 2}, {"causal", true}, {"use_rope", true}, {"head_dim", 4}};
  auto with = [&](std::initializer_list<Values::value_type> more) {
    Values v = gqa;
    for (const auto& [name, value] : more) v[name] = value;
    return v;
  };
  all.push_back({
      .name = "multi_head_attention",
      .family = "attention",
      .formula = "x^ = norm(x); Q = x^ Wq, K = c Wk, V = c Wv, c = x^ or the context; gates g4, g3, g2; Q, K <- norm, "
                 "RoPE; Y = softmax(cap(Q K'/sqrt(dk)) + bias) V; gate g1; O = concat(Y) Wo; gate g5; y = "
                 "[x +] [norm'](O)",
      .source = "Vaswani et al. 2017, Shazeer 2019 (MQA), Ainslie et al. 2023 (GQA), Qiu et al. 2025 (gates)",
      .notes = "The attention of Qwen's gated models: causal, use_rope, qk_norm, residual, norm rms with norm_eps "
               "1e-6, gates [{}].",
      .derived = derived,
      .inputs = multi_head_inputs(true),
      .parameters = multi_head_parameters("", ""),
      .outputs = {{"", "[batch, n if context_dim == 0 else m, dim if project_out else heads*dv]"},
                  {"map", "[batch, heads, n if context_dim == 0 else m, n]", "the attention map",
                   "map and len(stream) == 0"}},
      .examples =
          {gqa,
           {{"heads", 2}, {"context_dim", 5}, {"map", true},
            {"gates", gates({{{"position", "g2"}}, {{"position", "g4"}}})}},
           with({{"qk_norm", true}, {"norm", "rms"}, {"residual", true}, {"gates", gates({gate_1})}, {"map", true}}),
           with({{"gates", gates({{{"granularity", "headwise"}, {"bias", true}},
                                  {{"position", "g2"}, {"sharing", "scores"}},
                                  {{"position", "g3"}, {"mode", "add"}, {"activation", "silu"}},
                                  {{"position", "g4"}, {"after_qk_norm", true}},
                                  {{"position", "g5"}, {"input_independent", true}}})}}),
           with({{"window", 2}, {"dilation", 2}, {"global_positions", Json::List{0}},
                 {"separate_global_projections", true}}),
           with({{"position_bias", "t5"}, {"sink", "learned"}, {"qkv_bias", true}, {"out_bias", true}}),
           with({{"position_bias", "toeplitz"}, {"sink", "off_by_one"}, {"ablation", "head_norm"}, {"value_dim", 3}}),
           with({{"position_bias", "alibi"}, {"norm", "layer"}, {"sandwich_norm", true}, {"ablation", "silu"}}),
           with({{"window", 3}, {"stream", Json::List{3, 1, 2}}}),
           with({{"qk_norm", true}, {"qk_norm_kind", "layer"}, {"qk_norm_over", "width"}, {"softcap", 1.5},
                 {"rope_frequencies", Json::List{1, 0.3}}, {"rope_factor", 1.2},
                 {"gates", gates({{{"position", "g5"}, {"granularity", "headwise"}}})}}),
           with({{"qk_norm", true}, {"qk_norm_over", "per_head"}, {"rope_xpos", 8}})},
      .sizes = {{"m", 4}},
      .draft = module_layer<MultiHeadAttention, MultiHeadCall>(
          [](const MultiHeadAttention& l, const Inputs& in, const MultiHeadCall& o) {
            Results results{{"", l(in["x"], pass_of(in))}};
            if (o.map) results.push_back({"map", l.map(in["x"], pass_of(in))});
            return results;
          }, true),
  });
  const auto stack = [](const AttentionStack& l, const Inputs& in) { return l(in["x"], pass_of(in)); };
  all.push_back({
      .name = "attention_stack",
      .family = "attention",
      .formula = "layers of multi_head_attention that differ in their window: hierarchical attention",
      .source = "hierarchical attention",
      .derived = derived,
      .inputs = multi_head_inputs(false),
      .parameters = multi_head_parameters("layers.{i}.", "len(windows)"),
      .outputs = {{"", "[batch, n, dim]"}},
      .examples = {with({{"windows", Json::List{2, 3, 0}}, {"gates", gates({gate_1, {{"position", "g5"}}})}}),
                   with({{"residual", true}, {"norm", "rms"}, {"stream", Json::List{5, 1}}})},
      .draft = module_layer<AttentionStack, StackCall>(stack, true),
  });
  all.push_back({
      .name = "local_global_attention_stack",
      .family = "attention",
      .formula = "two layers of multi_head_attention: a window, then all keys, or every dilation-th, or global "
                 "positions",
      .source = "Beltagy et al. 2020, Zaheer et al. 2020",
      .derived = derived,
      .inputs = multi_head_inputs(false),
      .parameters = multi_head_parameters("layers.{i}.", "2"),
      .outputs = {{"", "[batch, n, dim]"}},
      .required = {{"stage_window", 3}, {"dim", 8}},
      .examples = {with({{"stage_dilation", 2}}), with({{"stage_global_positions", Json::List{0, 3}}})},
      .draft = module_layer<AttentionStack, LocalGlobalCall>(stack, true),
  });
  all.push_back({
      .name = "attention_gate",
      .family = "gates",
      .formula = "y' = y * s or y + s, s = act(x W [+ b])",
      .source = "Qiu et al. 2025, arXiv 2505.06708",
      .derived = {{"dense", "position == 'g5'"},
                  {"width", "heads*head_dim if granularity == 'elementwise' else heads"}},
      .inputs = {{.name = "x", .shape = "[batch, n, dim]"},
                 {.name = "y", .shape = "[batch, heads, n, head_dim]", .when = "not dense"},
                 {.name = "y", .shape = "[batch, n, heads*head_dim]", .when = "dense"}},
      .parameters = gate_parameters("", "", "dim", "width", "", ""),
      .outputs = {{"", "[batch, heads, n, head_dim]", "", "not dense"}, {"", "[batch, n, heads*head_dim]", "", "dense"},
                  {"scores", "[...]", "what multiplies or is added"}},
      .required = {{"dim", 8}, {"heads", 2}, {"head_dim", 4}},
      .examples = {{{"granularity", "headwise"}, {"bias", true}}, {{"sharing", "logits"}, {"activation", "ns_sigmoid"}},
                   {{"position", "g5"}, {"heads", 1}, {"head_dim", 8}}, {{"input_independent", true}, {"mode", "add"}},
                   {{"position", "g5"}, {"granularity", "headwise"}}},
      .draft = module_layer<GateModule, GateCall>(
          [](const GateModule& l, const Inputs& in) -> Results {
            return {{"", l.gate(in["y"], in["x"])}, {"scores", l.gate.scores(in["x"])}};
          }),
  });
}

}  // namespace layer_check
