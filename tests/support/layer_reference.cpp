#include "support/layer_reference.h"

namespace sluice::testing {

namespace {

std::map<std::string, LayerReference>& references() {
  static std::map<std::string, LayerReference> all;
  return all;
}

}  // namespace

double LayerFacts::number(const Json& j) {
  if (const int64_t* whole = j.as<int64_t>()) return static_cast<double>(*whole);
  if (const std::string* text = j.as<std::string>()) return std::stod(*text);  // "-inf"
  return j.get<double>();
}

std::vector<double> LayerFacts::reals(std::string_view name) const {
  std::vector<double> all;
  for (const Json& j : option(name).get<Json::List>()) all.push_back(number(j));
  return all;
}

std::vector<double> LayerFacts::values(const std::string& tensor) const {
  const auto found = tensors_->find(prefix_ + tensor);
  return found == tensors_->end() ? std::vector<double>{} : found->second.to_vector<double>();
}

Matrix LayerFacts::matrix(const std::string& tensor) const {
  const Tensor& t = tensors_->at(prefix_ + tensor);
  const std::vector<double> v = t.to_vector<double>();
  Matrix m;
  const auto width = static_cast<std::ptrdiff_t>(t.dim(1));
  for (auto at = v.begin(); at != v.end(); at += width) m.emplace_back(at, at + width);
  return m;
}

bool register_reference(const std::string& layer, LayerReference reference) {
  references()[layer] = std::move(reference);
  return true;
}

const LayerReference* find_reference(const std::string& layer) {
  const auto found = references().find(layer);
  return found == references().end() ? nullptr : &found->second;
}

}  // namespace sluice::testing
