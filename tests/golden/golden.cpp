#include "golden/golden.h"
#include "support/approx.h"
#include "support/folders.h"

#include <sluice/core/error.h>
#include <sluice/core/text/json.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/shape/join.h>
#include <sluice/ops/shape/view.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <sstream>

namespace sluice::testing {

namespace {

const std::string folder = source_folder() + "/tests/golden/";

const Json::List& index() {
  static const Json parsed = [] {
    std::ifstream in(folder + "data/index.json");
    if (!in) fail<IOError>("golden: cannot read ", folder, "data/index.json");
    return parse_json(std::string(std::istreambuf_iterator<char>(in), {}));
  }();
  return parsed.get<Json::List>();
}

std::string text_of(const Json& j, const char* member) {
  const Json* found = j.find(member);
  return found ? found->get<std::string>() : "";
}

/// Members of `to`, replaced by those of `from`, and what only `from` has.
void merge(Json& to, const Json& from) {
  if (to.is_null()) to = Json::Object{};
  for (const auto& [name, value] : from.get<Json::Object>()) to[name] = value;
}

std::vector<std::string> split_at(const std::string& sign, const std::string& text) {
  std::vector<std::string> parts{text};
  for (std::size_t at; (at = parts.back().find(sign)) != std::string::npos;) {
    const std::string rest = parts.back().substr(at + sign.size());
    parts.back().resize(at), parts.push_back(rest);
  }
  return parts;
}

Tensor array(const Json& entry, const std::string& name) {
  const Json* a = entry.at("arrays").find(name);
  if (!a) fail<IOError>("golden: ", text_of(entry, "case"), " has no array \"", name, "\"");
  const std::string path = folder + "data/" + text_of(*a, "file");
  Shape shape;
  for (const Json& size : a->at("shape").get<Json::List>()) shape.push_back(size.get<int64_t>());
  std::vector<double> values(static_cast<std::size_t>(shape.numel()));
  const auto bytes = static_cast<std::streamsize>(values.size() * sizeof(double));
  std::ifstream in(path, std::ios::binary);
  if (!in.read(reinterpret_cast<char*>(values.data()), bytes) || in.peek() != std::ifstream::traits_type::eof())
    fail<IOError>("golden: ", path, " does not hold the ", shape, " values that the index promises");
  return Tensor::from(values, shape);
}

/// Calls f(entry of b, entry of w) for all entries of a matrix [n, n].
template <class F> void each_diagonal(int64_t n, const F& f) {
  for (int64_t i = 0; i < n; ++i)
    for (int64_t j = 0; j < n; ++j) f(static_cast<std::size_t>(i * n + j), static_cast<std::size_t>(n - 1 + j - i));
}

Tensor term(const Json& entry, const std::string& text) {
  std::istringstream words(text);
  std::string first, of;
  words >> first;
  if (first == "zeros" || first == "eye") {
    int64_t rows = 0, columns = 0, from = 0;
    words >> rows >> columns >> from;
    return first == "zeros" ? zeros({rows, columns}, {f64})
                            : narrow(eye(rows, from + columns, {f64}), 1, from, columns);
  }
  if (!(words >> of)) return array(entry, first);
  const Tensor given = array(entry, of);
  const std::vector<double> x = given.to_vector<double>();
  const int64_t n = first == "matrix" ? (given.dim(0) + 1) / 2 : given.dim(0);
  std::vector<double> b(static_cast<std::size_t>(n * n)), w(static_cast<std::size_t>(2 * n - 1));
  each_diagonal(n, [&](std::size_t ij, std::size_t k) {
    if (first == "matrix") b[ij] = x[k];
    else if (first == "diagonals") w[k] = x[ij];
    else if (first == "diagonal_sums") w[k] += x[ij];
    else fail<IOError>("golden: ", text_of(entry, "case"), ": no term is called \"", text, "\"");
  });
  return first == "matrix" ? Tensor::from(b, {n, n}) : Tensor::from(w);
}

/// What the index says of a tensor.
Tensor tensor(const Json& entry, const Json& said) {
  if (const auto* list = said.as<Json::List>()) {
    std::vector<double> numbers;
    for (const Json& x : *list)
      numbers.push_back(x.as<double>() ? x.get<double>() : static_cast<double>(x.get<int64_t>()));
    return Tensor::from(numbers);
  }
  std::vector<Tensor> columns;
  for (const std::string& column : split_at(" | ", said.get<std::string>())) {
    Tensor sum;
    for (const std::string& t : split_at(" + ", column)) sum = sum.defined() ? sum + term(entry, t) : term(entry, t);
    columns.push_back(sum);
  }
  return columns.size() == 1 ? columns[0] : cat(columns, -1);
}

bool is_result(const std::string& name) { return name.starts_with("output") || name.starts_with("grad."); }

/// The run of an entry into which one of its `runs` is merged.
GoldenRun run_of(const Json& entry) {
  GoldenRun run{.name = text_of(entry, "case"), .label = text_of(entry, "label"), .file = {}, .results = {}};
  if (!run.label.empty()) run.label = " (" + run.label + ")";
  Json config;
  // Gradients of a case grad_* are central differences, good to about 1e-8.
  const Json* f32_error = entry.find("f32");
  const auto expect = [&](const std::string& name, const std::string& called, const Tensor& want) {
    const bool differences = run.name.starts_with("grad_") && name.starts_with("grad.");
    const double most = max_abs(want);
    run.results.push_back({name, called, want, (differences ? 1e-6 : 1e-9) * std::min(1.0, most),
                           (f32_error ? f32_error->get<double>() : 1e-5) * most});
  };
  if (const std::string path = text_of(entry, "safetensors"); !path.empty()) {
    run.file = load_safetensors(folder + path);
    for (const auto& [name, x] : run.file.tensors)
      if (is_result(name)) expect(name, name, x);
    std::erase_if(run.file.tensors, [](const auto& t) { return is_result(t.first); });
    config = parse_json(run.file.metadata.at("config"));
  } else {
    run.file.metadata["layer"] = text_of(entry, "layer");
    const Json* lead = entry.find("lead");
    for (const auto& [name, said] : entry.at("tensors").get<Json::Object>()) {
      Tensor x = tensor(entry, said);
      if (!name.starts_with("param.") && said.as<std::string>())
        for (int64_t i = 0; lead && i < lead->get<int64_t>(); ++i) x = unsqueeze(x, 0);
      run.file.tensors[name] = name.ends_with("mask") ? x > 0.5 : x;
    }
    for (const auto& [name, said] : entry.at("expect").get<Json::Object>())
      expect(name, said.get<std::string>(), tensor(entry, said));
  }
  const Json* more = entry.find("config");
  merge(config, more ? *more : Json::Object{});
  run.file.metadata["config"] = to_text(config);
  return run;
}

}  // namespace

double GoldenRun::error(const GoldenResult& result, const std::map<std::string, Tensor>& written) const {
  const auto found = written.find(result.name);
  if (found == written.end() || found->second.numel() != result.want.numel()) return INFINITY;
  Tensor want = result.want, got = reshape(to(found->second, f64), want.shape());
  if (const auto mask = file.tensors.find("input.key_mask"); mask != file.tensors.end() && result.name == "output") {
    const Tensor padding = logical_not(reshape(mask->second, narrow(want, -1, 0, 1).shape()));
    want = masked_fill(want, padding, 0), got = masked_fill(got, padding, 0);
  }
  return max_abs_diff(got, want);
}

std::vector<GoldenRun> golden_runs(std::string_view name) {
  std::vector<GoldenRun> all;
  for (const Json& entry : index()) {
    if (!name.empty() && text_of(entry, "case") != name) continue;
    const Json* runs = entry.find("runs");
    for (const Json& changes : runs ? runs->get<Json::List>() : Json::List{Json::Object{}}) {
      Json one = entry;
      for (const auto& [member, value] : changes.get<Json::Object>())
        if (member == "config" || member == "tensors") merge(one[member], value);
        else one[member] = value;
      all.push_back(run_of(one));
    }
  }
  if (all.empty()) fail<IOError>("golden: no case \"", name, "\" in ", folder, "data/index.json");
  return all;
}

}  // namespace sluice::testing
