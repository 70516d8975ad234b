// A picture of the tape: the recorded ops behind a tensor, as Graphviz text.
#pragma once

#include <sluice/core/tensor.h>

#include <string>
#include <utility>
#include <vector>

namespace sluice {

/// Ellipses are ops with the shapes of their results, boxes are leaves; `names` labels chosen tensors (parameters,
/// say). Render with `dot -Tsvg`. A constant gives an empty graph.
std::string to_dot(const Tensor& y, const std::vector<std::pair<std::string, Tensor>>& names = {});

}  // namespace sluice
