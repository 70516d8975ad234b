// What the entries of sparse attention have in common.
#pragma once

#include "shared.h"

#include <sluice/layers/heads/sinkhorn.h>
#include <sluice/layers/heads/sparse_attention.h>

namespace layer_check {

/// mode, tau, temperature, include_self.
void threshold_options(auto& o, auto& f) {
  f("mode", o.mode, "what f > tau does");
  f("tau", o.tau, sluice::OptionRange{.infinite = true}, "threshold; \"-inf\": all pairs");
  f("temperature", o.temperature, sluice::above(0), "T of soft");
  f("include_self", o.include_self, "j = i is visible whatever f says; null: no for soft, else yes");
}

/// q, k, v, key_mask and more.
std::vector<InputInfo> qkv_inputs(std::vector<InputInfo> more);

}  // namespace layer_check
