// The device seam: one slot per op and device. The CPU kernel is the slot's initialiser; a backend
// installs its own at start-up (one line per op). A slot that is empty is an error that names the op
// and the device — never a silent fallback.
#pragma once

#include <sluice/core/device.h>

namespace sluice {

template <class Signature>
class Kernel {
 public:
  constexpr Kernel(const char* op, Signature* cpu) : op_(op), slots_{cpu, nullptr} {}
  Signature* operator()(Device d) const {
    Signature* f = slots_[static_cast<int>(d.kind)];
    if (!f) fail<DeviceError>(op_, ": no kernel for ", d);
    return f;
  }
  void install(DeviceKind kind, Signature* f) { slots_[static_cast<int>(kind)] = f; }

 private:
  const char* op_;
  Signature* slots_[2];
};

}  // namespace sluice
