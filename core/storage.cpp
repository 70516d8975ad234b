#include <sluice/core/storage.h>

#include <sluice/core/kernel/backend.h>
#include <sluice/core/kernel/kernel.h>

#include <new>

namespace sluice {

namespace {
constexpr std::size_t kHeader = 64;  // the alignment of a block, so that the data is aligned too
}
static_assert(sizeof(Storage) <= kHeader);

Ref<Storage> Storage::create(std::size_t bytes, Device device) {
  if (detail::observed()) [[unlikely]]
    detail::note_allocation(bytes);
  if (device.kind == DeviceKind::meta)
    return Ref<Storage>(::new (detail::allocate(kHeader)) Storage(nullptr, bytes, device));
  if (device.kind == DeviceKind::cuda) {
    Ref<Storage> header(::new (detail::allocate(kHeader)) Storage(nullptr, 0, device));  // first: no leak if one fails
    header->data_ = detail::backend(device).allocate(bytes, device.index), header->bytes_ = bytes;
    return header;
  }
  auto* block = static_cast<std::byte*>(detail::allocate_counted(kHeader + bytes));
  return Ref<Storage>(::new (block) Storage(block + kHeader, bytes, device));
}

Ref<Storage> Storage::borrow(std::byte* data, std::size_t bytes, std::function<void()> release) {
  auto owner = std::make_unique<std::function<void()>>(std::move(release));
  Ref<Storage> header(::new (detail::allocate(kHeader)) Storage(data, bytes, cpu));
  header->release_ = std::move(owner);
  return header;
}

void Storage::fail_no_memory() const {
  if (device_.kind == DeviceKind::meta) fail<DeviceError>("storage: a tensor on meta has no memory to read or write");
  fail<DeviceError>("storage: the memory of a tensor on ", device_, " is its device's own; to(x, cpu) copies it here");
}

void dispose(Storage* s) {
  const std::size_t bytes = s->bytes_;
  const Device device = s->device_;
  if (s->data_ && device.kind == DeviceKind::cuda) detail::backend(device).release(s->data_, bytes, device.index);
  const auto release = std::move(s->release_);
  s->~Storage();
  if (release) {
    detail::deallocate(s, kHeader);
    if (*release) (*release)();
    return;
  }
  if (device.kind != DeviceKind::cpu) return detail::deallocate(s, kHeader);
  detail::deallocate_counted(s, kHeader + bytes);
}

}  // namespace sluice
