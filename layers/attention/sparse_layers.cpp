#include <sluice/layers/attention/sparse_layers.h>

#include <sluice/layers/attention/sparse_masks.h>
#include <sluice/ops/basic.h>
#include <sluice/parallel/sequence.h>

namespace sluice {

// -- top-k -------------------------------------------------------------------------------------------------

TopKAttention::TopKAttention(TopKAttentionOptions o, Rng& rng)
    : options(checked_layer("topk_attention", o)), heads(options.heads, rng) {}

Tensor TopKAttention::operator()(const Tensor& given, const Pass& pass) const {
  const HeadsOptions& h = options.heads;
  Call call(*this, "topk_attention", given, h.dim, pass);
  call.check_causal(h.causal);
  const auto [q, k, v] = heads.project(h, call.x, call.first(h.use_rope));
  const std::vector<Tensor> rows = call.rows({k, v}, options.window);
  AttentionOptions a{.mask = call.mask(), .bias = pass.bias, .dropout = h.attention_dropout};
  a.mask.causal = h.causal, a.mask.window = options.window;
  const TopKOptions o{.k = options.k, .ties = options.ties, .attention = a};
  return heads.finish(h, topk_attention(q, rows[0], rows[1], o, call.rng()), call.x, call.rng());
}

// -- learned threshold ---------------------------------------------------------------------------------------

PairScore::PairScore(PairScoreOptions o, Rng& rng) : options(o) {
  check_options("pair_score", o);
  const bool mlp = o.kind == PairScoreKind::mlp;
  row = Linear({o.dim, o.width, mlp, o.init, o.dtype}, rng);
  col = Linear({o.dim, o.width, false, o.init, o.dtype}, rng);
  if (!mlp) return;
  distance = reshape(init_weight(1, o.width, o.init, rng, o.dtype).detach(), {o.width}).requires_grad_();
  weight = reshape(init_weight(o.width, 1, o.init, rng, o.dtype).detach(), {o.width}).requires_grad_();
  bias = zeros({}, {o.dtype}).requires_grad_();
}

Tensor PairScore::between(const Tensor& rows, const Tensor& own_cols) const {
  const int64_t m = rows.dim(1);
  const bool same = own_cols.dim(1) == m;
  const auto [first, total] = same ? sequence_piece(m) : SequencePiece{own_cols.dim(1) - m, own_cols.dim(1)};
  const Tensor cols = same ? sequence_rows(own_cols, 1, {0, total}) : own_cols;
  if (options.kind == PairScoreKind::bilinear) return matmul(rows, transpose(cols, -2, -1));
  const TensorOptions whole{i64, rows.device()};  // bf16 has no positions beyond 256
  const Tensor i = arange(first, first + m, 1, whole);
  const Tensor offset = to(unsqueeze(unsqueeze(i, 1) - arange(total, whole), -1), rows.dtype());  // i − j, [m, n, 1]
  const Tensor hidden = unsqueeze(rows, 2) + unsqueeze(cols, 1) + offset * distance;
  return matmul(activate(options.activation, hidden), weight) + bias;
}

Tensor PairScore::operator()(const Tensor& x) const {
  ModuleScope scope(this, type);
  if (x.rank() != 3 || x.dim(-1) != options.dim) fail("pair_score: got x=", x, "; need [batch, n, ", options.dim, "]");
  return between(row(x), col(x));
}

ThresholdAttention::ThresholdAttention(ThresholdAttentionOptions o, Rng& rng)
    : options(checked_layer("threshold_attention", o)), heads(options.heads, rng) {
  const HeadsOptions& h = options.heads;
  score = PairScore({.dim = h.dim, .kind = o.score, .width = o.score_width, .init = h.init, .dtype = h.dtype}, rng);
  tau = full({}, o.tau, {h.dtype}).requires_grad_();
}

Tensor ThresholdAttention::operator()(const Tensor& given, const Pass& pass) const {
  const HeadsOptions& h = options.heads;
  Call call(*this, "threshold_attention", given, h.dim, pass);
  call.check_causal(h.causal);
  const auto [q, k, v] = heads.project(h, call.x, call.first(h.use_rope));
  const std::vector<Tensor> rows = call.rows({k, v, unsqueeze(score.col(call.x), 1)});
  const Tensor f = unsqueeze(score.between(score.row(call.x), squeeze(rows[2], 1)) - tau, 1);
  AttentionOptions a{.mask = call.mask(), .bias = pass.bias, .dropout = h.attention_dropout};
  a.mask.causal = h.causal;
  const ThresholdOptions o{
      .mode = options.mode, .temperature = options.temperature, .include_self = options.include_self, .attention = a};
  return heads.finish(h, threshold_attention(q, rows[0], rows[1], f, o, call.rng()), call.x, call.rng());
}

// -- Sinkhorn ------------------------------------------------------------------------------------------------

SinkhornAttention::SinkhornAttention(SinkhornLayerOptions o, Rng& rng)
    : options(checked_layer("sinkhorn_attention", o, {.grouped = false})), heads(options.heads, rng) {
  detail::refuse_causal("sinkhorn_attention", o.heads.causal);
}

Tensor SinkhornAttention::operator()(const Tensor& given, const Pass& pass) const {
  const HeadsOptions& h = options.heads;
  Call call(*this, "sinkhorn_attention", given, h.dim, pass);
  call.check_causal(false);
  const auto [q, k, v] = heads.project(h, call.x);
  const SinkhornAttentionOptions o{
      .sinkhorn = options.sinkhorn, .keys = call.key_mask(), .top_k = options.top_k, .dropout = h.attention_dropout};
  return heads.finish(h, sinkhorn_attention(q, k, v, o, call.rng()), call.x, call.rng());
}

SinkhornBlockAttention::SinkhornBlockAttention(SinkhornBlockLayerOptions o, Rng& rng)
    : options(checked_layer("sinkhorn_block_attention", o, {.grouped = false})), heads(options.heads, rng) {
  detail::check_sinkhorn_block("sinkhorn_block_attention",
                               {.block = o.block, .sinkhorn = o.sinkhorn, .causal = o.heads.causal});
}

Tensor SinkhornBlockAttention::operator()(const Tensor& given, const Pass& pass) const {
  const HeadsOptions& h = options.heads;
  Call call(*this, "sinkhorn_block_attention", given, h.dim, pass);
  call.check_causal(false);
  const auto [q, k, v] = heads.project(h, call.x);
  const SinkhornBlockOptions o{
      .block = options.block, .sinkhorn = options.sinkhorn, .keys = call.key_mask(), .dropout = h.attention_dropout};
  return heads.finish(h, sinkhorn_block_attention(q, k, v, o, call.rng()), call.x, call.rng());
}

// -- Longformer ------------------------------------------------------------------------------------------------

static MultiHeadAttentionOptions global_local_options(const GlobalLocalLayerOptions& o) {
  return {.heads = checked_layer("global_local_attention", o, {.causal = false}).heads,
          .window = sliding_mask(o.w).window,
          .separate_global_projections = o.separate_global};
}

GlobalLocalAttention::GlobalLocalAttention(GlobalLocalLayerOptions o, Rng& rng)
    : MultiHeadAttention({type, "global_local_attention"}, global_local_options(o), rng), options(o) {
  HeadsOptions h = options.heads = MultiHeadAttention::options.heads;
  if (!o.separate_global) return;
  h.project_out = false;
  const Heads drawn(h, rng);
  global_q = drawn.q, global_k = drawn.k, global_v = drawn.v;
}

}  // namespace sluice
