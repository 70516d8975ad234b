// The independent column of the layer table: what each layer computes for one sequence, as loops over doubles that
// know its options, its tensors by name and the call, but no op of the library. The driver
// layers/table_reference_test.cpp compares every sample with it, and fails for a layer without a reference.
#pragma once

#include <sluice/core/text/json.h>
#include <sluice/core/tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace sluice::testing {

using Matrix = std::vector<std::vector<double>>;

/// A layer: all its options, as JSON, and its tensors.
class LayerFacts {
 public:
  LayerFacts(const Json& options, const std::map<std::string, Tensor>& tensors, std::string prefix = {})
      : options_(&options), tensors_(&tensors), prefix_(std::move(prefix)) {}
  /// A layer inside this one with the same options; its tensors begin with `name` and a dot.
  LayerFacts part(const std::string& name) const { return {*options_, *tensors_, prefix_ + name + "."}; }
  /// An element of an option that is a list of objects, whose tensors begin with `name` and a dot.
  LayerFacts part(const Json& options, const std::string& name) const {
    return {options, *tensors_, prefix_ + name + "."};
  }

  const Json& option(std::string_view name) const { return options_->at(name); }
  bool yes(std::string_view name) const { return option(name).get<bool>(); }
  const std::string& text(std::string_view name) const { return option(name).get<std::string>(); }
  std::size_t size(std::string_view name) const { return static_cast<std::size_t>(option(name).get<int64_t>()); }
  double real(std::string_view name) const { return number(option(name)); }
  /// A number that may be null.
  double real(std::string_view name, double otherwise) const { return option(name).is_null() ? otherwise : real(name); }
  std::vector<double> reals(std::string_view name) const;

  bool has(const std::string& tensor) const { return tensors_->count(prefix_ + tensor) > 0; }
  /// The values of a tensor; none if the layer has no such tensor.
  std::vector<double> values(const std::string& tensor) const;
  /// A tensor of rank 2.
  Matrix matrix(const std::string& tensor) const;

 private:
  static double number(const Json& j);

  const Json* options_;
  const std::map<std::string, Tensor>* tensors_;
  std::string prefix_;
};

/// One sequence of a batch, and what a call brings for it.
struct LayerSequence {
  Matrix x, context;                                  // tokens: one column of numbers
  std::vector<bool> real, real_context;               // false: padding
  std::vector<int64_t> documents, context_documents;  // empty: one
  std::vector<int64_t> positions;
  std::function<bool(std::size_t head, std::size_t i, std::size_t j)> allowed;  // empty: all pairs
  Matrix bias;                                                                  // of scores; empty: 0
};

using LayerReference = std::function<Matrix(const LayerFacts&, const LayerSequence&)>;
/// Returns true, so that a namespace-scope constant can hold the registration.
bool register_reference(const std::string& layer, LayerReference reference);
/// Null for a layer without one.
const LayerReference* find_reference(const std::string& layer);

}  // namespace sluice::testing
