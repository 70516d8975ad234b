// Sorting rows. A bitonic network sorts tiles in shared memory; longer rows are sorted by merging sorted runs in global
// memory. Keys are unsigned numbers, and ties go by place, so no two entries are equal and the order is unique.
#pragma once

#include <sluice/cuda/tensors.h>

#include <bit>

namespace sluice::cuda {

#ifdef __CUDACC__
constexpr int kSortTile = 1024;  // entries that a block sorts in shared memory
#else
constexpr int kSortTile = 128;  // smaller, because the emulator checks every access
#endif

struct Entry {
  uint64_t key;
  int64_t place;  // in its row before sorting
};

/// Swaps entries i and j of shared memory if needed, so that they ascend if `up`, else descend.
__device__ inline void arrange(Shared<uint64_t> keys, Shared<int32_t> places, int i, int j, bool up) {
  const uint64_t a = keys[i], b = keys[j];
  const int32_t p = places[i], q = places[j];
  if ((b < a || (b == a && q < p)) != up) return;
  keys[i] = b, keys[j] = a;
  places[i] = q, places[j] = p;
}

/// A block sorts a tile of `size` entries, a power of two. Entries from n on do not exist; their keys place them last.
/// Limited by shared memory: log²(size)/2 passes over it.
template <class Keys, class Sink>
__global__ void __launch_bounds__(kThreads)
    sort_tiles_kernel(Keys source, Sink sink, int64_t rows, int64_t n, int size) {
  const Shared<uint64_t> keys = static_shared<uint64_t, kSortTile, Entry>();
  const Shared<int32_t> places = static_shared<int32_t, kSortTile, Entry>();
  const int threads = static_cast<int>(blockDim.x), thread = static_cast<int>(threadIdx.x);
  const int64_t tiles = ceil_div(n, size);
  for (int64_t b = blockIdx.x; b < rows * tiles; b += gridDim.x) {
    const int64_t row = b / tiles, first = b % tiles * size;
    for (int i = thread; i < size; i += threads) {
      keys[i] = first + i < n ? source(row, first + i) : ~uint64_t{0};
      places[i] = i;
    }
    __syncthreads();
    for (int run = 2; run <= size; run *= 2)
      for (int step = run / 2; step > 0; step /= 2) {
        for (int pair = thread; pair < size / 2; pair += threads) {
          const int i = 2 * pair - (pair & (step - 1));
          arrange(keys, places, i, i + step, (i & run) == 0);
        }
        __syncthreads();
      }
    for (int i = thread; i < size && first + i < n; i += threads)
      sink(row, first + i, Entry{keys[i], first + places[i]});
    __syncthreads();  // only a grid of 2^31 blocks comes here twice
  }
}

/// Merges neighbouring sorted runs of each row. An entry counts by bisection the entries of the other run that come
/// before it, and moves behind them. Limited by the latency of its log(run) reads.
template <class Sink> struct MergeRuns {
  const Entry* from;
  Sink sink;
  int64_t n, run;  // run: a power of two
  __device__ void operator()(int64_t i) const {
    const int64_t row = i / n, at = i % n, mine = at & -run, pair = at & -(2 * run);
    const int64_t other = mine == pair ? pair + run : pair;
    const Entry e = from[i], *run_of_other = from + row * n;
    int64_t low = other < n ? other : n, high = other + run < n ? other + run : n;
    const int64_t first = low;
    while (low < high) {
      const int64_t middle = low + (high - low) / 2;
      const Entry m = run_of_other[middle];
      if (m.key < e.key || (m.key == e.key && m.place < e.place)) low = middle + 1;
      else high = middle;
    }
    sink(row, pair + (at - mine) + (low - first), e);
  }
};

struct StoreEntry {
  Entry* to;
  int64_t n;
  __device__ void operator()(int64_t row, int64_t at, Entry e) const { to[row * n + at] = e; }
};

/// sink(row, place after sorting, entry) for every entry of every row; keys(row, i) gives the key of entry i < n.
template <class Keys, class Sink> void sort_rows(int64_t rows, int64_t n, Keys keys, Sink sink) {
  const int size = static_cast<int>(std::bit_ceil(static_cast<uint64_t>(std::min<int64_t>(n, kSortTile))));
  const int64_t tiles = rows * ceil_div(n, size);
  const dim3 block(static_cast<unsigned>(std::clamp(size / 2, kWarp, kThreads)));
  if (n <= size) return launch(sort_tiles_kernel<Keys, Sink>, grid_of(tiles), block, 0, keys, sink, rows, n, size);
  const auto count = static_cast<std::size_t>(rows * n);
  const Scratch<Entry> one(count), two(count);
  Entry *from = one.get(), *to = two.get();
  launch(sort_tiles_kernel<Keys, StoreEntry>, grid_of(tiles), block, 0, keys, StoreEntry{from, n}, rows, n, size);
  int64_t run = size;
  for (; 2 * run < n; run *= 2, std::swap(from, to)) for_each(rows * n, MergeRuns<StoreEntry>{from, {to, n}, n, run});
  for_each(rows * n, MergeRuns<Sink>{from, sink, n, run});
}

}  // namespace sluice::cuda
