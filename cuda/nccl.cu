// Messages between the GPUs of different ranks: NCCL's sends and receives, on a stream of their own. The library is
// loaded when ranks first exchange tensors of the device. If the toolkit has no nccl.h, making a link is a DeviceError.
#include <sluice/core/error.h>
#include <sluice/core/kernel/link.h>
#include <sluice/cuda/device.h>
#include <sluice/cuda/recording.h>

#include <cuda_runtime.h>

#if __has_include(<nccl.h>)
#include <dlfcn.h>
#include <nccl.h>

#include <chrono>
#include <cstring>
#include <thread>
#include <utility>
#endif

namespace sluice::cuda {

namespace {

using sluice::detail::DeviceLink, sluice::detail::DeviceLinks, sluice::detail::DeviceMessage,
    sluice::detail::DeviceMessages;
using sluice::detail::DeviceId, sluice::detail::LinkId, sluice::detail::LinkRequest;

#if __has_include(<nccl.h>)

struct Library {
  decltype(&ncclGetVersion) version;
  decltype(&ncclGetUniqueId) new_id;
  decltype(&ncclCommInitRankConfig) join;
  decltype(&ncclCommGetAsyncError) state;
  decltype(&ncclCommFinalize) finalize;
  decltype(&ncclCommDestroy) destroy;
  decltype(&ncclCommAbort) abort;
  decltype(&ncclSend) send;
  decltype(&ncclRecv) receive;
  decltype(&ncclGroupStart) group_start;
  decltype(&ncclGroupEnd) group_end;
  decltype(&ncclGetErrorString) text;
};

/// The library, loaded at the first call. DeviceError if there is none.
const Library& library() {
  static const Library it = [] {
    void* file = nullptr;
    for (const char* name : {"libnccl.so.2", "libnccl.so"})
      if (!file) file = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (!file) fail<DeviceError>(dlerror());
    Library l{};
    const auto find = [&](const char* name, auto& f) {
      f = reinterpret_cast<std::remove_reference_t<decltype(f)>>(dlsym(file, name));
      if (!f) fail<DeviceError>("NCCL has no ", name, ": 2.14 or newer is needed");
    };
    find("ncclGetVersion", l.version), find("ncclGetUniqueId", l.new_id), find("ncclCommInitRankConfig", l.join);
    find("ncclCommGetAsyncError", l.state), find("ncclCommFinalize", l.finalize), find("ncclCommDestroy", l.destroy);
    find("ncclCommAbort", l.abort), find("ncclSend", l.send), find("ncclRecv", l.receive);
    find("ncclGroupStart", l.group_start), find("ncclGroupEnd", l.group_end), find("ncclGetErrorString", l.text);
    return l;
  }();
  return it;
}

void check(const char* what, ncclResult_t result) {
  if (result != ncclSuccess && result != ncclInProgress)
    fail<DeviceError>("NCCL: ", what, " — ", library().text(result));
}
void check(const char* what, cudaError_t status) {
  if (status == cudaSuccess) return;
  cudaGetLastError();
  fail<DeviceError>("NCCL: ", what, " — ", cudaGetErrorString(status));
}

/// Polls done(), for the first 2 ms without a pause, and calls waiting() every 64 rounds.
template <class Done> void wait_for(Done done, const std::function<void()>& waiting) {
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  for (int64_t round = 0; !done(); ++round) {
    const auto waited = Clock::now() - start;
    if (waited > std::chrono::milliseconds(2)) std::this_thread::sleep_for(std::chrono::microseconds(50));
    if (round % 64 == 63) waiting();
  }
}

class Link final : public DeviceLink {
 public:
  explicit Link(const LinkRequest& request) {
    ncclUniqueId id;
    static_assert(sizeof id == sizeof request.id);
    std::memcpy(&id, request.id.data(), sizeof id);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;  // calls return at once, so that waiting() can throw if a rank does not come
    try {
      check("no device", cudaSetDevice(0));
      check("a stream", cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
      check("an event", cudaEventCreateWithFlags(&before_, cudaEventDisableTiming));
      check("an event", cudaEventCreateWithFlags(&after_, cudaEventDisableTiming));
      check("joining", library().join(&comm_, request.ranks, id, request.rank, &config));
      settle("joining", request.waiting);
    } catch (...) {
      close(true);
      throw;
    }
  }
  ~Link() override { close(false); }

  void exchange(DeviceMessages sends, DeviceMessages receives, const std::function<void()>& waiting) override {
    refuse_in_recording("exchanging with other ranks");
    if (!comm_) fail<DeviceError>("NCCL: an exchange has failed before");
    try {
      send_and_receive(sends, receives, waiting);
    } catch (...) {
      library().abort(std::exchange(comm_, nullptr));  // at once: what is queued writes to memory that ends now
      throw;
    }
  }

 private:
  void send_and_receive(DeviceMessages sends, DeviceMessages receives, const std::function<void()>& waiting) {
    const Library& l = library();
    check("an event", cudaEventRecord(before_, cuda::stream()));
    check("waiting for the device", cudaStreamWaitEvent(stream_, before_));
    check("sending", l.group_start());
    ncclResult_t first = ncclSuccess;  // kept until the group is closed, which must happen even after an error
    const auto keep = [&](ncclResult_t r) {
      if (first == ncclSuccess || first == ncclInProgress) first = r;
    };
    for (const DeviceMessage& m : sends) keep(l.send(m.data, m.bytes, ncclUint8, m.rank, comm_, stream_));
    for (const DeviceMessage& m : receives) keep(l.receive(m.data, m.bytes, ncclUint8, m.rank, comm_, stream_));
    keep(l.group_end());
    check("sending", first);
    settle("sending", waiting);
    check("an event", cudaEventRecord(after_, stream_));
    wait_for(
        [&] {
          const cudaError_t status = cudaEventQuery(after_);
          if (status == cudaErrorNotReady) return cudaGetLastError(), false;  // else the next launch reports it
          check("a message", status);
          return true;
        },
        [&] {
          ncclResult_t state;
          check("a message", l.state(comm_, &state));
          check("a message", state);
          waiting();
        });
  }

  /// Waits for the end of a non-blocking call, which goes on in a thread of NCCL.
  void settle(const char* what, const std::function<void()>& waiting) {
    wait_for(
        [&] {
          ncclResult_t state = ncclInProgress;
          check(what, library().state(comm_, &state));
          check(what, state);
          return state == ncclSuccess;
        },
        waiting);
  }

  void close(bool aborted) noexcept {
    try {
      // Messages of this rank must have reached the others before it leaves. A broken link does not wait.
      if (comm_ && !aborted) {
        check("ending", library().finalize(comm_));
        int left = 2000;  // rounds of waiting(), some seconds
        settle("ending", [&] {
          if (--left < 0) fail<DeviceError>("NCCL: ending takes too long");
        });
      }
    } catch (const std::exception&) { aborted = true; }
    if (comm_) (aborted ? library().abort : library().destroy)(comm_);  // without a library there is no link
    if (before_) cudaEventDestroy(before_);
    if (after_) cudaEventDestroy(after_);
    if (stream_) cudaStreamDestroy(stream_);
  }

  ncclComm_t comm_ = nullptr;  // null after an exchange that failed
  cudaStream_t stream_ = nullptr;
  cudaEvent_t before_ = nullptr, after_ = nullptr;
};

std::string name() {
  int version = 0;
  check("version", library().version(&version));
  return str("NCCL ", version / 10000, '.', version / 100 % 100, '.', version % 100);
}

DeviceId device() {
  cudaDeviceProp properties;
  check("no device", cudaGetDeviceProperties(&properties, 0));
  DeviceId id;
  static_assert(sizeof id == sizeof properties.uuid);
  std::memcpy(id.data(), &properties.uuid, sizeof id);
  return id;
}

LinkId new_id() {
  ncclUniqueId made;
  check("a new id", library().new_id(&made));
  LinkId id;
  std::memcpy(id.data(), &made, sizeof made);
  return id;
}

std::unique_ptr<DeviceLink> join(const LinkRequest& request) { return std::make_unique<Link>(request); }

constexpr DeviceLinks kLinks{&name, &device, &new_id, &join};

#else

constexpr DeviceLinks kLinks{[]() -> std::string { fail<DeviceError>("this build's CUDA toolkit has no nccl.h"); },
                             nullptr, nullptr, nullptr};

#endif

const bool installed = (sluice::detail::install_links(DeviceKind::cuda, kLinks), true);

}  // namespace

}  // namespace sluice::cuda
