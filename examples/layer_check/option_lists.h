// One function per options struct, naming each field once: shared by the layers and their costs. Fields that only
// draw initial values, and dropout, are left out: a case gives all weights, and a comparison needs no randomness.
#pragma once

#include "options.h"

#include <sluice/layers/gau/flash.h>
#include <sluice/layers/gau/tutorial_gau.h>
#include <sluice/layers/heads/fused_attention.h>
#include <sluice/layers/heads/gated_attention.h>
#include <sluice/layers/heads/gated_cross_attention.h>
#include <sluice/layers/heads/hierarchical.h>
#include <sluice/layers/linear_time/gla.h>
#include <sluice/layers/linear_time/retention.h>
#include <sluice/layers/nn/gated_residual.h>
#include <sluice/layers/nn/mlp.h>

namespace layer_check {

void mlp_options(Options& v, sluice::MlpOptions& o);
void glu_options(Options& v, sluice::GluOptions& o);
void gau_options(Options& v, sluice::GauOptions& o);
void cross_gau_options(Options& v, sluice::CrossGauOptions& o);
void tutorial_gau_options(Options& v, sluice::TutorialGauOptions& o);
void flash_options(Options& v, sluice::FlashOptions& o);
void linear_attention_options(Options& v, sluice::LinearAttentionOptions& o);
void retention_options(Options& v, sluice::RetentionOptions& o);
void gla_options(Options& v, sluice::GlaOptions& o);
void gated_attention_options(Options& v, sluice::GatedAttentionOptions& o);
void gated_cross_attention_options(Options& v, sluice::GatedCrossAttentionOptions& o);
void gated_residual_options(Options& v, sluice::GatedResidualOptions& o);
void fused_attention_options(Options& v, sluice::FusedAttentionOptions& o);
void gate_options(Options& v, sluice::AttentionGateOptions& o);
void multi_head_options(Options& v, sluice::MultiHeadAttentionOptions& o);

/// A gate and the sizes that its constructor takes.
struct GateCall {
  sluice::AttentionGateOptions gate;
  int64_t dim = 0, heads = 0, head_dim = 0;
  sluice::DType dtype = sluice::f32;
};
void gate_call_options(Options& v, GateCall& o);

/// A stack of layers with windows of their own.
struct StackCall {
  sluice::MultiHeadAttentionOptions layer;
  std::vector<int64_t> windows = {3, 0};
  sluice::AttentionStackOptions module_options() const { return sluice::hierarchical_options(layer, windows); }
};
void stack_options(Options& v, StackCall& o);
struct LocalGlobalCall {
  sluice::MultiHeadAttentionOptions layer;
  sluice::LocalGlobalOptions stages = {};
  sluice::AttentionStackOptions module_options() const { return sluice::local_global_options(layer, stages); }
};
void local_global_stack_options(Options& v, LocalGlobalCall& o);

}  // namespace layer_check
