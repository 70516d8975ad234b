#include <sluice/layers/heads/sparse_layers.h>

#include <sluice/core/node.h>
#include <sluice/layers/gau/gau_attention.h>
#include <sluice/layers/nn/heads.h>
#include <sluice/ops/create.h>
#include <sluice/ops/elementwise.h>
#include <sluice/ops/reduce.h>
#include <sluice/ops/view.h>

#include <algorithm>
#include <utility>

namespace sluice {

namespace {

template <class Options>
HeadProjections projections(const char* layer, const Options& o, Rng& rng) {
  return {layer,
          {.dim = o.dim, .heads = o.heads, .head_dim = o.head_dim, .linear_bias = o.linear_bias, .use_rope = o.use_rope,
           .rope = o.rope, .attention_dropout = o.attention_dropout, .init = o.init, .dtype = o.dtype},
          rng};
}

/// x without NaN in padded rows, once its mask is known to fit.
Tensor checked_input(const char* layer, const Tensor& x, int64_t dim, const Tensor& key_mask) {
  if (x.rank() != 3 || x.dim(-1) != dim) fail(layer, ": got x=", x, "; need [batch, n, ", dim, "]");
  if (key_mask.defined() && key_mask.dtype() != boolean)
    fail<DTypeError>(layer, ": key_mask must be bool — got ", key_mask.dtype(), key_mask);
  if (key_mask.defined() && key_mask.shape() != Shape{x.dim(0), x.dim(1)})
    fail(layer, ": key_mask=", key_mask, " does not fit x=", x, "; need [batch, n]");
  return finite_padding(x, key_mask);
}

void check_stream(const char* layer, bool causal) {
  if (!causal) fail<ValueError>(layer, ": only a causal layer can be streamed");
}

}  // namespace

// -- projections -------------------------------------------------------------------------------------------

HeadProjections::HeadProjections(const char* layer, HeadOptions o, Rng& rng) : options(std::move(o)) {
  HeadOptions& h = options;
  if (h.dim < 1 || h.heads < 1 || h.head_dim < 0)
    fail<ValueError>(layer, ": sizes must be positive — got dim=", h.dim, ", heads=", h.heads,
                     ", head_dim=", h.head_dim);
  if (h.head_dim == 0 && h.dim % h.heads != 0)
    fail<ValueError>(layer, ": heads=", h.heads, " must divide dim=", h.dim, ", or head_dim be given");
  if (h.head_dim == 0) h.head_dim = h.dim / h.heads;
  if (!(h.attention_dropout >= 0 && h.attention_dropout < 1))
    fail<ValueError>(layer, ": attention_dropout=", h.attention_dropout, " is outside [0, 1)");
  const int64_t width = h.heads * h.head_dim;
  for (Linear* map : {&query, &key, &value}) *map = Linear({h.dim, width, h.linear_bias, h.init, h.dtype}, rng);
  out = Linear({width, h.dim, h.linear_bias, h.init, h.dtype}, rng);
}

HeadProjections::Projected HeadProjections::operator()(const Tensor& x, int64_t position) const {
  auto heads = [&](const Linear& map) { return detail::split_heads(map(x), options.heads); };
  Projected p{heads(query), heads(key), heads(value)};
  if (!options.use_rope) return p;
  RopeOptions r = options.rope;
  r.offset += position;
  p.q = rope(p.q, r), p.k = rope(p.k, r);
  return p;
}

Tensor HeadProjections::finish(const Tensor& attended) const { return out(detail::merge_heads(attended)); }

// -- top-k -------------------------------------------------------------------------------------------------

TopKAttention::TopKAttention(TopKAttentionOptions o, Rng& rng)
    : options(o), head(projections("topk_attention", o, rng)) {
  if (o.k < 1) fail<ValueError>("topk_attention: k must be positive — got ", o.k);
  if (o.window < 0) fail<ValueError>("topk_attention: window must not be negative — got ", o.window);
}

TopKOptions TopKAttention::attention() const {
  TopKOptions o{.k = options.k, .ties = options.ties};
  o.attention.mask = {.causal = options.causal, .window = options.window};
  return o;
}

Tensor TopKAttention::operator()(const Tensor& x, const Tensor& key_mask, Rng* rng) const {
  ModuleScope scope(this, type);
  const auto p = head(checked_input("topk_attention", x, options.dim, key_mask));
  TopKOptions o = attention();
  o.attention.mask.keys = key_mask;
  o.attention.dropout = options.attention_dropout;
  return head.finish(topk_attention(p.q, p.k, p.v, o, rng));
}

std::pair<Tensor, TopKAttention::State> TopKAttention::step(const Tensor& x, State state) const {
  ModuleScope scope(this, type);
  check_stream("topk_attention", options.causal);
  NoGrad guard;
  const auto p = head(checked_input("topk_attention", x, options.dim, {}), state.length);
  const std::vector<Tensor> rows = state.append({p.k, p.v}, options.window);
  Tensor y = head.finish(topk_attention(p.q, rows[0], rows[1], attention()));
  return {y, std::move(state)};
}

// -- learned threshold ---------------------------------------------------------------------------------------

PairScore::PairScore(PairScoreOptions o, Rng& rng) : options(o) {
  if (o.dim < 1 || o.width < 1)
    fail<ValueError>("pair_score: sizes must be positive — got dim=", o.dim, ", width=", o.width);
  const bool mlp = o.kind == PairScoreKind::mlp;
  row = Linear({o.dim, o.width, mlp, o.init, o.dtype}, rng);
  col = Linear({o.dim, o.width, false, o.init, o.dtype}, rng);
  if (!mlp) return;
  distance = reshape(init_weight(1, o.width, o.init, rng, o.dtype).detach(), {o.width}).requires_grad_();
  weight = reshape(init_weight(o.width, 1, o.init, rng, o.dtype).detach(), {o.width}).requires_grad_();
  bias = zeros({}, {o.dtype}).requires_grad_();
}

Tensor PairScore::between(const Tensor& rows, const Tensor& cols) const {
  if (options.kind == PairScoreKind::bilinear) return matmul(rows, transpose(cols, -2, -1));
  const int64_t m = rows.dim(1), n = cols.dim(1);
  const TensorOptions type_of = rows.options();
  const Tensor i = arange(static_cast<double>(n - m), static_cast<double>(n), 1, type_of), j = arange(n, type_of);
  const Tensor offset = unsqueeze(unsqueeze(i, 1) - unsqueeze(j, 0), -1);  // i − j, [m, n, 1]
  const Tensor hidden = unsqueeze(rows, 2) + unsqueeze(cols, 1) + offset * distance;
  return matmul(activate(options.activation, hidden), weight) + bias;
}

Tensor PairScore::operator()(const Tensor& x) const {
  ModuleScope scope(this, type);
  if (x.rank() != 3 || x.dim(-1) != options.dim) fail("pair_score: got x=", x, "; need [batch, n, ", options.dim, "]");
  return between(row(x), col(x));
}

ThresholdAttention::ThresholdAttention(ThresholdAttentionOptions o, Rng& rng)
    : options(o), head(projections("threshold_attention", o, rng)),
      score({.dim = o.dim, .kind = o.score, .width = o.score_width, .dtype = o.dtype}, rng),
      tau(full({}, o.tau, {o.dtype}).requires_grad_()) {
  if (!(o.temperature > 0)) fail<ValueError>("threshold_attention: temperature must be positive — got ", o.temperature);
}

ThresholdOptions ThresholdAttention::attention() const {
  ThresholdOptions o{.mode = options.mode, .temperature = options.temperature, .include_self = options.include_self};
  o.attention.mask.causal = options.causal;
  return o;
}

Tensor ThresholdAttention::operator()(const Tensor& x, const Tensor& key_mask, Rng* rng) const {
  ModuleScope scope(this, type);
  const Tensor tokens = checked_input("threshold_attention", x, options.dim, key_mask);
  const auto p = head(tokens);
  ThresholdOptions o = attention();
  o.attention.mask.keys = key_mask;
  o.attention.dropout = options.attention_dropout;
  return head.finish(threshold_attention(p.q, p.k, p.v, unsqueeze(score(tokens) - tau, 1), o, rng));
}

std::pair<Tensor, ThresholdAttention::State> ThresholdAttention::step(const Tensor& x, State state) const {
  ModuleScope scope(this, type);
  check_stream("threshold_attention", options.causal);
  NoGrad guard;
  const auto p = head(checked_input("threshold_attention", x, options.dim, {}), state.length);
  const std::vector<Tensor> rows = state.append({p.k, p.v, unsqueeze(score.col(x), 1)});
  const Tensor f = score.between(score.row(x), squeeze(rows[2], 1)) - tau;
  Tensor y = head.finish(threshold_attention(p.q, rows[0], rows[1], unsqueeze(f, 1), attention()));
  return {y, std::move(state)};
}

// -- Sinkhorn ------------------------------------------------------------------------------------------------

SinkhornAttention::SinkhornAttention(SinkhornLayerOptions o, Rng& rng)
    : options(o), head(projections("sinkhorn_attention", o, rng)) {
  if (o.causal) sinkhorn_attention({}, {}, {}, {.causal = true});  // throws
}

Tensor SinkhornAttention::operator()(const Tensor& x, const Tensor& key_mask, Rng* rng) const {
  ModuleScope scope(this, type);
  const auto p = head(checked_input("sinkhorn_attention", x, options.dim, key_mask));
  const SinkhornAttentionOptions o{.sinkhorn = options.sinkhorn, .keys = key_mask, .top_k = options.top_k,
                                   .dropout = options.attention_dropout};
  return head.finish(sinkhorn_attention(p.q, p.k, p.v, o, rng));
}

SinkhornBlockAttention::SinkhornBlockAttention(SinkhornBlockLayerOptions o, Rng& rng)
    : options(o), head(projections("sinkhorn_block_attention", o, rng)) {
  if (o.causal || o.block < 1) sinkhorn_block_attention({}, {}, {}, {.block = o.block, .causal = o.causal});  // throws
}

Tensor SinkhornBlockAttention::operator()(const Tensor& x, const Tensor& key_mask, Rng* rng) const {
  ModuleScope scope(this, type);
  const auto p = head(checked_input("sinkhorn_block_attention", x, options.dim, key_mask));
  const SinkhornBlockOptions o{.block = options.block, .sinkhorn = options.sinkhorn, .keys = key_mask,
                               .dropout = options.attention_dropout};
  return head.finish(sinkhorn_block_attention(p.q, p.k, p.v, o, rng));
}

// -- Longformer ------------------------------------------------------------------------------------------------

GlobalLocalAttention::GlobalLocalAttention(GlobalLocalLayerOptions o, Rng& rng)
    : options(o), head(projections("global_local_attention", o, rng)) {
  if (o.w < 0) fail<ValueError>("global_local_attention: w must not be negative — got ", o.w);
  if (!o.separate_global) return;
  const int64_t width = head.options.heads * head.options.head_dim;
  for (Linear* map : {&global_query, &global_key, &global_value})
    *map = Linear({o.dim, width, o.linear_bias, o.init, o.dtype}, rng);
}

Tensor GlobalLocalAttention::operator()(const Tensor& x, const std::vector<int64_t>& global, const Tensor& key_mask,
                                        Rng* rng) const {
  ModuleScope scope(this, type);
  const Tensor tokens = checked_input("global_local_attention", x, options.dim, key_mask);
  const GlobalLocalOptions o{.w = options.w, .global = global, .keys = key_mask, .dropout = options.attention_dropout};
  const auto p = head(tokens);
  GlobalRows rows;
  if (options.separate_global && !global.empty()) {
    auto heads = [&](const Tensor& y) { return detail::split_heads(y, options.heads); };
    const Tensor positions = to(Tensor::from(global), x.device());
    rows = {heads(global_query(index_select(tokens, 1, positions))), heads(global_key(tokens)),
            heads(global_value(tokens))};
    if (options.use_rope) rows.k = rope(rows.k, options.rope), rows.q = rope_at(rows.q, positions, options.rope);
  }
  return head.finish(global_local_attention(p.q, p.k, p.v, o, rows, rng));
}

}  // namespace sluice
