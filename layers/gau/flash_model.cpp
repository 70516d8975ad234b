#include <sluice/layers/gau/flash_model.h>

#include <sluice/layers/nn/heads.h>
#include <sluice/ops/basic.h>
#include <sluice/parallel/sequence.h>

#include <cmath>

namespace sluice {

// -- positions ---------------------------------------------------------------------------------------------------

ScaledSinusoidal::ScaledSinusoidal(ScaledSinusoidalOptions o) : options(o) {
  check_options("scaled_sinusoidal", o);
  if (o.dim % 2 != 0) fail<ValueError>("scaled_sinusoidal: dim must be even — got ", o.dim);
  scale = init_vector(1, o.initial_scale != 0 ? o.initial_scale : 1 / std::sqrt(static_cast<double>(o.dim)), o.dtype);
}

Tensor ScaledSinusoidal::operator()(const Tensor& x, const Pass& pass) const {
  ModuleScope scope(this, type);
  const auto [dim, initial, base, dtype] = options;
  if (x.rank() != 3 || x.dim(2) != dim) fail("scaled_sinusoidal: got x=", x, "; need [batch, n, ", dim, "]");
  const int64_t n = x.dim(1), first = first_position(n, pass, "scaled_sinusoidal");
  // Angles are in f64: in f32 the angle of position 10⁵ would have an error of 0.004.
  Tensor c = arange(0, static_cast<double>(dim / 2), 1, {f64, scale.device()});
  Tensor frequency = exp(c * (-2 * std::log(base) / static_cast<double>(dim)));
  Tensor position = arange(static_cast<double>(first), static_cast<double>(first + n), 1, {f64, scale.device()});
  Tensor angle = unsqueeze(position, 1) * unsqueeze(frequency, 0);
  return x + to(cat({sin(angle), cos(angle)}, 1), scale.dtype()) * scale;
}

// -- the stack ---------------------------------------------------------------------------------------------------

FlashBlock::FlashBlock(FlashBlockOptions o, Rng& rng) : options(o) {
  check_options("flash_block", o);
  for (int64_t i = 0; i < o.layers; ++i) layers.emplace_back(o.layer, rng);
}

Tensor FlashBlock::operator()(const Tensor& x, const Pass& pass) const {
  ModuleScope scope(this, type);
  Tensor y = x;
  for (const Flash& layer : layers) y = layer(y, pass);
  return y;
}

// -- the model ---------------------------------------------------------------------------------------------------

FlashModel::FlashModel(FlashModelOptions o, Rng& rng) : options(o) {
  const int64_t dim = o.layer.dim;
  const DType dtype = o.layer.dtype;
  check_options("flash_model", o);
  if (o.vocabulary > 0) embedding.emplace(EmbeddingOptions{o.vocabulary, dim, o.embedding_std, dtype}, rng);
  if (o.positions) positions.emplace(ScaledSinusoidalOptions{dim, o.initial_scale, 10000, dtype});
  body = FlashBlock({o.layers, o.layer}, rng);
  norm = Norm({dim, o.final_norm.value_or(o.layer.norm), o.layer.norm_eps, dtype});
  if (o.outputs > 0) head.emplace(LinearOptions{dim, o.outputs, o.layer.linear_bias, o.layer.init, dtype}, rng);
}

Tensor FlashModel::operator()(const Tensor& x, const Pass& pass) const {
  ModuleScope scope(this, type);
  const int64_t dim = options.layer.dim;
  detail::check_made("flash_model", dim);
  if (embedding && x.rank() != 2) fail("flash_model: got x=", x, "; need tokens [batch, n]");
  if (!embedding && (x.rank() != 3 || x.dim(2) != dim)) fail("flash_model: got x=", x, "; need [batch, n, ", dim, "]");
  Tensor y = embedding ? (*embedding)(x) : x;
  if (positions) y = (*positions)(y, pass);
  y = norm(body(Dropout{options.dropout}(y, pass.rng), pass));
  return head ? (*head)(y) : y;
}

// -- MC-TFM++ ----------------------------------------------------------------------------------------------------

McTfm::McTfm(McTfmOptions o, Rng& rng) : options(o) {
  check_options("mc_tfm", o);
  if (o.dim % o.heads != 0) fail<ValueError>("mc_tfm: heads=", o.heads, " must divide dim=", o.dim);
  if (o.use_rope) detail::check_rope("mc_tfm", o.rope, "dim/heads", o.dim / o.heads);
  detail::check_mixed_chunk("mc_tfm", MixedChunkOptions::of(o));
  attention_norm = Norm({o.dim, o.norm, o.norm_eps, o.dtype}), glu_norm = Norm({o.dim, o.norm, o.norm_eps, o.dtype});
  qkv = detail::fused_linear(o.dim, {o.dim, o.dim, o.dim}, o.linear_bias, o.init, o.dtype, rng);
  out = Linear({o.dim, o.dim, o.linear_bias, o.init, o.dtype}, rng);
  const TensorOptions made = detail::initial(o.dtype);
  gamma = ones({2, o.dim}, made).requires_grad_(), beta = zeros({2, o.dim}, made).requires_grad_();
  glu = Glu({.dim = o.dim, .hidden = o.hidden, .kind = o.glu, .bias = o.linear_bias, .init = o.init, .dtype = o.dtype},
            rng);
}

McTfm::Projected McTfm::project(const Tensor& x, int64_t position) const {
  const McTfmOptions& o = options;
  std::vector<Tensor> part = split(qkv(attention_norm(x)), {o.dim, o.dim, o.dim}, -1);
  auto heads = [&](const Tensor& t) { return detail::split_heads(t, o.heads); };
  auto turned = [&](const Tensor& t, const RopeOptions& rope) {
    return o.use_rope ? detail::rope_from(heads(t), rope, position) : heads(t);
  };
  const RopeOptions queries = o.rope, keys = o.rope.of_keys();
  return {turned(part[0], queries), turned(part[1], keys),
          turned(detail::scale_offset(part[0], gamma, beta, 0), queries),
          turned(detail::scale_offset(part[1], gamma, beta, 1), keys), heads(part[2])};
}

Tensor McTfm::operator()(const Tensor& given, const Pass& pass) const {
  Call call(*this, "mc_tfm", given, options.dim, pass);
  call.check_causal(options.causal);
  const Projected h = project(call.x, call.first());
  const Tensor mixed =
      detail::mixed_chunk_attention(call, h.q_quad, h.k_quad, h.q_lin, h.k_lin, h.v, MixedChunkOptions::of(options));
  const Dropout drop{options.dropout};
  const Tensor y = call.x + drop(out(detail::merge_heads(mixed)), call.rng());
  return y + drop(glu(glu_norm(y), pass), call.rng());
}

}  // namespace sluice
