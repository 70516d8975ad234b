// Where a tensor's memory lives and its kernels run.
#pragma once

#include <sluice/core/error.h>

#include <cstdint>
#include <string_view>

namespace sluice {

/// meta has shapes and dtypes but no memory: kernels are not run there, values cannot be read.
enum class DeviceKind : uint8_t { cpu, cuda, meta };

/// Where memory lies. `cpu`, `meta` and `Device::cuda()` are values of it.
struct Device {
  /// Which sort of device.
  DeviceKind kind = DeviceKind::cpu;
  /// Which of them, from 0.
  uint8_t index = 0;
  /// The GPU of that number.
  static constexpr Device cuda(uint8_t index = 0) { return {DeviceKind::cuda, index}; }
  bool operator==(const Device&) const = default;
};

/// The host.
inline constexpr Device cpu{};
/// Shapes without memory.
inline constexpr Device meta{DeviceKind::meta};

/// "cpu", "meta", "cuda" or "cuda:1": what a program's --device option takes. ValueError for other words.
Device device_named(std::string_view text);

inline void append_text(std::string& s, Device d) {
  if (d.kind == DeviceKind::cpu) s += "cpu";
  else if (d.kind == DeviceKind::meta) s += "meta";
  else s += str("cuda:", int{d.index});
}

}  // namespace sluice
