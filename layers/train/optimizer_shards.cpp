// Optimisers whose moments are distributed over ranks.
#include <sluice/core/node.h>
#include <sluice/layers/train/optimizer.h>
#include <sluice/ops/basic.h>
#include <sluice/parallel/collectives.h>

#include <algorithm>
#include <numeric>

namespace sluice {

void Optimizer::shard(const Communicator& ranks) {
  if (!owner_.empty()) fail<ValueError>(name_, ": shard() was called before");
  if (ranks.size() == 1) return;
  follow_conversions();
  std::string text;
  for (const NamedTensor& p : parameters_) text += str(p.name, ' ', p.tensor.dtype(), p.tensor, '\n');
  ranks.check_same(str("parameters of ", name_), text);
  // Assign the largest parameter first, each to the rank with the smallest load.
  std::vector<std::size_t> order(parameters_.size());
  std::iota(order.begin(), order.end(), 0);
  const auto size = [&](std::size_t i) {  // bytes of one moment; moments of bf16 parameters are f32
    return parameters_[i].tensor.numel() * (parameters_[i].tensor.dtype() == f64 ? 8 : 4);
  };
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return size(a) > size(b); });
  std::vector<int64_t> load(static_cast<std::size_t>(ranks.size()), 0);
  owner_.resize(parameters_.size());
  for (const std::size_t i : order) {
    const auto least = std::min_element(load.begin(), load.end());
    *least += size(i);
    owner_[i] = static_cast<int>(least - load.begin());
  }
  ranks_ = ranks;
  for (std::size_t i = 0; i < slots_.size(); ++i)
    if (!keeps(i)) slots_[i].moments.clear(), slots_[i].master = Tensor();
}

void Optimizer::send_updates(const std::vector<bool>& updated) {
  for (const DType dtype : {f32, f64, bf16}) {
    std::vector<Tensor> mine;
    Device device = cpu;
    bool any = false;
    for (std::size_t i = 0; i < updated.size(); ++i) {
      const Tensor& w = parameters_[i].tensor;
      if (!updated[i] || w.dtype() != dtype) continue;
      any = true, device = w.device();
      if (keeps(i)) mine.push_back(reshape(w, {-1}));
    }
    if (!any) continue;
    const Tensor all = all_gather(mine.empty() ? empty({0}, {dtype, device}) : cat(mine), 0, ranks_);
    int64_t at = 0;
    for (int r = 0; r < ranks_.size(); ++r)
      for (std::size_t i = 0; i < updated.size(); ++i) {
        Tensor& w = parameters_[i].tensor;
        if (!updated[i] || w.dtype() != dtype || owner_[i] != r) continue;
        if (r != ranks_.rank()) copy_(w, reshape(narrow(all, 0, at, w.numel()), w.shape()));
        at += w.numel();
      }
  }
}

Tensor Optimizer::empty_moment(std::size_t i) const {
  const Tensor& w = parameters_[i].tensor;
  return empty(w.shape(), detail::widened(w.options()));
}

}  // namespace sluice
