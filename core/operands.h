// Operands that an op needs: an undefined one is named beside the op that was called.
#pragma once

#include <sluice/core/tensor.h>

#include <functional>
#include <initializer_list>
#include <string_view>
#include <vector>

namespace sluice::detail {

[[noreturn, gnu::cold]] void fail_undefined(const char* op, std::string_view operand);

/// Throws ValueError naming `op` and the operand unless all are defined. The first line of an op whose other checks do
/// not name it: members of an undefined tensor know no op.
inline void check_defined(const char* op, std::initializer_list<NamedOperand> operands) {
  for (const auto& [name, x] : operands)
    if (!x.defined()) [[unlikely]]
      fail_undefined(op, name);
}
inline void check_defined(const char* op, const Tensor& x) { check_defined(op, {{"x", x}}); }
/// The same for a list, whose entry i is "operand i".
void check_defined(const char* op, const std::vector<Tensor>& operands);
/// Throws DeviceError naming `op` if two operands are on two devices; undefined ones are left out. For ops made of
/// other ops, and of kernels with other names, whose errors would name these.
void check_devices(const char* op, std::initializer_list<std::reference_wrapper<const Tensor>> operands);

}  // namespace sluice::detail
