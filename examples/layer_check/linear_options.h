// What the entries of linear attention have in common.
#pragma once

#include "choices.h"

#include <sluice/layers/linear_time/linear_attention.h>

namespace layer_check {

inline const Choices<sluice::LinearDirection>& linear_directions() {
  using enum sluice::LinearDirection;
  static const Choices<sluice::LinearDirection> all{{"full", full},
                                                    {"causal", causal},
                                                    {"bidirectional", bidirectional},
                                                    {"two_direction_mean", two_direction_mean}};
  return all;
}
inline constexpr const char* kDirectionMeaning =
    "full: every key; causal: j <= i; bidirectional: forward + backward - diagonal, then divided (equals full; with "
    "decay gamma^|i-j|); two_direction_mean: mean of the two normalised directions";

inline const Choices<sluice::LinearNormalize>& linear_normalizers() {
  static const Choices<sluice::LinearNormalize> all{{"sum", sluice::LinearNormalize::sum},
                                                    {"none", sluice::LinearNormalize::none}};
  return all;
}

/// All but dim; `prefix` before every name.
void feature_map_options(Options& v, sluice::FeatureMapOptions& o, const std::string& prefix);
/// The width of phi(x) for x of width `d`, as a formula.
std::string feature_count(const std::string& prefix, const std::string& d);
std::vector<ParameterInfo> feature_map_parameters(const std::string& path, const std::string& prefix,
                                                  const std::string& d, const std::string& when);

}  // namespace layer_check
