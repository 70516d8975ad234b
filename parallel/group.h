// One rank's state in a group: the members, the order of this rank's calls, and their traffic.
#pragma once

#include <sluice/core/dtype.h>
#include <sluice/core/kernel/link.h>
#include <sluice/core/memory/no_copy.h>
#include <sluice/core/shape.h>
#include <sluice/parallel/communicator.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace sluice::detail {

/// FNV-1a, which is the same on every machine: ranks may have been built with different standard libraries.
uint64_t hash_of(std::string_view text);

/// A call that a rank is about to make. `text` must be the same on all ranks; length and flags are sent to all ranks.
struct Call {
  const char* op;
  std::string text;
  int64_t length = 0, flags = 0;
};
struct PeerCall {
  uint64_t hash = 0;
  int64_t length = 0, flags = 0;
};

/// The first of the ranks whose value is the most frequent one.
template <class T> std::size_t usual_rank(const std::vector<T>& values) {
  std::vector<std::ptrdiff_t> votes;
  for (const T& v : values) votes.push_back(std::count(values.begin(), values.end(), v));
  return static_cast<std::size_t>(std::max_element(votes.begin(), votes.end()) - votes.begin());
}

/// A call that runs in the background.
struct Job {
  std::function<void()> run;
  bool done = false;  // guarded by Group::mutex_
  std::exception_ptr error;
};

class Group : private NoCopy {
 public:
  /// What messages are about. Each kind has a tag of its own: a rank that failed alone (its memory was
  /// used up) and went on to its next call sends an agreement, which others must not take for the data that they wait
  /// for; and a roll call comes while data is under way.
  enum class Talk { data, agreement, roll_call };
  static constexpr int kTags = 3;

  Group(std::shared_ptr<Transport> transport, std::vector<int> members, int rank, int tag, double timeout);
  ~Group();

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(members_.size()); }
  int world_rank(int rank) const { return members_[static_cast<std::size_t>(rank)]; }
  double timeout() const { return timeout_; }
  void set_timeout(double seconds);

  /// Waits for all background calls, then runs a collective on this thread.
  void call(const std::function<void()>& f);
  /// Runs f in the background, after all calls that were started before.
  std::shared_ptr<Job> start(std::function<void()> f);
  void wait(Job& job);
  bool done(const Job& job);

  // -- inside a call; ranks are those of the group ------------------------------------------------------------------
  /// Compares the calls of all ranks and returns them by rank. CommunicationError on all ranks if the texts differ.
  std::vector<PeerCall> agree(const Call& call);
  /// Sends and receives memory of `device`, which must be the host or a device for which linked() is true.
  void exchange(const char* kind, std::vector<Outgoing> sends, std::vector<Incoming> receives, Device device = cpu);
  /// Sends to every other rank what to(rank) says, and receives what from(rank) says; messages of no bytes are left
  /// out.
  void exchange_all(const char* kind, const std::function<Outgoing(int)>& to, const std::function<Incoming(int)>& from,
                    Device device = cpu);
  /// True if tensors of `device` go directly from rank to rank; false if they go through the host. All ranks must call
  /// it. The first call makes the link if every rank can. The answer is the same on all ranks.
  bool linked(Device device);
  /// blocks[r], of `bytes` each, becomes the block of rank r; the caller must fill in blocks[rank()]. ⌈log2 size⌉
  /// rounds, counted as "agreement". patience: seconds to wait for other ranks; 0 stands for timeout().
  void gather_blocks(const char* op, std::byte* blocks, std::size_t bytes, double patience = 0,
                     Talk talk = Talk::agreement);

  /// Throws an error that all ranks of the group throw; the first rank prints it.
  [[noreturn]] void fail_together(const std::string& what);

  /// What linked() found: "NCCL 2.28.9", or "host: rank 1: libnccl.so.2: cannot open …". Empty before its first call.
  std::string link_text() const;
  Traffic traffic() const;
  /// traffic().total().bytes
  int64_t sent_bytes() const;
  void reset_traffic();
  std::shared_ptr<Group> split(int color, int key);

 private:
  struct LinkTrial;
  void move(const char* kind, const char* op, std::vector<Outgoing>& sends, std::vector<Incoming>& receives,
            Device device, double patience, Talk talk);
  void move_linked(const char* op, const std::vector<Outgoing>& sends, const std::vector<Incoming>& receives);
  std::function<void()> watch(const char* op, bool joining = false);
  void make_link(Device device);
  void work();
  [[noreturn]] void fail_disagreement(const Call& call, const std::vector<PeerCall>& told);

  const std::shared_ptr<Transport> transport_;  // null in a group of one
  const std::vector<int> members_;              // world ranks
  const int rank_, tag_;                        // the first of its kTags
  std::atomic<double> timeout_;
  std::atomic<bool> cancel_ = false;

  mutable std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Job>> queue_;  // the first job is running
  std::thread worker_;
  bool stop_ = false;
  Traffic traffic_;
  std::unique_ptr<DeviceLink> link_;  // used inside calls only
  bool link_tried_ = false;
  std::string link_text_;
};

/// The text of dtype and shape in messages. The length of `free_dim` may differ between ranks and is shown as *.
std::string signature(DType dtype, const Shape& shape, int free_dim = -1);

}  // namespace sluice::detail
