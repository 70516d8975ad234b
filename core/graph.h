// What a device was asked to do, recorded and done again with one call: for programs whose steps are many short kernels.
// layers/train/graphed_step.h is how programs use it.
#pragma once

#include <sluice/core/device.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace sluice::detail {

/// Recorded work: the same kernels on the same memory. It owns the memory that was taken while recording; tensors that lie
/// there may outlive it.
class DeviceGraph {
 public:
  virtual ~DeviceGraph() = default;
  /// Runs f, whose calls of optimisers must be the recorded ones, for what is new in them: rates and corrections of the next
  /// replay. They change nothing now. False if they are others, with other tensors.
  virtual bool renew(const std::function<void()>& f) = 0;
  /// Does it all again, after all that the device was asked to before; `streams` are the places() of the RngStreams of the
  /// recording. ValueError, when it is done, if an index that was recorded lies outside its range now (it was taken for 0 or,
  /// where that is allowed, −1); optimisers have written nothing then.
  virtual void replay(const std::vector<uint64_t>& streams) = 0;
};

struct DeviceGraphs {
  /// Runs f; what it asks of the device is not done, but recorded. What a replay would repeat wrongly is a DeviceError that
  /// names it: values read by the host, random numbers drawn outside of an RngStreams::Record. What the host sends to the device is kept as it is.
  /// Memory that f gives back stays, and what it did not take itself must be there at every replay. While f runs no other
  /// thread may use the device.
  std::unique_ptr<DeviceGraph> (*record)(const std::function<void()>& f);
};
/// Called by a backend's library while it is loaded.
void install_graphs(DeviceKind kind, const DeviceGraphs& graphs);
/// Null for a device without.
const DeviceGraphs* graphs_of(Device device);

}  // namespace sluice::detail
