#include <sluice/core/backend.h>

#include <sluice/core/error.h>

#include <atomic>
#include <cstdlib>
#include <mutex>

#if __has_include(<dlfcn.h>)
#include <dlfcn.h>
#endif

namespace sluice {

namespace detail {

namespace {

constinit std::atomic<const Backend*> installed = nullptr;  // of DeviceKind::cuda
constinit std::mutex loading;

/// Where the library of this function lies, with a slash; empty if that cannot be said.
std::string own_folder() {
#if __has_include(<dlfcn.h>)
  Dl_info self;
  if (dladdr(reinterpret_cast<const void*>(&install_backend), &self) && self.dli_fname) {
    const std::string path = self.dli_fname;
    return path.substr(0, path.rfind('/') + 1);
  }
#endif
  return "";
}

/// Loads libsluice_cuda.so, which lies beside this library; says what went wrong, or nothing. With SLUICE_CUDA=emulated in
/// the environment, and in a build for it, libsluice_cuda_emulated.so; with none, nothing.
std::string load_cuda() {
#if __has_include(<dlfcn.h>)
#ifdef SLUICE_CUDA_EMULATE
  constexpr const char* usual = "emulated";
#else
  constexpr const char* usual = "gpu";
#endif
  const char* set = std::getenv("SLUICE_CUDA");
  const std::string_view wish = set && *set ? set : usual;
  if (wish == "none") return "SLUICE_CUDA=none in the environment";
  if (wish != "emulated" && wish != "gpu") return str("SLUICE_CUDA=", wish, " in the environment, which may be gpu, emulated or none");
  const bool emulated = wish == "emulated";
  const std::string name = emulated ? "libsluice_cuda_emulated.so" : "libsluice_cuda.so";
  if (dlopen((own_folder() + name).c_str(), RTLD_NOW | RTLD_LOCAL) || dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL)) return "";
  return dlerror();
#else
  return "backends cannot be loaded on this system";
#endif
}

}  // namespace

void install_backend(DeviceKind kind, const Backend& b) {
  if (kind != DeviceKind::cuda) fail<DeviceError>("install_backend: only cuda has one");
  installed.store(&b, std::memory_order_release);
}

const Backend& backend(Device device) {
  if (const Backend* b = installed.load(std::memory_order_acquire)) return *b;
  const std::lock_guard lock(loading);
  if (const Backend* b = installed.load(std::memory_order_acquire)) return *b;
  const std::string problem = load_cuda();
  if (const Backend* b = installed.load(std::memory_order_acquire)) return *b;
  fail<DeviceError>(device, ": no CUDA backend — ", problem.empty() ? "its library installs none" : problem,
                    "; configure Sluice with -DSLUICE_CUDA=ON (a toolkit) or EMULATE (none)");
}

}  // namespace detail

Device device_named(std::string_view text) {
  if (text == "cpu") return cpu;
  if (text == "meta") return meta;
  if (text == "cuda") return Device::cuda();
  if (text.size() == 6 && text.starts_with("cuda:") && text[5] >= '0' && text[5] <= '9')
    return Device::cuda(static_cast<uint8_t>(text[5] - '0'));
  fail<ValueError>("device: got \"", text, "\"; need cpu, cuda, cuda:0 … cuda:9 or meta");
}

void synchronize(Device device) {
  if (device.kind == DeviceKind::cuda) detail::backend(device).synchronize(device.index);
}
void reset_peak_memory(Device device) {
  if (device.kind == DeviceKind::cpu) reset_peak_memory();
  if (device.kind == DeviceKind::cuda) detail::backend(device).reset_peak(device.index);
}
MemoryStats memory_stats(Device device) {
  if (device.kind == DeviceKind::meta) return {};
  return device.kind == DeviceKind::cpu ? memory_stats() : detail::backend(device).memory_stats(device.index);
}

}  // namespace sluice
