#include "self_check.h"

#include "expression.h"
#include "registry.h"
#include "run.h"

#include <sluice/ops/create.h>
#include <sluice/ops/elementwise.h>
#include <sluice/ops/reduce.h>
#include <sluice/ops/scan/scan.h>

#include <algorithm>

namespace layer_check {

using namespace sluice;

namespace {

/// Sizes of what no option determines. Distinct where layers allow it, so that exchanged dims are noticed.
const std::map<std::string, int64_t> kSizes{{"batch", 2}, {"heads", 2}, {"kv_heads", 1}, {"n", 6},  {"m", 6},
                                            {"d", 4},     {"dv", 3},    {"rows", 5},     {"cols", 6}};

void compare_parameters(const Layer& layer, const Values& names, const Instance& made) {
  std::map<std::string, Shape> described = described_parameters(layer, names);
  for (const NamedTensor& s : made.state) {
    const auto it = described.find(s.name);
    if (it == described.end()) fail("parameter ", s.name, " ", s.tensor, " has no formula");
    if (it->second != s.tensor.shape()) fail("parameter ", s.name, " is ", s.tensor, ", its formula ", it->second);
    described.erase(it);
  }
  if (!described.empty()) fail("formula for a parameter ", described.begin()->first, " that is not there");
  for (const ParameterInfo& p : layer.parameters)
    for (const NamedTensor& s : made.state)
      if (p.name == s.name && p.buffer == s.tensor.requires_grad() && is_true(evaluate(p.when, names)))
        fail("parameter ", s.name, " is ", p.buffer ? "" : "not ", "trained");
}

Tensor sample(const InputInfo& info, const Shape& shape, const Values& names, DType dtype, Rng& rng) {
  if (info.kind == Kind::boolean) {  // one true value in every row, so that nothing is empty
    Tensor x = bernoulli(shape, 0.7, rng);
    return shape.empty() ? x : logical_or(x, arange(shape.back()) == 0);
  }
  if (info.kind == Kind::integer) {
    const Tensor x = randint(0, evaluate_size(info.below, names), shape, rng);
    return info.sample == Sample::ascending ? cumsum(x, -1) : x;
  }
  const Tensor x = normal(shape, 0, 1, rng, {dtype});
  switch (info.sample) {
    case Sample::unit: return sigmoid(x);
    case Sample::nonpositive: return neg(square(x));
    default: return x;
  }
}

Inputs sampled(const Layer& layer, Values& names, bool with_optional, DType dtype) {
  for (const auto* sizes : {&layer.sizes, &kSizes})
    for (const auto& [name, size] : *sizes) names.try_emplace(name, size);
  Rng rng(7);
  Inputs inputs{.tensors = {}, .dtype = dtype};
  for (const InputInfo& info : layer.inputs)
    if (is_true(evaluate(info.when, names)) && (with_optional || !info.optional)) {
      Tensor x = sample(info, ShapeFormula(info.shape).example(names), names, dtype, rng);
      if (info.kind == Kind::floating) x.requires_grad_();
      inputs.tensors[info.name] = x;
    }
  return inputs;
}

void check_outputs(const Layer& layer, const Values& names, const std::map<std::string, Tensor>& written) {
  std::size_t described = 0;
  for (const OutputInfo& o : layer.outputs) {
    if (!is_true(evaluate(o.when, names))) continue;
    ++described;
    const std::string name = o.name.empty() ? "output" : "output." + o.name;
    const auto it = written.find(name);
    if (it == written.end()) fail("no ", name);
    if (!ShapeFormula(o.shape).fits(it->second.shape(), names))
      fail(name, " is ", it->second, ", its formula ", ShapeFormula(o.shape).explain(o.shape, names));
  }
  for (const auto& [name, x] : written) {
    if (name.starts_with("output")) {
      if (described-- == 0) fail("an output without a formula");
    } else if (is_float(x.dtype()) && !all(isfinite(x)).item()) {
      fail(name, " is not finite");
    }
  }
}

/// A cost is that of the layer it is named after, which counts its own parameters.
void check_cost(const Layer& layer, Values config, const std::map<std::string, Tensor>& written) {
  constexpr std::string_view prefix = "cost_";
  if (!layer.name.starts_with(prefix)) return;
  const std::string of = layer.name.substr(prefix.size());
  for (const char* size : {"tokens", "queries", "context_tokens"}) config.erase(size);
  int64_t trained = 0;
  for (const NamedTensor& s : prepare(of, object(config)).build(f32).state)
    if (s.tensor.requires_grad()) trained += s.tensor.numel();
  const int64_t said = written.at("output").to_vector<int64_t>()[0];
  if (said != trained) fail("parameters: ", said, ", but ", of, " has ", trained);
}

}  // namespace

bool self_check(std::string& report) {
  bool good = true;
  for (const Layer& layer : layers()) {
    const std::vector<Values> configs = samples_of(layer);
    std::string problems;
    for (const Values& config : configs)
      for (bool with_optional : {false, true}) try {
          const Prepared p = prepare(layer.name, object(config));
          for (DType dtype : {f64, f32}) {
            const Instance made = p.build(dtype);
            if (layer.family != "other") compare_parameters(layer, p.names, made);
            Values names = p.names;
            const Inputs inputs = sampled(layer, names, with_optional, dtype);
            const std::map<std::string, Tensor> written = forward_backward(made, inputs, {});
            check_outputs(layer, names, written);
            check_cost(layer, config, written);
          }
        } catch (const std::exception& e) {
          problems += str("  ", to_text(object(config)), with_optional ? " with optional inputs: " : ": ", e.what(), "\n");
        }
    good = good && problems.empty();
    report += str(layer.name, ": ", configs.size(), " option sets", problems.empty() ? ", ok\n" : ", FAILED\n",
                  problems);
  }
  return good;
}

}  // namespace layer_check
