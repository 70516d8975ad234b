// What the FLASH layers and the models made of them have in common.
#pragma once

#include "choices.h"
#include "option_lists.h"

namespace layer_check {

inline const Choices<sluice::ChunkScaling>& chunk_scalings() {
  using enum sluice::ChunkScaling;
  static const Choices<sluice::ChunkScaling> all{{"su", su}, {"lucid", lucid}, {"eq", eq}, {"paper_code", paper_code}};
  return all;
}
inline const Choices<sluice::ChunkLength>& chunk_lengths() {
  using enum sluice::ChunkLength;
  static const Choices<sluice::ChunkLength> all{{"chunk", chunk}, {"visible", visible}};
  return all;
}
inline constexpr const char* kScalingMeaning =
    "N of the linear term: su the real tokens in the visible chunks; lucid C if causal, else n; eq 1; paper_code C "
    "times the number of visible chunks";

/// Formulas over flash_options and the derived names e and s.
std::vector<ParameterInfo> flash_parameters(const std::string& path, const std::string& repeat);
/// x, key_mask, segments.
std::vector<InputInfo> sequence_inputs(const std::string& x);

}  // namespace layer_check
