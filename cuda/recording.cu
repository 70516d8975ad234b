// Graphs: the recorded work, by CUDA's stream capture or by the emulator (runtime.h), and its memory.
#include <sluice/core/kernel/graph.h>
#include <sluice/cuda/recording.h>
#include <sluice/cuda/tensors.h>
#include <sluice/ops/optim_kernels.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

namespace sluice::cuda {

namespace {

using sluice::detail::DeviceGraph;

struct Block {
  std::byte* at;
  std::size_t bytes;
};

/// Memory of one graph. Later kernels of the graph reuse its blocks, in the order of the recording. The blocks go back
/// to the pool when the graph and all tensors in it are gone.
struct Arena {
  std::multimap<std::size_t, std::byte*> spare;  // by size
  std::map<std::byte*, std::size_t> used;
  std::vector<Block> all, foreign;  // foreign: released while recording, but allocated before
  bool open = true;                 // the graph lives
};

struct IndexCheck {
  int64_t n, low, limit;
};
/// A recorded call that reads a value of the host.
struct HostValue {
  std::size_t at, bytes;
  std::vector<const std::byte*> written;
};

// Layout of a graph's own memory on the device. The host writes it before each replay: for each stream of random
// numbers, its seed and the blocks that it has moved; values of the host; for each check, the place of the first index
// outside its range (−1: none) and that index. Behind it the device writes whether there is such an index.
constexpr std::size_t kMostStreams = 256, kMostChecks = 1024;
constexpr std::size_t kValuesAt = kMostStreams * 2 * sizeof(uint64_t), kValueBytes = 16384,
                      kFoundAt = kValuesAt + kValueBytes, kRefusedAt = kFoundAt + kMostChecks * 2 * sizeof(int64_t),
                      kOwnBytes = kRefusedAt + sizeof(int64_t);

std::atomic<int64_t> arenas = 0;  // the number of arenas that own blocks, or may

class Graph final : public DeviceGraph {
 public:
  Graph() : own(runtime().allocate(kOwnBytes, 0)), host(kFoundAt) { ++arenas; }
  ~Graph() override;
  bool renew(const std::function<void()>& f) override;
  void replay(const std::vector<uint64_t>& streams) override;
  int64_t* found() const { return reinterpret_cast<int64_t*>(own + kFoundAt); }
  int64_t* refused() const { return reinterpret_cast<int64_t*>(own + kRefusedAt); }

  std::shared_ptr<Arena> arena = std::make_shared<Arena>();
  std::vector<Ref<Storage>> kept;  // what the graph reads and others may drop
  std::unique_ptr<Recorded> recorded;
  std::vector<IndexCheck> checks;
  std::vector<HostValue> values;
  std::size_t value_bytes = 0;
  bool draws = false;
  std::byte* own;               // kOwnBytes on the device
  std::vector<std::byte> host;  // the bytes that replay() copies to `own`
  // In renew():
  std::size_t again = 0;  // calls so far
  bool other = false;     // a call differs from the recorded one
};

std::mutex mutex;  // guards the arenas and owners
// By block in use: its arena. Never destroyed: tensors of static storage may outlive it.
auto& owners = *new std::map<std::byte*, std::shared_ptr<Arena>>;
constinit thread_local Graph* current = nullptr;  // the graph that this thread records
constinit thread_local Graph* renewed = nullptr;

/// Returns the blocks of an unused arena to the pool. The caller must hold the mutex.
void close_if_unused(Arena& arena) {
  if (arena.open || !arena.used.empty()) return;
  for (const Block& b : arena.all) release_plainly(b.at, b.bytes);
  for (const Block& b : arena.foreign) release_plainly(b.at, b.bytes);
  arena.all.clear(), arena.foreign.clear();
  --arenas;
}

constexpr int kMostCheckers = 1024;

/// Stores the first index outside [low, limit), then sets all such indices to `instead`. It must run as one block,
/// because all indices must be read before one is set.
__global__ void __launch_bounds__(kMostCheckers)
    check_indices_kernel(int64_t* index, int64_t n, int64_t low, int64_t limit, int64_t instead, int64_t* found) {
  const auto outside = [&](int64_t i) { return index[i] < low || index[i] >= limit; };
  auto mine = ~0ull;
#pragma unroll 8
  for (int64_t i = threadIdx.x; i < n; i += blockDim.x)
    if (outside(i) && static_cast<unsigned long long>(i) < mine) mine = static_cast<unsigned long long>(i);
  if (mine != ~0ull) atomicMin(reinterpret_cast<unsigned long long*>(found), mine);  // −1 is the largest such number
  __syncthreads();
  if (found[0] < 0) return;  // the same for all threads
  if (threadIdx.x == 0) found[1] = index[found[0]];
  __syncthreads();
  for (int64_t i = threadIdx.x; i < n; i += blockDim.x)
    if (outside(i)) index[i] = instead;
}

__global__ void any_found_kernel(const int64_t* found, int64_t checks, int64_t* refused) {
  bool any = false;
  for (int64_t i = threadIdx.x; i < checks; i += kWarp) any |= found[2 * i] >= 0;
  any = __any_sync(kAllLanes, any);
  if (threadIdx.x == 0) *refused = any;
}

std::unique_ptr<DeviceGraph> record(const std::function<void()>& f) {
  if (recording()) fail<DeviceError>("cuda: a graph is being recorded; one at a time");
  auto graph = std::make_unique<Graph>();
  current = graph.get();
  try {
    load(check_indices_kernel), load(any_found_kernel);  // no step that is run launches them
    begin_recording();
    f();
    graph->recorded = end_recording();
  } catch (...) {
    abandon_recording();
    current = nullptr;
    throw;
  }
  current = nullptr;
  return graph;
}

Graph::~Graph() {
  runtime().release(own, kOwnBytes, 0);
  recorded.reset();
  const std::lock_guard lock(mutex);
  arena->open = false;
  close_if_unused(*arena);
}

bool Graph::renew(const std::function<void()>& f) {
  again = 0, other = false;
  Graph* const outer = std::exchange(renewed, this);
  try {
    f();
  } catch (...) {
    renewed = outer;
    throw;
  }
  renewed = outer;
  return !other && again == values.size();
}

void Graph::replay(const std::vector<uint64_t>& streams) {
  std::vector<int64_t> first(2 * checks.size(), -1);
  const std::size_t bytes = first.size() * sizeof(int64_t);
  host.resize(kFoundAt + bytes);
  std::copy_n(streams.data(), std::min(streams.size(), 2 * kMostStreams), reinterpret_cast<uint64_t*>(host.data()));
  if (bytes > 0) std::memcpy(host.data() + kFoundAt, first.data(), bytes);
  if (draws || value_bytes > 0 || bytes > 0) copy_to_device(own, host.data(), host.size());
  recorded->replay();
  if (checks.empty()) return;
  copy_to_host(first.data(), found(), bytes);
  for (std::size_t i = 0; i < checks.size(); ++i)
    if (first[2 * i] >= 0)
      fail<ValueError>("graphed step: index ", first[2 * i + 1], " is outside [", checks[i].low, ", ", checks[i].limit,
                       ") — got it at element ", first[2 * i], " of ", checks[i].n);
}

constexpr sluice::detail::DeviceGraphs kGraphs{&record, &recording,
                                               [](const Tensor& x) { current->kept.push_back(x.impl().storage); }};
const bool installed = (sluice::detail::install_graphs(DeviceKind::cuda, kGraphs), true);

}  // namespace

bool recording() { return current != nullptr; }

void refuse_in_recording(const char* what) {
  if (recording()) fail<DeviceError>(what, ": cannot be recorded in a graph, whose replays would repeat it as it was");
}

RandomBlocks blocks_of(const char* what, const RngBlocks& from) {
  Graph* const g = current;
  if (!g) return {from.seed, from.first, nullptr};
  if (from.stream < 0) refuse_in_recording(what);
  if (from.stream >= static_cast<int>(kMostStreams))
    fail<DeviceError>("cuda: a graph draws from at most ", kMostStreams, " random generators");
  g->draws = true;
  return {from.seed, from.first, reinterpret_cast<const uint64_t*>(g->own) + 2 * from.stream};
}

StepValue step_value(const void* value, std::size_t bytes, const UpdatedTensors& x) {
  if (!renewed && !recording()) return {};
  std::vector<const std::byte*> written;
  for (const auto* list : {&x.w, &x.m, &x.v, &x.u, &x.rounded})
    for (const Tensor& t : *list) written.push_back(address_of(t));
  if (renewed) {
    Graph& g = *renewed;
    const std::size_t i = g.again++;
    const bool same = i < g.values.size() && g.values[i].bytes == bytes && g.values[i].written == written;
    if (same) std::memcpy(g.host.data() + kValuesAt + g.values[i].at, value, bytes);
    else g.other = true;
    return {.only_renews = true};
  }
  Graph* const g = current;
  if (g->value_bytes + bytes > kValueBytes)
    fail<DeviceError>("cuda: a graph has too many calls of optimisers, ", g->values.size());
  const HostValue& call = g->values.emplace_back(HostValue{g->value_bytes, bytes, std::move(written)});
  g->value_bytes += (bytes + 7) / 8 * 8;
  if (g->checks.empty()) return {.at = g->own + kValuesAt + call.at};
  launch(any_found_kernel, dim3(1), dim3(kWarp), 0, static_cast<const int64_t*>(g->found()),
         static_cast<int64_t>(g->checks.size()), g->refused());
  return {.at = g->own + kValuesAt + call.at, .refused = g->refused()};
}

void record_index_check(const int64_t* index, int64_t n, int64_t low, int64_t limit, int64_t instead) {
  Graph& g = *current;
  if (g.checks.size() == kMostChecks) fail<DeviceError>("cuda: a graph has at most ", kMostChecks, " indexed ops");
  const auto threads = static_cast<unsigned>(std::clamp<int64_t>(ceil_div(n, kWarp) * kWarp, kWarp, kMostCheckers));
  launch(check_indices_kernel, dim3(1), dim3(threads), 0, const_cast<int64_t*>(index), n, low, limit, instead,
         g.found() + 2 * g.checks.size());
  g.checks.push_back({n, low, limit});
}

std::byte* allocate_recorded(std::size_t bytes) {
  Graph* const g = current;
  if (!g || bytes == 0) return nullptr;
  const std::lock_guard lock(mutex);
  Arena& arena = *g->arena;
  std::byte* p;
  // At most twice the size: a larger block is kept for larger requests.
  if (const auto it = arena.spare.lower_bound(bytes); it != arena.spare.end() && it->first <= 2 * bytes) {
    p = it->second;
    arena.used[p] = it->first;
    arena.spare.erase(it);
  } else {
    p = allocate_plainly(bytes);
    arena.all.push_back({p, bytes});
    arena.used[p] = bytes;
  }
  owners[p] = g->arena;
  return p;
}

bool keep_released(std::byte* p, std::size_t bytes) {
  if (arenas.load(std::memory_order_relaxed) == 0) return false;
  const std::lock_guard lock(mutex);
  if (const auto it = owners.find(p); it != owners.end()) {
    const std::shared_ptr<Arena> arena = it->second;
    owners.erase(it);
    const auto used = arena->used.extract(p);
    try {
      arena->spare.emplace(used.mapped(), p);
    } catch (const std::bad_alloc&) {}  // nothing uses the block again, and it goes back with the arena
    close_if_unused(*arena);
    return true;
  }
  Graph* const g = current;
  if (!g) return false;
  try {
    g->arena->foreign.push_back({p, bytes});  // recorded kernels may read it
  } catch (const std::bad_alloc&) {}          // so nobody gets it any more
  return true;
}

const void* keep_on_device(const void* from, std::size_t bytes) {
  Graph& g = *current;
  std::byte* const p = allocate_plainly(bytes);
  const std::lock_guard lock(mutex);
  g.arena->all.push_back({p, bytes});
  upload_plainly(p, from, bytes);
  return p;
}

}  // namespace sluice::cuda
