// Runners of the cases with textbook gates: no biases, no output projection, one head.
#include "golden/golden.h"

#include <sluice/autograd/engine.h>
#include <sluice/layers/attention/fused_attention.h>
#include <sluice/layers/attention/gated_cross_attention.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/shape/view.h>

using namespace sluice;
using namespace sluice::testing;

namespace {

/// The case gives Q, K and V themselves: the projections are the identity, and K and V the halves of the context.
const bool cross = register_golden(
    {"gated_cross", [](const GoldenCase& c, DType dtype) -> GoldenResults {
       GoldenResults results;
       for (CrossGate reading : {CrossGate::per_query, CrossGate::pooled}) {
         Rng rng(1);
         const int64_t d = c.get("wg").dim(0);
         GatedCrossAttentionOptions o{.heads = {.dim = d, .context_dim = 2 * d, .project_out = false, .dtype = dtype},
                                      .reading = reading};
         GatedCrossAttention l(o, rng);
         const Tensor same = eye(d, d, {dtype}), none = zeros({d, d}, {dtype});
         l.heads.q.weight = same, l.heads.k.weight = cat({same, none}, 0), l.heads.v.weight = cat({none, same}, 0);
         l.gate.weight = c.get("wg", dtype);
         const Tensor context = cat({c.get("k", dtype), c.get("v", dtype)}, 1);
         const Tensor y = l(unsqueeze(c.get("q", dtype), 0), {.context = unsqueeze(context, 0)});
         results.emplace_back(std::string(name_of(reading)), select(y, 0, 0));
       }
       return results;
     }});

FusedAttention fused_of(const GoldenCase& c, DType dtype) {
  Rng rng(1);
  FusedAttentionOptions o{.heads = {.dim = c.get("wq").dim(0), .head_dim = c.get("wq").dim(1), .causal = true},
                          .chunk = 4};
  o.eps = 0, o.heads.project_out = false, o.heads.dtype = dtype;
  FusedAttention l(o, rng);
  l.heads.q.weight = c.get("wq", dtype).requires_grad_(), l.heads.k.weight = c.get("wk", dtype).requires_grad_();
  l.heads.v.weight = c.get("wv", dtype).requires_grad_(), l.gate.weight = c.get("wg", dtype).requires_grad_();
  return l;
}

const bool fused =
    register_golden({"fused_c1", [](const GoldenCase& c, DType dtype) -> GoldenResults {
                       return {{"out", select(fused_of(c, dtype)(unsqueeze(c.get("x", dtype), 0)), 0, 0)}};
                     }});

// The reference gradients are central differences, good to about 1e-8.
const bool gradients = register_golden(
    {"grad_fused_causal",
     [](const GoldenCase& c, DType dtype) -> GoldenResults {
       const FusedAttention l = fused_of(c, dtype);
       Tensor x = c.get("x", dtype).requires_grad_();
       const Tensor out = select(l(unsqueeze(x, 0)), 0, 0);
       const std::vector<Tensor> g =
           grad({out}, {x, l.heads.q.weight, l.heads.k.weight, l.heads.v.weight, l.gate.weight},
                {.grad_outputs = {c.get("cot", dtype)}});
       return {{"out", out}, {"d_x", g[0]}, {"d_wq", g[1]}, {"d_wk", g[2]}, {"d_wv", g[3]}, {"d_wg", g[4]}};
     },
     1e-6});

}  // namespace
