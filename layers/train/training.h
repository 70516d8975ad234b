// Training checkpoints: weights, optimiser, random generator, step and configuration in one file.
#pragma once

#include <sluice/core/random.h>
#include <sluice/layers/nn/module.h>
#include <sluice/layers/train/optim.h>
#include <sluice/parallel/communicator.h>

#include <map>
#include <string>

namespace sluice {

/// What a checkpoint holds beside tensors.
struct TrainingState {
  int64_t step = 0;                           // steps done
  std::map<std::string, std::string> config;  // free text: options, elapsed time, …
};

namespace detail {
void save_training(const Members& model, const std::string& path, const Optimizer& optimizer, const Rng& rng,
                   const TrainingState& state, std::map<std::string, std::string> metadata, const Communicator& ranks);
TrainingState load_training(const Members& model, const std::string& path, Optimizer& optimizer, Rng& rng,
                            const Communicator& ranks);
}  // namespace detail

/// Writes a safetensors file atomically: a crash leaves the previous checkpoint whole. load_model() reads the model
/// alone. With several ranks all call it and rank 0 writes, the same file that one rank writes; an error is thrown on all.
template <class M>
void save_checkpoint(const M& model, const std::string& path, const Optimizer& optimizer, const Rng& rng,
                     const TrainingState& state, const Communicator& ranks = {}) {
  detail::save_training(detail::members(model), path, optimizer, rng, state, detail::described(model, {}), ranks);
}

/// Restores everything, so that training goes on bit for bit. All or nothing: a file that is damaged or
/// belongs to another model is an IOError (ShapeError, DTypeError for the optimiser's entries) that names it and
/// changes neither model, optimiser nor generator. With several ranks all call it and rank 0 reads, whatever number of
/// ranks wrote.
template <class M>
TrainingState load_checkpoint(const M& model, const std::string& path, Optimizer& optimizer, Rng& rng,
                              const Communicator& ranks = {}) {
  return detail::load_training(detail::members(model), path, optimizer, rng, ranks);
}

/// Only the configuration and the step, for building the model that the tensors belong to.
TrainingState read_checkpoint_state(const std::string& path);

}  // namespace sluice
