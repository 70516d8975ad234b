// Small kernels that are right, and the same with one mistake, which is an error in every schedule.
#pragma once

#include "support/catch.h"

#include <sluice/cuda/warpgroup.h>

#include <span>

namespace sluice::testing {

using namespace sluice::cuda;

using Sums = float[8][4];

constexpr int kSize = 64 * kBoxColumns, kBytes = 2 * kSize;  // of a tile

/// What the kernels of this file share: two tiles, three mbarriers of one arrival, some numbers.
struct Memory {
  Shared<BFloat16> tile = dynamic_shared<BFloat16>(), other = tile + kSize;
  Shared<uint64_t> barrier = dynamic_shared<uint64_t>() + 2 * kBytes / 8;
  Shared<int> numbers = dynamic_shared<int>() + (2 * kBytes / 4 + 16);
  const TensorMap& map;
  int thread = static_cast<int>(threadIdx.x), warp = thread / 32;

  explicit Memory(const TensorMap& of) : map(of) {}
  /// Three mbarriers that all may use.
  void begin() const {
    if (thread == 0) {
      for (int i = 0; i < 3; ++i) mbarrier_init(barrier + i, 1);
      mbarriers_ready();
    }
    __syncthreads();
  }
  void bring(Shared<BFloat16> to, int which = 0, unsigned bytes = kBytes) const {
    mbarrier_arrive_expecting(barrier + which, bytes), tma_load(to, map, barrier + which, 0, 0, 0, 0);
  }
  /// begin(), and a tile that all have waited for.
  void begin_with_tile() const {
    begin();
    if (thread == 0) bring(tile);
    mbarrier_wait(barrier, 0);
  }
  /// Zeros by threads of the block, which TMA and wgmma may read after the fence and a barrier.
  void fill(Shared<BFloat16> to, bool fence) const {
    for (int i = thread; i < kSize; i += static_cast<int>(blockDim.x)) to[i] = BFloat16(0.0f);
    if (fence) mbarriers_ready();
  }
  void copy(Shared<BFloat16> to) const { cp_async_16(to, map.data, true); }
  void read(Shared<BFloat16> x) const { numbers[thread] = static_cast<int>(to_float(x[thread])); }
  void multiply(Sums& d, bool add = false) const { wgmma_rows(d, rows_of(tile), rows_of(tile), add); }
  /// The three steps of a product that is right.
  void hold(Sums& d) const { wgmma_hold(d), wgmma_fence(); }
  void start(Sums& d) const { hold(d), multiply(d); }
  void end(Sums& d) const { wgmma_commit(), wgmma_wait<0>(), wgmma_hold(d); }
};

struct Mistake {
  const char* what;
  int threads;
  void (*kernel)(const Memory&, Sums&);
  const char* error;  // a part of the message; "" if there is none
};

inline std::string error_of(const Mistake& mistake, const TensorMap& map) {
  try {
    emulator::run(1, static_cast<unsigned>(mistake.threads), 2 * kBytes + 1024, [&] {
      Sums d = {};
      mistake.kernel(Memory(map), d);
    });
  } catch (const DeviceError& e) { return e.what(); }
  return "";
}

inline void check_mistakes(std::span<const Mistake> mistakes) {
  const std::vector<BFloat16> zeros(kSize, BFloat16(0.0f));
  const TensorMap map = tensor_map(packed_heads(zeros.data(), 1, 64, 64), 1, 1, 64, 64, 64);
  for (const Mistake& mistake : mistakes)
    for (const uint64_t seed : {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}) {
      emulator::set_schedule(seed);
      const std::string error = error_of(mistake, map);
      INFO(mistake.what << ", schedule " << seed << ": " << error);
      if (*mistake.error) CHECK(error.find(mistake.error) != std::string::npos);
      else CHECK(error == "");
    }
  emulator::set_schedule(0);
}

}  // namespace sluice::testing
