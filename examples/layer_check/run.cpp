#include "run.h"

#include "registry.h"

#include <sluice/autograd/engine.h>
#include <sluice/layers/nn/meta_init.h>
#include <sluice/ops/shape/create.h>

#include <unistd.h>

#include <algorithm>

namespace layer_check {

using namespace sluice;

namespace {

constexpr std::string_view kInput = "input.", kParam = "param.", kCotangent = "cotangent";

/// "a", "b", "c", and how many more.
std::string in_quotes(const std::vector<std::string>& names) {
  std::string s;
  for (std::size_t i = 0; i < std::min<std::size_t>(names.size(), 20); ++i) s += str(i ? ", " : "", '"', names[i], '"');
  return names.size() > 20 ? str(s, " and ", names.size() - 20, " more") : s;
}

struct Parts {
  std::map<std::string, Tensor> inputs, parameters, cotangents;
};

Parts sorted(const SafeTensors& file, DType dtype) {
  Parts parts;
  std::vector<std::string> unexpected;
  for (const auto& [name, given] : file.tensors) {
    const Tensor x = is_float(given.dtype()) ? to(given.detach(), dtype) : given;
    if (name.starts_with(kInput)) parts.inputs[name.substr(kInput.size())] = x;
    else if (name.starts_with(kParam)) parts.parameters[name.substr(kParam.size())] = x;
    else if (name == kCotangent) parts.cotangents[""] = x;
    else if (name.starts_with("cotangent.")) parts.cotangents[name.substr(kCotangent.size() + 1)] = x;
    else unexpected.push_back(name);
  }
  if (!unexpected.empty())
    fail<ValueError>("unexpected tensor", unexpected.size() > 1 ? "s " : " ", in_quotes(unexpected),
                     "; names begin with input. or param., or are cotangent or cotangent.<output>");
  return parts;
}

std::string expected_parameters(const Prepared& p) {
  std::string known;
  for (const NamedTensor& s : p.state) known += str(known.empty() ? "" : ", ", s.name, " ", s.tensor);
  return known.empty() ? "none" : known;
}

void load_parameters(const Prepared& p, const Instance& made, std::map<std::string, Tensor> given) {
  auto optional = [&](const std::string& name) {
    return std::any_of(p.layer->parameters.begin(), p.layer->parameters.end(), [&](const ParameterInfo& i) {
      const std::size_t tail = name.size() < i.name.size() ? 0 : name.size() - i.name.size();
      return i.optional && name.compare(tail, std::string::npos, i.name) == 0;
    });
  };
  std::vector<std::string> known, missing, unexpected;
  for (const NamedTensor& s : made.state) {
    known.push_back("param." + s.name);
    if (given.contains(s.name)) continue;
    if (optional(s.name)) given[s.name] = s.tensor.detach();
    else missing.push_back("param." + s.name);
  }
  for (const auto& [name, x] : given)
    if (std::find(known.begin(), known.end(), "param." + name) == known.end()) unexpected.push_back("param." + name);
  std::string wrong;
  if (!unexpected.empty()) wrong = not_there(unexpected, "a parameter", missing.empty() ? known : missing);
  if (!missing.empty()) {
    if (!wrong.empty()) wrong += "; ";
    for (std::size_t i = 0; i < missing.size(); ++i) wrong += (i ? ", " : "") + missing[i];
    wrong += missing.size() > 1 ? " are missing" : " is missing";
  }
  if (!wrong.empty()) fail<ValueError>(p.layer->name, ": ", wrong, "; parameters: ", expected_parameters(p));
  for (const NamedTensor& s : made.state)
    if (const Tensor& x = given.at(s.name); s.tensor.shape() != x.shape())
      fail(p.layer->name, ": param.", s.name, " has shape ", x, ", must be ", s.tensor);
  made.load(given);
}

std::string output_name(const std::string& name) { return name.empty() ? "output" : "output." + name; }

}  // namespace

void check_memory(const std::string& what, double numbers) {
  const double memory = static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE));
  if (numbers * 8 > memory)  // of f64, the default
    fail<ValueError>(what, ": these options make ", numbers, " numbers, more than this machine's memory of ",
                     memory / 1e9, " GB holds");
}

std::string not_there(const std::vector<std::string>& names, std::string what, const std::vector<std::string>& known) {
  std::string s;
  for (std::size_t i = 0; i < std::min<std::size_t>(names.size(), 10); ++i)
    s += str(i ? ", " : "", names[i], did_you_mean(names[i], known));
  if (names.size() > 10) s += str(" and ", names.size() - 10, " more");
  if (names.size() > 1) return str(s, " are not ", what.substr(what.find(' ') + 1), "s with these options");
  return str(s, " is not ", what, " with these options");
}

Json parse_config(const std::string& text) {
  Json config;
  try {
    config = parse_json(text);
  } catch (const ValueError& e) { fail<ValueError>("config is not an object of options: ", e.what()); }
  if (!config.as<Json::Object>()) fail<ValueError>("config is not an object of options — got ", config);
  return config;
}

Prepared prepare(const std::string& name, const Json& config) {
  const Layer& layer = find_layer(name);
  Draft draft = layer.draft();
  detail::from_json(name, config, draft.options);
  Prepared p{&layer, detail::to_json(draft.options), std::move(draft.build), {}};
  MetaInit shapes_only;
  p.state = p.build(f64).state;
  double numbers = 0;
  for (const NamedTensor& s : p.state) numbers += static_cast<double>(s.tensor.numel());
  check_memory(name, numbers);
  return p;
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
  const Prepared p = prepare(layer->second, parse_config(config == file.metadata.end() ? "{}" : config->second));
  Parts parts = sorted(file, settings.dtype);
  Inputs inputs = checked_inputs(p, parts.inputs);
  inputs.dtype = settings.dtype;
  Instance made = p.build(settings.dtype);
  load_parameters(p, made, parts.parameters);
  if (settings.device != cpu) {
    if (made.move) made.state = made.move(settings.device);
    for (auto* tensors : {&inputs.tensors, &parts.cotangents})
      for (auto& [name, x] : *tensors) {
        const bool leaf = x.requires_grad();
        x = to(x.detach(), settings.device);
        if (leaf) x.requires_grad_();
      }
  }
  SafeTensors out;
  out.tensors = forward_backward(made, inputs, parts.cotangents);
  for (auto& [name, x] : out.tensors) x = to(x, cpu);
  out.metadata = {{"layer", layer->second},
                  {"config", to_text(p.options)},
                  {"dtype", std::string(name_of(settings.dtype))},
                  {"device", str(settings.device)}};
  return out;
}

}  // namespace layer_check
