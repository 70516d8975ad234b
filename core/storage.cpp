#include <sluice/core/storage.h>

#include <sluice/core/kernel.h>

#include <new>

namespace sluice {

namespace {
constexpr std::size_t kHeader = 64;  // keeps the data aligned as the block is
}
static_assert(sizeof(Storage) <= kHeader);

Ref<Storage> Storage::create(std::size_t bytes, Device device) {
  if (detail::observed()) [[unlikely]] detail::note_allocation(bytes);
  if (device.kind == DeviceKind::meta) return Ref<Storage>(::new (detail::allocate(kHeader)) Storage(nullptr, bytes, device));
  if (device.kind != DeviceKind::cpu)
    fail<DeviceError>("storage: no memory can be had on ", device, "; this build computes on cpu");
  auto* block = static_cast<std::byte*>(detail::allocate_counted(kHeader + bytes));
  return Ref<Storage>(::new (block) Storage(block + kHeader, bytes, device));
}

void Storage::fail_no_memory() const {
  fail<DeviceError>("storage: a tensor on ", device_, " has no memory to read or write");
}

void dispose(Storage* s) {
  const std::size_t bytes = s->bytes_;
  const bool on_meta = s->device_.kind == DeviceKind::meta;
  s->~Storage();
  if (on_meta) return detail::deallocate(s, kHeader);
  detail::deallocate_counted(s, kHeader + bytes);
}

}  // namespace sluice
