// The definition of attention(), composed of ops, with the m×n weights in full.
//
//   s = ρ (cap(scale·q kᵀ) + bias)      w = weighting(s) behind the mask      o = dropout(w) v
#include <sluice/ops/attention/attention_reference.h>

#include <sluice/core/kernel/kernel_arguments.h>
#include <sluice/core/number/philox.h>
#include <sluice/core/operands.h>
#include <sluice/ops/attention/attention_kernels.h>
#include <sluice/ops/attention/heads.h>
#include <sluice/ops/elementwise/activation.h>
#include <sluice/ops/attention/relative_bias.h>
#include <sluice/ops/basic.h>
#include <sluice/ops/elementwise/dropout.h>
#include <sluice/ops/kernels.h>
#include <sluice/ops/rows/rows.h>
#include <sluice/ops/rows/softmax.h>

#include <cmath>
#include <limits>

namespace sluice {

namespace detail {

AttentionOptions widened(AttentionOptions o) {
  change_tensors(o, [](Tensor& x) { x = widened(x); });
  return o;
}

Tensor attention_products(const Tensor& q, const Tensor& k, const AttentionOptions& o) {
  const Tensor s = matmul(q, transpose(spread_heads(k, q.dim(1)), -2, -1)) * *o.scale;
  return o.softcap > 0 ? tanh(s * (1 / o.softcap)) * o.softcap : s;
}

Tensor attention_scores(const Tensor& q, const Tensor& k, const AttentionOptions& o) {
  Tensor s = attention_products(q, k, o);
  if (o.bias.defined()) s = s + o.bias;
  if (o.relative_bias.defined()) s = s + relative_matrix(o.relative_bias, q.dim(2), k.dim(2));
  if (o.row_scale.defined()) s = s * unsqueeze(o.row_scale.detach(), -1);
  return s;
}

Tensor visibility_of(const AttentionOptions& o, const Tensor& q, const Tensor& k) {
  return o.mask.unrestricted() ? Tensor() : visible_pairs(o.mask, q.dim(0), q.dim(1), q.dim(2), k.dim(2), q.device());
}

Tensor weights_of(const Tensor& scores, const Tensor& visible, const AttentionOptions& o, Tensor* sink_weight) {
  auto masked = [&](const Tensor& x, double value) {
    return visible.defined() ? masked_fill(x, logical_not(visible), value) : x;
  };
  switch (o.weighting) {
    case Weighting::softmax: {
      const Tensor s = masked(scores, -std::numeric_limits<double>::infinity());
      if (!o.sink.defined()) return masked(softmax(s), 0);  // of a row with NaN the weights behind the mask are NaN
      Shape column = s.shape();
      column[3] = 1;
      const Tensor sink = expand(reshape(o.sink, {1, o.sink.dim(0), 1, 1}), column), w = softmax(cat({s, sink}, -1));
      if (sink_weight) *sink_weight = narrow(w, -1, s.dim(-1), 1);
      return masked(narrow(w, -1, 0, s.dim(-1)), 0);
    }
    case Weighting::relu2: return masked(relu2(masked(scores, 0)), 0);
    case Weighting::laplace: return masked(laplace(masked(scores, 0)), 0);
    case Weighting::sigmoid: return masked(sigmoid(masked(scores, 0)), 0);
    case Weighting::linear: return masked(scores, 0);
  }
  return {};
}

Tensor hide_unseen(const Tensor& x, const Tensor& visible, int64_t heads) {
  if (!visible.defined() || heads == 0) return x;
  const int64_t per_head = heads / std::max<int64_t>(1, x.dim(1));
  Tensor seen = any(visible, {2});  // [batch or 1, heads or 1, n]
  if (seen.dim(1) > 1 && per_head > 1) seen = any(unflatten(seen, 1, {x.dim(1), per_head}), {2});
  return masked_fill(x, logical_not(unsqueeze(seen, -1)), 0);
}
Tensor hide_blind(const Tensor& q, const Tensor& visible) {
  return visible.defined() ? masked_fill(q, logical_not(any(visible, {3}, keep)), 0) : q;
}

}  // namespace detail

Tensor attention_map(const Tensor& q_in, const Tensor& k_in, const AttentionOptions& given) {
  detail::check_defined("attention_map", {{"q", q_in}});
  if (q_in.dtype() == bf16) return detail::in_f32(attention_map, q_in, k_in, detail::widened(given));
  auto [q, k, v, o, rank] = detail::attention_operands("attention_map", q_in, k_in, k_in, given);
  const Tensor visible = detail::visibility_of(o, q, k);
  q = detail::hide_blind(q, visible), k = detail::hide_unseen(k, visible, q.dim(1));
  return detail::weights_of(detail::attention_scores(q, k, o), visible, o);
}

Tensor attention_reference(const Tensor& q_in, const Tensor& k_in, const Tensor& v_in, const AttentionOptions& given,
                           Rng* rng) {
  detail::check_defined("attention_reference", {{"q", q_in}});
  if (q_in.dtype() == bf16) return detail::in_f32(attention_reference, q_in, k_in, v_in, detail::widened(given), rng);
  auto [q, k, v, o, rank] = detail::attention_operands("attention_reference", q_in, k_in, v_in, given);
  const Tensor visible = detail::visibility_of(o, q, k);
  q = detail::hide_blind(q, visible), k = detail::hide_unseen(k, visible, q.dim(1));
  Tensor w = detail::weights_of(detail::attention_scores(q, k, o), visible, o);
  if (o.dropout > 0 && rng)
    w = w * detail::attention_keep_mask(o.dropout, rng->draw(detail::keep_mask_blocks(w.shape()), w.device()),
                                        w.shape(), w.options());
  const Tensor values = detail::spread_heads(detail::hide_unseen(v, visible, q.dim(1)), q.dim(1));
  return detail::restore_rank(matmul(w, values), rank);
}

Tensor attention_in_order(const Tensor& q_in, const Tensor& k_in, const Tensor& v_in, TileOrder order, int64_t rows,
                          int64_t cols, const AttentionOptions& given) {
  detail::check_defined("attention_in_order", {{"q", q_in}});
  if (q_in.dtype() == bf16)
    return detail::in_f32(attention_in_order, q_in, k_in, v_in, order, rows, cols, detail::widened(given));
  auto [q, k, v, o, rank] = detail::attention_operands("attention_in_order", q_in, k_in, v_in, given);
  if (rows < 1 || cols < 1) fail<ValueError>("attention_in_order: tiles must be positive — got ", rows, "×", cols);
  rows = std::min(rows, std::max<int64_t>(1, q.dim(2))), cols = std::min(cols, std::max<int64_t>(1, k.dim(2)));
  if (o.weighting != Weighting::softmax || o.sink.defined() || o.dropout > 0)
    fail<ValueError>("attention_in_order: softmax only, without sink and dropout");
  const double inf = std::numeric_limits<double>::infinity();
  const int64_t m = q.dim(2), n = k.dim(2);
  const Tensor visible = detail::visibility_of(o, q, k);
  q = detail::hide_blind(q, visible), k = detail::hide_unseen(k, visible, q.dim(1));
  Tensor scores = detail::attention_scores(q, k, o);
  if (visible.defined()) scores = masked_fill(scores, logical_not(visible), -inf);
  const Tensor values = detail::spread_heads(detail::hide_unseen(v, visible, q.dim(1)), q.dim(1));

  struct State {  // of one query tile
    Tensor out, top, total;
  };
  std::vector<State> state;
  for (int64_t i = 0; i < m; i += rows) {
    const Shape column{q.dim(0), q.dim(1), std::min(rows, m - i), 1};
    Shape full_rows = column;
    full_rows[3] = v.dim(3);
    state.push_back({zeros(full_rows, q.options()), full(column, -inf, q.options()), zeros(column, q.options())});
  }
  auto step = [&](std::size_t i, int64_t j, bool normalise) {
    State& a = state[i];
    Tensor s = narrow(narrow(scores, 2, static_cast<int64_t>(i) * rows, a.out.dim(2)), 3, j, std::min(cols, n - j));
    Tensor top = maximum(a.top, max(s, {-1}, keep)).detach();
    Tensor safe = masked_fill(top, top == -inf, 0);  // a row that saw nothing yet: e^(−∞ − 0) = 0
    Tensor shrink = exp(a.top - safe), p = exp(s - safe), total = a.total * shrink + sum(p, {-1}, keep);
    Tensor added = matmul(p, narrow(values, 2, j, s.dim(3)));
    if (normalise) {
      Tensor divisor = masked_fill(total, total.detach() == 0.0, 1);
      a.out = (a.out * (a.total * shrink) + added) / divisor;
    } else {
      a.out = a.out * shrink + added;
    }
    a.top = top, a.total = total;
  };
  if (order == TileOrder::flash1) {
    for (int64_t j = 0; j < n; j += cols)
      for (std::size_t i = 0; i < state.size(); ++i) step(i, j, true);
  } else {
    for (std::size_t i = 0; i < state.size(); ++i)
      for (int64_t j = 0; j < n; j += cols) step(i, j, false);
  }
  std::vector<Tensor> out;
  for (State& a : state)
    out.push_back(order == TileOrder::flash1 ? a.out : a.out / masked_fill(a.total, a.total.detach() == 0.0, 1));
  if (out.empty()) return detail::restore_rank(zeros({q.dim(0), q.dim(1), 0, v.dim(3)}, q.options()), rank);
  return detail::restore_rank(cat(out, 2), rank);
}

// -- shared with attention.cpp ----------------------------------------------------------------------------------

namespace detail {

AttentionOperands attention_operands(const char* op, const Tensor& q, const Tensor& k, const Tensor& v,
                                     const AttentionOptions& given) {
  detail::check_floats(op, {{"q", q}, {"k", k}, {"v", v}});
  CommonDevice where{op};
  where(q), each_tensor(given, where);
  const int rank = q.rank();
  if (rank < 2 || rank > 4 || k.rank() != rank || v.rank() != rank)
    fail(op, ": got q=", q, ", k=", k, ", v=", v,
         "; need [batch, heads, m, d], [batch, kv_heads, n, d], [batch, kv_heads, n, dv]");
  auto four = [rank](const Tensor& x) {
    return rank == 4 ? x : rank == 3 ? unsqueeze(x, 1) : unsqueeze(unsqueeze(x, 0), 0);
  };
  AttentionOperands a{four(q), four(k), four(v), given, rank};
  const int64_t batch = a.q.dim(0), heads = a.q.dim(1), m = a.q.dim(2), n = a.k.dim(2), kv_heads = a.k.dim(1);
  if (a.k.dim(0) != batch || a.v.dim(0) != batch || a.v.dim(1) != kv_heads || a.v.dim(2) != n ||
      a.k.dim(3) != a.q.dim(3))
    fail(op, ": operands do not fit — got q=", q, ", k=", k, ", v=", v,
         "; need [batch, heads, m, d], [batch, kv_heads, n, d], [batch, kv_heads, n, dv]");
  if (kv_heads == 0 ? heads != 0 : heads % kv_heads != 0)
    fail(op, ": ", kv_heads, " key heads do not divide ", heads, " query heads — got q=", q, ", k=", k);
  checked_numel(op, {batch, heads, m, n}), checked_numel(op, {batch, heads, m, a.v.dim(3)});
  checked_numel(op, {batch, heads, n, std::max(a.k.dim(3), a.v.dim(3))});  // a key head for each query head
  check_mask(op, given.mask, batch, heads, m, n);
  AttentionOptions& o = a.options;
  if (!o.scale) o.scale = 1 / std::sqrt(static_cast<double>(std::max<int64_t>(1, q.dim(-1))));
  auto same_dtype = [&](const char* name, const Tensor& x) {
    if (x.defined() && x.dtype() != q.dtype())
      fail<DTypeError>(op, ": ", name, " is ", x.dtype(), x, " beside q=", q.dtype(), q);
  };
  same_dtype("bias", o.bias), same_dtype("relative_bias", o.relative_bias), same_dtype("sink", o.sink);
  const bool exact_scale = q.dtype() == bf16 && o.row_scale.defined() && o.row_scale.dtype() == f32;
  if (!exact_scale) same_dtype("row_scale", o.row_scale);
  const Shape scores{batch, heads, m, n};
  if (o.bias.defined() && !stretches_to(o.bias.shape(), scores))
    fail(op, ": bias=", o.bias, " does not broadcast to the scores ", scores);
  if (o.row_scale.defined() && !stretches_to(o.row_scale.shape(), {batch, heads, m}))
    fail(op, ": row_scale=", o.row_scale, " does not broadcast to ", Shape{batch, heads, m});
  if (o.relative_bias.defined() &&
      (o.relative_bias.rank() != 2 || (o.relative_bias.dim(0) != heads && o.relative_bias.dim(0) != 1) ||
       o.relative_bias.dim(1) != std::max<int64_t>(0, n + m - 1)))
    fail(op, ": relative_bias=", o.relative_bias, " does not fit; need [", heads, " or 1, ", n + m - 1, "] for ", m,
         " queries and ", n, " keys");
  if (o.sink.defined()) {
    if (o.weighting != Weighting::softmax) fail<ValueError>(op, ": a sink belongs to the softmax weighting");
    if (o.sink.rank() != 1 || (o.sink.dim(0) != heads && o.sink.dim(0) != 1))
      fail(op, ": sink=", o.sink, " does not fit; need [", heads, " or 1]");
  }
  const auto as_used = [&](double c) { return q.dtype() == f64 ? c : static_cast<float>(c); };
  if (!std::isfinite(as_used(*o.scale)))
    fail<ValueError>(op, ": scale must be finite in ", q.dtype(), " — got ", *o.scale);
  if (!(as_used(o.softcap) > 0 || o.softcap == 0) || !std::isfinite(as_used(o.softcap)))
    fail<ValueError>(op, ": softcap must be positive and finite in ", q.dtype(), ", or 0 for none — got ", o.softcap);
  if (!(o.dropout >= 0 && o.dropout < 1)) fail<ValueError>(op, ": dropout=", o.dropout, " is outside [0, 1)");
  if (o.tile_rows < 0 || o.tile_cols < 0)
    fail<ValueError>(op, ": tile sizes must not be negative — got ", o.tile_rows, "×", o.tile_cols);
  return a;
}

Tensor restore_rank(const Tensor& x, int rank) {
  return rank == 4 ? x : rank == 3 ? squeeze(x, 1) : squeeze(squeeze(x, 0), 0);
}

uint64_t keep_mask_blocks(const Shape& shape) {
  const int64_t n = shape[shape.rank() - 1];
  return n == 0 ? 0 : static_cast<uint64_t>(shape.numel() / n * ceil_div(n, 4));
}

Tensor attention_keep_mask(double p, RngBlocks from, const Shape& shape, TensorOptions options) {
  Tensor y = empty(shape, options);
  kernel::attention_keep_mask(y, {p, from});
  return y;
}

static void attention_keep_mask_cpu(Tensor& y, DropoutSpec s) {
  const int64_t n = y.dim(-1), per_row = ceil_div(n, 4);
  dispatch_float("attention", y.dtype(), [&]<class T>() {
    T* out = y.mutable_data<T>();
    const Dropping<T> drop(s.p);
    for_each_row(y.numel() / std::max<int64_t>(1, n), n, [=](int64_t r) {
      T* line = out + r * n;
      for_philox_words(s.from.seed, s.from.first + static_cast<uint64_t>(r * per_row), 0, n,
                       [=](int64_t j, const uint32_t* word, int64_t count) {
                         for (int64_t k = 0; k < count; ++k) line[j + k] = drop(word[k]);
                       });
    });
  });
}

}  // namespace detail

constinit decltype(kernel::attention_keep_mask) kernel::attention_keep_mask{"attention",
                                                                            &detail::attention_keep_mask_cpu};

}  // namespace sluice
