// Runs CUDA kernels on the host, to test them without a GPU: the same source text, compiled by the host compiler.
// Blocks run one at a time. Each thread of a block is a fiber; a schedule drawn from a seed chooses the warp that goes
// on and the lane of it that comes first. The emulator is slow, deterministic, and stricter than the hardware: it
// throws DeviceError for races, missing fences and waits, threads that would wait for ever, and more (README.md).
// Shared memory is full of NaN when a block begins. It does not check global memory, races between blocks, or bank
// conflicts.
//
// Kernels include cuda/device.h, which uses this header under a host compiler and PTX under nvcc.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#define __global__
#define __device__
#define __launch_bounds__(...)
#define __grid_constant__

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};
inline constinit thread_local dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace sluice {
struct BFloat16;
}

namespace sluice::cuda::emulator {

/// A call in a kernel's source that orders something: a barrier, a wait, a fence, a commit, a hold.
struct Site {
  const char* file = "";
  int line = 0;
  const char* what = "";
  constexpr Site() = default;
  constexpr Site(const char* file, int line) : file(file), line(line) {}
  bool operator==(const Site&) const = default;
};
/// As the default of a parameter: where the call stands.
#define SLUICE_SITE \
  { __builtin_FILE(), __builtin_LINE() }
/// The sites to which this thread's kernels have come since the last call.
std::vector<Site> sites_met();
/// This host thread's kernels go on at `site` as if there was no call, to show that it is needed; a site without a
/// line: at none.
void leave_out(Site site);

/// Runs `kernel` for every thread of every block. DeviceError as above, or for a launch that no GPU of compute
/// capability 9.0 accepts.
void run(dim3 grid, dim3 block, std::size_t shared_bytes, const std::function<void()>& kernel);
/// Notes that a GPU has the kernel's code from now on. first_loads_recorded() counts the kernels that came first while
/// a graph was recorded, when a GPU may refuse to load code (runtime_emulated.cpp).
void load(const void* kernel);
int64_t first_loads_recorded();
/// Launched work waits until the host waits for it, or a thousand are waiting; with SLUICE_CUDA_DEFER=1 in the
/// environment from the start. A host that reads too early then finds what was there before.
void defer_launches(bool on);
/// Sets the seed of this host thread's kernels, for the order of blocks, warps and lanes. A correct kernel gives the
/// same bits for each seed. Of any two blocks one is first in schedule 2s, the other in schedule 2s + 1.
void set_schedule(uint64_t seed);

// -- calls of the running thread -----------------------------------------------------------------------
int lane();
void barrier(Site at);
/// Waits until all lanes of `mask` have come to the same `name` with the same mask; then one of them calls `operate`
/// with `slots`, where slots[lane] is that lane's `slot`, and all go on.
void collective(const char* name, unsigned mask, void* slot, void (*operate)(void* const* slots, unsigned mask));
void sync_warp(unsigned mask, Site at);
/// The lanes of `mask` whose predicate holds, as bits.
unsigned ballot(const char* name, unsigned mask, bool predicate);
[[noreturn]] void shuffle_outside(const char* name, int from);

template <class T> T shuffle(const char* name, unsigned mask, T value, int from) {
  struct Slot {
    T value, result;
    int from;
    const char* name;
  } mine{value, value, from, name};
  collective(name, mask, &mine, [](void* const* slots, unsigned all) {
    for (int i = 0; i < 32; ++i) {
      if (!(all >> i & 1)) continue;
      Slot& s = *static_cast<Slot*>(slots[i]);
      if (!(all >> s.from & 1)) shuffle_outside(s.name, s.from);
      s.result = static_cast<Slot*>(slots[s.from])->value;
    }
  });
  return mine.result;
}

/// d += a·b, bf16 16×16 · 16×8 → f32, fragments as the PTX manual lays them out for mma.m16n8k16.
void mma(float* d, const uint32_t* a, const uint32_t* b);
/// 1, 2 or 4 matrices of 8×8 16-bit numbers; lane 8i + r gives the address of row r of matrix i.
void ldmatrix(uint32_t* fragments, int matrices, bool transposed, const void* row);
/// Copies 16 bytes into shared memory, or zeros if not `valid`. They arrive only when the thread waits.
void cp_async(void* to, const void* from, bool valid);
void cp_async_commit(Site at);
void cp_async_wait(int groups_left, Site at);

// -- Hopper's instructions, described in cuda/warpgroup.h --------------------------------------------------
struct TensorMap {
  const BFloat16* data;
  int64_t batch_stride, head_stride, row_stride;
  int batch, heads, rows, columns, box;
};
/// DeviceError unless the addresses, strides and sizes are those that cuTensorMapEncodeTiled takes.
TensorMap checked(const TensorMap& map);
void mbarrier_init(void* b, unsigned arrivals);
void proxy_fence(Site at);
/// Arrives, and makes the phase wait for `bytes` more bytes.
void mbarrier_arrive(void* b, unsigned bytes, Site at);
void mbarrier_wait(void* b, unsigned parity, Site at);
void tma_load(void* to, const TensorMap& map, void* b, int column, int row, int head, int batch);
/// True if `x` held for a thread that waits.
bool named_barrier(int id, int threads, bool waits, bool x, Site at);
/// setmaxnreg. A warp that wants more waits until others have given up enough.
void set_registers(int count, bool more);
/// The array of registers [bytes] is used by no product under way. What products added up is in it now.
void wgmma_hold(void* registers, std::size_t bytes, Site at);
void wgmma_fence(Site at);
/// d [n / 2] of this thread = its part of a·b [64, n], added to d if `add`. a: fragments, or null to use encoded_a.
void wgmma(float* d, int n, const uint32_t* a, uint64_t encoded_a, uint64_t b, bool add, bool by_columns);
void wgmma_commit(Site at);
void wgmma_wait(int groups_left, Site at);
/// Bytes from the beginning of shared memory.
uint64_t shared_offset(const void* p);

// -- shared memory ---------------------------------------------------------------------------------------
unsigned char* dynamic_shared();
/// Memory of `bytes`, one place for each key in a block.
unsigned char* static_shared(const void* key, std::size_t bytes);
void check_read(const void* p, std::size_t bytes);
void check_write(const void* p, std::size_t bytes);
/// DeviceError unless p is a multiple of 16 bytes.
void check_16(const void* p);

/// An element of shared memory: reads and writes are checked.
template <class T> class Element {
 public:
  explicit Element(T* p) : p_(p) {}
  Element(const Element&) = default;
  operator T() const { return check_read(p_, sizeof(T)), *p_; }
  const Element& operator=(T v) const { return check_write(p_, sizeof(T)), *p_ = v, *this; }
  const Element& operator=(const Element& other) const { return *this = T(other); }
  const Element& operator+=(T v) const { return *this = T(*this) + v; }

 private:
  T* p_;
};

/// A pointer into shared memory.
template <class T> class Shared {
 public:
  explicit Shared(T* p) : p_(p) {}
  Element<T> operator[](std::ptrdiff_t i) const { return Element<T>(p_ + i); }
  Shared operator+(std::ptrdiff_t i) const { return Shared(p_ + i); }
  T* address() const { return p_; }

 private:
  T* p_;
};

}  // namespace sluice::cuda::emulator

// -- CUDA's own names --------------------------------------------------------------------------------------
inline void __syncthreads(sluice::cuda::emulator::Site at = SLUICE_SITE) { sluice::cuda::emulator::barrier(at); }
inline void __syncwarp(unsigned mask = ~0u, sluice::cuda::emulator::Site at = SLUICE_SITE) {
  sluice::cuda::emulator::sync_warp(mask, at);
}
inline unsigned __ballot_sync(unsigned mask, int p) { return sluice::cuda::emulator::ballot("__ballot_sync", mask, p); }
inline int __any_sync(unsigned mask, int p) { return sluice::cuda::emulator::ballot("__any_sync", mask, p) != 0; }

// Without a width: no kernel here has segments of a warp. __shfl_up_sync gives the first lanes their own values.
template <class T> T __shfl_sync(unsigned mask, T v, int from) {
  return sluice::cuda::emulator::shuffle("__shfl_sync", mask, v, from & 31);
}
template <class T> T __shfl_up_sync(unsigned mask, T v, unsigned delta) {
  const int lane = sluice::cuda::emulator::lane(), from = lane - static_cast<int>(delta);
  return sluice::cuda::emulator::shuffle("__shfl_up_sync", mask, v, from < 0 ? lane : from);
}
template <class T> T __shfl_xor_sync(unsigned mask, T v, int bits) {
  return sluice::cuda::emulator::shuffle("__shfl_xor_sync", mask, v, sluice::cuda::emulator::lane() ^ bits);
}

// They need no atomic operation: one thread runs at a time.
template <class T> T atomicAdd(T* p, T v) { return std::exchange(*p, *p + v); }
template <class T> T atomicMin(T* p, T v) {
  const T before = *p;
  *p = v < before ? v : before;
  return before;
}
template <class T> T atomicMax(T* p, T v) {
  const T before = *p;
  *p = v > before ? v : before;
  return before;
}
