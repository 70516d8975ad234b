#include "support/naive_attention.h"

#include <algorithm>
#include <cmath>

namespace sluice::testing {

Array array_of(const Tensor& x) {
  Array a;
  if (!x.defined()) return a;
  a.shape.assign(x.shape().begin(), x.shape().end());
  a.v = x.to_vector<double>();
  return a;
}

NaiveMask::NaiveMask(const AttentionMask& mask, int64_t m, int64_t n, int64_t heads)
    : mask_(mask), m_(m), n_(n), keys_(array_of(mask.keys)), query_segments_(array_of(mask.query_segments)),
      key_segments_(array_of(mask.key_segments)), blocks_(array_of(mask.blocks)), dense_(array_of(mask.dense)) {
  if (heads > 0 && blocks_.rank() == 4) heads_of_group_ = heads / blocks_.shape[1];
}

bool NaiveMask::is_global(int64_t position) const {
  return std::find(mask_.global.begin(), mask_.global.end(), position) != mask_.global.end();
}

bool NaiveMask::sees(int64_t batch, int64_t head, int64_t i, int64_t j) const {
  const int64_t p = i + n_ - m_;  // of the query; the key stands at j
  if (mask_.causal && j > p) return false;
  const int64_t distance = std::llabs(p - j);
  const bool in_window = mask_.window == 0 || distance <= (mask_.window - 1) * mask_.dilation;
  const bool in_step = distance % mask_.dilation == 0;
  if (!(in_window && in_step) && !is_global(p) && !is_global(j)) return false;
  if (mask_.keys.defined() && keys_.stretched({batch, j}) == 0) return false;
  if (mask_.query_segments.defined() && query_segments_.stretched({batch, i}) != key_segments_.stretched({batch, j}))
    return false;
  if (mask_.blocks.defined()) {
    const bool by_query = blocks_.rank() == 4;  // with a row for each head, for each group of heads, or one for all
    if (blocks_.stretched({batch, head / heads_of_group_, by_query ? i : i / mask_.block, j / mask_.block}) == 0)
      return false;
  }
  return !mask_.dense.defined() || dense_.stretched({batch, head, i, j}) != 0;
}

namespace {

double weight_of(Weighting weighting, double s) {
  switch (weighting) {
    case Weighting::softmax: return NAN;  // not elementwise
    case Weighting::relu2: return s > 0 ? s * s : 0;
    case Weighting::laplace: {
      const double mean = std::sqrt(0.5), deviation = std::sqrt(1 / (4 * std::acos(-1.0)));
      return 0.5 * std::erfc((mean - s) / (deviation * std::sqrt(2.0)));
    }
    case Weighting::sigmoid: return 1 / (1 + std::exp(-s));
    case Weighting::linear: return s;
  }
  return NAN;
}

}  // namespace

NaiveAttention naive_attention(const Array& q, const Array& k, const Array& v, const AttentionOptions& o) {
  const int64_t batch = q.shape[0], heads = q.shape[1], m = q.shape[2], d = q.shape[3];
  const int64_t kv_heads = k.shape[1], n = k.shape[2], e = v.shape[3];
  const double scale = o.scale ? *o.scale : 1 / std::sqrt(static_cast<double>(std::max<int64_t>(d, 1)));
  const NaiveMask mask(o.mask, m, n);
  const Array bias = array_of(o.bias), relative = array_of(o.relative_bias), sink = array_of(o.sink),
              row_scale = array_of(o.row_scale);
  NaiveAttention r{Array({batch, heads, m, e}), Array({batch, heads, m}, -INFINITY), Array({batch, heads, m, n})};
  std::vector<double> s(static_cast<std::size_t>(n));
  std::vector<char> seen(static_cast<std::size_t>(n));
  for (int64_t b = 0; b < batch; ++b)
    for (int64_t h = 0; h < heads; ++h)
      for (int64_t i = 0; i < m; ++i) {
        const int64_t kv = h / (heads / kv_heads);
        const double* query = q.v.data() + q.at({b, h, i, 0});
        double top = -INFINITY;
        for (int64_t j = 0; j < n; ++j) {
          const auto at = static_cast<std::size_t>(j);
          seen[at] = mask.sees(b, h, i, j);
          if (!seen[at]) continue;
          const double* key = k.v.data() + ((b * kv_heads + kv) * n + j) * d;
          double x = 0;
          for (int64_t c = 0; c < d; ++c) x += query[c] * key[c];
          x *= scale;
          if (o.softcap > 0) x = o.softcap * std::tanh(x / o.softcap);
          if (o.bias.defined()) x += bias.stretched({b, h, i, j});
          // entry n − 1 + p_j − p_i, where p_i = i + n − m
          if (o.relative_bias.defined()) x += relative.stretched({h, m - 1 + j - i});
          if (o.row_scale.defined()) x *= row_scale.stretched({b, h, i});
          s[at] = x, top = std::max(top, x);
        }
        double* weights = r.weights.v.data() + r.weights.at({b, h, i, 0});
        double total = 0;
        if (o.weighting == Weighting::softmax) {
          if (o.sink.defined()) top = std::max(top, sink.stretched({h}));
          for (int64_t j = 0; j < n; ++j)
            if (seen[static_cast<std::size_t>(j)]) total += std::exp(s[static_cast<std::size_t>(j)] - top);
          if (o.sink.defined()) total += std::exp(sink.stretched({h}) - top);
          if (total > 0) r.lse({b, h, i}) = top + std::log(total);
        }
        double* out = r.out.v.data() + r.out.at({b, h, i, 0});
        for (int64_t j = 0; j < n; ++j) {
          const auto at = static_cast<std::size_t>(j);
          if (!seen[at]) continue;
          weights[j] =
              o.weighting == Weighting::softmax ? std::exp(s[at] - top) / total : weight_of(o.weighting, s[at]);
          const double* value = v.v.data() + ((b * kv_heads + kv) * n + j) * e;
          for (int64_t c = 0; c < e; ++c) out[c] += weights[j] * value[c];
        }
      }
  return r;
}

}  // namespace sluice::testing
