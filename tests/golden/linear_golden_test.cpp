// Runners of the linear attention cases: feature maps, normalised linear attention with and without decay, GLA.
// Each attention case runs through linear_attention in chunks, and step by step.
#include "golden/golden.h"
#include "support/linear_stream.h"

#include <sluice/autograd/engine.h>
#include <sluice/layers/linear_attention/linear_attention.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/shape/view.h>

#include <cmath>
#include <string>
#include <vector>

using namespace sluice;
using namespace sluice::testing;

namespace {

/// The map of a case; its ω where it is random.
FeatureMap map_of(const GoldenCase& c, const std::string& kind, int64_t dim, DType dtype) {
  Rng rng(1);
  FeatureMapOptions o{.kind = from_name<FeatureMapKind>(kind), .dim = dim};
  o.features = c.has("omega") ? c.get("omega").dim(1) : 0;
  o.dtype = dtype;
  FeatureMap map(o, rng);
  if (map.omega.defined()) map.omega = c.get("omega", dtype);
  return map;
}

Tensor lifted(const Tensor& x) { return unsqueeze(unsqueeze(x, 0), 0); }  // one batch, one head
Tensor lowered(const Tensor& x) { return select(select(x, 0, 0), 0, 0); }

GoldenResults every_form(const Tensor& q, const Tensor& k, const Tensor& v, const LinearAttentionForm& f) {
  GoldenResults results;
  if (f.direction == LinearDirection::full) {
    results.emplace_back("out", lowered(linear_attention(q, k, v, f)));
    LinearAttentionForm both = f;
    both.direction = LinearDirection::bidirectional, both.chunk = 4;
    results.emplace_back("out (bidirectional)", lowered(linear_attention(q, k, v, both)));
    return results;
  }
  for (int64_t chunk : {64, 10, 4, 1}) {
    LinearAttentionForm chunked = f;
    chunked.chunk = chunk;
    results.emplace_back("out (chunk " + std::to_string(chunk) + ")", lowered(linear_attention(q, k, v, chunked)));
  }
  results.emplace_back("out (steps)", lowered(linear_attention_streamed(q, k, v, f)));
  return results;
}

LinearAttentionForm decaying(const GoldenCase& c, DType dtype) {
  return {.direction = LinearDirection::causal,
          .eps = c.number("eps"),
          .log_decay = full({1, 1, 1}, std::log(c.number("gamma")), {dtype}),
          .chunk = 4};
}
LinearAttentionForm gated(const Tensor& alpha) {
  return {.direction = LinearDirection::causal,
          .normalize = LinearNormalize::none,
          .log_decay = lifted(log(alpha)),
          .chunk = 4};
}

const bool maps = register_golden({"fm_", [](const GoldenCase& c, DType dtype) -> GoldenResults {
                                     const Tensor x = c.get("x", dtype);
                                     return {{"out", map_of(c, c.name.substr(3), x.dim(1), dtype)(x)}};
                                   }});

// lin_<map>_c<causal>
const bool attention_cases = register_golden(
    {"lin_", [](const GoldenCase& c, DType dtype) -> GoldenResults {
       const FeatureMap map = map_of(c, c.name.substr(4, c.name.rfind('_') - 4), c.get("q").dim(1), dtype);
       const LinearAttentionForm f{
           .direction = c.name.ends_with("c1") ? LinearDirection::causal : LinearDirection::full,
           .eps = c.number("eps")};
       return every_form(lifted(map(c.get("q", dtype))), lifted(map(c.get("k", dtype))), lifted(c.get("v", dtype)), f);
     }});

const bool decays = register_golden({"lin_decay_", [](const GoldenCase& c, DType dtype) -> GoldenResults {
                                       const FeatureMap map = map_of(c, c.text("fm"), c.get("q").dim(1), dtype);
                                       return every_form(lifted(map(c.get("q", dtype))), lifted(map(c.get("k", dtype))),
                                                         lifted(c.get("v", dtype)), decaying(c, dtype));
                                     }});

const bool glas = register_golden({"gla", [](const GoldenCase& c, DType dtype) -> GoldenResults {
                                     LinearAttentionForm f = gated(c.get("alpha", dtype));
                                     f.scale = c.number("scale", 1);
                                     return every_form(lifted(c.get("q", dtype)), lifted(c.get("k", dtype)),
                                                       lifted(c.get("v", dtype)), f);
                                   }});

GoldenResults gradients(const GoldenCase& c, const std::vector<std::string>& names, const std::vector<Tensor>& inputs,
                        const Tensor& out) {
  GoldenResults results{{"out", out}};
  const std::vector<Tensor> g = grad({out}, inputs, {.grad_outputs = {c.get("cot", inputs[0].dtype())}});
  for (std::size_t i = 0; i < names.size(); ++i) results.emplace_back("d_" + names[i], g[i]);
  return results;
}

// The reference gradients are central differences, good to about 1e-8.
const bool decay_gradients = register_golden(
    {"grad_lin_",
     [](const GoldenCase& c, DType dtype) -> GoldenResults {
       Tensor q = c.get("q", dtype).requires_grad_(), k = c.get("k", dtype).requires_grad_();
       Tensor v = c.get("v", dtype).requires_grad_();
       const FeatureMap map = map_of(c, "elu1", q.dim(1), dtype);
       return gradients(c, {"q", "k", "v"}, {q, k, v},
                        lowered(linear_attention(lifted(map(q)), lifted(map(k)), lifted(v), decaying(c, dtype))));
     },
     1e-6});

const bool gla_gradients =
    register_golden({"grad_gla",
                     [](const GoldenCase& c, DType dtype) -> GoldenResults {
                       Tensor q = c.get("q", dtype).requires_grad_(), k = c.get("k", dtype).requires_grad_();
                       Tensor v = c.get("v", dtype).requires_grad_(), alpha = c.get("alpha", dtype).requires_grad_();
                       return gradients(c, {"q", "k", "v", "alpha"}, {q, k, v, alpha},
                                        lowered(linear_attention(lifted(q), lifted(k), lifted(v), gated(alpha))));
                     },
                     1e-6});

}  // namespace
