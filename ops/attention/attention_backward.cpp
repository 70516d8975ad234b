// Scores and weights are recomputed, tile by tile, from the operands and the row statistics:
//
//   P = e^{S − lse} or φ(S)          dP = G Vᵀ ⊙ Z            (Z: dropout's factors)
//   dS = P ⊙ (dP − δ) or φ'(S) ⊙ dP     δ_i = Σ_c g_ic o_ic − (gradient of lse_i)
//   dV += (P ⊙ Z)ᵀ G     dQ += scale·(ρ dS ⊙ cap') K     dK += scale·(ρ dS ⊙ cap')ᵀ Q     dbias = ρ dS
//
// One task owns every splits-th tile of keys of one key head: it alone adds to their dK and dV. Tiles of queries are
// dealt to `turns` groups. In turn s the task of split i goes through group i + s (mod turns), so that no two tasks add
// to one dQ at the same time. With fewer tiles of queries than splits, several dQ are kept and added up at the end.
#include <sluice/ops/attention/attention_tiles.h>
#include <sluice/ops/create.h>

#include <optional>

namespace sluice {

namespace detail {

namespace {

constexpr int64_t kRows = 128, kCols = 256;

template <class T>
struct Backward {
  const AttentionCall& call;
  const ScoreTiles<T> tiles;
  const AttentionOptions& o;
  Heads<const T> g;
  const T *lse, *delta;
  AttentionGradients& grads;
  int64_t tile_rows, tile_cols, splits, turns, parts;
  Tensor dq_parts;  // [parts − 1, batch, heads, m, d]: the first `turns` splits add to dq itself

  Backward(const AttentionCall& c, const Tensor& gradient, const Tensor& l, const Tensor& dl, AttentionGradients& out)
      : call(c), tiles(c), o(c.options), g(gradient), lse(l.defined() ? l.data<T>() : nullptr),
        delta(dl.defined() ? dl.data<T>() : nullptr), grads(out),
        tile_rows(std::clamp<int64_t>(tiles.m, 1, o.tile_rows > 0 ? o.tile_rows : kRows)),
        tile_cols(std::clamp<int64_t>(tiles.n, 1, o.tile_cols > 0 ? o.tile_cols : kCols)), splits(attention_splits(c.k)),
        turns(std::clamp<int64_t>((tiles.m + tile_rows - 1) / tile_rows, 1, splits)), parts((splits + turns - 1) / turns) {
    if (grads.dq.defined()) {
      fill_(grads.dq, 0);
      dq_parts = empty({parts - 1, tiles.batch, tiles.heads, tiles.m, tiles.d}, c.q.options());
      fill_(dq_parts, 0);
    }
  }

  struct Memory {
    Scratch<T> floats;
    T *p, *ds, *dk, *dv, *packed, *left, *right, *slope;
    std::vector<uint8_t> seen;
    explicit Memory(const Backward& w)
        : floats((w.o.softcap > 0 ? 3 : 2) * w.tile_rows * w.tile_cols + w.tile_cols * (w.tiles.d + w.tiles.dv) + 16 + w.packed_size() +
                 w.left_size() + w.right_size()),
          p(floats.data()), ds(p + w.tile_rows * w.tile_cols), dk(ds + w.tile_rows * w.tile_cols), dv(dk + w.tile_cols * w.tiles.d),
          packed(floats.data() + lines(dv + w.tile_cols * w.tiles.dv - floats.data())), left(packed + w.packed_size()),
          right(left + w.left_size()), slope(w.o.softcap > 0 ? right + w.right_size() : nullptr) {}
  };
  int64_t packed_size() const {
    const int64_t d = tiles.d, dv = tiles.dv;
    if (tiles.split) return lines(Parts::size(tile_cols, d)) + lines(Parts::size(tile_cols, dv)) + lines(Parts::size(d, tile_cols));
    return lines(PackedB<T>::size(d, tile_cols)) + lines(PackedB<T>::size(dv, tile_cols)) + lines(PackedB<T>::size(tile_cols, d));
  }
  /// Memory for the left and the right operand of one product in three parts; the right one also holds scaled queries.
  int64_t left_size() const {
    const int64_t wide = std::max(tiles.d, tiles.dv);
    return tiles.split ? lines(std::max({Parts::size(tile_rows, wide), Parts::size(tile_rows, tile_cols), Parts::size(tile_cols, tile_rows)})) : 0;
  }
  int64_t right_size() const {
    return tiles.split ? lines(std::max(Parts::size(std::max(tiles.d, tiles.dv), tile_rows), tile_rows * tiles.d)) : 0;
  }

  /// A task's tile of keys, packed once for all queries that see the whole tile: kᵀ, vᵀ and k.
  struct Packed {
    PackedB<T> scores, weights, dq;
    Packed(const Backward& w, T* memory, int64_t b, int64_t kv, int64_t col, int64_t count)
        : scores(w.tiles.d, count, memory, w.tiles.precision),
          weights(w.tiles.dv, count, memory += lines(PackedB<T>::size(w.tiles.d, count)), w.tiles.precision),
          dq(count, w.tiles.d, memory += lines(PackedB<T>::size(w.tiles.dv, count)), w.tiles.precision) {
      const T *keys = w.tiles.k.at(b, kv, col), *values = w.tiles.v.at(b, kv, col);
      scores.fill(Read::transposed, keys, w.tiles.k.row);
      weights.fill(Read::transposed, values, w.tiles.v.row);
      dq.fill(Read::plain, keys, w.tiles.k.row);
    }
  };
  /// The same in three parts, for all queries.
  struct InParts {
    Parts scores, weights, dq;
    bool tame_keys, tame_values;
    InParts(const Backward& w, T* memory, int64_t b, int64_t kv, int64_t col, int64_t count)
        : scores(count, w.tiles.d, memory), weights(count, w.tiles.dv, memory += lines(Parts::size(count, w.tiles.d))),
          dq(w.tiles.d, count, memory += lines(Parts::size(count, w.tiles.dv))) {
      const T *keys = w.tiles.k.at(b, kv, col), *values = w.tiles.v.at(b, kv, col);
      scores.fill_b(Read::transposed, keys, w.tiles.k.row);
      tame_values = weights.fill_b(Read::transposed, values, w.tiles.v.row);
      tame_keys = fill_tame(dq, keys, w.tiles.k.row, count, w.tiles.d);
    }
  };

  void run() {
    for (int64_t turn = 0; turn < turns; ++turn)
      parallel_for(tiles.batch * tiles.kv_heads * splits, 1, [&](int64_t begin, int64_t end) {
        Memory memory(*this);
        for (int64_t task = begin; task < end; ++task)
          keys(memory, task / splits / tiles.kv_heads, task / splits % tiles.kv_heads, task % splits, turn);
      });
    if (grads.dq.defined() && parts > 1) add_parts();
  }

  /// All keys of a split, with the queries of one turn.
  void keys(Memory& w, int64_t b, int64_t kv, int64_t split, int64_t turn) {
    const int64_t group = tiles.heads / tiles.kv_heads;
    for (int64_t col = split * tile_cols; col < tiles.n; col += splits * tile_cols) {
      const int64_t cols = std::min(tile_cols, tiles.n - col);
      std::fill_n(w.dk, cols * tiles.d, T(0));
      std::fill_n(w.dv, cols * tiles.dv, T(0));
      std::optional<Packed> packed;
      std::optional<InParts> parts_of_keys;
      for (int64_t h = kv * group; h < (kv + 1) * group; ++h)
        for (int64_t row = (split + turn) % turns * tile_rows; row < tiles.m; row += turns * tile_rows)
          tile(w, packed, parts_of_keys, split, b, h, row, std::min(tile_rows, tiles.m - row), col, cols);
      if (grads.dk.defined()) store(w.dk, Heads<T>(grads.dk), b, kv, col, cols, tiles.d, turn > 0);
      if (grads.dv.defined()) store(w.dv, Heads<T>(grads.dv), b, kv, col, cols, tiles.dv, turn > 0);
    }
  }

  static void store(const T* from, const Heads<T>& to, int64_t b, int64_t h, int64_t row, int64_t rows, int64_t width, bool add) {
    for (int64_t r = 0; r < rows; ++r) {
      T* line = to.at(b, h, row + r);
      if (add) for (int64_t c = 0; c < width; ++c) line[c] += from[r * width + c];
      else std::copy_n(from + r * width, width, line);
    }
  }

  void add_parts() {
    const Heads<T> dq(grads.dq);
    const T* part = dq_parts.data<T>();
    const int64_t all = dq_parts.numel() / (parts - 1), d = tiles.d;
    for_each_row(tiles.batch * tiles.heads * tiles.m, d * parts, [&](int64_t r) {
      T* to = dq.at(r / tiles.m / tiles.heads, r / tiles.m % tiles.heads, r % tiles.m);
      for (int64_t k = 0; k + 1 < parts; ++k)
        for (int64_t c = 0; c < d; ++c) to[c] += part[k * all + r * d + c];
    });
  }

  /// Rows [row, row + rows) of query head h with the task's tile of keys, cut to the columns that these rows can see.
  void tile(Memory& w, std::optional<Packed>& packed, std::optional<InParts>& ready, int64_t split, int64_t b, int64_t h, int64_t row, int64_t rows,
            int64_t tile_col, int64_t tile_width) {
    const auto range = tiles.columns(row, rows);
    const auto here = tiles.cut(tile_col, tile_width, range);
    const int64_t col = here.begin, cols = here.end - col;
    if (cols <= 0) return;
    const auto kind = tiles.visibility.classify(b, h, row, rows, col, cols);
    if (kind == Visibility::Tile::none) return;
    const typename ScoreTiles<T>::Tile t{b, h, row, rows, col, cols, kind == Visibility::Tile::some};
    const int64_t kv = tiles.kv_head(h);
    const T *queries = tiles.q.at(b, h, row), *keys = tiles.k.at(b, kv, col), *values = tiles.v.at(b, kv, col);
    const T* gradient = g.at(b, h, row);
    const int64_t at = col - tile_col;
    const bool all = !tiles.split && cols == tile_width && tiles.heads / tiles.kv_heads * tiles.m > tile_rows;
    if (all && !packed) packed.emplace(*this, w.packed, b, kv, col, cols);
    const Packed* whole = all ? &*packed : nullptr;
    if (tiles.split) {
      if (!ready) ready.emplace(*this, w.packed, b, kv, tile_col, tile_width);
      const Parts scaled(rows, tiles.d, w.left), gradients(rows, tiles.dv, w.left);
      const bool tame_scores = tiles.fill_queries(scaled, b, h, row, rows, w.right) && ready->tame_keys;
      ready->scores.multiply(scaled, 0, at, cols, T(1), T(0), w.p, cols);
      if (!tame_scores) mend_dots(rows, cols, tiles.d, T(*o.scale), queries, tiles.q.row, keys, tiles.k.row, w.p, cols);
      const bool tame_weights = gradients.fill_a(Read::plain, gradient, g.row) && ready->tame_values;
      ready->weights.multiply(gradients, 0, at, cols, T(1), T(0), w.ds, cols);
      if (!tame_weights) mend_dots(rows, cols, tiles.dv, T(1), gradient, g.row, values, tiles.v.row, w.ds, cols);
    } else {
      tiles.dots(t, w.p, cols, whole ? &whole->scores : nullptr);
      if (whole) whole->weights.multiply(Read::plain, rows, T(1), gradient, g.row, T(0), w.ds, cols);
      else
        gemm(Read::plain, Read::transposed, rows, cols, tiles.dv, T(1), gradient, g.row, values, tiles.v.row, T(0), w.ds, cols,
             tiles.precision);
    }
    tiles.dots_to_scores(t, w.p, cols, w.slope);
    if (o.weighting == Weighting::softmax) softmax_rows(t, w);
    else with_formula(o.weighting, [&](auto phi) { formula_rows(t, w, phi); });

    if (grads.bias.defined()) {
      T* to = grads.bias.mutable_data<T>() + ((b * tiles.heads + h) * tiles.m + row) * tiles.n + col;
      for (int64_t r = 0; r < rows; ++r) std::copy_n(w.ds + r * cols, cols, to + r * tiles.n);
    }
    if (grads.relative.defined()) {
      T* to = grads.relative.mutable_data<T>() + ((b * tiles.heads + h) * splits + split) * (tiles.n + tiles.m - 1);
      for (int64_t r = 0; r < rows; ++r) {
        T* line = to + tiles.m - 1 + col - (row + r);
        for (int64_t j = 0; j < cols; ++j) line[j] += w.ds[r * cols + j];
      }
    }
    if (w.slope)  // the slope of a forbidden pair may be NaN
      for (int64_t i = 0; i < rows * cols; ++i) w.ds[i] = w.ds[i] == T(0) ? T(0) : w.ds[i] * w.slope[i];
    const T scale = T(*o.scale);
    const int64_t part = split / turns;
    T* const dq = !grads.dq.defined() ? nullptr
                  : part == 0         ? Heads<T>(grads.dq).at(b, h, row)
                                      : dq_parts.mutable_data<T>() + ((((part - 1) * tiles.batch + b) * tiles.heads + h) * tiles.m + row) * tiles.d;
    const int64_t dq_row = part == 0 && dq ? Heads<T>(grads.dq).row : tiles.d;
    T *const dk = w.dk + at * tiles.d, *const dv = w.dv + at * tiles.dv;
    if (tiles.split) {
      // c [cols, width] += factor · aᵀ x
      const auto sums = [&](T factor, const T* a, const T* x, int64_t ldx, int64_t width, T* c) {
        const Parts left(cols, rows, w.left), right(width, rows, w.right);
        const bool tame_left = left.fill_a(Read::transposed, a, cols), tame = fill_tame(right, x, ldx, rows, width) && tame_left;
        const auto add = [&] { right.multiply(left, 0, 0, width, factor, T(1), c, width); };
        if (tame) add();
        else mended_sums(Read::transposed, cols, width, rows, factor, a, cols, x, ldx, t.masked, c, width, add);
      };
      if (grads.dv.defined()) sums(T(1), w.p, gradient, g.row, tiles.dv, dv);
      if (grads.dk.defined()) sums(scale, w.ds, queries, tiles.q.row, tiles.d, dk);
      if (dq) {
        const Parts slopes(rows, cols, w.left);
        const bool tame = slopes.fill_a(Read::plain, w.ds, cols) && ready->tame_keys;
        const auto add = [&] { ready->dq.multiply(slopes, at, 0, tiles.d, scale, T(1), dq, dq_row); };
        if (tame) add();
        else mended_sums(Read::plain, rows, tiles.d, cols, scale, w.ds, cols, keys, tiles.k.row, t.masked, dq, dq_row, add);
      }
      return;
    }
    auto product = [&](Read ra, int64_t n, int64_t m, int64_t k, T alpha, const T* a, const T* x, int64_t ldx, T* c, int64_t ldc) {
      if (t.masked && !all_finite(x, k, m, ldx)) sparse_product(ra, n, m, k, alpha, a, cols, x, ldx, c, ldc);
      else if (whole && c == dq) whole->dq.multiply(ra, n, alpha, a, cols, T(1), c, ldc);
      else gemm(ra, Read::plain, n, m, k, alpha, a, cols, x, ldx, T(1), c, ldc, tiles.precision);
    };
    if (grads.dv.defined()) product(Read::transposed, cols, tiles.dv, rows, T(1), w.p, gradient, g.row, dv, tiles.dv);
    if (grads.dk.defined()) product(Read::transposed, cols, tiles.d, rows, scale, w.ds, queries, tiles.q.row, dk, tiles.d);
    if (dq) product(Read::plain, rows, tiles.d, cols, scale, w.ds, keys, tiles.k.row, dq, dq_row);
  }

  /// Turns scores into weights, and dP into dS. Dropout's factors multiply both the weights and dP.
  void softmax_rows(const typename ScoreTiles<T>::Tile& t, Memory& w) {
    const T inf = std::numeric_limits<T>::infinity();
    for (int64_t r = 0; r < t.rows; ++r) {
      const int64_t at = (t.batch * tiles.heads + t.head) * tiles.m + t.row + r;
      T* __restrict__ p = w.p + r * t.cols;
      T* __restrict__ ds = w.ds + r * t.cols;
      tiles.hide(t, r, p, -inf, w.seen);
      const T shift = lse[at] == -inf ? T(0) : lse[at], row_delta = delta[at], rho = tiles.rho(t.batch, t.head, t.row + r);
      for (int64_t j = 0; j < t.cols; ++j) p[j] = math::exp(p[j] - shift);
      if (shift != shift) tiles.hide(t, r, p, T(0), w.seen);  // a row of NaN, too, has weight 0 where it sees nothing
      if (o.dropout > 0) {
        tiles.drop(t, r, ds);
        for (int64_t j = 0; j < t.cols; ++j) ds[j] = p[j] == T(0) ? T(0) : rho * p[j] * (ds[j] - row_delta);
        tiles.drop(t, r, p);
      } else if (t.masked) {  // dP behind the mask may be NaN
        for (int64_t j = 0; j < t.cols; ++j) ds[j] = p[j] == T(0) ? T(0) : rho * p[j] * (ds[j] - row_delta);
      } else {
        for (int64_t j = 0; j < t.cols; ++j) ds[j] = rho * p[j] * (ds[j] - row_delta);
      }
    }
  }

  template <class Phi>
  void formula_rows(const typename ScoreTiles<T>::Tile& t, Memory& w, Phi phi) {
    for (int64_t r = 0; r < t.rows; ++r) {
      T* __restrict__ p = w.p + r * t.cols;
      T* __restrict__ ds = w.ds + r * t.cols;
      const T rho = tiles.rho(t.batch, t.head, t.row + r);
      if (o.dropout > 0) tiles.drop(t, r, ds);
      for (int64_t j = 0; j < t.cols; ++j) {
        const auto y = phi(Dual<T, 1>::variable(p[j], 0, T(1)));
        ds[j] *= rho * y.d[0];
        p[j] = y.v;
      }
      tiles.hide(t, r, p, T(0), w.seen);
      tiles.hide(t, r, ds, T(0), w.seen);
      if (o.dropout > 0) tiles.drop(t, r, p);
    }
  }
};

void backward_cpu(const AttentionCall& call, const Tensor& g, const Tensor& lse, const Tensor& delta, AttentionGradients& grads) {
  dispatch_float("attention", call.q.dtype(), [&]<class T>() { Backward<T>(call, g, lse, delta, grads).run(); });
}

}  // namespace

int64_t counted_pairs(const AttentionCall& c) {
  const AttentionMask& mask = c.options.mask;
  const int64_t m = c.q.dim(2), n = c.k.dim(2);
  const bool banded = mask.window > 0 || mask.dilation > 1;
  int64_t seen = n > 0 ? (n - 1) / mask.dilation + 1 : 0, global = 0;
  if (mask.window > 0 && mask.window <= n) seen = std::min(seen, mask.causal ? mask.window : 2 * mask.window - 1);
  if (banded) global = std::count_if(mask.global.begin(), mask.global.end(), [n](int64_t p) { return p < n; });
  const int64_t all = std::min(global, m);  // queries that see everything
  const int64_t rows = checked_add("attention", checked_mul("attention", m - all, std::min(seen + global, n)),
                                   checked_mul("attention", all, n));
  return checked_mul("attention", c.q.dim(0) * c.q.dim(1), rows);
}

int64_t attention_splits(const Tensor& k) {
  const int64_t heads = std::max<int64_t>(1, k.dim(0) * k.dim(1));
  return std::clamp<int64_t>(16 / heads, 1, std::max<int64_t>(1, k.dim(2) / 512));
}

}  // namespace detail

constinit decltype(kernel::attention_backward) kernel::attention_backward{
    "attention backward", &detail::backward_cpu,
    [](const detail::AttentionCall& c, const Tensor&, const Tensor&, const Tensor&, detail::AttentionGradients&) {
      const int64_t pairs = detail::counted_pairs(c);  // d: S again, dQ and dK; dv: dP and dV
      return Work{.flops = 2 * checked_mul("attention backward", pairs, 3 * c.q.dim(3) + 2 * c.v.dim(3)),
                  .attention_elements = pairs};
    },
    Bf16::updated};

}  // namespace sluice
