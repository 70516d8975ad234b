// A training step that a GPU does again without being told each kernel.
//
//   GraphedStep step(adam, [&](const std::vector<Tensor>& in) { return cross_entropy(model(in[0], &rng), in[1]); },
//                    {.max_norm = 1, .schedule = cosine_schedule({.lr = 3e-4, .total = 10'000})});
//   for (…) Tensor loss = step({x, t});     // the first call of a shape runs as it is, the second is recorded
//
// Kernels of small models take less time than the host needs to start them: a step of hundreds of them, recorded once
// (a CUDA graph), is started with one call. What differs from step to step lies where a replay reads it: learning rates and
// bias corrections, and where generators of random numbers stand, so that dropout draws the numbers that a step which is run
// would draw.
#pragma once

#include <sluice/core/random.h>
#include <sluice/layers/nn/module.h>
#include <sluice/layers/train/optim.h>
#include <sluice/layers/train/schedule.h>

#include <functional>
#include <limits>
#include <memory>
#include <type_traits>
#include <vector>

namespace sluice {

struct GraphedStepOptions {
  double max_norm = std::numeric_limits<double>::infinity();   // of clip_grad_norm(); infinity: no clipping
  double max_value = std::numeric_limits<double>::infinity();  // of clip_grad_value(), after that
  Schedule schedule = {};  // of optimizer.steps(); without, the learning rate is what set_lr() says
  int64_t parts = 1;       // into which inputs are cut along their first dim, one after the other; loss and gradient are their means
};

/// Loss, gradients, clipping and the optimiser's step, recorded for each set of shapes of the inputs; or loss and gradients
/// alone. On the CPU every call runs the function.
///
/// What the function does on the host happens when it is recorded, and not again: it must compute the loss from its inputs,
/// the parameters and random numbers alone, by ops of the device. DeviceError, naming it, for what a replay would repeat
/// wrongly: reading values (item(), printing, profiles), random numbers made on the CPU, generators that the function makes,
/// copies or sets, exchanges with other ranks. Tensors and generators that it reaches in other ways must live as long as this
/// object. Between steps everything may change: rates, checkpoints loaded into model, optimiser and generators, the
/// dtype of the model (to()), after which steps are recorded anew.
class GraphedStep {
 public:
  /// From inputs without history to the loss.
  using Loss = std::function<Tensor(const std::vector<Tensor>& inputs)>;

  /// A whole step of this optimiser, which must live as long. ValueError for an empty function, limits that are not > 0 and
  /// fewer than one part.
  GraphedStep(Optimizer& optimizer, Loss loss, GraphedStepOptions options = {});
  /// Loss and gradients of a module's parameters, or of these.
  template <class M>
    requires(!std::is_base_of_v<Optimizer, M>)
  GraphedStep(const M& model, Loss loss) : GraphedStep(sluice::parameters(model), std::move(loss)) {}
  GraphedStep(std::vector<NamedTensor> parameters, Loss loss);
  ~GraphedStep();

  /// The loss, a scalar without history. Afterwards .grad() of each parameter is the gradient of this loss alone (clipped),
  /// undefined where it does not reach; it changes with the next call. ValueError for inputs that cannot be cut, and for an
  /// index out of range, when the step is done: parameters, optimiser and generators have not changed. What the function
  /// throws leaves nothing recorded.
  Tensor operator()(const std::vector<Tensor>& inputs);
  /// The norm of the last step's gradients before they were clipped, an f64 scalar on their device; undefined without max_norm.
  Tensor norm() const;
  /// How many sets of shapes have been recorded.
  int64_t recorded() const;

 private:
  struct Shapes;
  struct Result {
    Tensor loss, norm;
  };
  Result run(const std::vector<Tensor>& inputs, bool recordable);
  void record(Shapes& step, const std::vector<Tensor>& inputs);
  bool renew(Shapes& step);
  void replay(Shapes& step, const std::vector<Tensor>& inputs);

  std::vector<NamedTensor> parameters_;
  Optimizer* optimizer_ = nullptr;
  Loss loss_;
  GraphedStepOptions options_;
  Tensor norm_;
  std::vector<std::unique_ptr<Shapes>> steps_;
  std::vector<Ref<Storage>> memory_;  // of the parameters, which recorded graphs read
};

}  // namespace sluice
