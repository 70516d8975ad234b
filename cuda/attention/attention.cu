// The slots of attention. One kernel over tiles of queries × keys computes the forward pass and the gradients of q, k
// and v; one along diagonals computes the gradient of a relative bias.
//
//   softmax:  μ' = max(μ, rowmax S)    P = e^{S − μ'}    l ← l e^{μ − μ'} + rowsum P    O ← O e^{μ − μ'} + (P ⊙ Z) V
//             at the end the sink joins l, O ← O / l, lse = μ + log l
//   others:   P = φ(S)                                                                  O ← O + (P ⊙ Z) V
//
// Z are dropout's factors. A row that has seen no key has μ = −∞, and 0 replaces it in exponents. The backward pass
// computes scores and weights again, from the operands and lse:
//
//   P = e^{S − lse} or φ(S)    dP = G Vᵀ ⊙ Z    dS = P ⊙ (dP − δ) or φ'(S) ⊙ dP
//   dV = (P ⊙ Z)ᵀ G   dQ = scale · (ρ dS ⊙ cap') K   dK = scale · (ρ dS ⊙ cap')ᵀ Q   dbias = ρ dS, summed by distance
//
// Each block owns its rows of one result and adds to them in the order of the columns, so results always have the same
// bits. Few queries give too few blocks; each block then takes a part of the keys (parts.cuh).
// What limits it: f32 arithmetic, with 16 bytes of shared memory for every eight multiply-adds; no loads under way
// while it computes. The backward pass computes S for each of dQ, dK and dV, and dP for dQ and dK.
#include <sluice/cuda/attention/bf16.h>
#include <sluice/cuda/attention/general.cuh>
#include <sluice/cuda/kernels.h>

namespace sluice::cuda {

namespace {

enum class Pass { forward, dq, dk, dv };

template <class T> constexpr int kOwn = sizeof(T) == 4 ? 16 : 4;  // columns of a result in the registers of a thread

constexpr int64_t kEnoughWarps = 2048;  // about sixteen for each multiprocessor, two rounds of what runs there at once
constexpr PartSizes kParts{.step = kCols, .least = 256, .cost = 64};
// What a multiprocessor holds: eight warps fill its registers, with 240 a thread; bytes, of which a block takes 1,024
// beside its own.
constexpr int64_t kWarpsAtOnce = 8, kSharedBytes = 228 * 1024, kBytesOfBlock = 1024;

/// The result of a pass: its rows are split into tiles, and its `width` columns into pieces. In the forward pass the
/// keys may be split into parts; `found` then keeps μ, l and the sum of each row and part.
template <class T> struct Target {
  HeadRows<T> to = {};
  int64_t width = 0, tiles = 1, pieces = 1, parts = 1, part_cols = 0, blocks = 0;
  PartsOfKeys<T> found = {};
  T *lse = nullptr, *bias = nullptr, *relative = nullptr;
  int64_t relative_head = 0;  // numbers of a query head in `relative`
  int b = 0, x = 0, w = 0;    // where they begin in shared memory; `a` begins at 0
};

constexpr int kPlaces = kCols + 4;  // leading dimension of weights
/// The column in a piece of a thread's c-th number; a thread has whole vectors.
template <class T> __device__ int column_of(const TileThread& t, int c) {
  return (c / kVector<T> * kAcross + t.tx) * kVector<T> + c % kVector<T>;
}

/// o[r][c] += Σ_j w_{4ty + r, j} x_{j, column_of(c)}. With `holes` zeros of w are left out: hidden x may be NaN.
template <bool holes, class T>
__device__ void add_products(const TileThread& t, T (&o)[kEach][kOwn<T>], Shared<T> w, Shared<T> x, int n, int width) {
  constexpr int vector = kVector<T>;
  const int ld = padded<T>(width);
  for (int first = 0; first < n; first += vector) {
    T u[kEach][vector];
#pragma unroll
    for (int r = 0; r < kEach; ++r) load_16(u[r], w + ((r * (t.rows / kEach) + t.ty) * kPlaces + first));
#pragma unroll
    for (int j = 0; j < vector; ++j)
#pragma unroll
      for (int c = 0; c < kOwn<T>; c += vector) {
        if (column_of<T>(t, c) >= width) continue;
        T y[vector];
        load_16(y, x + ((first + j) * ld + column_of<T>(t, c)));
#pragma unroll
        for (int r = 0; r < kEach; ++r)
#pragma unroll
          for (int i = 0; i < vector; ++i) o[r][c + i] += holes && u[r][j] == T(0) ? T(0) : u[r][j] * y[i];
      }
  }
}

/// A block has up to four warps. It takes rows of a head (queries, or keys for dk and dv) and a piece of the columns.
/// In: of the operands.
template <class T, Pass pass, class In = T>
__global__ void __launch_bounds__(128) attention_tiles(AttentionView<T> a, Target<T> out) {
  constexpr bool by_keys = pass == Pass::dk || pass == Pass::dv, needs_dp = pass == Pass::dq || pass == Pass::dk;
  constexpr T inf = std::numeric_limits<T>::infinity();
  const TileThread t;
  const Shared<T> memory = dynamic_shared<T>(), lines = memory + out.b, x = memory + out.x, w = memory + out.w;
  const bool softmax = a.weighting == Weighting::softmax;
  for (int64_t block = blockIdx.x; block < out.blocks; block += gridDim.x) {
    const int64_t own_heads = by_keys ? a.kv_heads : a.heads, index = block / out.tiles / out.pieces / out.parts;
    const int64_t part = block / out.tiles / out.pieces % out.parts;
    const int64_t b = index / own_heads, own = index % own_heads, piece = block / out.tiles % out.pieces;
    const int64_t first = block % out.tiles * t.rows, left = (by_keys ? a.n : a.m) - first,
                  from = piece * kAcross * kOwn<T>;
    const int rows = static_cast<int>(left < t.rows ? left : t.rows);
    const int width = static_cast<int>(out.width - from < kAcross * kOwn<T> ? out.width - from : kAcross * kOwn<T>);
    T o[kEach][kOwn<T>] = {}, largest[kEach], sum[kEach];
#pragma unroll
    for (int r = 0; r < kEach; ++r) largest[r] = -inf, sum[r] = 0;

    Span range = by_keys ? a.mask.queries_of(first, rows) : a.mask.keys_of(first, rows);
    if (out.parts > 1) {
      const int64_t begin = part * out.part_cols, end = begin + out.part_cols;
      range = {range.begin > begin ? range.begin : begin, range.end < end ? range.end : end};
    }
    const int64_t heads_end = by_keys ? (own + 1) * a.group : own + 1;
    for (int64_t h = by_keys ? own * a.group : own; h < heads_end; ++h)
      for (int64_t at = range.begin / kCols * kCols; at < range.end; at += kCols) {
        const int cols = static_cast<int>(range.end - at < kCols ? range.end - at : kCols);
        const int64_t kv = by_keys ? own : h / a.group, queries = by_keys ? at : first, keys = by_keys ? first : at;
        const bool whole = rows == t.rows && cols == kCols &&
                           (by_keys ? a.mask.all(at, cols, first, rows) : a.mask.all(first, rows, at, cols));
        const int q_rows = by_keys ? cols : rows, k_rows = by_keys ? rows : cols;
        const int my_query = (by_keys ? t.tx : t.ty) * kEach, my_key = (by_keys ? t.ty : t.tx) * kEach;
        unsigned seen = 0xffff;
        bool holes = false;
        if (!whole) {
          seen = seen_pairs(a, b, h, queries + my_query, keys + my_key, q_rows - my_query, k_rows - my_key, holes);
          if (!a.mask.only_span && !any_of_block(t, seen != 0)) continue;
          holes = __any_sync(kAllLanes, holes);
        }
        const bool busy = whole || __any_sync(kAllLanes, seen != 0);

        const auto tile_of = [&](const HeadRows<const T>& y, int64_t head, int64_t row, int real) {
          return lines_of<In>(y, b, head, row, real);
        };
        const Lines<In> q = tile_of(a.q, h, queries, q_rows), k = tile_of(a.k, kv, keys, k_rows);
        T s[kEach][kEach], dp[kEach][kEach];
        if constexpr (needs_dp) {
          const Lines<In> g = tile_of(a.g, h, queries, q_rows), v = tile_of(a.v, kv, keys, k_rows);
          dot_products<false>(t, dp, memory, lines, by_keys ? v : g, by_keys ? g : v, a.dv, busy);
        }
        dot_products<false>(t, s, memory, lines, by_keys ? k : q, by_keys ? q : k, a.d, busy);
        if (a.d == 0) __syncthreads();  // the previous tile has been used; for d > 0 dot_products has a barrier
        load(t, x, padded<T>(width),
             pass == Pass::forward ? tile_of(a.v, kv, keys, cols)
             : pass == Pass::dq    ? k
             : pass == Pass::dk    ? q
                                   : tile_of(a.g, h, queries, cols),
             padded<T>(cols), from, width);

        if (busy) {
#pragma unroll
          for (int i = 0; i < kEach; ++i) {
            const int64_t query = queries + my_query + i, key = keys + my_key;
            const unsigned here = seen >> (kEach * i) & 0xf;
            if constexpr (pass == Pass::forward) weigh(a, b, h, query, key, here, s[i], largest[i], sum[i], o[i]);
            else
              weigh_gradients<T, needs_dp>(
                  a, b, h, query, key, here, [&](int j) -> T& { return by_keys ? s[j][i] : s[i][j]; },
                  [&](int j) { return !needs_dp ? T(0)
                                      : by_keys ? dp[j][i]
                                                : dp[i][j]; },
                  pass == Pass::dq && piece == 0 ? out.bias : nullptr);
          }
#pragma unroll
          for (int r = 0; r < kEach; ++r)
#pragma unroll
            for (int c = 0; c < kEach; c += kVector<T>) {
              T four[kVector<T>];
#pragma unroll
              for (int i = 0; i < kVector<T>; ++i) four[i] = s[r][c + i];
              store_16(w + ((r * (t.rows / kEach) + t.ty) * kPlaces + t.tx * kEach + c), four);
            }
        }
        __syncthreads();
        if (busy && holes) add_products<true>(t, o, w, x, cols, width);
        else if (busy) add_products<false>(t, o, w, x, cols, width);
      }

#pragma unroll
    for (int r = 0; r < kEach; ++r) {
      const int row = t.ty * kEach + r;
      T factor = needs_dp ? a.scale : T(1), *to = nullptr;
      if constexpr (pass == Pass::forward) {
        const T total = sum_over_lanes<kAcross>(sum[r]);
        const int64_t index_of_row = a.row_of(b, own, first + row);
        const bool writes = row < rows && t.tx == 0 && piece == 0;
        if (out.parts > 1) {
          T* mine = out.found.at(index_of_row, part);
          if (writes) mine[0] = largest[r], mine[1] = total;
          to = mine + 2 + from;
        } else {
          if (softmax) {
            const RowEnd<T> end(a.sink_of(own), largest[r], total);
            factor = end.factor;
            if (writes) out.lse[index_of_row] = end.lse;
          }
        }
      }
      if (row >= rows) continue;
      if (!to) to = out.to.at(b, own, first + row) + from;
#pragma unroll
      for (int c = 0; c < kOwn<T>; ++c)
        if (column_of<T>(t, c) < width) to[column_of<T>(t, c)] = o[r][c] * factor;
    }
  }
}

/// The gradient of a relative bias. A block owns 32 entries of a head's table and walks down their diagonals. A thread
/// has four neighbouring entries for four queries of a tile; at the end the sums of the threads are added up.
template <class T> __global__ void __launch_bounds__(128, 2) attention_diagonals(AttentionView<T> a, Target<T> out) {
  const TileThread t;
  const Shared<T> memory = dynamic_shared<T>(), lines = memory + out.b, sums = memory + out.w;
  for (int64_t block = blockIdx.x; block < out.blocks; block += gridDim.x) {
    const int64_t index = block / out.tiles, b = index / a.heads, h = index % a.heads, kv = h / a.group;
    const int64_t first = block % out.tiles * kCols, shift = first - (a.m - 1);  // `first`: query i, key i + shift
    const int64_t least = 1 - kCols - shift, begin = least > 0 ? least : 0, end = a.n < a.m + shift ? a.n - shift : a.m;
    T sum[kEach] = {};
    for (int64_t row = begin; row < end; row += t.rows) {
      const int rows = static_cast<int>(end - row < t.rows ? end - row : t.rows);
      const int64_t query = row + t.ty * kEach, key = query + shift + t.tx * kEach, col = row + shift;
      unsigned seen = 0;
      for (int i = 0; i < kEach; ++i)
        for (int c = 0; c < kEach; ++c) {
          const int64_t j = key + i + c;
          if (query + i < end && j >= 0 && j < a.n && a.mask.allowed(b, h, query + i, j)) seen |= 1u << (kEach * i + c);
        }
      if (!any_of_block(t, seen != 0)) continue;
      const bool busy = __any_sync(kAllLanes, seen != 0);
      const Span queries{0, rows}, keys{col < 0 ? -col : 0, a.n - col};
      T s[kEach][kEach], dp[kEach][kEach];
      dot_products<true>(t, s, memory, lines, {a.q.at(b, h, row), a.q.row, queries},
                         {a.k.at(b, kv, col), a.k.row, keys}, a.d, busy);
      dot_products<true>(t, dp, memory, lines, {a.g.at(b, h, row), a.g.row, queries},
                         {a.v.at(b, kv, col), a.v.row, keys}, a.dv, busy);
#pragma unroll
      for (int i = 0; i < kEach; ++i)
#pragma unroll
        for (int c = 0; c < kEach; ++c) {
          if (!(seen >> (kEach * i + c) & 1)) continue;
          const bool softmax = a.weighting == Weighting::softmax;
          const int64_t q = query + i, j = key + i + c, at = a.row_of(b, h, q);
          const T kept = a.drops ? a.kept(a.words(b, h, q, j), j) : T(1), lse = softmax ? a.lse[at] : T(0);
          const T delta = softmax ? a.delta[at] : T(0), score = a.score(b, h, q, j, s[i][c]);
          sum[c] += PairGradient<T>(a, score, dp[i][c], kept, lse, delta, a.rho(b, h, q)).ds;
        }
    }
    __syncthreads();  // the sums of the previous block have been used
#pragma unroll
    for (int c = 0; c < kEach; ++c) sums[t.ty * kCols + t.tx * kEach + c] = sum[c];
    __syncthreads();
    if (t.thread < kCols && first + t.thread < a.n + a.m - 1) {
      T total = 0;
      for (int y = 0; y < t.threads / kAcross; ++y) total += sums[y * kCols + t.thread];
      out.relative[index * out.relative_head + first + t.thread] = total;
    }
  }
}

/// The number of warps of a block for n rows.
int warps_for(int64_t n) { return static_cast<int>(std::clamp<int64_t>(ceil_div(n, kRowsOfWarp), 1, 4)); }

template <class T, Pass pass, class In = T> void run(const AttentionView<T>& a, Target<T> out) {
  constexpr bool by_keys = pass == Pass::dk || pass == Pass::dv, needs_dp = pass == Pass::dq || pass == Pass::dk;
  constexpr int most = kAcross * kOwn<T>;
  const int64_t length = by_keys ? a.n : a.m;
  const int warps = warps_for(length), rows = warps * kRowsOfWarp;
  out.tiles = ceil_div(length, rows), out.pieces = std::max<int64_t>(1, ceil_div(out.width, most));
  out.blocks = a.batch * (by_keys ? a.kv_heads : a.heads) * out.tiles * out.pieces;
  if (out.blocks == 0) return;
  const int ld = std::max(piece_stride<T>(a.d), needs_dp ? piece_stride<T>(a.dv) : 0);
  out.b = rows * ld, out.x = out.b + kCols * ld, out.w = out.x + kCols * padded<T>(std::min<int64_t>(most, out.width));
  const int64_t bytes = (out.w + rows * kPlaces) * static_cast<int64_t>(sizeof(T));
  std::optional<Scratch<T>> found;
  if (pass == Pass::forward) {
    // With more tiles than one, masks may give them different numbers of keys.
    const int64_t fit = std::clamp<int64_t>(kSharedBytes / (bytes + kBytesOfBlock), 1, kWarpsAtOnce / warps);
    const int64_t parts = out.tiles == 1 ? kParts.parts_of(a.n, out.blocks, multiprocessors() * fit)
                                         : std::clamp<int64_t>(kEnoughWarps / (out.blocks * warps), 1,
                                                               std::max<int64_t>(1, a.n / kParts.least));
    out.part_cols = round_up(ceil_div(a.n, parts), kCols);
    out.parts = a.n == 0 ? 1 : ceil_div(a.n, out.part_cols);
    out.blocks *= out.parts;
    out.found = {a.batch, a.heads,     a.m,    a.dv, out.parts, nullptr, a.weighting == Weighting::softmax,
                 a.sink,  a.sink_head, out.lse};
    if (out.parts > 1) out.found.found = found.emplace(out.found.size()).get();
  }
  launch(attention_tiles<T, pass, In>, grid_of(out.blocks), dim3(static_cast<unsigned>(warps * kWarp)),
         static_cast<std::size_t>(bytes), a, out);
  if (out.parts > 1) run_join_parts(out.found, out.to);
}

template <class T> void run_diagonals(const AttentionView<T>& a, Target<T> out) {
  const int warps = warps_for(a.m), rows = warps * kRowsOfWarp,
            ld = std::max(piece_stride<T>(a.d), piece_stride<T>(a.dv));
  out.tiles = ceil_div(a.n + a.m - 1, kCols), out.blocks = a.batch * a.heads * out.tiles;
  if (out.blocks == 0) return;
  out.b = rows * ld, out.w = out.b + (rows + kCols) * ld;
  const int count = out.w + warps * kRowsOfWarp / kEach * kCols;
  launch(attention_diagonals<T>, grid_of(out.blocks), dim3(static_cast<unsigned>(warps * kWarp)),
         static_cast<std::size_t>(count) * sizeof(T), a, out);
}

DeviceMask mask_of(const sluice::detail::AttentionCall& c) {
  return DeviceMask(c.options.mask, c.q.dim(0), c.q.dim(1), c.q.dim(2), c.k.dim(2));
}

template <class T> void backward_as(const AttentionView<T>& a, sluice::detail::AttentionGradients& out) {
  if (out.dq.defined() || out.bias.defined())
    run<T, Pass::dq>(
        a, {.to = HeadRows<T>(out.dq), .width = out.dq.defined() ? a.d : 0, .bias = data_or_null<T>(out.bias)});
  if (out.dk.defined()) run<T, Pass::dk>(a, {.to = HeadRows<T>(out.dk), .width = a.d});
  if (out.dv.defined()) run<T, Pass::dv>(a, {.to = HeadRows<T>(out.dv), .width = a.dv});
  if (out.relative.defined() && out.relative.numel() > 0)  // the whole gradient goes into the first split
    run_diagonals<T>(
        a, {.relative = data_of<T>(out.relative), .relative_head = out.relative.dim(2) * out.relative.dim(3)});
}

}  // namespace

void attention(const sluice::detail::AttentionCall& call, Tensor& out, Tensor& lse) {
  if (attention_bf16(call, out, lse)) return;
  const DeviceMask mask = mask_of(call);
  if (call.q.dtype() == bf16) {  // read as it lies: a step of decoding has a long cache and a short result
    const sluice::detail::AttentionCall wide = with_wide_options(call);
    Tensor result = empty(out.shape(), {f32, out.device()});
    run<float, Pass::forward, BFloat16>(
        AttentionView<float>(wide, mask.view),
        {.to = HeadRows<float>(result), .width = out.dim(3), .lse = data_or_null<float>(lse)});
    return copy(result, out);
  }
  dispatch_float("attention", call.q.dtype(), [&]<class T>() {
    run<T, Pass::forward>(AttentionView<T>(call, mask.view),
                          {.to = HeadRows<T>(out), .width = out.dim(3), .lse = data_or_null<T>(lse)});
  });
}

void attention_backward(const sluice::detail::AttentionCall& call, const Tensor& g, const Tensor& lse,
                        const Tensor& delta, sluice::detail::AttentionGradients& out) {
  if (attention_backward_bf16(call, g, lse, delta, out)) return;
  if (call.q.dtype() == bf16) return call_widened(&attention_backward, true, call, g, lse, delta, out);
  const DeviceMask mask = mask_of(call);
  dispatch_float("attention", call.q.dtype(), [&]<class T>() {
    AttentionView<T> a(call, mask.view);
    a.g = HeadRows<const T>(g), a.lse = data_or_null<T>(lse), a.delta = data_or_null<T>(delta);
    backward_as<T>(a, out);
  });
}

}  // namespace sluice::cuda
