// A tensor and what it is called: the unit of parameter lists, error messages and files.
#pragma once

#include <sluice/core/tensor.h>

#include <string>

namespace sluice {

struct NamedTensor {
  std::string name;
  Tensor tensor;
};

}  // namespace sluice
