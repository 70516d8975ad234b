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

/// The set without its last reads that the running thread knows: who knows what it reads now knows those, too.
uint32_t without_known(const Block& b, uint32_t set, uint32_t time) {
  const Clock& done = b.current->knowledge.done;
  const Reading* r = reading_of(b, set);
  if (r && !r->by_itself && done.knows_all(r->latest)) return 0;
  for (; r && (r->actor == own_actor() ? r->time != time : done.knows(r->actor, r->time)); r = reading_of(b, set))
    set = r->earlier;
  return set;
}

uint32_t with_reading(Block& b, uint32_t set, int actor, uint32_t time, bool first);

/// What with_reading() finds if it has kept no answer.
[[gnu::noinline]] uint32_t with_new_reading(Block& b, uint32_t set, int actor, uint32_t time, bool first) {
  if (actor >= kFirstThread)
    if (const uint32_t rest = without_known(b, set, time); rest != set)
      return with_reading(b, rest, actor, time, first);
  const Reading* const before = reading_of(b, set);
  for (const Reading* r = first ? nullptr : before; r && r->added >= time; r = reading_of(b, r->earlier))
    if (r->actor == actor && r->time == time) return set;
  return add_reading(b, before && before->count > 2 * kActors ? shortened(b, set) : set, actor, time);
}

/// The set, and a read of `actor` at `time`, its `first` one then or not. One thread after the other reads the atoms of
/// a tile, so the same set is asked for again and again; the last answers are kept, those about neighbouring sets
/// beside each other.
uint32_t with_reading(Block& b, uint32_t set, int actor, uint32_t time, bool first) {
  if (set < b.first_reading) set = 0;
  Block::Answer& a = b.answers[(set + 61 * static_cast<uint32_t>(actor)) % b.answers.size()];
  if (a.set != set || a.time != time || a.actor != actor || a.with < b.first_reading) [[unlikely]]
    a = {set, time, with_new_reading(b, set, actor, time, first), actor};
  return a.with;
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

// -- touches ----------------------------------------------------------------------------------------------------

/// DeviceError: a touch of atom i does not know of its last write.
[[noreturn]] void bad_touch(const char* who_touches, std::size_t i, const Write& w) {
  bad(who_touches, " byte ", i * kAtom, " of shared memory, which ",
      w.time == kNever ? "TMA still brings" : str(name_of(w.writer), " has written, with no barrier between"));
}
void check_written(const Write& w, std::size_t i, const char* verb) {
  if (w.writer != own_actor() && !block->current->knowledge.done.knows(w.writer, w.time)) [[unlikely]]
    bad_touch(verb, i, w);
}

/// The work of note_read() for an atom that was not touched like the one before.
template <class Check>
[[gnu::noinline]] void note_other_read(Block& b, std::size_t i, LastRead& last, int actor, uint32_t now, Check check) {
  Atom& a = b.atoms[i];
  if (a.write < b.first_write || a.write != last.atom.write)
    check(a.write < b.first_write ? nullptr : &b.write(a.write), i);
  else if (a.readers == last.with && now == last.time) return;  // read before
  last = {a, with_reading(b, a.readers, actor, now, now != last.time), now};
  a.readers = last.with;
}

/// Adds a read of `actor` at `now` to the atoms of [offset, offset + bytes), after check(last write or null, atom) for
/// each that was not written with the one before.
template <class Check>
void note_read(Block& b, std::size_t offset, std::size_t bytes, LastRead& last, int actor, uint32_t now, Check check) {
  for (std::size_t i = offset / kAtom; i < (offset + bytes + kAtom - 1) / kAtom; ++i) {
    Atom& a = b.atoms[i];
    if (a == last.atom && now == last.time) [[likely]]
      a.readers = last.with;
    else note_other_read(b, i, last, actor, now, check);
  }
}

}  // namespace

std::size_t offset_of(const void* p, std::size_t bytes, const char* what) { return offset_in(*block, p, bytes, what); }

uint32_t add_write(const Write& write) {
  Block& b = *block;
  b.writes.push_back(write);
  return b.first_write + static_cast<uint32_t>(b.writes.size() - 1);
}

uint32_t own_write(bool in_flight) {
  Block& b = *block;
  uint32_t& last = b.current->last_writes[in_flight];
  if (last < b.first_write || b.write(last).time != b.current->time)
    last = add_write({b.current->time, static_cast<int16_t>(own_actor()), in_flight});
  return last;
}

void note_write(const void* p, std::size_t bytes, uint32_t write) {
  Block& b = *block;
  const std::size_t offset = offset_in(b, p, bytes, "writes");
  const bool by_tma = b.write(write).writer < kFirstThread;
  Atom checked;  // neighbours that were touched with it need no check of their own
  for (std::size_t i = offset / kAtom; i < (offset + bytes + kAtom - 1) / kAtom; ++i) {
    Atom& a = b.atoms[i];
    if (a != checked) {
      if (a.write >= b.first_write) {
        const Write& w = b.write(a.write);
        if (w.in_flight)
          bad("writes byte ", i * kAtom, " of shared memory, which a cp.async of ", name_of(w.writer), " still brings");
        check_written(w, i, "writes");
        if (by_tma && w.writer >= kFirstThread && !b.current->knowledge.fenced.knows(w.writer, w.time))
          bad("starts TMA to byte ", i * kAtom, " of shared memory, which ", name_of(w.writer),
              " has written, with no proxy fence between");
      }
      if (const int reader = unknown_reader(b, a.readers); reader >= 0) [[unlikely]]
        bad("writes byte ", i * kAtom, " of shared memory, which ", name_of(reader),
            " or another has read, with no barrier between");
      checked = a;
    }
    a = {write, 0};
  }
}

void note_operand(std::size_t offset) {
  Block& b = *block;
  if (offset + 16 > b.bytes) bad("wgmma reads byte ", offset, " of shared memory; the block has ", b.bytes);
  const int warp = b.current->number / 32;
  Warp& w = b.warps[static_cast<std::size_t>(warp)];
  note_read(b, offset, 16, w.last_read, actor_of_products(warp), w.open.time, [&](const Write* written, std::size_t i) {
    if (!written) bad("wgmma reads byte ", i * kAtom, " of shared memory, which nobody has written");
    const auto [time, writer, in_flight] = *written;
    for (int lane = 0; lane < 32; ++lane) {
      const Thread& t = *b.threads[static_cast<std::size_t>(warp * 32 + lane)];
      if (in_flight || (writer != actor_of_thread(t.number) && !t.knowledge.done.knows(writer, time)))
        bad_touch("wgmma reads", i, *written);
      if (writer >= kFirstThread && !t.knowledge.fenced.knows(writer, time))
        bad("wgmma reads byte ", i * kAtom, " of shared memory, which ", name_of(writer),
            " has written, with no proxy fence between");
    }
  });
}

void check_write(const void* p, std::size_t bytes) { note_write(p, bytes, own_write()); }

void check_read(const void* p, std::size_t bytes) {
  Block& b = *block;
  Thread& t = *b.current;
  note_read(b, offset_in(b, p, bytes, "reads"), bytes, t.last_read, own_actor(), t.time,
            [](const Write* w, std::size_t i) {
              if (!w) bad("reads byte ", i * kAtom, " of shared memory, which nobody has written");
              if (w->in_flight)
                bad("reads byte ", i * kAtom, " of shared memory, for which no thread has waited since its cp.async");
              check_written(*w, i, "reads");
            });
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
  note_write(to, 16, own_write(true));
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
      block->atoms[at].write = own_write();
    note_write(c.to, 16, own_write());
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
