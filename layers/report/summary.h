// Parameters and work of a model, module by module, from one forward pass on meta.
#pragma once

#include <sluice/core/node.h>
#include <sluice/layers/nn/module.h>
#include <sluice/layers/nn/pass.h>
#include <sluice/ops/shape/create.h>

namespace sluice {

/// The cost of one module, including the modules inside it.
struct ModuleCost {
  std::string path, type;            // the model itself has the path ""
  std::optional<Shape> output = {};  // shape of the last tensor that the module computed; empty if there is none
  int64_t parameters = 0;            // number of trained values; shared tensors count once
  Work work = {};                    // of the module's forward pass
};

namespace detail {
/// While it lives, attributes the kernel calls of its thread to the modules of m, which must not be moved in memory.
class ModuleMeter final : Observer {
 public:
  explicit ModuleMeter(const Members& m);
  const std::vector<ModuleCost>& rows() const { return rows_; }

 private:
  void on_call(const KernelCall& call) override;
  void on_op(const char* op, const Tensor& y, Node* node) override;
  /// Calls f(row) for the running module and for all modules around it.
  void each_running(auto f);
  ModuleNames names_;
  std::vector<ModuleCost> rows_;
};
std::string summary_of(const std::vector<ModuleCost>& rows);
}  // namespace detail

/// The costs of model(input, pass), without history. Only shapes and dtypes of the input and of the pass's tensors
/// matter. An AnomalyMode or a Profile may live at the same time. ValueError for a pass with a stream, and for a field
/// that the model does not read.
template <class M> std::vector<ModuleCost> module_costs(M model, const Tensor& input, const Pass& pass = {}) {
  if (pass.stream) fail<ValueError>("summary: counts a whole pass, and got a stream; leave `stream` out");
  to(model, meta);
  NoGrad guard;
  const detail::ModuleMeter meter(detail::members(model));
  const Pass moved = to(pass, meta);
  if constexpr (TakesPass<M>) std::as_const(model)(to(input, meta), moved);
  else std::as_const(model)(to(input, meta));
  return meter.rows();
}
/// module_costs() as a table: path, type, output, parameters, FLOPs (a multiply-add is 2), bytes of the kernels'
/// tensors.
template <class M> std::string summary(const M& model, const Tensor& input, const Pass& pass = {}) {
  return detail::summary_of(module_costs(model, input, pass));
}

}  // namespace sluice
