// Ranks that are processes of MPI. Every call of MPI is short and made with one mutex held (MPI_THREAD_SERIALIZED). A
// waiting call polls, yields, and reads job notices.
#include <sluice/parallel/mpi/engine.h>

#include <mpi.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <list>
#include <mutex>
#include <set>
#include <thread>

#if defined(__linux__)
#include <sched.h>
#endif

namespace sluice::detail {

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::microseconds, std::chrono::milliseconds;

constexpr double kAnswerSeconds = 1;  // to answer who_waits; and for messages on the way when a rank has failed

void check(int code, const char* what) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(code, text, &length);
  fail<CommunicationError>(what, ": ", std::string_view(text, static_cast<std::size_t>(length)));
}

/// The largest MPI message in bytes; MPI's counts are int.
std::size_t largest_message() {
  const char* set = std::getenv("SLUICE_MPI_MESSAGE");
  if (!set || !*set) return std::size_t{1} << 30;
  int n = 0;
  const std::string_view text = set;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), n);
  if (error != std::errc() || end != text.data() + text.size() || n < 1 || n == INT_MAX)
    fail<ValueError>("SLUICE_MPI_MESSAGE: needs bytes from 1 to ", INT_MAX - 1, " — got \"", text, "\"");
  return static_cast<std::size_t>(n);
}

/// A message about the state of the job, which goes from rank to rank beside the data.
struct Notice {
  enum Kind : int { who_waits, waits, failed, ended } kind;
  double grace = 0;     // failed: seconds for which waiting calls go on
  int count = 0;        // waits: the number of `ranks`
  int ranks[16] = {};   // waits: the ranks for which the sender waits, at most the first 16
  char text[900] = "";  // waits: the op; failed: the reason
};

/// An exchange in which a thread of this process waits.
struct Wait {
  const char* op;
  std::vector<MPI_Request> requests;
  std::vector<int> peers;
  std::vector<int> expected;  // bytes that a receive must get; −1: a send
  Clock::time_point deadline = {},
                    found_end = {};  // when time is up; when a rank that is missing was seen to have ended
  bool asked = false;                // who_waits was sent

  std::vector<int> missing() const {
    std::set<int> ranks;
    for (std::size_t i = 0; i < requests.size(); ++i)
      if (requests[i] != MPI_REQUEST_NULL) ranks.insert(peers[i]);
    return {ranks.begin(), ranks.end()};
  }
};

class MpiEngine final : public Engine {
 public:
  MpiEngine() {
    int initialised = 0, level = 0;
    MPI_Initialized(&initialised);
    if (initialised) MPI_Query_thread(&level);
    else check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &level), "MPI_Init_thread");
    mine_ = !initialised;
    if (level < MPI_THREAD_SERIALIZED)
      fail<DeviceError>("world: MPI allows calls from one thread only; it must be started with MPI_THREAD_SERIALIZED");
    check(MPI_Comm_dup(MPI_COMM_WORLD, &data_), "MPI_Comm_dup");
    check(MPI_Comm_dup(MPI_COMM_WORLD, &notices_), "MPI_Comm_dup");
    MPI_Comm_set_errhandler(data_, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(notices_, MPI_ERRORS_RETURN);
    MPI_Comm_rank(data_, &rank_);
    MPI_Comm_size(data_, &size_);
    ended_.resize(static_cast<std::size_t>(size_));
    listen();
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  void exchange(int tag, std::span<const Outgoing> sends, std::span<const Incoming> receives,
                const Patience& patience) override {
    static const std::size_t most = largest_message();
    Wait wait{patience.op, {}, {}, {}};
    std::unique_lock lock(mutex_);
    refuse_if_failed();
    const auto add = [&](int peer, int expected) {
      wait.peers.push_back(peer), wait.expected.push_back(expected), wait.requests.push_back(MPI_REQUEST_NULL);
      return &wait.requests.back();
    };
    std::size_t bytes = 0;
    try {
      for (const Incoming& r : receives) {
        bytes += r.bytes;
        for (std::size_t at = 0; at < r.bytes; at += most) {
          const int count = static_cast<int>(std::min(most, r.bytes - at));
          check(MPI_Irecv(r.data + at, count, MPI_BYTE, r.from, tag, data_, add(r.from, count)), patience.op);
        }
      }
      for (const Outgoing& s : sends) {
        bytes += s.bytes;
        for (std::size_t at = 0; at < s.bytes; at += most)
          check(MPI_Isend(s.data + at, static_cast<int>(std::min(most, s.bytes - at)), MPI_BYTE, s.to, tag, data_,
                          add(s.to, -1)),
                patience.op);
      }
      if (!done(wait)) finish(wait, bytes, patience, lock);
    } catch (...) {
      waits_.remove(&wait);
      broken_ = true;  // MPI may still write to buffers that end here: no further exchange, only the end of the job
      throw;
    }
    waits_.remove(&wait);
  }

  void throw_if_failed() override {
    std::lock_guard lock(mutex_);
    refuse_if_failed();
  }

  void fail_all(const std::string& why) override {
    std::lock_guard lock(mutex_);
    if (!failure_) tell_failure(why, kAnswerSeconds);
  }

  std::string told_failure() override {
    std::lock_guard lock(mutex_);
    hear();
    return told_ ? failure_.why() : "";
  }

  int fair_threads() override {
    std::lock_guard lock(mutex_);
    MPI_Comm here;
    check(MPI_Comm_split_type(data_, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &here), "MPI_Comm_split_type");
    int count = 1;
    MPI_Comm_size(here, &count);
    const int even = std::max(1, static_cast<int>(std::thread::hardware_concurrency()) / count);
#if !defined(__linux__)  // processes are not bound to cores
    MPI_Comm_free(&here);
    return even;
#else
    cpu_set_t mine;
    CPU_ZERO(&mine);
    const bool known = sched_getaffinity(0, sizeof mine, &mine) == 0;  // not with more processors than it has bits
    std::vector<cpu_set_t> all(static_cast<std::size_t>(count));
    check(MPI_Allgather(&mine, sizeof mine, MPI_BYTE, all.data(), sizeof mine, MPI_BYTE, here), "MPI_Allgather");
    MPI_Comm_free(&here);
    int sharing = 0;
    for (const cpu_set_t& theirs : all) {
      cpu_set_t both;
      CPU_AND(&both, &mine, &theirs);
      sharing += CPU_COUNT(&both) > 0;
    }
    return known ? std::max(1, CPU_COUNT(&mine) / std::max(1, sharing)) : even;
#endif
  }

  void end_job(bool spoke) override {
    // Another rank may be about to print the error that all ranks have found.
    if (!spoke) std::this_thread::sleep_for(seconds(2 * kAnswerSeconds));
    {
      std::lock_guard lock(mutex_);
      flush_notices(0.2);
    }
    std::fflush(nullptr);
    MPI_Abort(MPI_COMM_WORLD, 1);
    std::_Exit(1);
  }

  /// At the end of the process: waits for all other ranks, so that messages of this rank still arrive.
  void leave() {
    std::unique_lock lock(mutex_);
    int finalised = 0;
    MPI_Finalized(&finalised);
    if (finalised) return;
    if (!failure_ && !broken_) {
      tell_all({Notice::ended});
      ended_[static_cast<std::size_t>(rank_)] = true;
      while (!failure_ && std::find(ended_.begin(), ended_.end(), false) != ended_.end()) {
        lock.unlock();
        std::this_thread::sleep_for(milliseconds(1));
        lock.lock();
        hear();
      }
    }
    if (failure_ || broken_) {
      lock.unlock();
      end_job(!told_);
    }
    flush_notices(10);
    MPI_Cancel(&listening_);
    MPI_Wait(&listening_, MPI_STATUS_IGNORE);
    MPI_Comm_free(&data_);
    MPI_Comm_free(&notices_);
    if (mine_) MPI_Finalize();
  }

 private:
  // Callers of all functions below must hold the mutex.
  /// Waits for the messages of `wait`, of `bytes` together; `lock` is that of the mutex.
  void finish(Wait& wait, std::size_t bytes, const Patience& patience, std::unique_lock<std::mutex>& lock) {
    // MPI moves long messages in pieces, a few for each call. For the time that this may take, the loop does not sleep.
    const auto busy = microseconds(500) + std::chrono::nanoseconds(2 * bytes);
    const auto start = Clock::now();
    wait.deadline = start + seconds(patience.seconds);
    waits_.push_back(&wait);
    for (int64_t round = 0;; ++round) {
      lock.unlock();
      const auto waited = Clock::now() - start;
      if (waited < busy) std::this_thread::yield();
      else std::this_thread::sleep_for(waited < milliseconds(20) + busy ? microseconds(20) : microseconds(200));
      lock.lock();
      if (done(wait)) return;
      if (round % 16 != 0 && waited < milliseconds(1)) continue;
      hear();
      const auto now = Clock::now();
      report_ended(wait, now);
      if (failure_.due()) {
        if (done(wait)) return;
        failure_.throw_if_due();
      }
      if (*patience.cancel) fail<CommunicationError>(patience.op, ": given up by rank ", rank_);
      if (now >= wait.deadline) ask_who_waits(wait, patience.seconds, now);
    }
  }

  /// Reports a rank for which `wait` waits although it has ended.
  void report_ended(Wait& wait, Clock::time_point now) {
    for (const int r : wait.missing()) {
      if (failure_ || !ended_[static_cast<std::size_t>(r)]) continue;
      // The last messages of rank r may come later than its notice. If several ranks see this, the lowest reports it.
      if (wait.found_end == Clock::time_point()) wait.found_end = now;
      if (now >= wait.found_end + seconds(kAnswerSeconds) + milliseconds(300) * std::min(rank_, 10))
        tell_failure(str(wait.op, ": rank ", r, " has ended"), 0);
    }
  }

  /// Called when `patience` seconds are over. Asks all ranks which ranks they wait for. When they have had time to
  /// answer, reports the missing ranks and throws.
  void ask_who_waits(Wait& wait, double patience, Clock::time_point now) {
    const bool lower_asks = std::any_of(asked_at_.begin(), asked_at_.lower_bound(rank_),
                                        [&](const auto& a) { return now < a.second + seconds(3 * kAnswerSeconds); });
    if (wait.asked && !lower_asks) {
      answers_[rank_] = all_waits();
      const std::string why = blame(rank_, answers_, patience);
      tell_failure(why, 0);
      fail<CommunicationError>(why);
    }
    wait.deadline = now + seconds(kAnswerSeconds);
    if (lower_asks) return;  // a lower rank has asked and will report the result
    wait.asked = true;
    answers_.clear();
    tell_all({Notice::who_waits});
  }

  bool done(Wait& wait) {
    bool all = true;
    for (std::size_t i = 0; i < wait.requests.size(); ++i) {
      if (wait.requests[i] == MPI_REQUEST_NULL) continue;
      int finished = 0, count = -1;
      MPI_Status status;
      check(MPI_Test(&wait.requests[i], &finished, &status), wait.op);
      all = all && finished;
      if (!finished || wait.expected[i] < 0) continue;
      check(MPI_Get_count(&status, MPI_BYTE, &count), wait.op);
      if (count != wait.expected[i])
        fail<CommunicationError>(wait.op, ": rank ", wait.peers[i], " sent ", count, " bytes to rank ", rank_,
                                 ", which expected ", wait.expected[i]);
    }
    return all;
  }

  void refuse_if_failed() {
    hear();
    failure_.throw_if_due();
    if (broken_) fail<CommunicationError>("this rank has given up messages that were under way; it cannot go on");
  }

  std::vector<Waiting> all_waits() const {
    std::vector<Waiting> all;
    for (const Wait* w : waits_) all.push_back({w->op, w->missing()});
    return all;
  }

  void tell_failure(const std::string& why, double grace) {
    failure_.set(why, grace);
    Notice n{Notice::failed, grace};
    std::strncpy(n.text, why.c_str(), sizeof n.text - 1);
    tell_all(n);
  }

  void listen() {
    check(MPI_Irecv(&heard_, sizeof heard_, MPI_BYTE, MPI_ANY_SOURCE, 0, notices_, &listening_), "notices");
  }
  void hear() {
    while (true) {
      int arrived = 0;
      MPI_Status status;
      check(MPI_Test(&listening_, &arrived, &status), "notices");
      if (!arrived) break;
      const Notice n = heard_;
      listen();
      take(n, status.MPI_SOURCE);
    }
    sent_.remove_if([](Sent& s) {
      int gone = 0;
      MPI_Test(&s.request, &gone, MPI_STATUS_IGNORE);
      return gone != 0;
    });
  }
  void take(const Notice& n, int from) {
    if (n.kind == Notice::who_waits) {
      asked_at_[from] = Clock::now();
      for (const Wait* w : waits_) {
        Notice answer{Notice::waits};
        const std::vector<int> missing = w->missing();
        answer.count = static_cast<int>(std::min(missing.size(), std::size(answer.ranks)));
        std::copy_n(missing.begin(), answer.count, answer.ranks);
        std::strncpy(answer.text, w->op, sizeof answer.text - 1);
        tell(answer, from);
      }
    } else if (n.kind == Notice::waits) {
      answers_[from].push_back({n.text, {n.ranks, n.ranks + n.count}});
    } else if (n.kind == Notice::failed) {
      told_ = told_ || !failure_;
      failure_.set(n.text, n.grace);
    } else {
      ended_[static_cast<std::size_t>(from)] = true;
    }
  }

  struct Sent {
    Notice notice;
    MPI_Request request;
  };
  void tell(const Notice& n, int to) {
    Sent& s = sent_.emplace_back(Sent{n, MPI_REQUEST_NULL});
    check(MPI_Isend(&s.notice, sizeof s.notice, MPI_BYTE, to, 0, notices_, &s.request), "notices");
  }
  void tell_all(const Notice& n) {
    for (int r = 0; r < size_; ++r)
      if (r != rank_) tell(n, r);
  }
  void flush_notices(double at_most) {
    const auto deadline = Clock::now() + seconds(at_most);
    while (!sent_.empty() && Clock::now() < deadline) {
      hear();
      std::this_thread::sleep_for(microseconds(100));
    }
  }

  std::mutex mutex_;
  MPI_Comm data_, notices_;
  int rank_ = 0, size_ = 1;
  bool mine_ = true;  // MPI was started here
  bool broken_ = false;
  std::list<Wait*> waits_;

  Notice heard_;
  MPI_Request listening_;
  std::list<Sent> sent_;
  std::map<int, std::vector<Waiting>> answers_;
  std::map<int, Clock::time_point> asked_at_;  // by rank: when it last sent who_waits
  std::vector<bool> ended_;
  Failure failure_;
  bool told_ = false;  // failure_ came from another rank
};

}  // namespace

std::shared_ptr<Engine> start_engine() {
  static MpiEngine* engine = new MpiEngine;  // never destroyed: leave() may run after other destructors
  std::atexit([] { engine->leave(); });
  return {engine, [](Engine*) {}};
}

}  // namespace sluice::detail
