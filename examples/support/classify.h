// Training and testing of classifiers: a model is anything that turns x [batch, …] and a Pass (with a generator, for
// dropout, when it is trained) into logits [batch, classes].
#pragma once

#include <sluice/sluice.h>

#include <cstdio>
#include <ctime>
#include <functional>
#include <vector>

namespace sluice::examples {

struct Labelled {
  Tensor x, y;  // y i64 [count]
};

struct ClassifyOptions {
  int64_t epochs = 4, batch = 64;
  double lr = 2e-3, weight_decay = 0.05;
  uint64_t seed = 1;
  /// Changes a batch before the model sees it; identity if empty.
  std::function<Tensor(const Tensor&, Rng&)> augment = {};
};

/// % of y that the model finds.
template <class Model> double accuracy(const Model& model, const Labelled& data, int64_t batch = 256) {
  NoGrad guard;
  double right = 0;
  for (int64_t at = 0; at < data.y.dim(0); at += batch) {
    const int64_t size = std::min(batch, data.y.dim(0) - at);
    const Tensor guess = argmax(model(narrow(data.x, 0, at, size)), 1);
    right += sum(to(eq(guess, narrow(data.y, 0, at, size)), f32)).item();
  }
  return 100 * right / double(data.y.dim(0));
}

struct Fit {
  std::vector<double> accuracy;  // on `valid`, after every epoch
  double ms = 0;                 // processor time of a training step, over two cores
};

/// AdamW, a short warm-up and half a cosine; prints nothing. Throws ValueError for less than a batch to train on, and
/// for nothing to validate.
template <class Model>
Fit fit(const Model& model, const Labelled& train, const Labelled& valid, const ClassifyOptions& o) {
  Rng rng(o.seed);
  Adam adam(parameters(model), {.weight_decay = o.weight_decay});
  const int64_t n = train.y.dim(0), steps = o.epochs * (n / o.batch);
  if (n < o.batch || valid.y.dim(0) == 0)
    fail<ValueError>("fit: need rows of one batch to train on and one to validate — got ", n, " and ", valid.y.dim(0),
                     " rows, batch ", o.batch);
  const Schedule rate = cosine_schedule({.lr = o.lr, .warmup = steps / 20, .total = steps + 1, .floor = o.lr / 50});
  Fit result;
  double ticks = 0;
  for (int64_t epoch = 0; epoch < o.epochs; ++epoch) {
    const std::clock_t begun = std::clock();
    const Tensor order = permutation(n, rng);
    for (int64_t at = 0; at + o.batch <= n; at += o.batch) {
      const Tensor pick = narrow(order, 0, at, o.batch);
      Tensor x = index_select(train.x, 0, pick);
      if (o.augment) x = o.augment(x, rng);
      adam.zero_grad();
      backward(cross_entropy(model(x, {.rng = &rng}), index_select(train.y, 0, pick)));
      clip_grad_norm(adam.parameters(), 1.0);
      adam.set_lr(rate(adam.steps()));
      adam.step();
    }
    ticks += double(std::clock() - begun);
    result.accuracy.push_back(accuracy(model, valid));
    std::fprintf(stderr, "epoch %lld of %lld: %.2f %% of the validation set\n", (long long)epoch + 1,
                 (long long)o.epochs, result.accuracy.back());
  }
  result.ms = 1000 * ticks / CLOCKS_PER_SEC / 2 / double(adam.steps());
  return result;
}

}  // namespace sluice::examples
