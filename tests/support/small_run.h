// A training run that is small, and everything of it that a file can change.
#pragma once

#include <sluice/core/number/random.h>
#include <sluice/layers/nn/mlp.h>
#include <sluice/layers/train/training.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/elementwise/elementwise.h>

#include <string>

namespace sluice::testing {

/// Appends what a tensor holds.
inline void append_bytes(std::string& s, const Tensor& x) {
  const Tensor flat = contiguous(x.detach());
  s.append(reinterpret_cast<const char*>(flat.raw()), static_cast<std::size_t>(flat.numel() * size_of(flat.dtype())));
}

struct SmallRun {
  Mlp net;
  Adam adam;
  Rng rng;

  explicit SmallRun(uint64_t seed) : net(make(seed)), adam(parameters(net)), rng(seed) { step(); }
  void step() {
    for (auto& p : parameters(net)) p.tensor.set_grad(p.tensor.detach() * 2.0);  // runs differ in their moments too
    adam.step();
  }
  void save(const std::string& path) const { save_checkpoint(net, path, adam, rng, {7, {{"a", "b"}}}); }
  void load(const std::string& path) { load_checkpoint(net, path, adam, rng); }
  /// All that a load could change.
  std::string bytes() const {
    std::string s = str(rng.seed(), ' ', rng.offset());
    for (auto& p : state_dict(net)) append_bytes(s, p.tensor);
    for (auto& [name, t] : adam.state()) append_bytes(s, t);
    return s;
  }

 private:
  static Mlp make(uint64_t seed) {
    Rng r(seed);
    return Mlp({.dim = 3, .hidden = 4}, r);
  }
};

}  // namespace sluice::testing
