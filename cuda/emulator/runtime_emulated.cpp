#include <sluice/core/error.h>
#include <sluice/cuda/device.h>
#include <sluice/cuda/recording.h>
#include <sluice/cuda/runtime.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <list>
#include <mutex>
#include <set>
#include <vector>

namespace sluice::cuda {

namespace {

std::atomic<int64_t> live = 0, peak = 0, first_loads = 0;

// The calls that this thread records, in order; null: none are recorded.
constinit thread_local std::vector<std::function<void()>>* tape = nullptr;

std::byte* allocate(std::size_t bytes, int index) {
  if (index != 0) fail<DeviceError>("cuda:", index, ": there is one emulated device, cuda:0");
  if (std::byte* p = allocate_recorded(bytes)) return p;
  return allocate_plainly(bytes);
}
void release(std::byte* p, std::size_t bytes, int) noexcept {
  if (p && !keep_released(p, bytes)) release_plainly(p, bytes);
}
void synchronize(int) { refuse_in_recording("synchronize"); }
MemoryStats memory_stats(int) { return {.live = live, .peak = peak}; }

void reset_peak(int) { peak = live.load(); }

struct Tape final : Recorded {
  std::vector<std::function<void()>> steps;
  void replay() override {
    for (const auto& step : steps) step();
  }
};

}  // namespace

std::byte* allocate_plainly(std::size_t bytes) {
  const std::size_t room = bytes + (256 - bytes % 256) % 256;
  void* p = room < bytes ? nullptr : room ? std::aligned_alloc(256, room) : nullptr;
  if (!p && bytes)
    fail<MemoryError>("cuda: cannot allocate ", bytes, " bytes on the emulated device, ", live.load(), " are in use");
  if (room > 0 && room <= std::size_t{1} << 24) std::memset(p, 0xff, room);  // NaN shows reads of unwritten memory
  const int64_t now = live += static_cast<int64_t>(bytes);
  for (int64_t before = peak; before < now && !peak.compare_exchange_weak(before, now);) {}
  return static_cast<std::byte*>(p);
}
void release_plainly(std::byte* p, std::size_t bytes) noexcept {
  std::free(p);
  live -= static_cast<int64_t>(bytes);
}
void upload_plainly(void* to, const void* from, std::size_t bytes) { std::memcpy(to, from, bytes); }
int multiprocessors() { return 3; }  // so that a block takes work more than once
int* work_counter() {
  static std::mutex mutex;
  static auto* const all = new std::list<int>;  // never destroyed: recorded kernels may outlive their thread
  thread_local int* const own = [] {
    const std::lock_guard lock(mutex);
    return &all->emplace_back(0);
  }();
  return own;
}

void begin_recording() { tape = new std::vector<std::function<void()>>; }
std::unique_ptr<Recorded> end_recording() {
  auto t = std::make_unique<Tape>();
  t->steps = std::move(*tape);
  abandon_recording();
  return t;
}
void abandon_recording() noexcept {
  delete tape;
  tape = nullptr;
}

void emulator::load(const void* kernel) {
  static std::mutex mutex;
  static std::set<const void*> loaded;
  const std::lock_guard lock(mutex);
  if (loaded.insert(kernel).second && tape) ++first_loads;
}
int64_t emulator::first_loads_recorded() { return first_loads; }

void enqueue(std::function<void()> work) {
  if (tape) tape->push_back(std::move(work));
  else work();
}

const detail::Backend& runtime() {
  static constexpr detail::Backend it{&allocate, &release, &synchronize, &memory_stats, &reset_peak};
  return it;
}

void copy_to_device(void* to, const void* from, std::size_t bytes) {
  if (bytes == 0) return;
  copy_on_device(to, tape ? keep_on_device(from, bytes) : from, bytes);
}
void copy_to_host(void* to, const void* from, std::size_t bytes) {
  refuse_in_recording("reading values on the host");
  copy_on_device(to, from, bytes);
}
void copy_on_device(void* to, const void* from, std::size_t bytes) {
  if (bytes) enqueue([=] { std::memcpy(to, from, bytes); });
}

}  // namespace sluice::cuda
