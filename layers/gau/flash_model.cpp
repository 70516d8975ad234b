#include <sluice/layers/gau/flash_model.h>

#include <sluice/core/node.h>
#include <sluice/layers/nn/heads.h>
#include <sluice/ops/create.h>
#include <sluice/ops/elementwise.h>
#include <sluice/ops/map.h>
#include <sluice/ops/view.h>
#include <sluice/parallel/sequence.h>

#include <cmath>

namespace sluice {

// -- positions ---------------------------------------------------------------------------------------------------

ScaledSinusoidal::ScaledSinusoidal(ScaledSinusoidalOptions o) : options(o) {
  check_options("scaled_sinusoidal", o);
  if (o.dim % 2 != 0) fail<ValueError>("scaled_sinusoidal: dim must be even — got ", o.dim);
  scale = init_vector(1, o.initial_scale != 0 ? o.initial_scale : 1 / std::sqrt(static_cast<double>(o.dim)), o.dtype);
}

Tensor ScaledSinusoidal::operator()(int64_t n, int64_t first) const {
  ModuleScope scope(this, type);
  const auto [dim, initial, base, dtype] = options;
  first += sequence_piece(n).first;
  // Angles in f64: in f32 a position of 10⁵ would be off by 0.004.
  Tensor c = arange(0, static_cast<double>(dim / 2), 1, {f64, scale.device()});
  Tensor frequency = exp(c * (-2 * std::log(base) / static_cast<double>(dim)));
  Tensor position = arange(static_cast<double>(first), static_cast<double>(first + n), 1, {f64, scale.device()});
  Tensor angle = unsqueeze(position, 1) * unsqueeze(frequency, 0);
  return to(cat({sin(angle), cos(angle)}, 1), scale.dtype()) * scale;
}

// -- the stack ---------------------------------------------------------------------------------------------------

FlashBlock::FlashBlock(FlashBlockOptions o, Rng& rng) : options(o) {
  check_options("flash_block", o);
  for (int64_t i = 0; i < o.layers; ++i) layers.emplace_back(o.layer, rng);
}

Tensor FlashBlock::operator()(const Tensor& x, const Tensor& key_mask, Rng* rng, const Tensor& segments) const {
  ModuleScope scope(this, type);
  Tensor y = x;
  for (const Flash& layer : layers) y = layer(y, key_mask, rng, segments);
  return y;
}

std::pair<Tensor, FlashBlock::State> FlashBlock::step(const Tensor& x, State state) const {
  ModuleScope scope(this, type);
  if (!state.layers.empty() && state.layers.size() != layers.size())
    fail<ValueError>("flash_block: a state of ", state.layers.size(), " layers does not fit ", layers.size());
  state.layers.resize(layers.size());
  Tensor y = x;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    auto [out, next] = layers[i].step(y, std::move(state.layers[i]));
    y = out, state.layers[i] = std::move(next);
  }
  return {y, std::move(state)};
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

Tensor FlashModel::embed(const Tensor& x, int64_t first) const {
  const int64_t dim = options.layer.dim;
  if (embedding ? x.rank() != 2 : x.rank() != 3 || x.dim(2) != dim) {
    if (embedding) fail("flash_model: got x=", x, "; need tokens [batch, n]");
    fail("flash_model: got x=", x, "; need [batch, n, ", dim, "]");
  }
  Tensor y = embedding ? (*embedding)(x) : x;
  return positions ? y + (*positions)(x.dim(1), first) : y;
}

Tensor FlashModel::finish(const Tensor& y) const {
  const Tensor normed = norm(y);
  return head ? (*head)(normed) : normed;
}

Tensor FlashModel::operator()(const Tensor& x, const Tensor& key_mask, Rng* rng, const Tensor& segments) const {
  ModuleScope scope(this, type);
  return finish(body(Dropout{options.dropout}(embed(x, 0), rng), key_mask, rng, segments));
}

std::pair<Tensor, FlashModel::State> FlashModel::step(const Tensor& x, State state) const {
  ModuleScope scope(this, type);
  NoGrad guard;
  auto [y, body_state] = body.step(embed(x, state.length), std::move(state.body));
  return {finish(y), State{std::move(body_state), state.length + x.dim(1)}};
}

// -- MC-TFM++ ----------------------------------------------------------------------------------------------------

McTfm::McTfm(McTfmOptions o, Rng& rng) : options(o) {
  check_options("mc_tfm", o);
  if (o.dim % o.heads != 0) fail<ValueError>("mc_tfm: heads=", o.heads, " must divide dim=", o.dim);
  if (o.use_rope) detail::check_rope("mc_tfm", o.rope, "dim/heads", o.dim / o.heads);
  detail::check_mixed_chunk("mc_tfm", mixed_options());
  attention_norm = Norm({o.dim, o.norm, o.norm_eps, o.dtype}), glu_norm = Norm({o.dim, o.norm, o.norm_eps, o.dtype});
  qkv = Linear({o.dim, 3 * o.dim, o.linear_bias, {InitKind::zeros}, o.dtype}, rng);
  {  // three square maps; only their product with x is fused
    NoGrad guard;
    auto square = [&] { return init_weight(o.dim, o.dim, o.init, rng, o.dtype); };
    Tensor wq = square(), wk = square(), wv = square();
    copy_(qkv.weight, cat({wq, wk, wv}, 1));
  }
  out = Linear({o.dim, o.dim, o.linear_bias, o.init, o.dtype}, rng);
  gamma = ones({2, o.dim}, {o.dtype}).requires_grad_(), beta = zeros({2, o.dim}, {o.dtype}).requires_grad_();
  glu = Glu({o.dim, o.hidden, o.glu, o.linear_bias, o.dropout, o.init, o.dtype}, rng);
}

McTfm::Projected McTfm::project(const Tensor& x, int64_t position) const {
  const McTfmOptions& o = options;
  if (x.rank() != 3 || x.dim(-1) != o.dim) fail("mc_tfm: got x=", x, "; need [batch, n, ", o.dim, "]");
  std::vector<Tensor> part = split(qkv(attention_norm(x)), {o.dim, o.dim, o.dim}, -1);
  auto heads = [&](const Tensor& t) { return transpose(unflatten(t, -1, {o.heads, o.dim / o.heads}), 1, 2); };
  auto turned = [&](const Tensor& t, const RopeOptions& rope) {
    return o.use_rope ? detail::rope_from(heads(t), rope, position) : heads(t);
  };
  const RopeOptions queries = o.rope, keys = o.rope.of_keys();
  auto offset = [&](const Tensor& t, int64_t i) {
    return map(formula::ScaleOffset{}, t, select(gamma, 0, i), select(beta, 0, i));
  };
  return {turned(part[0], queries), turned(part[1], keys), turned(offset(part[0], 0), queries),
          turned(offset(part[1], 1), keys), heads(part[2])};
}

MixedChunkOptions McTfm::mixed_options() const {
  const McTfmOptions& o = options;
  return {.chunk = o.chunk, .causal = o.causal, .kind = o.kind, .scaling = o.scaling, .length = o.length,
          .quadratic = o.quadratic, .linear = o.linear, .dropout = o.attention_dropout, .min_length = o.min_length};
}

Tensor McTfm::finish(const Tensor& x, const Tensor& mixed, Rng* rng) const {
  const Dropout drop{options.dropout};
  Tensor y = x + drop(out(flatten(transpose(mixed, 1, 2), 2, 3)), rng);
  return y + drop(glu(glu_norm(y), rng), rng);
}

Tensor McTfm::operator()(const Tensor& x, const Tensor& key_mask, Rng* rng, const Tensor& segments) const {
  ModuleScope scope(this, type);
  if (key_mask.defined() && (x.rank() != 3 || key_mask.shape() != Shape{x.dim(0), x.dim(1)}))
    fail("mc_tfm: key_mask=", key_mask, " does not fit x=", x, "; need [batch, n]");
  const Tensor tokens = finite_padding("mc_tfm", x, key_mask);
  const Projected h = project(tokens, first_position(tokens));
  Tensor mixed = mixed_chunk_attention(h.q_quad, h.k_quad, h.q_lin, h.k_lin, h.v, mixed_options(), {}, key_mask,
                                       segments, rng);
  return finish(tokens, mixed, rng);
}

std::pair<Tensor, McTfm::State> McTfm::step(const Tensor& x, State state) const {
  ModuleScope scope(this, type);
  if (!options.causal) fail<ValueError>("mc_tfm: only a causal block can be streamed");
  NoGrad guard;
  const Projected h = project(x, state.length);
  auto [mixed, next] = mixed_chunk_step(h.q_quad, h.k_quad, h.q_lin, h.k_lin, h.v, mixed_options(), {},
                                        std::move(state));
  return {finish(x, mixed, nullptr), std::move(next)};
}

}  // namespace sluice
