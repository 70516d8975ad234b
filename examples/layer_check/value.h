// What an option can be, and variables of a formula.
#pragma once

#include <sluice/core/json.h>

#include <map>

namespace layer_check {

using sluice::Json;
using Values = std::map<std::string, Json>;

}  // namespace layer_check
