// Data-parallel training: every rank has the whole model and a part of the batch.
//
//   Model model({…}, rng);                                   // the same on all ranks
//   DataParallel parallel(model, ranks);                     // now with the values of rank 0
//   Adam adam(parameters(model), {.lr = 3e-4});
//   adam.shard(ranks);                                       // if its moments are to be spread over the ranks
//   …
//   adam.zero_grad();
//   parallel.backward(loss, tokens);                         // instead of backward(loss)
//   clip_grad_norm(adam.parameters(), 1);                    // gradients are the same everywhere
//   adam.step();
//
// With one rank all of it costs nothing and gives the same bits as without.
#pragma once

#include <sluice/core/random.h>
#include <sluice/layers/nn/module.h>
#include <sluice/parallel/collectives.h>

#include <memory>
#include <string>
#include <vector>

namespace sluice {

struct DataParallelOptions {
  int64_t bucket_bytes = 4 << 20;  // gradients are sent in parts of about this size
  bool overlap = true;             // while the backward pass goes on; else after it
};

/// Averages gradients over ranks. Sums go by rank, element by element: neither the size of the parts nor the time at which
/// they are sent changes a bit of the result.
class DataParallel {
 public:
  /// Compares names, shapes and dtypes of the model's tensors on all ranks (CommunicationError that names who differs), and
  /// gives all of them, parameters and buffers, the values of rank 0.
  template <class M>
  DataParallel(const M& model, const Communicator& ranks, DataParallelOptions options = {})
      : DataParallel(state_dict(model), ranks, options) {}
  DataParallel(std::vector<NamedTensor> state, const Communicator& ranks, DataParallelOptions options = {});
  ~DataParallel();
  DataParallel(const DataParallel&) = delete;
  DataParallel& operator=(const DataParallel&) = delete;

  /// Who shares the batch.
  const Communicator& ranks() const { return ranks_; }
  /// What the gradients of this rank have cost since the last call.
  Traffic take_traffic();

  /// After it every parameter's .grad() is the gradient of Σ weight · loss / Σ weight over the losses of all ranks and of all
  /// calls of accumulate() since the last time. With the loss the mean over this rank's tokens and the weight their number,
  /// that is the gradient of the mean over all tokens, however unequal the ranks' parts are. A rank without tokens passes an
  /// undefined loss and weight 0. A parameter that no rank's loss reaches keeps an undefined gradient. Gradients must be
  /// clear before, but for those of accumulate(). ValueError for a weight that is negative or not finite, and on all ranks
  /// when all weights are 0.
  void backward(const Tensor& loss, double weight = 1);
  /// The gradient of weight · loss, kept on this rank: nothing is sent.
  void accumulate(const Tensor& loss, double weight = 1);
  /// Σ weight · value / Σ weight over the ranks, the same on all; NaN when all weights are 0.
  double mean(double value, double weight = 1) const;

 private:
  struct Parameter;
  struct Bucket;
  void build(const std::vector<int64_t>& order);
  void collect(std::size_t index);
  void launch(bool all);
  void finish(double scale);

  Communicator ranks_, own_;  // own_: so that what others send in the backward pass does not wait for gradients
  DataParallelOptions options_;
  std::vector<Parameter> parameters_;
  std::vector<Bucket> buckets_;
  std::vector<int64_t> arrived_;  // the order of the first backward pass, which later buckets follow
  std::size_t launched_ = 0;
  bool ordered_ = false;
  double weight_ = 0;  // of accumulate()
};

/// This rank's rows of a batch that all ranks have: pieces as equal as they can be, perhaps none.
Tensor rows_of(const Tensor& batch, const Communicator& ranks, int64_t dim = 0);

/// A random stream for this rank alone: a pure function of where `rng`, the same on all ranks, stands, and of the rank. For
/// dropout; with it a checkpoint needs to hold `rng` only.
Rng stream_of(const Rng& rng, const Communicator& ranks);

}  // namespace sluice
