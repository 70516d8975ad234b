#include <sluice/core/storage.h>

#include <new>

namespace sluice {

namespace {
constexpr std::size_t kHeader = 64;  // keeps the data aligned as the block is
}
static_assert(sizeof(Storage) <= kHeader);

Ref<Storage> Storage::create(std::size_t bytes, Device device) {
  if (device.kind != DeviceKind::cpu)
    fail<DeviceError>("storage: no memory can be had on ", device, "; this build computes on cpu");
  auto* block = static_cast<std::byte*>(detail::allocate_counted(kHeader + bytes));
  return Ref<Storage>(::new (block) Storage(block + kHeader, bytes, device));
}

void dispose(Storage* s) {
  std::size_t bytes = s->bytes_;
  s->~Storage();
  detail::deallocate_counted(s, kHeader + bytes);
}

}  // namespace sluice
