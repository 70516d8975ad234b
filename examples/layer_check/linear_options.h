// What the entries of linear attention have in common.
#pragma once

#include "layer.h"

namespace layer_check {

/// The parameters of a FeatureMap called `path`, whose options begin with `prefix`, of inputs of width `d`.
void feature_map_parameters(Layer& l, const std::string& path, const std::string& prefix, const std::string& d,
                            const std::string& when);

}  // namespace layer_check
