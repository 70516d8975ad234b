// For a tile of queries, over the tiles of keys it sees (the order of FlashAttention-2; Dao 2023):
//
//   softmax:  μ' = max(μ, rowmax S)    P = e^{S − μ'}    l ← l e^{μ − μ'} + rowsum P    O ← O e^{μ − μ'} + P V
//             at the end  O ← O / l,  lse = μ + log l
//   others:   P = φ(S)                                                                  O ← O + P V
//
// A row that has seen nothing has μ = −∞; 0 stands in for it, so that P = e^{−∞ − 0} = 0. The sink is one more
// score without a value: it joins l at the end.
#include <sluice/ops/attention/attention_tiles.h>

namespace sluice {

namespace detail {

namespace {

template <class T>
void forward(const AttentionCall& call, Tensor& out_tensor, Tensor& lse_tensor) {
  const ScoreTiles<T> tiles(call);
  const AttentionOptions& o = call.options;
  const bool softmax = o.weighting == Weighting::softmax;
  const int64_t m = tiles.m, dv = tiles.dv;
  const int64_t tile_rows = std::min(m, o.tile_rows > 0 ? o.tile_rows : 128);
  // Long tiles have longer sums and fewer corrections; short ones fit holes of a mask, and L2 beside wide values.
  const int64_t cols_wanted = sizeof(T) == 4 && dv <= 256 && tiles.visibility.only_span() ? 512 : 256;
  const int64_t tile_cols = std::clamp<int64_t>(tiles.n, 1, o.tile_cols > 0 ? o.tile_cols : cols_wanted);
  const int64_t row_tiles = (m + tile_rows - 1) / tile_rows;
  const Heads<T> out(out_tensor);
  T* lse = softmax ? lse_tensor.mutable_data<T>() : nullptr;
  const T inf = std::numeric_limits<T>::infinity();
  const T* sink = o.sink.defined() ? o.sink.data<T>() : nullptr;
  const int64_t sink_stride = sink && o.sink.dim(0) > 1 ? o.sink.strides()[0] : 0;

  parallel_for(tiles.batch * tiles.heads * row_tiles, 1, [&](int64_t begin, int64_t end) {
    Scratch<T> scratch(tile_rows * (tile_cols + dv + 2));
    T *s = scratch.data(), *acc = s + tile_rows * tile_cols, *top = acc + tile_rows * dv, *total = top + tile_rows;
    std::vector<uint8_t> seen;
    for (int64_t task = begin; task < end; ++task) {
      const int64_t b = task / row_tiles / tiles.heads, h = task / row_tiles % tiles.heads;
      const int64_t row = task % row_tiles * tile_rows, rows = std::min(tile_rows, m - row), kv = tiles.kv_head(h);
      std::fill_n(acc, rows * dv, T(0));
      std::fill_n(top, rows, -inf);
      std::fill_n(total, rows, T(0));
      const auto range = tiles.columns(row, rows);
      for (int64_t col = range.begin; col < range.end; col += tile_cols) {
        const int64_t cols = std::min(tile_cols, range.end - col);
        const auto kind = tiles.visibility.classify(b, h, row, rows, col, cols);
        if (kind == Visibility::Tile::none) continue;
        const typename ScoreTiles<T>::Tile t{b, h, row, rows, col, cols, kind == Visibility::Tile::some};
        tiles.scores(t, s, cols);
        if (softmax) {
          for (int64_t r = 0; r < rows; ++r) {
            T* __restrict__ line = s + r * cols;
            tiles.hide(t, r, line, -inf, seen);
            const T before = top[r], now = std::max(before, row_max(line, cols));
            const T shift = now == -inf ? T(0) : now;
            const T sum = row_total<T>(cols, [=](int64_t j) { return line[j] = math::exp_low(line[j] - shift); });
            if (before != now) {
              const T shrink = math::exp(before - shift);
              total[r] *= shrink;
              if (before != -inf)
                for (int64_t c = 0; c < dv; ++c) acc[r * dv + c] *= shrink;
            }
            total[r] += sum;
            top[r] = now;
            if (o.dropout > 0) tiles.drop(t, r, line);
          }
        } else {
          with_formula(o.weighting, [&](auto phi) {
            for (int64_t r = 0; r < rows; ++r) {
              T* line = s + r * cols;
              for (int64_t j = 0; j < cols; ++j) line[j] = phi(Value<T>{line[j], {}}).v;
              tiles.hide(t, r, line, T(0), seen);
              if (o.dropout > 0) tiles.drop(t, r, line);
            }
          });
        }
        const T* values = tiles.v.at(b, kv, col);
        if (t.masked && !all_finite(values, cols, dv, tiles.v.row))
          sparse_product(Read::plain, rows, dv, cols, T(1), s, cols, values, tiles.v.row, acc, dv);
        else
          gemm(Read::plain, Read::plain, rows, dv, cols, T(1), s, cols, values, tiles.v.row, T(1), acc, dv, tiles.precision);
      }
      for (int64_t r = 0; r < rows; ++r) {
        T factor = 1;
        if (softmax) {
          if (sink) {
            const T extra = sink[h * sink_stride], now = std::max(top[r], extra), shift = now == -inf ? T(0) : now;
            const T shrink = top[r] == -inf ? T(0) : math::exp(top[r] - shift);
            total[r] = total[r] * shrink + math::exp(extra - shift);
            factor = shrink, top[r] = now;
          }
          lse[(b * tiles.heads + h) * m + row + r] = total[r] == T(0) ? -inf : (top[r] == -inf ? T(0) : top[r]) + math::log(total[r]);
          factor = total[r] == T(0) ? T(0) : factor / total[r];
        }
        const T* from = acc + r * dv;
        T* to = out.at(b, h, row + r);
        for (int64_t c = 0; c < dv; ++c) to[c] = from[c] * factor;
      }
    }
  });
}

void forward_cpu(const AttentionCall& call, Tensor& out, Tensor& lse) {
  dispatch_float("attention", call.q.dtype(), [&]<class T>() { forward<T>(call, out, lse); });
}

}  // namespace

}  // namespace detail

constinit decltype(kernel::attention) kernel::attention{
    "attention", &detail::forward_cpu, [](const detail::AttentionCall& c, Tensor&, Tensor&) {
      const int64_t pairs = detail::counted_pairs(c);  // scores and the weighted sum
      return Work{.flops = 2 * checked_mul("attention", pairs, c.q.dim(3) + c.v.dim(3)), .attention_elements = pairs};
    }};

}  // namespace sluice
