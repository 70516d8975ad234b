#include <sluice/core/graph.h>

#include <atomic>

namespace sluice::detail {

namespace {
constinit std::atomic<const DeviceGraphs*> installed = nullptr;  // of DeviceKind::cuda
}

void install_graphs(DeviceKind kind, const DeviceGraphs& graphs) {
  if (kind == DeviceKind::cuda) installed.store(&graphs, std::memory_order_release);
}

const DeviceGraphs* graphs_of(Device device) {
  return device.kind == DeviceKind::cuda ? installed.load(std::memory_order_acquire) : nullptr;
}

}  // namespace sluice::detail
