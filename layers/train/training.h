// Training checkpoints: weights, optimiser, random generator, step and configuration in one file.
#pragma once

#include <sluice/core/number/random.h>
#include <sluice/layers/nn/module.h>
#include <sluice/layers/train/optim.h>
#include <sluice/parallel/communicator.h>

#include <map>
#include <string>

namespace sluice {

/// The contents of a checkpoint that are not tensors.
struct TrainingState {
  int64_t step = 0;                                // number of steps done
  std::map<std::string, std::string> config = {};  // free text: options, elapsed time, …
  /// Number of batches that the loader has returned, for Loader::seek(). It differs from `step` where a step takes
  /// several batches. −1 is saved as `step`; a file without the entry gives `step`.
  int64_t position = -1;
};

namespace detail {
void save_training(const Members& model, const std::string& path, const Optimizer& optimizer, const Rng& rng,
                   const TrainingState& state, std::map<std::string, std::string> metadata, const Communicator& ranks);
TrainingState load_training(const Members& model, const std::string& path, Optimizer& optimizer, Rng& rng,
                            const Communicator& ranks);
}  // namespace detail

/// Writes a safetensors file atomically: a crash leaves the previous checkpoint unchanged. load_model() reads only the
/// model from this file. With several ranks, all ranks must call save_checkpoint(); rank 0 writes the same file as a
/// single rank would write, and an error is thrown on all ranks. The generator is the common one, not a rank's own:
/// throws ValueError if the ranks' generators differ.
template <class M>
void save_checkpoint(const M& model, const std::string& path, const Optimizer& optimizer, const Rng& rng,
                     const TrainingState& state, const Communicator& ranks = {}) {
  detail::save_training(detail::members(model), path, optimizer, rng, state, detail::described(model, {}), ranks);
}

/// Restores model, optimiser and generator, so that training continues bit for bit. All or nothing: for a file that is
/// damaged or belongs to another model or another kind of optimiser, throws IOError naming the file (ShapeError or
/// DTypeError for entries of the optimiser), and changes neither model, optimiser nor generator. With several ranks,
/// all ranks must call load_checkpoint(); rank 0 reads. The number of ranks may differ from that of the run that wrote
/// the file.
template <class M>
TrainingState load_checkpoint(const M& model, const std::string& path, Optimizer& optimizer, Rng& rng,
                              const Communicator& ranks = {}) {
  return detail::load_training(detail::members(model), path, optimizer, rng, ranks);
}

/// Returns only the configuration and the step, to build the model for the tensors. Throws IOError unless the file is a
/// checkpoint.
TrainingState read_checkpoint_state(const std::string& path);

}  // namespace sluice
