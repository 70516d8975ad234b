// Runners of the FLASH cases. Those cases are the inner function of the layer, F(x) = (U ⊙ (quad + lin))·Wo,
// without norm and without residual. Each case runs twice: through Flash, and by hand around
// mixed_chunk_attention.
#include "golden/golden.h"
#include "support/approx.h"
#include "support/catch.h"

#include <sluice/autograd/engine.h>
#include <sluice/layers/gau/flash.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/shape/view.h>

using namespace sluice;
using namespace sluice::testing;

namespace {

FlashOptions options_of(const GoldenCase& c, DType dtype) {
  FlashOptions o{.dim = c.get("x").dim(1), .expansion = c.get("wu").dim(1), .key_dim = c.get("wz").dim(1)};
  o.chunk = static_cast<int64_t>(c.number("C"));
  o.causal = c.number("causal", c.name.ends_with("c1") ? 1 : 0) != 0;
  o.kind = from_name<GauKind>(c.text("kind", "su"));
  const std::string scaling = c.text("scaling");
  if (scaling != "su" && scaling != "lucid") fail<ValueError>("golden: ", c.name, " has the unknown scaling ", scaling);
  o.scaling = scaling == "lucid" ? ChunkScaling::lucid : ChunkScaling::su;
  o.use_rope = !c.text("rope").empty();
  o.linear_bias = false;
  o.norm = NormKind::none;
  o.dtype = dtype;
  return o;
}

Flash layer_of(const GoldenCase& c, DType dtype) {
  Rng rng(1);
  Flash flash(options_of(c, dtype), rng);
  flash.in.weight = cat({c.get("wu", dtype), c.get("wv", dtype), c.get("wz", dtype)}, 1).requires_grad_();
  flash.out.weight = c.get("wo", dtype).requires_grad_();
  flash.gamma = c.get("gamma", dtype).requires_grad_();
  flash.beta = c.get("beta", dtype).requires_grad_();
  return flash;
}

/// F(x) through the layer: its output minus the residual.
Tensor inner(const Flash& flash, const Tensor& x) {
  const Tensor batched = unsqueeze(x, 0);
  return select(flash(batched) - batched, 0, 0);
}

struct Parts {
  Tensor x, wu, wv, wz, wo, gamma, beta;
  Parts(const GoldenCase& c, DType t)
      : x(c.get("x", t)), wu(c.get("wu", t)), wv(c.get("wv", t)), wz(c.get("wz", t)), wo(c.get("wo", t)),
        gamma(c.get("gamma", t)), beta(c.get("beta", t)) {}
  Tensor operator()(const GoldenCase& c) const {
    const FlashOptions o = options_of(c, x.dtype());
    const Tensor z = silu(matmul(x, wz));
    std::vector<Tensor> four;
    for (int64_t i = 0; i < 4; ++i) {
      const Tensor t = select(gamma, 0, i) * z + select(beta, 0, i);
      four.push_back(unsqueeze(o.use_rope ? rope(t) : t, 0));
    }
    const Tensor v = unsqueeze(silu(matmul(x, wv)), 0);
    const Tensor mixed =
        mixed_chunk_attention(four[0], four[1], four[2], four[3], v,
                              {.chunk = o.chunk, .causal = o.causal, .kind = o.kind, .scaling = o.scaling});
    return matmul(silu(matmul(x, wu)) * select(mixed, 0, 0), wo);
  }
};

const bool outputs = register_golden(
    {"flash_", [](const GoldenCase& c, DType dtype) -> GoldenResults {
       return {{"out", inner(layer_of(c, dtype), c.get("x", dtype))}, {"out (by hand)", Parts(c, dtype)(c)}};
     }});

// The reference gradients are central differences, good to about 1e-8.
const bool gradients = register_golden({"grad_flash_",
                                        [](const GoldenCase& c, DType dtype) -> GoldenResults {
                                          const Flash flash = layer_of(c, dtype);
                                          Tensor x = c.get("x", dtype).requires_grad_();
                                          const Tensor out = inner(flash, x);
                                          Parts p(c, dtype);
                                          return unit_gradients(c, dtype, flash, x, out, p,
                                                                {{"d_x", &p.x},
                                                                 {"d_wu", &p.wu},
                                                                 {"d_wv", &p.wv},
                                                                 {"d_wz", &p.wz},
                                                                 {"d_wo", &p.wo},
                                                                 {"d_gamma", &p.gamma},
                                                                 {"d_beta", &p.beta}});
                                        },
                                        1e-6});

}  // namespace
