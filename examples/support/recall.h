// Multi-query associative recall (Arora et al. 2023, "Zoology"): a task, and a model of two layers for it.
//
//   k₁ v₁ k₂ v₂ … k_P v_P | filler | k_π(1) v_π(1) … k_π(P) v_π(P)        all keys different, π a random order
//
// After each key of the last part the model has to name the value that went with it. Keys and values are drawn anew for
// every sequence, so nothing can be learned by heart: the pairs must pass through the layer's memory.
#pragma once

#include "support/mixer.h"

#include <utility>
#include <vector>

namespace sluice::examples {

inline constexpr int64_t kRecallKeys = 64, kRecallValues = 16, kRecallDim = 64;
inline constexpr int64_t kRecallFiller = kRecallKeys + kRecallValues;  // the token that says nothing

struct RecallTask {
  Tensor tokens, values;  // [batch, 4·pairs + filler], [batch, pairs]
};
inline RecallTask recall_task(int64_t pairs, int64_t batch, Rng& rng, int64_t filler = 0) {
  std::vector<int64_t> tokens, values;
  for (int64_t b = 0; b < batch; ++b) {
    const std::vector<int64_t> key = permutation(kRecallKeys, rng).to_vector<int64_t>();
    const std::vector<int64_t> value = randint(0, kRecallValues, {pairs}, rng).to_vector<int64_t>();
    auto tell = [&](std::size_t i) { tokens.insert(tokens.end(), {key[i], kRecallKeys + value[i]}); };
    for (std::size_t i = 0; i < value.size(); ++i) tell(i);
    tokens.insert(tokens.end(), static_cast<std::size_t>(filler), kRecallFiller);
    for (int64_t i : permutation(pairs, rng).to_vector<int64_t>()) {
      tell(static_cast<std::size_t>(i));
      values.push_back(value[static_cast<std::size_t>(i)]);
    }
  }
  return {Tensor::from(tokens, {batch, 4 * pairs + filler}), Tensor::from(values, {batch, pairs})};
}

/// Embedding of 64 channels, half of them moved on by one token (so that a value knows its key), layers without
/// feed-forward parts, a map to the values.
struct RecallModel {
  static constexpr const char* type = "RecallModel";
  Embedding embed;
  std::vector<Mixer> mixers;
  Norm norm;
  Linear head;

  RecallModel(std::vector<Mixer> layers, Rng& rng, bool filler = false)
      : embed({kRecallFiller + filler, kRecallDim, 1}, rng), mixers(std::move(layers)),
        norm({kRecallDim, NormKind::layer}), head({kRecallDim, kRecallValues}, rng) {}

  /// Tokens [batch, n] → logits [batch, n, values].
  Tensor operator()(const Tensor& tokens, const Pass& pass = {}) const {
    const Tensor e = embed(tokens);
    const Tensor before = Call(*this, "recall_model", e, kRecallDim, pass).shift(e);  // token i − 1 at place i
    Tensor x = cat({narrow(before, 2, 0, kRecallDim / 2), narrow(e, 2, kRecallDim / 2, kRecallDim / 2)}, 2);
    for (const Mixer& mixer : mixers) x = mixer(x, pass);
    return head(norm(x));
  }
  SLUICE_PARTS(embed, mixers, norm, head);
};

/// What the model answers to the keys of the last part: logits [batch, pairs, values].
inline Tensor answers(const RecallModel& model, const RecallTask& task) {
  const int64_t n = task.tokens.dim(1);
  return slice(model(task.tokens), 1, n - 2 * task.values.dim(1), n, 2);
}

/// Trains with next(step), which gives the task of an update.
template <class Next> void train_recall(const RecallModel& model, int64_t steps, Next&& next) {
  Adam adam(parameters(model), {.beta2 = 0.95});
  const Schedule rate = cosine_schedule({.lr = 8e-3, .warmup = 20, .total = steps + 20, .floor = 4e-4});
  for (int64_t step = 0; step < steps; ++step) {
    const RecallTask task = next(step);
    adam.zero_grad();
    backward(cross_entropy(answers(model, task), task.values));
    clip_grad_norm(adam.parameters(), 1.0);
    adam.set_lr(rate(step));
    adam.step();
  }
}
/// Tasks of 1,024 tokens for train_recall. The lengths take turns; first the shortest only, from the last fifth on all.
inline auto recall_lessons(std::vector<int64_t> pairs, int64_t steps, uint64_t seed) {
  return [pairs = std::move(pairs), steps, rng = Rng(seed)](int64_t step) mutable {
    const auto lengths = static_cast<int64_t>(pairs.size());
    const int64_t known = std::min(lengths, 1 + lengths * step / steps);
    const int64_t now = pairs[static_cast<std::size_t>(step % known)];
    return recall_task(now, 256 / now, rng);
  };
}

/// Percent of the values that the model names in about so many questions, the same for every model.
inline double percent_recalled(const RecallModel& model, int64_t pairs, int64_t questions, int64_t filler = 0) {
  NoGrad guard;
  Rng rng(99);
  const RecallTask task = recall_task(pairs, questions / pairs, rng, filler);
  return 100 * mean(to(eq(argmax(answers(model, task), -1), task.values), f32)).item();
}
/// What generation has to carry along for the layers after n tokens, in numbers.
inline int64_t state_after(const RecallModel& model, int64_t n) {
  int64_t numbers = 0;
  for (const Mixer& mixer : model.mixers) {
    Stream stream;
    step(mixer, zeros({1, n, kRecallDim}), stream);
    numbers += stream.numel();
  }
  return numbers;
}

}  // namespace sluice::examples
