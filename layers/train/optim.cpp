#include <sluice/layers/train/optim.h>

#include <sluice/ops/basic.h>
#include <sluice/ops/optim_kernels.h>

#include <algorithm>
#include <cmath>

namespace sluice {

using namespace detail;

namespace {

using Moment = std::vector<Tensor> UpdatedTensors::*;

/// Calls step(rule, tensors) once for each group of parameters with the same rule, dtypes and device. `moments`: the
/// members of UpdatedTensors that the rule uses, in the order of a slot's moments.
template <class Due, class RuleOf, class Step>
void step_together(const std::vector<Due>& due, RuleOf rule_of, const Step& step,
                   const std::vector<Moment>& moments = {&UpdatedTensors::m, &UpdatedTensors::v}) {
  struct Batch {
    decltype(rule_of(due[0])) rule;
    UpdatedTensors x;
  };
  std::vector<Batch> batches;
  for (const Due& d : due) {
    const auto rule = rule_of(d);
    auto batch = std::find_if(batches.begin(), batches.end(), [&](const Batch& b) {
      return b.rule == rule && b.x.w[0].dtype() == d.w.dtype() && b.x.g[0].dtype() == d.g.dtype() &&
             b.x.w[0].device() == d.w.device();
    });
    if (batch == batches.end()) batch = batches.insert(batch, {rule, {}});
    UpdatedTensors& x = batch->x;
    x.w.push_back(d.w), x.g.push_back(d.g);
    for (std::size_t k = 0; k < d.slot->moments.size(); ++k) (x.*moments[k]).push_back(d.slot->moments[k]);
    if (d.rounded.defined()) x.rounded.push_back(d.rounded);
  }
  for (Batch& batch : batches) step(batch.rule, batch.x);
}

/// Adam's steps, with the weight decay of each parameter decoupled or added to the gradient.
template <class Due, class Options>
void adam_steps(const std::vector<Due>& due, const Options& o, bool decoupled, double lr) {
  step_together(
      due,
      [&](const Due& d) {
        const double t = static_cast<double>(d.slot->updates), rate = lr * d.slot->lr_factor;
        return AdamRule{.beta1 = o.beta1,
                        .beta2 = o.beta2,
                        .eps = o.eps,
                        .lr = rate / (1 - std::pow(o.beta1, t)),
                        .root_scale = 1 / std::sqrt(1 - std::pow(o.beta2, t)),
                        .shrink = decoupled ? rate * d.slot->weight_decay : 0,
                        .l2 = decoupled ? 0 : d.slot->weight_decay};
      },
      kernel::adam);
}

}  // namespace

Sgd::Sgd(std::vector<NamedTensor> parameters, SgdOptions o)
    : Optimizer("sgd", std::move(parameters), o.momentum != 0 ? std::vector{"momentum"} : std::vector<const char*>{},
                o.lr, o.weight_decay, o.decay, o.groups),
      options_(std::move(o)) {
  check_options("sgd", options_);
  if (options_.nesterov && options_.momentum == 0) fail<ValueError>("sgd: nesterov needs a momentum > 0");
}

void Sgd::update(const std::vector<Due>& due) {
  step_together(
      due,
      [&](const Due& d) {
        return SgdRule{lr() * d.slot->lr_factor, options_.momentum, d.slot->weight_decay, options_.nesterov};
      },
      kernel::sgd);
}

static std::vector<const char*> moments_of(const RmsPropOptions& o) {
  std::vector<const char*> names{"v"};
  if (o.centered) names.push_back("m");
  if (o.momentum != 0) names.push_back("momentum");
  return names;
}

RmsProp::RmsProp(std::vector<NamedTensor> parameters, RmsPropOptions o)
    : Optimizer("rmsprop", std::move(parameters), moments_of(o), o.lr, o.weight_decay, o.decay, o.groups),
      options_(std::move(o)) {
  check_options("rmsprop", options_);
}

void RmsProp::update(const std::vector<Due>& due) {
  std::vector<Moment> moments{&UpdatedTensors::v};
  if (options_.centered) moments.push_back(&UpdatedTensors::m);
  moments.push_back(&UpdatedTensors::u);
  step_together(
      due,
      [&](const Due& d) {
        return RmsPropRule{options_.alpha,           options_.eps,         options_.momentum,
                           lr() * d.slot->lr_factor, d.slot->weight_decay, options_.centered};
      },
      kernel::rmsprop, moments);
}

Adam::Adam(std::vector<NamedTensor> parameters, AdamOptions o)
    : Optimizer("adam", std::move(parameters), {"m", "v"}, o.lr, o.weight_decay, o.decay, o.groups),
      options_(std::move(o)) {
  check_options("adam", options_);
}

void Adam::update(const std::vector<Due>& due) { adam_steps(due, options_, options_.decoupled, lr()); }

Lamb::Lamb(std::vector<NamedTensor> parameters, LambOptions o)
    : Optimizer("lamb", std::move(parameters), {"m", "v"}, o.lr, o.weight_decay, o.decay, o.groups),
      options_(std::move(o)) {
  check_options("lamb", options_);
  for (const NamedTensor& p : this->parameters()) adapted_.push_back(!options_.adapt || options_.adapt(p));
}

void Lamb::update(const std::vector<Due>& due) {
  step_together(
      due,
      [&](const Due& d) {
        const double t = static_cast<double>(d.slot->updates);
        const bool correct = options_.bias_correction;
        return LambRule{.beta1 = options_.beta1,
                        .beta2 = options_.beta2,
                        .eps = options_.eps,
                        .lr = lr() * d.slot->lr_factor,
                        .mean_scale = correct ? 1 / (1 - std::pow(options_.beta1, t)) : 1,
                        .root_scale = correct ? 1 / std::sqrt(1 - std::pow(options_.beta2, t)) : 1,
                        .weight_decay = d.slot->weight_decay,
                        .adapt = adapted_[d.index]};
      },
      kernel::lamb);
}

Lion::Lion(std::vector<NamedTensor> parameters, LionOptions o)
    : Optimizer("lion", std::move(parameters), {"m"}, o.lr, o.weight_decay, o.decay, o.groups), options_(std::move(o)) {
  check_options("lion", options_);
}

void Lion::update(const std::vector<Due>& due) {
  step_together(
      due,
      [&](const Due& d) {
        const double rate = lr() * d.slot->lr_factor;
        return LionRule{options_.beta1, options_.beta2, rate, rate * d.slot->weight_decay};
      },
      kernel::lion);
}

Muon::Muon(std::vector<NamedTensor> parameters, MuonOptions o)
    : Optimizer("muon", std::move(parameters), {"m", "v"}, o.lr, o.weight_decay, o.decay, o.groups, o.matrices),
      options_(std::move(o)) {
  check_options("muon", options_);
  for (const auto& p : this->parameters()) {
    orthogonal_.push_back(options_.matrices && options_.matrices(p));
    if (orthogonal_.back() && p.tensor.rank() < 2)
      fail<ValueError>("muon: matrices must have rank 2 or more — got '", p.name, "' of shape ", p.tensor);
  }
}

void Muon::update(const std::vector<Due>& due) {
  std::vector<Due> others;
  for (const Due& d : due) {
    if (!orthogonal_[d.index]) {
      others.push_back(d);
      continue;
    }
    const double rate = lr() * d.slot->lr_factor, mu = options_.momentum;
    const auto longer = static_cast<double>(std::max(d.w.dim(-1), d.w.dim(-2)));
    const Tensor g = to(d.g, d.w.dtype());
    const Tensor moment = d.slot->moments[0] * mu + g;
    const Tensor u = newton_schulz(options_.nesterov ? moment * mu + g : moment, options_.iterations);
    // The decay is added to the update, as Adam's: a factor of almost 1 would round most of it away.
    const Tensor next = d.w - (d.w * (rate * d.slot->weight_decay) + u * (rate * options_.rms * std::sqrt(longer)));
    // Written last, so that without memory the parameter stays as it was.
    Tensor w = d.w, rounded = d.rounded, kept = d.slot->moments[0];
    if (rounded.defined()) copy_(rounded, to(next, bf16));
    copy_(kept, moment), copy_(w, next);
  }
  if (!others.empty()) adam_steps(others, options_, true, lr());
}

Tensor newton_schulz(const Tensor& g, int64_t iterations) {
  if (!is_float(g.dtype())) fail<DTypeError>("newton_schulz: g must be floating — got ", g.dtype(), g);
  if (g.rank() < 2 || iterations < 0)
    fail<ValueError>("newton_schulz: need g [..., n, m] and iterations >= 0 — got g=", g, ", iterations=", iterations);
  const bool tall = g.dim(-2) > g.dim(-1);
  Tensor x = tall ? transpose(g, -2, -1) : g;  // so that the products of x and its transpose are the small ones
  x = x / clamp(sqrt(sum(square(x), {-2, -1}, true)), 1e-7);
  for (int64_t i = 0; i < iterations; ++i) {
    const Tensor a = matmul(x, transpose(x, -2, -1));
    x = x * 3.4445 + matmul(a * -4.775 + matmul(a, a) * 2.0315, x);
  }
  return tall ? transpose(x, -2, -1) : x;
}

}  // namespace sluice
