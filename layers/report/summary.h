// Where in a model the parameters and the work are: one forward pass on meta, module by module.
#pragma once

#include <sluice/core/kernel.h>
#include <sluice/core/node.h>
#include <sluice/layers/nn/module.h>
#include <sluice/ops/create.h>

namespace sluice {

/// Of one module, those inside it included.
struct ModuleCost {
  std::string path, type;             // the model itself has the path ""
  std::optional<Shape> output = {};   // of the last tensor that it made; nothing for one that made none
  int64_t parameters = 0;             // trained values, tied ones once
  Work work = {};                     // of its forward pass
};

namespace detail {
/// While it lives, puts the kernel calls of its thread down to the modules of m, which must stay where they are.
class ModuleMeter final : KernelObserver {
 public:
  explicit ModuleMeter(const Members& m);
  ~ModuleMeter();
  const std::vector<ModuleCost>& rows() const { return rows_; }
  /// f(row) for the module that runs and those around it.
  void each_running(auto f);

 private:
  void on_call(const KernelCall& call) override;
  ModuleNames names_;
  std::vector<ModuleCost> rows_;
};
std::string summary_of(const std::vector<ModuleCost>& rows);
}  // namespace detail

/// Of model(input), without history; only shape and dtype of the input matter. AutogradError beside AnomalyMode or
/// Profile, which follow modules too.
template <class M>
std::vector<ModuleCost> module_costs(M model, const Tensor& input) {
  to(model, meta);
  NoGrad guard;
  const detail::ModuleMeter meter(detail::members(model));
  std::as_const(model)(to(input, meta));
  return meter.rows();
}
/// That as a table: path, type, output, parameters, FLOPs (a multiply-add is 2), bytes of its kernels' tensors.
template <class M>
std::string summary(const M& model, const Tensor& input) {
  return detail::summary_of(module_costs(model, input));
}

}  // namespace sluice
