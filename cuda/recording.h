// Recording of a graph (core/kernel/graph.h): its memory, the indices that it checks, and the calls that it refuses.
#pragma once

#include <sluice/core/number/philox.h>
#include <sluice/core/number/random.h>

#include <cstddef>
#include <cstdint>
#include <memory>

namespace sluice {
struct UpdatedTensors;
}

namespace sluice::cuda {

/// True while this thread records a graph: its calls for the device become part of it.
bool recording();
/// While this thread records a graph, throws DeviceError that names `what`, which a replay would repeat wrongly.
void refuse_in_recording(const char* what);
/// Records a check: each replay sets indices outside [low, limit) to `instead`, and reports the first.
void record_index_check(const int64_t* index, int64_t n, int64_t low, int64_t limit, int64_t instead);

/// Random blocks for kernels. They start where the host says; in a graph, where the stream stands at each replay.
struct RandomBlocks {
  uint64_t seed, first;
  const uint64_t* moved;  // null, or on the device: the seed of this replay, and the blocks to add to `first`
  SLUICE_FN sluice::detail::PhiloxWords operator()(uint64_t i) const {
    return moved ? sluice::detail::philox_block(moved[0], first + moved[1] + i)
                 : sluice::detail::philox_block(seed, first + i);
  }
};
/// DeviceError that names `what` if a recording is under way and the blocks were drawn before it.
RandomBlocks blocks_of(const char* what, const RngBlocks& from);

/// A value that the host computes anew for each step, as kernels read it.
template <class V> struct Latest {
  V value;
  const V* at = nullptr;             // in a graph: the address of the replay's value
  const int64_t* refused = nullptr;  // in a graph: not 0 if an index lay outside its range; then write nothing
  bool only_renews = false;          // for the host: this call only sets the value of the next replay; start no kernel
  SLUICE_FN V get() const { return at ? *at : value; }
  SLUICE_FN bool stopped() const { return refused && *refused; }
};
struct StepValue {
  const std::byte* at = nullptr;
  const int64_t* refused = nullptr;
  bool only_renews = false;
};
/// Registers `value`, of a call for the tensors x, in the graph that is recorded; in Graph::renew() it sets the value
/// of the same recorded call. Without a graph it does nothing.
StepValue step_value(const void* value, std::size_t bytes, const UpdatedTensors& x);
template <class V> Latest<V> latest(const V& value, const UpdatedTensors& x) {
  static_assert(std::is_trivially_copyable_v<V> && alignof(V) <= 8);
  const StepValue s = step_value(&value, sizeof(V), x);
  return {value, reinterpret_cast<const V*>(s.at), s.refused, s.only_renews};
}

/// For the runtime. While a graph is recorded, memory comes from the graph. Null if none is recorded or bytes is 0.
std::byte* allocate_recorded(std::size_t bytes);
/// True if the graphs that are recorded, by whatever thread, or an older one keep the released memory p.
bool keep_released(std::byte* p, std::size_t bytes);
/// Copies bytes of the host to the device for as long as the graph lives. Only while a graph is recorded.
const void* keep_on_device(const void* from, std::size_t bytes);

}  // namespace sluice::cuda
