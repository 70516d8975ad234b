// Formulas and inputs that several layers share.
#pragma once

#include "layer.h"

namespace layer_check {

/// The parameters of a Norm called `path` whose kind is the option `kind`, of width `dim`.
std::vector<ParameterInfo> norm_parameters(const std::string& path, const std::string& kind, const std::string& dim,
                                           const std::string& repeat = {});
/// weight and bias of a Linear; `bias` and `when` are formulas.
std::vector<ParameterInfo> linear_parameters(const std::string& path, const std::string& in, const std::string& out,
                                             const std::string& bias, const std::string& meaning = {},
                                             const std::string& when = "True", const std::string& repeat = {});
std::vector<ParameterInfo> joined(std::vector<std::vector<ParameterInfo>> lists);

/// `base` with some values changed.
inline Values with(Values base, std::initializer_list<Values::value_type> more) {
  for (const auto& [name, value] : more) base[name] = value;
  return base;
}

inline InputInfo key_mask_input(bool streams = true) {
  return {.name = "key_mask", .shape = "[batch, n]", .meaning = "true for real tokens, false for padding",
          .kind = Kind::boolean, .optional = true, .when = streams ? "len(stream) == 0" : "True"};
}

}  // namespace layer_check
