// Who works on a job: a group of ranks, numbered from 0. One process alone is a group of one, and every collective then
// costs nothing.
//
//   run_ranks(4, [&](const Communicator& all) {          // threads of this process; with MPI: world() in parallel/mpi
//     Tensor total = all_reduce(mine, all);
//   });
//
// Every rank must make the same calls on a group in the same order. Each call first compares, in one small message, what
// the ranks are about to do; ranks that disagree all fail with the same message, which names who disagrees. A rank that
// dies or does not come within timeout() ends the others with a CommunicationError that names it.
#pragma once

#include <sluice/parallel/transport.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

namespace sluice {

namespace detail {
class Group;
}

/// What a rank has sent to others, and how long it waited, by kind of collective.
struct Traffic {
  /// Of one kind of call.
  struct Count {
    int64_t calls = 0, messages = 0, bytes = 0;  // bytes of values that this rank sent to others
    double seconds = 0;                          // spent in sending and receiving
  };
  std::map<std::string, Count> by_kind;  // "all_reduce", …; "agreement": what calls compare before
  Count total() const;                   // of values: without agreement
};

/// A group of ranks. A value: copies name the same group. Collectives of a group are called from one thread of each
/// rank at a time.
class Communicator {
 public:
  /// Alone: one rank.
  Communicator();
  /// All ranks of an engine.
  explicit Communicator(std::shared_ptr<Transport> engine);

  /// This rank, from 0, and how many there are.
  int rank() const;
  int size() const;
  /// A rank's number in the whole job, which is what messages name.
  int world_rank(int rank) const;

  /// Groups of those ranks that give the same color, ordered by key, then by rank. All ranks call it. With the same color
  /// everywhere it is a group of its own, whose collectives do not wait for those of this one.
  Communicator split(int color, int key = 0) const;

  /// Returns when all ranks have come.
  void barrier() const;
  /// Throws CommunicationError on all ranks unless `text` is the same on all; the message names who differs and shows the
  /// first line in which. `what` says what is compared.
  void check_same(const std::string& what, const std::string& text) const;

  /// Seconds to wait for others: SLUICE_TIMEOUT of the environment, else 300. Groups split off later inherit it.
  double timeout() const;
  void set_timeout(double seconds) const;

  /// How tensors of a device go from rank to rank: "NCCL 2.28.9"; "host: " and why not directly; empty until some have.
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

/// Runs f on `ranks` threads of this process, each a rank. When one throws, the others' collectives do, too; the first
/// exception is rethrown when all have ended. ValueError unless 1 <= ranks <= 256.
void run_ranks(int ranks, const std::function<void(const Communicator&)>& f);

}  // namespace sluice
