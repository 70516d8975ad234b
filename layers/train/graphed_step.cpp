#include <sluice/layers/train/graphed_step.h>

#include <sluice/autograd/engine.h>
#include <sluice/core/graph.h>
#include <sluice/core/kernel.h>
#include <sluice/core/node.h>
#include <sluice/ops/create.h>

#include <algorithm>

namespace sluice {

/// One set of shapes.
struct GraphedStep::Shapes {
  std::vector<Tensor> inputs;  // first as they came, then those that the graph reads
  std::unique_ptr<detail::DeviceGraph> graph;
  Tensor loss;
  std::vector<Tensor> gradients;  // of each parameter; undefined where none arrives
};

namespace {

bool alike(const Tensor& a, const Tensor& b) { return a.shape() == b.shape() && a.dtype() == b.dtype() && a.device() == b.device(); }

}  // namespace

GraphedStep::GraphedStep(std::vector<NamedTensor> parameters, Loss loss) : parameters_(std::move(parameters)), loss_(std::move(loss)) {
  if (!loss_) fail<ValueError>("graphed step: the function is empty");
}
GraphedStep::~GraphedStep() = default;

int64_t GraphedStep::recorded() const {
  return std::count_if(steps_.begin(), steps_.end(), [](const auto& s) { return s->graph != nullptr; });
}

Tensor GraphedStep::operator()(const std::vector<Tensor>& inputs) {
  for (const Tensor& x : inputs)
    if (x.requires_grad()) fail<AutogradError>("graphed step: an input has a history — got ", x, "; pass x.detach()");
  const Device device = inputs.empty() ? cpu : inputs[0].device();
  const bool can = detail::graphs_of(device) != nullptr;
  const auto found = std::find_if(steps_.begin(), steps_.end(), [&](const auto& s) {
    return s->inputs.size() == inputs.size() && std::equal(inputs.begin(), inputs.end(), s->inputs.begin(), alike);
  });
  if (!can || found == steps_.end()) {
    // What is made at first use — tables, libraries — is made now.
    const Tensor loss = plainly(inputs);
    if (can) {
      steps_.push_back(std::make_unique<Shapes>());
      for (const Tensor& x : inputs) steps_.back()->inputs.push_back(empty_like(x));
    }
    return loss.detach();
  }
  NoGrad guard;
  Shapes& step = **found;
  if (!step.graph) record(step, inputs);
  for (std::size_t i = 0; i < inputs.size(); ++i) copy_(step.inputs[i], inputs[i]);
  step.graph->replay();
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    Tensor& p = parameters_[i].tensor;
    if (step.gradients[i].defined()) step.gradients[i].bump_version();
    p.set_grad(step.gradients[i]);
  }
  return clone(step.loss);
}

Tensor GraphedStep::plainly(const std::vector<Tensor>& inputs) {
  for (NamedTensor& p : parameters_) p.tensor.zero_grad();
  Tensor loss = loss_(inputs);
  backward(loss);
  return loss;
}

void GraphedStep::record(Shapes& step, const std::vector<Tensor>& inputs) {
  for (std::size_t i = 0; i < inputs.size(); ++i) copy_(step.inputs[i], inputs[i]);
  step.gradients.assign(parameters_.size(), {});
  Tensor loss;
  auto graph = detail::graphs_of(inputs[0].device())->record([&] {
    GradMode guard(true);
    loss = plainly(step.inputs).detach();
  });
  for (std::size_t i = 0; i < parameters_.size(); ++i) step.gradients[i] = parameters_[i].tensor.grad();
  step.loss = loss, step.graph = std::move(graph);
}

}  // namespace sluice
