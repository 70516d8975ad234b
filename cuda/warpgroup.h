// Instructions of Hopper (compute capability 9.0a) for a warpgroup, four warps or 128 threads, beside those of
// device.h: products of matrices in shared memory by all four warps (wgmma), asynchronous copies of tiles (TMA),
// barriers in shared memory that count threads and bytes, barriers for some of a block's threads, and registers passed
// between warpgroups.
// Semantics, layouts: PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions", "cp.async.bulk.tensor", "mbarrier".
//
// All matrices lie in shared memory in rows of 64 bf16 (128 bytes), at multiples of 1,024 bytes. The numbers of the
// 16-byte pieces of row r are XORed with r mod 8 (the 128-byte swizzle), as TMA writes and wgmma reads them.
#pragma once

#include <sluice/cuda/tensors.h>

#ifdef __CUDACC__
#include <cuda.h>
#endif

namespace sluice::cuda {

constexpr int kWarpgroup = 128;
/// Numbers in a row of a matrix in shared memory.
constexpr int kBoxColumns = 64;

/// A thread's warpgroup, which the compiler knows to be the same for all lanes.
__device__ inline int warpgroup_of(int thread) { return __shfl_sync(kAllLanes, thread / kWarpgroup, 0); }

/// True if setmaxnreg can be met: one warpgroup keeps `few` registers a thread, `groups` others get `many`. A launch
/// gives all threads 65,536 / threads, rounded down to 8. If more is asked for, the last warpgroup waits for ever.
constexpr bool registers_suffice(int few, int many, int groups) {
  const int threads = (1 + groups) * kWarpgroup, launched = 64 * 1024 / threads / 8 * 8;
  return (few + many * groups) * kWarpgroup <= launched * threads;
}

/// The place of number `column` < 64 of row `row` in a swizzled matrix.
__device__ inline int swizzled(int row, int column) {
  return row * kBoxColumns + ((column / 8 ^ row % 8) * 8 | column % 8);
}

/// A matrix in shared memory, for wgmma: rows_of(), columns_of(). Only `low` depends on the place. So in the machine
/// code the descriptor of a slice is an addition and a constant; as one number of 64 bits it would be twice as much,
/// between two products (tests/cuda/sass.py).
struct Descriptor {
  uint32_t low, high;

  __device__ Descriptor(uint32_t place, uint32_t leading_bytes, uint32_t stride_bytes)
      : low(place | leading_bytes >> 4 << 16), high(stride_bytes >> 4 | uint32_t{1} << 30) {}
  uint64_t encoded() const { return uint64_t{high} << 32 | low; }
  /// So many numbers further, a multiple of 8.
  __device__ Descriptor operator+(int numbers) const {
    Descriptor d = *this;
    d.low += static_cast<uint32_t>(numbers) / 8;
    return d;
  }
};

#ifdef __CUDACC__

/// [batch, heads, rows, columns] of bf16 in global memory. TMA copies boxes of `box` rows × 64 columns of one head;
/// rows beyond the last are zeros.
using TensorMap = CUtensorMap;
#define SLUICE_TENSOR_MAP const __grid_constant__ TensorMap

/// Sets the number of arrivals of each phase. One thread must call it, then mbarriers_ready(), before a __syncthreads.
__device__ inline void mbarrier_init(Shared<uint64_t> b, unsigned arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(b)), "r"(arrivals) : "memory");
}
__device__ inline void mbarriers_ready() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
__device__ inline void mbarrier_arrive(Shared<uint64_t> b) {
  asm volatile("mbarrier.arrive.release.cta.shared::cta.b64 _, [%0];" ::"r"(shared_address(b)) : "memory");
}
/// Arrives, and makes the phase wait for `bytes` bytes, too.
__device__ inline void mbarrier_arrive_expecting(Shared<uint64_t> b, unsigned bytes) {
  asm volatile("mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(b)), "r"(bytes)
               : "memory");
}
/// Waits for the end of the current phase if its parity is `parity`, else returns at once; phases count from 0.
__device__ inline void mbarrier_wait(Shared<uint64_t> b, unsigned parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n"
      "}" ::"r"(shared_address(b)),
      "r"(parity)
      : "memory");
}

/// Starts to copy the box of `map` that begins at (column, row) of a head; its bytes arrive at b.
__device__ inline void tma_load(Shared<BFloat16> to, const TensorMap& map, Shared<uint64_t> b, int column, int row,
                                int head, int batch) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, %5}], "
      "[%6];" ::"r"(shared_address(to)),
      "l"(&map), "r"(column), "r"(row), "r"(head), "r"(batch), "r"(shared_address(b))
      : "memory");
}

/// A barrier for `threads` threads of the block: syncing ones wait, arriving ones do not. Barrier 0 is __syncthreads.
__device__ inline void named_barrier_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
__device__ inline void named_barrier_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
/// Waits, and tells whether x holds for any of the threads.
__device__ inline bool named_barrier_any(int id, int threads, bool x) {
  int any;
  asm volatile(
      "{\n"
      ".reg .pred mine, all;\n"
      "setp.ne.s32 mine, %1, 0;\n"
      "barrier.cta.red.or.pred all, %2, %3, mine;\n"
      "selp.s32 %0, 1, 0, all;\n"
      "}"
      : "=r"(any)
      : "r"(int{x}), "r"(id), "r"(threads)
      : "memory");
  return __any_sync(kAllLanes, any);  // which the compiler knows to be the same for all lanes
}

/// Sets the number of registers of each thread of this warpgroup, a multiple of 8. more_registers() waits until another
/// warpgroup has given up enough.
template <int count> __device__ void fewer_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(count));
}
template <int count> __device__ void more_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(count));
}

/// The address for a descriptor. The shuffle tells the compiler that it is the same for all lanes.
__device__ inline uint32_t place_of(Shared<BFloat16> at) {
  return __shfl_sync(kAllLanes, (shared_address(at) & 0x3ffff) >> 4, 0);
}

/// Must come before the first wgmma after writes to registers that it reads or adds to.
__device__ inline void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
/// Makes a group of the products since the last commit.
__device__ inline void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
/// Waits until at most `left` groups are under way.
template <int left> __device__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(left) : "memory");
}
/// Makes the compiler compute x, which is never negative, before the next wait. ptxas would otherwise move arithmetic
/// behind it, where it no longer runs beside the products: it moves none across a branch, though this one is never
/// taken. (A trap in its place takes so many registers that ptxas serialises the products.)
__device__ inline void finish_before_wait(float x) {
  if (__any_sync(kAllLanes, x < 0)) asm volatile("exit;");
}
/// Keeps the compiler, which does not know how long wgmma uses these registers, from moving accesses across this place.
template <int n> __device__ void wgmma_hold(float (&d)[n][4]) {
#pragma unroll
  for (int i = 0; i < n; ++i) asm volatile("" : "+f"(d[i][0]), "+f"(d[i][1]), "+f"(d[i][2]), "+f"(d[i][3])::"memory");
}
template <int n> __device__ void wgmma_hold(uint32_t (&a)[n][4]) {
#pragma unroll
  for (int i = 0; i < n; ++i) asm volatile("" : "+r"(a[i][0]), "+r"(a[i][1]), "+r"(a[i][2]), "+r"(a[i][3])::"memory");
}

// wgmma takes each of its sums as an operand of its own, which must be a constant index of d.
#define SLUICE_QUAD(i) "+f"(d[i][0]), "+f"(d[i][1]), "+f"(d[i][2]), "+f"(d[i][3])
#define SLUICE_QUADS(i) SLUICE_QUAD(i), SLUICE_QUAD(i + 1), SLUICE_QUAD(i + 2), SLUICE_QUAD(i + 3)
#define SLUICE_SUMS_64 SLUICE_QUADS(0), SLUICE_QUADS(4)
#define SLUICE_SUMS_128 SLUICE_SUMS_64, SLUICE_QUADS(8), SLUICE_QUADS(12)
// clang-format off
#define SLUICE_NAMES_64 \
  "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29," \
  "%30,%31"
#define SLUICE_NAMES_128 SLUICE_NAMES_64 \
  ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58," \
  "%59,%60,%61,%62,%63"
// d += a · b for n columns of b. SUMS and NAMES are those of n; i0, i1, … are the numbers of the operands after the
// sums.
#define SLUICE_WGMMA_ROWS(n, SUMS, NAMES, i0, i1, i2, i3, i4) \
  asm volatile( \
      "{\n" \
      ".reg .pred adds;\n" \
      ".reg .b64 left, right;\n" \
      "setp.ne.b32 adds, %" #i4 ", 0;\n" \
      "mov.b64 left, {%" #i0 ", %" #i1 "};\n" \
      "mov.b64 right, {%" #i2 ", %" #i3 "};\n" \
      "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32.bf16.bf16 {" NAMES "}, left, right, adds, 1, 1, 0, 0;\n" \
      "}" \
      : SUMS \
      : "r"(a.low), "r"(a.high), "r"(b.low), "r"(b.high), "r"(add ? 1 : 0))
#define SLUICE_WGMMA_COLUMNS(n, SUMS, NAMES, i0, i1, i2, i3, i4, i5) \
  asm volatile( \
      "{\n" \
      ".reg .pred adds;\n" \
      ".reg .b64 right;\n" \
      "setp.eq.b32 adds, 0, 0;\n" \
      "mov.b64 right, {%" #i4 ", %" #i5 "};\n" \
      "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32.bf16.bf16 {" NAMES "}, " \
      "{%" #i0 ",%" #i1 ",%" #i2 ",%" #i3 "}, right, adds, 1, 1, 1;\n" \
      "}" \
      : SUMS \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b.low), "r"(b.high))
// clang-format on
__device__ inline void wgmma_rows(float (&d)[8][4], Descriptor a, Descriptor b, bool add) {
  SLUICE_WGMMA_ROWS(64, SLUICE_SUMS_64, SLUICE_NAMES_64, 32, 33, 34, 35, 36);
}
__device__ inline void wgmma_rows(float (&d)[16][4], Descriptor a, Descriptor b, bool add) {
  SLUICE_WGMMA_ROWS(128, SLUICE_SUMS_128, SLUICE_NAMES_128, 64, 65, 66, 67, 68);
}
__device__ inline void wgmma_columns(float (&d)[8][4], const uint32_t (&a)[4], Descriptor b) {
  SLUICE_WGMMA_COLUMNS(64, SLUICE_SUMS_64, SLUICE_NAMES_64, 32, 33, 34, 35, 36, 37);
}
__device__ inline void wgmma_columns(float (&d)[16][4], const uint32_t (&a)[4], Descriptor b) {
  SLUICE_WGMMA_COLUMNS(128, SLUICE_SUMS_128, SLUICE_NAMES_128, 64, 65, 66, 67, 68, 69);
}
#undef SLUICE_WGMMA_COLUMNS
#undef SLUICE_WGMMA_ROWS

#else

using TensorMap = emulator::TensorMap;
#define SLUICE_TENSOR_MAP const TensorMap

using emulator::Site;
inline void mbarrier_init(Shared<uint64_t> b, unsigned arrivals) { emulator::mbarrier_init(b.address(), arrivals); }
inline void mbarriers_ready(Site at = SLUICE_SITE) { emulator::proxy_fence(at); }
inline void mbarrier_arrive(Shared<uint64_t> b, Site at = SLUICE_SITE) {
  emulator::mbarrier_arrive(b.address(), 0, at);
}
inline void mbarrier_arrive_expecting(Shared<uint64_t> b, unsigned bytes, Site at = SLUICE_SITE) {
  emulator::mbarrier_arrive(b.address(), bytes, at);
}
inline void mbarrier_wait(Shared<uint64_t> b, unsigned parity, Site at = SLUICE_SITE) {
  emulator::mbarrier_wait(b.address(), parity, at);
}
inline void tma_load(Shared<BFloat16> to, const TensorMap& map, Shared<uint64_t> b, int column, int row, int head,
                     int batch) {
  emulator::tma_load(to.address(), map, b.address(), column, row, head, batch);
}
inline void named_barrier_sync(int id, int threads, Site at = SLUICE_SITE) {
  emulator::named_barrier(id, threads, true, false, at);
}
inline void named_barrier_arrive(int id, int threads, Site at = SLUICE_SITE) {
  emulator::named_barrier(id, threads, false, false, at);
}
inline bool named_barrier_any(int id, int threads, bool x, Site at = SLUICE_SITE) {
  return emulator::named_barrier(id, threads, true, x, at);
}
template <int count> void fewer_registers() {
  static_assert(count % 8 == 0 && count >= 24 && count <= 256);
  emulator::set_registers(count, false);
}
template <int count> void more_registers() {
  static_assert(count % 8 == 0 && count >= 24 && count <= 256);
  emulator::set_registers(count, true);
}

inline uint32_t place_of(Shared<BFloat16> at) {
  return static_cast<uint32_t>(emulator::shared_offset(at.address()) >> 4);
}
inline void wgmma_fence(Site at = SLUICE_SITE) { emulator::wgmma_fence(at); }
inline void wgmma_commit(Site at = SLUICE_SITE) { emulator::wgmma_commit(at); }
template <int left> void wgmma_wait(Site at = SLUICE_SITE) { emulator::wgmma_wait(left, at); }
inline void finish_before_wait(float) {}
template <class T, int n> void wgmma_hold(T (&x)[n][4], Site at = SLUICE_SITE) {
  emulator::wgmma_hold(x, sizeof x, at);
}
template <int n> void wgmma_rows(float (&d)[n][4], Descriptor a, Descriptor b, bool add) {
  emulator::wgmma(d[0], 8 * n, nullptr, a.encoded(), b.encoded(), add, false);
}
template <int n> void wgmma_columns(float (&d)[n][4], const uint32_t (&a)[4], Descriptor b) {
  emulator::wgmma(d[0], 8 * n, a, 0, b.encoded(), true, true);
}

#endif

/// Descriptor of a matrix whose rows are multiplied, for its first 16 columns: rows of the left operand, or of the
/// transposed right one. `at`: its first row. The descriptor of 16 columns from `column` on is slice_of_rows() further.
__device__ inline Descriptor rows_of(Shared<BFloat16> at) { return {place_of(at), 16, 8 * 128}; }
/// Boxes of 64 columns lie `rows` rows apart.
constexpr int slice_of_rows(int rows, int column) {
  return column / kBoxColumns * rows * kBoxColumns + column % kBoxColumns;
}
/// Descriptor of a right operand of `rows` rows whose columns are multiplied, for its first 16 rows. That of 16 rows
/// from `row` on is slice_of_columns() further.
__device__ inline Descriptor columns_of(Shared<BFloat16> at, int rows) {
  return {place_of(at), static_cast<uint32_t>(rows) * 128, 8 * 128};
}
constexpr int slice_of_columns(int row) { return row * kBoxColumns; }

/// The TensorMap of x [batch, heads, rows, columns] with boxes of `box` rows. Its address must be a multiple of 16
/// bytes, its strides above 0 and multiples of 16 bytes, too.
#ifdef __CUDACC__
TensorMap tensor_map(const HeadRows<const BFloat16>& x, int batch, int heads, int rows, int columns, int box);
#else
inline TensorMap tensor_map(const HeadRows<const BFloat16>& x, int batch, int heads, int rows, int columns, int box) {
  return emulator::checked({x.base, x.batch, x.head, x.row, batch, heads, rows, columns, box});
}
#endif
/// Contiguous [batch, heads, rows, columns].
inline HeadRows<const BFloat16> packed_heads(const BFloat16* x, int heads, int rows, int columns) {
  return {x, int64_t{heads} * rows * columns, int64_t{rows} * columns, columns};
}

}  // namespace sluice::cuda
