// Backend of a device other than the CPU: memory, and a kernel for each slot (core/kernel/kernel.h). A backend is a
// library of its own, loaded at the first use of its device, so a program starts without it and works where it is
// missing.
#pragma once

#include <sluice/core/memory/allocator.h>
#include <sluice/core/device.h>

#include <cstddef>

namespace sluice {

/// Waits until the device has done all queued work. Throws DeviceError for errors of its kernels. Does nothing on cpu
/// and meta.
void synchronize(Device device);
/// memory_stats() of a device's own memory; zeros on meta.
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
/// Called by a backend's library while it is loaded. The library installs its kernels at the same time.
void install_backend(DeviceKind kind, const Backend& backend);
/// The backend of `device`, loaded at first use. Throws DeviceError with the reason if there is none.
const Backend& backend(Device device);

}  // namespace detail
}  // namespace sluice
