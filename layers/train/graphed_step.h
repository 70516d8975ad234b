// A training step that a GPU does again without being told each kernel.
//
//   GraphedStep step(model, [&](const std::vector<Tensor>& in) { return cross_entropy(model(in[0]), in[1]); });
//   for (…) {
//     Tensor loss = step({x, t});       // loss and gradients; the first call of a shape runs as it is, the second is recorded
//     clip_grad_norm(adam.parameters(), 1);
//     adam.step();
//   }
//
// Kernels of small models take less time than the host needs to start them: a step of hundreds of them, recorded once
// (a CUDA graph), is started with one call.
#pragma once

#include <sluice/layers/nn/module.h>

#include <functional>
#include <memory>
#include <vector>

namespace sluice {

/// The gradients of a loss, recorded for each set of shapes of its inputs. On the CPU every call runs the function.
///
/// What the function does on the host happens when it is recorded, and not again: it must compute the loss from its inputs and
/// the parameters alone, by ops of the device. DeviceError, naming it, for what a replay would repeat wrongly: reading values
/// (item(), printing, profiles), dropout and random numbers, optimisers. Tensors that it reaches in other ways must live as
/// long as this object; a parameter must keep its memory (load() into it is right, replacing it is not).
class GraphedStep {
 public:
  /// From inputs without history to the loss.
  using Loss = std::function<Tensor(const std::vector<Tensor>& inputs)>;

  /// Of a module's parameters, or of these. ValueError for an empty function.
  template <class M>
  GraphedStep(const M& model, Loss loss) : GraphedStep(sluice::parameters(model), std::move(loss)) {}
  GraphedStep(std::vector<NamedTensor> parameters, Loss loss);
  ~GraphedStep();

  /// The loss, a scalar without history. Afterwards .grad() of each parameter is the gradient of this loss alone, undefined
  /// where it does not reach; it changes with the next call. ValueError for an index out of range, when the step is done: the
  /// parameters have not changed. What the function throws leaves nothing recorded.
  Tensor operator()(const std::vector<Tensor>& inputs);
  /// How many sets of shapes have been recorded.
  int64_t recorded() const;

 private:
  struct Shapes;
  Tensor plainly(const std::vector<Tensor>& inputs);
  void record(Shapes& step, const std::vector<Tensor>& inputs);

  std::vector<NamedTensor> parameters_;
  Loss loss_;
  std::vector<std::unique_ptr<Shapes>> steps_;
};

}  // namespace sluice
