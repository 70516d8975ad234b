// The Bigram-Backcopy task (Guo et al. 2024, "Active-Dormant Attention Heads Mechanistically Demystifying Extreme-Token
// Phenomena in LLMs"): a Markov chain of characters with a few triggers, after which the token before the trigger
// comes again.
//
//   <start> x₁ x₂ …      x_{t+1} = x_{t−1} if x_t is a trigger, else x_{t+1} ~ P(· | x_t)
//
// Attention is needed at triggers only. At all other tokens it must do nothing, and a softmax can do nothing only by
// attending to a token whose value is nearly 0: the start token becomes an attention sink.
#pragma once

#include "support/byte_lm.h"

#include <algorithm>
#include <numeric>

namespace sluice::examples {

class BigramBackcopy {
 public:
  /// P is that of the bigrams of `text`, over its `symbols` most frequent bytes. The triggers are the most frequent
  /// ones but the first, which is the space. Throws ValueError unless the text has more symbols than triggers + 1.
  explicit BigramBackcopy(std::string_view text, std::size_t symbols = 64, std::size_t triggers = 3)
      : triggers_(triggers) {
    std::vector<double> seen(256, 0);
    for (const char c : text) ++seen[static_cast<unsigned char>(c)];
    std::vector<std::size_t> order(256);
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return seen[a] > seen[b]; });
    const auto known = std::ranges::count_if(seen, [](double n) { return n > 0; });
    symbols_ = std::min(symbols, static_cast<std::size_t>(known));
    if (symbols_ < triggers + 2) fail<ValueError>("bigram_backcopy: the text has ", known, " symbols, too few");
    std::vector<std::size_t> rank(256, symbols_);
    for (std::size_t i = 0; i < symbols_; ++i) rank[order[i]] = i;
    // A row's last entry is its sum. One count more for each pair keeps every row above 0.
    cumulative_.assign(symbols_, std::vector<double>(symbols_, 0.02));
    for (std::size_t i = 1; i < text.size(); ++i) {
      const std::size_t a = rank[static_cast<unsigned char>(text[i - 1])],
                        b = rank[static_cast<unsigned char>(text[i])];
      if (a < symbols_ && b < symbols_) ++cumulative_[a][b];
    }
    for (std::vector<double>& row : cumulative_) std::partial_sum(row.begin(), row.end(), row.begin());
  }

  /// Tokens that a model must know: the start token 0, and the symbols.
  int64_t vocabulary() const { return static_cast<int64_t>(symbols_) + 1; }
  bool is_trigger(int64_t token) const { return token >= 2 && token < 2 + static_cast<int64_t>(triggers_); }

  /// Inputs and targets of `count` sequences, each [count, n] i64; the inputs open with the start token.
  Batch batch(int64_t count, int64_t n, Rng& rng) const {
    const std::vector<double> draw = uniform({count * n}, 0, 1, rng, {.dtype = f64}).to_vector<double>();
    std::vector<int64_t> inputs, targets;
    for (int64_t b = 0; b < count; ++b) {
      int64_t before = 0, now = 0;
      for (int64_t t = 0; t < n; ++t) {
        inputs.push_back(now);
        const int64_t next = is_trigger(now) ? before : 1 + sample(now, draw[static_cast<std::size_t>(b * n + t)]);
        before = now, now = next;
        targets.push_back(next);
      }
    }
    return {Tensor::from(inputs, {count, n}), Tensor::from(targets, {count, n})};
  }

 private:
  /// The symbol after the token, for u in [0, 1). After the start token, the space's row, but no trigger: there is
  /// nothing to copy yet.
  int64_t sample(int64_t token, double u) const {
    const std::vector<double>& row = cumulative_[token == 0 ? 0 : static_cast<std::size_t>(token) - 1];
    const auto at = std::upper_bound(row.begin(), row.end() - 1, u * row.back()) - row.begin();
    return token == 0 && is_trigger(1 + at) ? 0 : at;
  }

  std::size_t symbols_ = 0, triggers_;
  std::vector<std::vector<double>> cumulative_;  // of P's rows
};

}  // namespace sluice::examples
