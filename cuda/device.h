// Names that kernels use beside CUDA's own: shared memory, tensor-core instructions, asynchronous copies, launching.
// Under nvcc they are PTX; under a host compiler the emulator runs them (cuda/emulator/emulator.h).
// Fragment layouts and semantics: PTX ISA, mma.m16n8k16, ldmatrix, cp.async (compute capability 8.0 and newer).
#pragma once

#include <sluice/core/dtype.h>
#include <sluice/core/number/math.h>
#include <sluice/core/shape.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <type_traits>
#include <unordered_map>

#ifndef __CUDACC__
#include <sluice/cuda/emulator/emulator.h>
#endif

namespace sluice::cuda {

/// Lanes of a warp.
constexpr int kWarp = 32;
constexpr unsigned kAllLanes = ~0u;

#ifdef __CUDACC__

template <class T> using Shared = T*;

/// The block's dynamic shared memory as T, 1024-byte aligned.
template <class T> __device__ Shared<T> dynamic_shared() {
  extern __shared__ __align__(1024) unsigned char sluice_dynamic_shared[];
  return reinterpret_cast<T*>(sluice_dynamic_shared);
}
/// `count` T in static shared memory; one place for each Tag.
template <class T, int count, class Tag> __device__ Shared<T> static_shared() {
  __shared__ T memory[count];
  return memory;
}

__device__ inline unsigned shared_address(const void* p) { return static_cast<unsigned>(__cvta_generic_to_shared(p)); }

/// d += a·b for the whole warp: a 16×16 and b 16×8 in bf16, d 16×8 in f32.
__device__ inline void mma_m16n8k16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// Loads `n` (1, 2, 4) matrices of 8×8 bf16 as fragments; lane 8i + r gives row r of matrix i, 16-byte aligned.
template <bool transposed = false, int n> __device__ void ldmatrix(uint32_t (&f)[n], const BFloat16* row) {
  const unsigned at = shared_address(row);
  if constexpr (n == 1 && !transposed)
    asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];" : "=r"(f[0]) : "r"(at) : "memory");
  else if constexpr (n == 1)
    asm volatile("ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {%0}, [%1];" : "=r"(f[0]) : "r"(at) : "memory");
  else if constexpr (n == 2 && !transposed)
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];"
                 : "=r"(f[0]), "=r"(f[1])
                 : "r"(at)
                 : "memory");
  else if constexpr (n == 2)
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];"
                 : "=r"(f[0]), "=r"(f[1])
                 : "r"(at)
                 : "memory");
  else if constexpr (!transposed)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(f[0]), "=r"(f[1]), "=r"(f[2]), "=r"(f[3])
                 : "r"(at)
                 : "memory");
  else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(f[0]), "=r"(f[1]), "=r"(f[2]), "=r"(f[3])
                 : "r"(at)
                 : "memory");
}

/// Copies 16 bytes into shared memory, or fills them with zeros if not `valid`. Both addresses must be 16-byte aligned.
__device__ inline void cp_async_16(BFloat16* to, const BFloat16* from, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(valid ? 16 : 0)
               : "memory");
}
/// Makes a group of the copies since the last commit.
__device__ inline void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
/// Waits until at most `left` groups of this thread are under way; other threads see finished copies after a barrier.
template <int left> __device__ void cp_async_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(left) : "memory"); }

/// Reads or writes 16 bytes of shared memory at once; the address must be a multiple of 16.
template <class T> __device__ void load_16(T (&x)[16 / sizeof(T)], const T* from) {
  *reinterpret_cast<uint4*>(x) = *reinterpret_cast<const uint4*>(from);
}
template <class T> __device__ void store_16(T* to, const T (&x)[16 / sizeof(T)]) {
  *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(x);
}

/// Writes 8 or 16 bytes of global memory at once; the address must be a multiple of that. ptxas splits plain stores of
/// structs, most often of rounded numbers, into stores of 4 bytes.
template <int n> __device__ void store_words(void* to, const uint32_t (&w)[n]) {
  static_assert(n == 2 || n == 4);
  const std::size_t at = __cvta_generic_to_global(to);
  if constexpr (n == 2) asm volatile("st.global.v2.b32 [%0], {%1,%2};" ::"l"(at), "r"(w[0]), "r"(w[1]) : "memory");
  else
    asm volatile("st.global.v4.b32 [%0], {%1,%2,%3,%4};" ::"l"(at), "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3])
                 : "memory");
}

/// threadIdx.x, read each time: nothing that follows from it stays in registers around a loop.
__device__ inline int thread_again() {
  int x;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(x));
  return x;
}
/// Reads shared memory each time: no register keeps the number.
__device__ inline int load_again(const int* from) {
  int x;
  asm volatile("ld.shared.s32 %0, [%1];" : "=r"(x) : "r"(shared_address(from)));
  return x;
}

/// Two numbers rounded to bf16, the first in the lower half.
__device__ inline uint32_t pack_bf16(float low, float high) {
  uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}
/// 2^x by the hardware's instruction, relative error 2^-22; 2^-∞ = 0.
__device__ inline float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// The backend's stream, for the calls made while this object lives: no other thread begins to record a graph, which
/// would take them in. Waits while one records; DeviceError after a minute, because it may wait for this thread
/// (runtime.cu).
class StreamTurn {
 public:
  StreamTurn();
  ~StreamTurn();
  StreamTurn(const StreamTurn&) = delete;
  StreamTurn& operator=(const StreamTurn&) = delete;
  operator cudaStream_t() const { return stream_; }

 private:
  cudaStream_t stream_;
  bool shared_;  // with other threads; not that of the thread that records
};
inline StreamTurn stream() { return {}; }

inline std::mutex shared_limits;  // held while a kernel's limit of shared memory is set, and until it is launched
/// The limit of each kernel. It is never lowered: a graph that is still to be made may hold a launch with more.
inline std::unordered_map<const void*, std::size_t> shared_limit_of;

/// Throws DeviceError for a launch after which the runtime says `status`; `before`: what it said before (runtime.cu).
[[noreturn]] void fail_launch(const void* kernel, dim3 grid, dim3 block, std::size_t shared_bytes, cudaError_t before,
                              cudaError_t status);

/// Runs a kernel on the current device. DeviceError with the kernel's name if the launch is refused. Errors of the
/// running kernel come at a later call, or here with CUDA_LAUNCH_BLOCKING=1 in the environment.
template <class... P>
void launch(void (*kernel)(P...), dim3 grid, dim3 block, std::size_t shared_bytes, std::type_identity_t<P>... args) {
  const StreamTurn turn;
  const cudaStream_t on = turn;
  const cudaError_t before = cudaPeekAtLastError();
  cudaError_t status = cudaSuccess;
  std::unique_lock<std::mutex> lock(shared_limits, std::defer_lock);
  if (shared_bytes > 16 * 1024) {  // static and dynamic memory of more than 48 KiB together; static is at most 32
    lock.lock();
    std::size_t& most = shared_limit_of[reinterpret_cast<const void*>(kernel)];
    most = std::max(most, shared_bytes);
    status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(most));
  }
  if (status == cudaSuccess) {
    kernel<<<grid, block, shared_bytes, on>>>(args...);
    status = cudaGetLastError();
  }
  if (status != cudaSuccess)
    fail_launch(reinterpret_cast<const void*>(kernel), grid, block, shared_bytes, before, status);
}

/// Loads the code of a kernel. Otherwise its first launch does, which is no work that a graph may record.
template <class... P> void load(void (*kernel)(P...)) {
  cudaFuncAttributes unused;
  if (const cudaError_t status = cudaFuncGetAttributes(&unused, kernel); status != cudaSuccess)
    fail_launch(reinterpret_cast<const void*>(kernel), dim3(0), dim3(0), 0, cudaSuccess, status);
}

#else

template <class T> using Shared = emulator::Shared<T>;

template <class T> Shared<T> dynamic_shared() { return Shared<T>(reinterpret_cast<T*>(emulator::dynamic_shared())); }
template <class T, int count, class Tag> Shared<T> static_shared() {
  static const char key = 0;
  return Shared<T>(reinterpret_cast<T*>(emulator::static_shared(&key, count * sizeof(T))));
}

inline void mma_m16n8k16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  const uint32_t b[2] = {b0, b1};
  emulator::mma(d, a, b);
}
template <bool transposed = false, int n> void ldmatrix(uint32_t (&f)[n], Shared<BFloat16> row) {
  static_assert(n == 1 || n == 2 || n == 4);
  emulator::ldmatrix(f, n, transposed, row.address());
}
inline void cp_async_16(Shared<BFloat16> to, const BFloat16* from, bool valid) {
  emulator::cp_async(to.address(), from, valid);
}
inline void cp_async_commit(emulator::Site at = SLUICE_SITE) { emulator::cp_async_commit(at); }
template <int left> void cp_async_wait(emulator::Site at = SLUICE_SITE) { emulator::cp_async_wait(left, at); }

template <class T> void load_16(T (&x)[16 / sizeof(T)], Shared<T> from) {
  emulator::check_16(from.address()), emulator::check_read(from.address(), 16);
  std::memcpy(x, from.address(), 16);
}
template <class T> void store_16(Shared<T> to, const T (&x)[16 / sizeof(T)]) {
  emulator::check_16(to.address()), emulator::check_write(to.address(), 16);
  std::memcpy(to.address(), x, 16);
}

template <int n> void store_words(void* to, const uint32_t (&w)[n]) { std::memcpy(to, w, sizeof w); }

inline int load_again(Shared<int> from) { return from[0]; }
inline int thread_again() { return static_cast<int>(threadIdx.x); }
inline uint32_t pack_bf16(float low, float high) { return BFloat16(low).bits | uint32_t{BFloat16(high).bits} << 16; }
inline float exp2_approx(float x) { return std::exp2(x); }

/// Does `work`: at each replay if a graph is recorded, when the host waits if launches are deferred, else now.
void enqueue(std::function<void()> work);

template <class... P> void load(void (*kernel)(P...)) { emulator::load(reinterpret_cast<const void*>(kernel)); }
template <class... P>
void launch(void (*kernel)(P...), dim3 grid, dim3 block, std::size_t shared_bytes, std::type_identity_t<P>... args) {
  load(kernel);
  enqueue([=] { emulator::run(grid, block, shared_bytes, [&] { kernel(args...); }); });
}

#endif

/// A grid of `blocks` blocks in one dimension, at most 2^31 − 1. A kernel for more blocks must step by gridDim.x.
inline dim3 grid_of(int64_t blocks) {
  return dim3(static_cast<unsigned>(std::min<int64_t>(blocks, (int64_t{1} << 31) - 1)));
}
/// A grid of `blocks` blocks for each head of each batch.
inline dim3 grid_of(int64_t blocks, int64_t heads, int64_t batch) {
  return dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(heads), static_cast<unsigned>(batch));
}

__device__ inline float to_float(float x) { return x; }
__device__ inline float to_float(BFloat16 x) { return __builtin_bit_cast(float, uint32_t{x.bits} << 16); }

/// Sum and maximum over groups of `lanes` neighbouring lanes (a power of two); all lanes of a group get the same bits.
template <int lanes = kWarp, class T> __device__ T sum_over_lanes(T x) {
  for (int step = lanes / 2; step > 0; step /= 2) x += __shfl_xor_sync(kAllLanes, x, step);
  return x;
}
template <int lanes = kWarp, class T> __device__ T max_over_lanes(T x) {
  for (int step = lanes / 2; step > 0; step /= 2) x = fmax(x, __shfl_xor_sync(kAllLanes, x, step));
  return x;
}

}  // namespace sluice::cuda
