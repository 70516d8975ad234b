// Small trainings for the claims that need them: many arms, several seeds each, the same batches for every arm of a
// seed, figures kept in a file so that claims share the runs.
#pragma once

#include "claims/claim.h"
#include "support/byte_lm.h"
#include "support/corpus.h"

#include <sluice/core/text/file.h>
#include <sluice/core/text/json.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <map>
#include <mutex>
#include <thread>

namespace sluice::examples {

/// What a run measured, by name.
using Figures = std::map<std::string, double>;

struct TrainOptions {
  int64_t steps, warmup = 0;
  double lr = 1e-3, clip = 1;  // clip 0: none
  double weight_decay = 0, beta2 = 0.95;
  double floor = 0.05;  // the last learning rate, as a share of lr
};

/// The loss of every step, in nats; ends early at a loss that is not finite, which is kept. `each(step)` comes before
/// every step.
template <class Model, class Next>
std::vector<double> train(const Model& model, Next&& next, const TrainOptions& o,
                          const std::function<void(int64_t)>& each = {}) {
  Adam adam(parameters(model), {.beta2 = o.beta2, .weight_decay = o.weight_decay});
  const Schedule rate =
      cosine_schedule({.lr = o.lr, .warmup = o.warmup, .total = o.steps + 1, .floor = o.lr * o.floor});
  std::vector<double> losses;
  for (int64_t step = 0; step < o.steps; ++step) {
    if (each) each(step);
    const Batch batch = next();
    adam.zero_grad();
    Tensor loss = cross_entropy(model(batch.inputs), batch.targets);
    losses.push_back(loss.item());
    if (!std::isfinite(losses.back())) break;
    backward(loss);
    if (o.clip > 0) clip_grad_norm(adam.parameters(), o.clip);
    adam.set_lr(rate(step));
    adam.step();
  }
  return losses;
}

/// A text to train on, and its validation part.
struct TextTask {
  std::string words;
  Split text;

  /// `window` bytes at least in each part. The validation part is cut to `most` bytes.
  TextTask(const std::string& path, std::size_t window, std::size_t most)
      : words(learning_text(path)), text(split_text(words, window + 1)) {
    text.valid = text.valid.substr(0, std::max(most, window + 1));
  }
  TextTask(const TextTask&) = delete;  // the views would be those of the other

  /// Random windows; those of one seed are the same for all.
  auto windows(int64_t batch, int64_t n, int64_t seed) const {
    return [this, batch, n, rng = Rng(static_cast<uint64_t>(seed) + 1000)]() mutable {
      return random_batch(text.train, batch, n, rng);
    };
  }
  /// Nats per byte of the validation part, windows of n bytes.
  template <class Model> double loss(const Model& model, int64_t n) const {
    return bits_per_byte([&](const Tensor& bytes) { return model(bytes); }, text.valid, n) * std::log(2.0);
  }
};

/// Arms, each trained with every seed. Runs of one seed see the same data, so that arms can be compared in pairs.
class Trials {
 public:
  /// Figures are read from and kept in `folder`/`name`.runs.json; they count for the same `settings` only.
  Trials(const std::string& folder, const std::string& name, std::string settings)
      : path_(folder + "/" + name + ".runs.json"), settings_(std::move(settings)) {
    std::filesystem::create_directories(folder);
    if (!std::filesystem::exists(path_)) return;
    const Json kept = parse_json(read_file(path_));
    if (kept.at("settings").get<std::string>() != settings_) return;
    for (const auto& [run, figures] : kept.at("runs").get<Json::Object>())
      for (const auto& [figure, x] : figures.get<Json::Object>())
        if (!x.is_null()) runs_[run][figure] = x.as<double>() ? *x.as<double>() : double(x.get<int64_t>());
        else runs_[run][figure] = std::nan("");
  }

  /// Trains what is not there yet: the seeds first, first + 1, …, all arms of a seed, on `threads` threads (0: one for
  /// each processor). From the third seed on, no training begins after `seconds`, and a seed that lacks an arm does not
  /// count. Trains nothing if there are two seeds of every arm: claims that share runs show the same ones. run(arm,
  /// seed) gives the figures of one training.
  void run(const std::vector<std::string>& arms, int64_t first, int64_t seeds, double seconds,
           const std::function<Figures(const std::string&, int64_t)>& run, unsigned threads = 0) {
    struct Job {
      std::string arm;
      int64_t seed;
    };
    const auto complete = [&](int64_t seed) {
      return std::ranges::all_of(arms, [&](const std::string& arm) { return runs_.contains(key(arm, seed)); });
    };
    std::vector<Job> jobs;
    const bool enough = complete(first) && complete(first + 1);
    for (int64_t seed = first; seed < first + seeds; ++seed)
      for (const std::string& arm : arms)
        if (!enough && !runs_.contains(key(arm, seed))) jobs.push_back({arm, seed});
    const auto start = std::chrono::steady_clock::now();
    if (threads == 0) threads = std::max(1u, std::thread::hardware_concurrency());
    std::atomic<std::size_t> next = 0;
    std::exception_ptr error;
    std::mutex lock;
    const int before = num_threads();
    set_num_threads(1);
    std::vector<std::thread> pool;
    for (unsigned t = 0; t < threads; ++t)
      pool.emplace_back([&] {
        for (std::size_t i; (i = next++) < jobs.size();) {
          const auto [arm, seed] = jobs[i];
          const double spent = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
          if (spent > seconds && seed >= first + 2) continue;
          try {
            const Figures figures = run(arm, seed);
            std::scoped_lock guard(lock);
            runs_[key(arm, seed)] = figures;
            keep();
            std::fprintf(stderr, "%s %s, seed %lld:", path_.c_str(), arm.c_str(), (long long)seed);
            for (const auto& [name, x] : figures) std::fprintf(stderr, "  %s %.4g", name.c_str(), x);
            std::fprintf(stderr, "\n");
          } catch (...) {
            std::scoped_lock guard(lock);
            error = std::current_exception();
            next = jobs.size();
          }
        }
      });
    for (std::thread& t : pool) t.join();
    set_num_threads(before);
    if (error) std::rethrow_exception(error);
    seeds_.clear();  // those that every arm has
    for (int64_t seed = first; seed < first + seeds; ++seed)
      if (complete(seed)) seeds_.push_back(seed);
  }

  std::size_t seeds() const { return seeds_.size(); }
  /// A figure of an arm, seed by seed.
  std::vector<double> values(const std::string& arm, const std::string& figure) const {
    std::vector<double> xs;
    for (const int64_t seed : seeds_) xs.push_back(runs_.at(key(arm, seed)).at(figure));
    return xs;
  }
  Measured mean(const std::string& arm, const std::string& figure) const { return mean_of(values(arm, figure)); }
  /// The mean over seeds of figure(a) − figure(b), in pairs.
  Measured difference(const std::string& a, const std::string& b, const std::string& figure) const {
    return paired_difference(values(a, figure), values(b, figure));
  }

 private:
  static std::string key(const std::string& arm, int64_t seed) { return arm + ", seed " + std::to_string(seed); }
  void keep() const {
    Json::Object runs;
    for (const auto& [run, figures] : runs_) {
      Json::Object one;
      for (const auto& [name, x] : figures) one.emplace_back(name, std::isfinite(x) ? Json(x) : Json());
      runs.emplace_back(run, one);
    }
    const Json all = Json::Object{{"settings", settings_}, {"runs", runs}};
    write_file_atomically(path_, [&](FileWriter& w) { w.write(to_text(all, 1) + "\n"); });
  }

  std::string path_, settings_;
  std::map<std::string, Figures> runs_;
  std::vector<int64_t> seeds_;
};

}  // namespace sluice::examples
