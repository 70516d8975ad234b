#include <sluice/core/kernel/backend.h>

#include <sluice/core/error.h>
#include <sluice/core/kernel/graph.h>
#include <sluice/core/kernel/link.h>

#include <atomic>
#include <cstdlib>
#include <fstream>
#include <mutex>

#if __has_include(<dlfcn.h>)
#include <dlfcn.h>
#endif

namespace sluice {

namespace detail {

namespace {

/// The parts that the backend of DeviceKind::cuda installed: Backend, and perhaps DeviceGraphs and DeviceLinks.
template <class Part> constinit std::atomic<const Part*> installed = nullptr;
constinit std::mutex loading;

template <class Part> const Part* part_of(Device device) {
  return device.kind == DeviceKind::cuda ? installed<Part>.load(std::memory_order_acquire) : nullptr;
}
template <class Part> void install(DeviceKind kind, const Part& part) {
  if (kind != DeviceKind::cuda) fail<DeviceError>("install: only cuda has a backend");
  installed<Part>.store(&part, std::memory_order_release);
}

/// The folder of this library, with a slash; empty if unknown.
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

/// Loads libsluice_cuda.so, from this library's folder if it is there. Returns what went wrong, or nothing. With
/// SLUICE_CUDA=emulated in the environment, and by default in a build with SLUICE_CUDA_EMULATE, loads
/// libsluice_cuda_emulated.so; with SLUICE_CUDA=none, loads nothing.
std::string load_cuda() {
#if __has_include(<dlfcn.h>)
#ifdef SLUICE_CUDA_EMULATE
  constexpr const char* usual = "emulated";
#else
  constexpr const char* usual = "gpu";
#endif
  const char* set = std::getenv("SLUICE_CUDA");
  const std::string_view wish = set && *set ? set : usual;
  if (wish == "none") return "SLUICE_CUDA=none is in the environment; unset it";
  if (wish != "emulated" && wish != "gpu")
    return str("SLUICE_CUDA=", wish, " in the environment, which may be gpu, emulated or none");
  const bool emulated = wish == "emulated";
  const std::string name = emulated ? "libsluice_cuda_emulated.so" : "libsluice_cuda.so";
  const std::string beside = own_folder() + name;
  if (dlopen(beside.c_str(), RTLD_NOW | RTLD_LOCAL)) return "";
  const std::string why = dlerror();
  if (dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL)) return "";
  return str(std::ifstream(beside) ? why : dlerror(),
             "; configure Sluice with -DSLUICE_CUDA=ON (a toolkit) or EMULATE (none)");
#else
  return "backends cannot be loaded on this system";
#endif
}

}  // namespace

void install_backend(DeviceKind kind, const Backend& b) { install(kind, b); }
void install_graphs(DeviceKind kind, const DeviceGraphs& graphs) { install(kind, graphs); }
void install_links(DeviceKind kind, const DeviceLinks& links) { install(kind, links); }
const DeviceGraphs* graphs_of(Device device) { return part_of<DeviceGraphs>(device); }
const DeviceLinks* links_of(Device device) { return part_of<DeviceLinks>(device); }

const Backend& backend(Device device) {
  if (const Backend* b = part_of<Backend>(device)) return *b;
  const std::lock_guard lock(loading);
  if (const Backend* b = part_of<Backend>(device)) return *b;
  const std::string problem = load_cuda();
  if (const Backend* b = part_of<Backend>(device)) return *b;
  fail<DeviceError>(device, ": no CUDA backend — ", problem.empty() ? "its library installs none" : problem);
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
