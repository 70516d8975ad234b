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
#include <sluice/core/kernel/cpu.h>
#include <sluice/core/kernel/kernel_bf16.h>
#include <sluice/ops/attention/attention_products.h>

namespace sluice {

namespace detail {

namespace {

/// Online softmax of some rows of a head: O in acc [rows, dv], and for softmax μ in max and l in sum.
template <class T> struct RowState {
  T *acc, *max, *sum;
  RowState(T* memory, int64_t rows, int64_t dv) : acc(memory), max(acc + rows * dv), sum(max + rows) {}
  static int64_t size(int64_t rows, int64_t dv) { return rows * (dv + 2); }
};

/// The forward pass of one call.
template <class T> struct Forward {
  using Tile = typename ScoreTiles<T>::Tile;
  static constexpr T inf = std::numeric_limits<T>::infinity();
  const ScoreTiles<T> tiles;
  const AttentionOptions& o;
  const bool softmax = o.weighting == Weighting::softmax;
  const int64_t m = tiles.m, dv = tiles.dv;
  const HeadView<T> out;
  T* const lse;  // softmax only
  const int64_t tile_rows = std::min(m, o.tile_rows > 0 ? o.tile_rows : tiles.rows_wanted(128));
  // Long tiles: longer sums, fewer corrections of O. Short tiles: they fit a mask's holes and, with wide values, L2.
  const int64_t cols_wanted =
      tiles.cols_wanted(sizeof(T) == 4 && dv <= 256 && tiles.visibility.only_span() ? 512 : 256);
  const int64_t tile_cols = std::clamp<int64_t>(tiles.n, 1, o.tile_cols > 0 ? o.tile_cols : cols_wanted);
  const int64_t row_tiles = ceil_div(m, tile_rows), blocks = tiles.batch * tiles.heads * row_tiles;
  // A few queries, or the heads of one query as rows, give all threads tasks only if their keys are split, too.
  const bool cut = m <= kSkinnyRows || (m <= 64 && blocks <= 32);
  const int64_t key_parts = cut && tiles.n > 0 ? ceil_div(tiles.n, tile_cols) : 1;
  const int64_t state_size = RowState<T>::size(tile_rows, dv);
  Scratch<T> part_states = Scratch<T>(key_parts > 1 ? blocks * key_parts * state_size : 0);  // of each block

  Forward(const AttentionCall& call, Tensor& out_tensor, Tensor& lse_tensor)
      : tiles(call), o(call.options), out(out_tensor), lse(softmax ? lse_tensor.mutable_data<T>() : nullptr) {}

  void run() {
    const int64_t kv_heads = tiles.batch * tiles.kv_heads, group = tiles.heads / std::max<int64_t>(1, tiles.kv_heads);
    const int64_t tasks = group * row_tiles * key_parts;  // tasks of one key head
    // Tiles of keys are packed if most are seen whole, by several tiles of queries.
    const bool whole = tiles.n > 0 && o.mask.window == 0 && o.mask.dilation == 1;
    const bool share = tiles.in_parts || (isa() > Isa::base && group * m > tile_rows && m >= 64 && whole);
    // With many heads each thread packs and uses one at a time, whose tiles stay in its cache. Otherwise all threads
    // pack as many heads as fit in 32 MiB.
    const bool own = share && kv_heads >= 4 * num_threads();
    const int64_t bytes = tiles.n * (tiles.d + dv) * int64_t{sizeof(T)} * (tiles.in_parts ? 3 : 2) / 2;
    const int64_t at_once = std::max<int64_t>(1, own ? 1 : share ? (1 << 25) / std::max<int64_t>(1, bytes) : kv_heads);
    const auto loop = [](bool parallel, int64_t n, auto f) { parallel ? parallel_for(n, 1, f) : f(int64_t{0}, n); };
    loop(own, ceil_div(kv_heads, at_once), [&](int64_t begin, int64_t end) {
      for (int64_t first = begin * at_once; first < std::min(end * at_once, kv_heads); first += at_once) {
        const int64_t heads = std::min(at_once, kv_heads - first);
        std::optional<PackedHeads<T>> packed;
        if (share) packed.emplace(tiles, tile_cols, first, heads);
        if (share) loop(!own, packed->count(), [&](int64_t b, int64_t e) { packed->fill(b, e); });
        loop(!own, heads * tasks,
             [&](int64_t b, int64_t e) { run(packed ? &*packed : nullptr, first * tasks + b, first * tasks + e); });
      }
    });
    if (key_parts > 1) join_parts();
  }

  int64_t first_row(int64_t block) const { return block % row_tiles * tile_rows; }
  int64_t rows_of(int64_t block) const { return std::min(tile_rows, m - first_row(block)); }

  /// Working memory of a thread: the scores of a tile, the state of a block.
  struct Memory {
    TileProducts<T> products;
    Scratch<T> floats;
    T *scores, *state;
    std::vector<uint8_t> seen = {};
    std::vector<int32_t> list;
    Memory(const Forward& f, bool packed)
        : products(f.tiles, f.tile_rows, f.tile_cols, packed),
          floats({{scores, f.tile_rows * f.tile_cols}, {state, f.state_size}}),
          list(static_cast<std::size_t>(f.tile_rows)) {}
  };

  /// Runs tasks: each is a block of queries with one of the `key_parts` parts of the keys.
  void run(const PackedHeads<T>* packed, int64_t first_task, int64_t last_task) {
    Memory w(*this, packed != nullptr);
    for (int64_t task = first_task; task < last_task; ++task) {
      const int64_t block = task / key_parts, key_part = task % key_parts, head = block / row_tiles;
      const int64_t row = first_row(block), rows = rows_of(block);
      auto range = tiles.columns(row, rows);
      if (key_parts > 1)
        range = {std::max(range.begin, key_part * tile_cols), std::min(range.end, (key_part + 1) * tile_cols)};
      const RowState<T> state(key_parts > 1 ? part_states.data() + task * state_size : w.state, tile_rows, dv);
      attend(w, packed, head / tiles.heads, head % tiles.heads, row, rows, range, state);
      if (key_parts == 1) finish(block, state);
    }
  }

  /// Sets f to the state of rows [row, row + rows) of head h after the keys of `range`. Not inlined: parallel_for()
  /// would compile all of it for each instruction set, which only its loops need.
  [[gnu::noinline]] void attend(Memory& w, const PackedHeads<T>* packed, int64_t b, int64_t h, int64_t row,
                                int64_t rows, Visibility::Span range, const RowState<T>& f) const {
    std::fill_n(f.acc, rows * dv, T(0));
    std::fill_n(f.max, rows, -inf);
    std::fill_n(f.sum, rows, T(0));
    const KeyTile<T> unpacked;
    for (int64_t col = packed ? range.begin / tile_cols * tile_cols : range.begin; col < range.end; col += tile_cols) {
      auto t = tiles.tile(b, h, row, rows, col, std::min(tile_cols, tiles.n - col), range);
      if (t) tiles.gather(*t, w.list);
      if (!t || t->rows == 0) continue;
      const bool ready = packed && (tiles.in_parts || t->whole);
      const KeyTile<T>& keys = ready ? packed->at(b * tiles.kv_heads + tiles.kv_head(h), col) : unpacked;
      w.products.scores(*t, keys, w.scores);  // S = scale·Q Kᵀ
      vectorised([&] {
        tiles.dots_to_scores(*t, w.scores);   // S ← ρ (cap(S) + bias)
        if (softmax) softmax_rows(*t, w, f);  // μ', P = e^{S − μ'}, l and O ← O e^{μ − μ'}
        else with_formula(o.weighting, [&](auto phi) { formula_rows(*t, w, phi); });  // P = φ(S)
      });
      w.products.add_values(*t, keys, w.scores, f.acc);  // O ← O + P V
    }
  }

  void softmax_rows(const Tile& t, Memory& w, const RowState<T>& f) const {
    for (int64_t i = 0; i < t.rows; ++i) {
      const int64_t r = t.at(i) - t.row;  // row of the state
      T* __restrict__ line = w.scores + i * t.cols;
      tiles.hide(t, i, line, -inf, w.seen);
      const T before = f.max[r], now = std::max(before, row_max(line, t.cols)), shift = now == -inf ? T(0) : now;
      const T sum = row_total<T>(t.cols, [=](int64_t j) { return line[j] = math::exp_low(line[j] - shift); });
      if (before != now) {
        const T shrink = math::exp(before - shift);
        f.sum[r] *= shrink;
        if (before != -inf)
          for (int64_t c = 0; c < dv; ++c) f.acc[r * dv + c] *= shrink;
      }
      f.sum[r] += sum;
      f.max[r] = now;
      if (o.dropout > 0) tiles.drop(t, i, line);
    }
  }
  template <class Phi> void formula_rows(const Tile& t, Memory& w, Phi phi) const {
    for (int64_t r = 0; r < t.rows; ++r) {
      T* line = w.scores + r * t.cols;
      for (int64_t j = 0; j < t.cols; ++j) line[j] = phi(Value<T>{line[j], {}}).v;
      tiles.hide(t, r, line, T(0), w.seen);
      if (o.dropout > 0) tiles.drop(t, r, line);
    }
  }

  /// Merges the states of each block, one for each part of the keys, in the order of the parts.
  void join_parts() {
    parallel_for(blocks, 16, [&](int64_t begin, int64_t end) {
      for (int64_t block = begin; block < end; ++block) {
        const auto state = [&](int64_t key_part) {
          return RowState<T>(part_states.data() + (block * key_parts + key_part) * state_size, tile_rows, dv);
        };
        for (int64_t key_part = 1; key_part < key_parts; ++key_part) join(rows_of(block), state(0), state(key_part));
        finish(block, state(0));
      }
    });
  }
  /// Merges the state of later keys into f, the state of earlier keys.
  void join(int64_t rows, const RowState<T>& f, const RowState<T>& later) const {
    for (int64_t r = 0; r < rows; ++r) {
      const T now = std::max(f.max[r], later.max[r]), shift = now == -inf ? T(0) : now;
      const T a = softmax ? math::exp(f.max[r] - shift) : T(1), b = softmax ? math::exp(later.max[r] - shift) : T(1);
      f.sum[r] = f.sum[r] * a + later.sum[r] * b;
      f.max[r] = now;
      for (int64_t c = 0; c < dv; ++c) f.acc[r * dv + c] = f.acc[r * dv + c] * a + later.acc[r * dv + c] * b;
    }
  }

  /// Adds the sink, divides by l, and writes the rows of `out` and, for softmax only, of lse.
  void finish(int64_t block, const RowState<T>& f) const {
    const int64_t head = block / row_tiles, b = head / tiles.heads, h = head % tiles.heads;
    const int64_t row = first_row(block), rows = rows_of(block);
    for (int64_t r = 0; r < rows; ++r) {
      T factor = 1, max = f.max[r], sum = f.sum[r];
      if (softmax) {
        if (o.sink.defined()) {
          const T extra = o.sink.data<T>()[o.sink.dim(0) > 1 ? h * o.sink.strides()[0] : 0];
          const T now = std::max(max, extra), shift = now == -inf ? T(0) : now;
          const T shrink = max == -inf ? T(0) : math::exp(max - shift);
          sum = sum * shrink + math::exp(extra - shift);
          factor = shrink, max = now;
        }
        lse[head * m + row + r] = sum == T(0) ? -inf : (max == -inf ? T(0) : max) + math::log(sum);
        factor = sum == T(0) ? T(0) : factor / sum;
      }
      T* to = out.at(b, h, row + r);
      for (int64_t c = 0; c < dv; ++c) to[c] = f.acc[r * dv + c] * factor;
    }
  }
};

/// A call of bf16 gets f32 copies of all but K and V, which are read or packed where they lie.
void forward_in_f32(const AttentionCall& call, Tensor& out, Tensor& lse) {
  AttentionCall copied = call;
  copied.k = copied.v = Tensor();
  Widening copies(false);
  AttentionCall wide = Widened<const AttentionCall&>(copies, copied).get();
  wide.k = call.k, wide.v = call.v;
  Tensor wide_out = copies.result(out);
  Forward<float>(wide, wide_out, lse).run();
  copies.finish();
}

void forward_cpu(const AttentionCall& call, Tensor& out, Tensor& lse) {
  if (call.q.dtype() == bf16) return forward_in_f32(call, out, lse);
  dispatch_float("attention", call.q.dtype(), [&]<class T>() { Forward<T>(call, out, lse).run(); });
}

}  // namespace

}  // namespace detail

constinit decltype(kernel::attention) kernel::attention{
    "attention", &detail::forward_cpu,
    [](const detail::AttentionCall& c, Tensor&, Tensor&) {
      const int64_t pairs = detail::counted_pairs(c);  // scores and the weighted sum
      return Work{.flops = 2 * checked_mul("attention", pairs, c.q.dim(3) + c.v.dim(3)), .attention_elements = pairs};
    },
    Bf16::native};

}  // namespace sluice
