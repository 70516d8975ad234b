// Runners of the softmax attention cases: the engine with each mask given in full and by rules, its gradients, and
// the layer with shared heads and with gates. The layers of the cases have no norm and no residual (their
// x is what the pre-norm gives).
#include "golden/golden.h"
#include "layers/streamed.h"
#include "support/approx.h"
#include "support/catch.h"

#include <sluice/autograd/engine.h>
#include <sluice/layers/attention/multi_head_attention.h>
#include <sluice/ops/attention/attention_reference.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/shape/view.h>

#include <cmath>

using namespace sluice;
using namespace sluice::testing;

namespace {

/// The rules that say the same as the mask of a case.
AttentionMask rules_of(const std::string& name, int64_t n) {
  AttentionMask mask;
  if (name == "sdpa_causal") mask.causal = true;
  if (name == "sdpa_sliding2") mask.window = 3;                      // |i − j| <= 2
  if (name == "sdpa_dilated22") mask.window = 3, mask.dilation = 2;  // |i − j| <= 4 and even
  if (name == "sdpa_bigbird") mask.blocks = ones({(n + 1) / 2, (n + 1) / 2}) > 0.0, mask.block = 2;  // all of them
  return mask;
}

const bool masked =
    register_golden({"sdpa_", [](const GoldenCase& c, DType dtype) -> GoldenResults {
                       const Tensor q = c.get("q", dtype), k = c.get("k", dtype), v = c.get("v", dtype);
                       AttentionOptions dense, rules;
                       dense.mask.dense = c.get("mask") > 0.5;
                       rules.mask = rules_of(c.name, q.dim(0));
                       const Tensor pairs = visible_pairs(rules.mask, 1, 1, q.dim(0), k.dim(0));
                       AttentionOptions tiled = rules;
                       tiled.tile_rows = 3, tiled.tile_cols = 4;
                       return {{"out", attention(q, k, v, dense)},
                               {"out (rules)", attention(q, k, v, rules)},
                               {"out (small tiles)", attention(q, k, v, tiled)},
                               {"out (definition)", attention_reference(q, k, v, dense)},
                               {"out (map)", matmul(select(select(attention_map(q, k, rules), 0, 0), 0, 0), v)},
                               {"mask (rules)", to(select(select(pairs, 0, 0), 0, 0), dtype)}};
                     }});

const bool backward =
    register_golden({"sdpa_backward", [](const GoldenCase& c, DType dtype) -> GoldenResults {
                       const Tensor q = c.get("q", dtype).requires_grad_(), k = c.get("k", dtype).requires_grad_();
                       const Tensor v = c.get("v", dtype).requires_grad_();
                       AttentionOptions causal;
                       causal.mask.causal = true;
                       GoldenResults results;
                       const AttentionAndLse both = attention_with_lse(q, k, v, causal);
                       results.emplace_back("lse", both.lse);
                       auto add = [&](const std::string& label, const Tensor& out) {
                         const std::vector<Tensor> g = grad({out}, {q, k, v}, {.grad_outputs = {c.get("do", dtype)}});
                         results.emplace_back("dq" + label, g[0]);
                         results.emplace_back("dk" + label, g[1]);
                         results.emplace_back("dv" + label, g[2]);
                       };
                       add("", attention(q, k, v, causal));
                       add(" (with lse)", both.out);
                       add(" (definition)", attention_reference(q, k, v, causal));
                       return results;
                     }});

// The reference gradients of grad_* are central differences, good to about 1e-8.
const bool gradient =
    register_golden({"grad_sdpa_causal",
                     [](const GoldenCase& c, DType dtype) -> GoldenResults {
                       const Tensor q = c.get("q", dtype).requires_grad_(), k = c.get("k", dtype).requires_grad_();
                       const Tensor v = c.get("v", dtype).requires_grad_();
                       AttentionOptions causal;
                       causal.mask.causal = true;
                       const Tensor out = attention(q, k, v, causal);
                       const std::vector<Tensor> g = grad({out}, {q, k, v}, {.grad_outputs = {c.get("cot", dtype)}});
                       return {{"out", out}, {"d_q", g[0]}, {"d_k", g[1]}, {"d_v", g[2]}};
                     },
                     1e-6});

// e^s/(1 + Σ e^s) of given scores: queries s, keys and values the identity matrix.
const bool off_by_one =
    register_golden({"softmax_off1", [](const GoldenCase& c, DType dtype) -> GoldenResults {
                       const Tensor s = c.get("s", dtype), identity = eye(s.dim(1), -1, {dtype});
                       AttentionOptions o;
                       o.scale = 1, o.sink = zeros({1}, {dtype});
                       return {{"out", attention(s, identity, identity, o)},
                               {"out (map)", select(select(attention_map(s, identity, o), 0, 0), 0, 0)}};
                     }});

/// The layer of a case: weights, RoPE, heads.
MultiHeadAttention layer_of(const GoldenCase& c, MultiHeadAttentionOptions o, DType dtype) {
  o.heads.dim = c.get("x").dim(1);
  o.heads.heads = static_cast<int64_t>(c.number("h")), o.heads.kv_heads = static_cast<int64_t>(c.number("g"));
  o.heads.head_dim = c.get("wq").dim(1) / o.heads.heads;
  o.heads.use_rope = c.text("rope") == "half";
  o.heads.dtype = dtype;
  Rng rng(1);
  MultiHeadAttention a(o, rng);
  a.heads.q.weight = c.get("wq", dtype), a.heads.k.weight = c.get("wk", dtype), a.heads.v.weight = c.get("wv", dtype);
  a.heads.out.weight = c.get("wo", dtype);
  if (!a.gates.empty()) a.gates[0].map.weight = c.get("wg", dtype);
  return a;
}

Tensor whole(const MultiHeadAttention& a, const Tensor& x) { return select(a(unsqueeze(x, 0)), 0, 0); }
Tensor in_pieces(const MultiHeadAttention& a, const Tensor& x) {
  return select(streamed(a, unsqueeze(x, 0), {4, 1, 1}), 0, 0);
}

const bool shared_heads = register_golden({"gqa_", [](const GoldenCase& c, DType dtype) -> GoldenResults {
                                             MultiHeadAttentionOptions o{.heads = {.dim = 1}};
                                             o.heads.causal = c.number("causal") != 0;
                                             const MultiHeadAttention a = layer_of(c, o, dtype);
                                             const Tensor x = c.get("x", dtype);
                                             GoldenResults results{{"out", whole(a, x)}};
                                             if (o.heads.causal)
                                               results.emplace_back("out (streamed)", in_pieces(a, x));
                                             return results;
                                           }});

/// From qwen_<place>_<granularity>_<mul|add>_<activation>_sh<0|1>_qn<0|1>.
MultiHeadAttention gated_layer_of(const GoldenCase& c, DType dtype) {
  auto says = [&](const char* text) { return c.name.find(text) != std::string::npos; };
  AttentionGateOptions g;
  g.position = static_cast<GatePosition>(c.name[c.name.find("_G") + 2] - '1');
  g.granularity = says("headwise") ? GateGranularity::headwise : GateGranularity::elementwise;
  g.mode = says("_add_") ? GateMode::add : GateMode::multiply;
  g.activation = says("ns_sigmoid") ? Act::ns_sigmoid : says("silu") ? Act::silu : Act::sigmoid;
  g.sharing = says("_sh1") ? GateSharing::scores : GateSharing::none;
  MultiHeadAttentionOptions o{.heads = {.dim = 1}};
  o.heads.causal = true, o.qk_norm = !says("_qn0"), o.gates = {g};
  MultiHeadAttention a = layer_of(c, o, dtype);
  if (o.qk_norm) a.q_norm.options.eps = a.k_norm.options.eps = c.number("qk_norm_eps");
  return a;
}

const bool gated = register_golden({"qwen_", [](const GoldenCase& c, DType dtype) -> GoldenResults {
                                      const MultiHeadAttention a = gated_layer_of(c, dtype);
                                      const Tensor x = c.get("x", dtype);
                                      return {{"out", whole(a, x)}, {"out (streamed)", in_pieces(a, x)}};
                                    }});

const bool gated_gradient =
    register_golden({"grad_qwen_",
                     [](const GoldenCase& c, DType dtype) -> GoldenResults {
                       MultiHeadAttention a = gated_layer_of(c, dtype);
                       Tensor x = c.get("x", dtype);
                       const std::vector<std::pair<std::string, Tensor*>> inputs{{"d_x", &x},
                                                                                 {"d_wq", &a.heads.q.weight},
                                                                                 {"d_wk", &a.heads.k.weight},
                                                                                 {"d_wv", &a.heads.v.weight},
                                                                                 {"d_wo", &a.heads.out.weight},
                                                                                 {"d_wg", &a.gates[0].map.weight}};
                       std::vector<Tensor> wanted;
                       for (const auto& [name, tensor] : inputs) wanted.push_back(tensor->requires_grad_());
                       const Tensor out = whole(a, x);
                       const std::vector<Tensor> g = grad({out}, wanted, {.grad_outputs = {c.get("cot", dtype)}});
                       GoldenResults results{{"out", out}};
                       for (std::size_t i = 0; i < inputs.size(); ++i) results.emplace_back(inputs[i].first, g[i]);
                       return results;
                     },
                     1e-6});

}  // namespace
