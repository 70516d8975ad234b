// Construction of layers without memory for their weights.
#pragma once

#include <sluice/core/memory/no_copy.h>

namespace sluice {

/// While it lives, the weights of layers that this thread makes are on meta: they have shapes and no memory, and no
/// numbers are drawn. For the cost of a model larger than memory, and for a model that load_pytorch() fills:
///
///   const MetaInit shapes_only;
///   const Model model(rng);
///   const Cost c = cost_of(model, [&](const Model& m) { m(zeros({1, n}, {i64, meta})); });
///
/// Applies to layers of the library, and in others to init_weight(), init_vector() and init_normal(). Tensors that a
/// layer makes otherwise stay where they are until to(layer, meta): single numbers, the decays γ of Retention,
/// LinearAttention and LightningAttention, and the results of zeros() and similar functions.
struct MetaInit : detail::Restored<bool> {
  [[nodiscard]] MetaInit();
};

}  // namespace sluice
