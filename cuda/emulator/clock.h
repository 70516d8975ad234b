// What happened before what in a block: vector clocks. Those who touch shared memory are actors: threads; an mbarrier,
// for what TMA brings to it; the products of a warp, which read their operands by themselves. The block has one time,
// which grows whenever an actor tells others of its work.
//
//   a release (arrive)   the barrier's clock joins the thread's, and time goes on
//   an acquire (wait)    the thread's clock joins the barrier's
//   a touch (actor, time) is ordered before what a thread does now if the thread's clock knows it
//
// Two touches of which neither is known to the other race, whatever order the schedule gave them (FastTrack; Flanagan
// and Freund 2009).
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace sluice::cuda::emulator {

constexpr int kMbarriers = 64, kWarps = 32, kThreads = 1024;  // the most that a block has
constexpr int kFirstThread = kMbarriers + kWarps, kActors = kFirstThread + kThreads;

static_assert(kFirstThread % 32 == 0 && kActors % 32 == 0 && kActors <= 64 * 32);  // Clock has whole groups of 32

constexpr int actor_of_mbarrier(int number) { return number; }
constexpr int actor_of_products(int warp) { return kMbarriers + warp; }
constexpr int actor_of_thread(int number) { return kFirstThread + number; }

class Clock {
 public:
  bool knows(int actor, uint32_t time) const {
    return (actor >= kFirstThread && knows_all(time)) || time <= until_[static_cast<std::size_t>(actor)];
  }
  /// True if it knows all that threads did until `time`.
  bool knows_all(uint32_t time) const { return time < all_; }
  void learn(int actor, uint32_t time) {
    groups_ |= uint64_t{1} << actor / 32;
    uint32_t& until = until_[static_cast<std::size_t>(actor)];
    until = std::max(until, time);
  }
  /// All that threads did before `time`.
  void learn_all(uint32_t time) { all_ = time, groups_ &= (uint64_t{1} << kFirstThread / 32) - 1; }
  void join(const Clock& other) {
    all_ = std::max(all_, other.all_), groups_ |= other.groups_;
    for (uint64_t rest = other.groups_; rest; rest &= rest - 1) {
      const auto first = static_cast<std::size_t>(std::countr_zero(rest)) * 32;
      for (std::size_t i = first; i < first + 32; ++i) until_[i] = std::max(until_[i], other.until_[i]);
    }
  }
  /// Forgets everything, if learn_all() was never called.
  void clear() {
    all_ = 0;
    for (; groups_; groups_ &= groups_ - 1)
      std::fill_n(until_.begin() + 32 * std::countr_zero(groups_), 32, uint32_t{0});
  }

 private:
  uint32_t all_ = 0;
  uint64_t groups_ = 0;  // of 32 actors, those that join() looks at
  std::array<uint32_t, kActors> until_{};
};

/// What a thread or a barrier knows: what is done, and of that what a proxy fence has made visible to TMA and wgmma.
struct Knowledge {
  Clock done, fenced;
  void join(const Knowledge& other) { done.join(other.done), fenced.join(other.fenced); }
  void clear() { done.clear(), fenced.clear(); }
};

}  // namespace sluice::cuda::emulator
