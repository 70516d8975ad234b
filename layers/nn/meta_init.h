// Layers of any size without memory.
#pragma once

namespace sluice::detail {

/// While it lives, init_weight(), init_vector() and init_normal() of this thread make tensors on meta and draw nothing.
/// What a layer makes besides them is small, and stays where it is until to(layer, meta).
class MetaInit {
 public:
  MetaInit();
  ~MetaInit();
  MetaInit(const MetaInit&) = delete;
  MetaInit& operator=(const MetaInit&) = delete;

 private:
  bool outer_;
};

}  // namespace sluice::detail
