// What layers with heads have in common.
#include "support/approx.h"
#include "support/catch.h"

#include <sluice/layers/attention/forgetting_attention.h>
#include <sluice/layers/attention/fused_attention.h>
#include <sluice/layers/attention/gated_attention.h>
#include <sluice/layers/attention/gated_cross_attention.h>
#include <sluice/layers/attention/multi_head_attention.h>
#include <sluice/layers/attention/selected_attention.h>
#include <sluice/layers/attention/sparse_layers.h>

namespace sluice::testing {

namespace {

/// The layer of heads alone has the tensors of the one whose other options are at their defaults.
template <class M> void same_layer() {
  INFO(M::type);
  const HeadsOptions heads{.dim = 8, .heads = 2};
  Rng one(3), other(3);
  const M alone(heads, one), full(decltype(M::options){.heads = heads}, other);
  const std::vector<NamedTensor> a = state_dict(alone), b = state_dict(full);
  REQUIRE(a.size() == b.size());
  CHECK(a.size() >= 3);
  for (std::size_t i = 0; i < a.size(); ++i) {
    CHECK(a[i].name == b[i].name);
    CHECK(max_abs_diff(a[i].tensor, b[i].tensor) == 0);
  }
}

}  // namespace

TEST_CASE("heads: a layer takes them alone, and its other options have their defaults", "[layers]") {
  same_layer<MultiHeadAttention>();
  same_layer<GatedAttention>();
  same_layer<GatedCrossAttention>();
  same_layer<FusedAttention>();
  same_layer<ForgettingAttention>();
  same_layer<NsaAttention>();
  same_layer<MobaAttention>();
  same_layer<MsaAttention>();
  same_layer<TopKAttention>();
  same_layer<ThresholdAttention>();
  same_layer<SinkhornAttention>();
  same_layer<SinkhornBlockAttention>();
  same_layer<GlobalLocalAttention>();
  Rng rng(1);
  CHECK(GatedAttention({.dim = 8, .heads = 2, .causal = true}, rng).options.heads.causal);
  CHECK_FALSE(GatedAttention({.heads = {.dim = 8, .heads = 2}}, rng).options.heads.causal);
}

}  // namespace sluice::testing
