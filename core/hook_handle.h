// What Tensor::register_hook() returns.
#pragma once

#include <functional>
#include <memory>
#include <utility>

namespace sluice {

class Tensor;

/// A hook of a tensor. The hook outlives its handle.
class HookHandle {
 public:
  using Hook = std::function<Tensor(const Tensor&)>;  // is called with a gradient
  HookHandle() = default;
  /// A handle of `hook`, for the library's own use.
  explicit HookHandle(std::weak_ptr<Hook> hook) : hook_(std::move(hook)) {}
  /// Takes the hook away: it is not called again. Does nothing the second time, or once the tensor is gone.
  void remove();

 private:
  std::weak_ptr<Hook> hook_;
};

}  // namespace sluice
