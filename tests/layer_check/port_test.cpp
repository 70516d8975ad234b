// Layers of other packages: their weights through load_pytorch, the numbers through layer_check, forward and backward.
#include "../../examples/support/ports.h"
#include "layer_check/case.h"
#include "support/approx.h"
#include "support/catch.h"
#include "support/temp_folder.h"
#include "support/folders.h"

#include <sluice/ops/shape/create.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/shape/view.h>

using namespace sluice;
using namespace sluice::testing;

namespace {

const std::string source = source_folder();

/// layer_check's output and all gradients against those in the file, and the weights on their way back.
template <class M, class Options>
void check_port(const std::string& layer, const std::string& config, const Options& options, const std::string& path,
                PyTorchRules rules, const std::string& prefix = "") {
  const std::map<std::string, Tensor> file = load_safetensors(path).tensors;
  Rng rng(1);
  const M model(options, rng), gradient(options, rng);
  load_pytorch(model, path, rules,
               {.prefix = prefix, .ignore = {"(^|\\.)(input|output|cotangent|grad)(\\.|$)", "inv_freq"}});
  TempFolder folder;
  save_pytorch(model, folder / "back", rules, prefix);
  for (const auto& [name, x] : load_safetensors(folder / "back").tensors) {
    INFO(name << " comes back");
    CHECK(max_abs_diff(x, file.at(name)) < 1e-15);
  }
  for (PyTorchRule& r : rules) r.stored.add = 0;
  load_pytorch(gradient, path, rules, {.prefix = prefix + "grad.", .ignore = {"input"}});

  Case c{layer, config, {{"cotangent", file.at(prefix + "cotangent")}}};
  for (const auto& [name, x] : file)
    if (name.starts_with(prefix + "input.")) c.tensors[name.substr(prefix.size())] = x;
  for (const NamedTensor& p : state_dict(model)) c.tensors["param." + p.name] = p.tensor.detach();
  std::map<std::string, Tensor> got = outputs(c);
  if (c.tensors.contains("input.key_mask"))  // what stands in padding is of no use to anyone
    got["output"] = got.at("output") * to(unsqueeze(c.tensors.at("input.key_mask"), -1), f64);

  const auto agree = [&](const std::string& name, const Tensor& want) {
    INFO(layer << ", " << prefix << name);
    CHECK((max_abs(want) > 1e-3 || name == "grad.param.k.bias"));  // softmax does not see it, but for RoPE
    CHECK(max_abs_diff(got.at(name), want) < 1e-9);
  };
  agree("output", file.at(prefix + "output"));
  if (file.contains(prefix + "grad.input.x")) agree("grad.input.x", file.at(prefix + "grad.input.x"));
  for (const NamedTensor& p : parameters(gradient))
    if (max_abs(p.tensor) > 0) agree("grad.param." + p.name, p.tensor.detach());  // 0: not in the file
}

PyTorchRules fused(const std::string& name, PyTorchStorage how, const std::string& out) {
  PyTorchRules rules{{"^out", out}};
  for (const char* map : {"^q\\.", "^k\\.", "^v\\."}) rules.push_back({map, name, how}), ++how.part;
  return rules;
}

}  // namespace

TEST_CASE("layer_check: golden: torch, GPT-NeoX and Bloom attention with their weights", "[layer_check][port]") {
  const std::string path = source + "/tests/golden/port/fused_projections.safetensors";
  MultiHeadAttentionOptions o{.heads = {.dim = 8, .heads = 2}};
  o.heads.qkv_bias = o.heads.out_bias = true, o.heads.dtype = f64;
  const std::string config = R"({"dim": 8, "heads": 2, "qkv_bias": true, "out_bias": true)";
  check_port<MultiHeadAttention>("multi_head_attention", config + "}", o, path, fused("in_proj_", {}, "out_proj"),
                                 "mha.");
  o.heads.causal = true, o.position_bias = PositionBias::alibi;
  check_port<MultiHeadAttention>("multi_head_attention", config + R"(, "causal": true, "position_bias": "alibi"})", o,
                                 path, fused("query_key_value.", {.groups = 2}, "dense"), "bloom.");
  o.heads.use_rope = true, o.heads.rope.rot_dim = 2, o.position_bias = PositionBias::none;
  check_port<MultiHeadAttention>("multi_head_attention",
                                 config + R"(, "causal": true, "use_rope": true, "rope_rot_dim": 2})", o, path,
                                 fused("query_key_value.", {.groups = 2}, "dense"), "neox.");
}

TEST_CASE("layer_check: golden: Qwen3-Next's gated attention with its weights", "[layer_check][port]") {
  const auto [options, rules] = examples::qwen3_next();
  check_port<MultiHeadAttention>(
      "multi_head_attention",
      R"({"dim": 10, "heads": 4, "kv_heads": 2, "head_dim": 8, "causal": true, "qk_norm": true,
                                     "use_rope": true, "rope_rot_dim": 4, "gates": [{}]})",
      options, source + "/examples/data/qwen3_next.safetensors", rules);
}

TEST_CASE("layer_check: golden: a layer of GAU-α with its weights", "[layer_check][port]") {
  const auto [options, rules] = examples::gau_alpha();
  check_port<Gau>(
      "gau",
      R"({"dim": 8, "expansion": 12, "key_dim": 6, "linear_bias": false, "kind": "softmax_plus", "norm": "rms_plain",
          "norm_eps": 1e-12, "placement": "post", "rope_pairing": "interleaved"})",
      options, source + "/examples/data/gau_alpha.safetensors", rules);
}

TEST_CASE("layer_check: golden: lucidrains' FLASHTransformer with its weights", "[layer_check][port]") {
  const auto [options, rules] = examples::flash_transformer();
  check_port<FlashModel>(
      "flash_model",
      R"({"layers": 2, "dim": 8, "expansion": 16, "key_dim": 6, "chunk": 4, "causal": true, "kind": "paper_code",
          "scaling": "lucid", "norm": "scale_l2", "rope_pairing": "interleaved", "bias": "t5", "token_shift": true,
          "vocabulary": 11, "outputs": 11, "final_norm": "layer"})",
      options, source + "/examples/data/flash_transformer.safetensors", rules);
}
