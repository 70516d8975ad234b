// What emulator*.cpp share: the block that runs.
#pragma once

#include <sluice/core/error.h>
#include <sluice/cuda/emulator.h>
#include <sluice/cuda/fiber.h>

#include <exception>
#include <memory>
#include <vector>

namespace sluice::cuda::emulator {

constexpr std::size_t kSharedBytes = 227 * 1024;  // of a block, compute capability 9.0
constexpr std::size_t kAtom = 2;                  // bytes that are watched together: no kernel here shares less

/// Who last touched an atom of shared memory, and in which intervals between barriers.
struct Touch {
  uint32_t interval = 0, warp_interval = 0;
  int16_t thread = -1;
  bool lanes = false, warps = false;  // more than one lane in this interval of the warp, more than one warp
};
struct Atom {
  Touch write, read;
  bool in_flight = false;  // a cp.async of write.thread
};

struct Copy {
  unsigned char* to;
  const void* from;
  bool valid;
};

struct Thread {
  enum State { ready, at_barrier, at_collective, left };
  State state = ready;
  Fiber fiber;
  dim3 index;
  int number = 0;
  const char* name = "";  // of the collective it waits at
  unsigned mask = 0;
  std::vector<Copy> copies;         // not yet arrived
  std::vector<std::size_t> groups;  // sizes of the committed ones, oldest first
  std::size_t open = 0;             // copies after the last commit
};
/// Lanes on their way into one collective.
struct Gathering {
  const char* name;
  unsigned mask, arrived;
};
struct Warp {
  unsigned lanes = 0, ready = 0;
  std::vector<Gathering> gatherings;
  uint32_t interval = 0;  // counts __syncwarp
  void* slots[32];
};

struct Block {
  std::vector<std::unique_ptr<Thread>> threads;
  std::vector<Warp> warps;
  int count = 0, arrived = 0, line = 0;
  uint32_t interval = 0, first_interval = 0;  // never used twice, so that nothing is cleared between blocks
  std::unique_ptr<unsigned char[]> storage;
  unsigned char* shared = nullptr;
  std::size_t dynamic_bytes = 0, bytes = 0;
  std::vector<std::pair<const void*, std::size_t>> statics;
  std::vector<Atom> atoms;
  const std::function<void()>* kernel = nullptr;
  Thread* current = nullptr;
  Fiber scheduler;
  bool cancelled = false;
  std::exception_ptr error;
};

/// Of this thread. Every access to shared memory asks for it: a place at a fixed distance, without a call to find it.
[[gnu::tls_model("initial-exec")]] extern constinit thread_local Block* block;

template <class... A>
[[noreturn]] void bad(const A&... text) {
  throw DeviceError(str("cuda emulator: block (", blockIdx.x, ",", blockIdx.y, ",", blockIdx.z, "), thread ",
                        block->current->number, ": ", text...));
}

inline Warp& warp_of(const Thread& t) { return block->warps[static_cast<std::size_t>(t.number / 32)]; }

std::size_t offset_of(const void* p, std::size_t bytes, const char* what);

}  // namespace sluice::cuda::emulator
