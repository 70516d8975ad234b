#include <sluice/layers/attention/gathered_keys.h>

#include <sluice/autograd/function.h>
#include <sluice/core/node.h>
#include <sluice/ops/basic.h>
#include <sluice/ops/index/gather.h>
#include <sluice/ops/shape/rearrange.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace sluice {

namespace {

constexpr int64_t kHeld = 1 << 22;  // numbers gathered at a time, at least
/// Multiply-adds of attention() in the time of copying a number, and, for a gradient, of adding one back.
double cost_of_copy() { return grad_enabled() ? 64 : 20; }

}  // namespace

Tensor attention_to_keys(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& keys,
                         const AttentionOptions& options) {
  const char* op = "attention_to_keys";
  if (q.rank() != 4 || k.rank() != 4 || v.rank() != 4 || k.dim(0) != q.dim(0) || k.dim(3) != q.dim(3) ||
      v.dim(0) != k.dim(0) || v.dim(1) != k.dim(1) || v.dim(2) != k.dim(2) || k.dim(1) < 1 || q.dim(1) % k.dim(1) != 0)
    fail(op, ": got q=", q, ", k=", k, ", v=", v,
         "; need [batch, heads, m, d], [batch, kv_heads, n, d], [batch, kv_heads, n, dv]");
  if (keys.dtype() != i64 || keys.rank() != 4 || keys.dim(0) != q.dim(0) || keys.dim(1) != 1 || keys.dim(2) != q.dim(2))
    fail(op, ": keys=", keys, " of ", keys.dtype(), " do not fit q=", q, "; need i64 [batch, 1, m, count]");
  if (keys.device() == cpu && keys.numel() > 0)  // elsewhere the host would have to wait for the numbers
    if (const auto most = static_cast<int64_t>(max(keys).item()); most >= k.dim(2))
      fail<ValueError>(op, ": key ", most, " is none of the ", k.dim(2), " keys of k=", k);
  const int64_t batch = q.dim(0), m = q.dim(2), n = k.dim(2), kv_heads = k.dim(1), count = keys.dim(3);
  AttentionOptions o;
  o.weighting = options.weighting, o.softcap = options.softcap, o.sink = options.sink, o.precision = options.precision;
  o.scale = options.scale.value_or(1 / std::sqrt(static_cast<double>(q.dim(3))));
  if (n == 0 || count == 0) return attention(q, narrow(k, 2, 0, 0), narrow(v, 2, 0, 0), o);
  const auto rows_of = [](const Tensor& x) { return rearrange("b h n d -> (b n) (h d)", x); };
  const Tensor first = reshape(arange(batch, {i64, q.device()}) * static_cast<double>(n), {batch, 1, 1, 1}),
               k_rows = rows_of(k), v_rows = rows_of(v);
  // Each part makes gradients of all keys. Parts that gather far fewer numbers would spend their time on zeros.
  const bool differentiable = grad_enabled() && (k.requires_grad() || v.requires_grad());
  const int64_t width = k_rows.dim(1) + v_rows.dim(1), of_query = std::max<int64_t>(1, batch * count * width),
                held = std::max(kHeld, differentiable ? 8 * batch * n * width : 0),
                size = std::max<int64_t>(1, held / of_query);
  std::vector<Tensor> y;
  for (int64_t row = 0; row == 0 || row < m; row += size) {
    const int64_t rows = std::min(size, m - row);
    const Tensor own = narrow(keys, 2, row, rows), real = reshape(own >= 0.0, {batch * rows, count}),
                 places = flatten(masked_fill(own, own < 0.0, 0) + first);
    const auto part = [=](const std::vector<Tensor>& in) {
      const auto gathered = [&](const Tensor& x) {
        return transpose(unflatten(unflatten(index_select(x, 0, places), 0, {batch * rows, count}), -1,
                                   {kv_heads, x.dim(1) / kv_heads}),
                         1, 2);
      };
      AttentionOptions here = o;
      here.mask.keys = real;
      if (in.size() > 3) here.sink = in[3];
      const Tensor queries = rearrange("b h r d -> (b r) h 1 d", in[0]);
      return rearrange("(b r) h 1 d -> b h r d", attention(queries, gathered(in[1]), gathered(in[2]), here),
                       {{"b", batch}, {"r", rows}});
    };
    std::vector<Tensor> inputs{narrow(q, 2, row, rows), k_rows, v_rows};
    if (o.sink.defined()) inputs.push_back(o.sink);
    y.push_back(checkpoint(part, inputs));
  }
  return cat(y, 2);
}

bool detail::may_gather_keys(const AttentionOptions& o, Device device, bool drops) {
  return !drops && device.kind == DeviceKind::cpu && !o.mask.dense.defined() && !o.mask.blocks.defined() &&
         !o.bias.defined() && !o.relative_bias.defined() && !o.row_scale.defined();
}

double detail::gathered_pairs(int64_t heads, int64_t kv_heads, int64_t count) {
  return static_cast<double>(count) * (1 + cost_of_copy() * static_cast<double>(kv_heads) / static_cast<double>(heads));
}

}  // namespace sluice
