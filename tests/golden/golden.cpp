#include "golden/golden.h"
#include "support/folders.h"

#include <sluice/core/error.h>
#include <sluice/core/text/json.h>
#include <sluice/ops/shape/create.h>

#include <cstdio>
#include <filesystem>
#include <fstream>

namespace sluice::testing {

namespace {

const std::string folder = source_folder() + "/tests/golden/data";

const Json& index() {
  static const Json parsed = [] {
    std::ifstream in(folder + "/index.json");
    if (!in) fail<IOError>("golden: cannot read ", folder, "/index.json");
    return parse_json(std::string(std::istreambuf_iterator<char>(in), {}));
  }();
  return parsed;
}
const Json& entry_of(const void* p) { return *static_cast<const Json*>(p); }

std::vector<GoldenRunner>& runners() {
  static std::vector<GoldenRunner> all;
  return all;
}

struct Table {
  std::vector<GoldenRow> rows;

  void print(std::FILE* out) const {
    std::fprintf(out, "%-40s %12s %12s %12s %7s\n", "golden case, array", "f64 error", "f32 error", "f32 allowed",
                 "used");
    for (const GoldenRow& r : rows)
      std::fprintf(out, "%-40s %12.2e %12.2e %12.2e %5.1f %%%s\n", r.name.c_str(), r.error, r.error_f32,
                   r.tolerance_f32, r.tolerance_f32 > 0 ? 100 * r.error_f32 / r.tolerance_f32 : 0.0,
                   r.error <= r.tolerance && r.error_f32 <= r.tolerance_f32 ? "" : "  FAILED");
  }
  ~Table() {
    if (rows.empty()) return;
    print(stdout);
    if (std::FILE* f = std::fopen((output_folder() + "/golden_table.txt").c_str(), "w")) {
      print(f);
      std::fclose(f);
    }
  }
};

}  // namespace

bool GoldenCase::has(const std::string& array) const { return entry_of(entry_).at("arrays").find(array); }

std::vector<std::string> GoldenCase::arrays() const {
  std::vector<std::string> names;
  for (const auto& [key, value] : entry_of(entry_).at("arrays").get<Json::Object>()) names.push_back(key);
  return names;
}

Tensor GoldenCase::get(const std::string& array, DType dtype) const {
  if (!has(array)) fail<IOError>("golden: ", name, " has no array \"", array, "\"");
  const Json& a = entry_of(entry_).at("arrays").at(array);
  const std::string path = folder + "/" + a.at("file").get<std::string>();
  Shape shape;
  for (const Json& size : a.at("shape").get<Json::List>()) shape.push_back(size.get<int64_t>());
  std::vector<double> values(static_cast<std::size_t>(shape.numel()));
  const auto bytes = static_cast<std::streamsize>(values.size() * sizeof(double));
  std::ifstream in(path, std::ios::binary);
  if (!in.read(reinterpret_cast<char*>(values.data()), bytes) || in.peek() != std::ifstream::traits_type::eof())
    fail<IOError>("golden: ", path, " does not hold the ", shape, " values that the index promises");
  return to(Tensor::from(values, shape), dtype);
}

std::string GoldenCase::text(const std::string& key, const std::string& otherwise) const {
  const Json* j = entry_of(entry_).at("meta").find(key);
  return j ? j->get<std::string>() : otherwise;
}
double GoldenCase::number(const std::string& key, double otherwise) const {
  const Json* j = entry_of(entry_).at("meta").find(key);
  if (!j) return otherwise;
  const int64_t* whole = j->as<int64_t>();
  return whole ? static_cast<double>(*whole) : j->get<double>();
}

const std::vector<GoldenCase>& golden_cases() {
  static const std::vector<GoldenCase> cases = [] {
    std::vector<GoldenCase> all;
    for (const Json& entry : index().get<Json::List>()) all.emplace_back(&entry, entry.at("case").get<std::string>());
    return all;
  }();
  return cases;
}

const GoldenCase& golden_case(std::string_view name) {
  for (const GoldenCase& c : golden_cases())
    if (c.name == name) return c;
  fail<IOError>("golden: no case \"", name, "\" in ", folder, "/index.json");
}

bool register_golden(GoldenRunner runner) {
  runners().push_back(std::move(runner));
  return true;
}

const GoldenRunner* find_runner(const std::string& case_name) {
  const GoldenRunner* best = nullptr;
  for (const GoldenRunner& r : runners())
    if (case_name.starts_with(r.prefix) && (!best || r.prefix.size() > best->prefix.size())) best = &r;
  return best;
}

void note_golden(GoldenRow row) {
  static Table table;  // its destructor writes it
  table.rows.push_back(std::move(row));
}

}  // namespace sluice::testing
