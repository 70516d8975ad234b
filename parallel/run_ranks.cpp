// Ranks that are threads of one process. Messages are copies in mailboxes.
#include <sluice/core/node.h>
#include <sluice/ops/gemm/precision.h>
#include <sluice/parallel/communicator.h>
#include <sluice/parallel/sequence.h>

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>

namespace sluice {

namespace {

using Message = std::vector<std::byte>;
using Clock = std::chrono::steady_clock;
constexpr const char* kNoMemory = "out of memory";  // a std::string of it needs none

/// The state that the threads share.
struct Hub {
  struct Box {
    std::condition_variable arrived;
    std::map<std::pair<int, int>, std::deque<Message>> messages;  // by sender and tag
  };
  explicit Hub(int ranks) : boxes(static_cast<std::size_t>(ranks)), ended(boxes.size()) {}

  /// Keeps the current exception, with which the function of `rank` ended. Adds the rank to the text of `error`,
  /// which is this exception or null.
  void rank_failed(int rank, const char* why, Error* error = nullptr) noexcept {
    std::string text = kNoMemory;
    try {
      text = str("rank ", rank, " failed: ", why);
      if (error && boxes.size() > 1)  // the type stays
        static_cast<std::runtime_error&>(*error) = std::runtime_error(str(why, " — on rank ", rank));
    } catch (...) {}  // the exception of the caller is kept
    std::lock_guard lock(mutex);
    if (!first) first = std::current_exception();
    fail(std::move(text), 1);
  }
  // Callers of fail() and notify() must hold the mutex.
  void fail(std::string why, double grace) noexcept {
    failure.set(std::move(why), grace);
    notify();
  }
  void notify() {
    for (Box& b : boxes) b.arrived.notify_all();
  }

  std::mutex mutex;
  std::deque<Box> boxes;
  std::map<int, std::vector<detail::Waiting>> waiting;
  std::vector<bool> ended;
  detail::Failure failure;
  std::exception_ptr first;  // that the function of a rank threw
};

class ThreadRank final : public Transport {
 public:
  ThreadRank(std::shared_ptr<Hub> hub, int rank) : hub_(std::move(hub)), rank_(rank) {}
  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(hub_->boxes.size()); }
  void fail_all(const std::string& why) override {
    std::lock_guard lock(hub_->mutex);
    hub_->fail(why, 1);
  }
  void throw_if_failed() override {
    std::lock_guard lock(hub_->mutex);
    hub_->failure.throw_if_due();
  }

  void exchange(int tag, std::span<const Outgoing> sends, std::span<const Incoming> receives,
                const Patience& patience) override {
    std::vector<Message> copies;
    for (const Outgoing& s : sends) copies.emplace_back(s.data, s.data + s.bytes);
    std::unique_lock lock(hub_->mutex);
    hub_->failure.throw_if_due();
    for (std::size_t i = 0; i < sends.size(); ++i) {
      Hub::Box& box = hub_->boxes[static_cast<std::size_t>(sends[i].to)];
      box.messages[{rank_, tag}].push_back(std::move(copies[i]));
      box.arrived.notify_all();
    }
    const auto deadline = Clock::now() + detail::seconds(patience.seconds);
    for (const Incoming& r : receives) {
      const Message m = take(lock, tag, r.from, patience, deadline);
      if (m.size() != r.bytes)
        fail<CommunicationError>(patience.op, ": rank ", r.from, " sent ", m.size(), " bytes to rank ", rank_,
                                 ", which expected ", r.bytes);
      lock.unlock();
      if (r.bytes > 0) std::memcpy(r.data, m.data(), r.bytes);
      lock.lock();
    }
  }

 private:
  Message take(std::unique_lock<std::mutex>& lock, int tag, int from, const Patience& patience,
               Clock::time_point deadline) {
    Hub::Box& box = hub_->boxes[static_cast<std::size_t>(rank_)];
    std::deque<Message>& queue = box.messages[{from, tag}];
    if (queue.empty()) {
      auto& mine = hub_->waiting[rank_];
      mine.push_back({patience.op, {from}});
      while (queue.empty() && !*patience.cancel) {
        const auto now = Clock::now();
        const bool gone = hub_->ended[static_cast<std::size_t>(from)];
        if (gone) hub_->fail(str(patience.op, ": rank ", from, " has ended"), 0);
        else if (now >= deadline) hub_->fail(detail::blame(rank_, hub_->waiting, patience.seconds), 0);
        if (gone || hub_->failure.due()) break;
        box.arrived.wait_for(lock, std::chrono::milliseconds(50));
      }
      auto& all = hub_->waiting[rank_];
      for (std::size_t i = 0; i < all.size(); ++i)
        if (all[i].op == patience.op && all[i].ranks[0] == from) {
          all.erase(all.begin() + static_cast<std::ptrdiff_t>(i));
          break;
        }
      if (all.empty()) hub_->waiting.erase(rank_);
      if (queue.empty())
        fail<CommunicationError>(hub_->failure ? hub_->failure.why() : str(patience.op, ": given up by rank ", rank_));
    }
    Message m = std::move(queue.front());
    queue.pop_front();
    if (queue.empty()) box.messages.erase({from, tag});  // each split() has a tag of its own
    return m;
  }

  std::shared_ptr<Hub> hub_;
  int rank_;
};

/// Calls f as this rank. Throws nothing.
void run_rank(const std::shared_ptr<Hub>& hub, int rank, const std::function<void(const Communicator&)>& f) {
  try {
    f(hub->boxes.size() == 1 ? Communicator() : Communicator(std::make_shared<ThreadRank>(hub, rank)));
  } catch (const CommunicationError& e) { hub->rank_failed(rank, e.what()); } catch (Error& e) {
    hub->rank_failed(rank, e.what(), &e);
  } catch (const std::exception& e) { hub->rank_failed(rank, e.what()); } catch (...) {
    hub->rank_failed(rank, "an exception of another kind");
  }
  std::lock_guard lock(hub->mutex);
  hub->ended[static_cast<std::size_t>(rank)] = true;
  hub->notify();
}

}  // namespace

void run_ranks(int ranks, const std::function<void(const Communicator&)>& f) {
  if (!f) fail<ValueError>("run_ranks: the function is empty");
  if (ranks < 1 || ranks > 256) fail<ValueError>("run_ranks: needs 1 to 256 ranks — got ", ranks);
  const auto hub = std::make_shared<Hub>(ranks);
  const auto one = [&, records = grad_enabled(), exactness = precision()](int rank) {  // computes as the caller would
    const GradMode mode(records);
    const PrecisionScope products(exactness);
    const SequenceScope whole;  // ranks within ranks do not inherit a cut sequence
    run_rank(hub, rank, f);
  };
  std::vector<std::thread> threads;
  int started = 1;
  try {
    for (; started < ranks; ++started) threads.emplace_back(one, started);
    one(0);
  } catch (const std::exception& e) {  // one() throws nothing
    std::lock_guard lock(hub->mutex);
    try {
      hub->first =
          std::make_exception_ptr(MemoryError(str("run_ranks: rank ", started, " could not be started: ", e.what())));
    } catch (...) { hub->first = std::current_exception(); }
    hub->fail(kNoMemory, 0);
  }
  for (std::thread& t : threads) t.join();
  if (hub->first) std::rethrow_exception(hub->first);
}

}  // namespace sluice
