// The cases of tests/golden/next, made with other packages in f64 (numbers only). A file's metadata say which layer it
// is, with which options, and where the numbers are from.
#pragma once

#include "support/approx.h"
#include "support/catch.h"
#include "support/folders.h"

#include <sluice/autograd/engine.h>
#include <sluice/core/text/options.h>
#include <sluice/core/text/safetensors.h>
#include <sluice/layers/nn/module.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/rows/reduce.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/shape/view.h>

#include <map>
#include <string>
#include <vector>

namespace sluice::testing {

struct Golden {
  SafeTensors file;
  Json config;
  std::map<std::string, Tensor> inputs;  // leaves

  explicit Golden(const std::string& name)
      : file(load_safetensors(source_folder() + "/tests/golden/next/" + name + ".safetensors")),
        config(parse_json(file.metadata.at("config"))) {
    for (const auto& [key, value] : file.tensors)
      if (key.starts_with("input.")) {
        inputs[key.substr(6)] = clone(value);
        if (is_float(value.dtype())) inputs[key.substr(6)].requires_grad_();
      }
  }
  Tensor input(const std::string& name) const {
    const auto at = inputs.find(name);
    return at == inputs.end() ? Tensor() : at->second;
  }
  static void close(const std::string& what, const Tensor& got, const Tensor& want) {
    INFO(what);
    REQUIRE(got.defined());
    REQUIRE(got.shape() == want.shape());
    CHECK(max_abs_diff(got, want) <= 1e-9 * std::max(1e-3, max_abs(want)));
  }
  /// Compares the outputs and, of them, the gradients of all inputs and of the layer's parameters.
  void check(const std::map<std::string, Tensor>& outputs, const std::vector<NamedTensor>& parameters = {}) const {
    Tensor total;
    for (const auto& [name, y] : outputs) {
      const std::string end = name.empty() ? "" : "." + name;
      Tensor want = file.tensors.at("output" + end), got = y.detach();
      if (name.empty() && inputs.contains("key_mask")) {  // what padded rows hold is not compared
        const Tensor padding = unsqueeze(logical_not(inputs.at("key_mask")), -1);
        want = masked_fill(want, padding, 0), got = masked_fill(got, padding, 0);
      }
      close("output" + end, got, want);
      const Tensor term = sum(y * file.tensors.at("cotangent" + end));
      total = total.defined() ? total + term : term;
    }
    backward(total);
    for (const auto& [name, x] : inputs)
      if (is_float(x.dtype())) close("gradient of " + name, x.grad(), file.tensors.at("grad.input." + name));
    for (const NamedTensor& p : parameters)
      close("gradient of " + p.name, p.tensor.grad(), file.tensors.at("grad.param." + p.name));
  }
};

/// The layer of the case, with its weights.
template <class M, class Options> M loaded(const Golden& g) {
  Options o{};
  from_json(M::type, g.config, o);
  if constexpr (requires { o.heads.dtype; }) o.heads.dtype = f64;
  else o.dtype = f64;
  Rng rng(1);
  M layer(o, rng);
  std::map<std::string, Tensor> state;
  for (const auto& [key, value] : g.file.tensors)
    if (key.starts_with("param.")) state[key.substr(6)] = value;
  load_state(layer, state);
  return layer;
}

}  // namespace sluice::testing
