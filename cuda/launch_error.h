// What is said of a launch that failed. Kernels run later than they are launched, so that what a launch returns may be
// the fault of another kernel.
#pragma once

#include <sluice/core/error.h>

#include <cxxabi.h>

#include <cstdlib>
#include <string>

namespace sluice::cuda {

/// The name as source has it, of one that the compiler encoded.
inline std::string source_name(const char* name) {
  char* const found = abi::__cxa_demangle(name, nullptr, nullptr, nullptr);
  std::string result = found ? found : name;
  std::free(found);
  return result;
}

/// A launch of `kernel` after which the runtime says `status`, in words.
struct FailedLaunch {
  std::string kernel, status;
  bool before = false;    // it said so before the launch, too
  bool running = false;   // `status` tells of a kernel that ran, not of a launch
  bool blocking = false;  // each launch waits for its kernel (CUDA_LAUNCH_BLOCKING=1)
};

/// Blames the kernel only for what it did: a refused launch, or, if launches wait, an error while it ran.
inline std::string launch_error(const FailedLaunch& f) {
  if (f.before || (f.running && !f.blocking))
    return str("cuda: earlier work on the device failed — ", f.status, "; seen at the launch of ", f.kernel,
               f.blocking ? "" : "; CUDA_LAUNCH_BLOCKING=1 in the environment names the kernel that failed");
  return str("cuda: ", f.running ? "" : "cannot launch ", f.kernel, f.running ? " failed — " : " — ", f.status);
}

}  // namespace sluice::cuda
