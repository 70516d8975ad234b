// A tensor and its name: the unit of parameter lists, error messages and files.
#pragma once

#include <sluice/core/tensor.h>

#include <string>

namespace sluice {

/// A tensor of a module and the tensor's path in the module, "blocks.0.norm.weight".
struct NamedTensor {
  std::string name;  // parts of the path joined by dots
  Tensor tensor;     // shares the storage of the module's tensor
};

}  // namespace sluice
