#include <sluice/layers/linear_attention/lightning_attention.h>

#include <sluice/ops/elementwise/activation.h>
#include <sluice/ops/shape/view.h>

#include <cmath>

namespace sluice {

LightningAttention::LightningAttention(LightningAttentionOptions given, Rng& rng) : options(given) {
  LightningAttentionOptions& o = options;
  check_options("lightning_attention", o);
  const HeadsOptions h = checked_heads("lightning_attention", detail::heads_of("lightning_attention", o));
  o.kv_heads = h.kv_heads, o.head_dim = h.head_dim, o.value_dim = h.value_dim;
  heads = Heads(h, rng);
  draw_gate(h, rng);
  if (o.gamma.empty()) o.gamma = lightning_gammas(o.heads);
  log_gamma = detail::log_gammas("lightning_attention", o.gamma, o.heads, exact(o.dtype));
  norm = Norm({h.heads * h.value_dim, NormKind::rms, o.norm_eps, o.dtype});
}

Tensor LightningAttention::operator()(const Tensor& given, const Pass& pass) const {
  Call call(*this, "lightning_attention", given, options.dim, pass);
  const HeadsOptions h = detail::heads_of("lightning_attention", options);
  const Heads::Projected x = project(h, call, Act::silu);
  const Tensor o = decayed(call, x, reshape(log_gamma, {1, h.heads, 1}), options.chunk, 1);
  const Tensor y = glu(norm(detail::merge_heads(o)), output_gate(call.x));
  return Dropout{h.dropout}(heads.out(y), call.rng());
}

std::vector<double> lightning_gammas(int64_t heads, int64_t layer, int64_t layers) {
  if (heads < 0 || heads > 1 << 20 || layer < 0 || layer >= layers)
    fail<ValueError>("lightning_gammas: needs heads in [0, 2^20] and 0 <= layer < layers — got heads=", heads,
                     ", layer=", layer, ", layers=", layers);
  const double depth = static_cast<double>(layer) / (static_cast<double>(layers - 1) + 1e-5);
  std::vector<double> gamma;
  for (int64_t h = 1; h <= heads; ++h)
    gamma.push_back(
        std::exp(-std::exp2(-8.0 * static_cast<double>(h) / static_cast<double>(heads)) * (1 - depth + 1e-5)));
  return gamma;
}

}  // namespace sluice
