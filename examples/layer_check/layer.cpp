#include "layer.h"

namespace layer_check {

namespace {

/// "x [batch, n]" → the name and the shape.
std::pair<std::string, std::string> name_and_shape(const std::string& what) {
  if (what.starts_with('[') || what.starts_with("broadcast [")) return {"", what};
  const std::size_t space = what.find(' ');
  return {what.substr(0, space), what.substr(space + 1)};
}

}  // namespace

sluice::Pass pass_of(const Inputs& in) {
  const bool cross = in["context"].defined();
  return {.key_mask = in[cross ? "query_mask" : "key_mask"],
          .context = in[cross ? "context" : "f"],  // f: the branch of a gated residual
          .context_mask = cross ? in["key_mask"] : Tensor(),
          .segments = in["segments"],
          .mask = in["mask"],
          .bias = in["bias"]};
}

Layer& Layer::input(Kind kind, const std::string& what, std::string meaning, std::string when) {
  auto [called, shape] = name_and_shape(what);
  const bool optional = called.ends_with('?');
  if (optional) called.pop_back();
  inputs.push_back({called, shape, std::move(meaning), kind, optional, std::move(when)});
  return *this;
}

Layer& Layer::key_mask(bool beside_streams) {
  return input(Kind::boolean, "key_mask? [batch, n]", "true for real tokens, false for padding",
               beside_streams ? "True" : "len(stream) == 0");
}

Layer& Layer::parameter(const std::string& what, std::string meaning, std::string when) {
  const auto [called, shape] = name_and_shape(what);
  parameters.push_back({called, shape, std::move(meaning), std::move(when)});
  return *this;
}

Layer& Layer::dense(const std::string& path, const std::string& in, const std::string& out, const std::string& bias,
                    const std::string& meaning, const std::string& when) {
  const std::string p = path.empty() ? "" : path + ".";
  parameter(p + "weight [" + in + ", " + out + "]", meaning, when);
  if (bias == "False") return *this;
  return parameter(p + "bias [" + out + "]", "",
                   when == "True"   ? bias
                   : bias == "True" ? when
                                    : "(" + when + ") and " + bias);
}

Layer& Layer::norm(const std::string& path, const std::string& kind, const std::string& dim, const std::string& when,
                   const std::string& bias) {
  const std::string p = path.empty() ? "" : path + ".", there = when.empty() ? kind : when + " and " + kind;
  return parameter(p + "weight [" + dim + "]", "scale of each channel", there + " in ('layer', 'rms')")
      .parameter(p + "weight [1]", "ScaleNorm's scalar g", there + " in ('scale', 'scale_l2')")
      .parameter(p + "bias [" + dim + "]", "", there + " == 'layer'" + (bias.empty() ? "" : " and " + bias));
}

Layer& Layer::parts(const Layer& of, const std::string& prefix, const std::string& repeat) {
  for (ParameterInfo p : of.parameters) {
    p.inner_repeat = p.repeat, p.repeat = repeat;
    if (const std::size_t at = p.name.find("{i}"); at != std::string::npos) p.name.replace(at, 3, "{j}");
    p.name = prefix + p.name;
    parameters.push_back(std::move(p));
  }
  return *this;
}

Layer& Layer::output(const std::string& what, std::string meaning, std::string when) {
  const auto [called, shape] = name_and_shape(what);
  outputs.push_back({called, shape, std::move(meaning), std::move(when)});
  return *this;
}

Layer& add(std::vector<Layer>& all, const std::string& name, const std::string& family, const std::string& formula,
           const std::string& source) {
  return all.emplace_back(Layer{.name = name, .family = family, .formula = formula, .source = source});
}

}  // namespace layer_check
