#include <sluice/cuda/emulator/emulator.h>

#include <sluice/cuda/emulator/emulator_state.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

namespace sluice::cuda::emulator {

constinit thread_local Block* block = nullptr;

uint64_t draw(uint64_t& state) {  // splitmix64
  uint64_t z = state += 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

namespace {

thread_local uint64_t seed = 0;
thread_local std::vector<Site> met;
thread_local Site omitted;

struct Cancelled {};

/// The next lane of the turn, which becomes the current thread; null if the turn has ended.
Thread* next_of_turn() {
  Block& b = *block;
  if (b.error && !b.cancelled) b.turn = 0;  // the scheduler cancels the block
  if (!b.turn) return nullptr;
  const int i = std::countr_zero(b.turn);
  b.turn &= b.turn - 1;
  b.current = b.threads[b.first_of_warp + static_cast<std::size_t>((b.first_lane + i) % 32)].get();
  threadIdx = b.current->index;
  return b.current;
}

/// Runs the current thread to its end, then each lane of the turn that has not begun, until one of them must wait:
/// lanes that never wait need one fiber and no switch.
void run_threads_here() {
  Block& b = *block;
  Fiber* const here = b.current->fiber;
  for (;;) {
    try {
      if (!b.cancelled) (*b.kernel)();
    } catch (const Cancelled&) {
    } catch (...) {
      if (!b.error) b.error = std::current_exception();
    }
    Thread& me = *b.current;
    me.state = Thread::left, me.fiber = nullptr;
    warp_of(me).ready &= ~(1u << me.number % 32);
    Thread* const next = next_of_turn();
    if (next && !next->fiber) {
      next->fiber = here;
      continue;
    }
    b.free_fibers.push_back(here);
    leave_fiber(*here, next ? *next->fiber : b.scheduler);
  }
}

/// Goes on with the next lane of the turn, or with the scheduler.
void go_on(Fiber& from) {
  Block& b = *block;
  Thread* const next = next_of_turn();
  if (next && !next->fiber) {
    if (b.free_fibers.empty()) b.free_fibers.push_back(b.fibers.emplace_back(std::make_unique<Fiber>()).get());
    next->fiber = b.free_fibers.back();
    b.free_fibers.pop_back();
    start_fiber(*next->fiber, run_threads_here);
  }
  switch_fiber(from, next ? *next->fiber : b.scheduler);
}

void wait() {
  go_on(*block->current->fiber);
  if (block->cancelled) throw Cancelled{};
}

}  // namespace

bool left_out(const char* what, Site at) {
  at.what = what;
  auto place = std::find(met.begin(), met.end(), at);
  if (place == met.end()) place = met.insert(place, at);
  std::iter_swap(place, met.begin());  // threads come to one site after the other, so the next search is short
  return at == omitted;
}
std::vector<Site> sites_met() { return std::exchange(met, {}); }
void leave_out(Site site) { omitted = site; }

void release(Thread& t, Knowledge& barrier) {
  t.knowledge.done.learn(actor_of_thread(t.number), t.time);
  barrier.join(t.knowledge);
  t.time = ++block->time;
}

void wait_as(Thread::State state) {
  Thread& me = *block->current;
  me.state = state;
  warp_of(me).ready &= ~(1u << me.number % 32);
  wait();
}
void make_ready(Thread& t) {
  t.state = Thread::ready;
  warp_of(t).ready |= 1u << t.number % 32;
}

namespace {

/// Runs lanes of a warp one after the other, from first_lane on, each until it waits or has left.
void take_turn(std::size_t warp, unsigned lanes, int first_lane) {
  Block& b = *block;
  b.turn = std::rotr(lanes, first_lane), b.first_lane = first_lane, b.first_of_warp = warp * 32;
  go_on(b.scheduler);
}

/// No thread can go on: throws DeviceError with the place where each thread waits.
[[noreturn]] void deadlock() {
  std::vector<std::pair<std::string, std::string>> groups;
  for (int i = 0; i < block->count; ++i) {
    const Thread& t = *block->threads[static_cast<std::size_t>(i)];
    const std::string where =
        t.state == Thread::left               ? std::string("have left")
        : t.state == Thread::at_barrier       ? str("wait at the __syncthreads of line ", block->met_at.line)
        : t.state == Thread::at_mbarrier      ? str("wait for the mbarrier at byte ", t.place)
        : t.state == Thread::at_registers     ? std::string("wait for registers")
        : t.state == Thread::at_named_barrier ? str("wait at named barrier ", t.place)
                                              : str("wait at ", t.name, " for the lanes of mask ", t.mask);
    auto at = std::find_if(groups.begin(), groups.end(), [&](const auto& g) { return g.first == where; });
    if (at == groups.end()) at = groups.insert(groups.end(), {where, ""});
    if (at->second.size() < 40) at->second += str(" ", i);
    else if (at->second.back() != '.') at->second += " ...";
  }
  std::string text;
  for (const auto& [where, who] : groups) text += str(text.empty() ? "threads" : "; threads", who, " ", where);
  throw DeviceError(
      str("cuda emulator: block (", blockIdx.x, ",", blockIdx.y, ",", blockIdx.z, "): no thread can go on — ", text));
}

bool all_left() {
  for (int i = 0; i < block->count; ++i)
    if (block->threads[static_cast<std::size_t>(i)]->state != Thread::left) return false;
  return true;
}

void run_threads(uint64_t& random) {
  const std::size_t warps = block->warps.size();
  for (;;) {
    std::size_t w = draw(random) % warps, tried = 0;
    while (tried < warps && !block->warps[w].ready) w = (w + 1) % warps, ++tried;
    if (tried == warps && all_left()) break;
    if ((tried == warps || draw(random) % 16 == 0) && deliver()) continue;  // a TMA copy has arrived
    if (tried == warps) break;
    // A warp may run far ahead of the others, or step by step with them.
    do {
      take_turn(w, block->warps[w].ready, static_cast<int>(draw(random) % 32));
      if (block->error) return;
    } while (block->warps[w].ready && draw(random) % 8);
  }
  if (!all_left()) deadlock();
  if (!block->bulks.empty()) throw DeviceError("cuda emulator: a block ends while TMA brings a tile");
  for (const Warp& w : block->warps) {
    if (!w.groups.empty() || !w.open.products.empty())
      throw DeviceError("cuda emulator: a block ends while a wgmma is under way");
    const auto& group = block->warpgroups[static_cast<std::size_t>(&w - block->warps.data()) / 4];
    if (w.issued != group.size())
      throw DeviceError(str("cuda emulator: warps of a warpgroup issue different instructions; one has left before ",
                            group[w.issued].name));
  }
}

void cancel() {
  block->cancelled = true;
  for (int i = 0; i < block->count; ++i) {
    if (block->threads[static_cast<std::size_t>(i)]->state == Thread::left) continue;
    take_turn(static_cast<std::size_t>(i / 32), 1u << i % 32, i % 32);
  }
}

void forget_readings(Block& b) {
  b.first_reading += static_cast<uint32_t>(b.readings.size());
  b.readings.clear();
}

void run_block(dim3 shape, std::size_t shared_bytes, uint64_t& random) {
  Block& b = *block;
  b.count = static_cast<int>(shape.x * shape.y * shape.z);
  b.warps.assign(static_cast<std::size_t>(b.count + 31) / 32, Warp{});
  while (b.threads.size() < static_cast<std::size_t>(b.count)) b.threads.push_back(std::make_unique<Thread>());
  if (std::max({b.time, b.first_reading, b.first_write}) > kNever / 2) {  // times and numbers begin again
    b.atoms.assign(b.atoms.size(), {}), b.time = 0, b.together = {};
    b.readings.clear(), b.first_reading = 1, b.answers = {};
    b.writes.clear(), b.first_write = 1;
    for (auto& t : b.threads) t->knowledge = {}, t->known_sets = {}, t->last_read = {}, t->last_writes = {};
  }
  const uint32_t began = ++b.time;
  forget_readings(b);
  b.first_write += static_cast<uint32_t>(b.writes.size());
  b.writes.clear();
  b.warpgroups.assign((b.warps.size() + 3) / 4, {});
  const int registers = 64 * 1024 / b.count / 8 * 8;  // of a thread, if the kernel takes as many as it can
  b.free_registers = 0;
  for (Warp& w : b.warps) w.registers = std::min(registers, 255);
  for (int i = 0; i < b.count; ++i) {
    Thread& t = *b.threads[static_cast<std::size_t>(i)];
    const unsigned n = static_cast<unsigned>(i);
    t.state = Thread::ready, t.number = i;
    t.index = dim3(n % shape.x, n / shape.x % shape.y, n / (shape.x * shape.y));
    t.copies.clear(), t.groups.clear(), t.open = 0, t.registers.clear();
    t.time = began, t.knowledge.done.learn_all(began), t.knowledge.fenced.clear();
    warp_of(t).lanes |= 1u << i % 32;
  }
  for (Warp& w : b.warps) w.ready = w.lanes;
  b.dynamic_bytes = b.bytes = shared_bytes;
  b.statics.clear(), b.mbarriers.clear(), b.named_barriers.clear(), b.bulks.clear(), b.random = &random;
  b.arrived = 0, b.cancelled = false, b.error = nullptr;
  std::memset(b.shared, 0xff, shared_bytes);  // NaN as f32, f64 and bf16
  try {
    run_threads(random);
  } catch (...) { b.error = std::current_exception(); }
  if (b.error) cancel(), std::rethrow_exception(b.error);
}

}  // namespace

void set_schedule(uint64_t s) { seed = s; }

void run(dim3 grid, dim3 shape, std::size_t shared_bytes, const std::function<void()>& kernel) {
  const std::size_t blocks = std::size_t{grid.x} * grid.y * grid.z, threads = std::size_t{shape.x} * shape.y * shape.z;
  if (blocks == 0 || grid.y > 65535 || grid.z > 65535 || threads == 0 || threads > 1024 || shared_bytes > kSharedBytes)
    throw DeviceError(str("cuda emulator: cannot launch — got ", grid.x, "x", grid.y, "x", grid.z, " blocks of ",
                          threads, " threads with ", shared_bytes,
                          " bytes of shared memory; need 1 to 1024 threads, at most ", kSharedBytes,
                          " bytes, grid.y and grid.z at most 65535"));
  if (!block) {
    static thread_local std::unique_ptr<Block> own;
    own = std::make_unique<Block>();
    block = own.get();
    block->storage = std::make_unique<unsigned char[]>(kSharedBytes + 1024);
    const auto at = reinterpret_cast<std::uintptr_t>(block->storage.get());
    block->shared = block->storage.get() + (1024 - at % 1024);
    block->atoms.resize(kSharedBytes / kAtom);
  }
  block->kernel = &kernel;
  blockDim = shape, gridDim = grid;
  uint64_t random = seed / 2;
  std::vector<std::size_t> order(blocks);
  for (std::size_t i = 0; i < blocks; ++i) order[i] = i, std::swap(order[i], order[draw(random) % (i + 1)]);
  if (seed % 2) std::reverse(order.begin(), order.end());
  random = seed;
  for (std::size_t i : order) {
    blockIdx = dim3(static_cast<unsigned>(i % grid.x), static_cast<unsigned>(i / grid.x % grid.y),
                    static_cast<unsigned>(i / grid.x / grid.y));
    run_block(shape, shared_bytes, random);
  }
}

int lane() { return block->current->number % 32; }

void barrier(Site at) {
  if (left_out("__syncthreads", at)) return;
  Block& b = *block;
  if (b.arrived && !(b.met_at == at))
    bad("comes to the __syncthreads of line ", at.line, " while others wait at that of line ", b.met_at.line);
  b.met_at = at;
  if (++b.arrived < b.count) return wait_as(Thread::at_barrier);
  b.arrived = 0, ++b.time;
  // All know what threads did, and what one of them knew of TMA, products and fences.
  Knowledge& together = b.together;
  together.clear();
  for (int i = 0; i < b.count; ++i) {
    Thread& t = *b.threads[static_cast<std::size_t>(i)];
    t.knowledge.done.learn_all(b.time), together.join(t.knowledge);
  }
  for (int i = 0; i < b.count; ++i) {
    Thread& t = *b.threads[static_cast<std::size_t>(i)];
    t.knowledge.join(together), t.time = b.time, t.state = Thread::ready;
  }
  if (!b.has_products()) forget_readings(b);
  for (Warp& w : b.warps) w.ready = w.lanes;
}

void collective(const char* name, unsigned mask, void* slot, void (*operate)(void* const*, unsigned)) {
  Thread& me = *block->current;
  Warp& w = warp_of(me);
  const unsigned bit = 1u << me.number % 32;
  if (!(mask & bit)) bad("calls ", name, " with mask ", mask, ", which leaves out its own lane");
  mask &= w.lanes;
  auto mine = std::find_if(w.gatherings.begin(), w.gatherings.end(), [&](const Gathering& g) {
    return g.mask == mask && (g.name == name || std::strcmp(g.name, name) == 0);  // mostly one literal
  });
  if (mine == w.gatherings.end()) mine = w.gatherings.insert(mine, Gathering{name, mask, 0});
  w.slots[me.number % 32] = slot;
  mine->arrived |= bit;
  if (mine->arrived != mask) {
    me.name = name, me.mask = mask;
    return wait_as(Thread::at_collective);
  }
  operate(w.slots, mask);
  w.gatherings.erase(mine);
  for (unsigned rest = mask; rest; rest &= rest - 1)
    make_ready(*block->threads[static_cast<std::size_t>(me.number / 32 * 32 + std::countr_zero(rest))]);
}

void sync_warp(unsigned mask, Site at) {
  if (left_out("__syncwarp", at)) return;
  collective("__syncwarp", mask, nullptr, [](void* const*, unsigned all) {
    Knowledge& together = block->together;
    together.clear();
    const int first = block->current->number / 32 * 32;
    const auto each = [&](auto f) {
      for (unsigned rest = all; rest; rest &= rest - 1)
        f(*block->threads[static_cast<std::size_t>(first + std::countr_zero(rest))]);
    };
    each([&](Thread& t) { release(t, together); });
    each([&](Thread& t) { t.knowledge.join(together); });
  });
}

unsigned ballot(const char* name, unsigned mask, bool predicate) {
  struct Slot {
    bool predicate;
    unsigned result;
  } mine{predicate, 0};
  collective(name, mask, &mine, [](void* const* slots, unsigned all) {
    unsigned votes = 0;
    for (int i = 0; i < 32; ++i)
      if (all >> i & 1) votes |= unsigned{static_cast<Slot*>(slots[i])->predicate} << i;
    for (int i = 0; i < 32; ++i)
      if (all >> i & 1) static_cast<Slot*>(slots[i])->result = votes;
  });
  return mine.result;
}

void shuffle_outside(const char* name, int from) { bad(name, " reads lane ", from, ", which its mask leaves out"); }

}  // namespace sluice::cuda::emulator
