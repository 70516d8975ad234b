// Streaming: the layer's rows one after the other, from a cache of keys and values.
#include <sluice/layers/heads/multi_head_attention.h>

#include <sluice/core/node.h>

namespace sluice {

MultiHeadAttention::State MultiHeadAttention::start(const Tensor& context, const Tensor& key_mask) const {
  ModuleScope scope(this, type);
  if (!cross()) fail<ValueError>("multi_head_attention: a context needs a layer with context_dim");
  NoGrad guard;
  const Tensor seen = checked_input("multi_head_attention", context, options.heads.context_dim, key_mask, "context");
  State state;
  state.cache.append({keys(seen, 0), values(seen)});
  state.key_mask = key_mask;
  return state;
}

std::pair<Tensor, MultiHeadAttention::State> MultiHeadAttention::step(const Tensor& x, State state) const {
  ModuleScope scope(this, type);
  checked_input("multi_head_attention", x, options.heads.dim);
  NoGrad guard;
  KvCache& cache = state.cache;
  cache.check_batch("multi_head_attention", x);
  const Tensor normed = norm(x), queried = queries(normed, cross() ? 0 : cache.length);
  const int64_t m = x.dim(1);
  std::vector<Tensor> rows;
  if (cross()) {
    if (cache.rings.empty())
      fail<ValueError>("multi_head_attention: cross attention streams from start(context), this state is empty");
    rows = cache.rows();
  } else {
    check_stream("multi_head_attention", options.heads.causal);
    if (options.separate_global_projections)
      fail<ValueError>("multi_head_attention: separate_global_projections cannot be streamed");
    // The last (W − 1)·dilation + 1 keys are all that later queries see, but for global ones.
    const bool bounded = options.window > 0 && options.global.empty();
    const int64_t window = bounded ? (options.window - 1) * options.dilation + 1 : 0;
    const bool ordered = m > 1 || options.position_bias != PositionBias::none || options.dilation > 1;
    const auto order = ordered ? KvCache::Order::position : KvCache::Order::any;
    rows = cache.append({keys(normed, cache.length), values(normed)}, window, order);
  }
  AttentionOptions a = attention_options(m, rows[0].dim(2));
  a.mask.keys = state.key_mask;
  const Tensor attended = attention(queried, rows[0], rows[1], a);
  return {finish(x, normed, attended, nullptr), std::move(state)};
}

}  // namespace sluice
