// The table of calls: one entry per public op.
#pragma once

#include "fuzz/draw.h"

#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace sluice::testing {

/// Calls an op with drawn arguments; returns the tensors that came out.
using OpCall = std::function<std::vector<Tensor>(Draw&)>;
using OpCalls = std::vector<std::pair<std::string, OpCall>>;
const OpCalls& op_calls();
void add_selection_calls(OpCalls& calls);

}  // namespace sluice::testing
