// Data-parallel training: every rank has the whole model and a part of the batch.
//
//   Model model({…}, rng);                                   // the same on all ranks
//   DataParallel parallel(model, ranks);                     // the model now has the values of rank 0
//   Adam adam(parameters(model), {.lr = 3e-4});
//   adam.shard(ranks);                                       // optional: distributes the moments over the ranks
//   …
//   adam.zero_grad();
//   parallel.backward(loss, tokens);                         // instead of backward(loss)
//   clip_grad_norm(adam.parameters(), 1);                    // gradients are the same on all ranks
//   adam.step();
//
// With one rank this costs nothing and gives the same bits as backward(loss).
#pragma once

#include <sluice/core/number/random.h>
#include <sluice/layers/nn/module.h>
#include <sluice/parallel/collectives.h>

#include <optional>
#include <vector>

namespace sluice {

struct DataParallelOptions {
  int64_t bucket_bytes = 4 << 20;  // gradients are sent in buckets of about this size
  bool overlap = true;             // true: buckets are sent during the backward pass; false: after it
};

/// Averages gradients over ranks. Sums are computed element by element in the order of ranks: neither the size of the
/// buckets nor the time at which they are sent changes a bit of the result.
class DataParallel : private NoCopy {
 public:
  /// Compares names, shapes and dtypes of the model's tensors, and which of them are parameters, on all ranks. Then
  /// gives all tensors, parameters and buffers, the values of rank 0. Throws CommunicationError naming the ranks that
  /// differ, and ValueError unless bucket_bytes > 0.
  template <class M>
  DataParallel(const M& model, const Communicator& ranks, DataParallelOptions options = {})
      : DataParallel(state_dict(model), ranks, options) {}
  DataParallel(std::vector<NamedTensor> state, const Communicator& ranks, DataParallelOptions options = {});
  ~DataParallel();

  /// The ranks that share the batch.
  const Communicator& ranks() const { return ranks_; }
  /// Returns the traffic of this rank's gradients since the last call.
  Traffic take_traffic();

  /// Sets every parameter's .grad() to the gradient of Σ weight · loss / Σ weight, over the losses of all ranks and of
  /// all calls of accumulate() since the last backward(). If loss is the mean over this rank's tokens and weight is
  /// their number, this is the gradient of the mean over all tokens, for parts of any sizes. A rank without tokens
  /// passes an undefined loss and weight 0. Where other ranks have tokens of the same cut sequence (SequenceScope) it
  /// passes the sum, 0, of its tokens' losses and weight 0, because all ranks of a sequence need a backward pass. A
  /// parameter that no rank's loss reaches keeps an undefined gradient. Throws ValueError for a weight that is negative
  /// or not finite, for a parameter that was frozen when this was made and is not now, for one that has a gradient
  /// already which is not of accumulate(), and on all ranks when all weights are 0.
  void backward(const Tensor& loss, double weight = 1);
  /// Adds the gradient of weight · loss on this rank, and sends nothing. zero_grad() takes all of them back, with their
  /// weights. Throws ValueError as backward().
  void accumulate(const Tensor& loss, double weight = 1);
  /// Returns Σ weight · value / Σ weight over the ranks, the same on all ranks; NaN when all weights are 0. Throws
  /// ValueError for a weight that backward() refuses.
  double mean(double value, double weight = 1) const;

 private:
  struct Parameter;
  struct Bucket;
  void build(const std::vector<int64_t>& order);
  void collect(std::size_t index);
  void launch(bool all);
  void prepare();
  void check_clear();
  void walk(const Tensor& loss, double weight);
  void follow_arrivals();
  void finish(double scale);

  Communicator ranks_, own_;  // own_ sends gradients: other messages of the backward pass do not wait for them
  DataParallelOptions options_;
  std::vector<Parameter> parameters_;
  std::vector<NamedTensor> frozen_;  // had no gradient when this was made
  std::vector<Bucket> buckets_;
  std::vector<int64_t> arrived_;  // order of parameters in the first backward pass, for later buckets
  std::size_t launched_ = 0;
  bool ordered_ = false;
  std::optional<double> weight_;  // sum of the weights of accumulate() since the last backward(), if there was one
  bool reached_ = false;          // whether a parameter had a gradient after it
};

/// This rank's rows of a batch that all ranks have. The pieces are as equal as possible, and may be empty.
Tensor rows_of(const Tensor& batch, const Communicator& ranks, int64_t dim = 0);

/// A random generator for this rank only, for dropout: call it once a step. It is a function of the rank and of seed
/// and offset of `rng`, which must be the same on all ranks and moves on by one, as on one rank. So each step has masks
/// of its own, and a checkpoint needs `rng` only.
Rng stream_of(Rng& rng, const Communicator& ranks);

}  // namespace sluice
