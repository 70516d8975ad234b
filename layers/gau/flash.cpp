#include <sluice/layers/gau/flash.h>

#include <sluice/core/node.h>
#include <sluice/layers/nn/heads.h>
#include <sluice/layers/nn/mlp.h>
#include <sluice/ops/attention/relative_bias.h>
#include <sluice/ops/create.h>
#include <sluice/ops/elementwise.h>
#include <sluice/ops/map.h>
#include <sluice/ops/view.h>
#include <sluice/parallel/sequence.h>

#include <algorithm>
#include <cmath>

namespace sluice {

namespace {

FlashOptions checked(FlashOptions o) {
  check_options("flash", o);
  if (o.expansion == 0) o.expansion = 2 * o.dim;
  if (o.use_rope || o.bias == GauBias::rope) detail::check_rope("flash", o.rope, "key_dim", o.key_dim);
  o.t5.causal = o.causal;
  return o;
}

/// Channels that token_shift moves.
int64_t shifted_width(int64_t dim) { return (dim + 1) / 2; }

/// x̂ with its first channels taken from the token before; before the first stands `before` [batch, 1, ·], or nothing.
Tensor shift_tokens(const Tensor& normed, const Tensor& before, const Tensor& key_mask, const Tensor& segments) {
  const int64_t width = shifted_width(normed.dim(2)), n = normed.dim(1);
  const Tensor moves = narrow(normed, 2, 0, width);
  Tensor moved;
  if (!before.defined()) moved = sequence_shift(moves, 1);
  else moved = n == 0 ? moves : cat({before, narrow(moves, 1, 0, n - 1)}, 1);
  // What stands before the first token of all is 0 anyway.
  if (key_mask.defined()) moved = masked_fill(moved, unsqueeze(logical_not(sequence_shift(key_mask, 1)), -1), 0);
  if (segments.defined()) moved = masked_fill(moved, unsqueeze(ne(sequence_shift(segments, 1), segments), -1), 0);
  return cat({moved, narrow(normed, 2, width, normed.dim(2) - width)}, 2);
}

}  // namespace

Flash::Flash(FlashOptions given, Rng& rng)
    : options(checked(given)),
      norm({options.dim, options.norm, options.norm_eps, options.dtype}),
      in({options.dim, 2 * options.expansion + options.key_dim, options.linear_bias, {InitKind::zeros}, options.dtype},
         rng),
      out({options.expansion, options.dim, options.linear_bias, options.init, options.dtype}, rng) {
  const FlashOptions& o = options;
  detail::check_mixed_chunk("flash", mixed_options());
  detail::init_uvz(in, o.expansion, o.key_dim, o.init, rng);
  gamma = detail::init_scale({4, o.key_dim}, o.gamma_std, rng, o.dtype);
  beta = zeros({4, o.key_dim}, {o.dtype}).requires_grad_();
  if (o.bias == GauBias::toeplitz) toeplitz_bias = init_normal({2 * o.chunk - 1}, 0.02, rng, o.dtype);
  if (o.bias == GauBias::rope) rope_bias = init_normal({2, o.key_dim}, 0.02, rng, o.dtype);
  if (o.bias == GauBias::t5) t5_bias = init_normal({o.t5.buckets, 1}, 0.02, rng, o.dtype);
}

Tensor Flash::relative_bias(int64_t length) const {
  length = std::max<int64_t>(1, length);
  switch (options.bias) {
    case GauBias::none: return {};
    case GauBias::toeplitz: return relative_toeplitz(toeplitz_bias, length, length);
    case GauBias::rope:
      return relative_rope(select(rope_bias, 0, 0), select(rope_bias, 0, 1), length, length, options.rope);
    case GauBias::t5:
      return relative_t5(t5_bias, length, length, options.t5) * std::sqrt(static_cast<double>(options.key_dim));
  }
  return {};
}

Flash::Projected Flash::project(const Tensor& normed, int64_t position) const {
  const FlashOptions& o = options;
  std::vector<Tensor> part = split(in(normed), {o.expansion, o.expansion, o.key_dim}, -1);
  const Tensor z = activate(o.activation, part[2]);
  auto rows = [](const Tensor& t) { return unsqueeze(unsqueeze(t, 1), 1); };  // [4, 1, 1, s]
  Tensor four = map(formula::ScaleOffset{}, z, rows(gamma), rows(beta));  // [4, batch, n, s]
  const bool alike = o.rope.xpos == 0;  // queries and keys are turned alike
  if (o.use_rope && alike) four = detail::rope_from(four, o.rope, position);
  std::vector<Tensor> t = split(four, {1, 1, 1, 1}, 0);
  for (Tensor& one : t) one = squeeze(one, 0);
  for (std::size_t i = 0; o.use_rope && !alike && i < 4; ++i)
    t[i] = detail::rope_from(t[i], i % 2 == 0 ? o.rope : o.rope.of_keys(), position);
  return {part[0], activate(o.activation, part[1]), t[0], t[1], t[2], t[3]};
}

MixedChunkOptions Flash::mixed_options() const {
  const FlashOptions& o = options;
  return {o.chunk,         o.causal,        o.kind,      o.scaling, o.length,
          o.count_padding, o.across_chunks, o.quadratic, o.linear,  o.attention_dropout, o.min_length};
}

Tensor Flash::finish(const Tensor& x, const Tensor& gate, const Tensor& mixed, Rng* rng) const {
  return x + Dropout{options.dropout}(out(gated_by(options.activation, mixed, gate)), rng);
}

Tensor Flash::operator()(const Tensor& x, const Tensor& key_mask, Rng* rng, const Tensor& segments) const {
  ModuleScope scope(this, type);
  const FlashOptions& o = options;
  if (x.rank() != 3 || x.dim(-1) != o.dim) fail("flash: got x=", x, "; need [batch, n, ", o.dim, "]");
  for (const Tensor* rows : {&key_mask, &segments})
    if (rows->defined() && rows->shape() != Shape{x.dim(0), x.dim(1)})
      fail("flash: ", rows == &segments ? "segments=" : "key_mask=", *rows, " does not fit x=", x, "; need [batch, n]");
  const Tensor tokens = finite_padding("flash", x, key_mask);
  Tensor normed = norm(tokens);
  if (o.token_shift) normed = shift_tokens(normed, {}, key_mask, segments);
  const auto [first, total] = sequence_piece(x.dim(1));
  const Projected p = project(normed, first);
  Tensor mixed = mixed_chunk_attention(p.q_quad, p.k_quad, p.q_lin, p.k_lin, p.v, mixed_options(),
                                       relative_bias(std::min(total, o.chunk)), key_mask, segments, rng);
  return finish(tokens, p.gate, mixed, rng);
}

std::pair<Tensor, Flash::State> Flash::step(const Tensor& x, State state) const {
  ModuleScope scope(this, type);
  const FlashOptions& o = options;
  if (!o.causal) fail<ValueError>("flash: only a causal layer can be streamed");
  if (x.rank() != 3 || x.dim(-1) != o.dim) fail("flash: got x=", x, "; need [batch, m, ", o.dim, "]");
  if (state.mixed.sum.defined() && state.mixed.sum.dim(0) != x.dim(0))
    fail("flash: a state of batch ", state.mixed.sum.dim(0), " does not continue with x=", x);
  NoGrad guard;
  Tensor normed = norm(x);
  if (o.token_shift) {
    const Tensor before = state.shift.defined() ? state.shift : zeros({x.dim(0), 1, shifted_width(o.dim)}, normed.options());
    const Tensor last = cat({before, narrow(normed, 2, 0, shifted_width(o.dim))}, 1);
    state.shift = clone(narrow(last, 1, last.dim(1) - 1, 1));
    normed = shift_tokens(normed, before, {}, {});
  }
  const Projected p = project(normed, state.length());
  auto head = [](const Tensor& t) { return unsqueeze(t, 1); };
  auto [mixed, next] = mixed_chunk_step(head(p.q_quad), head(p.k_quad), head(p.q_lin), head(p.k_lin), head(p.v),
                                        mixed_options(), relative_bias(o.chunk), std::move(state.mixed));
  state.mixed = std::move(next);
  return {finish(x, p.gate, squeeze(mixed, 1), nullptr), std::move(state)};
}

}  // namespace sluice
