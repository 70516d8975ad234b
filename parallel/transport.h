// What an engine must do to carry a job: move bytes between numbered ranks, and say who keeps them waiting. Engines: the
// threads of one process (run_ranks, in communicator.h), MPI (parallel/mpi). Everything else is built on exchange().
#pragma once

#include <sluice/core/error.h>

#include <atomic>
#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace sluice {

/// Ranks that disagree, die, or do not come.
struct CommunicationError : Error {
  using Error::Error;
  int speaker = -1;  // of an error that a whole group throws: the rank that should say so
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

/// One rank's end of an engine. Ranks are numbered through the whole job, whatever groups they form.
class Transport {
 public:
  virtual ~Transport() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  struct Patience {
    const char* op;                   // for the messages of errors
    double seconds;                   // to wait for others
    const std::atomic<bool>* cancel;  // set: stop waiting soon
  };
  /// Sends and receives all of these and returns when every buffer may be used again. Messages of one rank to another
  /// under one tag arrive in the order of their sending; both sides know their sizes. Threads may call it at the same
  /// time with different tags. CommunicationError when time is up — every other rank that waits then fails with the same
  /// message, which names the ranks that did not come — or when some rank has failed.
  virtual void exchange(int tag, std::span<const Outgoing> sends, std::span<const Incoming> receives,
                        const Patience& patience) = 0;
  /// Throws what exchange() would if some rank has failed.
  virtual void throw_if_failed() = 0;
  /// This rank cannot go on: whatever the others wait for throws `why`, now and later.
  virtual void fail_all(const std::string& why) = 0;

  /// Tags below are taken by groups of this rank.
  std::atomic<int> free_tag = 1;
};

namespace detail {

/// A rank that waits: in which op, and for whom.
struct Waiting {
  std::string op;
  std::vector<int> ranks;
};
/// What to say when `rank` has waited too long, given all ranks that are known to wait: the ranks at the end of the
/// chain, who wait for nobody; or that all wait for one another.
std::string blame(int rank, const std::map<int, std::vector<Waiting>>& waiting, double seconds);
/// "rank 2", "ranks 2, 3 and 5".
std::string name_ranks(const std::vector<int>& ranks);

}  // namespace detail
}  // namespace sluice
