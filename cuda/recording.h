// While a graph is recorded (core/graph.h): where its memory comes from, which indices it checks, and what it refuses.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace sluice::cuda {

/// True while what the device is asked to do is recorded.
bool recording();
/// DeviceError naming what a replay would repeat wrongly, while a graph is recorded.
void refuse_in_recording(const char* what);
/// Records a check: at each replay indices outside [low, limit) are set to 0, or −1 if low is, and the first is reported.
void record_index_check(const int64_t* index, int64_t n, int64_t low, int64_t limit);

/// For the runtime. While recording memory comes from the graph's own; null: nothing is recorded.
std::byte* allocate_recorded(std::size_t bytes);
/// True if the graph that is recorded, or an older one, keeps what is given back here.
bool keep_released(std::byte* p, std::size_t bytes);
/// A copy of the host's bytes that lies on the device as long as the graph.
const void* keep_on_device(const void* from, std::size_t bytes);

}  // namespace sluice::cuda
