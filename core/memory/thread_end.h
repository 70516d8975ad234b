// What a thread leaves in order when it ends.
//
// The destructor of a thread_local object would be the usual way. But glibc takes memory when such an object is made,
// to note its destructor, and ends the process if there is none: a thread that starts at the limit of memory could not
// throw a MemoryError. A note here takes no memory.
#pragma once

namespace sluice::detail {

/// Something to be done when a thread ends; a thread_local object without a destructor.
struct ThreadEnd {
  void (*run)() noexcept;
  bool noted = false;
  ThreadEnd* next = nullptr;
};

/// Runs `end` when this thread ends, after the destructors of its thread_local objects; if `end` is noted again while
/// the thread ends, it runs again. The main thread does not end before its process. Returns false if nothing can be
/// noted, as while the library is unloaded.
bool note_thread_end(ThreadEnd& end) noexcept;
/// note_thread_end(end), unless `end` is noted already.
inline bool at_thread_end(ThreadEnd& end) noexcept { return end.noted || note_thread_end(end); }

}  // namespace sluice::detail
