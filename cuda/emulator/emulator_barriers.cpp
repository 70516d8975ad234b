// Barriers for some threads of a block, in shared memory and by number; registers passed between warpgroups.
#include <sluice/cuda/emulator/emulator_state.h>

#include <utility>

namespace sluice::cuda::emulator {

namespace {

constexpr int64_t kMostCounted = (1 << 20) - 1;  // arrivals and bytes of a phase

/// DeviceError unless the running thread knows of the mbarrier's initialisation, and TMA may use it.
void check_known(const Mbarrier& m, std::size_t at, bool by_tma) {
  const Knowledge& mine = block->current->knowledge;
  for (std::size_t i = at / kAtom; i < (at + 8) / kAtom; ++i)
    if (block->atoms[i].write != m.write)
      bad("uses the mbarrier at byte ", at, ", over which something has been written");
  const Write& w = block->write(m.write);
  if (w.writer != own_actor() && !mine.done.knows(w.writer, w.time))
    bad("uses the mbarrier at byte ", at, ", with no barrier since its initialisation");
  if (by_tma && !mine.fenced.knows(w.writer, w.time))
    bad("starts TMA for the mbarrier at byte ", at, ", with no proxy fence since its initialisation");
}

}  // namespace

Mbarrier& mbarrier_at(const void* b, bool by_tma) {
  const std::size_t at = offset_of(b, 8, "an mbarrier lies at");
  const auto found = block->mbarriers.find(at);
  if (found == block->mbarriers.end()) bad("there is no mbarrier at byte ", at, " of shared memory");
  check_known(found->second, at, by_tma);
  return found->second;
}

void advance(std::size_t at) {
  Mbarrier& b = block->mbarriers.at(at);
  if (b.missing > 0 || b.bytes != 0) return;
  ++b.phase, b.missing = b.arrivals;
  b.arrived.done.learn(b.actor, block->time);
  std::swap(b.passed, b.arrived), b.arrived.clear();
  wake(Thread::at_mbarrier, at, [](Thread&) {});
}

void mbarrier_init(void* b, unsigned arrivals) {
  const std::size_t at = offset_of(b, 8, "an mbarrier lies at");
  if (arrivals < 1 || arrivals > kMostCounted) bad("an mbarrier for ", arrivals, " arrivals: need 1 to ", kMostCounted);
  note_write(b, 8, own_write());
  const bool known = block->mbarriers.contains(at);
  Mbarrier& m = block->mbarriers[at];
  if (!known) m.actor = actor_of_mbarrier(static_cast<int>(block->mbarriers.size()) - 1);
  if (m.actor >= kMbarriers) bad("more than ", kMbarriers, " mbarriers in a block");
  Thread& me = *block->current;
  m.arrivals = m.missing = arrivals, m.phase = 0, m.bytes = 0;
  m.write = own_write(), me.time = ++block->time;
}

void proxy_fence(Site at) {
  if (left_out("fence.proxy.async", at)) return;
  Thread& me = *block->current;
  me.knowledge.done.learn(own_actor(), me.time);
  me.knowledge.fenced.join(me.knowledge.done);
  me.time = ++block->time;
}

void mbarrier_arrive(void* b, unsigned bytes, Site at) {
  if (left_out(bytes ? "mbarrier.arrive.expect_tx" : "mbarrier.arrive", at)) return;
  Mbarrier& m = mbarrier_at(b, false);
  if (m.missing == 0) bad("arrives at an mbarrier whose phase has had all its arrivals");
  --m.missing, m.bytes += bytes;
  if (m.bytes > kMostCounted) bad("an mbarrier waits for ", m.bytes, " bytes; it counts to ", kMostCounted);
  release(*block->current, m.arrived);
  advance(offset_of(b, 8, "an mbarrier lies at"));
}

void mbarrier_wait(void* b, unsigned parity, Site at) {
  if (left_out("mbarrier.try_wait", at)) return;
  const std::size_t place = offset_of(b, 8, "an mbarrier lies at");
  while (mbarrier_at(b, false).phase % 2 == parity) {
    block->current->place = place;
    wait_as(Thread::at_mbarrier);
  }
  block->current->knowledge.join(mbarrier_at(b, false).passed);
}

bool named_barrier(int id, int threads, bool waits, bool x, Site at) {
  if (left_out(waits ? "bar.sync" : "bar.arrive", at)) return x;
  Block& b = *block;
  if (id < 1 || id > 15 || threads % 32)
    bad("named barrier ", id, " of ", threads, " threads: need 1 to 15, and whole warps");
  NamedBarrier& barrier = b.named_barriers[id];
  if (barrier.arrived && barrier.threads != threads)
    bad("named barrier ", id, " waits for ", barrier.threads, " and for ", threads, " threads");
  barrier.threads = threads, barrier.any |= x;
  release(*b.current, barrier.knowledge);
  const auto place = static_cast<std::size_t>(id);
  if (++barrier.arrived < threads) {
    if (waits) b.current->place = place, wait_as(Thread::at_named_barrier);
    return b.current->any;
  }
  const bool any = std::exchange(barrier.any, false);
  barrier.arrived = 0;
  if (waits) b.current->knowledge.join(barrier.knowledge);
  wake(Thread::at_named_barrier, place, [&](Thread& t) { t.knowledge.join(barrier.knowledge), t.any = any; });
  barrier.knowledge.clear();
  return any;
}

void set_registers(int count, bool more) {
  const char* const name = more ? "setmaxnreg.inc" : "setmaxnreg.dec";
  struct Slot {
    const char* name;
    int count;
    bool more, again = false, done = false;
  } mine{name, count, more};
  const auto take = [](void* const* slots, unsigned lanes) {
    Block& b = *block;
    Warp& warp = warp_of(*b.current);
    const Slot& first = *static_cast<Slot*>(slots[std::countr_zero(lanes)]);
    if (!first.again) issue({first.name, 0, 0, first.count});
    const int change = first.count - warp.registers;
    if (first.more ? change < 0 : change > 0) bad(first.name, " to ", first.count, " registers from ", warp.registers);
    const bool enough = b.free_registers >= int64_t{32} * change;
    if (enough) b.free_registers -= int64_t{32} * change, warp.registers = first.count;
    for (unsigned rest = lanes; rest; rest &= rest - 1)
      static_cast<Slot*>(slots[std::countr_zero(rest)])->done = enough;
    if (enough) wake(Thread::at_registers, 0, [](Thread&) {});
  };
  for (;; mine.again = true) {
    collective(name, ~0u, &mine, take);
    if (mine.done) return;
    // Another lane may have met a warp that gave some up since.
    if (block->free_registers < int64_t{32} * (count - warp_of(*block->current).registers))
      block->current->place = 0, wait_as(Thread::at_registers);
  }
}

}  // namespace sluice::cuda::emulator
