// What the emulator reports of barriers between some threads, of TMA, of wgmma and of registers: each mistake, planted
// in a small kernel that is right without it, is an error in every schedule.
#include "support/catch.h"

#include <sluice/cuda/warpgroup.h>

#include <cmath>

using namespace sluice;
using namespace sluice::cuda;

namespace {

using Sums = float[8][4];

constexpr int kSize = 64 * kBoxColumns, kBytes = 2 * kSize;  // of a tile

/// What the kernels of this file share: two tiles, three mbarriers of one arrival, some numbers.
struct Memory {
  Shared<BFloat16> tile = dynamic_shared<BFloat16>(), other = tile + kSize;
  Shared<uint64_t> barrier = dynamic_shared<uint64_t>() + 2 * kBytes / 8;
  Shared<int> numbers = dynamic_shared<int>() + (2 * kBytes / 4 + 16);
  const TensorMap& map;
  int thread = static_cast<int>(threadIdx.x), warp = thread / 32;

  explicit Memory(const TensorMap& of) : map(of) {}
  /// Three mbarriers that all may use.
  void begin() const {
    if (thread == 0) {
      for (int i = 0; i < 3; ++i) mbarrier_init(barrier + i, 1);
      mbarriers_ready();
    }
    __syncthreads();
  }
  void bring(Shared<BFloat16> to, int which = 0, unsigned bytes = kBytes) const {
    mbarrier_arrive_expecting(barrier + which, bytes), tma_load(to, map, barrier + which, 0, 0, 0, 0);
  }
  /// begin(), and a tile that all have waited for.
  void begin_with_tile() const {
    begin();
    if (thread == 0) bring(tile);
    mbarrier_wait(barrier, 0);
  }
  /// Zeros by threads of the block, which TMA and wgmma may read after the fence and a barrier.
  void fill(Shared<BFloat16> to, bool fence) const {
    for (int i = thread; i < kSize; i += static_cast<int>(blockDim.x)) to[i] = BFloat16(0.0f);
    if (fence) mbarriers_ready();
  }
  void read(Shared<BFloat16> x) const { numbers[thread] = static_cast<int>(to_float(x[thread])); }
  void multiply(Sums& d, bool add = false) const { wgmma_rows(d, rows_of(tile, 64, 0), rows_of(tile, 64, 0), add); }
  /// The three steps of a product that is right.
  void hold(Sums& d) const { wgmma_hold(d), wgmma_fence(); }
  void start(Sums& d) const { hold(d), multiply(d); }
  void end(Sums& d) const { wgmma_commit(), wgmma_wait<0>(), wgmma_hold(d); }
};

struct Mistake {
  const char* what;
  int threads;
  void (*kernel)(const Memory&, Sums&);
  const char* error;  // a part of the message; "" if there is none
};

const Mistake kMistakes[] = {
    // -- barriers between some threads
    {"a barrier of other warps orders nothing", 128,
     [](const Memory& m, Sums&) {
       if (m.thread == 0) m.numbers[0] = 1;
       if (m.warp >= 2) named_barrier_sync(1, 64);
       if (m.thread == 32) m.numbers[1] = m.numbers[0];
     },
     "of shared memory"},
    {"the barrier of the two does", 128,
     [](const Memory& m, Sums&) {
       if (m.thread == 0) m.numbers[0] = 1;
       if (m.warp < 2) named_barrier_sync(1, 64);
       if (m.thread == 32) m.numbers[1] = m.numbers[0];
     },
     ""},
    {"one that arrives and does not wait knows nothing", 64,
     [](const Memory& m, Sums&) {
       if (m.warp == 0) m.numbers[m.thread] = 1, named_barrier_sync(1, 64);
       else named_barrier_arrive(1, 64), m.numbers[64] = m.numbers[3];
     },
     "of shared memory"},
    {"a phase of another mbarrier orders nothing", 64,
     [](const Memory& m, Sums&) {
       m.begin();
       if (m.thread == 0) m.numbers[0] = 1, mbarrier_arrive(m.barrier);
       if (m.thread == 1) mbarrier_arrive(m.barrier + 1);
       if (m.warp == 1) mbarrier_wait(m.barrier + 1, 0), m.numbers[32 + m.thread] = m.numbers[0];
     },
     "of shared memory"},
    {"the phase of its own does", 64,
     [](const Memory& m, Sums&) {
       m.begin();
       if (m.thread == 0) m.numbers[0] = 1, mbarrier_arrive(m.barrier);
       if (m.warp == 1) mbarrier_wait(m.barrier, 0), m.numbers[32 + m.thread] = m.numbers[0];
     },
     ""},
    {"a write behind the arrival", 64,
     [](const Memory& m, Sums&) {
       m.begin();
       if (m.thread == 0) mbarrier_arrive(m.barrier), m.numbers[0] = 1;
       if (m.warp == 1) mbarrier_wait(m.barrier, 0), m.numbers[32 + m.thread] = m.numbers[0];
     },
     "of shared memory"},
    {"a lane arrives for its warp, which it has not met", 64,
     [](const Memory& m, Sums&) {
       m.begin();
       if (m.warp == 0) m.numbers[m.thread] = 1;
       if (m.thread == 0) mbarrier_arrive(m.barrier);
       if (m.warp == 1) mbarrier_wait(m.barrier, 0), m.numbers[m.thread] = m.numbers[m.thread - 32];
     },
     "of shared memory"},
    {"it has met the warp", 64,
     [](const Memory& m, Sums&) {
       m.begin();
       if (m.warp == 0) m.numbers[m.thread] = 1, __syncwarp();
       if (m.thread == 0) mbarrier_arrive(m.barrier);
       if (m.warp == 1) mbarrier_wait(m.barrier, 0), m.numbers[m.thread] = m.numbers[m.thread - 32];
     },
     ""},
    {"an mbarrier used before its init is known", 64,
     [](const Memory& m, Sums&) {
       if (m.thread == 0) mbarrier_init(m.barrier, 1), mbarriers_ready(), mbarrier_arrive(m.barrier);
       if (m.thread == 32) mbarrier_wait(m.barrier, 0);
     },
     "mbarrier"},
    {"no arrivals", 32, [](const Memory& m, Sums&) { mbarrier_init(m.barrier, 0); }, "need 1 to"},
    {"one arrival too many", 32,
     [](const Memory& m, Sums&) {
       m.begin();
       if (m.thread == 0) mbarrier_arrive_expecting(m.barrier, kBytes), mbarrier_arrive(m.barrier);
     },
     "has had all its arrivals"},
    {"an mbarrier that is none", 32, [](const Memory& m, Sums&) { mbarrier_wait(m.barrier + 5, 0); },
     "there is no mbarrier"},
    {"a named barrier of two sizes", 64, [](const Memory& m, Sums&) { named_barrier_sync(1, m.warp ? 96 : 64); },
     "named barrier 1 waits for"},
    // -- TMA
    {"TMA, waited for", 32, [](const Memory& m, Sums&) { m.begin_with_tile(), m.read(m.tile); }, ""},
    {"TMA, not waited for", 32,
     [](const Memory& m, Sums&) {
       m.begin();
       if (m.thread == 0) m.bring(m.tile);
       m.read(m.tile);
     },
     "reads byte"},
    {"the parity of the phase before", 32,
     [](const Memory& m, Sums&) {
       m.begin();
       if (m.thread == 0) m.bring(m.tile);
       mbarrier_wait(m.barrier, 1), m.read(m.tile);
     },
     "reads byte"},
    {"one box expected, and two come", 32,
     [](const Memory& m, Sums&) {
       m.begin();
       if (m.thread == 0) m.bring(m.tile), tma_load(m.other, m.map, m.barrier, 0, 0, 0, 0);
       mbarrier_wait(m.barrier, 0);
       for (const auto& tile : {m.tile, m.other}) m.read(tile);
     },
     "TMA"},
    {"more bytes expected than come", 32,
     [](const Memory& m, Sums&) {
       m.begin();
       if (m.thread == 0) m.bring(m.tile, 0, 2 * kBytes);
       mbarrier_wait(m.barrier, 0);
     },
     "wait for the mbarrier"},
    {"more bytes than an mbarrier counts", 32,
     [](const Memory& m, Sums&) {
       m.begin();
       if (m.thread == 0) mbarrier_arrive_expecting(m.barrier, 1 << 20);
     },
     "it counts to"},
    {"TMA for an mbarrier with no fence since its init", 32,
     [](const Memory& m, Sums&) {
       if (m.thread == 0) mbarrier_init(m.barrier, 1), m.bring(m.tile);
     },
     "no proxy fence since its initialisation"},
    {"TMA into what others still read", 64,
     [](const Memory& m, Sums&) {
       m.begin_with_tile();
       if (m.warp == 1) m.read(m.tile);
       if (m.thread == 0) m.bring(m.tile, 1);
       mbarrier_wait(m.barrier + 1, 0);
     },
     "byte"},
    {"TMA into what it already fills", 32,
     [](const Memory& m, Sums&) {
       m.begin();
       if (m.thread == 0) m.bring(m.tile), m.bring(m.tile, 1);
       mbarrier_wait(m.barrier, 0), mbarrier_wait(m.barrier + 1, 0);
     },
     "TMA"},
    {"TMA into what a thread wrote, with no fence", 32,
     [](const Memory& m, Sums&) {
       m.begin(), m.fill(m.tile, false), __syncthreads();
       if (m.thread == 0) m.bring(m.tile);
       mbarrier_wait(m.barrier, 0);
     },
     "no proxy fence between"},
    {"and with one", 32,
     [](const Memory& m, Sums&) {
       m.begin(), m.fill(m.tile, true), __syncthreads();
       if (m.thread == 0) m.bring(m.tile);
       mbarrier_wait(m.barrier, 0);
     },
     ""},
    {"a box at no multiple of 1,024", 32,
     [](const Memory& m, Sums&) {
       m.begin();
       if (m.thread == 0) m.bring(m.tile + 64);
     },
     "multiple of 1024"},
    {"a box of another head", 32,
     [](const Memory& m, Sums&) {
       m.begin();
       if (m.thread == 0) mbarrier_arrive_expecting(m.barrier, kBytes), tma_load(m.tile, m.map, m.barrier, 0, 0, 1, 0);
     },
     "there is no such box"},
    // -- wgmma
    {"a product", 128,
     [](const Memory& m, Sums& d) {
       m.begin_with_tile(), m.start(d), m.end(d);
       if (d[0][0] != 0) throw DeviceError("a wrong sum");
     },
     ""},
    {"a product of half a warpgroup", 64, [](const Memory& m, Sums& d) { m.begin_with_tile(), m.start(d); },
     "whole warpgroups"},
    {"registers that are not held", 128,
     [](const Memory& m, Sums& d) { m.begin_with_tile(), wgmma_fence(), m.multiply(d), m.end(d); }, "no wgmma_hold"},
    {"registers with no fence", 128,
     [](const Memory& m, Sums& d) { m.begin_with_tile(), wgmma_hold(d), m.multiply(d), m.end(d); }, "no wgmma.fence"},
    {"no fence behind a wait", 128,
     [](const Memory& m, Sums& d) {
       m.begin_with_tile(), m.start(d), m.end(d);
       d[0][0] = 1, wgmma_hold(d), m.multiply(d, true), m.end(d);
     },
     "no wgmma.fence"},
    {"a sum that changes behind the fence", 128,
     [](const Memory& m, Sums& d) {
       m.begin_with_tile(), m.hold(d);
       d[7][3] = 1;
       m.multiply(d, true), m.end(d);
     },
     "changed since"},
    {"an operand in registers that changes behind the fence", 128,
     [](const Memory& m, Sums& d) {
       uint32_t a[1][4] = {};
       m.begin_with_tile(), wgmma_hold(d), wgmma_hold(a), wgmma_fence();
       a[0][2] = 1;
       wgmma_columns(d, a[0], columns_of(m.tile, 64, 0)), m.end(d);
     },
     "changed since"},
    {"a sum taken while a product adds to it", 128,
     [](const Memory& m, Sums& d) { m.begin_with_tile(), m.start(d), wgmma_commit(), wgmma_hold(d), wgmma_wait<0>(); },
     "a product still uses"},
    {"a sum read before it is held again", 128,
     [](const Memory& m, Sums& d) {
       m.begin_with_tile(), m.start(d), wgmma_commit(), wgmma_wait<0>();
       if (std::isnan(d[0][0])) throw DeviceError("a sum before its time");
     },
     "before its time"},
    {"a wait that leaves a group", 128,
     [](const Memory& m, Sums& d) { m.begin_with_tile(), m.start(d), wgmma_commit(), wgmma_wait<1>(), wgmma_hold(d); },
     "wgmma"},
    {"no commit", 128,
     [](const Memory& m, Sums& d) { m.begin_with_tile(), m.start(d), wgmma_wait<0>(), wgmma_hold(d); }, "wgmma"},
    {"no wait", 128, [](const Memory& m, Sums& d) { m.begin_with_tile(), m.start(d), wgmma_commit(); },
     "while a wgmma is under way"},
    {"warps that multiply different matrices", 128,
     [](const Memory& m, Sums& d) {
       m.begin_with_tile(), m.hold(d);
       wgmma_rows(d, rows_of(m.tile, 64, 0), rows_of(m.tile, 64, m.warp == 2 ? 16 : 0), false);
       m.end(d);
     },
     "issue different instructions"},
    {"a warp that leaves out a product", 128,
     [](const Memory& m, Sums& d) {
       m.begin_with_tile(), m.hold(d);
       if (m.warp != 3) m.multiply(d);
       m.end(d);
     },
     "issue different instructions"},
    {"a warp that leaves before the last product", 128,
     [](const Memory& m, Sums& d) {
       m.begin_with_tile();
       if (m.warp == 3) return;
       m.start(d), m.end(d);
     },
     "issue different instructions"},
    {"an operand that TMA still brings", 128,
     [](const Memory& m, Sums& d) {
       m.begin();
       if (m.thread == 0) m.bring(m.tile);
       m.start(d), m.end(d);
       mbarrier_wait(m.barrier, 0);
     },
     "wgmma reads byte"},
    {"an operand for which one lane has waited", 128,
     [](const Memory& m, Sums& d) {
       m.begin();
       if (m.thread == 0) m.bring(m.tile);
       if (m.thread % 32 == 5) mbarrier_wait(m.barrier, 0);
       m.start(d), m.end(d);
     },
     "wgmma reads byte"},
    {"an operand that threads wrote, with no proxy fence", 128,
     [](const Memory& m, Sums& d) {
       m.fill(m.tile, false), __syncthreads();
       m.start(d), m.end(d);
     },
     "no proxy fence between"},
    {"and with a fence, but no barrier", 128,
     [](const Memory& m, Sums& d) {
       m.fill(m.tile, true);
       m.start(d), m.end(d);
     },
     "wgmma reads byte"},
    {"and with both", 128,
     [](const Memory& m, Sums& d) {
       m.fill(m.tile, true), __syncthreads();
       m.start(d), m.end(d);
     },
     ""},
    {"an operand that is overwritten before the wait", 128,
     [](const Memory& m, Sums& d) {
       m.begin_with_tile(), m.start(d), wgmma_commit(), __syncthreads();
       if (m.thread == 7) m.tile[0] = BFloat16(0.0f);
       wgmma_wait<0>(), wgmma_hold(d);
     },
     "a wgmma of warp"},
    {"a tile given back before the wait", 128,
     [](const Memory& m, Sums& d) {
       m.begin_with_tile(), m.start(d), wgmma_commit(), named_barrier_sync(1, 128);
       if (m.thread == 0) m.bring(m.tile, 1);
       wgmma_wait<0>(), wgmma_hold(d), mbarrier_wait(m.barrier + 1, 0);
     },
     "a wgmma of warp"},
    {"and behind it", 128,
     [](const Memory& m, Sums& d) {
       m.begin_with_tile(), m.start(d), m.end(d);
       named_barrier_sync(1, 128);
       if (m.thread == 0) m.bring(m.tile, 1);
       mbarrier_wait(m.barrier + 1, 0);
     },
     ""},
    // -- registers
    {"registers that others give up", 384,
     [](const Memory& m, Sums&) {
       if (m.warp < 4) fewer_registers<40>();
       else more_registers<232>();
     },
     ""},
    {"registers that nobody gives up", 384,
     [](const Memory& m, Sums&) {
       if (m.warp < 4) fewer_registers<40>();
       else more_registers<240>();
     },
     "wait for registers"},
    {"fewer registers that are more", 384, [](const Memory&, Sums&) { fewer_registers<176>(); }, "from 168"},
    {"a warp that keeps its registers", 128,
     [](const Memory& m, Sums&) {
       if (m.warp != 1) fewer_registers<40>();
     },
     "issue different instructions"},
};

std::string error_of(const Mistake& mistake, const TensorMap& map) {
  try {
    emulator::run(1, static_cast<unsigned>(mistake.threads), 2 * kBytes + 1024, [&] {
      Sums d = {};
      mistake.kernel(Memory(map), d);
    });
  } catch (const DeviceError& e) { return e.what(); }
  return "";
}

}  // namespace

TEST_CASE("cuda emulator: mistakes with what works by itself are errors in every schedule", "[cuda]") {
  const std::vector<BFloat16> zeros(kSize, BFloat16(0.0f));
  const TensorMap map = tensor_map(packed_heads(zeros.data(), 1, 64, 64), 1, 1, 64, 64, 64);
  for (const Mistake& mistake : kMistakes)
    for (const uint64_t seed : {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}) {
      emulator::set_schedule(seed);
      const std::string error = error_of(mistake, map);
      INFO(mistake.what << ", schedule " << seed << ": " << error);
      if (*mistake.error) CHECK(error.find(mistake.error) != std::string::npos);
      else CHECK(error == "");
    }
  emulator::set_schedule(0);
}
