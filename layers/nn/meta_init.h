// Construction of layers without memory for their weights.
#pragma once

namespace sluice::detail {

/// While it lives, init_weight(), init_vector() and init_normal() of this thread create tensors on meta and draw no
/// numbers. The other tensors of a layer are small, and stay on their device until to(layer, meta).
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
