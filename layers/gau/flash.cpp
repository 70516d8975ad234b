#include <sluice/layers/gau/flash.h>

#include <sluice/layers/nn/heads.h>
#include <sluice/layers/nn/mlp.h>
#include <sluice/ops/basic.h>
#include <sluice/ops/elementwise/formulas_of_layers.h>
#include <sluice/ops/elementwise/map.h>
#include <sluice/parallel/sequence.h>

#include <algorithm>

namespace sluice {

namespace {

FlashOptions checked(FlashOptions o) {
  check_options("flash", o);
  if (o.expansion == 0) o.expansion = 2 * o.dim;
  if (o.use_rope || o.bias == GauBias::rope) detail::check_rope("flash", o.rope, "key_dim", o.key_dim);
  o.t5.causal = o.causal;
  if (o.bias == GauBias::t5) detail::check_t5("flash", o.t5);
  detail::check_mixed_chunk("flash", MixedChunkOptions::of(o));
  return o;
}

/// x̂ with its first ⌈d/2⌉ channels from the previous token; 0 if that token is padding or of another document.
Tensor shift_tokens(Call& call, const Tensor& normed) {
  const int64_t width = (normed.dim(2) + 1) / 2;
  // The shift already gives 0 for the first token of the sequence.
  Tensor moved = call.shift(detail::filled_tokens(narrow(normed, 2, 0, width), call.padding(), 0));
  moved = detail::filled_tokens(moved, call.starts(), 0);
  return cat({moved, narrow(normed, 2, width, normed.dim(2) - width)}, 2);
}

}  // namespace

Flash::Flash(FlashOptions given, Rng& rng) : options(checked(given)) {
  detail::draw_gau(*this, 4, options.chunk, options.key_dim, rng);
}

Tensor Flash::relative_bias(int64_t length) const {
  length = std::max<int64_t>(1, length);
  return detail::relative_bias(*this, length, length, options.key_dim);
}

Flash::Projected Flash::project(const Tensor& normed, int64_t position) const {
  const FlashOptions& o = options;
  std::vector<Tensor> part = split(in(normed), {o.expansion, o.expansion, o.key_dim}, -1);
  const Tensor z = activate(o.activation, part[2]);
  auto rows = [](const Tensor& t) { return unsqueeze(unsqueeze(t, 1), 1); };  // [4, 1, 1, s]
  Tensor four = map(formula::ScaleOffset{}, z, rows(gamma), rows(beta));      // [4, batch, n, s]
  const bool alike = o.rope.xpos == 0;  // RoPE turns queries and keys in the same way
  if (o.use_rope && alike) four = detail::rope_from(four, o.rope, position);
  std::vector<Tensor> t = split(four, {1, 1, 1, 1}, 0);
  for (Tensor& one : t) one = squeeze(one, 0);
  for (std::size_t i = 0; o.use_rope && !alike && i < 4; ++i)
    t[i] = detail::rope_from(t[i], i % 2 == 0 ? o.rope : o.rope.of_keys(), position);
  return {part[0], activate(o.activation, part[1]), t[0], t[1], t[2], t[3]};
}

Tensor Flash::operator()(const Tensor& given, const Pass& pass) const {
  const FlashOptions& o = options;
  Call call(*this, "flash", given, o.dim, pass);
  call.check_causal(o.causal);
  Tensor normed = norm(call.x);
  if (o.token_shift) normed = shift_tokens(call, normed);
  const Projected p = project(normed, call.first());
  const int64_t longest = call.streams() ? o.chunk : std::min(sequence_piece(given.dim(1)).total, o.chunk);
  const Tensor mixed = detail::mixed_chunk_attention(call, p.q_quad, p.k_quad, p.q_lin, p.k_lin, p.v,
                                                     MixedChunkOptions::of(o), relative_bias(longest));
  return call.x + Dropout{o.dropout}(out(gated_by(o.activation, mixed, p.gate)), call.rng());
}

}  // namespace sluice
