// Linear maps, embeddings and dropout.
#pragma once

#include <sluice/layers/nn/init.h>
#include <sluice/layers/nn/module.h>
#include <sluice/ops/dropout.h>
#include <sluice/ops/gather.h>
#include <sluice/ops/matmul.h>

namespace sluice {

struct LinearOptions {
  int64_t in, out;
  bool bias = true;
  Init init = Init::lecun();
  DType dtype = f32;
};

/// y = x·W + b, x [..., in] → [..., out]. The weight is [in, out], as formulas are written (PyTorch's is
/// its transpose).
struct Linear {
  static constexpr const char* type = "Linear";
  Tensor weight, bias;

  Linear() = default;
  Linear(LinearOptions o, Rng& rng)
      : weight(init_weight(o.in, o.out, o.init, rng, o.dtype)),
        bias(o.bias ? init_vector(o.out, 0, o.dtype) : Tensor()) {}
  Tensor operator()(const Tensor& x) const {
    ModuleScope scope(this, type);
    return linear(x, weight, bias);
  }
  static void visit(auto& self, auto&& f) {
    f("weight", self.weight);
    f("bias", self.bias);
  }
};

struct EmbeddingOptions {
  int64_t count, dim;
  double std = 0.02;
  DType dtype = f32;
};

/// Rows of a table: indices [...] → [..., dim].
struct Embedding {
  static constexpr const char* type = "Embedding";
  Tensor weight;  // [count, dim]

  Embedding() = default;
  Embedding(EmbeddingOptions o, Rng& rng) : weight(init_normal({o.count, o.dim}, o.std, rng, o.dtype)) {}
  Tensor operator()(const Tensor& index) const {
    ModuleScope scope(this, type);
    return embedding(weight, index);
  }
  static void visit(auto& self, auto&& f) { f("weight", self.weight); }
};

/// Inverted dropout. Randomness is passed in: with no generator the layer is the identity, which is what
/// evaluation wants.
struct Dropout {
  static constexpr const char* type = "Dropout";
  double p = 0;

  Tensor operator()(const Tensor& x, Rng* rng) const { return rng ? dropout(x, p, *rng) : x; }
  static void visit(auto&, auto&&) {}
};

}  // namespace sluice
