// The forward pass computed O = (P ⊙ Z) V, with dropout's factors Z, and lse. Scores and weights are recomputed, tile
// by tile, from the operands and the row statistics:
//
//   P = e^{S − lse} or φ(S)          dP = G Vᵀ ⊙ Z
//   dS = P ⊙ (dP − δ) or φ'(S) ⊙ dP     δ_i = Σ_c g_ic o_ic − (gradient of lse_i)
//   dV += (P ⊙ Z)ᵀ G     dQ += scale·(ρ dS ⊙ cap') K     dK += scale·(ρ dS ⊙ cap')ᵀ Q     dbias = ρ dS
//
// The keys of a key head are split into key_parts parts: part i has the tiles of keys i, i + key_parts, …. One task
// owns a part: it alone adds to its dK and dV. Tiles of queries are dealt to `turns` groups. In turn s the task of part
// i goes through group i + s (mod turns), so that no two tasks add to one dQ at the same time. With fewer tiles of
// queries than parts of the keys, several dQ are kept and added up at the end.
#include <sluice/ops/attention/attention_products.h>
#include <sluice/ops/shape/create.h>

namespace sluice {

namespace detail {

namespace {

/// The backward pass of one call.
template <class T> struct Backward {
  using Tile = typename ScoreTiles<T>::Tile;
  const ScoreTiles<T> tiles;
  const AttentionOptions& o;
  HeadView<const T> g;
  const T *lse, *delta;
  AttentionGradients& grads;
  const int64_t key_width = tiles.d, value_width = tiles.dv;
  const int64_t group = tiles.heads / std::max<int64_t>(1, tiles.kv_heads);
  const int64_t tile_rows = std::clamp<int64_t>(tiles.m, 1, o.tile_rows > 0 ? o.tile_rows : tiles.rows_wanted(128));
  const int64_t tile_cols = std::clamp<int64_t>(tiles.n, 1, o.tile_cols > 0 ? o.tile_cols : tiles.cols_wanted(256));
  const int64_t key_parts, turns = std::clamp<int64_t>(ceil_div(tiles.m, tile_rows), 1, key_parts);
  const bool share = tiles.in_parts || group * tiles.m > tile_rows;  // pack a tile of keys for several tiles of queries
  const int64_t p_size = lines(tile_rows * tile_cols);
  const int64_t dk_size = lines(tile_cols * key_width), dv_size = lines(tile_cols * value_width);
  const int64_t packed_size = KeyTile<T>::size(tiles, Direction::backward, tile_cols);
  std::vector<Tensor> dq;  // the first `turns` parts of the keys add to dq[0], the next to dq[1], …

  Backward(const AttentionCall& c, const Tensor& gradient, const Tensor& lse_, const Tensor& delta_,
           AttentionGradients& out)
      : tiles(c), o(c.options), g(gradient), lse(lse_.defined() ? lse_.data<T>() : nullptr),
        delta(delta_.defined() ? delta_.data<T>() : nullptr), grads(out), key_parts(attention_splits(c.k)) {
    if (!grads.dq.defined()) return;
    dq = {grads.dq};
    for (int64_t first = turns; first < key_parts; first += turns)
      dq.push_back(empty({tiles.batch, tiles.heads, tiles.m, key_width}, c.q.options()));
    for (Tensor& x : dq) fill_(x, 0);
  }

  /// Working memory of a task: P, dS and cap' of a tile; dK, dV and the packed operands of a tile of keys.
  struct Memory {
    TileProducts<T> products;
    Scratch<T> floats;
    T *p, *ds, *dk, *dv, *packed, *slope;
    std::vector<uint8_t> seen = {};
    std::vector<int32_t> list;
    explicit Memory(const Backward& w)
        : products(w.tiles, w.tile_rows, w.tile_cols, w.share), floats({{p, w.p_size},
                                                                        {ds, w.p_size},
                                                                        {dk, w.dk_size},
                                                                        {dv, w.dv_size},
                                                                        {packed, w.packed_size},
                                                                        {slope, w.o.softcap > 0 ? w.p_size : 0}}),
          list(static_cast<std::size_t>(w.tile_rows)) {
      if (!(w.o.softcap > 0)) slope = nullptr;
    }
  };

  void run() {
    for (int64_t turn = 0; turn < turns; ++turn)
      parallel_for(tiles.batch * tiles.kv_heads * key_parts, 1, [&](int64_t begin, int64_t end) {
        Memory memory(*this);
        for (int64_t task = begin; task < end; ++task)
          keys(memory, task / key_parts / tiles.kv_heads, task / key_parts % tiles.kv_heads, task % key_parts, turn);
      });
    if (dq.size() > 1) add_dq();
  }

  /// One part of the keys, with the queries of one turn. Not inlined: parallel_for() would compile all of it for each
  /// instruction set, which only its loops need.
  [[gnu::noinline]] void keys(Memory& w, int64_t b, int64_t kv, int64_t key_part, int64_t turn) {
    for (int64_t col = key_part * tile_cols; col < tiles.n; col += key_parts * tile_cols) {
      const int64_t cols = std::min(tile_cols, tiles.n - col);
      std::fill_n(w.dk, cols * key_width, T(0));
      std::fill_n(w.dv, cols * value_width, T(0));
      KeyTile<T> packed, unpacked;
      for (int64_t h = kv * group; h < (kv + 1) * group; ++h)
        for (int64_t row = (key_part + turn) % turns * tile_rows; row < tiles.m; row += turns * tile_rows) {
          const int64_t rows = std::min(tile_rows, tiles.m - row);
          if (auto t = tiles.tile(b, h, row, rows, col, cols, tiles.columns(row, rows))) {
            tiles.gather(*t, w.list);
            if (t->rows == 0) continue;
            const bool ready = share && (tiles.in_parts || t->whole);
            if (ready && !packed.keys) packed = {tiles, Direction::backward, b, kv, col, cols, w.packed};
            tile(w, *t, ready ? packed : unpacked, key_part);
          }
        }
      const auto store = [&](const T* from, const Tensor& to, int64_t width) {
        if (!to.defined()) return;
        const HeadView<T> rows(to);
        for (int64_t r = 0; r < cols; ++r, from += width) {
          T* line = rows.at(b, kv, col + r);
          if (turn > 0)
            for (int64_t c = 0; c < width; ++c) line[c] += from[c];
          else std::copy_n(from, width, line);
        }
      };
      vectorised([&] { store(w.dk, grads.dk, key_width), store(w.dv, grads.dv, value_width); });
    }
  }

  /// Adds the contribution of a tile to dV, dK, dQ and dbias. keys: the tile's keys and values, packed or not.
  void tile(Memory& w, const Tile& t, const KeyTile<T>& keys, int64_t key_part) {
    w.products.scores(t, keys, w.p);                // S = scale·Q Kᵀ
    w.products.weight_gradients(t, keys, g, w.ds);  // dP = G Vᵀ
    vectorised([&] {
      tiles.dots_to_scores(t, w.p, w.slope);                      // S ← ρ (cap(S) + bias)
      if (o.weighting == Weighting::softmax) softmax_rows(t, w);  // P = e^{S − lse}, dS = P ⊙ (dP − δ)
      else with_formula(o.weighting, [&](auto phi) { formula_rows(t, w, phi); });  // P = φ(S), dS = φ'(S) ⊙ dP
      add_to_biases(t, w.ds, key_part);                                            // dbias = ρ dS, which stands in ds
      for (int64_t i = 0; w.slope && i < t.rows * t.cols; ++i)  // ⊙ cap', which may be NaN for a forbidden pair
        w.ds[i] = w.ds[i] == T(0) ? T(0) : w.ds[i] * w.slope[i];
    });
    if (grads.dv.defined())  // dV += (P ⊙ Z)ᵀ G
      w.products.add_value_gradients(t, w.p, g, w.dv + t.first * value_width);
    if (grads.dk.defined())  // dK += scale·dSᵀ Q
      w.products.add_key_gradients(t, w.ds, w.dk + t.first * key_width);
    if (grads.dq.defined())  // dQ += scale·dS K
      w.products.add_query_gradients(t, keys, w.ds, HeadView<T>(dq[static_cast<std::size_t>(key_part / turns)]));
  }

  void add_to_biases(const Tile& t, const T* ds, int64_t key_part) {
    const int64_t head = t.batch * tiles.heads + t.head, m = tiles.m, n = tiles.n;
    for (int64_t r = 0; r < t.rows && grads.bias.defined(); ++r)
      std::copy_n(ds + r * t.cols, t.cols, grads.bias.mutable_data<T>() + (head * m + t.at(r)) * n + t.col);
    for (int64_t r = 0; r < t.rows && grads.relative.defined(); ++r) {
      T* line =
          grads.relative.mutable_data<T>() + (head * key_parts + key_part) * (n + m - 1) + m - 1 + t.col - t.at(r);
      for (int64_t j = 0; j < t.cols; ++j) line[j] += ds[r * t.cols + j];
    }
  }

  void add_dq() {
    const HeadView<T> sum(dq[0]);
    for_each_row(tiles.batch * tiles.heads * tiles.m, key_width * static_cast<int64_t>(dq.size()), [&](int64_t r) {
      const int64_t b = r / tiles.m / tiles.heads, h = r / tiles.m % tiles.heads, row = r % tiles.m;
      for (std::size_t k = 1; k < dq.size(); ++k) {
        const T* part = HeadView<const T>(dq[k]).at(b, h, row);
        for (int64_t c = 0; c < key_width; ++c) sum.at(b, h, row)[c] += part[c];
      }
    });
  }

  /// Turns scores into weights, and dP into dS. Dropout's factors multiply both the weights and dP.
  void softmax_rows(const Tile& t, Memory& w) {
    const T inf = std::numeric_limits<T>::infinity();
    for (int64_t r = 0; r < t.rows; ++r) {
      const int64_t at = (t.batch * tiles.heads + t.head) * tiles.m + t.at(r);
      T* __restrict__ p = w.p + r * t.cols;
      T* __restrict__ ds = w.ds + r * t.cols;
      tiles.hide(t, r, p, -inf, w.seen);
      const T shift = lse[at] == -inf ? T(0) : lse[at], row_delta = delta[at];
      const T rho = tiles.rho(t.batch, t.head, t.at(r));
      for (int64_t j = 0; j < t.cols; ++j) p[j] = math::exp(p[j] - shift);
      if (shift != shift) tiles.hide(t, r, p, T(0), w.seen);  // in a row of NaN, too, forbidden weights are 0
      if (o.dropout > 0) tiles.drop(t, r, ds);
      if (o.dropout > 0 || t.masked) {  // dP behind the mask may be NaN
        for (int64_t j = 0; j < t.cols; ++j) ds[j] = p[j] == T(0) ? T(0) : rho * p[j] * (ds[j] - row_delta);
      } else {
        for (int64_t j = 0; j < t.cols; ++j) ds[j] = rho * p[j] * (ds[j] - row_delta);
      }
      if (o.dropout > 0) tiles.drop(t, r, p);
    }
  }

  template <class Phi> void formula_rows(const Tile& t, Memory& w, Phi phi) {
    for (int64_t r = 0; r < t.rows; ++r) {
      T* __restrict__ p = w.p + r * t.cols;
      T* __restrict__ ds = w.ds + r * t.cols;
      const T rho = tiles.rho(t.batch, t.head, t.at(r));
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

void backward_cpu(const AttentionCall& call, const Tensor& g, const Tensor& lse, const Tensor& delta,
                  AttentionGradients& grads) {
  dispatch_float("attention", call.q.dtype(), [&]<class T>() { Backward<T>(call, g, lse, delta, grads).run(); });
}

}  // namespace

int64_t attention_splits(const Tensor& k) {
  const int64_t heads = std::max<int64_t>(1, k.dim(0) * k.dim(1));
  return std::clamp<int64_t>(16 / heads, 1, std::max<int64_t>(1, k.dim(2) / 512));
}

}  // namespace detail

constinit decltype(kernel::attention_backward) kernel::attention_backward{
    "attention backward", &detail::backward_cpu,
    [](const detail::AttentionCall& c, const Tensor&, const Tensor&, const Tensor&, detail::AttentionGradients&) {
      // Products of width d: S again, dQ and dK. Products of width dv: dP and dV.
      const int64_t pairs = detail::counted_pairs(c);
      return Work{.flops = 2 * checked_mul("attention backward", pairs, 3 * c.q.dim(3) + 2 * c.v.dim(3)),
                  .attention_elements = pairs};
    },
    Bf16::updated};

}  // namespace sluice
