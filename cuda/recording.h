// While a graph is recorded (core/graph.h): where its memory comes from, which indices it checks, and what it refuses.
#pragma once

#include <sluice/core/philox.h>
#include <sluice/core/random.h>

#include <cstddef>
#include <cstdint>
#include <memory>

namespace sluice {
struct UpdatedTensors;
}

namespace sluice::cuda {

/// True while what the device is asked to do is recorded.
bool recording();
/// DeviceError naming what a replay would repeat wrongly, while a graph is recorded.
void refuse_in_recording(const char* what);
/// Records a check: at each replay indices outside [low, limit) are set to 0, or −1 if low is, and the first is reported.
void record_index_check(const int64_t* index, int64_t n, int64_t low, int64_t limit);

/// Random blocks as kernels take them: from where the host said, or in a graph from where its stream stands at each replay.
struct RandomBlocks {
  uint64_t seed, first;
  const uint64_t* moved;  // null, or on the device: the seed of now, and how many blocks further
  SLUICE_FN sluice::detail::PhiloxWords operator()(uint64_t i) const {
    return moved ? sluice::detail::philox_block(moved[0], first + moved[1] + i) : sluice::detail::philox_block(seed, first + i);
  }
};
/// DeviceError naming what asks if the blocks were drawn before the recording that is under way.
RandomBlocks blocks_of(const char* what, const RngBlocks& from);

/// What the host works out anew for each step, as kernels read it.
template <class V>
struct Latest {
  V value;
  const V* at = nullptr;             // in a graph: where the value of the replay lies
  const int64_t* refused = nullptr; // in a graph: not 0 if an index lay outside its range, and nothing may be written
  bool only_told = false;           // for the host: this call tells the value of the next replay, and starts nothing
  SLUICE_FN V get() const { return at ? *at : value; }
  SLUICE_FN bool stopped() const { return refused && *refused; }
};
struct StepValue {
  const std::byte* at = nullptr;
  const int64_t* refused = nullptr;
  bool only_told = false;
};
/// `value`, of a call for these tensors: recorded, or told to a graph in which the same call was recorded.
StepValue step_value(const void* value, std::size_t bytes, const UpdatedTensors& x);
template <class V>
Latest<V> latest(const V& value, const UpdatedTensors& x) {
  static_assert(std::is_trivially_copyable_v<V> && alignof(V) <= 8);
  const StepValue s = step_value(&value, sizeof(V), x);
  return {value, reinterpret_cast<const V*>(s.at), s.refused, s.only_told};
}

/// For the runtime. While recording memory comes from the graph's own; null: nothing is recorded.
std::byte* allocate_recorded(std::size_t bytes);
/// True if the graph that is recorded, or an older one, keeps what is given back here.
bool keep_released(std::byte* p, std::size_t bytes);
/// A copy of the host's bytes that lies on the device as long as the graph.
const void* keep_on_device(const void* from, std::size_t bytes);

}  // namespace sluice::cuda
