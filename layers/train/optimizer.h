// What all optimisers share: parameters in groups, steps, state, moments that are distributed over ranks.
//
// Updates of a bf16 parameter would be lost by rounding. Therefore it gets a master copy in f32. The optimiser updates
// the master, with moments in f32, and the parameter is the rounded master.
#pragma once

#include <sluice/layers/nn/named_tensor.h>
#include <sluice/layers/train/clip.h>
#include <sluice/parallel/communicator.h>

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace sluice {

/// Chooses parameters; an empty function chooses all, and none as MuonOptions::matrices.
using ParameterFilter = std::function<bool(const NamedTensor&)>;
/// True for rank 2 and above: weights, but also biases and gains of several rows (`gamma` and `beta` of GAU, experts).
bool is_matrix(const NamedTensor& p);

/// Parameters with their own learning rate or their own weight decay:
///
///   Adam adam(parameters(model), {.lr = 3e-4, .weight_decay = 0.1, .groups = {
///       {[](const NamedTensor& p) { return p.name.starts_with("head."); }, /*lr_factor=*/10},
///       {[](const NamedTensor& p) { return p.name.ends_with(".gain"); }, 1, /*weight_decay=*/0.0}}});
///
/// Each parameter belongs to the first group that chooses it. A parameter that no group chooses follows the options of
/// the optimiser. Learning rates of groups are factors, so set_lr() and schedules apply to all groups.
struct ParameterGroup {
  ParameterFilter members;                  // chooses the members
  double lr_factor = 1;                     // the group's learning rate is lr_factor · lr
  std::optional<double> weight_decay = {};  // of all members; default: weight_decay and decay of the optimiser
};
/// Groups, in order: the first group that chooses a parameter has it.
using ParameterGroups = std::vector<ParameterGroup>;

/// The common part of Sgd, RmsProp, Adam, Lamb, Lion and Muon.
class Optimizer : private NoCopy {
 public:
  virtual ~Optimizer() = default;

  /// Updates every parameter that has a gradient and increments its version. Parameters may have been converted, moved,
  /// loaded or frozen since the last step: moments follow conversions, and a frozen parameter stays unchanged. Checks
  /// all gradients before the first parameter changes. Throws DTypeError or DeviceError naming a parameter whose
  /// gradient has another dtype or device, ValueError if no parameter has a gradient, and ValueError naming one that
  /// has no gradient and no owner except this optimiser, as after `model = load_model<Model>(path)`. After shard() all
  /// ranks throw CommunicationError if one of these fails on some, or if they have gradients of different parameters.
  void step();
  /// Clears all gradients.
  void zero_grad();
  /// "adam", "muon", …: what errors and checkpoints call it.
  const char* name() const { return name_; }
  /// Names of the parameters that had no gradient in any step. Usually the loss does not depend on such a parameter.
  std::vector<std::string> without_gradient() const;

  /// Distributes the moments over ranks (ZeRO stage 1: Rajbhandari et al. 2020). From now on this rank keeps the
  /// moments of its share of the parameters only and updates this share, and step() sends the new values to the other
  /// ranks. Shares are whole parameters, of nearly equal bytes. All ranks must have the same gradients (DataParallel),
  /// and must call step() and state() together. The bits are those without shard(). ValueError when called twice.
  void shard(const Communicator& ranks);
  /// The ranks of shard(); one rank without shard().
  const Communicator& shards() const { return ranks_; }

  /// The learning rate of the next step.
  double lr() const { return lr_; }
  /// Throws ValueError unless lr is finite and >= 0.
  void set_lr(double lr);
  /// Number of calls of step(), including those before the state() that load_state() loaded.
  int64_t steps() const { return steps_; }
  /// The parameters that step() updates.
  const std::vector<NamedTensor>& parameters() const { return parameters_; }

  /// Returns a snapshot (copies): "steps"; for each parameter w "w.updates" and its moments, "w.momentum" (Sgd and
  /// RmsProp with momentum), "w.m" (all but Sgd; RmsProp if centered) and "w.v" (RmsProp, Adam, Lamb, Muon but for its
  /// matrices); for a bf16 parameter also "w.master". Counts are i64 scalars. Options and lr are not part of the state:
  /// they belong to the program.
  std::map<std::string, Tensor> state() const;
  /// Calls f with the entries of state(), one at a time: the optimiser's own tensors without shard(), else copies, of
  /// which a rank need not keep any.
  void each_entry(const std::function<void(const std::string& name, const Tensor& x)>& f) const;
  /// Continues bit for bit from a state(). Checks everything before the first change. Throws IOError naming a missing
  /// or unknown entry or an impossible count, ShapeError or DTypeError naming an entry that does not fit. Messages
  /// begin with `op`.
  void load_state(const std::map<std::string, Tensor>& state, const std::string& op = "load_state");
  /// Gives all ranks the state that load_state() has loaded on rank 0, who alone reads `state`. All ranks call it.
  void load_state_of_rank_0(const std::map<std::string, Tensor>& state, const Communicator& ranks);

 protected:
  /// The optimiser's data of one parameter. Bias corrections use `updates`, so that they are right for a parameter that
  /// gets its first gradient late.
  struct Slot {
    std::vector<Tensor> moments = {};        // in the order of the constructor's `moments`
    Tensor master = {};                      // f32, of a bf16 parameter
    uint32_t version = 0;                    // version of a bf16 parameter when it was last set from the master
    int64_t updates = 0;                     // number of steps with a gradient
    double lr_factor = 1, weight_decay = 0;  // of the parameter's group
    std::size_t count = 0;                   // number of moments; `moments` is empty where another rank keeps them
  };
  /// A parameter that a step changes.
  struct Due {
    std::size_t index;  // index of the parameter
    Tensor w;           // the tensor that changes: the parameter, or its master
    Tensor g;           // the gradient: contiguous, shape of w, dtype of the parameter, overlaps no parameter
    Tensor rounded;     // the bf16 parameter, which gets the rounded master; else undefined
    const Slot* slot;   // the parameter's slot
  };
  /// `name` begins error messages. `moments` are the names of the zero-initialised tensors that each slot needs; a
  /// parameter that `one_moment` chooses needs the first alone. Throws ValueError for an empty list, an undefined or
  /// strided tensor, a name or a storage that occurs twice (naming both), an lr that is not finite and >= 0, a group
  /// without parameters, and a group whose factor or decay is not finite and >= 0. Throws AutogradError for a tensor
  /// that is not a leaf or does not require a gradient.
  Optimizer(const char* name, std::vector<NamedTensor> parameters, std::vector<const char*> moments, double lr,
            double weight_decay, const ParameterFilter& decay, const ParameterGroups& groups,
            const ParameterFilter& one_moment = {});

 private:
  friend class GraphedStep;
  /// The numbers of steps and of updates of each parameter.
  struct Counts {
    int64_t steps;
    std::vector<int64_t> updates;
  };
  Counts counts() const;
  void set_counts(const Counts& counts);
  /// Converts moments and masters to what the present dtypes and devices of their parameters need.
  void follow_conversions() const;
  void check_gradients(const std::vector<Tensor>& grads) const;
  std::vector<Tensor> checked_gradients() const;
  /// follow() for all bf16 parameters.
  void follow_parameters();
  /// Copies values of the parameter to the master where the parameter differs from the rounded master, because the
  /// program has written the parameter.
  static void follow(const Tensor& w, Slot& slot);
  /// Computes the new values of all of `due`.
  virtual void update(const std::vector<Due>& due) = 0;
  /// True if update() only calls the optimiser kernels, whose rates a GraphedStep can renew.
  virtual bool recordable() const { return false; }
  /// ValueError if nothing but this optimiser owns parameter i.
  void check_owner(std::size_t i) const;

  /// True if this rank keeps the moments of parameter i.
  bool keeps(std::size_t i) const { return owner_.empty() || owner_[i] == ranks_.rank(); }
  Tensor empty_moment(std::size_t i) const;
  /// Calls f(name, tensor) for what belongs to parameter i in state(), but for its count: its moments, and the master
  /// of a bf16 parameter. A tensor that another rank keeps is null.
  template <class F> void each_tensor(std::size_t i, F f) const;
  void send_updates(const std::vector<bool>& updated);

  const char* name_;
  Communicator ranks_;
  std::vector<int> owner_;  // the rank that keeps each parameter's moments; empty without shard()
  std::vector<NamedTensor> parameters_;
  std::vector<const char*> moments_;
  mutable std::vector<Slot> slots_;  // mutable for follow_conversions()
  int64_t steps_ = 0;
  double lr_ = 0;
};

/// Names tensors "0", "1", ….
std::vector<NamedTensor> numbered(std::vector<Tensor> tensors);

}  // namespace sluice
