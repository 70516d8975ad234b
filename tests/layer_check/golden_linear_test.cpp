// Golden cases of linear attention through the binary.
#include "layer_check/case.h"
#include "support/approx.h"
#include "support/catch.h"

#include <sluice/core/text/print.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/shape/view.h>

#include <cmath>

using namespace sluice;
using namespace sluice::testing;

namespace {

using Arrays = std::map<std::string, Tensor>;

Arrays run_map(const GoldenCase& c, const std::string& kind, const Tensor& x, const Tensor& cotangent = {}) {
  Case call{"feature_map", R"({"dim": 4, "features": 6, "kind": ")" + kind + "\"}", {{"input.x", x}}};
  if (kind == "fourier") call.tensors["param.omega"] = c.get("omega");
  else call.config = R"({"dim": 4, "kind": ")" + kind + "\"}";
  if (cotangent.defined()) call.tensors["cotangent"] = cotangent;
  return outputs(call);
}

/// φ(q), φ(k) by the binary, v.
Arrays mapped(const GoldenCase& c, const std::string& kind) {
  return {{"input.phi_q", lifted(run_map(c, kind, c.get("q")).at("output"))},
          {"input.phi_k", lifted(run_map(c, kind, c.get("k")).at("output"))},
          {"input.v", lifted(c.get("v"))}};
}

}  // namespace

TEST_CASE("layer_check: golden feature maps and linear attention", "[layer_check]") {
  int cases = 0;
  for (const GoldenCase& c : golden_cases()) {
    if (c.name.starts_with("fm_")) {
      check_golden(c, "out", run_map(c, c.name.substr(3), c.get("x")).at("output"));
      ++cases;
    } else if (c.name.starts_with("lin_") && !c.name.starts_with("lin_decay")) {
      const Arrays t = mapped(c, c.name.substr(4, c.name.rfind('_') - 4));
      const bool causal = c.name.ends_with("c1");
      for (const char* form : {"chunked", "quadratic", "recurrent"}) {
        if (!causal && std::string(form) == "recurrent") continue;
        const std::string config = R"({"eps": 1e-6, "chunk": 4, "direction": ")" +
                                   std::string(causal ? "causal" : "full") + R"(", "form": ")" + form + "\"}";
        check_golden(c, "out", lowered(outputs({"linear_attention_form", config, t}).at("output")));
      }
      ++cases;
    }
  }
  CHECK(cases >= 7);
}

TEST_CASE("layer_check: every form takes a decay that broadcasts, as the listing says", "[layer_check]") {
  Rand rand(7);
  const auto random = [&](const Shape& shape) { return random_tensor(shape, f64, rand, 0.1, 0.9); };
  const Arrays t{{"input.phi_q", random({2, 3, 4, 5})},
                 {"input.phi_k", random({2, 3, 4, 5})},
                 {"input.v", random({2, 3, 4, 2})},
                 {"cotangent", random({2, 3, 4, 2})}};
  for (const Shape& shape : {Shape{3, 1}, {4}, {}, {2, 1, 4}}) {
    Arrays given = t;
    given["input.log_decay"] = neg(random(shape));
    std::map<std::string, Arrays> results;
    for (const char* form : {"chunked", "quadratic", "recurrent"})
      results[form] = outputs({"linear_attention_form",
                               R"({"direction": "causal", "chunk": 2, "form": ")" + std::string(form) + "\"}", given});
    for (const auto& [form, got] : results)
      for (const char* name :
           {"output", "grad.input.phi_q", "grad.input.phi_k", "grad.input.v", "grad.input.log_decay"}) {
        INFO(form << ' ' << name << " with log_decay " << shape);
        CHECK(max_abs_diff(got.at(name), results["quadratic"].at(name)) < 1e-11);
      }
  }
}

TEST_CASE("layer_check: golden decay and its gradients", "[layer_check]") {
  for (const char* name : {"lin_decay_0.9", "grad_lin_elu1_c1_g0.9"}) {
    const GoldenCase& c = golden_case(name);
    Arrays t = mapped(c, "elu1");
    t["input.log_decay"] = full({1, 1, 1}, std::log(0.9), {f64});
    if (c.has("cot")) t["cotangent"] = lifted(c.get("cot"));
    const std::string eps = c.number("eps") > 0 ? "1e-6" : "0";
    for (const char* form : {"chunked", "quadratic", "recurrent"}) {
      const Arrays got =
          outputs({"linear_attention_form",
                   R"({"direction": "causal", "chunk": 4, "eps": )" + eps + R"(, "form": ")" + form + "\"}", t});
      check_golden(c, "out", lowered(got.at("output")));
      if (!c.has("cot")) continue;
      check_gradient(c, "d_v", lowered(got.at("grad.input.v")));
      // The gradient of q goes through the feature map: a case whose cotangent is that of φ(q).
      for (const char* x : {"q", "k"}) {
        const Tensor cotangent = lowered(got.at(std::string("grad.input.phi_") + x));
        check_gradient(c, std::string("d_") + x, run_map(c, "elu1", c.get(x), cotangent).at("grad.input.x"));
      }
    }
  }
}

TEST_CASE("layer_check: golden gated linear attention", "[layer_check]") {
  for (const char* name : {"gla", "grad_gla"}) {
    const GoldenCase& c = golden_case(name);
    Arrays t{{"input.q", lifted(c.get("q"))},
             {"input.k", lifted(c.get("k"))},
             {"input.v", lifted(c.get("v"))},
             {"input.alpha", lifted(c.get("alpha"))}};
    if (c.has("cot")) t["cotangent"] = lifted(c.get("cot"));
    const Arrays got = outputs({"gla_attention", R"({"chunk": 4, "scale": 1})", t});
    check_golden(c, "out", lowered(got.at("output")));
    if (!c.has("cot")) continue;
    for (const char* x : {"q", "k", "v", "alpha"})
      check_gradient(c, std::string("d_") + x, lowered(got.at(std::string("grad.input.") + x)));
  }
}
