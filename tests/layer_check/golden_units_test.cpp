// Golden cases of gated attention units, FLASH, positions and activations through the binary.
#include "layer_check/case.h"
#include "support/approx.h"
#include "support/catch.h"

#include <sluice/ops/shape/create.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/shape/view.h>

using namespace sluice;
using namespace sluice::testing;

namespace {

std::string text(const GoldenCase& c, const char* key, const char* otherwise) { return c.text(key, otherwise); }
std::string number(const GoldenCase& c, const char* key, double otherwise = 0) {
  return std::to_string(static_cast<int64_t>(c.number(key, otherwise)));
}
const char* truth(bool b) { return b ? "true" : "false"; }

/// The cases are F(x) of the layer, without norm and residual; its weights are those of all units.
Case unit(const GoldenCase& c, const std::string& layer, const std::string& more) {
  const Tensor wu = c.get("wu"), wv = c.get("wv"), wz = c.get("wz");
  Case call{layer,
            R"({"dim": 8, "expansion": 16, "key_dim": 6, "linear_bias": false, "norm": "none", "use_rope": )" +
                std::string(truth(!c.text("rope").empty())) + ", " + more + "}",
            {{"input.x", batched(c.get("x"))},
             {"param.in.weight", cat({wu, wv, wz}, 1)},
             {"param.out.weight", c.get("wo")},
             {"param.gamma", c.get("gamma")},
             {"param.beta", c.get("beta")}}};
  if (c.has("cot")) call.tensors["cotangent"] = batched(c.get("cot"));
  return call;
}

Case gau(const GoldenCase& c) {
  Case call = unit(c, "gau", R"("length": "n")");
  call.tensors["input.key_mask"] = batched(c.get("pad") > 0.5);
  return call;
}

Case flash(const GoldenCase& c) {
  const bool causal = c.number("causal", c.name.ends_with("c1") ? 1 : 0) != 0;
  return unit(c, "flash",
              R"("scaling": ")" + text(c, "scaling", "su") + R"(", "kind": ")" + text(c, "kind", "su") +
                  R"(", "chunk": )" + number(c, "C") + R"(, "causal": )" + truth(causal));
}

void check_unit_gradients(const GoldenCase& c, const std::map<std::string, Tensor>& got) {
  check_gradient(c, "d_x", unbatched(got.at("grad.input.x")) - c.get("cot"));  // the residual's share
  const std::vector<Tensor> w = split(got.at("grad.param.in.weight"), {16, 16, 6}, 1);
  check_gradient(c, "d_wu", w[0]);
  check_gradient(c, "d_wv", w[1]);
  check_gradient(c, "d_wz", w[2]);
  check_gradient(c, "d_wo", got.at("grad.param.out.weight"));
  check_gradient(c, "d_gamma", got.at("grad.param.gamma"));
  check_gradient(c, "d_beta", got.at("grad.param.beta"));
}

}  // namespace

TEST_CASE("layer_check: golden GAU and FLASH", "[layer_check]") {
  const GoldenCase &padded = golden_case("gau_pad_su"), &gradients = golden_case("grad_flash_c1");
  const Tensor y = unbatched(outputs(gau(padded)).at("output")) - padded.get("x");
  check_golden(padded, "out", where(unsqueeze(padded.get("pad") > 0.5, 1), y, padded.get("out")));
  const auto got = outputs(flash(gradients));
  check_golden(gradients, "out", unbatched(got.at("output")) - gradients.get("x"));
  check_unit_gradients(gradients, got);
}

TEST_CASE("layer_check: streaming gives the golden rows of causal FLASH", "[layer_check]") {
  const GoldenCase& c = golden_case("flash_c1_C3_su");
  Case call = flash(c);
  call.config.back() = ',';
  call.config += R"("stream": [4, 1, 1, 4]})";
  check_golden(c, "out", unbatched(outputs(call).at("output")) - c.get("x"));
}

TEST_CASE("layer_check: golden activations and positions", "[layer_check]") {
  const GoldenCase& acts = golden_case("acts");
  for (const std::string& name : acts.arrays())
    if (name != "x") {
      const std::string config = R"({"kind": ")" + name + "\"}";
      check_golden(acts, name, outputs({"activation", config, {{"input.x", acts.get("x")}}}).at("output"));
    }

  const GoldenCase& rope = golden_case("rope");
  auto rotated = [&](const char* config) {
    return outputs({"rope", config, {{"input.x", rope.get("x")}}}).at("output");
  };
  check_golden(rope, "half", rotated("{}"));
  check_golden(rope, "inter", rotated(R"({"pairing": "interleaved"})"));
  check_golden(rope, "half_rot4", rotated(R"({"rot_dim": 4})"));

  const GoldenCase& t5 = golden_case("t5_buckets");
  for (bool causal : {false, true}) {  // rel runs over −200 … 200: one row of 201 queries, and one of 401 keys
    const std::string config = std::string(R"({"m": 201, "n": 201, "causal": )") + truth(causal) + "}";
    const Tensor buckets =
        to(outputs({"t5_bias", config, {{"input.w", zeros({32, 1}, {f64})}}}).at("output.buckets"), f64);
    const Tensor rel = cat({flip(narrow(select(buckets, 1, 0), 0, 1, 200), {0}), select(buckets, 0, 0)});
    check_golden(t5, causal ? "causal" : "bidir", rel);
  }
}
