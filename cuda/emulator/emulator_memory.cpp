// Checks of shared memory: records which thread touched which bytes since the last barrier, and copies under way.
#include <sluice/cuda/emulator/emulator_state.h>

#include <cstring>

namespace sluice::cuda::emulator {

namespace {

/// True if a barrier separates `a` from `mine`, the running thread's touch, or if both are of the same thread.
bool separated(const Touch& a, const Touch& mine) {
  if (a.interval != mine.interval) return true;
  if (a.warps || a.thread / 32 != mine.thread / 32) return false;
  return a.warp_interval != mine.warp_interval || (!a.lanes && a.thread == mine.thread);
}
Touch touch(const Block& b) {
  const Thread& me = *b.current;
  return {b.interval, b.warps[static_cast<std::size_t>(me.number / 32)].interval, static_cast<int16_t>(me.number)};
}
std::size_t offset_in(const Block& b, const void* p, std::size_t bytes, const char* what) {
  const auto offset = static_cast<const unsigned char*>(p) - b.shared;
  if (offset < 0 || static_cast<std::size_t>(offset) + bytes > b.bytes) [[unlikely]]
    bad(what, " byte ", static_cast<int64_t>(offset), " of shared memory; the block has ", b.bytes);
  return static_cast<std::size_t>(offset);
}

void note_write(const void* p, std::size_t bytes, bool in_flight) {
  Block& b = *block;
  const std::size_t offset = offset_in(b, p, bytes, "writes");
  const Touch mine = touch(b);
  for (std::size_t i = offset / kAtom; i < (offset + bytes + kAtom - 1) / kAtom; ++i) {
    Atom& a = b.atoms[i];
    if (!separated(a.write, mine)) [[unlikely]]
      bad("writes byte ", i * kAtom, " of shared memory, as did thread ", static_cast<int>(a.write.thread),
          ", with no barrier between");
    if (!separated(a.read, mine)) [[unlikely]]
      bad("writes byte ", i * kAtom, " of shared memory, which thread ", static_cast<int>(a.read.thread),
          " or another has read, with no barrier between");
    a.write = mine, a.in_flight = in_flight;
  }
}

}  // namespace

std::size_t offset_of(const void* p, std::size_t bytes, const char* what) { return offset_in(*block, p, bytes, what); }

void cp_async(void* to, const void* from, bool valid) {
  Thread& me = *block->current;
  if (offset_of(to, 16, "cp.async writes") % 16 || reinterpret_cast<std::uintptr_t>(from) % 16)
    bad("cp.async: both addresses must be multiples of 16 bytes");
  note_write(to, 16, true);
  std::memset(to, 0xff, 16);
  me.copies.push_back({static_cast<unsigned char*>(to), from, valid});
  ++me.open;
}

void cp_async_commit() {
  Thread& me = *block->current;
  me.groups.push_back(me.open);
  me.open = 0;
}

void cp_async_wait(int groups_left) {
  Thread& me = *block->current;
  std::size_t arrived = 0;
  while (me.groups.size() > static_cast<std::size_t>(groups_left)) {
    arrived += me.groups.front();
    me.groups.erase(me.groups.begin());
  }
  for (std::size_t i = 0; i < arrived; ++i) {
    const Copy& c = me.copies[i];
    note_write(c.to, 16, false);
    if (c.valid) std::memcpy(c.to, c.from, 16);
    else std::memset(c.to, 0, 16);
  }
  me.copies.erase(me.copies.begin(), me.copies.begin() + static_cast<std::ptrdiff_t>(arrived));
}

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

void check_read(const void* p, std::size_t bytes) {
  Block& b = *block;
  const std::size_t offset = offset_in(b, p, bytes, "reads");
  const Touch mine = touch(b);
  for (std::size_t i = offset / kAtom; i < (offset + bytes + kAtom - 1) / kAtom; ++i) {
    Atom& a = b.atoms[i];
    if (a.write.interval < b.first_interval) [[unlikely]]
      bad("reads byte ", i * kAtom, " of shared memory, which nobody has written");
    if (a.in_flight) [[unlikely]]
      bad("reads byte ", i * kAtom, " of shared memory, for which no thread has waited since its cp.async");
    if (!separated(a.write, mine)) [[unlikely]]
      bad("reads byte ", i * kAtom, " of shared memory, which thread ", static_cast<int>(a.write.thread),
          " has written, with no barrier between");
    Touch& r = a.read;
    if (r.interval != mine.interval) r = mine;
    else if (r.thread / 32 != mine.thread / 32) r.warps = true;
    else if (r.warp_interval != mine.warp_interval)
      r.warp_interval = mine.warp_interval, r.thread = mine.thread, r.lanes = false;
    else if (r.thread != mine.thread) r.lanes = true;
  }
}

void check_16(const void* p) {
  if (const auto at = static_cast<const unsigned char*>(p) - block->shared; at % 16 != 0)
    bad("takes 16 bytes at once from byte ", static_cast<int64_t>(at), " of shared memory; need a multiple of 16");
}

void check_write(const void* p, std::size_t bytes) { note_write(p, bytes, false); }

}  // namespace sluice::cuda::emulator
