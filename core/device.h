// Where a tensor's memory lives and its kernels run.
#pragma once

#include <sluice/core/error.h>

#include <cstdint>
#include <string_view>

namespace sluice {

/// meta has shapes and dtypes but no memory: no kernel runs there, and values cannot be read.
enum class DeviceKind : uint8_t { cpu, cuda, meta };

/// A place for memory: `cpu`, `meta` or `Device::cuda()`.
struct Device {
  /// Kind of device.
  DeviceKind kind = DeviceKind::cpu;
  /// Number among the devices of its kind, from 0.
  uint8_t index = 0;
  /// GPU number `index`.
  static constexpr Device cuda(uint8_t index = 0) { return {DeviceKind::cuda, index}; }
  bool operator==(const Device&) const = default;
};

/// The host.
inline constexpr Device cpu{};
/// Shapes without memory.
inline constexpr Device meta{DeviceKind::meta};

/// The device of a program's --device option: "cpu", "meta", "cuda" or "cuda:0" … "cuda:9". ValueError for other text.
Device device_named(std::string_view text);

inline void append_text(std::string& s, Device d) {
  if (d.kind == DeviceKind::cpu) s += "cpu";
  else if (d.kind == DeviceKind::meta) s += "meta";
  else s += str("cuda:", int{d.index});
}

}  // namespace sluice
