// Optimisers: SGD, Adam(W) and LAMB.
//
//   Adam adam(parameters(model), {.lr = 3e-4, .weight_decay = 0.1});
//   adam.zero_grad(); backward(loss); clip_grad_norm(adam.parameters(), 1); adam.step();
//
// An update is one pass over memory that reads gradient, parameter and moments and writes the last two
// (LAMB needs a second pass, for its norms), all parameters in few launches on a GPU. Scalars are worked out in f64 and rounded once to the
// parameter's dtype. Results do not depend on the number of threads.
//
// A bf16 parameter, whose steps would be lost in rounding, gets a master copy in f32: that is updated, with moments in
// f32, and the parameter is the master, rounded.
#pragma once

#include <sluice/core/options.h>
#include <sluice/layers/nn/named_tensor.h>
#include <sluice/layers/train/clip.h>
#include <sluice/parallel/communicator.h>

#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace sluice {

/// Chooses parameters; an empty function chooses all.
using ParameterFilter = std::function<bool(const NamedTensor&)>;
/// Rank 2 and above: weights, but not biases, gains and scalars.
bool is_matrix(const NamedTensor& p);

/// Parameters that learn at a rate of their own, or decay by a rate of their own:
///
///   Adam adam(parameters(model), {.lr = 3e-4, .weight_decay = 0.1, .groups = {
///       {[](const NamedTensor& p) { return p.name.starts_with("head."); }, /*lr_factor=*/10},
///       {[](const NamedTensor& p) { return p.name.ends_with(".gain"); }, 1, /*weight_decay=*/0.0}}});
///
/// Each parameter belongs to the first group that chooses it; those that none chooses follow the other options. Rates are
/// factors, so set_lr() and a schedule serve all groups.
struct ParameterGroup {
  ParameterFilter members;                   // whom it chooses
  double lr_factor = 1;                      // its rate is lr_factor · lr
  std::optional<double> weight_decay = {};   // of all its members; without: as weight_decay and decay say
};
/// The first that chooses a parameter has it.
using ParameterGroups = std::vector<ParameterGroup>;

/// What Sgd, Adam and Lamb have in common.
class Optimizer {
 public:
  virtual ~Optimizer() = default;
  Optimizer(const Optimizer&) = delete;  // a copy would share the moments
  Optimizer& operator=(const Optimizer&) = delete;

  /// Updates every parameter that has a gradient and bumps its version. Parameters may have been converted, moved,
  /// loaded or frozen since the last step: moments follow, and a frozen parameter stays as it is. Everything is checked
  /// before anything changes: DTypeError names a gradient of another dtype than its parameter; ValueError says that no
  /// parameter has a gradient, or names one without that only this optimiser still holds, as after
  /// `model = load_model<Model>(path)`.
  void step();
  /// Forgets all gradients.
  void zero_grad();
  /// Names of the parameters that no step has ever found a gradient on: usually not part of the loss.
  std::vector<std::string> without_gradient() const;

  /// From now on this rank keeps the moments of its share of the parameters only, updates those, and step() sends the new
  /// values to the other ranks (ZeRO stage 1: Rajbhandari et al. 2020). Shares are whole parameters, of nearly equal
  /// bytes. All ranks must have the same gradients (DataParallel); step() and state() are then calls that all ranks
  /// make, and give the bits that an optimiser which is not shared gives.
  void shard(const Communicator& ranks);
  /// The ranks of shard(); one rank before.
  const Communicator& shards() const { return ranks_; }

  /// The learning rate of the next step.
  double lr() const { return lr_; }
  /// ValueError unless finite and >= 0.
  void set_lr(double lr);
  /// Number of calls of step(), also those before a load_state().
  int64_t steps() const { return steps_; }
  /// What it updates.
  const std::vector<NamedTensor>& parameters() const { return parameters_; }

  /// A snapshot (copies): "steps" and, for a parameter w, "w.updates" — i64 scalars — and its moments:
  /// "w.momentum" (Sgd with momentum) or "w.m" and "w.v" (Adam, Lamb); "w.master" of a bf16 parameter.
  /// Options and lr are not part of it: they belong to the program.
  std::map<std::string, Tensor> state() const;
  /// Continues bit for bit where state() was taken. Everything is checked first, so a refusal changes
  /// nothing: IOError names a missing or unknown entry or an impossible count, ShapeError and
  /// DTypeError an entry that does not fit. Messages begin with `op`.
  void load_state(const std::map<std::string, Tensor>& state, const std::string& op = "load_state");
  /// On all ranks what load_state() has just loaded on rank 0, whose `state` is read; theirs is not.
  void load_state_of_rank_0(const std::map<std::string, Tensor>& state, const Communicator& ranks);

 protected:
  /// What is kept beside a parameter. `updates` counts the steps that found a gradient; bias corrections
  /// use it, so a parameter that joins late starts as correctly as one that was there from the first.
  struct Slot {
    std::vector<Tensor> moments = {};  // as the optimiser names them
    Tensor master = {};    // f32, of a bf16 parameter
    uint32_t version = 0;  // that such a parameter had when it was made from the master
    int64_t updates = 0;   // steps that found a gradient
    double lr_factor = 1, weight_decay = 0;  // of its group
  };
  /// A parameter that a step changes.
  struct Due {
    std::size_t index;  // among the parameters
    Tensor w;           // what changes: the parameter, or its master
    Tensor g;           // contiguous, of w's dtype and shape, and overlaps none
    Tensor rounded;     // the parameter that becomes the master's rounded value
    const Slot* slot;   // what is kept beside it
  };
  /// `name` starts error messages; `moments` names the zero-initialised tensors that each slot needs.
  /// ValueError for an empty list, an undefined or strided tensor, a name or a storage that occurs
  /// twice (naming both), an lr that is not finite and >= 0, a group that no parameter belongs to or whose factor or
  /// decay is not finite and >= 0; AutogradError for a tensor that is not a leaf that requires a gradient.
  Optimizer(const char* name, std::vector<NamedTensor> parameters, std::vector<const char*> moments, double lr,
            double weight_decay, const ParameterFilter& decay, const ParameterGroups& groups);

 private:
  friend class GraphedStep;
  /// How often what was updated.
  struct Counts {
    int64_t steps;
    std::vector<int64_t> updates;
  };
  Counts counts() const;
  void set_counts(const Counts& counts);
  /// What is kept beside each parameter gets the dtype and the device that go with those the parameter has now.
  void follow_conversions() const;
  void check_gradients(const std::vector<Tensor>& grads) const;
  /// follow() for all.
  void follow_parameters();
  /// Where the parameter is not its master, rounded, somebody wrote it since: its values become the master's.
  static void follow(const Tensor& w, Slot& slot);
  /// New values for all of them at once.
  virtual void update(const std::vector<Due>& due) = 0;

  bool keeps(std::size_t i) const { return owner_.empty() || owner_[i] == ranks_.rank(); }
  /// What moments of w are made of, and its master if it has one.
  static TensorOptions wide(const Tensor& w) { return {w.dtype() == bf16 ? f32 : w.dtype(), w.device()}; }
  Tensor empty_moment(std::size_t i) const;
  void send_updates(const std::vector<bool>& updated);

  const char* name_;
  Communicator ranks_;
  std::vector<int> owner_;  // of each parameter's moments; empty: not shared
  std::vector<NamedTensor> parameters_;
  std::vector<const char*> moments_;
  mutable std::vector<Slot> slots_;  // see follow_conversions()
  int64_t steps_ = 0;
  double lr_ = 0;
};

/// Names for tensors that have none: "0", "1", ….
std::vector<NamedTensor> numbered(std::vector<Tensor> tensors);

struct SgdOptions {
  double lr = std::numeric_limits<double>::quiet_NaN();  // must be given
  double momentum = 0;
  bool nesterov = false;
  double weight_decay = 0;
  ParameterFilter decay = {};  // which parameters decay; empty: all
  ParameterGroups groups = {};  // with rates of their own

  static void describe(auto& o, auto& f) {
    f("lr", o.lr, at_least(0), "learning rate; must be given");
    f("momentum", o.momentum, share(), "of the mean of gradients");
    f("nesterov", o.nesterov, "step along d + momentum*b");
    f("weight_decay", o.weight_decay, at_least(0), "pulls weights to 0");
  }
};

/// Stochastic gradient descent: d = g + weight_decay·w; b ← momentum·b + d; w ← w − lr·b. Nesterov
/// steps along d + momentum·b (Sutskever et al. 2013). ValueError unless 0 <= momentum < 1,
/// weight_decay >= 0, and momentum > 0 for Nesterov.
class Sgd final : public Optimizer {
 public:
  Sgd(std::vector<NamedTensor> parameters, SgdOptions options);
  Sgd(std::vector<Tensor> parameters, SgdOptions options)
      : Sgd(numbered(std::move(parameters)), std::move(options)) {}

 private:
  void update(const std::vector<Due>& due) override;
  SgdOptions options_;
};

struct AdamOptions {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
  bool decoupled = true;               // AdamW; false adds weight_decay·w to the gradient
  ParameterFilter decay = is_matrix;   // which parameters decay
  ParameterGroups groups = {};  // with rates of their own

  static void describe(auto& o, auto& f) {
    f("lr", o.lr, at_least(0), "learning rate");
    f("beta1", o.beta1, share(), "of the mean of gradients");
    f("beta2", o.beta2, share(), "of the mean of their squares");
    f("eps", o.eps, at_least(0), "added to the root");
    f("weight_decay", o.weight_decay, at_least(0), "pulls weights to 0");
    f("decoupled", o.decoupled, "AdamW; false adds weight_decay*w to the gradient");
  }
};

/// Adam (Kingma & Ba 2015), by default with decoupled weight decay (AdamW, Loshchilov & Hutter 2019):
///   m ← β1·m + (1−β1)·g;  v ← β2·v + (1−β2)·g²;  t: number of updates of this parameter
///   w ← (1 − lr·weight_decay)·w − lr · m/(1−β1^t) / (√(v/(1−β2^t)) + eps)
/// ValueError unless 0 <= beta < 1, eps >= 0 and weight_decay >= 0.
class Adam final : public Optimizer {
 public:
  Adam(std::vector<NamedTensor> parameters, AdamOptions options = {});
  Adam(std::vector<Tensor> parameters, AdamOptions options = {})
      : Adam(numbered(std::move(parameters)), std::move(options)) {}

 private:
  void update(const std::vector<Due>& due) override;
  AdamOptions options_;
};

struct LambOptions {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-6;
  double weight_decay = 0;
  bool bias_correction = true;
  ParameterFilter decay = is_matrix;  // which parameters decay
  ParameterGroups groups = {};  // with rates of their own
  ParameterFilter adapt = {};         // which are scaled by the trust ratio

  static void describe(auto& o, auto& f) {
    f("lr", o.lr, at_least(0), "learning rate");
    f("beta1", o.beta1, share(), "of the mean of gradients");
    f("beta2", o.beta2, share(), "of the mean of their squares");
    f("eps", o.eps, at_least(0), "added to the root");
    f("weight_decay", o.weight_decay, at_least(0), "pulls weights to 0");
    f("bias_correction", o.bias_correction, "of both means");
  }
};

/// LAMB (You et al. 2020, algorithm 2), one trust ratio per tensor:
///   u = m̂ / (√v̂ + eps) + weight_decay·w;  w ← w − lr · ‖w‖/‖u‖ · u
/// with Adam's m̂ and v̂, or m and v without bias correction. The ratio is 1 where a norm is 0 or not
/// finite. ValueError as for Adam.
class Lamb final : public Optimizer {
 public:
  Lamb(std::vector<NamedTensor> parameters, LambOptions options = {});
  Lamb(std::vector<Tensor> parameters, LambOptions options = {})
      : Lamb(numbered(std::move(parameters)), std::move(options)) {}

 private:
  void update(const std::vector<Due>& due) override;
  LambOptions options_;
  std::vector<bool> adapted_;
};

}  // namespace sluice
