// Runners of the sparse cases: top-k, thresholds, Sinkhorn. One head, without projections.
#include "golden/golden.h"

#include <sluice/autograd/engine.h>
#include <sluice/layers/attention/sinkhorn.h>
#include <sluice/layers/attention/sparse_attention.h>

using namespace sluice;
using namespace sluice::testing;

namespace {

const bool topk =
    register_golden({"topk_", [](const GoldenCase& c, DType dtype) -> GoldenResults {
                       GoldenResults results;
                       for (TopKTies ties : {TopKTies::index, TopKTies::threshold})  // no two scores are equal
                         results.emplace_back(ties == TopKTies::index ? "out" : "out (threshold)",
                                              topk_attention(c.get("q", dtype), c.get("k", dtype), c.get("v", dtype),
                                                             {.k = static_cast<int64_t>(c.number("k")), .ties = ties}));
                       return results;
                     }});

const bool thresholds = register_golden(
    {"threshold", [](const GoldenCase& c, DType dtype) -> GoldenResults {
       auto run = [&](ThresholdMode mode) {
         ThresholdOptions o{.mode = mode, .tau = c.number("tau"), .temperature = c.number("temp")};
         if (mode != ThresholdMode::soft) o.include_self = c.number("include_self_in_hard") != 0;
         return threshold_attention(c.get("q", dtype), c.get("k", dtype), c.get("v", dtype), c.get("f", dtype), o);
       };
       return {{"hard", run(ThresholdMode::hard)},
               {"soft", run(ThresholdMode::soft)},
               {"hard (straight through)", run(ThresholdMode::straight_through)}};
     }});

// `row` ends with a row step, `col` with a column step; `attn` is row-last Sinkhorn of q·kᵀ/√d, applied to v.
const bool sinkhorns = register_golden(
    {"sinkhorn_", [](const GoldenCase& c, DType dtype) -> GoldenResults {
       const SinkhornOptions rows{.lambda = c.number("lam"), .iterations = static_cast<int64_t>(c.number("iters"))};
       SinkhornOptions columns = rows, literal = rows;
       columns.last = SinkhornLast::columns;
       literal.variant = SinkhornVariant::literal;
       const Tensor s = c.get("S", dtype);
       return {
           {"row", sinkhorn(s, rows)},
           {"col", sinkhorn(s, columns)},
           {"literal", sinkhorn(s, literal)},
           {"attn", sinkhorn_attention(c.get("q", dtype), c.get("k", dtype), c.get("v", dtype), {.sinkhorn = rows})}};
     }});

const bool topk_gradients = register_golden(
    {"grad_topk_",
     [](const GoldenCase& c, DType dtype) -> GoldenResults {
       const std::vector<Tensor> in{c.get("q", dtype).requires_grad_(), c.get("k", dtype).requires_grad_(),
                                    c.get("v", dtype).requires_grad_()};
       const Tensor out = topk_attention(in[0], in[1], in[2], {.k = static_cast<int64_t>(c.number("k"))});
       const std::vector<Tensor> g = grad({out}, in, {.grad_outputs = {c.get("cot", dtype)}});
       return {{"out", out}, {"d_q", g[0]}, {"d_k", g[1]}, {"d_v", g[2]}};
     },
     1e-6});

}  // namespace
