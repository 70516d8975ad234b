#include <sluice/cuda/runtime.h>

#include <sluice/core/error.h>
#include <sluice/cuda/launch_error.h>
#include <sluice/cuda/recording.h>
#include <sluice/cuda/warpgroup.h>

#include <cudaTypedefs.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <mutex>
#include <shared_mutex>
#include <string_view>

namespace sluice::cuda {

namespace {

std::atomic<int64_t> live = 0, peak = 0;

void check(const char* what, cudaError_t status) {
  if (status == cudaSuccess) return;
  cudaGetLastError();  // clears the error, which the next launch would report otherwise
  fail<DeviceError>("cuda: ", what, " — ", cudaGetErrorString(status));
}

/// DeviceError unless there is a Hopper, the only device with code here. The driver is checked first, because the
/// runtime reports a missing driver and an old one alike.
void check_device() {
  int driver = 0, major = 0, minor = 0;
  check("no device", cudaDriverGetVersion(&driver));
  if (driver == 0) fail<DeviceError>("cuda: no device — NVIDIA's driver is not installed");
  if (driver / 1000 < CUDART_VERSION / 1000)
    fail<DeviceError>("cuda: no device — the driver is for CUDA ", driver / 1000, ", the library for ",
                      CUDART_VERSION / 1000);
  check("no device", cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0));
  check("no device", cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0));
  if (major != 9 || minor != 0)
    fail<DeviceError>("cuda: the device has compute capability ", major, ".", minor,
                      "; need 9.0 (Hopper: H100, H200, GH200)");
}

cudaStream_t the_stream() {
  static const cudaStream_t it = [] {
    check_device();
    cudaStream_t s;
    check("no device", cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    return s;
  }();
  return it;
}

std::shared_timed_mutex turns;              // calls on the stream share it; a recording has it alone
constinit thread_local bool alone = false;  // this thread records and holds `turns`; no lock, whose destructor at the
                                            // thread's end would need memory (core/memory/thread_end.h)

/// The turn of a call that must not wait: `got` is false while a graph is recorded, when the stream does nothing.
struct TurnIfFree {
  const bool got = !recording() && turns.try_lock_shared();
  ~TurnIfFree() {
    if (got) turns.unlock_shared();
  }
};

/// The pool keeps freed memory, so that the next allocation of an op needs no call of the driver.
cudaMemPool_t pool() {
  static const cudaMemPool_t it = [] {
    cudaMemPool_t p;
    check("no device", cudaDeviceGetDefaultMemPool(&p, 0));
    uint64_t all = ~uint64_t{0};
    check("memory pool", cudaMemPoolSetAttribute(p, cudaMemPoolAttrReleaseThreshold, &all));
    return p;
  }();
  return it;
}

std::byte* allocate_on(cudaStream_t on, std::size_t bytes) {
  if (bytes == 0) return nullptr;
  const cudaMemPool_t from = pool();
  void* p = nullptr;
  cudaError_t status = cudaMallocFromPoolAsync(&p, bytes, from, on);
  if (status == cudaErrorMemoryAllocation) {  // the free memory of the pool may be in blocks of the wrong sizes
    cudaGetLastError();
    if (!recording()) cudaDeviceSynchronize();  // a recorded stream may not be waited for, and is idle
    cudaMemPoolTrimTo(from, 0);
    status = cudaMallocFromPoolAsync(&p, bytes, from, on);
  }
  if (status != cudaSuccess) {
    cudaGetLastError();
    fail<MemoryError>("cuda: cannot allocate ", bytes, " bytes on the device, ", live.load(), " are in use — ",
                      cudaGetErrorString(status));
  }
  const int64_t now = live += static_cast<int64_t>(bytes);
  for (int64_t before = peak; before < now && !peak.compare_exchange_weak(before, now);) {}
  return static_cast<std::byte*>(p);
}

std::byte* allocate(std::size_t bytes, int index) {
  if (index != 0) fail<DeviceError>("cuda:", index, ": only the first device, cuda:0, is used");
  if (std::byte* p = allocate_recorded(bytes)) return p;
  return allocate_on(stream(), bytes);
}
void release(std::byte* p, std::size_t bytes, int) noexcept {
  if (p && !keep_released(p, bytes)) release_plainly(p, bytes);
}

void synchronize(int) {
  refuse_in_recording("synchronize");
  const StreamTurn turn;  // throws if there is no device
  check("a kernel failed", cudaDeviceSynchronize());
}

MemoryStats memory_stats(int) {
  the_stream();  // throws if there is no device
  uint64_t reserved = 0;
  cudaMemPoolGetAttribute(pool(), cudaMemPoolAttrReservedMemCurrent, &reserved);
  return {.live = live, .peak = peak, .cached = std::max<int64_t>(0, static_cast<int64_t>(reserved) - live)};
}

void reset_peak(int) { peak = live.load(); }

}  // namespace

const detail::Backend& runtime() {
  static constexpr detail::Backend it{&allocate, &release, &synchronize, &memory_stats, &reset_peak};
  return it;
}

StreamTurn::StreamTurn() : stream_(the_stream()), shared_(!recording()) {
  if (shared_ && !turns.try_lock_shared() && !turns.try_lock_shared_for(std::chrono::minutes(1)))
    fail<DeviceError>("cuda: another thread has recorded a graph for a minute; it must not wait for this thread");
}
StreamTurn::~StreamTurn() {
  if (shared_) turns.unlock_shared();
}

namespace {

/// True for errors of kernels that ran. They stay: every later call returns them.
bool of_running_kernel(cudaError_t status) {
  switch (status) {
    case cudaErrorECCUncorrectable:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalAddress:
    case cudaErrorIllegalInstruction:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
    case cudaErrorLaunchTimeout:
    case cudaErrorMisalignedAddress: return true;
    default: return false;
  }
}

}  // namespace

void fail_launch(const void* kernel, dim3 grid, dim3 block, std::size_t shared_bytes, cudaError_t before,
                 cudaError_t status) {
  cudaGetLastError();  // clears the error, which the next launch would report otherwise
  const char *name = "a kernel", *blocking = std::getenv("CUDA_LAUNCH_BLOCKING");
  if (cudaFuncGetName(&name, kernel) != cudaSuccess) cudaGetLastError();
  throw DeviceError(launch_error({.kernel = str(source_name(name), " (", grid.x, "x", grid.y, "x", grid.z,
                                                " blocks of ", block.x, " threads, ", shared_bytes, " bytes)"),
                                  .status = cudaGetErrorString(status),
                                  .before = before != cudaSuccess && before == status,
                                  .running = of_running_kernel(status),
                                  .blocking = blocking && std::string_view(blocking) == "1"}));
}

void copy_to_device(void* to, const void* from, std::size_t bytes) {
  if (bytes == 0) return;
  if (recording()) return copy_on_device(to, keep_on_device(from, bytes), bytes);
  const StreamTurn turn;
  check("copy to the device", cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, turn));
  // Pageable memory has been read when the call returns, unless the device reads it through the host's page tables.
  // Pinned and managed memory is read later.
  static const bool reads_host_pages = [] {
    int reads = 0;
    check("page tables", cudaDeviceGetAttribute(&reads, cudaDevAttrPageableMemoryAccessUsesHostPageTables, 0));
    return reads != 0;
  }();
  cudaPointerAttributes of_source{};
  check("copy to the device", cudaPointerGetAttributes(&of_source, from));
  if (reads_host_pages || of_source.type != cudaMemoryTypeUnregistered)
    check("copy to the device", cudaStreamSynchronize(turn));
}
void copy_to_host(void* to, const void* from, std::size_t bytes) {
  refuse_in_recording("reading values on the host");
  if (bytes == 0) return;
  const StreamTurn turn;  // one for both: between two another thread might begin a recording, and this one wait for it
  check("copy from the device", cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, turn));
  check("copy from the device", cudaStreamSynchronize(turn));
}
void copy_on_device(void* to, const void* from, std::size_t bytes) {
  if (bytes == 0) return;
  check("copy on the device", cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream()));
}

// -- graphs -----------------------------------------------------------------------------------------------------------

namespace {

/// A stream for work that must not be recorded.
cudaStream_t other_stream() {
  static const cudaStream_t it = [] {
    cudaStream_t s;
    check("a stream", cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    return s;
  }();
  return it;
}

struct Replay final : Recorded {
  explicit Replay(cudaGraph_t graph) { check("a graph", cudaGraphInstantiate(&it, graph, 0)); }
  ~Replay() override {
    if (const TurnIfFree turn; turn.got) cudaStreamSynchronize(the_stream());  // the graph's memory is freed next
    cudaGraphExecDestroy(it);
  }
  void replay() override { check("a replay", cudaGraphLaunch(it, stream())); }
  cudaGraphExec_t it = nullptr;
};

}  // namespace

std::byte* allocate_plainly(std::size_t bytes) {
  std::byte* const p = allocate_on(other_stream(), bytes);
  check("memory", cudaStreamSynchronize(other_stream()));
  return p;
}
void release_plainly(std::byte* p, std::size_t bytes) noexcept {
  const TurnIfFree turn;
  cudaFreeAsync(p, turn.got ? the_stream() : other_stream());
  live -= static_cast<int64_t>(bytes);
}
void upload_plainly(void* to, const void* from, std::size_t bytes) {
  check("copy to the device", cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, other_stream()));
  check("copy to the device", cudaStreamSynchronize(other_stream()));
}

namespace {
void let_others() noexcept {
  alone = false;
  turns.unlock();
}
}  // namespace

void begin_recording() {
  // Until the end of the recording the stream runs nothing and may not be queried. So calls that allocate or release
  // memory, or destroy an older graph, need not wait for it.
  other_stream();  // must exist before the capture
  // Other threads have made their calls then, and wait with the next ones.
  if (!turns.try_lock_for(std::chrono::minutes(1)))
    fail<DeviceError>("cuda: cannot record, because other threads have used the device for a minute without a gap");
  alone = true;
  check("recording", cudaStreamSynchronize(stream()));
  check("recording", cudaStreamBeginCapture(stream(), cudaStreamCaptureModeRelaxed));
}
std::unique_ptr<Recorded> end_recording() {
  cudaGraph_t graph = nullptr;
  check("recording", cudaStreamEndCapture(stream(), &graph));
  const std::unique_ptr<CUgraph_st, cudaError_t (*)(cudaGraph_t)> owned(graph, &cudaGraphDestroy);
  auto recorded = std::make_unique<Replay>(graph);
  let_others();
  return recorded;
}
void abandon_recording() noexcept {
  if (!alone) return;  // it has not begun: another thread may be recording
  cudaGraph_t graph = nullptr;
  if (cudaStreamEndCapture(stream(), &graph) == cudaSuccess && graph) cudaGraphDestroy(graph);
  cudaGetLastError();
  let_others();
}

__device__ int taken_work;
int* work_counter() {
  static int* const there = [] {
    void* p = nullptr;
    check("a counter", cudaGetSymbolAddress(&p, taken_work));
    return static_cast<int*>(p);
  }();
  return there;
}
int multiprocessors() {
  static const int count = [] {
    int n = 0;
    check("multiprocessors", cudaDeviceGetAttribute(&n, cudaDevAttrMultiProcessorCount, 0));
    return n;
  }();
  return count;
}

// The driver makes tensor maps. Its function is found at run time, so that the library loads without a driver.
TensorMap tensor_map(const HeadRows<const BFloat16>& x, int batch, int heads, int rows, int columns, int box) {
  static const auto encode = [] {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result;
    check("tensor maps",
          cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &result));
    if (!found) fail<DeviceError>("cuda: the driver has no tensor maps; need one of CUDA 12.0 or newer");
    return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(found);
  }();
  const auto number = [](int64_t i) { return static_cast<cuuint64_t>(i); };
  const cuuint64_t sizes[] = {number(columns), number(rows), number(heads), number(batch)};
  const cuuint64_t strides[] = {number(x.row) * sizeof(BFloat16), number(x.head) * sizeof(BFloat16),
                                number(x.batch) * sizeof(BFloat16)};  // bytes, of all dims but the first
  const cuuint32_t boxes[] = {kBoxColumns, static_cast<cuuint32_t>(box), 1, 1}, steps[] = {1, 1, 1, 1};
  TensorMap map;
  const CUresult status = encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 4, const_cast<BFloat16*>(x.base), sizes,
                                 strides, boxes, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                 CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (status != CUDA_SUCCESS)
    fail<DeviceError>("cuda: no tensor map of ", batch, "x", heads, "x", rows, "x", columns, " — error ",
                      static_cast<int>(status));
  return map;
}

}  // namespace sluice::cuda
