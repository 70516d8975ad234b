// Each tile of queries goes over the tiles of keys that it sees (the order of FlashAttention-2; Dao 2023):
//
//   softmax:  μ' = max(μ, rowmax S)    P = e^{S − μ'}    l ← l e^{μ − μ'} + rowsum P    O ← O e^{μ − μ'} + P V
//             at the end  O ← O / l,  lse = μ + log l
//   others:   P = φ(S)                                                                  O ← O + P V
//
// A row that has seen nothing has μ = −∞; 0 replaces it, so that P = e^{−∞ − 0} = 0. The sink is one more score
// without a value: it is added to l at the end.
//
// Few queries, as in a step of decoding, cannot occupy many threads: then each tile of keys is a task of its own, and
// the tiles' results are merged in their order (split-KV; Dao et al. 2023).
#include <sluice/core/cpu.h>
#include <sluice/ops/attention/attention_tiles.h>

#include <optional>

namespace sluice {

namespace detail {

namespace {

/// Online softmax state of some rows of a head: O in acc [rows, dv], and for softmax μ in top and l in total.
template <class T>
struct Found {
  T *acc, *top, *total;
  Found(T* memory, int64_t rows, int64_t dv) : acc(memory), top(acc + rows * dv), total(top + rows) {}
  static int64_t size(int64_t rows, int64_t dv) { return rows * (dv + 2); }
};

/// The keys, transposed, and the values of some key heads in tiles, packed once for all tiles of queries.
template <class T>
class PackedTiles {
 public:
  PackedTiles(const ScoreTiles<T>& t, int64_t cols, int64_t heads)
      : tiles(t), tile_cols(cols), col_tiles((t.n + cols - 1) / cols),
        keys_size(lines(t.split ? Parts::size(cols, t.d) : PackedB<T>::size(t.d, cols))),
        size(keys_size + lines(t.split ? Parts::size(t.dv, cols) : PackedB<T>::size(cols, t.dv))), memory(heads * col_tiles * size),
        tame(static_cast<std::size_t>(2 * heads * col_tiles), 1) {}
  static int64_t bytes_of_head(const ScoreTiles<T>& t) { return t.n * (t.d + t.dv) * int64_t{sizeof(T)} * (t.split ? 3 : 2) / 2; }

  /// Packs `heads` key heads from `first` on, counted over all batches, by all threads; or one key head by this thread.
  void fill(int64_t first, int64_t heads) {
    first_head = first;
    parallel_for(heads * col_tiles, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) fill_tile(first + i / col_tiles, i % col_tiles);
    });
  }
  void fill(int64_t head) {
    first_head = head;
    for (int64_t tile = 0; tile < col_tiles; ++tile) fill_tile(head, tile);
  }
  int64_t width(int64_t tile) const { return std::min(tile_cols, tiles.n - tile * tile_cols); }
  PackedB<T> keys(int64_t head, int64_t tile) { return {tiles.d, width(tile), at(head, tile), tiles.precision}; }
  PackedB<T> values(int64_t head, int64_t tile) { return {width(tile), tiles.dv, at(head, tile) + keys_size, tiles.precision}; }
  Parts key_parts(int64_t head, int64_t tile) { return {width(tile), tiles.d, at(head, tile)}; }
  Parts value_parts(int64_t head, int64_t tile) { return {tiles.dv, width(tile), at(head, tile) + keys_size}; }
  bool tame_keys(int64_t head, int64_t tile) const { return tame[flag(head, tile)]; }
  bool tame_values(int64_t head, int64_t tile) const { return tame[flag(head, tile) + 1]; }

 private:
  void fill_tile(int64_t head, int64_t tile) {
    const int64_t b = head / tiles.kv_heads, kv = head % tiles.kv_heads;
    const T *k = tiles.k.at(b, kv, tile * tile_cols), *v = tiles.v.at(b, kv, tile * tile_cols);
    if (tiles.split) {
      tame[flag(head, tile)] = key_parts(head, tile).fill_b(Read::transposed, k, tiles.k.row);
      tame[flag(head, tile) + 1] = fill_tame(value_parts(head, tile), v, tiles.v.row, width(tile), tiles.dv);
    } else {
      keys(head, tile).fill(Read::transposed, k, tiles.k.row);
      values(head, tile).fill(Read::plain, v, tiles.v.row);
    }
  }
  std::size_t flag(int64_t head, int64_t tile) const { return static_cast<std::size_t>(2 * ((head - first_head) * col_tiles + tile)); }
  T* at(int64_t head, int64_t tile) { return memory.data() + ((head - first_head) * col_tiles + tile) * size; }
  const ScoreTiles<T>& tiles;
  int64_t tile_cols, col_tiles, keys_size, size, first_head = 0;
  Scratch<T> memory;
  std::vector<uint8_t> tame;
};

template <class T>
struct Forward {
  static constexpr T inf = std::numeric_limits<T>::infinity();
  const ScoreTiles<T>& tiles;
  const AttentionOptions& o = tiles.o;
  const bool softmax = o.weighting == Weighting::softmax;
  const int64_t dv = tiles.dv, tile_cols;
  PackedTiles<T>* const packed = nullptr;
  const bool split = tiles.split;

  /// Fills f with the state of rows of head h after the keys of `range`. s [rows, tile_cols], for_queries, for_weights:
  /// memory for scores, packed queries and packed weights.
  void attend(int64_t b, int64_t h, int64_t row, int64_t rows, Visibility::Span range, const Found<T>& f, T* s,
              T* for_queries, T* for_weights, std::vector<uint8_t>& seen) const {
    const int64_t kv = tiles.kv_head(h);
    std::optional<PackedA<T>> queries;
    const Parts scaled(rows, tiles.d, for_queries);
    bool filled = false, tame_queries = false;
    std::fill_n(f.acc, rows * dv, T(0));
    std::fill_n(f.top, rows, -inf);
    std::fill_n(f.total, rows, T(0));
    for (int64_t from = split ? range.begin / tile_cols * tile_cols : range.begin; from < range.end; from += tile_cols) {
      const auto here = tiles.cut(from, std::min(tile_cols, tiles.n - from), range);
      const int64_t col = here.begin, cols = here.end - col;
      const auto kind = tiles.visibility.classify(b, h, row, rows, col, cols);
      if (kind == Visibility::Tile::none) continue;
      const typename ScoreTiles<T>::Tile t{b, h, row, rows, col, cols, kind == Visibility::Tile::some};
      const int64_t tile = col / tile_cols, kv_head = b * tiles.kv_heads + kv;
      const bool whole = !split && packed && col % tile_cols == 0 && cols == packed->width(tile);
      const T* own_queries = tiles.q.at(b, h, row);
      if (split) {
        if (!filled) tame_queries = tiles.fill_queries(scaled, b, h, row, rows, s), filled = true;
        packed->key_parts(kv_head, tile).multiply(scaled, 0, col - from, cols, T(1), T(0), s, cols);
        if (!tame_queries || !packed->tame_keys(kv_head, tile))
          mend_dots(rows, cols, tiles.d, T(*o.scale), own_queries, tiles.q.row, tiles.k.at(b, kv, col), tiles.k.row, s, cols);
      } else if (whole) {
        if (!queries) {
          queries.emplace(rows, tiles.d, for_queries, tiles.precision);
          queries->fill(Read::plain, own_queries, tiles.q.row);
        }
        const PackedB<T> keys = packed->keys(kv_head, tile);
        tiles.dots(t, s, cols, &keys, &*queries);
      } else {
        tiles.dots(t, s, cols);
      }
      tiles.dots_to_scores(t, s, cols);
      if (softmax) {
        for (int64_t r = 0; r < rows; ++r) {
          T* __restrict__ line = s + r * cols;
          tiles.hide(t, r, line, -inf, seen);
          const T before = f.top[r], now = std::max(before, row_max(line, cols));
          const T shift = now == -inf ? T(0) : now;
          const T sum = row_total<T>(cols, [=](int64_t j) { return line[j] = math::exp_low(line[j] - shift); });
          if (before != now) {
            const T shrink = math::exp(before - shift);
            f.total[r] *= shrink;
            if (before != -inf)
              for (int64_t c = 0; c < dv; ++c) f.acc[r * dv + c] *= shrink;
          }
          f.total[r] += sum;
          f.top[r] = now;
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
      if (split) {
        const Parts weights(rows, cols, for_weights), ready = packed->value_parts(kv_head, tile);
        const bool tame = weights.fill_a(Read::plain, s, cols) && packed->tame_values(kv_head, tile);
        const auto add = [&] { ready.multiply(weights, col - from, 0, dv, T(1), T(1), f.acc, dv); };
        if (tame) add();
        else mended_sums(Read::plain, rows, dv, cols, T(1), s, cols, values, tiles.v.row, t.masked, f.acc, dv, add);
      }
      else if (t.masked && !all_finite(values, cols, dv, tiles.v.row))
        sparse_product(Read::plain, rows, dv, cols, T(1), s, cols, values, tiles.v.row, f.acc, dv);
      else if (whole)
        packed->values(kv_head, tile).multiply(Read::plain, rows, T(1), s, cols, T(1), f.acc, dv);
      else if (tiles.few(rows)) few_sums(rows, dv, cols, s, cols, values, tiles.v.row, f.acc, dv);
      else
        gemm(Read::plain, Read::plain, rows, dv, cols, T(1), s, cols, values, tiles.v.row, T(1), f.acc, dv,
             tiles.precision);
    }
  }

  /// Merges the state of later keys into f, the state of earlier keys.
  void join(int64_t rows, const Found<T>& f, const Found<T>& later) const {
    for (int64_t r = 0; r < rows; ++r) {
      const T now = std::max(f.top[r], later.top[r]), shift = now == -inf ? T(0) : now;
      const T a = softmax ? math::exp(f.top[r] - shift) : T(1), b = softmax ? math::exp(later.top[r] - shift) : T(1);
      f.total[r] = f.total[r] * a + later.total[r] * b;
      f.top[r] = now;
      for (int64_t c = 0; c < dv; ++c) f.acc[r * dv + c] = f.acc[r * dv + c] * a + later.acc[r * dv + c] * b;
    }
  }

  /// Adds the sink, divides by l, and writes `out` and, for softmax only, lse [rows].
  void finish(int64_t b, int64_t h, int64_t row, int64_t rows, const Found<T>& f, const Heads<T>& out, T* lse) const {
    for (int64_t r = 0; r < rows; ++r) {
      T factor = 1, top = f.top[r], total = f.total[r];
      if (softmax) {
        if (o.sink.defined()) {
          const T extra = o.sink.data<T>()[o.sink.dim(0) > 1 ? h * o.sink.strides()[0] : 0];
          const T now = std::max(top, extra), shift = now == -inf ? T(0) : now;
          const T shrink = top == -inf ? T(0) : math::exp(top - shift);
          total = total * shrink + math::exp(extra - shift);
          factor = shrink, top = now;
        }
        lse[r] = total == T(0) ? -inf : (top == -inf ? T(0) : top) + math::log(total);
        factor = total == T(0) ? T(0) : factor / total;
      }
      T* to = out.at(b, h, row + r);
      for (int64_t c = 0; c < dv; ++c) to[c] = f.acc[r * dv + c] * factor;
    }
  }
};

template <class T>
void forward(const AttentionCall& call, Tensor& out_tensor, Tensor& lse_tensor) {
  const ScoreTiles<T> tiles(call);
  const AttentionOptions& o = call.options;
  const int64_t m = tiles.m, dv = tiles.dv;
  const int64_t tile_rows = std::min(m, o.tile_rows > 0 ? o.tile_rows : 128);
  // Long tiles have longer sums and fewer corrections of O. Short tiles fit the holes of a mask, and, with wide values,
  // L2.
  const int64_t cols_wanted = sizeof(T) == 4 && dv <= 256 && tiles.visibility.only_span() ? 512 : 256;
  const int64_t tile_cols = std::clamp<int64_t>(tiles.n, 1, o.tile_cols > 0 ? o.tile_cols : cols_wanted);
  const int64_t row_tiles = (m + tile_rows - 1) / tile_rows, blocks = tiles.batch * tiles.heads * row_tiles;
  const Heads<T> out(out_tensor);
  T* lse = o.weighting == Weighting::softmax ? lse_tensor.mutable_data<T>() : nullptr;

  // Tiles of keys are packed if most are seen whole, by several tiles of queries: at a time, the heads that fit in
  // 32 MiB.
  const int64_t kv_heads = tiles.batch * tiles.kv_heads, group = tiles.heads / std::max<int64_t>(1, tiles.kv_heads);
  const bool share = tiles.split || (isa() > Isa::base && group * m > tile_rows && m >= 64 && tiles.n > 0 && o.mask.window == 0 && o.mask.dilation == 1);
  const int64_t bytes = std::max<int64_t>(1, PackedTiles<T>::bytes_of_head(tiles)), all = std::max<int64_t>(1, kv_heads);
  const int64_t at_once = share ? std::clamp<int64_t>((int64_t{1} << 25) / bytes, 1, all) : all;
  // With many heads one thread packs and uses a whole head, whose packed tiles stay in the thread's cache.
  const bool own = share && kv_heads >= 4 * num_threads();
  std::optional<PackedTiles<T>> packed;
  if (share && !own) packed.emplace(tiles, tile_cols, at_once);

  const Forward<T> f{.tiles = tiles, .tile_cols = tile_cols, .packed = packed ? &*packed : nullptr};
  const auto finish = [&](int64_t block, const Found<T>& found) {
    const int64_t head = block / row_tiles, row = block % row_tiles * tile_rows;
    f.finish(head / tiles.heads, head % tiles.heads, row, std::min(tile_rows, m - row), found, out,
             lse ? lse + head * m + row : nullptr);
  };

  const int64_t splits = m <= kFewRows && tiles.n > 0 ? (tiles.n + tile_cols - 1) / tile_cols : 1;
  const int64_t size = Found<T>::size(tile_rows, dv), for_queries = !share        ? 0
                              : tiles.split ? lines(Parts::size(tile_rows, tiles.d))
                                            : lines(PackedA<T>::size(tile_rows, tiles.d));
  const int64_t for_weights = tiles.split ? lines(Parts::size(tile_rows, tile_cols)) : 0;
  const int64_t for_scores = tile_rows * std::max(tile_cols, tiles.split ? tiles.d : 0);  // first for scaled queries
  Scratch<T> shared(splits > 1 ? blocks * splits * size : 0);
  /// Runs tasks: each is a block of queries with one of `splits` parts of the keys.
  const auto run = [&](const Forward<T>& f, int64_t first_task, int64_t last_task) {
    Scratch<T> scratch(for_queries + for_weights + for_scores + (splits > 1 ? 0 : size));
    std::vector<uint8_t> seen;
    for (int64_t task = first_task; task < last_task; ++task) {
      const int64_t block = task / splits, split = task % splits, head = block / row_tiles;
      const int64_t row = block % row_tiles * tile_rows, rows = std::min(tile_rows, m - row);
      auto range = tiles.columns(row, rows);
      if (splits > 1) {
        range.begin = std::max(range.begin, split * tile_cols);
        range.end = std::min(range.end, (split + 1) * tile_cols);
      }
      T* s = scratch.data() + for_queries + for_weights;
      const Found<T> found(splits > 1 ? shared.data() + task * size : s + for_scores, tile_rows, dv);
      f.attend(head / tiles.heads, head % tiles.heads, row, rows, range, found, s, scratch.data(), scratch.data() + for_queries, seen);
      if (splits == 1) finish(block, found);
    }
  };
  const int64_t tasks = group * row_tiles * splits;  // of a key head
  if (own)
    parallel_for(kv_heads, 1, [&](int64_t begin, int64_t end) {
      PackedTiles<T> mine(tiles, tile_cols, 1);
      for (int64_t head = begin; head < end; ++head)
        mine.fill(head), run({.tiles = tiles, .tile_cols = tile_cols, .packed = &mine}, head * tasks, (head + 1) * tasks);
    });
  for (int64_t first = 0; first < kv_heads && !own; first += at_once) {
    const int64_t count = std::min(at_once, kv_heads - first);
    if (share) packed->fill(first, count);
    parallel_for(count * tasks, 1, [&](int64_t begin, int64_t end) { run(f, first * tasks + begin, first * tasks + end); });
  }
  if (splits == 1) return;
  parallel_for(blocks, 16, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      const int64_t rows = std::min(tile_rows, m - block % row_tiles * tile_rows);
      T* const memory = shared.data() + block * splits * size;
      const auto part = [&](int64_t split) { return Found<T>(memory + split * size, tile_rows, dv); };
      for (int64_t split = 1; split < splits; ++split) f.join(rows, part(0), part(split));
      finish(block, part(0));
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
