// The names of options that several layers share.
#pragma once

#include "layer.h"

#include <sluice/layers/gau/gau.h>
#include <sluice/layers/nn/init.h>
#include <sluice/layers/nn/mlp.h>
#include <sluice/layers/nn/norm.h>
#include <sluice/ops/activation.h>
#include <sluice/ops/rope.h>

namespace layer_check {

inline const Choices<sluice::NormKind>& norm_kinds() {
  using enum sluice::NormKind;
  static const Choices<sluice::NormKind> all{{"none", none},           {"layer", layer}, {"rms", rms},
                                             {"rms_plain", rms_plain}, {"scale", scale}, {"scale_l2", scale_l2}};
  return all;
}
inline const Choices<sluice::Act>& activations() {
  using enum sluice::Act;
  static const Choices<sluice::Act> all{
      {"identity", identity}, {"relu", relu},           {"relu2", relu2}, {"leaky_relu", leaky_relu}, {"elu", elu},
      {"elu1", elu1},         {"silu", silu},           {"gelu", gelu},   {"gelu_tanh", gelu_tanh},   {"tanh", tanh},
      {"sigmoid", sigmoid},   {"ns_sigmoid", ns_sigmoid}, {"softplus", softplus}, {"laplace", laplace}};
  return all;
}
inline const Choices<sluice::GluKind>& glu_kinds() {
  using enum sluice::GluKind;
  static const Choices<sluice::GluKind> all{{"glu", glu},       {"reglu", reglu},       {"geglu", geglu},
                                            {"swiglu", swiglu}, {"bilinear", bilinear}, {"silu_glu", silu_glu}};
  return all;
}
inline const Choices<sluice::GauKind>& gau_kinds() {
  using enum sluice::GauKind;
  static const Choices<sluice::GauKind> all{
      {"su", su},           {"paper_eq", paper_eq}, {"paper_code", paper_code},     {"lucid", lucid},
      {"rownorm", rownorm}, {"softmax", softmax},   {"softmax_plus", softmax_plus}, {"laplace", laplace}};
  return all;
}
inline const Choices<sluice::GauLength>& gau_lengths() {
  using enum sluice::GauLength;
  static const Choices<sluice::GauLength> all{{"n", n}, {"visible", visible}, {"constant", constant}};
  return all;
}
inline const Choices<sluice::GauBias>& gau_biases() {
  using enum sluice::GauBias;
  static const Choices<sluice::GauBias> all{{"none", none}, {"toeplitz", toeplitz}, {"rope", rope}, {"t5", t5}};
  return all;
}

/// What GAU's kinds mean, for the meaning of the option.
inline constexpr const char* kGauKindMeaning =
    "weights A from T = QK': su relu2(T/sqrt(s) + b)/L; paper_eq relu2(T + b); paper_code relu2(T/L + b); lucid "
    "relu2((T + b)/L); rownorm relu2(T/sqrt(s) + b)/row sum; softmax(T/sqrt(s) + b); softmax_plus softmax(k(T/sqrt(s) "
    "+ b)), k = ln max(L, 16)/ln 512; laplace of (T + b)/L";

void rope_options(Options& v, sluice::RopeOptions& o, const char* prefix = "rope_");
/// buckets and max_distance.
void t5_options(Options& v, sluice::T5BucketOptions& o);

/// The parameters of a Norm called `path` whose kind is the option `kind`, of width `dim`.
std::vector<ParameterInfo> norm_parameters(const std::string& path, const std::string& kind, const std::string& dim,
                                           const std::string& repeat = {});
/// weight and bias of a Linear; `bias` and `when` are formulas.
std::vector<ParameterInfo> linear_parameters(const std::string& path, const std::string& in, const std::string& out,
                                             const std::string& bias, const std::string& meaning = {},
                                             const std::string& when = "True", const std::string& repeat = {});
std::vector<ParameterInfo> joined(std::vector<std::vector<ParameterInfo>> lists);

inline InputInfo key_mask_input() {
  return {.name = "key_mask", .shape = "[batch, n]", .meaning = "true for real tokens, false for padding",
          .kind = Kind::boolean, .optional = true, .when = "len(stream) == 0"};
}

}  // namespace layer_check
