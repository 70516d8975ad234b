// One case: a layer run forward and backward on tensors from a file.
#pragma once

#include "layer.h"

#include <sluice/core/text/safetensors.h>

namespace layer_check {

struct RunSettings {
  sluice::DType dtype = sluice::f64;
  sluice::Device device = sluice::cpu;
};

/// Options that were checked, and what they mean for the layer.
struct Prepared {
  const Layer* layer;
  Json options;  // all, with their defaults
  std::function<Instance(sluice::DType)> build;
  std::vector<NamedTensor> state;  // parameters: names and shapes, of a layer on meta
};
/// ValueError for unknown layers, options that do not fit, and sizes beyond the memory of this machine. `config` is an
/// object.
Prepared prepare(const std::string& layer, const Json& config);

/// The options of a case: a JSON object. ValueError for anything else.
Json parse_config(const std::string& text);

/// Checks names, dtypes, shapes and values of the inputs of a case; float inputs become leaves.
Inputs checked_inputs(const Prepared& p, const std::map<std::string, Tensor>& given);

/// "param.a (did you mean …?), param.b are not parameters with these options", where `what` is "a parameter".
std::string not_there(const std::vector<std::string>& names, std::string what, const std::vector<std::string>& known);

/// Runs the case file and returns what is to be written. Throws sluice::Error naming what does not fit.
sluice::SafeTensors run_case(const sluice::SafeTensors& file, const RunSettings& settings);

/// Forward and backward with checked inputs: outputs by name, then grad.input.* and grad.param.*; `cotangents` by
/// output name, "" for the main one.
std::map<std::string, Tensor> forward_backward(const Instance& made, const Inputs& inputs,
                                               const std::map<std::string, Tensor>& cotangents);

}  // namespace layer_check
