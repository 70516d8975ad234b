// Memory of the device and copies to and from it, by CUDA's runtime (runtime.cu) or by the emulated device, whose
// memory is the host's (runtime_emulated.cpp). Kernels and copies run one after the other, in the order of the calls,
// on one stream that belongs to the backend.
#pragma once

#include <sluice/core/kernel/backend.h>

#include <cstddef>
#include <memory>

namespace sluice::cuda {

const detail::Backend& runtime();

/// Copies between host and device; the host may use its memory after the call.
void copy_to_device(void* to, const void* from, std::size_t bytes);
void copy_to_host(void* to, const void* from, std::size_t bytes);
/// Copies within the device; the two ranges must not overlap.
void copy_on_device(void* to, const void* from, std::size_t bytes);

// -- graphs (recording.cu) -------------------------------------------------------------------------------------------

/// The work between begin_recording() and end_recording(). Recording does not do it; replay() does.
class Recorded {
 public:
  virtual ~Recorded() = default;
  virtual void replay() = 0;
};
void begin_recording();
std::unique_ptr<Recorded> end_recording();
void abandon_recording() noexcept;
/// None of the three becomes part of a graph.
std::byte* allocate_plainly(std::size_t bytes);
void release_plainly(std::byte* p, std::size_t bytes) noexcept;
void upload_plainly(void* to, const void* from, std::size_t bytes);

/// How many blocks run at a time if each takes a whole multiprocessor.
int multiprocessors();
/// An int of the device, 0 between kernels, by which the blocks of a kernel share out work.
int* work_counter();

/// Memory of the current device for the time of one op: `count` T, uninitialised.
template <class T> class Scratch {
 public:
  explicit Scratch(std::size_t count)
      : bytes_(count * sizeof(T)), data_(reinterpret_cast<T*>(runtime().allocate(bytes_, 0))) {}
  ~Scratch() { runtime().release(reinterpret_cast<std::byte*>(data_), bytes_, 0); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  T* get() const { return data_; }

 private:
  std::size_t bytes_;
  T* data_;
};

}  // namespace sluice::cuda
