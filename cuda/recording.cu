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

struct Kept;
/// Memory of one graph. Later kernels of the graph reuse its blocks, in the order of the recording. The blocks go back
/// to the pool when the graph and all tensors in it are gone.
struct Arena {
  std::multimap<std::size_t, std::byte*> spare;  // by size
  std::map<std::byte*, std::size_t> used;
  std::vector<Block> all;
  std::vector<std::shared_ptr<Kept>> kept;  // released while the graph was recorded: its kernels may read them
  bool open = true;                         // the graph lives
};
/// A block that goes back where it came from when all graphs that keep it are gone.
struct Kept {
  Block block;
  std::shared_ptr<Arena> from;  // of an older graph; null: the pool
  Kept(Block b, std::shared_ptr<Arena> f) : block(b), from(std::move(f)) {}
  Kept(const Kept&) = delete;
  ~Kept();
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
// numbers, its seed and the blocks that it has moved; values of the host; 0, which becomes 1 when a check finds an
// index outside its range; for each check, the place of the first such index (−1: none) and that index.
constexpr std::size_t kMostStreams = 256, kMostChecks = 1024;
constexpr std::size_t kValuesAt = kMostStreams * 2 * sizeof(uint64_t), kValueBytes = 16384,
                      kRefusedAt = kValuesAt + kValueBytes, kFoundAt = kRefusedAt + sizeof(int64_t),
                      kOwnBytes = kFoundAt + kMostChecks * 2 * sizeof(int64_t);

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
  std::vector<Ref<Storage>> sources;  // what the graph reads and others may drop
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

std::mutex mutex;  // guards the arenas and the next two, which are never destroyed: static tensors may outlive them
auto& owners = *new std::map<std::byte*, std::shared_ptr<Arena>>;  // by block in use: its arena
auto& recorded_now = *new std::vector<Arena*>;    // one at most on a GPU; on the emulated device one a thread
constinit thread_local Graph* current = nullptr;  // the graph that this thread records
constinit thread_local Graph* renewed = nullptr;

/// Returns the blocks of an unused arena to the pool. The caller must hold the mutex.
void close_if_unused(Arena& arena) {
  if (arena.open || !arena.used.empty()) return;
  for (const Block& b : arena.all) release_plainly(b.at, b.bytes);
  arena.all.clear(), arena.kept.clear();
  --arenas;
}
/// Gives a block back to its arena, for later kernels of the graph. The caller must hold the mutex.
void give_back(Arena& arena, std::byte* p) {
  const auto used = arena.used.extract(p);
  try {
    arena.spare.emplace(used.mapped(), p);
  } catch (const std::bad_alloc&) {}  // nothing uses the block again, and it goes back with the arena
  close_if_unused(arena);
}
Kept::~Kept() {
  if (from) give_back(*from, block.at);
  else release_plainly(block.at, block.bytes);
}
/// True if graphs that are recorded keep the block. The caller must hold the mutex.
bool keep(Block block, const std::shared_ptr<Arena>& from) {
  const auto here = [&](const Arena* a) { return a == from.get(); };
  if (recorded_now.empty() || std::any_of(recorded_now.begin(), recorded_now.end(), here)) return false;
  for (Arena* const a : recorded_now) a->kept.emplace_back();  // first the places: behind make_shared nothing may throw
  const auto kept = std::make_shared<Kept>(block, from);
  for (Arena* const a : recorded_now) a->kept.back() = kept;
  return true;
}

constexpr int kMostCheckers = 1024;

/// Stores the first index outside [low, limit), then sets all such indices to `instead`. It must run as one block,
/// because all indices must be read before one is set.
__global__ void __launch_bounds__(kMostCheckers)
    check_indices_kernel(int64_t* index, int64_t n, int64_t low, int64_t limit, int64_t instead, int64_t* found,
                         int64_t* refused) {
  constexpr int ahead = 8;  // loads under way in a thread
  const auto outside = [&](int64_t value) { return value < low || value >= limit; };
  const int64_t step = blockDim.x;
  auto mine = ~0ull;
  for (int64_t first = threadIdx.x; first < n; first += ahead * step) {
    int64_t values[ahead];
#pragma unroll
    for (int e = 0; e < ahead; ++e) values[e] = first + e * step < n ? index[first + e * step] : low;
#pragma unroll
    for (int e = 0; e < ahead; ++e) {
      const auto i = static_cast<unsigned long long>(first + e * step);
      if (first + e * step < n && outside(values[e]) && i < mine) mine = i;
    }
  }
  if (mine != ~0ull) atomicMin(reinterpret_cast<unsigned long long*>(found), mine);  // −1 is the largest such number
  __syncthreads();
  if (found[0] < 0) return;  // the same for all threads
  if (threadIdx.x == 0) found[1] = index[found[0]], *refused = 1;
  __syncthreads();
  for (int64_t i = threadIdx.x; i < n; i += step)
    if (outside(index[i])) index[i] = instead;
}

/// While it lives, this thread records the graph.
struct Recording {
  Arena* const arena;
  explicit Recording(Graph& g) : arena(g.arena.get()) {
    const std::lock_guard lock(mutex);
    recorded_now.push_back(arena);
    current = &g;
  }
  ~Recording() {
    current = nullptr;
    const std::lock_guard lock(mutex);
    recorded_now.erase(std::find(recorded_now.begin(), recorded_now.end(), arena));
  }
};

std::unique_ptr<DeviceGraph> record(const std::function<void()>& f) {
  if (recording()) fail<DeviceError>("cuda: a graph is being recorded; one at a time");
  auto graph = std::make_unique<Graph>();
  const Recording under_way(*graph);
  try {
    load(check_indices_kernel);  // no step that is run launches it
    begin_recording();
    f();
    graph->recorded = end_recording();
  } catch (...) {
    abandon_recording();
    throw;
  }
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
                                               [](const Tensor& x) { current->sources.push_back(x.impl().storage); }};
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
  return {.at = g->own + kValuesAt + call.at, .refused = g->checks.empty() ? nullptr : g->refused()};
}

void record_index_check(const int64_t* index, int64_t n, int64_t low, int64_t limit, int64_t instead) {
  Graph& g = *current;
  if (g.checks.size() == kMostChecks) fail<DeviceError>("cuda: a graph has at most ", kMostChecks, " indexed ops");
  const auto threads = static_cast<unsigned>(std::clamp<int64_t>(round_up(n, kWarp), kWarp, kMostCheckers));
  launch(check_indices_kernel, dim3(1), dim3(threads), 0, const_cast<int64_t*>(index), n, low, limit, instead,
         g.found() + 2 * g.checks.size(), g.refused());
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
  try {
    const auto it = owners.find(p);
    if (it == owners.end()) return keep({p, bytes}, nullptr);
    const std::shared_ptr<Arena> from = it->second;
    if (!keep({p, bytes}, from)) give_back(*from, p);
    owners.erase(it);
  } catch (const std::bad_alloc&) {}  // so nobody gets it any more
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
