// What --list prints.
#pragma once

#include "layer.h"

namespace layer_check {

/// All layers, or those given, as JSON.
std::string listing(const std::vector<const Layer*>& layers);

}  // namespace layer_check
