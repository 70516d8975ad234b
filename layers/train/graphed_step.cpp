#include <sluice/layers/train/graphed_step.h>

#include <sluice/autograd/engine.h>
#include <sluice/core/kernel/graph.h>
#include <sluice/core/kernel/kernel.h>
#include <sluice/core/node.h>
#include <sluice/layers/train/clip.h>
#include <sluice/ops/basic.h>

#include <algorithm>
#include <cmath>

namespace sluice {

/// The recording for one set of shapes of the inputs.
struct GraphedStep::Shapes {
  std::vector<Tensor> inputs;  // memory for the inputs, which the graph reads
  std::unique_ptr<detail::DeviceGraph> graph;
  RngLog streams;
  Result result;
  std::vector<Tensor> gradients;  // of each parameter; undefined where the loss does not reach
};

static bool alike(const Tensor& a, const Tensor& b) {
  return a.shape() == b.shape() && a.dtype() == b.dtype() && a.device() == b.device();
}

GraphedStep::GraphedStep(std::vector<NamedTensor> parameters, Loss loss)
    : parameters_(std::move(parameters)), loss_(std::move(loss)) {
  if (!loss_) fail<ValueError>("graphed step: the function is empty");
}
GraphedStep::GraphedStep(Optimizer& optimizer, Loss loss, GraphedStepOptions options)
    : GraphedStep(std::vector<NamedTensor>(), std::move(loss)) {
  optimizer_ = &optimizer, options_ = std::move(options);
  if (!(options_.max_norm > 0 && options_.max_value > 0) || options_.parts < 1)
    fail<ValueError>("graphed step: needs max_norm > 0, max_value > 0 and at least one part — got ", options_.max_norm,
                     ", ", options_.max_value, " and ", options_.parts);
}
GraphedStep::~GraphedStep() = default;

int64_t GraphedStep::recorded() const {
  return std::count_if(steps_.begin(), steps_.end(), [](const auto& s) { return s->graph != nullptr; });
}
Tensor GraphedStep::norm() const { return norm_.defined() ? clone(norm_) : Tensor(); }

Tensor GraphedStep::operator()(const std::vector<Tensor>& inputs) {
  for (const Tensor& x : inputs) {
    if (x.requires_grad()) fail<AutogradError>("graphed step: an input has a history — got ", x, "; pass x.detach()");
    if (options_.parts > 1 && (x.rank() == 0 || x.dim(0) % options_.parts != 0))
      fail<ValueError>("graphed step: an input cannot be cut into ", options_.parts,
                       " parts along its first dim — got ", x);
  }
  Recorded now{.conversions = detail::replaced_memory(), .products = precision()};
  for (const NamedTensor& p : parameters())
    now.memory.push_back(p.tensor.impl().storage), now.trained.push_back(p.tensor.requires_grad());
  if (now != recorded_) steps_.clear(), recorded_ = std::move(now);
  for (std::size_t i = 0; optimizer_ && !steps_.empty() && i < parameters().size(); ++i) optimizer_->check_owner(i);
  if (options_.schedule) optimizer_->set_lr(options_.schedule(optimizer_->steps()));
  const Device device = inputs.empty() ? cpu : inputs[0].device();
  const bool can = detail::graphs_of(device) != nullptr;
  const auto found = std::find_if(steps_.begin(), steps_.end(), [&](const auto& s) {
    return s->inputs.size() == inputs.size() && std::equal(inputs.begin(), inputs.end(), s->inputs.begin(), alike);
  });
  if (!can || found == steps_.end()) {
    // The first call creates everything that is created at first use (tables, libraries), so it cannot be recorded.
    const Result result = run(inputs, can, false);
    norm_ = result.norm;
    if (can) {
      steps_.push_back(std::make_unique<Shapes>());
      for (const Tensor& x : inputs) steps_.back()->inputs.push_back(empty_like(x));
    }
    return result.loss;
  }
  NoGrad guard;
  Shapes& step = **found;
  const Optimizer::Counts before = optimizer_ ? optimizer_->counts() : Optimizer::Counts{};
  try {
    replay(step, inputs, before);
  } catch (...) {
    if (optimizer_) optimizer_->set_counts(before);
    throw;
  }
  return clone(step.result.loss);
}

GraphedStep::Result GraphedStep::run(const std::vector<Tensor>& inputs, bool on_device, bool recorded) {
  std::vector<Tensor> trained;
  for (const NamedTensor& p : parameters()) trained.push_back(p.tensor);
  for (Tensor& p : trained) p.zero_grad();
  Result result;
  for (int64_t part = 0; part < options_.parts; ++part) {
    std::vector<Tensor> own = inputs;
    if (options_.parts > 1)
      for (Tensor& x : own) x = narrow(x, 0, part * (x.dim(0) / options_.parts), x.dim(0) / options_.parts);
    Tensor loss = loss_(own);
    if (options_.parts > 1) loss = loss * (1.0 / static_cast<double>(options_.parts));
    if (!trained.empty()) backward(loss, {}, {.inputs = trained});
    NoGrad guard;
    result.loss = result.loss.defined() ? result.loss + loss.detach() : loss.detach();
  }
  if (!optimizer_) return result;
  if (std::isfinite(options_.max_norm))
    result.norm = on_device ? clip_grad_norm_on_device(trained, options_.max_norm)
                            : full({}, clip_grad_norm(trained, options_.max_norm), {f64, cpu});
  if (std::isfinite(options_.max_value)) clip_grad_value(trained, options_.max_value);
  trained.clear();
  if (!recorded || optimizer_->recordable()) optimizer_->step();
  return result;
}

void GraphedStep::record(Shapes& step, const std::vector<Tensor>& inputs, const Optimizer::Counts& before) {
  for (std::size_t i = 0; i < inputs.size(); ++i) copy_(step.inputs[i], inputs[i]);
  const Device device = inputs[0].device();
  if (optimizer_) optimizer_->follow_parameters();
  step.graph.reset(), step.streams = {}, step.result = {};
  step.gradients.assign(parameters().size(), {});
  Result result;
  RngLog streams;
  auto graph = detail::graphs_of(device)->record([&] {
    GradMode guard(true);
    const RngLog::Record on(streams, device);
    result = run(step.inputs, true, true);
  });
  streams.check();
  for (std::size_t i = 0; i < parameters().size(); ++i) step.gradients[i] = parameters()[i].tensor.grad();
  step.result = result, step.streams = std::move(streams), step.graph = std::move(graph);
  if (optimizer_) optimizer_->set_counts(before);
}

/// The host's part of the optimiser's step: passes the new rates to the next replay. Returns false if the optimiser's
/// calls differ from the recorded calls.
bool GraphedStep::renew(Shapes& step) {
  for (std::size_t i = 0; i < parameters().size(); ++i) {
    if (step.gradients[i].defined()) step.gradients[i].bump_version();
    Tensor(parameters()[i].tensor).set_grad(step.gradients[i]);
  }
  return !optimizer_ || !optimizer_->recordable() || step.graph->renew([&] { optimizer_->step(); });
}

void GraphedStep::replay(Shapes& step, const std::vector<Tensor>& inputs, const Optimizer::Counts& before) {
  if (!step.graph || !step.streams.intact()) record(step, inputs, before);
  if (!renew(step)) {
    // Parameters are grouped differently now: loaded counts differ, or rates that were equal have become different.
    optimizer_->set_counts(before);
    record(step, inputs, before);
    if (!renew(step))
      fail<DeviceError>("graphed step: the optimiser's step cannot be recorded: its calls are others each time");
  }
  for (std::size_t i = 0; i < inputs.size(); ++i) copy_(step.inputs[i], inputs[i]);
  step.graph->replay(step.streams.places());
  step.streams.advance();
  norm_ = step.result.norm;
  if (optimizer_ && !optimizer_->recordable()) optimizer_->step();
}

}  // namespace sluice
