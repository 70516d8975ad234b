#include <sluice/layers/data/loader.h>

#include <sluice/core/error.h>
#include <sluice/core/node.h>
#include <sluice/ops/basic.h>
#include <sluice/ops/gemm/precision.h>

#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>

namespace sluice {

namespace {

/// A generator for one purpose: a pure function of the seed, the purpose and a number.
Rng rng_for(uint64_t seed, uint32_t purpose, int64_t number) {
  const auto n = static_cast<uint64_t>(number);
  const auto words = philox4x32({static_cast<uint32_t>(n), static_cast<uint32_t>(n >> 32), purpose, 0x10ade5},
                                {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  return Rng(uint64_t{words[0]} << 32 | words[1]);
}

/// The row numbers of an epoch in their order, i64 [rows].
Tensor shuffled(int64_t rows, uint64_t seed, int64_t epoch) {
  Rng rng = rng_for(seed, 0, epoch);
  return permutation(rows, rng);
}

/// Rows [at, at + batch) of an order, or fewer at its end.
Tensor piece(const Tensor& order, int64_t at, int64_t batch) {
  return narrow(order, 0, at, std::min(batch, order.dim(0) - at));
}

}  // namespace

std::vector<Tensor> shuffled_batches(int64_t rows, int64_t batch, uint64_t seed, int64_t epoch) {
  if (rows < 0 || batch < 1 || epoch < 0)
    fail<ValueError>("shuffled_batches: need rows >= 0, batch >= 1, epoch >= 0 — got ", rows, ", ", batch, ", ", epoch);
  const Tensor order = shuffled(rows, seed, epoch);
  std::vector<Tensor> out;
  for (int64_t at = 0; at < rows; at += out.back().dim(0)) out.push_back(piece(order, at, batch));
  return out;
}

namespace detail {

// No loader returns so many batches, and positions up to this number do not overflow.
constexpr int64_t kMostBatches = int64_t{1} << 62;

struct LoaderEngine::Work {
  LoaderOptions options;
  Make make;
  int64_t batches;
  Precision products = precision();  // of the thread that makes the loader, on all threads
  int process = ::getpid();          // whose threads these are

  struct Slot {
    std::shared_ptr<void> batch;
    std::exception_ptr error;
    bool ready = false;
  };
  std::mutex mutex;
  std::condition_variable wanted, made;
  std::vector<Slot> slots;            // most() of them; batch i is made in slot i mod most()
  int64_t position = 0, unbegun = 0;  // threads have begun the batches [position, unbegun)
  bool stop = false;
  std::vector<std::thread> threads;

  std::mutex order_mutex;
  std::deque<std::pair<int64_t, Tensor>> orders;  // the orders of the last two epochs that were used

  /// A copy, so that a function that writes to its row numbers does not change the order.
  Tensor rows(int64_t at) {
    const int64_t epoch = at / batches;
    std::lock_guard lock(order_mutex);
    auto found = std::find_if(orders.begin(), orders.end(), [&](auto& o) { return o.first == epoch; });
    if (found == orders.end()) {
      orders.emplace_back(epoch, options.shuffle ? shuffled(options.rows, seed(), epoch) : arange(options.rows));
      if (orders.size() > 2) orders.pop_front();
      found = orders.end() - 1;
    }
    return clone(piece(found->second, at % batches * options.batch, options.batch));
  }
  std::shared_ptr<void> make_at(int64_t at) {
    NoGrad guard;
    const PrecisionScope scope(products);
    Rng rng = rng_for(seed(), 1, at);
    return make(rows(at), rng);
  }
  uint64_t seed() const { return static_cast<uint64_t>(options.seed); }
  int64_t most() const { return options.threads * options.ahead; }
  Slot& slot(int64_t at) { return slots[static_cast<std::size_t>(at % most())]; }

  /// The work of a thread: makes the next batch that no thread has begun, while fewer than most() batches are begun.
  void run() {
    std::unique_lock lock(mutex);
    for (;;) {
      wanted.wait(lock, [&] { return stop || unbegun - position < most(); });
      if (stop) return;
      const int64_t at = unbegun++;
      lock.unlock();
      Slot result{.batch = {}, .error = {}, .ready = true};
      try {
        result.batch = make_at(at);
      } catch (...) { result.error = std::current_exception(); }
      lock.lock();
      slot(at) = std::move(result);  // position <= at: next() waits for this slot
      made.notify_one();
    }
  }
  /// Stops the threads after the batches that they are making, and drops all prepared batches.
  void halt() {
    {
      std::lock_guard lock(mutex);
      stop = true;
    }
    wanted.notify_all();
    for (std::thread& t : threads) t.join();
    threads.clear(), std::fill(slots.begin(), slots.end(), Slot{}), unbegun = position, stop = false;
  }
};

/// The work of this process. A child of fork() has none of its parent's threads, and may find their locks held: it
/// leaves all that they use as it is, and starts threads of its own.
template <class Work> static Work& own(std::unique_ptr<Work>& work) {
  if (work->process != ::getpid()) {
    auto mine = std::make_unique<Work>();
    mine->options = work->options, mine->make = work->make, mine->products = work->products;
    mine->batches = work->batches, mine->position = mine->unbegun = work->position;
    mine->slots.resize(work->slots.size());
    [[maybe_unused]] const Work* const left = work.release();
    work = std::move(mine);
  }
  return *work;
}

LoaderEngine::LoaderEngine(LoaderOptions options, Make make) : work_(std::make_unique<Work>()) {
  check_options("loader", options);
  if (options.drop_last && options.rows < options.batch)
    fail<ValueError>("loader: without the last batch none is left — got rows=", options.rows,
                     ", batch=", options.batch);
  work_->batches = options.rows / options.batch + (options.rows % options.batch != 0 && !options.drop_last);
  work_->options = options, work_->make = std::move(make);
  work_->slots.resize(static_cast<std::size_t>(work_->most()));
}

LoaderEngine::~LoaderEngine() { own(work_).halt(); }

int64_t LoaderEngine::batches() const { return work_->batches; }
int64_t LoaderEngine::position() const { return work_->position; }

void LoaderEngine::seek(int64_t position) {
  if (position < 0 || position > kMostBatches)
    fail<ValueError>("loader: position must be between 0 and 2^62 — got ", position);
  Work& w = own(work_);
  if (position == w.position) return;
  w.halt();
  w.position = w.unbegun = position;
}

std::shared_ptr<void> LoaderEngine::next() {
  Work& w = own(work_);
  if (w.options.threads == 0) return w.make_at(w.position++);
  while (static_cast<int64_t>(w.threads.size()) < w.options.threads) try {
      w.threads.emplace_back([&w] { w.run(); });
    } catch (const std::system_error& e) {
      fail<MemoryError>("loader: thread ", w.threads.size(), " could not be started: ", e.what());
    }
  std::unique_lock lock(w.mutex);
  w.made.wait(lock, [&] { return w.slot(w.position).ready; });
  Work::Slot slot = std::exchange(w.slot(w.position), {});
  ++w.position;
  lock.unlock();
  w.wanted.notify_one();
  if (slot.error) std::rethrow_exception(slot.error);
  return std::move(slot.batch);
}

}  // namespace detail

}  // namespace sluice
