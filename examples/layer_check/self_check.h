// Compares the formulas that --list prints with the layers themselves.
#pragma once

#include <string>

namespace layer_check {

/// Builds every layer at its defaults and at its example options, runs it forward and backward on random inputs,
/// and compares parameter names, parameter shapes and output shapes with the formulas. Appends a line per layer to
/// `report`; false when anything differs.
bool self_check(std::string& report);

}  // namespace layer_check
