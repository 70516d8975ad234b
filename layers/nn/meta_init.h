// Construction of layers without memory for their weights.
#pragma once

#include <sluice/core/memory/no_copy.h>

namespace sluice::detail {

/// While it lives, init_weight(), init_vector() and init_normal() of this thread, and whatever else asks initial(),
/// create tensors on meta and draw no numbers. Single numbers stay on their device until to(layer, meta).
struct MetaInit : Restored<bool> {
  MetaInit();
};

}  // namespace sluice::detail
