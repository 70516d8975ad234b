// What the emulator reports of barriers between some threads, of copies by cp.async, and of registers.
#include "emulator_mistakes.h"

using namespace sluice;
using namespace sluice::testing;

namespace {

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
    {"a read that a later reader does not know of", 96,
     [](const Memory& m, Sums&) {
       if (m.thread == 0) m.numbers[0] = 1;
       m.begin();
       if (m.thread == 0 || m.thread == 32) m.numbers[8 + m.thread] = m.numbers[0];
       if (m.warp > 0) named_barrier_sync(1, 64);
       if (m.thread == 64) m.numbers[0] = 2;
     },
     "of shared memory"},
    {"all have met", 96,
     [](const Memory& m, Sums&) {
       if (m.thread == 0) m.numbers[0] = 1;
       m.begin();
       if (m.thread == 0 || m.thread == 32) m.numbers[8 + m.thread] = m.numbers[0];
       named_barrier_sync(1, 96);
       if (m.thread == 64) m.numbers[0] = 2;
     },
     ""},
    {"a read of the next number behind the arrival", 64,
     [](const Memory& m, Sums&) {
       if (m.thread == 0) m.numbers[0] = 1, m.numbers[1] = 1;
       m.begin();
       if (m.thread == 0) m.numbers[8] = m.numbers[0], mbarrier_arrive(m.barrier), m.numbers[9] = m.numbers[1];
       if (m.thread == 32) mbarrier_wait(m.barrier, 0), m.numbers[1] = 2;
     },
     "of shared memory"},
    {"a second read behind the arrival", 64,
     [](const Memory& m, Sums&) {
       if (m.thread == 0) m.numbers[0] = 1;
       m.begin();
       if (m.thread == 0) m.numbers[8] = m.numbers[0], mbarrier_arrive(m.barrier), m.numbers[9] = m.numbers[0];
       if (m.thread == 32) mbarrier_wait(m.barrier, 0), m.numbers[0] = 2;
     },
     "of shared memory"},
    {"a number that its writer reads", 32,
     [](const Memory& m, Sums&) {
       if (m.thread == 0) m.numbers[0] = 1, m.numbers[1] = m.numbers[0];
     },
     ""},
    {"what the block before has written", 32,
     [](const Memory& m, Sums&) {
       if (m.thread == 0) m.numbers[1] = m.numbers[0];
     },
     "nobody has written"},
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
    {"a named barrier of number 0", 64, [](const Memory&, Sums&) { named_barrier_sync(0, 64); }, "need 1 to 15"},
    {"a named barrier of number 16", 64, [](const Memory&, Sums&) { named_barrier_sync(16, 64); }, "need 1 to 15"},
    {"a named barrier of half a warp", 64, [](const Memory&, Sums&) { named_barrier_sync(1, 48); }, "whole warps"},
    {"more mbarriers than a block has", 32,
     [](const Memory& m, Sums&) {
       if (m.thread == 0)
         for (int i = 0; i < 65; ++i) mbarrier_init(m.barrier + i, 1);
     },
     "more than 64 mbarriers"},
    {"an mbarrier over which something is written", 64,
     [](const Memory& m, Sums&) {
       m.begin();
       if (m.thread == 5) dynamic_shared<int>()[2 * kBytes / 4 + 2] = 7;
       __syncthreads();
       if (m.thread == 0) mbarrier_arrive(m.barrier + 1);
     },
     "over which something has been written"},
    {"one warp waits for a tile, and another that has met nobody reads it", 64,
     [](const Memory& m, Sums&) {
       m.begin();
       if (m.thread == 0) m.bring(m.tile), m.bring(m.other, 1);
       mbarrier_wait(m.barrier, 0);
       if (m.warp == 0) mbarrier_wait(m.barrier + 1, 0);
       __syncwarp();
       if (m.warp == 1) m.read(m.other);
     },
     "of shared memory, which TMA"},
    {"one warp fences, and another that has met nobody starts TMA", 64,
     [](const Memory& m, Sums&) {
       m.begin(), m.fill(m.tile, false), __syncthreads();
       if (m.warp == 0) mbarriers_ready();
       __syncwarp();
       if (m.thread == 32) m.bring(m.tile);
       mbarrier_wait(m.barrier, 0);
     },
     "no proxy fence between"},
    {"two phases of one named barrier", 128,
     [](const Memory& m, Sums&) {
       if (m.thread == 0) m.numbers[0] = 1;
       if (m.warp < 2) named_barrier_sync(1, 64);
       __syncwarp();
       if (m.warp >= 2) named_barrier_sync(2, 64), m.numbers[m.thread] = m.numbers[0];
     },
     "of shared memory"},
    // -- what takes a whole warp, and shared memory
    {"mma of half a warp", 16,
     [](const Memory&, Sums& d) {
       const uint32_t a[4] = {};
       mma_m16n8k16(d[0], a, 0, 0);
     },
     "mma in a warp of fewer than 32 lanes"},
    {"ldmatrix of half a warp", 16,
     [](const Memory& m, Sums&) {
       uint32_t f[1];
       m.fill(m.tile, false), __syncwarp(), ldmatrix(f, m.tile);
     },
     "ldmatrix in a warp of fewer than 32 lanes"},
    {"more static memory than a block has beside the rest", 32,
     [](const Memory&, Sums&) { static_shared<int, 227 * 256 - kBytes / 2, Mistake>(); }, "a block has"},
    // -- cp.async
    {"a write over a copy under way", 32,
     [](const Memory& m, Sums&) {
       m.copy(m.tile + 8 * m.thread), m.tile[8 * m.thread] = BFloat16(0.0f);
       cp_async_commit(), cp_async_wait<0>();
     },
     "still brings"},
    {"two copies to one place", 32,
     [](const Memory& m, Sums&) {
       for (int i = 0; i < 2; ++i) m.copy(m.tile + 8 * m.thread), cp_async_commit();
       cp_async_wait<1>();
     },
     "still brings"},
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

}  // namespace

TEST_CASE("cuda emulator: mistakes with barriers of some threads are errors in every schedule", "[cuda]") {
  check_mistakes(kMistakes);
}
