#include <sluice/core/error.h>
#include <sluice/cuda/device.h>
#include <sluice/cuda/recording.h>
#include <sluice/cuda/runtime.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <list>
#include <mutex>
#include <set>
#include <vector>

namespace sluice::cuda {

namespace {

std::atomic<int64_t> live = 0, peak = 0, first_loads = 0;

// The calls that this thread records, in order; null: none are recorded.
constinit thread_local std::vector<std::function<void()>>* tape = nullptr;

/// Work that has been launched and not yet done, in order. On a GPU it is done some time before the host waits for it;
/// here, if launches are deferred, not before that.
struct Queue {
  std::mutex mutex;
  std::deque<std::function<void()>> waiting;
  std::atomic<bool> deferred = [] {
    const char* const value = std::getenv("SLUICE_CUDA_DEFER");
    return value && std::strcmp(value, "1") == 0;
  }();
};
Queue& queue() {
  static auto* const it = new Queue;  // never destroyed: tensors of static storage may outlive it
  return *it;
}
void finish_work() {
  Queue& q = queue();
  const std::lock_guard lock(q.mutex);
  while (!q.waiting.empty()) {
    const auto work = std::move(q.waiting.front());
    q.waiting.pop_front();
    work();
  }
}

std::byte* allocate(std::size_t bytes, int index) {
  if (index != 0) fail<DeviceError>("cuda:", index, ": there is one emulated device, cuda:0");
  if (std::byte* p = allocate_recorded(bytes)) return p;
  return allocate_plainly(bytes);
}
void release(std::byte* p, std::size_t bytes, int) noexcept {
  if (p && !keep_released(p, bytes)) release_plainly(p, bytes);
}
void synchronize(int) {
  refuse_in_recording("synchronize");
  finish_work();
}
MemoryStats memory_stats(int) { return {.live = live, .peak = peak}; }

void reset_peak(int) { peak = live.load(); }

struct Tape final : Recorded {
  std::vector<std::function<void()>> steps;
  void replay() override {
    for (const auto& step : steps) enqueue(step);
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
  live -= static_cast<int64_t>(bytes);
  Queue& q = queue();
  const std::lock_guard lock(q.mutex);
  if (q.waiting.empty()) std::free(p);
  else q.waiting.push_back([p] { std::free(p); });  // earlier work may use it
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
  if (tape) return tape->push_back(std::move(work));
  Queue& q = queue();
  if (!q.deferred) return work();
  std::size_t waiting = 0;
  {
    const std::lock_guard lock(q.mutex);
    q.waiting.push_back(std::move(work)), waiting = q.waiting.size();
  }
  if (waiting > 1000) finish_work();  // so that released memory does not pile up
}
void emulator::defer_launches(bool on) {
  if (!on) finish_work();
  queue().deferred = on;
}

const detail::Backend& runtime() {
  static constexpr detail::Backend it{&allocate, &release, &synchronize, &memory_stats, &reset_peak};
  return it;
}

void copy_to_device(void* to, const void* from, std::size_t bytes) {
  if (bytes == 0) return;
  if (tape) return copy_on_device(to, keep_on_device(from, bytes), bytes);
  if (!queue().deferred) return static_cast<void>(std::memcpy(to, from, bytes));
  const auto* const first = static_cast<const std::byte*>(from);
  enqueue([to, all = std::vector<std::byte>(first, first + bytes)] { std::memcpy(to, all.data(), all.size()); });
}
void copy_to_host(void* to, const void* from, std::size_t bytes) {
  refuse_in_recording("reading values on the host");
  finish_work();
  if (bytes) std::memcpy(to, from, bytes);
}
void copy_on_device(void* to, const void* from, std::size_t bytes) {
  if (bytes) enqueue([=] { std::memcpy(to, from, bytes); });
}

}  // namespace sluice::cuda
