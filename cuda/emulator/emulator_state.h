// State of the running block, shared by emulator*.cpp.
#pragma once

#include <sluice/core/error.h>
#include <sluice/cuda/emulator/emulator.h>
#include <sluice/cuda/emulator/fiber.h>

#include <exception>
#include <map>
#include <memory>
#include <vector>

namespace sluice::cuda::emulator {

constexpr std::size_t kSharedBytes = 227 * 1024;  // of a block, compute capability 9.0
constexpr std::size_t kAtom = 2;                  // bytes that are checked together: no kernel here shares fewer

/// The last thread that touched an atom of shared memory, and the intervals between barriers in which it did.
struct Touch {
  uint32_t interval = 0, warp_interval = 0;
  int16_t thread = -1;
  bool lanes = false, warps = false;  // more than one lane of the warp, or more than one warp, did in this interval
};
struct Atom {
  Touch write, read;
  bool in_flight = false;  // a cp.async of write.thread is under way
};

struct Copy {
  unsigned char* to;
  const void* from;
  bool valid;
};

struct Thread {
  enum State { ready, at_barrier, at_collective, at_mbarrier, at_named_barrier, left };
  State state = ready;
  Fiber fiber;
  dim3 index;
  int number = 0;
  const char* name = "";  // of the collective at which the thread waits
  unsigned mask = 0;
  std::size_t place = 0;            // of the mbarrier for which the thread waits, or the number of the named barrier
  std::vector<Copy> copies;         // not yet arrived
  std::vector<std::size_t> groups;  // sizes of the committed ones, oldest first
  std::size_t open = 0;             // copies after the last commit
};
/// A collective at which not all lanes have arrived.
struct Gathering {
  const char* name;
  unsigned mask, arrived;
};
/// A warp's part of a wgmma: 16 rows. It reads shared memory only when it is done.
struct Product {
  float* d[32];  // of each lane
  uint32_t a[32][4];
  uint64_t encoded_a, b;
  int n;
  bool from_registers, add, by_columns;
};
struct Warp {
  unsigned lanes = 0, ready = 0;
  std::vector<Gathering> gatherings;
  uint32_t interval = 0;  // counts __syncwarp
  void* slots[32];
  std::vector<Product> products;              // not yet done
  std::vector<std::size_t> groups;            // sizes of the committed ones, oldest first
  std::size_t open = 0;                       // products after the last commit
  std::map<float*, std::vector<float>> sums;  // by d of each lane: its values after the wait
};

struct Mbarrier {
  unsigned arrivals = 0, missing = 0, phase = 0;
  int64_t bytes = 0;  // expected minus arrived; below 0 if bytes arrived first
};
struct NamedBarrier {
  int threads = 0, arrived = 0;
  bool any = false, result = false;  // of this phase; of the last one
};
/// A TMA copy under way.
struct Bulk {
  unsigned char* to;
  TensorMap map;
  std::size_t barrier;
  int column, row, head, batch;
};

struct Block {
  std::vector<std::unique_ptr<Thread>> threads;
  std::vector<Warp> warps;
  int count = 0, arrived = 0, line = 0;
  uint32_t interval = 0, first_interval = 0;  // interval only grows, so atoms need no clearing between blocks
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
  std::map<std::size_t, Mbarrier> mbarriers;  // by their place in shared memory
  std::map<int, NamedBarrier> named_barriers;
  std::vector<Bulk> bulks;
  uint64_t* random = nullptr;
};

/// The block that this thread emulates. Every access to shared memory reads it; initial-exec needs no call to find it.
[[gnu::tls_model("initial-exec")]] extern constinit thread_local Block* block;

template <class... A> [[noreturn]] void bad(const A&... text) {
  throw DeviceError(str("cuda emulator: block (", blockIdx.x, ",", blockIdx.y, ",", blockIdx.z, "), thread ",
                        block->current->number, ": ", text...));
}

inline Warp& warp_of(const Thread& t) { return block->warps[static_cast<std::size_t>(t.number / 32)]; }

std::size_t offset_of(const void* p, std::size_t bytes, const char* what);
/// The next number of the schedule.
uint64_t draw(uint64_t& state);
/// The running thread waits until make_ready() or a barrier sets its state to ready.
void wait_as(Thread::State state);
void make_ready(Thread& t);
/// One of the TMA copies under way arrives. False if there is none.
bool deliver();

}  // namespace sluice::cuda::emulator
