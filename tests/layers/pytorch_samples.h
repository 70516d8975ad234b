// What tests of load_pytorch share.
#pragma once

#include <sluice/layers/port/pytorch.h>

#include "support/approx.h"
#include "support/catch.h"
#include "support/temp_folder.h"

#include <sluice/core/node.h>
#include <sluice/core/text/safetensors.h>
#include <sluice/layers/nn/linear.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/shape/view.h>

namespace sluice::testing {

/// Values that tell every place of a tensor from every other: first, first + 1, …
inline Tensor counted(const Shape& shape, double first, DType dtype = f64) {
  return to(reshape(arange(first, first + static_cast<double>(shape.numel()), 1, {f64}), shape), dtype);
}

/// Every value of a model's state, to see that nothing changed.
template <class M> std::vector<Tensor> values(const M& m) {
  std::vector<Tensor> out;
  for (const NamedTensor& t : state_dict(m)) out.push_back(clone(t.tensor.detach()));
  return out;
}
inline bool equal(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), same_bits);
}
/// Fills a model with values that no initialisation has.
template <class M> void fill(const M& m, uint64_t seed) {
  Rng rng(seed);
  NoGrad guard;
  for (NamedTensor t : state_dict(m))
    if (is_float(t.tensor.dtype())) copy_(t.tensor, normal(t.tensor.shape(), 0, 1, rng));
}

/// What loading a file of these tensors says; "" if nothing. The model must be as before, then.
template <class M>
std::string refusal(const M& m, const std::map<std::string, Tensor>& tensors, const PyTorchRules& rules = {},
                    const PyTorchOptions& options = {}, const std::map<std::string, std::string>& metadata = {}) {
  TempFolder folder;
  save_safetensors(folder / "file.safetensors", {tensors, metadata});
  const std::vector<Tensor> before = values(m);
  try {
    load_pytorch(m, folder / "file.safetensors", rules, options);
    return "";
  } catch (const Error& e) {
    CHECK(equal(values(m), before));
    return e.what();
  }
}

/// Writes m by these rules and reads the file into `other`.
template <class M> bool comes_back(const M& m, const M& other, const PyTorchRules& rules = {}) {
  TempFolder folder;
  fill(m, 1), fill(other, 2);
  REQUIRE_FALSE(equal(values(m), values(other)));
  save_pytorch(m, folder / "m.safetensors", rules, "model.");
  load_pytorch(other, folder / "m.safetensors", rules, {.prefix = "model."});
  return equal(values(m), values(other));
}

struct Mixed {
  Tensor number = zeros({}).requires_grad_(), table = arange(3), in = ones({2, 3}).requires_grad_(), out = in;
  Embedding embedding;
  SLUICE_PARTS(number, table, in, out, embedding);
};

}  // namespace sluice::testing
