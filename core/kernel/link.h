// Messages between devices of different ranks that need not pass through the host. A backend installs its link (NCCL).
// parallel/ joins a link when a group first exchanges tensors of the device, and sends through the host if there is
// none.
#pragma once

#include <sluice/core/device.h>

#include <array>
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>

namespace sluice::detail {

/// Memory of the device to send to, or to receive from, a rank of the link.
struct DeviceMessage {
  int rank;
  std::byte* data;
  std::size_t bytes;
};
using DeviceMessages = std::span<const DeviceMessage>;

/// One rank's end of a link.
class DeviceLink {
 public:
  virtual ~DeviceLink() = default;
  /// Sends and receives all messages, after everything that was queued on the device before; returns when they have
  /// arrived. Calls `waiting` now and then. If `waiting` throws, the link is broken, and every later call throws.
  /// DeviceError when the engine fails.
  virtual void exchange(DeviceMessages sends, DeviceMessages receives, const std::function<void()>& waiting) = 0;
};

using LinkId = std::array<std::byte, 128>;
/// Names a device among those of all machines. Ranks that share one cannot be linked.
using DeviceId = std::array<std::byte, 16>;

/// Arguments of join(): one rank makes the id, and every rank joins with it.
struct LinkRequest {
  LinkId id;
  int ranks, rank;
  std::function<void()> waiting;                                 // as in exchange()
  std::function<void(DeviceMessages, DeviceMessages)> via_host;  // exchanges memory of the host between these ranks
};

struct DeviceLinks {
  std::string (*name)();  // "NCCL 2.28.9"; DeviceError with the reason if there is none
  DeviceId (*device)();   // of the calling rank
  LinkId (*new_id)();
  std::unique_ptr<DeviceLink> (*join)(const LinkRequest& request);
};
/// Called by a backend's library while it is loaded.
void install_links(DeviceKind kind, const DeviceLinks& links);
/// Null for a device without links.
const DeviceLinks* links_of(Device device);

}  // namespace sluice::detail
