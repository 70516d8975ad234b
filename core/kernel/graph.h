// Device graphs: work recorded once and replayed with one call, for programs whose steps are many short kernels.
// Programs use them through layers/train/graphed_step.h.
#pragma once

#include <sluice/core/device.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace sluice {
class Tensor;
}

namespace sluice::detail {

/// Recorded work: the same kernels on the same memory. Owns the memory allocated while recording; tensors in this
/// memory may outlive the graph.
class DeviceGraph {
 public:
  virtual ~DeviceGraph() = default;
  /// Runs f to get the new values (rates and corrections) that its optimisers need in the next replay. The calls of
  /// optimisers in f must be the recorded ones; they change nothing now. Returns false if the calls or their tensors
  /// differ.
  virtual bool renew(const std::function<void()>& f) = 0;
  /// Replays the work, after everything that was queued on the device before. `streams` are the places() of the
  /// recording's RngLog. Throws ValueError after the replay if a recorded index is outside its range now. The
  /// replay then used 0 (or −1, where allowed) for this index, and optimisers wrote nothing.
  virtual void replay(const std::vector<uint64_t>& streams) = 0;
};

struct DeviceGraphs {
  /// Runs f; its work on the device is recorded and not done. Throws DeviceError naming an operation that a replay
  /// would repeat wrongly: values read by the host, random numbers drawn outside of an RngLog::Record. Data that
  /// the host sends to the device are recorded as they are. Memory that f frees stays allocated. Memory that f did not
  /// allocate must exist at every replay. Other threads that use the device wait until f has ended, so f must not
  /// wait for them.
  std::unique_ptr<DeviceGraph> (*record)(const std::function<void()>& f);
  /// True while this thread records a graph.
  bool (*recording)();
  /// Makes the graph that this thread records keep the memory of x, for a tensor that its owner may drop.
  void (*keep)(const Tensor& x);
};
/// Called by a backend's library while it is loaded.
void install_graphs(DeviceKind kind, const DeviceGraphs& graphs);
/// Null for a device without graphs.
const DeviceGraphs* graphs_of(Device device);

}  // namespace sluice::detail
