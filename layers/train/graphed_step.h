// A training step that is recorded once and replayed on a GPU with one call.
//
//   const auto loss_of = [&](const std::vector<Tensor>& in) {
//     return cross_entropy(model(in[0], {.rng = &rng}), in[1]);
//   };
//   GraphedStep step(adam, loss_of, {.max_norm = 1, .schedule = cosine_schedule({.lr = 3e-4, .total = 10'000})});
//   for (…) Tensor loss = step({x, t});     // for each shape, the first call runs the function, the second records it
//
// Kernels of small models take less time than the host needs to start them. A step of hundreds of kernels, recorded
// once (a CUDA graph), is started with one call. A replay reads the values that change from step to step from memory:
// learning rates, bias corrections, and the positions of random generators. So dropout draws the same numbers as in a
// step that is not recorded.
#pragma once

#include <sluice/core/number/random.h>
#include <sluice/layers/nn/module.h>
#include <sluice/layers/train/optim.h>
#include <sluice/layers/train/schedule.h>
#include <sluice/ops/gemm/precision.h>

#include <functional>
#include <limits>
#include <memory>
#include <type_traits>
#include <vector>

namespace sluice {

struct GraphedStepOptions {
  double max_norm = std::numeric_limits<double>::infinity();   // of clip_grad_norm(); infinity: no clipping
  double max_value = std::numeric_limits<double>::infinity();  // of clip_grad_value(), after clip_grad_norm()
  Schedule schedule = {};  // of optimizer.steps(); if empty, the learning rate is that of set_lr()
  int64_t parts = 1;       // inputs are processed in `parts` parts of their first dim; loss and gradient are the means
};

/// Loss, gradients, clipping and the optimiser's step, recorded for each set of shapes of the inputs. Without an
/// optimiser only loss and gradients. On the CPU every call runs the function.
///
/// The host code of the function runs when the function is recorded, not in a replay. The function must compute the
/// loss only from its inputs, the parameters and random numbers, by ops of the device. Throws DeviceError naming an
/// operation that a replay would repeat wrongly: reading values (item(), printing, profiles, Moe's counts), random
/// numbers drawn on the CPU, generators that the function creates, copies or sets, exchanges with other ranks. All
/// other tensors and generators that the function uses must live as long as this object. Between steps everything may
/// change: rates; checkpoints loaded into model, optimiser and generators; dtype and device of any module (to()), the
/// precision of products and what is frozen, which makes the next steps record again. Muon and optimisers of
/// your own make their steps outside the recording. While a function is recorded, other threads that use
/// the device (a Loader's) wait; the function must not wait for them.
class GraphedStep {
 public:
  /// Returns the loss of inputs without history.
  using Loss = std::function<Tensor(const std::vector<Tensor>& inputs)>;

  /// A whole step of `optimizer`, which must live as long as this object. Throws ValueError for an empty function,
  /// limits that are not > 0 and fewer than one part.
  GraphedStep(Optimizer& optimizer, Loss loss, GraphedStepOptions options = {});
  /// Loss and gradients of the parameters of a module, or of the given parameters.
  template <class M>
  requires(!std::is_base_of_v<Optimizer, M>) GraphedStep(const M& model, Loss loss)
      : GraphedStep(sluice::parameters(model), std::move(loss)) {}
  GraphedStep(std::vector<NamedTensor> parameters, Loss loss);
  ~GraphedStep();

  /// Returns the loss, a scalar without history. Afterwards .grad() of each parameter is the (clipped) gradient of this
  /// loss only, and undefined where the loss does not reach; the next call changes it. Other leaves get no gradient.
  /// Throws AutogradError for an input with a history, and ValueError for inputs that cannot be split into parts.
  /// Throws ValueError for an index out of range, in a replay at the end of the step; parameters, optimiser and
  /// generators are then unchanged. If the function throws, nothing is recorded.
  Tensor operator()(const std::vector<Tensor>& inputs);
  /// The norm of the last step's gradients before clipping, an f64 scalar on the device of the gradients; undefined
  /// without max_norm.
  Tensor norm() const;
  /// Number of recorded sets of shapes.
  int64_t recorded() const;

 private:
  struct Shapes;
  struct Result {
    Tensor loss, norm;
  };
  /// The optimiser's parameters, of which this object keeps no copies: the optimiser knows when it is the last owner.
  const std::vector<NamedTensor>& parameters() const { return optimizer_ ? optimizer_->parameters() : parameters_; }
  Result run(const std::vector<Tensor>& inputs, bool on_device, bool recorded);
  /// `before`: the optimiser's counts before the step.
  void record(Shapes& step, const std::vector<Tensor>& inputs, const Optimizer::Counts& before);
  bool renew(Shapes& step);
  void replay(Shapes& step, const std::vector<Tensor>& inputs, const Optimizer::Counts& before);

  std::vector<NamedTensor> parameters_;
  Optimizer* optimizer_ = nullptr;
  Loss loss_;
  GraphedStepOptions options_;
  Tensor norm_;
  std::vector<std::unique_ptr<Shapes>> steps_;
  /// What recorded graphs rely on.
  struct Recorded {
    std::vector<Ref<Storage>> memory = {};  // of the parameters
    std::vector<bool> trained = {};         // which of them have gradients
    uint64_t conversions = 0;               // detail::replaced_memory(), of all modules
    Precision products = sluice::precision();
    bool operator==(const Recorded&) const = default;
  } recorded_;
};

}  // namespace sluice
