#include <sluice/layers/train/models.h>

#include <sluice/autograd/walk.h>
#include <sluice/core/node.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/shape/create.h>

#include <map>
#include <set>
#include <unordered_set>

namespace sluice::detail {

/// The tensor of `from` for each slot of `to`, in the order of slots. Throws ValueError unless names and shapes agree.
static std::vector<Tensor> matched(const char* op, const Members& from, const Members& to) {
  std::map<std::string, Tensor> sources;
  for (const auto& s : from.slots) sources[s.name] = *s.tensor;
  std::vector<Tensor> found;
  for (const auto& s : to.slots) {
    const auto source = sources.find(s.name);
    if (source == sources.end()) fail<ValueError>(op, ": the source has no tensor \"", s.name, "\" ", *s.tensor);
    if (source->second.shape() != s.tensor->shape())
      fail<ValueError>(op, ": shapes of \"", s.name, "\" differ — got ", source->second, " for ", *s.tensor);
    found.push_back(source->second);
    sources.erase(source);
  }
  if (!sources.empty())
    fail<ValueError>(op, ": there is no place for the source's tensor \"", sources.begin()->first, "\" ",
                     sources.begin()->second);
  return found;
}

void copy_state(const Members& from, const Members& to) {
  const std::vector<Tensor> sources = matched("copy_state", from, to);
  NoGrad guard;
  std::map<std::string, Tensor> state;
  for (std::size_t i = 0; i < sources.size(); ++i)
    state[to.slots[i].name] = sluice::to(sources[i], to.slots[i].tensor->dtype());
  load_state(to, state, true, "copy_state");
}

void update_average(const Members& average, const Members& model, double decay) {
  if (!(decay >= 0 && decay <= 1)) fail<ValueError>("update_average: decay ", decay, " is outside [0, 1]");
  const std::vector<Tensor> sources = matched("update_average", model, average);
  std::set<const Storage*> trained;
  for (const Tensor& x : sources)
    if (x.requires_grad()) trained.insert(x.impl().storage.get());
  for (const auto& s : average.slots)
    if (trained.contains(s.tensor->impl().storage.get()))
      fail<ValueError>("update_average: \"", s.name,
                       "\" is the same memory in the average and the model; begin with average = clone(model)");
  NoGrad guard;
  std::set<const TensorImpl*> done;  // update a tensor that two members share once
  for (std::size_t i = 0; i < sources.size(); ++i) {
    Tensor& mean = *average.slots[i].tensor;
    const bool parameter = sources[i].requires_grad() || sources[i].impl().frozen;
    if (!done.insert(mean.ref().get()).second || (decay == 1 && parameter)) continue;
    if (!parameter || decay == 0) {  // 0·NaN would stay
      copy_(mean, sources[i]);
      continue;
    }
    const Tensor now = sluice::to(sluice::to(sources[i].detach(), mean.dtype()), mean.device());
    // decay and 1 - decay, each rounded, need not add up to 1. Equal infinities have no difference.
    add_(mean, where(now == mean, 0, now - mean), 1 - decay);
  }
}

std::vector<NamedTensor> freeze(const Members& m, const ParameterFilter& which) {
  std::vector<NamedTensor> frozen;
  std::unordered_set<const TensorImpl*> done;
  for (const auto& s : m.slots) {  // a tied tensor by any of its names
    const NamedTensor p{s.name, *s.tensor};
    if (!p.tensor.requires_grad() || (which && !which(p)) || !done.insert(p.tensor.ref().get()).second) continue;
    if (!p.tensor.is_leaf())
      fail<AutogradError>("freeze: '", p.name, "' ", p.tensor, " is the result of an op, not a parameter");
    frozen.push_back(p);
  }
  for (NamedTensor& p : frozen) p.tensor.requires_grad_(false);
  return frozen;
}

void replace_parameters(const Members& m, const std::vector<Tensor>& values) {
  const std::vector<NamedTensor> before = tensors_of(m, true);
  if (values.size() != before.size())
    fail<ValueError>("with_parameters: ", values.size(), " values for ", before.size(), " parameters");
  std::map<const TensorImpl*, Tensor> now;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto& [name, w] = before[i];
    const Tensor& x = values[i];
    if (!x.defined()) fail<ValueError>("with_parameters: the value of \"", name, "\" ", w, " is undefined");
    if (x.shape() != w.shape() || x.dtype() != w.dtype() || x.device() != w.device())
      fail<ValueError>("with_parameters: \"", name, "\" needs ", w.dtype(), w, " on ", w.device(), " — got ", x.dtype(),
                       x, " on ", x.device());
    now[w.ref().get()] = x;
  }
  for (const auto& s : m.slots)
    if (const auto value = now.find(s.tensor->ref().get()); value != now.end()) *s.tensor = value->second;
}

std::vector<std::string> unlisted(const Members& m, const Tensor& loss) {
  if (!loss.requires_grad())
    fail<AutogradError>("unlisted: the loss has no history — got ", loss,
                        "; compute it from parameters, outside NoGrad");
  std::unordered_set<const Node*> listed;
  for (const auto& s : m.slots) listed.insert(s.tensor->impl().history.get());
  std::vector<std::string> found;
  const Edge root = edge_of(loss);
  each_node({&root, 1}, [&](const Node& node) {
    for (const Edge& e : node.edges)
      if (e.node && e.node->is_leaf() && listed.insert(e.node.get()).second)
        found.push_back(str(e.node->outputs[0].dtype, e.node->outputs[0].shape, ", read by ", node.name()));
  });
  return found;
}

}  // namespace sluice::detail
