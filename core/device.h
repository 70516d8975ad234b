// Where a tensor's memory lives and its kernels run.
#pragma once

#include <sluice/core/error.h>

#include <cstdint>

namespace sluice {

enum class DeviceKind : uint8_t { cpu, cuda };

struct Device {
  DeviceKind kind = DeviceKind::cpu;
  uint8_t index = 0;
  bool operator==(const Device&) const = default;
};

inline constexpr Device cpu{};

inline void append_text(std::string& s, Device d) {
  if (d.kind == DeviceKind::cpu) s += "cpu";
  else s += str("cuda:", int{d.index});
}

}  // namespace sluice
