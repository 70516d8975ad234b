// What the FLASH layers and the models made of them have in common.
#pragma once

#include "shared.h"

#include <sluice/layers/gau/flash.h>

namespace layer_check {

/// Formulas over flash_options and the derived names e and s.
std::vector<ParameterInfo> flash_parameters(const std::string& path, const std::string& repeat);
/// x, key_mask, segments.
std::vector<InputInfo> sequence_inputs(const std::string& x);

}  // namespace layer_check
