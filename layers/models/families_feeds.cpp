// The feeds of published models and their names: with a gate, without one, and mixtures of experts.
#include <sluice/layers/models/families.h>

#include <algorithm>

namespace sluice::detail {

void FamilyReader::dense(const std::vector<int64_t>& which, const std::string& field, const std::string& otherwise) {
  const std::string act = config.get(field, otherwise);
  GluOptions o{.dim = plan.options.dim, .bias = config.get("mlp_bias", false)};
  if (which.empty()) return;
  const char* const hidden = "intermediate_size";
  o.hidden = config.is_list(hidden) ? one_for_all(hidden, 0) : config.any_of<int64_t>({hidden, "block_ff_dim"});
  if (act == "gelu_pytorch_tanh") o.kind = GluKind::geglu_tanh;
  else if (act == "gelu") o.kind = GluKind::geglu;
  else if (act != "silu" && act != "swish") config.refuse(field, "known: silu, gelu, gelu_pytorch_tanh");
  dense(which, o);
}

void FamilyReader::dense(const std::vector<int64_t>& which, const GluOptions& o) {
  for (const int64_t layer : which) block(layer).feed = o;
  rename_in(which, "mlp\\.value\\.", "mlp.up_proj.");
  rename_in(which, "mlp\\.gate\\.", "mlp.gate_proj.");
  rename_in(which, "mlp\\.out\\.", "mlp.down_proj.");
}

void FamilyReader::ungated(const std::vector<int64_t>& which, bool bias, const std::string& field,
                           const std::string& in, const std::string& out) {
  if (which.empty()) return;
  MlpOptions o{.dim = plan.options.dim, .bias = bias};
  const char* const hidden = "intermediate_size";
  o.hidden = widening > 0 ? config.get(hidden, widening * o.dim) : config.at<int64_t>(hidden);
  const std::string act = config.at<std::string>(field);
  if (act == "relu2") o.activation = Act::relu2;
  else if (act == "relu") o.activation = Act::relu;
  else if (act == "xielu") o.xielu = true;
  else if (act == "gelu_pytorch_tanh" || act == "gelu_new" || act == "gelu_fast") o.activation = Act::gelu_tanh;
  else if (act != "gelu")
    config.refuse(field, "known: relu, relu2, gelu, gelu_new, gelu_fast, gelu_pytorch_tanh, xielu");
  for (const int64_t layer : which) block(layer).feed = o;
  rename_in(which, "mlp\\.in\\.", "mlp." + in);
  rename_in(which, "mlp\\.out\\.", "mlp." + out);
  rename_in(which, "mlp\\.xielu_([pn])\\w*", "mlp.act_fn.alpha_$2");
  if (o.xielu) plan.ignore.push_back("\\.mlp\\.act_fn\\.(beta|eps)$");  // 1/2 and −1e-6
}

void FamilyReader::dense_or_sparse(bool norm_topk) {
  const ModelConfig& c = config;
  const bool any = c.has("moe_intermediate_size");
  const auto only = c.get("mlp_only_layers", std::vector<int64_t>{});
  const auto step = c.get<int64_t>("decoder_sparse_step", 1);
  const auto sparse = [&](int64_t layer) {
    return any && step > 0 && (layer + 1) % step == 0 && std::find(only.begin(), only.end(), layer) == only.end();
  };
  dense(where([&](int64_t layer) { return !sparse(layer); }));
  if (!any) return;
  MoeOptions o = moe();
  o.norm_topk = c.get("norm_topk_prob", norm_topk);
  o.shared_hidden = c.get<int64_t>("shared_expert_intermediate_size", 0);
  experts(where(sparse), o);
}

int64_t FamilyReader::one_for_all(const std::string& name, int64_t otherwise) const {
  if (!config.is_list(name)) return config.get(name, otherwise);
  const auto numbers = config.at<std::vector<int64_t>>(name);
  if (numbers.empty() || std::ranges::count(numbers, numbers[0]) != std::ssize(numbers))
    config.refuse(name, "only one number for all layers is known");
  return numbers[0];
}

MoeOptions FamilyReader::moe(std::initializer_list<const char*> names_of_experts) const {
  MoeOptions o{.dim = plan.options.dim};
  o.experts = config.any_of<int64_t>({names_of_experts.begin(), names_of_experts.end()});
  if (o.experts < 1 || o.experts > 65536) config.refuse(*names_of_experts.begin(), "it must be from 1 to 65536");
  o.top_k = config.has("moe_topk") ? one_for_all("moe_topk", 0)
                                   : config.any_of<int64_t>({"num_experts_per_tok", "num_experts_per_token", "moe_k"});
  o.hidden = one_for_all("moe_intermediate_size", config.get<int64_t>("intermediate_size", 0));
  if (type != "minimax_m3_vl_text") config.must_be("hidden_act", std::string("silu"));
  config.ignore("intermediate_size");  // if no layer is dense
  return o;
}

void FamilyReader::experts(const std::vector<int64_t>& which, const MoeOptions& o, const std::string& shared) {
  if (which.empty()) return;
  for (const int64_t layer : which) block(layer).feed = o;
  rename_in(which, "mlp\\.(gate|up|down)\\.weight", "mlp.experts.$2_proj");
  rename_in(which, "mlp\\.router\\.", "mlp.gate.");
  rename_in(which, "mlp\\.shared_gate\\.", "mlp." + shared + "_gate.");
  rename_in(which, "mlp\\.shared_gate_proj\\.", "mlp." + shared + ".gate_proj.");
  rename_in(which, "mlp\\.shared_(up|down)\\.", "mlp." + shared + ".$2_proj.");
  if (has("experts.gate_up_proj")) {
    const bool as_is = type == "qwen3_vl_moe_text" || type == "llama4_text";
    const PyTorchLayout layout = as_is ? PyTorchLayout::as_is : PyTorchLayout::transposed;
    const int64_t axis = as_is ? 2 : 1;
    rename("experts\\.gate_proj$", "experts.gate_up_proj", {.part = 0, .axis = axis, .layout = layout});
    rename("experts\\.up_proj$", "experts.gate_up_proj", {.part = 1, .axis = axis, .layout = layout});
    rename("experts\\.down_proj$", "$&", {.layout = layout});
    return;
  }
  PyTorchStorage each{.layout = PyTorchLayout::transposed};
  for (int64_t e = 0; e < o.experts; ++e)
    each.pieces.push_back({str("experts.", e, ".$1_proj.weight"), PyTorchPiece::single});
  rename("experts\\.(gate|up|down)_proj$", "", std::move(each));
}

void FamilyReader::deepseek_feeds(const std::vector<int64_t>& dense_ones) {
  const ModelConfig& c = config;
  const bool v2 = type == "deepseek_v2", softmax = v2 || type == "mistral4";
  if (type != "dots1" || c.get("scoring_func", std::string()) != "noaux_tc")  // which means the same
    c.must_be("scoring_func", std::string(softmax ? "softmax" : "sigmoid"));
  dense(dense_ones);
  MoeOptions o = moe({"n_routed_experts", "num_local_experts", "num_experts"});
  const std::string method = c.get("topk_method", std::string(v2 ? "greedy" : "noaux_tc"));
  if (method != (v2 ? "greedy" : "noaux_tc") && method != "group_limited_greedy")
    c.refuse("topk_method", v2 ? "known: greedy, group_limited_greedy" : "known: noaux_tc");
  if (!v2 || method != "greedy") {
    o.groups = c.get<int64_t>("n_group", 1, 1), o.top_groups = c.get<int64_t>("topk_group", 1, 1);
    o.group_best = v2 ? 1 : 2;
  } else {
    c.ignore("n_group topk_group");
  }
  if (!softmax) o.router = MoeRouter::sigmoid, o.router_bias = type != "axk1" || has(".e_score_correction_bias");
  o.norm_topk = c.get("norm_topk_prob", !v2, false);
  if (v2) c.must_be("norm_topk_prob", false);  // DeepSeek's code then leaves out the factor, transformers the norm
  o.scale = c.is_null("routed_scaling_factor") ? 1 : c.at<double>("routed_scaling_factor");
  o.shared_hidden = c.get("n_shared_experts", c.get<int64_t>("num_shared_experts", 0)) * o.hidden;
  o.shared_gate = false;
  c.ignore("ep_size");
  rename("mlp\\.router_bias$", has("mlp.e_score") ? "mlp.e_score_correction_bias" : "mlp.gate.e_score_correction_bias");
  experts(others_than(dense_ones), o, "shared_experts");
}

void FamilyReader::block_sparse_moe(const std::string& which) {
  if (!has("block_sparse_moe")) return;
  rename("(experts\\.\\d+\\.)gate_proj", "$1w1");
  rename("(experts\\.\\d+\\.)down_proj", "$1w2");
  rename("(experts\\.\\d+\\.)up_proj", "$1w3");
  rename(which, ".block_sparse_moe.");
}

}  // namespace sluice::detail
