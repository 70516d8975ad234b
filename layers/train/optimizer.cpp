#include <sluice/layers/train/optimizer.h>

#include <sluice/core/node.h>
#include <sluice/ops/basic.h>
#include <sluice/parallel/collectives.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <set>

namespace sluice {

using namespace detail;

namespace {

bool not_negative(double x) { return std::isfinite(x) && x >= 0; }
void check_lr(const char* op, double lr) {
  if (!not_negative(lr)) fail<ValueError>(op, ": lr must be given, finite and >= 0 — got ", lr);
}
void check_parameter(const char* op, const NamedTensor& p) {
  if (!p.tensor.defined()) fail<ValueError>(op, ": parameter '", p.name, "' is undefined");
  if (!p.tensor.requires_grad())
    fail<AutogradError>(op, ": parameter '", p.name, "' of shape ", p.tensor,
                        " does not require a gradient; call requires_grad_() or leave it out");
  if (!p.tensor.is_leaf())
    fail<AutogradError>(op, ": '", p.name, "' of shape ", p.tensor, " is the result of ",
                        p.tensor.impl().history->name(), "; only leaves collect gradients");
  if (!p.tensor.is_contiguous())
    fail<ValueError>(op, ": parameter '", p.name, "' of shape ", p.tensor,
                     " is strided; make the leaf from contiguous() or clone(); load_model_files() with {.map = false}");
}

}  // namespace

bool is_matrix(const NamedTensor& p) { return p.tensor.rank() >= 2; }

std::vector<NamedTensor> numbered(std::vector<Tensor> tensors) {
  std::vector<NamedTensor> named;
  named.reserve(tensors.size());
  for (Tensor& t : tensors) named.push_back({str(named.size()), std::move(t)});
  return named;
}

// -- the common part of all optimisers ---------------------------------------------------------------

Optimizer::Optimizer(const char* name, std::vector<NamedTensor> parameters, std::vector<const char*> moments, double lr,
                     double weight_decay, const ParameterFilter& decay, const ParameterGroups& groups,
                     const ParameterFilter& one_moment)
    : name_(name), parameters_(std::move(parameters)), moments_(std::move(moments)), lr_(lr) {
  if (parameters_.empty()) fail<ValueError>(name, ": the list of parameters is empty");
  check_lr(name, lr);
  std::set<std::string> names;
  std::map<const Storage*, const NamedTensor*> owners;
  for (const NamedTensor& p : parameters_) {
    check_parameter(name, p);
    const auto [first, is_new] = owners.try_emplace(p.tensor.impl().storage.get(), &p);
    if (!is_new)
      fail<ValueError>(name, ": parameters '", first->second->name, "' and '", p.name,
                       "' share their storage; list shared parameters once");
    if (!names.insert(p.name).second)
      fail<ValueError>(name, ": two parameters are called '", p.name, "'; make several models members of one struct");
  }
  for (const ParameterGroup& group : groups)
    if (!not_negative(group.lr_factor) || !not_negative(group.weight_decay.value_or(0)))
      fail<ValueError>(name, ": lr_factor and weight_decay of a group must be finite and >= 0 — got ", group.lr_factor,
                       " and ", group.weight_decay.value_or(0));
  std::vector<bool> used(groups.size());
  for (const NamedTensor& p : parameters_) {
    Slot slot{.weight_decay = !decay || decay(p) ? weight_decay : 0,
              .count = one_moment && one_moment(p) ? 1 : moments_.size()};
    for (std::size_t k = 0; k < groups.size(); ++k) {
      if (groups[k].members && !groups[k].members(p)) continue;
      slot.lr_factor = groups[k].lr_factor, slot.weight_decay = groups[k].weight_decay.value_or(slot.weight_decay);
      used[k] = true;
      break;
    }
    for (std::size_t k = 0; k < slot.count; ++k)
      slot.moments.push_back(zeros(p.tensor.shape(), widened(p.tensor.options())));
    slots_.push_back(std::move(slot));
  }
  follow_conversions();  // creates the masters of bf16 parameters
  for (std::size_t k = 0; k < groups.size(); ++k)
    if (const ParameterFilter& chosen = groups[k].members; !used[k])
      fail<ValueError>(
          name, ": no parameter belongs to groups[", k, "]: ",
          !chosen || std::any_of(parameters_.begin(), parameters_.end(), chosen)
              ? "earlier groups have all that it chooses"
              : str("it chooses none of ", parameters_.size(), " parameters, which are '", parameters_.front().name,
                    "' … '", parameters_.back().name, "'; frozen ones are not in parameters(model)"));
}

void Optimizer::follow_conversions() const {
  NoGrad guard;
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    if (!keeps(i)) continue;
    const Tensor& w = parameters_[i].tensor;
    const auto [dtype, device] = widened(w.options());
    Slot& slot = slots_[i];
    for (Tensor& moment : slot.moments) moment = to(to(moment, dtype), device);
    if (slot.master.defined()) slot.master = w.dtype() == bf16 ? to(slot.master, device) : Tensor();
    else if (w.dtype() == bf16) slot.master = to(w.detach(), f32), slot.version = w.version();
  }
}

/// Throws ValueError if a step would train nothing, or if a parameter without a gradient belongs to no model.
void Optimizer::check_gradients(const std::vector<Tensor>& grads) const {
  bool any = false;
  std::size_t frozen = 0;
  for (std::size_t i = 0; i < grads.size(); ++i) {
    const Tensor& w = parameters_[i].tensor;
    any = any || grads[i].defined();
    frozen += !w.requires_grad();
    if (!grads[i].defined()) check_owner(i);
  }
  if (any) return;
  if (frozen == grads.size())
    fail<ValueError>(name_, ": all ", frozen, " parameters are frozen — thaw some with requires_grad_()");
  fail<ValueError>(name_, ": none of ", grads.size(), " parameters has a gradient — call backward(loss) first");
}

void Optimizer::check_owner(std::size_t i) const {
  const auto& [name, w] = parameters_[i];
  if (w.ref()->use_count() == 1)
    fail<ValueError>(name_, ": parameter '", name, "' of shape ", w,
                     " belongs to no model any more, only to this optimiser: the model was ",
                     "replaced or moved to meta — make the optimiser after that, of parameters(model)");
}

/// The gradient of each parameter, contiguous and in memory that no parameter has; undefined where there is none.
static std::vector<Tensor> gradients_of(const char* op, const std::vector<NamedTensor>& parameters) {
  std::vector<Tensor> grads;
  for (const auto& [name, w] : parameters) {
    const Tensor g = grads.emplace_back(w.grad());
    if (!g.defined()) continue;
    if (g.dtype() != w.dtype())
      fail<DTypeError>(op, ": parameter '", name, "' is ", w.dtype(), ", its gradient ", g.dtype());
    if (g.device() != w.device())
      fail<DeviceError>(op, ": parameter '", name, "' is on ", w.device(), ", its gradient on ", g.device());
    // set_grad() may have given it the memory of a parameter, which update() would change.
    const auto holds = [&](const NamedTensor& p) { return p.tensor.shares_storage(g); };
    if (!g.is_contiguous() ||
        (g.impl().storage->use_count() > 1 && std::any_of(parameters.begin(), parameters.end(), holds)))
      grads.back() = clone(g);
  }
  return grads;
}

/// The gradients of this step, of the same parameters on all ranks of shard().
std::vector<Tensor> Optimizer::checked_gradients() const {
  std::vector<Tensor> grads;
  std::string mask;
  std::exception_ptr failed;
  try {
    grads = gradients_of(name_, parameters_);
    check_gradients(grads);
    for (const Tensor& g : grads) mask += g.defined() ? 'x' : '-';
  } catch (const std::exception& e) {
    if (owner_.empty()) throw;
    failed = std::current_exception(), mask = str("an error: ", e.what());  // the other ranks must hear of it
  }
  if (!owner_.empty()) ranks_.check_same(str(name_, ": parameters that have a gradient (x), or an error"), mask);
  if (failed) std::rethrow_exception(failed);  // all ranks fail with the same words
  return grads;
}

void Optimizer::step() {
  NoGrad guard;
  follow_conversions();
  std::vector<Tensor> grads = checked_gradients();
  const Counts before = counts();
  std::vector<bool> updated;
  std::vector<Due> due;
  updated.reserve(slots_.size()), due.reserve(slots_.size());
  ++steps_;
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    updated.push_back(grads[i].defined());
    if (!updated[i]) continue;
    const Tensor& w = parameters_[i].tensor;
    Slot& slot = slots_[i];
    ++slot.updates;
    if (!keeps(i)) continue;
    const bool rounds = slot.master.defined();
    due.push_back({i, rounds ? slot.master : w, std::move(grads[i]), rounds ? w : Tensor(), &slot});
  }
  try {
    for (const Due& d : due)
      if (d.rounded.defined()) follow(d.rounded, slots_[d.index]);
    update(due);
  } catch (...) {  // no memory: the step does not count, but values that it has already updated stay
    set_counts(before);
    for (const Due& d : due) parameters_[d.index].tensor.bump_version();
    throw;
  }
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    if (!updated[i]) continue;
    parameters_[i].tensor.bump_version();
    slots_[i].version = parameters_[i].tensor.version();
  }
  if (!owner_.empty()) send_updates(updated);
}

void Optimizer::follow(const Tensor& w, Slot& slot) {
  if (w.version() == slot.version) return;
  const Tensor now = to(w.detach(), f32);
  // In place, because recorded steps read this memory (GraphedStep).
  copy_(slot.master, where(now == to(to(slot.master, bf16), f32), slot.master, now));
}
void Optimizer::follow_parameters() {
  NoGrad guard;
  follow_conversions();
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    const Tensor& w = parameters_[i].tensor;
    if (slots_[i].master.defined()) follow(w, slots_[i]), slots_[i].version = w.version();
  }
}

Optimizer::Counts Optimizer::counts() const {
  Counts counts{steps_, {}};
  for (const Slot& slot : slots_) counts.updates.push_back(slot.updates);
  return counts;
}
void Optimizer::set_counts(const Counts& counts) {
  steps_ = counts.steps;
  for (std::size_t i = 0; i < slots_.size(); ++i) slots_[i].updates = counts.updates[i];
}

void Optimizer::zero_grad() {
  for (NamedTensor& p : parameters_) p.tensor.zero_grad();
}

std::vector<std::string> Optimizer::without_gradient() const {
  std::vector<std::string> names;
  for (std::size_t i = 0; i < slots_.size(); ++i)
    if (slots_[i].updates == 0) names.push_back(parameters_[i].name);
  return names;
}

void Optimizer::set_lr(double lr) {
  check_lr("set_lr", lr);
  lr_ = lr;
}

template <class F> void Optimizer::each_tensor(std::size_t i, F f) const {
  const auto& [name, w] = parameters_[i];
  for (std::size_t k = 0; k < slots_[i].count; ++k)
    f(str(name, '.', moments_[k]), keeps(i) ? &slots_[i].moments[k] : nullptr);
  if (w.dtype() == bf16) f(name + ".master", keeps(i) ? &slots_[i].master : nullptr);
}

std::map<std::string, Tensor> Optimizer::state() const {
  std::map<std::string, Tensor> s;
  each_entry([&](const std::string& name, const Tensor& x) { s[name] = owner_.empty() ? clone(x) : x; });
  return s;
}

void Optimizer::each_entry(const std::function<void(const std::string&, const Tensor&)>& f) const {
  NoGrad guard;
  follow_conversions();
  f("steps", Tensor::from<int64_t>({steps_}, {}));
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    f(parameters_[i].name + ".updates", Tensor::from<int64_t>({slots_[i].updates}, {}));
    each_tensor(i, [&](const std::string& name, const Tensor* own) {
      f(name, owner_.empty() ? *own : broadcast(own ? *own : empty_moment(i), owner_[i], ranks_));
    });
  }
}

void Optimizer::load_state(const std::map<std::string, Tensor>& state, const std::string& op) {
  follow_conversions();
  std::set<std::string> known;
  auto entry = [&](const std::string& key, const Shape& shape, DType dtype) -> const Tensor& {
    const auto found = state.find(key);
    if (found == state.end() || !found->second.defined())
      fail<IOError>(op, ": ", name_, " misses the entry '", key,
                    "'; if the parameter was frozen when the file's optimiser was made, freeze it before this one is");
    const Tensor& t = found->second;
    if (t.shape() != shape) fail(op, ": shape of '", key, "' differs — got ", t, "; need ", shape);
    if (t.dtype() != dtype) fail<DTypeError>(op, ": dtype of '", key, "' differs — got ", t.dtype(), "; need ", dtype);
    known.insert(key);
    return t;
  };
  auto count = [&](const std::string& key) {
    const auto n = entry(key, {}, i64).item<int64_t>();
    if (n < 0 || n > int64_t{1} << 53)  // leaves room for later steps
      fail<IOError>(op, ": '", key, "' must be between 0 and 2^53 — got ", n);
    return n;
  };
  const int64_t steps = count("steps");
  std::vector<int64_t> updates;
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    const std::string& name = parameters_[i].name;
    const Tensor& w = parameters_[i].tensor;  // clang 14 cannot capture a structured binding
    updates.push_back(count(name + ".updates"));
    if (updates.back() > steps)
      fail<IOError>(op, ": '", name, ".updates' is ", updates.back(), ", more than ", steps, " steps");
    each_tensor(i, [&](const std::string& key, const Tensor*) { entry(key, w.shape(), widened(w.dtype())); });
  }
  // A parameter that was bf16 when the file was written, and is f32 now, has a master there.
  for (const auto& [name, w] : parameters_)
    if (w.dtype() == f32) known.insert(name + ".master");
  for (const auto& [key, t] : state)
    if (!known.contains(key))
      fail<IOError>(op, ": ", name_, " has no entry '", key,
                    "'; if it is of a frozen parameter, make the optimiser before freeze(), as the file's was");

  steps_ = steps;
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    slots_[i].updates = updates[i];
    each_tensor(i, [&](const std::string& key, Tensor* own) {
      if (own) copy_elements(state.at(key), *own);
    });
    slots_[i].version = parameters_[i].tensor.version() - 1;  // follow() must compare: master and parameter may differ
  }
}

void Optimizer::load_state_of_rank_0(const std::map<std::string, Tensor>& state, const Communicator& ranks) {
  if (ranks.size() == 1) return;
  NoGrad guard;
  follow_conversions();
  std::vector<int64_t> counts{steps_};
  for (const Slot& slot : slots_) counts.push_back(slot.updates);
  counts = broadcast(Tensor::from(counts), 0, ranks).to_vector<int64_t>();
  steps_ = counts[0];
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    slots_[i].updates = counts[i + 1];
    each_tensor(i, [&](const std::string& key, Tensor* own) {
      const Device device = parameters_[i].tensor.device();
      const Tensor x = broadcast(ranks.rank() == 0 ? to(state.at(key), device) : empty_moment(i), 0, ranks);
      if (own) copy_(*own, x);
    });
    slots_[i].version = parameters_[i].tensor.version() - 1;  // as in load_state()
  }
}

}  // namespace sluice
