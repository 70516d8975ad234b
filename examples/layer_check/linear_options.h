// What the entries of linear attention have in common.
#pragma once

#include "shared.h"

#include <sluice/layers/linear_time/linear_attention.h>

namespace layer_check {

/// The width of phi(x) for x of width `d`, as a formula.
std::string feature_count(const std::string& prefix, const std::string& d);
std::vector<ParameterInfo> feature_map_parameters(const std::string& path, const std::string& prefix,
                                                  const std::string& d, const std::string& when);

}  // namespace layer_check
