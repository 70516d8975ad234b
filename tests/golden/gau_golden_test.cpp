// Runners of the GAU cases. Those cases are the inner function of the layer, F(x) = (U ⊙ A·V)·Wo:
// without norm and without residual; gau_pad_su is without RoPE and bias too. Their bias is a Toeplitz matrix,
// so the whole layer can run them. Each case runs twice: through Gau, and through gau_attention.
#include "golden/golden.h"
#include "support/approx.h"
#include "support/catch.h"

#include <sluice/autograd/engine.h>
#include <sluice/layers/gau/gau.h>
#include <sluice/layers/gau/tutorial_gau.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/shape/view.h>

#include <cmath>

using namespace sluice;
using namespace sluice::testing;

namespace {

GauLength length_of(const GoldenCase& c) {
  return c.text("length", "n") == "visible" ? GauLength::visible : GauLength::n;
}
bool is_causal(const GoldenCase& c) { return c.number("causal", c.name.ends_with("causal") ? 1 : 0) != 0; }

/// w with b_ij = w[n − 1 + j − i].
Tensor diagonals(const Tensor& b) {
  const int64_t n = b.dim(0);
  return cat({flip(narrow(select(b, 1, 0), 0, 1, n - 1), {0}), select(b, 0, 0)});
}

Gau layer_of(const GoldenCase& c, DType dtype) {
  const Tensor x = c.get("x"), wu = c.get("wu", dtype), wv = c.get("wv", dtype), wz = c.get("wz", dtype);
  Rng rng(1);
  GauOptions o{.dim = x.dim(1), .expansion = wu.dim(1), .key_dim = wz.dim(1)};
  o.linear_bias = false;
  o.kind = from_name<GauKind>(c.text("kind"));
  o.causal = is_causal(c);
  o.length = length_of(c);
  o.use_rope = !c.text("rope").empty();
  o.bias = c.has("bias") ? GauBias::toeplitz : GauBias::none;
  o.max_length = x.dim(0);
  o.norm = NormKind::none;
  o.dtype = dtype;
  Gau gau(o, rng);
  gau.in.weight = cat({wu, wv, wz}, 1).requires_grad_();
  gau.out.weight = c.get("wo", dtype).requires_grad_();
  gau.gamma = c.get("gamma", dtype).requires_grad_();
  gau.beta = c.get("beta", dtype).requires_grad_();
  if (c.has("bias")) gau.toeplitz_bias = contiguous(diagonals(c.get("bias", dtype))).requires_grad_();
  return gau;
}

Tensor key_mask_of(const GoldenCase& c) { return c.has("pad") ? unsqueeze(c.get("pad") > 0.5, 0) : Tensor(); }

/// F(x) through the layer: its output minus the residual.
Tensor inner(const Gau& gau, const Tensor& x, const Tensor& key_mask) {
  const Tensor batched = unsqueeze(x, 0);
  return select(gau(batched, {.key_mask = key_mask}) - batched, 0, 0);
}

/// F(x) by hand around gau_attention, for a bias that is any matrix.
struct Parts {
  Tensor x, wu, wv, wz, wo, gamma, beta, bias;
  Parts(const GoldenCase& c, DType t)
      : x(c.get("x", t)), wu(c.get("wu", t)), wv(c.get("wv", t)), wz(c.get("wz", t)), wo(c.get("wo", t)),
        gamma(c.get("gamma", t)), beta(c.get("beta", t)) {
    if (c.has("bias")) bias = c.get("bias", t);
  }
  Tensor operator()(const GoldenCase& c) const {
    const Tensor z = silu(matmul(x, wz));
    Tensor q = select(gamma, 0, 0) * z + select(beta, 0, 0), k = select(gamma, 0, 1) * z + select(beta, 0, 1);
    if (!c.text("rope").empty()) q = rope(q), k = rope(k);
    GauAttentionOptions o{.kind = from_name<GauKind>(c.text("kind")), .length = length_of(c), .bias = bias};
    o.mask.causal = is_causal(c);
    if (c.has("pad")) o.mask.keys = unsqueeze(c.get("pad") > 0.5, 0);
    return matmul(silu(matmul(x, wu)) * gau_attention(q, k, silu(matmul(x, wv)), o), wo);
  }
};

const bool gaus = register_golden({"gau_", [](const GoldenCase& c, DType dtype) -> GoldenResults {
                                     Tensor out = inner(layer_of(c, dtype), c.get("x", dtype), key_mask_of(c));
                                     // What the layer returns for padded tokens is not specified; gau_attention has
                                     // nothing to choose there.
                                     if (c.has("pad"))
                                       out = where(unsqueeze(c.get("pad") > 0.5, 1), out, c.get("out", dtype));
                                     return {{"out", out}, {"out (by hand)", Parts(c, dtype)(c)}};
                                   }});

// The reference gradients are central differences, good to about 1e-8.
const bool gradients = register_golden({"grad_gau_",
                                        [](const GoldenCase& c, DType dtype) -> GoldenResults {
                                          const Gau gau = layer_of(c, dtype);
                                          Tensor x = c.get("x", dtype).requires_grad_();
                                          const Tensor out = inner(gau, x, {});
                                          Parts p(c, dtype);
                                          return unit_gradients(c, dtype, gau, x, out, p,
                                                                {{"d_x", &p.x},
                                                                 {"d_wu", &p.wu},
                                                                 {"d_wv", &p.wv},
                                                                 {"d_wz", &p.wz},
                                                                 {"d_wo", &p.wo},
                                                                 {"d_gamma", &p.gamma},
                                                                 {"d_beta", &p.beta},
                                                                 {"d_bias", &p.bias}});
                                        },
                                        1e-6});

const bool tutorial = register_golden(
    {"tutorial_gau", [](const GoldenCase& c, DType dtype) -> GoldenResults {
       GoldenResults results;
       const Tensor x = unsqueeze(c.get("x", dtype), 0);
       for (bool sigmoid_gate : {true, false}) {
         Rng rng(1);
         TutorialGau layer(
             {.dim = x.dim(2), .expansion = c.get("wu").dim(1), .sigmoid_gate = sigmoid_gate, .dtype = dtype}, rng);
         layer.wu = c.get("wu", dtype), layer.wv = c.get("wv", dtype), layer.wz = c.get("wz", dtype);
         results.emplace_back(sigmoid_gate ? "out" : "out_raw", select(layer(x), 0, 0));
       }
       return results;
     }});

}  // namespace

TEST_CASE("golden: the gradient of a Toeplitz table gathers that of the bias matrix", "[golden]") {
  const GoldenCase& c = golden_case("grad_gau_su_causal");
  const Gau gau = layer_of(c, f64);
  const Tensor dw = grad(inner(gau, c.get("x"), {}), gau.toeplitz_bias, {.grad_outputs = {c.get("cot")}});
  const std::vector<double> db = c.get("d_bias").to_vector<double>();
  const int64_t n = c.get("x").dim(0);
  std::vector<double> want(static_cast<std::size_t>(2 * n - 1), 0.0);
  for (int64_t i = 0; i < n; ++i)
    for (int64_t j = 0; j < n; ++j)
      want[static_cast<std::size_t>(n - 1 + j - i)] += db[static_cast<std::size_t>(i * n + j)];
  CHECK(max_abs_diff(dw, Tensor::from(want)) < 1e-6);
}
