// Messages from device to device of different ranks that need not pass through the host. A backend installs what it has
// (NCCL); parallel/ asks for it when a group first exchanges tensors of the device, and goes through the host without.
#pragma once

#include <sluice/core/device.h>

#include <array>
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>

namespace sluice::detail {

/// Memory of the device that goes to, or comes from, a rank of the link.
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
  /// Sends and receives all of these, after all that the device was asked to before; returns when they are there. Calls
  /// `waiting` now and then, which may throw: then the link is broken, and every later call throws. DeviceError when the
  /// engine fails.
  virtual void exchange(DeviceMessages sends, DeviceMessages receives, const std::function<void()>& waiting) = 0;
};

using LinkId = std::array<std::byte, 128>;

/// What joining takes: one rank makes the id, all get it and come.
struct LinkRequest {
  LinkId id;
  int ranks, rank;
  std::function<void()> waiting;                                 // as above
  std::function<void(DeviceMessages, DeviceMessages)> via_host;  // how bytes of the host go between these ranks
};

struct DeviceLinks {
  std::string (*name)();  // "NCCL 2.28.9"; DeviceError that says why there is none
  LinkId (*new_id)();
  std::unique_ptr<DeviceLink> (*join)(const LinkRequest& request);
};
/// Called by a backend's library while it is loaded.
void install_links(DeviceKind kind, const DeviceLinks& links);
/// Null for a device without.
const DeviceLinks* links_of(Device device);

}  // namespace sluice::detail
