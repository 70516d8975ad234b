// The options of calls that are no layer's.
#pragma once

#include "layer.h"

#include <sluice/layers/attention/hierarchical.h>

namespace layer_check {

using sluice::at_least;

/// A gate and the sizes that its constructor takes.
struct GateCall {
  sluice::AttentionGateOptions gate;
  int64_t dim = 0, heads = 0, head_dim = 0;
  sluice::DType dtype = sluice::f32;
  static void describe(auto& o, auto& f) {
    f.required("dim", o.dim, at_least(1), "width of x");
    f.required("heads", o.heads, at_least(1), "heads of y; 1 for g5");
    f.required("head_dim", o.head_dim, at_least(1), "channels of a head; for g5 those of y");
    f.nested("", o.gate);
  }
};

/// A stack of layers with windows of their own.
struct StackCall {
  sluice::MultiHeadAttentionOptions layer;
  std::vector<int64_t> windows = {3, 0};
  sluice::AttentionStackOptions module_options() const { return sluice::hierarchical_options(layer, windows); }
  static void describe(auto& o, auto& f) {
    f("windows", o.windows, at_least(0), "one layer each, bottom to top: keys seen; 0: all");
    f.nested("", o.layer);
  }
};
struct LocalGlobalCall {
  sluice::MultiHeadAttentionOptions layer;
  sluice::LocalGlobalOptions stages = {};
  sluice::AttentionStackOptions module_options() const { return sluice::local_global_options(layer, stages); }
  static void describe(auto& o, auto& f) {
    f.required("stage_window", o.stages.window, at_least(1), "window of the first layer");
    f("stage_dilation", o.stages.dilation, at_least(1), "second layer: keys at multiples of it; 1: all keys");
    f("stage_global_positions", o.stages.global, at_least(0),
      "second layer, not empty: these positions and the window again");
    f.nested("", o.layer);
  }
};

}  // namespace layer_check
