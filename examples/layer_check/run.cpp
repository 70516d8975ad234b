#include "run.h"

#include "expression.h"
#include "json.h"
#include "registry.h"

#include <sluice/autograd/engine.h>
#include <sluice/ops/create.h>

#include <algorithm>

namespace layer_check {

using namespace sluice;

namespace {

constexpr std::string_view kInput = "input.", kParam = "param.", kCotangent = "cotangent";

const char* kind_name(Kind k) {
  return k == Kind::floating ? "a float tensor" : k == Kind::integer ? "i64" : "bool";
}
bool is_of(Kind k, DType t) {
  return k == Kind::floating ? is_float(t) : k == Kind::integer ? t == i64 : t == boolean;
}

struct Parts {
  std::map<std::string, Tensor> inputs, parameters, cotangents;
};

Parts sorted(const SafeTensors& file, DType dtype) {
  Parts parts;
  for (const auto& [name, given] : file.tensors) {
    const Tensor x = is_float(given.dtype()) ? to(given, dtype) : given;
    if (name.starts_with(kInput)) parts.inputs[name.substr(kInput.size())] = x;
    else if (name.starts_with(kParam)) parts.parameters[name.substr(kParam.size())] = x;
    else if (name == kCotangent) parts.cotangents[""] = x;
    else if (name.starts_with("cotangent.")) parts.cotangents[name.substr(kCotangent.size() + 1)] = x;
    else
      fail<ValueError>("unexpected tensor \"", name,
                       "\"; names begin with input. or param., or are cotangent or cotangent.<output>");
  }
  return parts;
}

std::string expected_inputs(const Prepared& p) {
  std::string known;
  for (const InputInfo& i : p.layer->inputs)
    if (is_true(evaluate(i.when, p.names)))
      known += str(known.empty() ? "" : ", ", i.name, " ", i.shape, " ", kind_name(i.kind),
                   i.optional ? " (optional)" : "");
  return known.empty() ? "none" : known;
}

/// Checks names, dtypes and shapes; floating inputs become leaves.
Inputs checked_inputs(const Prepared& p, const std::map<std::string, Tensor>& given) {
  const std::string& layer = p.layer->name;
  Inputs inputs;
  std::map<std::string, const InputInfo*> infos;
  for (const InputInfo& info : p.layer->inputs) {
    const bool exists = is_true(evaluate(info.when, p.names));
    if (exists) infos[info.name] = &info;
    if (exists && !info.optional && !given.contains(info.name))
      fail<ValueError>(layer, ": input.", info.name, " is missing; inputs: ", expected_inputs(p));
  }
  Values names = p.names;
  for (const auto& [name, x] : given) {
    const auto it = infos.find(name);
    if (it == infos.end())
      fail<ValueError>(layer, ": input.", name, " is not an input with these options; inputs: ", expected_inputs(p));
    if (!is_of(it->second->kind, x.dtype()))
      fail<DTypeError>(layer, ": input.", name, " is ", x.dtype(), ", must be ", kind_name(it->second->kind));
  }
  for (const InputInfo& info : p.layer->inputs)  // in the order of the table: the first one gives n its size
    if (given.contains(info.name) && infos.at(info.name) == &info)
      ShapeFormula(info.shape).bind(given.at(info.name).shape(), names);
  for (const auto& [name, x] : given) {
    const std::string& formula = infos.at(name)->shape;
    const ShapeFormula shape(formula);
    if (!shape.fits(x.shape(), names))
      fail(layer, ": input.", name, " has shape ", x, ", must be ", shape.explain(formula, names));
    Tensor leaf = x;
    if (is_float(x.dtype())) leaf.requires_grad_();
    inputs.tensors[name] = leaf;
  }
  return inputs;
}

void load_parameters(const Prepared& p, const Instance& made, std::map<std::string, Tensor> given) {
  auto optional = [&](const std::string& name) {
    return std::any_of(p.layer->parameters.begin(), p.layer->parameters.end(), [&](const ParameterInfo& i) {
      const std::size_t tail = name.size() < i.name.size() ? 0 : name.size() - i.name.size();
      return i.optional && name.compare(tail, std::string::npos, i.name) == 0;
    });
  };
  for (const NamedTensor& s : made.state) {
    if (given.contains(s.name)) continue;
    if (optional(s.name)) given[s.name] = s.tensor.detach();
    else
      fail<ValueError>(p.layer->name, ": param.", s.name, " is missing; parameters: ", expected_parameters(made));
  }
  for (const auto& [name, x] : given) {
    const auto it = std::find_if(made.state.begin(), made.state.end(),
                                 [&wanted = name](const NamedTensor& s) { return s.name == wanted; });
    if (it == made.state.end())
      fail<ValueError>(p.layer->name, ": param.", name, " is not a parameter with these options; parameters: ",
                       expected_parameters(made));
    if (it->tensor.shape() != x.shape())
      fail(p.layer->name, ": param.", name, " has shape ", x, ", must be ", it->tensor);
  }
  made.load(given);
}

std::string output_name(const std::string& name) { return name.empty() ? "output" : "output." + name; }

}  // namespace

Prepared prepare(const std::string& name, const Values& config, bool examples) {
  const Layer& layer = find_layer(name);
  Options options(name, config, examples);
  Build build = layer.prepare(options);
  options.finish();
  return {&layer, options.values(), names_of(layer, options.values()), std::move(build)};
}

std::string expected_parameters(const Instance& made) {
  std::string known;
  for (const NamedTensor& s : made.state) known += str(known.empty() ? "" : ", ", s.name, " ", s.tensor);
  return known.empty() ? "none" : known;
}

std::map<std::string, Tensor> forward_backward(const Instance& made, const Inputs& inputs,
                                               const std::map<std::string, Tensor>& cotangents) {
  const Results results = made.run(inputs);
  for (const auto& [name, cotangent] : cotangents) {
    const auto it = std::find_if(results.begin(), results.end(),
                                 [&wanted = name](const NamedTensor& r) { return r.name == wanted; });
    const std::string called = name.empty() ? "cotangent" : "cotangent." + name;
    if (it == results.end()) {
      std::string known;
      for (const NamedTensor& r : results)
        if (!r.name.empty()) known += (known.empty() ? "" : ", ") + r.name;
      fail<ValueError>(called, ": the layer has no such output; other outputs: ", known.empty() ? "none" : known);
    }
    if (cotangent.shape() != it->tensor.shape() || cotangent.dtype() != it->tensor.dtype())
      fail(called, " is ", cotangent.dtype(), cotangent, ", the output ", it->tensor.dtype(), it->tensor);
  }
  std::vector<Tensor> outputs, grads, wanted;
  std::map<std::string, Tensor> written;
  for (const NamedTensor& r : results) {
    written[output_name(r.name)] = r.tensor.detach();
    const auto given = cotangents.find(r.name);
    if (!r.tensor.requires_grad() || (given == cotangents.end() && !r.name.empty())) continue;
    outputs.push_back(r.tensor);
    grads.push_back(given == cotangents.end() ? ones_like(r.tensor) : given->second);
  }
  std::vector<std::string> names;
  auto want = [&](const std::string& name, const Tensor& x) {
    if (!x.requires_grad()) return;
    names.push_back("grad." + name);
    wanted.push_back(x);
  };
  for (const auto& [name, x] : inputs.tensors) want("input." + name, x);
  for (const NamedTensor& s : made.state) want("param." + s.name, s.tensor);
  std::vector<Tensor> found(wanted.size());
  if (!outputs.empty() && !wanted.empty()) found = grad(outputs, wanted, {.allow_unused = true, .grad_outputs = grads});
  for (std::size_t i = 0; i < wanted.size(); ++i)
    written[names[i]] = found[i].defined() ? found[i].detach() : zeros(wanted[i].shape(), wanted[i].options());
  return written;
}

SafeTensors run_case(const SafeTensors& file, const RunSettings& settings) {
  const auto layer = file.metadata.find("layer"), config = file.metadata.find("config");
  if (layer == file.metadata.end()) fail<ValueError>("the file's metadata has no entry \"layer\"");
  if (settings.device.kind != DeviceKind::cpu)
    fail<DeviceError>("--device cuda: no CUDA device is available to this build; use --device cpu");
  const Prepared p = prepare(layer->second, config == file.metadata.end() ? Values{} : parse_config(config->second));
  const Parts parts = sorted(file, settings.dtype);
  const Inputs inputs = checked_inputs(p, parts.inputs);
  const Instance made = p.build(settings.dtype);
  load_parameters(p, made, parts.parameters);
  SafeTensors out;
  out.tensors = forward_backward(made, inputs, parts.cotangents);
  out.metadata = {{"layer", layer->second},
                  {"config", config_text(p.options)},
                  {"dtype", std::string(name_of(settings.dtype))},
                  {"device", str(settings.device)}};
  return out;
}

}  // namespace layer_check
