// State of the running block, shared by emulator*.cpp.
#pragma once

#include <sluice/core/error.h>
#include <sluice/cuda/emulator/clock.h>
#include <sluice/cuda/emulator/emulator.h>
#include <sluice/cuda/emulator/fiber.h>

#include <array>
#include <exception>
#include <map>
#include <memory>
#include <vector>

namespace sluice::cuda::emulator {

constexpr std::size_t kSharedBytes = 227 * 1024;  // of a block, compute capability 9.0
constexpr std::size_t kAtom = 2;                  // bytes that are checked together: no kernel here shares fewer
constexpr uint32_t kNever = ~0u;                  // the time of what is still under way

/// The last write, and the reads since, by their numbers; those before the block's are none. Eight bytes: caches hold
/// the atoms of large tiles, and one comparison tells that neighbours were touched alike.
struct Atom {
  uint32_t write = 0, readers = 0;
  bool operator==(const Atom&) const = default;
};

struct Write {
  uint32_t time;
  int16_t writer;
  bool in_flight = false;  // a cp.async of the writer is under way
};

/// A set of reads: one, and an earlier set. Atoms that were read alike share it.
struct Reading {
  uint32_t earlier, time, latest;  // latest: of all threads' reads in the set
  uint32_t added;                  // the block's time then: at least `time`, and at least that of every earlier reading
  int16_t actor;
  uint16_t count;
  bool by_itself;  // a product is among them
};

/// What an actor read last, when, and the set with that read: neighbouring atoms were often touched alike. The write is
/// one of which the actor knows; clocks only grow, so it still does.
struct LastRead {
  Atom atom;
  uint32_t with = 0, time = 0;
};

struct Copy {
  unsigned char* to;
  const void* from;
  bool valid;
};

/// An array in a thread's registers, for products of its warp. The thread holds it, then fences. Products may use it
/// until the thread has waited for them. Their sums are in it when it is held again.
struct Registers {
  enum State { own, held, fenced, used };
  unsigned char* at;
  std::size_t bytes;
  State state = own;
  std::vector<unsigned char> contents;  // when it was held
  std::vector<float> sums;              // of products under way, or not yet taken
  uint32_t until = 0;                   // used: time of the last group of products that uses it
};

struct Thread {
  enum State { ready, at_barrier, at_collective, at_mbarrier, at_named_barrier, at_registers, left };
  State state = ready;
  Fiber* fiber = nullptr;  // null until the thread begins, and after its end
  dim3 index;
  int number = 0;
  const char* name = "";  // of the collective at which the thread waits
  unsigned mask = 0;
  bool any = false;       // what the named barrier told the thread
  std::size_t place = 0;  // of the mbarrier for which the thread waits; the number of the named barrier; 0: registers
  std::vector<Copy> copies;         // not yet arrived
  std::vector<std::size_t> groups;  // sizes of the committed ones, oldest first
  std::size_t open = 0;             // copies after the last commit
  Knowledge knowledge;
  uint32_t time = 0;                     // of what it does now
  std::array<uint32_t, 8> known_sets{};  // sets of reads that it knows to be done
  LastRead last_read;
  std::array<uint32_t, 2> last_writes{};  // their numbers: of the last one, and of the last one under way
  std::vector<Registers> registers;
};
/// A collective at which not all lanes have arrived.
struct Gathering {
  const char* name;
  unsigned mask, arrived;
};
/// A warp's part of a wgmma: 16 rows. It reads shared memory only when it is done.
struct Product {
  float* sums[32];  // of each lane
  uint32_t a[32][4];
  uint64_t encoded_a, b;
  int n;
  bool from_registers, add, by_columns;
};
/// Products between two commits.
struct Group {
  std::vector<Product> products;
  uint32_t time;
};
struct Warp {
  unsigned lanes = 0, ready = 0;
  std::vector<Gathering> gatherings;
  void* slots[32];
  std::vector<Group> groups;  // committed and not yet waited for, oldest first
  std::size_t done = 0;       // groups that are done, of these
  Group open;
  int registers = 0;       // of each thread
  std::size_t issued = 0;  // instructions of its warpgroup
  LastRead last_read;      // of its products; all lanes know of the write
};

/// What all four warps of a warpgroup must do in the same order.
struct Instruction {
  const char* name;
  uint64_t a = 0, b = 0;
  int n = 0;
  bool add = false, by_columns = false;
  bool operator==(const Instruction&) const = default;
};

struct Mbarrier {
  unsigned arrivals = 0, missing = 0, phase = 0;
  int64_t bytes = 0;  // expected minus arrived; below 0 if bytes arrived first
  int actor = 0;
  uint32_t write = 0;         // its initialisation
  Knowledge arrived, passed;  // of the arrivals of this phase, and of the last one
};
struct NamedBarrier {
  int threads = 0, arrived = 0;
  bool any = false;     // x of a thread that has come
  Knowledge knowledge;  // of those that have come
};
/// A TMA copy under way.
struct Bulk {
  unsigned char* to;
  TensorMap map;
  std::size_t barrier;
  uint32_t write;
  int column, row, head, batch;
};

struct Block {
  std::vector<std::unique_ptr<Thread>> threads;
  std::vector<Warp> warps;
  std::vector<std::vector<Instruction>> warpgroups;  // what each has issued
  int count = 0, arrived = 0;
  Site met_at;        // the __syncthreads at which threads wait
  uint32_t time = 0;  // it and the numbers of writes and reads only grow: atoms need no clearing between blocks
  std::unique_ptr<unsigned char[]> storage;
  unsigned char* shared = nullptr;
  std::size_t dynamic_bytes = 0, bytes = 0;
  std::vector<std::pair<const void*, std::size_t>> statics;
  std::vector<Atom> atoms;
  std::vector<Write> writes;
  uint32_t first_write = 1;  // the number of writes[0]
  std::vector<Reading> readings;
  uint32_t first_reading = 1;  // the number of readings[0]
  struct Answer {              // of with_reading()
    uint32_t set = kNever, time = 0, with = 0;
    int actor = 0;
  };
  std::array<Answer, 4096> answers;
  Knowledge together;  // of threads that meet, for a moment
  int64_t free_registers = 0;

  const std::function<void()>* kernel = nullptr;
  Thread* current = nullptr;
  unsigned turn = 0;  // lanes of a warp that run after the current one: bit i is lane first_lane + i, modulo 32
  int first_lane = 0;
  std::size_t first_of_warp = 0;  // the number of the warp's first thread
  Fiber scheduler;
  std::vector<std::unique_ptr<Fiber>> fibers;
  std::vector<Fiber*> free_fibers;  // those that run no thread
  bool cancelled = false;
  std::exception_ptr error;
  std::map<std::size_t, Mbarrier> mbarriers;  // by their place in shared memory
  std::map<int, NamedBarrier> named_barriers;
  std::vector<Bulk> bulks;
  uint64_t* random = nullptr;

  Write& write(uint32_t number) { return writes[number - first_write]; }
  bool has_products() const {
    return std::any_of(warpgroups.begin(), warpgroups.end(), [](const auto& issued) { return !issued.empty(); });
  }
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
/// Tells `barrier` of all that the thread has done.
void release(Thread& t, Knowledge& barrier);
/// The actor of the running thread.
inline int own_actor() { return actor_of_thread(block->current->number); }
/// The running thread, or what it starts, writes.
void note_write(const void* p, std::size_t bytes, uint32_t write);
/// A number for a write of its own, and for what the running thread writes now.
uint32_t add_write(const Write& write);
uint32_t own_write(bool in_flight = false);
/// Products of the running thread's warp read 16 bytes at `offset`.
void note_operand(std::size_t offset);
/// The mbarrier at b; DeviceError if there is none that the running thread, or TMA for it, may use.
Mbarrier& mbarrier_at(const void* b, bool by_tma);
/// Ends the phase if nothing is missing.
void advance(std::size_t mbarrier);
/// Notes what the running thread's warp does now. DeviceError if another warp of its warpgroup did something else.
void issue(const Instruction& what);
/// True if kernels shall go on as if there was no call here.
bool left_out(const char* what, Site at);
/// The running thread waits until make_ready() or a barrier sets its state to ready.
void wait_as(Thread::State state);
void make_ready(Thread& t);
/// Makes the threads ready that wait in `state` for `place`, after also(thread).
template <class F> void wake(Thread::State state, std::size_t place, F also) {
  for (int i = 0; i < block->count; ++i)
    if (Thread& t = *block->threads[static_cast<std::size_t>(i)]; t.state == state && t.place == place)
      also(t), make_ready(t);
}
/// One of the TMA copies under way arrives. False if there is none.
bool deliver();

}  // namespace sluice::cuda::emulator
