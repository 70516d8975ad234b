// A Communicator is a group of ranks, numbered from 0. One process alone is a group of one rank; its collectives cost
// nothing.
//
//   run_ranks(4, [&](const Communicator& all) {          // threads of this process; with MPI: world() in parallel/mpi
//     Tensor total = all_reduce(mine, all);
//   });
//
// Every rank must make the same calls on a group in the same order. Each call first compares, in one small message,
// what the ranks are about to do. If the ranks disagree, all of them throw the same message, which names the ranks that
// differ. If a rank dies or does not come within timeout(), the others throw a CommunicationError that names it.
#pragma once

#include <sluice/parallel/transport.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>

namespace sluice {

namespace detail {
class Group;
}

/// Counts of what a rank has sent to others and of the time it took, by kind of collective.
struct Traffic {
  /// The counts of one kind of call.
  struct Count {
    int64_t calls = 0, messages = 0, bytes = 0;  // bytes of values that this rank sent to others
    double seconds = 0;                          // spent in sending and receiving
  };
  std::map<std::string, Count> by_kind;  // "all_reduce", …; "agreement": the messages that compare calls
  Count total() const;                   // sum over all kinds but "agreement"
};

/// A group of ranks. Copies name the same group. On each rank, one thread at a time may call collectives of a group.
class Communicator {
 public:
  /// The group of this rank alone: one in a process, with one timeout and one count of traffic.
  Communicator();
  /// A group of all ranks of `engine`. Throws ValueError if `engine` is null.
  explicit Communicator(std::shared_ptr<Transport> engine);

  /// The number of this rank, from 0, and the number of ranks.
  int rank() const;
  int size() const;
  /// The number of `rank` in the whole job; messages name ranks by this number. ValueError unless 0 <= rank < size().
  int world_rank(int rank) const;

  /// Returns the group of all ranks that give the same color, ordered by key, then by rank. All ranks must call it.
  /// With one color the result has the same ranks, but its collectives do not wait for those of this group. Two threads
  /// of a rank must not split at the same time, not even different groups; DataParallel splits when it is made.
  Communicator split(int color, int key = 0) const;

  /// Returns when all ranks have called it.
  void barrier() const;
  /// Throws CommunicationError on all ranks unless `text` is the same on all. The message names the ranks that differ
  /// and shows the first line that differs. `what` names the thing compared.
  void check_same(const std::string& what, const std::string& text) const;

  /// Seconds to wait for other ranks: SLUICE_TIMEOUT of the environment, else 300. Groups made by split() inherit them.
  double timeout() const;
  void set_timeout(double seconds) const;

  /// How tensors of a device go from rank to rank: the name of the direct link ("NCCL 2.28.9"), or "host: " and the
  /// reason why there is no direct link. Empty until the group has exchanged tensors of a device.
  std::string device_link() const;

  /// A snapshot of this group's counts on this rank.
  Traffic traffic() const;
  void reset_traffic() const;

  /// True if both name the same group.
  friend bool operator==(const Communicator&, const Communicator&) = default;
  /// For the library's own use.
  detail::Group& group() const { return *group_; }

 private:
  explicit Communicator(std::shared_ptr<detail::Group> group) : group_(std::move(group)) {}
  std::shared_ptr<detail::Group> group_;
};

/// Runs f on `ranks` threads of this process, each of which is a rank. All compute as the calling thread would: with or
/// without gradients (NoGrad), in its precision, and outside any SequenceScope. When one rank throws, the collectives
/// of the others throw, too. Rethrows the first exception when all ranks have ended. The text of an Error then ends
/// with its rank, but for a CommunicationError, which names ranks itself. ValueError unless 1 <= ranks <= 256,
/// MemoryError if the system refuses a thread.
void run_ranks(int ranks, const std::function<void(const Communicator&)>& f);

}  // namespace sluice
