// One case: a layer run forward and backward on tensors from a file.
#pragma once

#include "layer.h"

#include <sluice/core/safetensors.h>

namespace layer_check {

struct RunSettings {
  sluice::DType dtype = sluice::f64;
  sluice::Device device = sluice::cpu;
};

/// Options that were checked, and what they mean for the layer.
struct Prepared {
  const Layer* layer;
  Json options;
  Values names;  // options and derived
  std::function<Instance(sluice::DType)> build;
};
/// ValueError for unknown layers, options that do not fit, and sizes beyond the memory of this machine. `config` is an
/// object.
Prepared prepare(const std::string& layer, const Json& config);

/// The options of a case: a JSON object. ValueError for anything else.
Json parse_config(const std::string& text);

/// The parameters that the formulas of the listing describe.
std::map<std::string, sluice::Shape> described_parameters(const Layer& layer, const Values& names);

/// The tensors of a layer's state: names, and shapes as text, one line.
std::string expected_parameters(const Instance& made);

/// Runs the case file and returns what is to be written. Throws sluice::Error naming what does not fit.
sluice::SafeTensors run_case(const sluice::SafeTensors& file, const RunSettings& settings);

/// Forward and backward with checked inputs: outputs by name, then grad.input.* and grad.param.*; `cotangents` by
/// output name, "" for the main one.
std::map<std::string, Tensor> forward_backward(const Instance& made, const Inputs& inputs,
                                               const std::map<std::string, Tensor>& cotangents);

}  // namespace layer_check
