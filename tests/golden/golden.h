// Reference cases computed by an independent float64 program: data/index.json names them, and every array
// is a file of raw little-endian float64. A file that knows how to run some of them registers a runner; one
// test then runs every case of the index, so that a case without a runner is a failure.
#pragma once

#include <sluice/autograd/engine.h>
#include <sluice/core/tensor.h>
#include <sluice/ops/shape/view.h>

#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace sluice::testing {

class GoldenCase {
 public:
  GoldenCase(const void* entry, std::string name) : name(std::move(name)), entry_(entry) {}
  std::string name;

  /// The array as a constant of that dtype; IOError when the case has none of this name, or the file is
  /// not as long as the index says.
  Tensor get(const std::string& array, DType dtype = f64) const;
  bool has(const std::string& array) const;
  std::vector<std::string> arrays() const;
  /// Entries of `meta`; `otherwise` where the case has none.
  std::string text(const std::string& key, const std::string& otherwise = {}) const;
  double number(const std::string& key, double otherwise = 0) const;

 private:
  const void* entry_;  // its JSON value
};

/// All cases of the index, in its order.
const std::vector<GoldenCase>& golden_cases();
const GoldenCase& golden_case(std::string_view name);

/// What a runner computed, by the name of the array that it must equal; "out (by hand)" is compared with
/// "out".
using GoldenResults = std::vector<std::pair<std::string, Tensor>>;
struct GoldenRunner {
  std::string prefix;  // of the names of its cases; the longest one wins
  std::function<GoldenResults(const GoldenCase&, DType)> run;
  double tolerance = 1e-9;      // f64: |got − want|
  double tolerance_f32 = 1e-5;  // f32: |got − want| / max |want|
};
/// The gradients of a gated attention unit's output, asked of the layer, and again of the `inputs` (array, tensor) of a
/// function that computes it by hand.
template <class Layer, class Hand>
GoldenResults unit_gradients(const GoldenCase& c, DType dtype, const Layer& layer, const Tensor& x, const Tensor& out,
                             const Hand& by_hand, const std::vector<std::pair<std::string, Tensor*>>& inputs) {
  const GradOptions options{.grad_outputs = {c.get("cot", dtype)}};
  const std::vector<Tensor> g = grad({out}, {x, layer.in.weight, layer.out.weight, layer.gamma, layer.beta}, options);
  const int64_t e = layer.options.expansion, s = layer.options.key_dim;
  GoldenResults results{{"out", out},
                        {"d_x", g[0]},
                        {"d_wu", narrow(g[1], 1, 0, e)},
                        {"d_wv", narrow(g[1], 1, e, e)},
                        {"d_wz", narrow(g[1], 1, 2 * e, s)},
                        {"d_wo", g[2]},
                        {"d_gamma", g[3]},
                        {"d_beta", g[4]}};
  std::vector<Tensor> wanted;
  for (const auto& [array, tensor] : inputs) wanted.push_back(tensor->requires_grad_());
  const std::vector<Tensor> hands = grad({by_hand(c)}, wanted, options);
  for (std::size_t i = 0; i < inputs.size(); ++i) results.emplace_back(inputs[i].first + " (by hand)", hands[i]);
  return results;
}

/// Returns true, so that a namespace-scope constant can hold the registration.
bool register_golden(GoldenRunner runner);
const GoldenRunner* find_runner(const std::string& case_name);

/// One line of golden_table.txt, which is written and printed when the program ends.
struct GoldenRow {
  std::string name;  // case, array
  double error = 0, tolerance = 0, error_f32 = 0, tolerance_f32 = 0;
};
void note_golden(GoldenRow row);

}  // namespace sluice::testing
