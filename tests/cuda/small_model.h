// The model whose steps the tests of graphs record.
#pragma once

#include <sluice/autograd/function.h>
#include <sluice/layers/gau/gau.h>
#include <sluice/layers/nn/linear.h>
#include <sluice/ops/attention/attention.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/elementwise/dropout.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/shape/view.h>

namespace sluice::testing {

/// A language model of 13 symbols. With an rng: dropout of elements, of GAU's and of attention's weights, in a segment
/// that is run again in the backward pass, too; and noise.
struct Model {
  Embedding embedding;
  Gau gau;
  Linear head;
  explicit Model(DType dtype = f32) {
    Rng rng(1);
    embedding = Embedding({.count = 13, .dim = 16, .dtype = dtype}, rng);
    GauOptions o{.dim = 16, .key_dim = 8, .causal = true, .dtype = dtype};
    o.dropout = 0.1;
    gau = Gau(o, rng);
    head = Linear({.in = 16, .out = 13, .dtype = dtype}, rng);
  }
  Tensor operator()(const Tensor& tokens, const Pass& pass = {}) const {
    Tensor x = embedding(tokens);
    Rng* rng = pass.rng;
    if (!rng) return head(gau(x));
    x = checkpoint([this, rng](const std::vector<Tensor>& in) { return gau(dropout(in[0], 0.2, *rng), {.rng = rng}); },
                   {x});
    x = x + to(normal(x.shape(), 0, 0.01, *rng, {f32, tokens.device()}), x.dtype());
    x = where(bernoulli(x.shape(), 0.9, *rng, tokens.device()), x, zeros_like(x));
    const Tensor y = unsqueeze(x, 1);
    return head(x + squeeze(attention(y, y, y, {.mask = {.causal = true}, .dropout = 0.3}, rng), 1));
  }
  SLUICE_PARTS(embedding, gau, head);
};

/// Symbols on the device.
inline Tensor tokens(int seed, const Shape& shape) {
  Rng rng(static_cast<uint64_t>(seed));
  return to(randint(0, 13, shape, rng), Device::cuda());
}

}  // namespace sluice::testing
