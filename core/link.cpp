#include <sluice/core/link.h>

#include <atomic>

namespace sluice::detail {

namespace {
constinit std::atomic<const DeviceLinks*> installed = nullptr;  // of DeviceKind::cuda
}

void install_links(DeviceKind kind, const DeviceLinks& links) {
  if (kind == DeviceKind::cuda) installed.store(&links, std::memory_order_release);
}

const DeviceLinks* links_of(Device device) {
  return device.kind == DeviceKind::cuda ? installed.load(std::memory_order_acquire) : nullptr;
}

}  // namespace sluice::detail
