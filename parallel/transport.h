// Interface of an engine: it moves bytes between numbered ranks and names the ranks that keep others waiting. Engines:
// the threads of one process (run_ranks in communicator.h), MPI (parallel/mpi). Everything else is built on exchange().
#pragma once

#include <sluice/core/error.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace sluice {

/// Ranks disagree, have died, or did not come in time.
struct CommunicationError : Error {
  using Error::Error;
  int speaker = -1;  // if a whole group throws: the world rank that prints the error; else −1
};

struct Outgoing {
  int to;
  const std::byte* data;
  std::size_t bytes;
};
struct Incoming {
  int from;
  std::byte* data;
  std::size_t bytes;
};

/// One rank's end of an engine. Ranks are numbered in the whole job, not in a group.
class Transport {
 public:
  virtual ~Transport() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  struct Patience {
    const char* op;                   // for the messages of errors
    double seconds;                   // to wait for other ranks
    const std::atomic<bool>* cancel;  // exchange() throws soon after this becomes true
  };
  /// Does all `sends` and `receives` and returns when every buffer may be used again. Messages from one rank to another
  /// under one tag arrive in the order of sending; sender and receiver must know the sizes. Threads may call it at the
  /// same time with different tags. Throws CommunicationError if a rank has failed or time is up. If time is up, all
  /// other waiting ranks throw the same message, which names the ranks that did not come.
  virtual void exchange(int tag, std::span<const Outgoing> sends, std::span<const Incoming> receives,
                        const Patience& patience) = 0;
  /// Throws the error that exchange() would throw if some rank has failed.
  virtual void throw_if_failed() = 0;
  /// Reports that this rank cannot go on: waits of the other ranks, now and later, throw `why`.
  virtual void fail_all(const std::string& why) = 0;

  /// Groups of this rank use the tags below this one.
  std::atomic<int> free_tag = 1;
};

namespace detail {

/// A span of the clock that waits go by, at most 1e9 seconds.
std::chrono::steady_clock::duration seconds(double s);

/// Why the ranks of a job have failed. The first reason stays. The engine guards it.
class Failure {
 public:
  /// Ranks that wait already go on for `grace` seconds: their messages may be on the way, as when all ranks find at the
  /// same time that they disagree.
  void set(std::string why, double grace) noexcept {
    if (why_.empty()) why_ = std::move(why), due_ = std::chrono::steady_clock::now() + seconds(grace);
  }
  explicit operator bool() const { return !why_.empty(); }
  const std::string& why() const { return why_; }
  /// True when every call must throw it.
  bool due() const { return !why_.empty() && std::chrono::steady_clock::now() >= due_; }
  void throw_if_due() const {
    if (due()) fail<CommunicationError>(why_);
  }

 private:
  std::string why_;
  std::chrono::steady_clock::time_point due_;
};

/// The op in which a rank waits, and the ranks for which it waits.
struct Waiting {
  std::string op;
  std::vector<int> ranks;
};
/// Returns the error message for `rank`, which has waited too long, given all ranks that are known to wait. It names
/// the ranks at the end of the chain of waits, which do not wait themselves, or says that all wait for one another.
std::string blame(int rank, const std::map<int, std::vector<Waiting>>& waiting, double seconds);
/// "rank 2", "ranks 2, 3 and 5".
std::string name_ranks(const std::vector<int>& ranks);

}  // namespace detail
}  // namespace sluice
