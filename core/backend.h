// What a device beside the CPU brings: memory, and a kernel for each slot (core/kernel.h). It lives in a library of its
// own, loaded when a tensor is first wanted there, so that a program starts without it and works where it is missing.
#pragma once

#include <sluice/core/allocator.h>
#include <sluice/core/device.h>

#include <cstddef>

namespace sluice {

/// Waits until the device has done all that it was asked to; errors of its kernels come out here, as DeviceError. On cpu
/// and meta there is nothing to wait for.
void synchronize(Device device);
/// As memory_stats(), of a device's own memory; zeros on meta.
MemoryStats memory_stats(Device device);
void reset_peak_memory(Device device);

namespace detail {

struct Backend {
  /// Uninitialised, 256-byte aligned; MemoryError, or DeviceError for an index beyond the last device.
  std::byte* (*allocate)(std::size_t bytes, int index);
  void (*release)(std::byte* p, std::size_t bytes, int index) noexcept;
  void (*synchronize)(int index);
  MemoryStats (*memory_stats)(int index);
  void (*reset_peak)(int index);
};
/// Called by a backend's library while it is loaded; it installs its kernels then, too.
void install_backend(DeviceKind kind, const Backend& backend);
/// Loads it at first use; DeviceError that says why there is none.
const Backend& backend(Device device);

}  // namespace detail
}  // namespace sluice
