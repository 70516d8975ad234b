// Batches in an order that is a pure function of seed and epoch, prepared in advance by threads.
//
//   Loader loader({.rows = images.dim(0), .batch = 64, .seed = 1, .threads = 2}, [&](const Tensor& rows) {
//     return std::pair(index_select(images, 0, rows), index_select(labels, 0, rows));
//   });
//   for (int epoch = 0; epoch < 10; ++epoch)
//     for (const auto& [x, y] : loader) …                     // one epoch, or its rest after seek() or a break
//
// A checkpoint needs loader.position() only; seek(position) continues from there.
#pragma once

#include <sluice/core/memory/no_copy.h>
#include <sluice/core/text/options.h>
#include <sluice/core/number/random.h>

#include <functional>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

namespace sluice {

/// The row numbers of each batch of an epoch, i64 [batch] each; the last batch may be shorter. The row numbers are 0 …
/// rows − 1, shuffled by a pure function of seed and epoch. Throws ValueError unless rows >= 0, batch >= 1 and
/// epoch >= 0.
std::vector<Tensor> shuffled_batches(int64_t rows, int64_t batch, uint64_t seed, int64_t epoch);

struct LoaderOptions {
  int64_t rows;            // rows of the data, at most 2^53
  int64_t batch = 32;      // rows of a batch
  int64_t seed = 0;        // of the order, and of the generators of batches
  bool shuffle = true;     // true: a new order for each epoch; false: 0, 1, 2, …
  bool drop_last = false;  // leave out the last batch of an epoch if it is shorter than the others
  int64_t threads = 1;     // threads that prepare batches; 0: next() makes the batch itself
  int64_t ahead = 2;       // most batches in advance for each thread

  static void describe(auto& o, auto& f) {
    f.required("rows", o.rows, between(1, 0x1p53), "of the data");
    f("batch", o.batch, at_least(1), "rows of a batch");
    f("seed", o.seed, between(0, 0x1p53), "of the order");
    f("shuffle", o.shuffle, "anew for every epoch");
    f("drop_last", o.drop_last, "leave out a shorter last batch");
    f("threads", o.threads, between(0, 256), "that make batches ahead");
    f("ahead", o.ahead, between(1, 1024), "batches for each thread");
  }
};

namespace detail {

/// The part of a loader that does not depend on the type of batches.
class LoaderEngine : private NoCopy {
 public:
  using Make = std::function<std::shared_ptr<void>(const Tensor& rows, Rng& rng)>;
  LoaderEngine(LoaderOptions options, Make make);
  ~LoaderEngine();

  int64_t batches() const;
  int64_t position() const;
  void seek(int64_t position);
  std::shared_ptr<void> next();

 private:
  struct Work;
  std::unique_ptr<Work> work_;
};

}  // namespace detail

/// Batches of any type, which a function makes from the row numbers of the batch, i64 [batch]. The function may write
/// to its row numbers. Several threads call the function at once, without history. It may have a second parameter Rng&,
/// for augmentation and noise: a generator for this batch only, a function of seed and position. The batches and their
/// order do not depend on the number of threads. An exception of the function is thrown by the call that would have
/// returned the batch; this batch counts as returned. A Loader is not thread-safe.
template <class Batch> class Loader {
 public:
  /// `make(rows)` or `make(rows, rng)` returns the batch of i64 row numbers; several threads call it at once.
  template <class F>
  Loader(LoaderOptions options, F make)
      : engine_(std::make_unique<detail::LoaderEngine>(options, [make = std::move(make)](const Tensor& rows, Rng& rng) {
          if constexpr (std::is_invocable_v<const F&, const Tensor&, Rng&>)
            return std::make_shared<Batch>(make(rows, rng));
          else return static_cast<void>(rng), std::make_shared<Batch>(make(rows));
        })) {}

  /// Number of batches of an epoch.
  int64_t batches() const { return engine_->batches(); }
  /// Number of batches returned so far, counted from the first batch of epoch 0; epoch = position / batches().
  int64_t position() const { return engine_->position(); }
  /// Makes the batch of `position` the next batch. Throws ValueError unless 0 <= position <= 2^62.
  void seek(int64_t position) { engine_->seek(position); }
  /// Returns the next batch. The last batch of an epoch is followed by the first batch of the next epoch.
  Batch next() { return std::move(*std::static_pointer_cast<Batch>(engine_->next())); }

  /// Iterator for a range-based for.
  class Iterator {
   public:
    explicit Iterator(Loader& loader) : loader_(&loader), batch_(loader.next()) {}
    Batch& operator*() { return *batch_; }  // the current batch, which may be moved from
    Iterator& operator++() {                // draws the next batch
      batch_.reset();                       // frees its memory for the next batch
      if (loader_->position() % loader_->batches() != 0) batch_.emplace(loader_->next());
      return *this;
    }
    bool operator==(std::default_sentinel_t) const { return !batch_; }

   private:
    Loader* loader_;
    std::optional<Batch> batch_;
  };
  /// Begins the rest of the current epoch; at the beginning of an epoch, the whole epoch.
  Iterator begin() { return Iterator(*this); }
  /// The end of the epoch.
  std::default_sentinel_t end() { return {}; }

 private:
  std::unique_ptr<detail::LoaderEngine> engine_;
};

namespace detail {
template <class F> struct BatchOf : std::invoke_result<const F&, const Tensor&> {};
template <class F>
requires std::is_invocable_v<const F&, const Tensor&, Rng&>
struct BatchOf<F> : std::invoke_result<const F&, const Tensor&, Rng&> {
};
}  // namespace detail

/// The type of batches is the return type of the function.
template <class F> Loader(LoaderOptions, F) -> Loader<std::remove_cvref_t<typename detail::BatchOf<F>::type>>;

}  // namespace sluice
