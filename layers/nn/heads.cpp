#include <sluice/layers/nn/heads.h>

#include <sluice/ops/basic.h>
#include <sluice/ops/elementwise/formulas_of_layers.h>
#include <sluice/ops/elementwise/map.h>

namespace sluice {

HeadsOptions checked_heads(const char* layer, HeadsOptions o, HeadsRules rules) {
  check_options(layer, o);
  if (o.kv_heads == 0) o.kv_heads = o.heads;
  if (o.heads % o.kv_heads != 0) fail<ValueError>(layer, ": kv_heads=", o.kv_heads, " must divide heads=", o.heads);
  if (o.head_dim == 0) {
    if (o.dim % o.heads != 0)
      fail<ValueError>(layer, ": heads=", o.heads, " must divide dim=", o.dim, ", or head_dim be given");
    o.head_dim = o.dim / o.heads;
  }
  if (o.value_dim == 0) o.value_dim = o.head_dim;
  if (o.use_rope) detail::check_rope(layer, o.rope, "head_dim", o.head_dim);
  if (o.context_dim > 0 && !rules.cross)
    fail<ValueError>(layer, ": takes no context — got context_dim=", o.context_dim);
  if (o.kv_heads != o.heads && !rules.grouped)
    fail<ValueError>(layer, ": needs as many KV heads as heads — got kv_heads=", o.kv_heads, ", heads=", o.heads);
  if (o.causal && !rules.causal) fail<ValueError>(layer, ": cannot be causal — got causal=true");
  if (o.use_rope && !rules.rope) fail<ValueError>(layer, ": queries and keys have no common positions for RoPE");
  if (o.residual && !o.project_out && o.heads * o.value_dim != o.dim)
    fail<ValueError>(layer, ": a residual of dim=", o.dim, " does not fit ", o.heads * o.value_dim, " channels");
  return o;
}

void detail::check_rope(const char* layer, const RopeOptions& o, const char* what, int64_t width) {
  const int64_t turned = o.rot_dim ? o.rot_dim : width;
  if (turned % 2 != 0 || turned > width)
    fail<ValueError>(layer, ": RoPE turns pairs of channels; need an even rot_dim of at most ", what, "=", width,
                     " — got ", turned);
  if (!o.frequencies.empty() && static_cast<int64_t>(o.frequencies.size()) != turned / 2)
    fail<ValueError>(layer, ": ", o.frequencies.size(), " RoPE frequencies do not fit ", turned / 2,
                     " pairs of channels");
}

Heads::Heads(const HeadsOptions& o, Rng& rng)
    : q({o.dim, o.heads * o.head_dim, o.qkv_bias, o.init, o.dtype}, rng),
      k({o.source_dim(), o.kv_heads * o.head_dim, o.qkv_bias, o.init, o.dtype}, rng),
      v({o.source_dim(), o.kv_heads * o.value_dim, o.qkv_bias, o.init, o.dtype}, rng) {
  if (o.project_out) out = Linear({o.heads * o.value_dim, o.dim, o.out_bias, o.init, o.dtype}, rng);
}

Heads::Projected Heads::project(const HeadsOptions& o, const Tensor& x, int64_t position) const {
  return arranged(o, q(x), k(x), v(x), position);
}

Heads::Projected Heads::arranged(const HeadsOptions& o, const Tensor& q, const Tensor& k, const Tensor& v,
                                 int64_t position) {
  Projected p{detail::split_heads(q, o.heads), detail::split_heads(k, o.kv_heads), detail::split_heads(v, o.kv_heads)};
  if (o.use_rope)
    p.q = detail::rope_from(p.q, o.rope, position), p.k = detail::rope_from(p.k, o.rope.of_keys(), position);
  return p;
}

Tensor Heads::finish(const HeadsOptions& o, const Tensor& attended, const Tensor& x, Rng* rng) const {
  Tensor y = detail::merge_heads(attended);
  if (o.project_out) y = out(y);
  y = Dropout{o.dropout}(y, rng);
  return o.residual ? x + y : y;
}

Tensor checked_input(const char* layer, const Tensor& x, int64_t dim, const Tensor& key_mask, const char* what,
                     const char* mask) {
  detail::check_made(layer, dim);
  if (!x.defined() || x.rank() != 3 || x.dim(-1) != dim)
    fail(layer, ": got ", what, "=", x, "; need [batch, n, ", dim, "]");
  detail::check_rows(layer, mask, key_mask, boolean, what, x);
  if (!key_mask.defined()) return x;
  if (key_mask.device() != x.device())
    fail<DeviceError>(layer, ": ", mask, " on ", key_mask.device(), ", ", what, " on ", x.device());
  return map(formula::FinitePadding{}, x, unsqueeze(key_mask, -1));
}

void detail::check_rows(const char* op, const char* name, const Tensor& rows, DType dtype, const char* what,
                        const Tensor& x) {
  if (!rows.defined()) return;
  if (rows.dtype() != dtype) fail<DTypeError>(op, ": ", name, " must be ", dtype, " — got ", rows.dtype(), rows);
  if (const Shape need{x.dim(0), x.dim(-2)}; rows.shape() != need)
    fail(op, ": ", name, "=", rows, " does not fit ", what, "=", x, "; need [batch, n] = ", need);
}

Tensor detail::grown(const Tensor& q, const QueryGrowth& growth, int64_t position) {
  if (growth.beta == 0) return q;
  position += growth.offset;
  const Tensor p = arange(position, position + q.dim(-2), 1, {i64, q.device()});
  const Tensor times = to(floor_divide(p, static_cast<double>(growth.length)), f64);
  return q * unsqueeze(to(log1p(times) * growth.beta + 1.0, q.dtype()), -1);
}

Tensor detail::split_heads(const Tensor& x, int64_t heads) {
  return transpose(unflatten(x, -1, {heads, x.dim(-1) / heads}), 1, 2);
}
Tensor detail::merge_heads(const Tensor& x) { return flatten(transpose(x, 1, 2), 2, 3); }

Tensor detail::rope_from(const Tensor& x, RopeOptions o, int64_t position) {
  o.offset += position;
  return rope(x, o);
}

}  // namespace sluice
