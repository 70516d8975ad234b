#include "shared.h"

namespace layer_check {

std::vector<ParameterInfo> norm_parameters(const std::string& path, const std::string& kind, const std::string& dim,
                                           const std::string& repeat) {
  const std::string p = path.empty() ? "" : path + ".";
  return {{.name = p + "weight", .shape = "[" + dim + "]", .meaning = "scale of each channel",
           .when = kind + " in ('layer', 'rms')", .repeat = repeat},
          {.name = p + "weight", .shape = "[1]", .meaning = "ScaleNorm's scalar g",
           .when = kind + " in ('scale', 'scale_l2')", .repeat = repeat},
          {.name = p + "bias", .shape = "[" + dim + "]", .when = kind + " == 'layer'", .repeat = repeat}};
}

std::vector<ParameterInfo> linear_parameters(const std::string& path, const std::string& in, const std::string& out,
                                             const std::string& bias, const std::string& meaning,
                                             const std::string& when, const std::string& repeat) {
  const std::string with_bias = when == "True" ? bias : bias == "True" ? when : "(" + when + ") and " + bias;
  const std::string p = path.empty() ? "" : path + ".";
  std::vector<ParameterInfo> all{{.name = p + "weight", .shape = "[" + in + ", " + out + "]", .meaning = meaning,
                                  .when = when, .repeat = repeat}};
  if (bias != "False")
    all.push_back({.name = p + "bias", .shape = "[" + out + "]", .when = with_bias, .repeat = repeat});
  return all;
}

std::vector<ParameterInfo> joined(std::vector<std::vector<ParameterInfo>> lists) {
  std::vector<ParameterInfo> all;
  for (auto& list : lists) all.insert(all.end(), list.begin(), list.end());
  return all;
}

}  // namespace layer_check
