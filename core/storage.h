// Storage: a counted block of bytes on one device, shared by every view of it. Its version number
// grows with each in-place write, which is how backward notices that a saved tensor was edited.
#pragma once

#include <sluice/core/memory/allocator.h>
#include <sluice/core/device.h>
#include <sluice/core/memory/ref.h>

#include <cstddef>
#include <functional>
#include <memory>

namespace sluice {

class Storage : public RefCounted {
 public:
  /// `bytes` uninitialised bytes. On cpu 64-byte aligned, in one allocation with this header; on meta the header alone;
  /// on cuda memory of the backend.
  static Ref<Storage> create(std::size_t bytes, Device device);

  /// Storage over another owner's memory. `release` is called when the memory is no longer read or written; it must not
  /// throw.
  static Ref<Storage> borrow(std::byte* data, std::size_t bytes, std::function<void()> release);

  /// Throws DeviceError where the host cannot read and write: meta has no memory, and a GPU has its own.
  std::byte* data() const {
    if (device_.kind != DeviceKind::cpu) [[unlikely]]
      fail_no_memory();
    return data_;
  }
  /// An address on the device, for its kernels.
  std::byte* device_data() const { return data_; }
  std::size_t bytes() const { return bytes_; }
  Device device() const { return device_; }
  bool is_borrowed() const { return bool(release_); }
  uint32_t version() const { return version_.load(std::memory_order_relaxed); }
  void bump_version() { version_.fetch_add(1, std::memory_order_relaxed); }
  /// Sets the version to before.version() + 1: this storage replaces `before`, so all saved tensors of `before` count
  /// as edited.
  void supersede(const Storage& before) { version_.store(before.version() + 1, std::memory_order_relaxed); }

 private:
  [[noreturn, gnu::cold]] void fail_no_memory() const;
  Storage(std::byte* data, std::size_t bytes, Device device) : device_(device), data_(data), bytes_(bytes) {}
  friend void dispose(Storage*);

  std::atomic<uint32_t> version_{0};
  Device device_;
  std::byte* data_;
  std::size_t bytes_;
  std::unique_ptr<std::function<void()>> release_;  // of borrowed memory
};
void dispose(Storage*);

}  // namespace sluice
