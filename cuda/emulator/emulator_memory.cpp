// Checks of shared memory: who wrote and who read each atom of it, whether those who touch it now know of that, and
// copies under way.
#include <sluice/cuda/emulator/emulator_state.h>

#include <cstring>

namespace sluice::cuda::emulator {

namespace {

std::size_t offset_in(const Block& b, const void* p, std::size_t bytes, const char* what) {
  const auto offset = static_cast<const unsigned char*>(p) - b.shared;
  if (offset < 0 || static_cast<std::size_t>(offset) + bytes > b.bytes) [[unlikely]]
    bad(what, " byte ", static_cast<int64_t>(offset), " of shared memory; the block has ", b.bytes);
  return static_cast<std::size_t>(offset);
}

std::string name_of(int actor) {
  if (actor >= kFirstThread) return str("thread ", actor - kFirstThread);
  if (actor >= kMbarriers) return str("a wgmma of warp ", actor - kMbarriers);
  return "TMA";
}

// -- sets of reads ----------------------------------------------------------------------------------------------

const Reading* reading_of(const Block& b, uint32_t set) {
  return set < b.first_reading ? nullptr : &b.readings[set - b.first_reading];
}

uint32_t add_reading(Block& b, uint32_t set, int actor, uint32_t time) {
  const Reading* const before = reading_of(b, set);
  const bool thread = actor >= kFirstThread;
  Reading r{before ? set : 0, time, thread ? time : 0, b.time, static_cast<int16_t>(actor), 1, !thread};
  if (before) {
    r.latest = std::max(r.latest, before->latest), r.by_itself |= before->by_itself;
    r.count = static_cast<uint16_t>(before->count + 1);
  }
  b.readings.push_back(r);
  return b.first_reading + static_cast<uint32_t>(b.readings.size() - 1);
}

/// A set of very many reads without those that a later read of the same actor follows.
uint32_t shortened(Block& b, uint32_t set) {
  std::map<int, uint32_t> last;
  for (const Reading* r = reading_of(b, set); r; r = reading_of(b, r->earlier)) {
    uint32_t& time = last[r->actor];
    time = std::max(time, r->time);
  }
  uint32_t all = 0;
  for (const auto& [actor, time] : last) all = add_reading(b, all, actor, time);
  return all;
}

/// The set, and a read of `actor` at `time`. One thread after the other reads the atoms of a tile, so the same set is
/// asked for again and again; the last answers are kept.
uint32_t with_reading(Block& b, uint32_t set, int actor, uint32_t time) {
  const Reading* const before = reading_of(b, set);
  if (!before) set = 0;
  else if (before->actor == actor && before->time == time) return set;
  Block::Answer& a = b.answers[(set * 31 + static_cast<uint32_t>(actor)) % b.answers.size()];
  if (a.set == set && a.time == time && a.actor == actor && a.with >= b.first_reading) return a.with;
  a = {set, time, 0, actor};
  for (const Reading* r = before; r && r->added >= time; r = reading_of(b, r->earlier))
    if (r->actor == actor && r->time == time) return a.with = set;
  return a.with = add_reading(b, before && before->count > 2 * kActors ? shortened(b, set) : set, actor, time);
}

/// An actor of the set whose read the running thread does not know of; -1 if it knows all.
int unknown_reader(const Block& b, uint32_t set) {
  Thread& me = *b.current;
  uint32_t& known = me.known_sets[set % me.known_sets.size()];
  if (set < b.first_reading || known == set) return -1;
  const Clock& done = me.knowledge.done;
  for (const Reading* r = reading_of(b, set); r; r = reading_of(b, r->earlier)) {
    if (!r->by_itself && done.knows_all(r->latest)) break;
    if (r->actor != own_actor() && !done.knows(r->actor, r->time)) return r->actor;
  }
  known = set;
  return -1;
}

/// Adds a read of `actor` at `now` to the atom's.
void add_read(Block& b, Atom& a, LastRead& last, int actor, uint32_t now) {
  if (a.readers != last.set || now != last.time || last.with < b.first_reading) [[unlikely]] {
    if (a.readers == last.with && now == last.time && last.with >= b.first_reading) return;  // read before
    last = {a.readers, now, with_reading(b, a.readers, actor, now)};
  }
  a.readers = last.with;
}

// -- touches ----------------------------------------------------------------------------------------------------

/// DeviceError unless the running thread knows of the atom's last write.
void check_written(const Block& b, const Atom& a, std::size_t i, const char* verb, int me) {
  if (a.writer == me || b.current->knowledge.done.knows(a.writer, a.time)) [[likely]]
    return;
  if (a.time == kNever) bad(verb, " byte ", i * kAtom, " of shared memory, which TMA still brings");
  if (std::strcmp(verb, "writes") == 0)
    bad("writes byte ", i * kAtom, " of shared memory, as did ", name_of(a.writer), ", with no barrier between");
  bad(verb, " byte ", i * kAtom, " of shared memory, which ", name_of(a.writer),
      " has written, with no barrier between");
}

}  // namespace

std::size_t offset_of(const void* p, std::size_t bytes, const char* what) { return offset_in(*block, p, bytes, what); }

void note_write(const void* p, std::size_t bytes, int actor, uint32_t time, bool in_flight) {
  Block& b = *block;
  const std::size_t offset = offset_in(b, p, bytes, "writes");
  const int me = own_actor();
  for (std::size_t i = offset / kAtom; i < (offset + bytes + kAtom - 1) / kAtom; ++i) {
    Atom& a = b.atoms[i];
    if (a.time >= b.began) {
      if (a.in_flight)
        bad("writes byte ", i * kAtom, " of shared memory, which a cp.async of ", name_of(a.writer), " still brings");
      check_written(b, a, i, "writes", me);
      if (actor < kFirstThread && a.writer >= kFirstThread && !b.current->knowledge.fenced.knows(a.writer, a.time))
        bad("starts TMA to byte ", i * kAtom, " of shared memory, which ", name_of(a.writer),
            " has written, with no proxy fence between");
    }
    if (const int reader = unknown_reader(b, a.readers); reader >= 0) [[unlikely]]
      bad("writes byte ", i * kAtom, " of shared memory, which ", name_of(reader),
          " or another has read, with no barrier between");
    a = {time, 0, static_cast<int16_t>(actor), in_flight};
  }
}

void note_operand(std::size_t offset) {
  Block& b = *block;
  if (offset + 16 > b.bytes) bad("wgmma reads byte ", offset, " of shared memory; the block has ", b.bytes);
  const int warp = b.current->number / 32;
  Warp& w = b.warps[static_cast<std::size_t>(warp)];
  const uint32_t time = w.open.time;
  LastRead& last_read = w.last_read;
  Atom* const atoms = b.atoms.data();
  for (std::size_t i = offset / kAtom; i < (offset + 16) / kAtom; ++i) {
    Atom& a = atoms[i];
    if (a.time < b.began) bad("wgmma reads byte ", i * kAtom, " of shared memory, which nobody has written");
    if (!a.written_with(w.known)) {
      for (int lane = 0; lane < 32; ++lane) {
        const Thread& t = *b.threads[static_cast<std::size_t>(warp * 32 + lane)];
        const int me = actor_of_thread(t.number);
        if (a.in_flight || (a.writer != me && !t.knowledge.done.knows(a.writer, a.time)))
          bad("wgmma reads byte ", i * kAtom, " of shared memory, which ",
              a.time == kNever ? "TMA still brings" : str(name_of(a.writer), " has written, with no barrier between"));
        if (a.writer >= kFirstThread && !t.knowledge.fenced.knows(a.writer, a.time))
          bad("wgmma reads byte ", i * kAtom, " of shared memory, which ", name_of(a.writer),
              " has written, with no proxy fence between");
      }
      w.known = a;
    }
    add_read(b, a, last_read, actor_of_products(warp), time);
  }
}

void check_write(const void* p, std::size_t bytes) { note_write(p, bytes, own_actor(), block->current->time, false); }

void check_read(const void* p, std::size_t bytes) {
  Block& b = *block;
  const std::size_t offset = offset_in(b, p, bytes, "reads");
  const int me = own_actor();
  Thread& t = *b.current;
  Atom* const atoms = b.atoms.data();
  const Atom* checked = nullptr;  // neighbours that were written with it need no check of their own
  for (std::size_t i = offset / kAtom; i < (offset + bytes + kAtom - 1) / kAtom; ++i) {
    Atom& a = atoms[i];
    if (!checked || !a.written_with(*checked)) {
      if (a.time < b.began) [[unlikely]]
        bad("reads byte ", i * kAtom, " of shared memory, which nobody has written");
      if (a.in_flight) [[unlikely]]
        bad("reads byte ", i * kAtom, " of shared memory, for which no thread has waited since its cp.async");
      if (a.writer < kFirstThread || !t.knowledge.done.knows_all(a.time)) check_written(b, a, i, "reads", me);
      checked = &a;
    }
    add_read(b, a, t.last_read, me, t.time);
  }
}

void check_16(const void* p) {
  if (const auto at = static_cast<const unsigned char*>(p) - block->shared; at % 16 != 0)
    bad("takes 16 bytes at once from byte ", static_cast<int64_t>(at), " of shared memory; need a multiple of 16");
}

// -- cp.async -----------------------------------------------------------------------------------------------------

void cp_async(void* to, const void* from, bool valid) {
  Thread& me = *block->current;
  if (offset_of(to, 16, "cp.async writes") % 16 || reinterpret_cast<std::uintptr_t>(from) % 16)
    bad("cp.async: both addresses must be multiples of 16 bytes");
  note_write(to, 16, own_actor(), me.time, true);
  std::memset(to, 0xff, 16);
  me.copies.push_back({static_cast<unsigned char*>(to), from, valid});
  ++me.open;
}

void cp_async_commit(Site at) {
  if (left_out("cp.async.commit_group", at)) return;
  Thread& me = *block->current;
  me.groups.push_back(me.open);
  me.open = 0;
}

void cp_async_wait(int groups_left, Site at) {
  if (left_out("cp.async.wait_group", at)) return;
  Thread& me = *block->current;
  std::size_t arrived = 0;
  while (me.groups.size() > static_cast<std::size_t>(groups_left)) {
    arrived += me.groups.front();
    me.groups.erase(me.groups.begin());
  }
  for (std::size_t i = 0; i < arrived; ++i) {
    const Copy& c = me.copies[i];
    for (std::size_t at = offset_of(c.to, 16, "") / kAtom, end = at + 16 / kAtom; at < end; ++at)
      block->atoms[at].in_flight = false;
    note_write(c.to, 16, own_actor(), me.time, false);
    if (c.valid) std::memcpy(c.to, c.from, 16);
    else std::memset(c.to, 0, 16);
  }
  me.copies.erase(me.copies.begin(), me.copies.begin() + static_cast<std::ptrdiff_t>(arrived));
}

// -- places -------------------------------------------------------------------------------------------------------

unsigned char* dynamic_shared() { return block->shared; }

unsigned char* static_shared(const void* key, std::size_t bytes) {
  Block& b = *block;
  for (const auto& [known, offset] : b.statics)
    if (known == key) return b.shared + offset;
  const std::size_t offset = (b.bytes + 127) / 128 * 128;
  if (offset + bytes > kSharedBytes)
    bad("needs ", offset + bytes, " bytes of shared memory; a block has ", kSharedBytes);
  b.bytes = offset + bytes;
  b.statics.emplace_back(key, offset);
  std::memset(b.shared + offset, 0xff, bytes);
  return b.shared + offset;
}

}  // namespace sluice::cuda::emulator
