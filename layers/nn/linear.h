// Linear maps, embeddings and dropout.
#pragma once

#include <sluice/layers/nn/init.h>
#include <sluice/layers/nn/module.h>
#include <sluice/ops/elementwise/dropout.h>
#include <sluice/ops/index/gather.h>
#include <sluice/ops/matmul/matmul.h>

namespace sluice {

struct Pass;  // layers/nn/pass.h; of it the layers below, which map each token by itself, read at most the rng

namespace detail {
/// Throws ValueError naming `layer`, of this width, if it is 0: the layer was not made from options.
void check_made(const char* layer, int64_t dim);
}  // namespace detail

struct LinearOptions {
  using Layer = struct Linear;
  int64_t in, out;
  bool bias = true;
  Init init = Init::lecun();
  DType dtype = f32;

  static void describe(auto& o, auto& f) {
    f.required("in_dim", o.in, at_least(1), "width of x");
    f.required("out_dim", o.out, at_least(1), "width of y");
    f("bias", o.bias, "add b");
    describe_parameters(o, f);
  }
};

/// y = x·W + b, x [..., in] → [..., out]. The weight is [in, out], as in the formula; PyTorch stores its transpose.
struct Linear {
  static constexpr const char* type = "Linear";
  LinearOptions options{};
  Tensor weight, bias;

  Linear() = default;
  Linear(LinearOptions o, Rng& rng);
  /// Throws ShapeError unless the last dim of x is `in`.
  Tensor operator()(const Tensor& x) const {
    ModuleScope scope(this, type);
    return linear(x, weight, bias);
  }
  Tensor operator()(const Tensor& x, const Pass&) const { return (*this)(x); }
  SLUICE_PARTS(weight, bias);
};

struct EmbeddingOptions {
  using Layer = struct Embedding;
  int64_t count, dim;
  double std = 0.02;
  DType dtype = f32;

  static void describe(auto& o, auto& f) {
    f.required("count", o.count, at_least(1), "number of rows");
    f.required("dim", o.dim, at_least(1), "width");
    f.training("std", o.std, at_least(0), "of initial values");
    f.training("dtype", o.dtype, "of the parameters");
  }
};

/// Rows of a table: indices [...] → [..., dim].
struct Embedding {
  static constexpr const char* type = "Embedding";
  EmbeddingOptions options{};
  Tensor weight;  // [count, dim]

  Embedding() = default;
  Embedding(EmbeddingOptions o, Rng& rng);
  /// `index` must be i64 or i32, of any shape. Throws ValueError naming an index outside [0, count).
  Tensor operator()(const Tensor& index) const {
    ModuleScope scope(this, type);
    return embedding(weight, index);
  }
  Tensor operator()(const Tensor& index, const Pass&) const { return (*this)(index); }
  SLUICE_PARTS(weight);
};

/// Inverted dropout. The caller passes the generator. Without one the layer is the identity, as evaluation needs it.
struct Dropout {
  static constexpr const char* type = "Dropout";
  double p = 0;  // share of elements set to 0; the other elements are multiplied by 1/(1 − p)

  /// Returns x with elements set to 0; x itself without rng.
  Tensor operator()(const Tensor& x, Rng* rng) const { return dropout(x, p, rng); }
  Tensor operator()(const Tensor& x, const Pass& pass) const;
  static void visit(auto&, auto&&) {}
};

}  // namespace sluice
