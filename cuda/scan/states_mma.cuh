// The states that the gradients of a linear_scan with a scalar decay need, on tensor cores: before each chunk of 64
// steps
//
//   S ← e^{L_end} S + Σ_j (k_j e^{L_end − L_j})ᵀ v_j     from the first chunk on, as in simt.cuh
//   X ← e^{L_end} X + Σ_t (q_t e^{L_t})ᵀ do_t            X = dL/dS behind the chunk, from the last chunk on
//
// which are stored as bf16, in the order in which shared memory takes them. Both ways run in one launch. A block has
// the whole state of a head and goes through a piece of its chunks (pieces.cuh); registers hold the state in f32 as in
// mma.cuh, and cp.async copies the next chunk meanwhile. What limits it: the number of heads; one barrier a chunk.
#pragma once

#include <sluice/cuda/scan/mma.cuh>

namespace sluice::cuda {

/// A call, and its heads [first_head, first_head + span) of v, which a launch takes. `share` heads of v read a head of
/// q and k.
struct ScanChunks {
  HeadRows<const BFloat16> q{}, k{}, v{}, dout{};
  const float* g;  // [batch, heads, n]
  int64_t n, m, e;
  int heads, share, first_head, span;
  ScanCut cut;
  BFloat16 *before, *behind;  // [span, chunks, M, E], M and E those of the tile

  /// The log decay of step i of a chunk; 0 for the first step of all, and beyond the last.
  __device__ float log_decay(int head, int chunk, int i) const {
    const int64_t step = cut.first(chunk) + i;
    return i < cut.count(chunk) && step > 0 ? finite_decay(g[head * n + step]) : 0.0f;
  }
};

/// What both ways keep at the starts of pieces: [way, span, pieces, M, E], and Σg of each piece.
struct ScanStatePieces {
  float* states = nullptr;  // null: one piece
  double* totals = nullptr;
  bool stores = true;  // states of chunks; else what pieces add
};

template <int M, int E> struct ScanStatesTile {
  static constexpr int threads = 2 * E, keys = 0, values = keys + 2 * kScanMmaSteps * M;
  static constexpr std::size_t bytes = (values + 2 * kScanMmaSteps * E) * sizeof(BFloat16);
};

/// Writes this lane's numbers of S, rounded, to a state of E columns in the order of MmaRows.
template <int M, int E>
__device__ void store_rounded(BFloat16* to, const float (&state)[M / 64][8][4], int channel, int half) {
  const int t = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
  for (int i = 0; i < M / 64; ++i)
#pragma unroll
    for (int r = 0; r < 2; ++r)
#pragma unroll
      for (int d = 0; d < 8; d += 4) {  // lane t of each four gets columns 8(d + t) to 8(d + t) + 7
        uint32_t w[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) w[j] = pack_bf16(state[i][d + j][2 * r], state[i][d + j][2 * r + 1]);
        transpose_quads(w);
        store_words(to + MmaRows<E>::at(channel + 16 * i + 8 * r, 8 * half + d + t), w);
      }
}

/// A block for each way, head and piece.
template <int M, int E> __global__ void __launch_bounds__(2 * E) scan_states(ScanChunks s, ScanStatePieces pieces) {
  using Tile = ScanStatesTile<M, E>;
  constexpr int steps = kScanMmaSteps;
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  const int rows = warp % 4, half = warp / 4, channel = M / 4 * rows + lane / 4, t = lane % 4;
  const int of_k = MmaRows<M>::at(lane / 16 * 8 + lane % 8, M / 32 * rows + lane / 8 % 2),
            of_v = MmaRows<E>::at(lane % 16, 8 * half + lane / 16);
  const Shared<BFloat16> memory = dynamic_shared<BFloat16>();
  const int inside = static_cast<int>(blockIdx.x) % (2 * s.span), piece = static_cast<int>(blockIdx.x) / (2 * s.span);
  const bool back = inside >= s.span;
  const int local = inside % s.span, head = s.first_head + local, b = head / s.heads, h = head % s.heads;
  const int chunks = static_cast<int>(s.cut.chunks), begin = piece * static_cast<int>(s.cut.chunks_of_piece);
  const int end = begin + static_cast<int>(s.cut.chunks_of_piece), last = end < chunks ? end : chunks;
  const HeadRows<const BFloat16> from_k = back ? s.q : s.k, from_v = back ? s.dout : s.v;
  const auto chunk_of = [&](int i) { return back ? chunks - 1 - i : i; };  // number i on this way
  const auto start_copies = [&](int i) {
    const int chunk = chunk_of(i), buffer = i % 2;
    const int64_t first = s.cut.first(chunk);
    scan_copy<M, Tile::threads>(memory + (Tile::keys + buffer * steps * M), from_k.at(b, h / s.share, first),
                                from_k.row, s.cut.count(chunk), static_cast<int>(s.m));
    scan_copy<E, Tile::threads>(memory + (Tile::values + buffer * steps * E), from_v.at(b, h, first), from_v.row,
                                s.cut.count(chunk), static_cast<int>(s.e));
  };
  const auto decay_of = [&](int i, int step) { return s.log_decay(head, chunk_of(i), step); };
  float state[M / 64][8][4] = {};
  /// f(two numbers of S, their address in pieces.states)
  const auto each_kept = [&](auto f) {
    float* const at =
        pieces.states + (int64_t{inside} * s.cut.pieces + piece) * M * E + channel * E + 64 * half + 2 * t;
    scan_each_pair(state, [=](float& x, float& y, int row, int column) { f(x, y, at + row * E + column); });
  };
  if (pieces.stores && piece > 0) each_kept([](float& x, float& y, const float* from) { x = from[0], y = from[1]; });
  start_copies(begin);
  cp_async_commit();
  double total = 0;  // Σg of the piece, in warp 0
  if (warp == 0) total = ScanMmaDecays::of<Tile>(begin % 2).fill(decay_of(begin, lane), decay_of(begin, lane + kWarp));

  for (int i = begin; i < last; ++i) {
    const int buffer = i % 2, chunk = chunk_of(i);
    if (pieces.stores)
      store_rounded<M, E>((back ? s.behind : s.before) + (int64_t{local} * chunks + chunk) * M * E, state, channel,
                          half);
    cp_async_wait<0>();
    __syncthreads();  // all threads see the chunk; the other buffer is free
    const bool more = i + 1 < last;
    if (!more && pieces.stores) break;
    float next_low = 0, next_high = 0;
    if (more) {
      start_copies(i + 1);
      if (warp == 0) next_low = decay_of(i + 1, lane), next_high = decay_of(i + 1, lane + kWarp);
    }
    cp_async_commit();
    const ScanMmaDecays decays = ScanMmaDecays::of<Tile>(buffer);
    scan_shrink(state, decays.end[0], decays.end[1]);
    scan_add_to_state<M, E, true>(state, memory + (Tile::keys + buffer * steps * M),
                                  memory + (Tile::values + buffer * steps * E), of_k, of_v,
                                  back ? decays.up : decays.down, s.cut.count(chunk));
    if (warp == 0 && more) total += ScanMmaDecays::of<Tile>(1 - buffer).fill(next_low, next_high);
  }
  if (pieces.stores) return;
  each_kept([](float x, float y, float* to) { store_pair(to, x, y); });
  if (threadIdx.x == 0) pieces.totals[int64_t{inside} * s.cut.pieces + piece] = total;
}

/// Fills s.before and s.behind.
template <int M, int E> void store_states(const ScanChunks& s) {
  using Tile = ScanStatesTile<M, E>;
  const int64_t ways = 2 * int64_t{s.span};
  ScanStatePieces pieces;
  const auto run = [&](int64_t count) {
    launch(scan_states<M, E>, grid_of(ways * count), dim3(Tile::threads), Tile::bytes, s, pieces);
  };
  const int64_t count = s.cut.pieces;
  if (count == 1) return run(1);
  const Scratch<float> states(static_cast<std::size_t>(ways * count * M * E));
  const Scratch<double> totals(static_cast<std::size_t>(ways * count));
  pieces.states = states.get(), pieces.totals = totals.get(), pieces.stores = false;
  run(count - 1);
  scan_pieces(states.get(), totals.get(), ways, count, M, E, ScanDecay::scalar);
  pieces.stores = true;
  run(count);
}

}  // namespace sluice::cuda
