// What the emulator reports of TMA and wgmma.
#include "emulator_mistakes.h"

#include <cmath>

using namespace sluice;
using namespace sluice::testing;

namespace {

const Mistake kMistakes[] = {
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
     "of shared memory"},
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
    {"a block that ends before its tile has come", 32,
     [](const Memory& m, Sums&) {
       if (m.thread == 0) mbarrier_init(m.barrier, 1), mbarriers_ready(), m.bring(m.tile);
     },
     "while TMA brings a tile"},
    // -- wgmma
    {"a product", 128,
     [](const Memory& m, Sums& d) {
       m.begin_with_tile(), m.start(d), m.end(d);
       if (d[0][0] != 0) throw DeviceError("a wrong sum");
     },
     ""},
    {"a product of half a warpgroup", 64, [](const Memory& m, Sums& d) { m.begin_with_tile(), m.start(d); },
     "whole warpgroup of"},
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
       wgmma_columns(d, a[0], columns_of(m.tile, 64)), m.end(d);
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
       wgmma_rows(d, rows_of(m.tile), rows_of(m.tile) + (m.warp == 2 ? 16 : 0), false);
       m.end(d);
     },
     "issue different instructions"},
    {"lanes that multiply different matrices", 128,
     [](const Memory& m, Sums& d) {
       m.begin_with_tile(), m.hold(d);
       wgmma_rows(d, rows_of(m.tile), rows_of(m.tile) + (m.thread == 9 ? 16 : 0), false);
     },
     "name different matrices"},
    {"a matrix without the swizzle", 128,
     [](const Memory& m, Sums& d) {
       Descriptor plain = rows_of(m.tile);
       plain.high &= ~(uint32_t{1} << 30);
       m.begin_with_tile(), m.hold(d), wgmma_rows(d, plain, rows_of(m.tile), false);
     },
     "must be swizzled"},
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
    {"an operand in registers that changes before the wait", 128,
     [](const Memory& m, Sums& d) {
       uint32_t a[1][4] = {};
       m.begin_with_tile(), wgmma_hold(d), wgmma_hold(a), wgmma_fence();
       wgmma_columns(d, a[0], columns_of(m.tile, 64)), a[0][2] = 1, m.end(d);
     },
     "changed before"},
    {"an operand beyond the block's memory", 128,
     [](const Memory& m, Sums& d) {
       m.begin_with_tile(), m.hold(d);
       wgmma_rows(d, rows_of(m.tile), rows_of(m.tile) + slice_of_rows(64, 64 * 30), false), m.end(d);
     },
     "the block has"},
    {"a fence of a part of a warpgroup", 64, [](const Memory&, Sums&) { wgmma_fence(); }, "whole warpgroup"},
    {"a warpgroup beside a warp", 160,
     [](const Memory& m, Sums& d) {
       m.begin_with_tile();
       if (m.warp < 4) m.start(d), m.end(d);
     },
     ""},
};

}  // namespace

TEST_CASE("cuda emulator: mistakes with what works by itself are errors in every schedule", "[cuda]") {
  check_mistakes(kMistakes);
}
