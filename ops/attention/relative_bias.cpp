#include <sluice/ops/attention/relative_bias.h>

#include <sluice/core/operands.h>
#include <sluice/ops/basic.h>
#include <sluice/ops/index/gather.h>

#include <cmath>

namespace sluice {

/// p_j − p_i of each table entry: −(n − 1) … m − 1. Checks the size of a table of `width` numbers for each.
static Tensor distances(const char* op, int64_t m, int64_t n, int64_t width, Device device) {
  checked_numel(op, {checked_add(op, m, n), width});
  return arange(static_cast<double>(1 - n), static_cast<double>(std::max<int64_t>(m, 1 - n)), 1, {i64, device});
}

Tensor relative_toeplitz(const Tensor& w, int64_t m, int64_t n) {
  detail::check_defined("relative_toeplitz", {{"w", w}});
  if ((w.rank() != 1 && w.rank() != 2) || w.dim(-1) % 2 == 0)
    fail("relative_toeplitz: w=", w, "; need [2·n_max − 1] or [heads, 2·n_max − 1]");
  const int64_t n_max = (w.dim(-1) + 1) / 2;
  if (n > n_max || m > n_max || m < 1 || n < 1)
    fail("relative_toeplitz: w=", w, " is a table for n_max=", n_max,
         " positions (of a layer: max_length, or chunk), asked for m=", m, ", n=", n);
  return narrow(w.rank() == 1 ? unsqueeze(w, 0) : w, 1, n_max - n, n + m - 1);
}

Tensor relative_t5(const Tensor& weight, int64_t m, int64_t n, T5BucketOptions options) {
  detail::check_defined("relative_t5", {{"weight", weight}});
  if (weight.rank() != 2 || weight.dim(0) != options.buckets)
    fail("relative_t5: weight=", weight, "; need [", options.buckets, " buckets, heads]");
  if (options.buckets < 1 || options.buckets > 1 << 20 || options.max_distance < 1)
    fail<ValueError>("relative_t5: needs buckets in [1, 2^20] and max_distance >= 1 — got ", options.buckets, ", ",
                     options.max_distance);
  const Tensor bucket = detail::t5_buckets_of(distances("relative_t5", m, n, weight.dim(1), weight.device()), options);
  return transpose(index_select(weight, 0, bucket), 0, 1);
}

Tensor relative_alibi(const Tensor& slopes, int64_t m, int64_t n) {
  detail::check_float("relative_alibi", slopes);
  if (slopes.rank() != 1) fail("relative_alibi: slopes=", slopes, "; need [heads]");
  if (slopes.dtype() == bf16) return detail::in_f32(relative_alibi, slopes, m, n);
  return unsqueeze(slopes, 1) *
         (abs(to(distances("relative_alibi", m, n, slopes.dim(0), slopes.device()), slopes.dtype())) * -1.0);
}

Tensor alibi_slopes(int64_t heads, TensorOptions options) {
  if (heads < 1 || heads > 1 << 20) fail<ValueError>("alibi_slopes: heads must be in [1, 2^20] — got ", heads);
  int64_t whole = 1;
  while (whole * 2 <= heads) whole *= 2;
  std::vector<double> slope;
  for (int64_t h = 0; h < whole; ++h)
    slope.push_back(std::exp2(-8.0 * static_cast<double>(h + 1) / static_cast<double>(whole)));
  for (int64_t h = 0; h < heads - whole; ++h)
    slope.push_back(std::exp2(-4.0 * static_cast<double>(2 * h + 1) / static_cast<double>(whole)));
  return to(to(Tensor::from(slope), options.dtype), options.device);
}

Tensor relative_rope(const Tensor& a, const Tensor& b, int64_t m, int64_t n, RopeOptions options) {
  detail::check_floats("relative_rope", {{"a", a}, {"b", b}});
  if (a.rank() != 1 || a.shape() != b.shape()) fail("relative_rope: a=", a, ", b=", b, "; need two vectors [s]");
  if (a.dtype() == bf16) return detail::in_f32(relative_rope, a, b, m, n, options);
  const int64_t turned = detail::rope_width("relative_rope", a, options);
  // ⟨R_i a, R_j b⟩ = ⟨a, R_{j−i} b⟩, with xPos, too
  const Tensor d = distances("relative_rope", m, n, a.dim(0), a.device());
  options.offset = 0;
  options = options.of_keys();
  Tensor turned_b = rope_at(expand(unsqueeze(b, 0), {d.dim(0), b.dim(0)}), d, options);
  if (options.factor != 1)  // the factor of a
    turned_b =
        cat({narrow(turned_b, 1, 0, turned) * options.factor, narrow(turned_b, 1, turned, b.dim(0) - turned)}, 1);
  return transpose(matmul(turned_b, unsqueeze(a, 1)), 0, 1);
}

Tensor relative_matrix(const Tensor& table, int64_t m, int64_t n) {
  detail::check_defined("relative_matrix", {{"table", table}});
  const int64_t width = std::max<int64_t>(0, checked_add("relative_matrix", n, m) - 1);
  if (table.rank() != 2 || table.dim(1) != width || m < 0 || n < 0)
    fail("relative_matrix: table=", table, " does not fit; need [heads, ", width, "] for m=", m, ", n=", n);
  checked_numel("relative_matrix", {table.dim(0), m, n});
  if (m == 0 || n == 0) return zeros({table.dim(0), m, n}, table.options());
  // Row i is a window of n entries from m − 1 − i.
  return flip(unfold(table, 1, n, 1), {1});
}

}  // namespace sluice
