#include "run.h"

#include "expression.h"
#include "registry.h"

#include <sluice/autograd/engine.h>
#include <sluice/ops/create.h>
#include <sluice/ops/elementwise.h>
#include <sluice/ops/reduce.h>
#include <sluice/ops/view.h>

#include <unistd.h>

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

/// "a", "b", "c", and how many more.
std::string in_quotes(const std::vector<std::string>& names) {
  std::string s;
  for (std::size_t i = 0; i < std::min<std::size_t>(names.size(), 20); ++i)
    s += str(i ? ", " : "", '"', names[i], '"');
  return names.size() > 20 ? str(s, " and ", names.size() - 20, " more") : s;
}

struct Parts {
  std::map<std::string, Tensor> inputs, parameters, cotangents;
};

Parts sorted(const SafeTensors& file, DType dtype) {
  Parts parts;
  std::vector<std::string> unexpected;
  for (const auto& [name, given] : file.tensors) {
    const Tensor x = is_float(given.dtype()) ? to(given, dtype) : given;
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

/// "param.a (did you mean …?), param.b are not parameters with these options"
std::string not_there(const std::vector<std::string>& names, const std::string& what,
                      const std::vector<std::string>& known) {
  std::string s;
  for (std::size_t i = 0; i < std::min<std::size_t>(names.size(), 10); ++i)
    s += str(i ? ", " : "", names[i], did_you_mean(names[i], known));
  if (names.size() > 10) s += str(" and ", names.size() - 10, " more");
  const bool vowel = what == "input";
  return s + (names.size() > 1 ? str(" are not ", what, "s") : str(" is not ", vowel ? "an " : "a ", what)) +
         " with these options";
}

std::string expected_inputs(const Prepared& p) {
  std::string known;
  for (const InputInfo& i : p.layer->inputs)
    if (is_true(evaluate(i.when, p.names)))
      known += str(known.empty() ? "" : ", ", i.name, " ", i.shape, " ", kind_name(i.kind),
                   i.optional ? " (optional)" : "");
  return known.empty() ? "none" : known;
}

/// ValueError for values that mean nothing to the layer; rows of padding may hold anything.
void check_values(const std::string& layer, const InputInfo& info, const Tensor& given, const Tensor& key_mask) {
  if (!info.strict || given.numel() == 0) return;
  const std::string name = str(layer, ": input.", info.name);
  Tensor x = given;
  if (info.sample == Sample::ascending) {
    if (key_mask.defined()) {  // padding repeats the document before it
      std::vector<int64_t> rows = x.to_vector<int64_t>();
      const std::vector<bool> real = key_mask.to_vector<bool>();
      for (std::size_t i = 0, n = static_cast<std::size_t>(x.dim(-1)); i < rows.size(); ++i)
        if (!real[i]) rows[i] = i % n == 0 ? std::numeric_limits<int64_t>::min() : rows[i - 1];
      x = Tensor::from(rows, x.shape());
    }
    const int64_t n = x.dim(-1);
    if (n > 1 && any(narrow(x, -1, 1, n - 1) < narrow(x, -1, 0, n - 1)).item())
      fail<ValueError>(name, " decreases; document numbers must not");
  } else if (info.sample == Sample::nonpositive && !all(x <= 0.0).item()) {
    fail<ValueError>(name, " has values that are not <= 0; it holds logarithms of what is kept");
  } else if (info.sample == Sample::unit && !all(logical_and(x >= 0.0, x <= 1.0)).item()) {
    fail<ValueError>(name, " has values outside [0, 1]");
  }
}

/// Checks names, dtypes, shapes and values; floating inputs become leaves.
Inputs checked_inputs(const Prepared& p, const std::map<std::string, Tensor>& given) {
  const std::string& layer = p.layer->name;
  Inputs inputs;
  std::map<std::string, const InputInfo*> infos;
  std::vector<std::string> known, unexpected;
  for (const InputInfo& info : p.layer->inputs) {
    const bool exists = is_true(evaluate(info.when, p.names));
    if (exists) infos[info.name] = &info, known.push_back("input." + info.name);
    if (exists && !info.optional && !given.contains(info.name))
      fail<ValueError>(layer, ": input.", info.name, " is missing; inputs: ", expected_inputs(p));
  }
  Values names = p.names;
  for (const auto& [name, x] : given)
    if (!infos.contains(name)) unexpected.push_back("input." + name);
  if (!unexpected.empty())
    fail<ValueError>(layer, ": ", not_there(unexpected, "input", known), "; inputs: ", expected_inputs(p));
  for (const auto& [name, x] : given) {
    const auto it = infos.find(name);
    if (!is_of(it->second->kind, x.dtype()))
      fail<DTypeError>(layer, ": input.", name, " is ", x.dtype(), ", must be ", kind_name(it->second->kind));
  }
  for (const InputInfo& info : p.layer->inputs)  // in the order of the table: the first one gives n its size
    if (given.contains(info.name) && infos.at(info.name) == &info) {
      const Tensor& x = given.at(info.name);
      const ShapeFormula shape(info.shape);
      if (!shape.bind(x.shape(), names))
        fail(layer, ": input.", info.name, " has shape ", x, ", must be ", shape.explain(info.shape, names),
             ": its rank is ", x.rank(), ", needed is ", shape.ellipsis ? "at least " : shape.broadcast ? "at most " : "",
             shape.sizes.size());
    }
  for (const auto& [name, x] : given) {
    const std::string& formula = infos.at(name)->shape;
    const ShapeFormula shape(formula);
    if (!shape.fits(x.shape(), names))
      fail(layer, ": input.", name, " has shape ", x, ", must be ", shape.explain(formula, names));
    check_values(layer, *infos.at(name), x, given.contains("key_mask") ? given.at("key_mask") : Tensor());
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
  if (!unexpected.empty()) wrong = not_there(unexpected, "parameter", missing.empty() ? known : missing);
  if (!missing.empty()) {
    if (!wrong.empty()) wrong += "; ";
    for (std::size_t i = 0; i < missing.size(); ++i) wrong += (i ? ", " : "") + missing[i];
    wrong += missing.size() > 1 ? " are missing" : " is missing";
  }
  if (!wrong.empty()) fail<ValueError>(p.layer->name, ": ", wrong, "; parameters: ", expected_parameters(made));
  for (const NamedTensor& s : made.state)
    if (const Tensor& x = given.at(s.name); s.tensor.shape() != x.shape())
      fail(p.layer->name, ": param.", s.name, " has shape ", x, ", must be ", s.tensor);
  made.load(given);
}

/// Calls f with each name and the variables of its formulas.
template <class F>
void each_name(const std::string& pattern, const std::string& repeat, const char* index, const Values& names, F f) {
  if (repeat.empty()) return f(pattern, names);
  const Json over = evaluate(repeat, names);
  const auto* items = over.as<Json::List>();
  const int64_t times = items ? static_cast<int64_t>(items->size()) : evaluate_size(repeat, names);
  for (int64_t i = 0; i < times; ++i) {
    Values with_item = names;
    if (items)
      for (const auto& [field, value] : *(*items)[static_cast<std::size_t>(i)].as<Json::Object>())
        with_item["item." + field] = value;
    std::string name = pattern;
    f(name.replace(name.find(index), 3, std::to_string(i)), with_item);
  }
}

std::string output_name(const std::string& name) { return name.empty() ? "output" : "output." + name; }

/// ValueError when parameters or outputs of sizes that options give cannot be held: before anything is allocated.
void check_memory(const Prepared& p) {
  double values = 0;
  const auto add = [&](const std::string& formula) {
    double all = 1;
    for (const std::string& size : ShapeFormula(formula).sizes) try {
        all *= static_cast<double>(evaluate_size(size, p.names));
      } catch (const Error&) {  // a size of an input
        all = 0;
      }
    values += all;
  };
  for (const auto& [name, shape] : described_parameters(*p.layer, p.names)) {
    double all = 1;
    for (int64_t size : shape) all *= static_cast<double>(size);
    values += all;
  }
  for (const OutputInfo& o : p.layer->outputs)
    if (is_true(evaluate(o.when, p.names))) add(o.shape);
  const double memory = static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE));
  if (values * 4 > memory)
    fail<ValueError>(p.layer->name, ": these options make ", values, " numbers, more than this machine's memory of ",
                     memory / 1e9, " GB holds");
}

}  // namespace

std::map<std::string, Shape> described_parameters(const Layer& layer, const Values& names) {
  std::map<std::string, Shape> shapes;
  for (const ParameterInfo& p : layer.parameters) {
    auto note = [&](const std::string& name, const Values& known) {
      if (is_true(evaluate(p.when, known)) && !shapes.emplace(name, ShapeFormula(p.shape).example(known)).second)
        fail<ValueError>("formulas give parameter ", name, " twice");
    };
    each_name(p.name, p.repeat, "{i}", names, [&](const std::string& outer, const Values& known) {
      each_name(outer, p.inner_repeat, "{j}", known, note);
    });
  }
  return shapes;
}

Json parse_config(const std::string& text) {
  Json config;
  try {
    config = parse_json(text);
  } catch (const ValueError& e) {
    fail<ValueError>("config is not an object of options: ", e.what());
  }
  if (!config.as<Json::Object>()) fail<ValueError>("config is not an object of options — got ", config);
  return config;
}

Prepared prepare(const std::string& name, const Json& config) {
  const Layer& layer = find_layer(name);
  Draft draft = layer.draft();
  detail::from_json(name, config, draft.options);
  Prepared p{&layer, detail::to_json(draft.options), {}, std::move(draft.build)};
  Values options;
  for (const auto& [option, value] : *p.options.as<Json::Object>()) options[option] = value;
  p.names = names_of(layer, options);
  check_memory(p);
  return p;
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
