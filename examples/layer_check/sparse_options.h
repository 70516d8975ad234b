// What the entries of sparse attention have in common.
#pragma once

#include "choices.h"

#include <sluice/layers/heads/sinkhorn.h>
#include <sluice/layers/heads/sparse_attention.h>

namespace layer_check {

inline const Choices<sluice::TopKTies>& topk_ties() {
  static const Choices<sluice::TopKTies> all{{"index", sluice::TopKTies::index},
                                             {"threshold", sluice::TopKTies::threshold}};
  return all;
}
void threshold_options(Options& v, sluice::ThresholdMode& mode, double& tau, double& temperature,
                       std::optional<bool>& include_self);
void sinkhorn_options(Options& v, sluice::SinkhornOptions& o);

/// q, k, v, key_mask and more.
std::vector<InputInfo> qkv_inputs(std::vector<InputInfo> more);

}  // namespace layer_check
