#include <sluice/core/error.h>
#include <sluice/cuda/runtime.h>

#include <atomic>
#include <cstdlib>
#include <cstring>

namespace sluice::cuda {

namespace {

std::atomic<int64_t> live = 0, peak = 0;

std::byte* allocate(std::size_t bytes, int index) {
  if (index != 0) fail<DeviceError>("cuda:", index, ": there is one emulated device, cuda:0");
  const std::size_t room = bytes + (256 - bytes % 256) % 256;
  void* p = room < bytes ? nullptr : room ? std::aligned_alloc(256, room) : nullptr;
  if (!p && bytes) fail<MemoryError>("cuda: cannot allocate ", bytes, " bytes on the emulated device, ", live.load(), " are in use");
  if (room > 0 && room <= std::size_t{1} << 24) std::memset(p, 0xff, room);  // NaN: nobody reads what nobody wrote
  const int64_t now = live += static_cast<int64_t>(bytes);
  for (int64_t before = peak; before < now && !peak.compare_exchange_weak(before, now);) {
  }
  return static_cast<std::byte*>(p);
}
void release(std::byte* p, std::size_t bytes, int) noexcept {
  if (!p) return;
  std::free(p);
  live -= static_cast<int64_t>(bytes);
}
void synchronize(int) {}
MemoryStats memory_stats(int) { return {.live = live, .peak = peak}; }

void reset_peak(int) { peak = live.load(); }

}  // namespace

const detail::Backend& runtime() {
  static constexpr detail::Backend it{&allocate, &release, &synchronize, &memory_stats, &reset_peak};
  return it;
}

void copy_to_device(void* to, const void* from, std::size_t bytes) { copy_on_device(to, from, bytes); }
void copy_to_host(void* to, const void* from, std::size_t bytes) { copy_on_device(to, from, bytes); }
void copy_on_device(void* to, const void* from, std::size_t bytes) {
  if (bytes) std::memcpy(to, from, bytes);
}

}  // namespace sluice::cuda
