// Golden cases of softmax attention, sparse attention, gates and multi-head layers through the binary.
#include "layer_check/case.h"
#include "support/approx.h"
#include "support/catch.h"

#include <sluice/ops/create.h>
#include <sluice/ops/elementwise.h>
#include <sluice/ops/view.h>

using namespace sluice;
using namespace sluice::testing;

namespace {

using Arrays = std::map<std::string, Tensor>;

/// q, k, v of one head, and the cotangent if there is one.
Arrays operands(const GoldenCase& c) {
  Arrays t{{"input.q", lifted(c.get("q"))}, {"input.k", lifted(c.get("k"))}, {"input.v", lifted(c.get("v"))}};
  for (const char* cotangent : {"cot", "do"})
    if (c.has(cotangent)) t["cotangent"] = lifted(c.get(cotangent));
  return t;
}
void check_operand_gradients(const GoldenCase& c, const Arrays& got, const std::string& prefix = "d_") {
  for (const char* x : {"q", "k", "v"})
    check_gradient(c, prefix + x, lowered(got.at(std::string("grad.input.") + x)));
}

Case multi_head(const GoldenCase& c, const std::string& more, bool gated) {
  const int64_t heads = static_cast<int64_t>(c.number("h")), kv = static_cast<int64_t>(c.number("g"));
  Case call{"multi_head_attention",
            R"({"dim": 12, "head_dim": 4, "use_rope": true, "heads": )" + std::to_string(heads) + R"(, "kv_heads": )" +
                std::to_string(kv) + more + "}",
            {{"input.x", batched(c.get("x"))},
             {"param.q.weight", c.get("wq")},
             {"param.k.weight", c.get("wk")},
             {"param.v.weight", c.get("wv")},
             {"param.out.weight", c.get("wo")}}};
  if (gated) call.tensors["param.gates.0.map.weight"] = c.get("wg");
  if (c.has("cot")) call.tensors["cotangent"] = batched(c.get("cot"));
  return call;
}

/// From qwen_<place>_<granularity>_<mul|add>_<activation>_sh<0|1>_qn<0|1>.
Case qwen(const GoldenCase& c) {
  auto says = [&](const char* text) { return c.name.find(text) != std::string::npos; };
  const std::string place = "g" + c.name.substr(c.name.find("_G") + 2, 1);
  const bool qk_norm = !says("_qn0");
  Case call = multi_head(
      c,
      R"(, "causal": true, "qk_norm": )" + std::string(qk_norm ? "true" : "false") + R"(, "gates": [{"position": ")" +
          place + R"(", "granularity": ")" + (says("headwise") ? "headwise" : "elementwise") + R"(", "activation": ")" +
          (says("ns_sigmoid") ? "ns_sigmoid" : says("silu") ? "silu" : "sigmoid") + R"(", "mode": ")" +
          (says("_add_") ? "add" : "multiply") + R"(", "sharing": ")" + (says("_sh1") ? "scores" : "none") + R"("}])",
      true);
  if (qk_norm) call.tensors["param.q_norm.weight"] = call.tensors["param.k_norm.weight"] = ones({4}, {f64});
  return call;
}

}  // namespace

TEST_CASE("layer_check: golden attention with masks", "[layer_check]") {
  const std::map<std::string, std::string> rules{
      {"sdpa_full", R"({"tile_rows": 3, "tile_cols": 4})"}, {"sdpa_causal", R"({"causal": true, "form": "flash1"})"},
      {"sdpa_sliding2", R"({"window": 3})"},      {"sdpa_dilated22", R"({"window": 3, "dilation": 2})"},
      {"sdpa_bigbird", "{}"}};
  const std::map<std::string, std::string> patterns{
      {"sdpa_sliding2", R"({"w": 2})"}, {"sdpa_dilated22", R"({"pattern": "dilated", "w": 2, "dilation": 2})"}};
  for (const auto& [name, config] : rules) {
    const GoldenCase& c = golden_case(name);
    check_golden(c, "out", lowered(outputs({"attention", config, operands(c)}).at("output")));
    Arrays dense = operands(c);
    dense["input.mask"] = c.get("mask") > 0.5;
    check_golden(c, "out", lowered(outputs({"attention", "{}", dense}).at("output")));
  }
  for (const auto& [name, config] : patterns)
    for (const char* way : {", \"neighbours\": false}", ", \"neighbours\": true}"}) {
      const GoldenCase& c = golden_case(name);
      const Arrays got = outputs({"pattern_attention", config.substr(0, config.size() - 1) + way, operands(c)});
      check_golden(c, "out", lowered(got.at("output")));
      check_golden(c, "mask", to(unbatched(got.at("output.mask")), f64));
    }
}

TEST_CASE("layer_check: golden gradients of attention", "[layer_check]") {
  const GoldenCase& backward = golden_case("sdpa_backward_causal");
  const Arrays got = outputs({"attention", R"({"causal": true, "lse": true})", operands(backward)});
  check_golden(backward, "lse", lowered(got.at("output.lse")));
  check_operand_gradients(backward, got, "d");

  const GoldenCase& gradient = golden_case("grad_sdpa_causal");
  for (const char* config : {R"({"causal": true})", R"({"causal": true, "form": "definition"})"}) {
    const Arrays g = outputs({"attention", config, operands(gradient)});
    check_golden(gradient, "out", lowered(g.at("output")));
    check_operand_gradients(gradient, g);
  }
}

TEST_CASE("layer_check: golden softmax-off-by-one", "[layer_check]") {
  const GoldenCase& c = golden_case("softmax_off1");
  const Tensor identity = lifted(eye(10, -1, {f64}));
  check_golden(c, "out",
               lowered(outputs({"attention",
                                R"({"scale": 1})",
                                {{"input.q", lifted(c.get("s"))},
                                 {"input.k", identity},
                                 {"input.v", identity},
                                 {"input.sink", zeros({1}, {f64})}}})
                           .at("output")));
}

TEST_CASE("layer_check: golden top-k, thresholds, Sinkhorn", "[layer_check]") {
  const GoldenCase& topk = golden_case("topk_3");
  for (const char* config : {R"({"k": 3})", R"({"k": 3, "ties": "threshold"})"})
    check_golden(topk, "out", lowered(outputs({"topk_attention", config, operands(topk)}).at("output")));
  const GoldenCase& gradient = golden_case("grad_topk_3");
  const Arrays got = outputs({"topk_attention", R"({"k": 3})", operands(gradient)});
  check_golden(gradient, "out", lowered(got.at("output")));
  check_operand_gradients(gradient, got);

  const GoldenCase& threshold = golden_case("threshold");
  for (const char* mode : {"hard", "soft", "straight_through"}) {
    Arrays t = operands(threshold);
    t["input.f"] = threshold.get("f");
    const std::string config = R"({"tau": 0.2, "temperature": 0.5, "mode": ")" + std::string(mode) + "\"}";
    const Arrays y = outputs({"threshold_attention", config, t});
    check_golden(threshold, std::string(mode) == "soft" ? "soft" : "hard", lowered(y.at("output")));
    CHECK((max_abs(y.at("grad.input.f")) == 0) == (std::string(mode) == "hard"));
  }

  const GoldenCase& sinkhorn = golden_case("sinkhorn_1");
  auto of = [&](const char* config) {
    return outputs({"sinkhorn", config, {{"input.scores", sinkhorn.get("S")}}}).at("output");
  };
  check_golden(sinkhorn, "row", of("{}"));
  check_golden(sinkhorn, "col", of(R"({"last": "columns"})"));
  check_golden(sinkhorn, "literal", of(R"({"variant": "literal"})"));
  check_golden(sinkhorn, "attn", lowered(outputs({"sinkhorn_attention_form", "{}", operands(sinkhorn)}).at("output")));
}

TEST_CASE("layer_check: golden multi-head attention and Qwen's gates", "[layer_check]") {
  int cases = 0;
  for (const GoldenCase& c : golden_cases()) {
    const bool gated = c.name.starts_with("qwen_") || c.name.starts_with("grad_qwen_");
    if (!gated && !c.name.starts_with("gqa_")) continue;
    ++cases;
    if (!gated) {
      const std::string causal = c.number("causal") != 0 ? "true" : "false";
      check_golden(c, "out", unbatched(outputs(multi_head(c, R"(, "causal": )" + causal, false)).at("output")));
    } else {
      const Arrays got = outputs(qwen(c));
      check_golden(c, "out", unbatched(got.at("output")));
      if (!c.has("cot")) continue;
      check_gradient(c, "d_x", unbatched(got.at("grad.input.x")));
      for (const char* w : {"q", "k", "v"})
        check_gradient(c, std::string("d_w") + w, got.at(std::string("grad.param.") + w + ".weight"));
      check_gradient(c, "d_wo", got.at("grad.param.out.weight"));
      check_gradient(c, "d_wg", got.at("grad.param.gates.0.map.weight"));
    }
  }
  CHECK(cases >= 10);
}

TEST_CASE("layer_check: golden textbook gates", "[layer_check]") {
  const GoldenCase& cross = golden_case("gated_cross");
  const Tensor one = eye(4, -1, {f64}), none = zeros({4, 4}, {f64});
  for (const char* reading : {"per_query", "pooled"}) {  // K and V are the halves of the context
    const Case call{"gated_cross_attention",
                    R"({"dim": 4, "context_dim": 8, "project_out": false, "reading": ")" + std::string(reading) + "\"}",
                    {{"input.x", batched(cross.get("q"))},
                     {"input.context", batched(cat({cross.get("k"), cross.get("v")}, 1))},
                     {"param.q.weight", one},
                     {"param.k.weight", cat({one, none}, 0)},
                     {"param.v.weight", cat({none, one}, 0)},
                     {"param.gate.weight", cross.get("wg")},
                     {"param.gate.bias", zeros({4}, {f64})}}};
    check_golden(cross, reading, unbatched(outputs(call).at("output")));
  }
  for (const char* name : {"fused_c1", "grad_fused_causal"}) {
    const GoldenCase& c = golden_case(name);
    Case call{"fused_attention",
              R"({"dim": 8, "head_dim": 5, "causal": true, "eps": 0, "project_out": false})",
              {{"input.x", batched(c.get("x"))},
               {"param.q.weight", c.get("wq")},
               {"param.k.weight", c.get("wk")},
               {"param.v.weight", c.get("wv")},
               {"param.gate.weight", c.get("wg")},
               {"param.gate.bias", zeros({5}, {f64})}}};
    if (c.has("cot")) call.tensors["cotangent"] = batched(c.get("cot"));
    const Arrays got = outputs(call);
    check_golden(c, "out", unbatched(got.at("output")));
    if (!c.has("cot")) continue;
    check_gradient(c, "d_x", unbatched(got.at("grad.input.x")));
    for (const auto& [w, path] : {std::pair{"d_wq", "q"}, {"d_wk", "k"}, {"d_wv", "v"}, {"d_wg", "gate"}})
      check_gradient(c, w, got.at(std::string("grad.param.") + path + ".weight"));
  }
}
