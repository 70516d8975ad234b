// Golden cases of softmax attention, sparse attention, gates and multi-head layers through the binary.
#include "layer_check/case.h"
#include "support/approx.h"
#include "support/catch.h"

#include <sluice/ops/shape/create.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/shape/view.h>

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
  for (const char* x : {"q", "k", "v"}) check_gradient(c, prefix + x, lowered(got.at(std::string("grad.input.") + x)));
}

}  // namespace

TEST_CASE("layer_check: golden attention with masks", "[layer_check]") {
  const std::map<std::string, std::string> rules{{"sdpa_full", R"({"tile_rows": 3, "tile_cols": 4})"},
                                                 {"sdpa_causal", R"({"causal": true, "form": "flash1"})"},
                                                 {"sdpa_sliding2", R"({"window": 3})"},
                                                 {"sdpa_dilated22", R"({"window": 3, "dilation": 2})"},
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

TEST_CASE("layer_check: golden gate of Qwen and its gradients", "[layer_check]") {
  const GoldenCase& c = golden_case("grad_qwen_G1_elementwise");
  const auto number = [&](const char* key) { return std::to_string(static_cast<int64_t>(c.number(key))); };
  const Tensor one = ones({4}, {f64});
  const Arrays got = outputs({"multi_head_attention",
                              R"({"dim": 12, "head_dim": 4, "use_rope": true, "causal": true, "qk_norm": true,
                                  "gates": [{}], "heads": )" +
                                  number("h") + R"(, "kv_heads": )" + number("g") + "}",
                              {{"input.x", batched(c.get("x"))},
                               {"param.q.weight", c.get("wq")},
                               {"param.k.weight", c.get("wk")},
                               {"param.v.weight", c.get("wv")},
                               {"param.out.weight", c.get("wo")},
                               {"param.gates.0.map.weight", c.get("wg")},
                               {"param.q_norm.weight", one},
                               {"param.k_norm.weight", one},
                               {"cotangent", batched(c.get("cot"))}}});
  check_golden(c, "out", unbatched(got.at("output")));
  check_gradient(c, "d_x", unbatched(got.at("grad.input.x")));
  for (const auto& [w, path] :
       {std::pair{"d_wq", "q"}, {"d_wk", "k"}, {"d_wv", "v"}, {"d_wo", "out"}, {"d_wg", "gates.0.map"}})
    check_gradient(c, w, got.at(std::string("grad.param.") + path + ".weight"));
}
