#include <sluice/layers/attention/pool_compression.h>

#include <sluice/layers/nn/heads.h>
#include <sluice/ops/basic.h>
#include <sluice/ops/rows/softmax.h>

#include <limits>

namespace sluice {

PoolCompression::PoolCompression(PoolCompressionOptions o, Rng& rng) : options(o) {
  check_options("pool_compression", o);
  if (o.rope_dim > o.width)
    fail<ValueError>("pool_compression: rope_dim=", o.rope_dim, " is more than width=", o.width);
  if (o.rope_dim > 0) detail::check_rope("pool_compression", o.rope, "rope_dim", o.rope_dim);
  const int64_t channels = checked_mul("pool_compression", o.overlap ? 2 : 1, o.width);
  value = Linear({o.dim, channels, false, o.init, o.dtype}, rng);
  gate = Linear({o.dim, channels, false, o.init, o.dtype}, rng);
  position = init_normal({o.pool, channels}, 0.02, rng, exact(o.dtype));
  norm = Norm({o.width, NormKind::rms, o.norm_eps, o.dtype});
}

Tensor PoolCompression::rows(const Tensor& x) const { return cat({value(x), gate(x)}, -1); }

/// t [batch, pools, B, 2d], of which the own pool's keys take the last d channels, and those of the pool before, which
/// is `none` before the first one, the first d: [batch, pools, 2B, d].
static Tensor with_pool_before(const Tensor& t, int64_t width, double none) {
  const int64_t earlier = std::max<int64_t>(0, t.dim(1) - 1);
  const Tensor before = pad(narrow(narrow(t, -1, 0, width), 1, 0, earlier), 1, t.dim(1) - earlier, 0, none);
  return cat({before, narrow(t, -1, width, width)}, 2);
}

Tensor PoolCompression::pooled(const Tensor& rows, const Tensor& keys) const {
  const PoolCompressionOptions& o = options;
  const int64_t channels = position.dim(1);
  if (rows.rank() != 3 || rows.dim(-1) != 2 * channels)
    fail("pool_compression: got rows=", rows, "; need [batch, n, ", 2 * channels, "]");
  const std::vector<Tensor> part = split(key_pools(rows, o.pool, keys), {channels, channels}, -1);
  Tensor values = part[0], logits = detail::widened(part[1]) + detail::widened(position);
  if (o.overlap)
    values = with_pool_before(values, o.width, 0),
    logits = with_pool_before(logits, o.width, -std::numeric_limits<double>::infinity());
  const Tensor y = norm(sum(values * to(softmax(logits, 2), values.dtype()), {2}));
  return detail::last_channels(
      y, o.rope_dim, [&](const Tensor& t) { return turned_pools(t, rows.dim(1), o.pool, o.rope.of_keys(), keys); });
}

Tensor detail::last_channels(const Tensor& x, int64_t count, const std::function<Tensor(const Tensor&)>& turn) {
  const int64_t others = x.dim(-1) - count;
  if (count == 0) return x;
  return others == 0 ? turn(x) : cat({narrow(x, -1, 0, others), turn(narrow(x, -1, others, count))}, -1);
}

}  // namespace sluice
