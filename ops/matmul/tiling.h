// How the kernel of matmul cuts c into tasks.
#pragma once

#include <sluice/core/shape.h>
#include <sluice/ops/gemm/panels.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace sluice::detail {

inline constexpr int64_t kRounded = 256;  // rows and columns of a piece of c that is rounded to bf16

/// Tiles of c. There are several tasks per thread for balance, each of at least some 20 µs. A task reads rows of a and
/// columns of b from memory: the traffic is least for square tasks, unless b's panels are in cache. More than 336 rows
/// gain nothing; with fewer than 56, loading b's panels limits the speed.
struct Tiling {
  int64_t rows, cols, row_tiles, col_tiles;
  Tiling() = default;

  /// Equal blocks of whole rows, at most `block` (packed at a time). There are as many as a multiple of the threads, or
  /// fewer after rounding: a block has equal tiles of registers, each of at most `height` rows, because a tile of 1 row
  /// takes more than half the time of one of 6.
  Tiling(int64_t n, int64_t m, int64_t block, int64_t height, int64_t columns, int threads)
      : cols(round_up(m, columns)), col_tiles(1) {
    rows = ceil_div(n, ceil_div(ceil_div(n, block), threads) * threads);
    const detail::Cut tiles(rows, height);
    rows = std::min(block, tiles.count * tiles.length), row_tiles = ceil_div(n, rows);
  }

  /// For AMX. A task takes as many columns as stay in L2. It takes at least 256 rows, because it first fetches its
  /// columns; fewer, down to 64, only if there are not two tasks per thread.
  static Tiling near(int64_t n, int64_t m, int64_t k, int64_t near_columns, int threads) {
    const int64_t wanted = std::clamp<int64_t>(n * m * k >> 22, 1, 6 * threads);
    const int64_t enough = std::min<int64_t>(wanted, 2 * threads);
    Tiling t;
    t.col_tiles = std::clamp<int64_t>(ceil_div(m, near_columns), 1, wanted);
    t.cols = round_up(ceil_div(m, t.col_tiles), 32), t.col_tiles = ceil_div(m, t.cols);
    t.row_tiles = std::clamp<int64_t>(ceil_div(wanted, t.col_tiles), 1, std::max<int64_t>(1, n / 256));
    t.row_tiles = std::max(t.row_tiles, std::min(ceil_div(enough, t.col_tiles), n / 64));
    t.rows = round_up(ceil_div(n, t.row_tiles), 32), t.row_tiles = ceil_div(n, t.rows);
    return t;
  }

  /// For bf16: up to kRounded rows, as many as make `least` tiles, but not below 64.
  static Tiling pieces(int64_t n, int64_t m, int64_t cols, int64_t least) {
    Tiling t;
    t.rows = kRounded, t.cols = cols, t.row_tiles = ceil_div(n, kRounded), t.col_tiles = ceil_div(m, cols);
    while (t.rows > 64 && t.row_tiles * t.col_tiles < least) t.rows /= 2, t.row_tiles = ceil_div(n, t.rows);
    return t;
  }

  /// For a product of few rows, whose tasks pack their own operands: tiles of at most 512 by `most_cols`, in which
  /// packing takes little time. While there are not two tasks per thread, rows are fewer, down to 128, then columns,
  /// down to 128, and then rows again, down to 56.
  static Tiling own(int64_t n, int64_t m, int64_t most_cols, int64_t columns, int threads) {
    const int64_t wanted = 2 * threads;
    const auto more = [wanted](int64_t pieces, int64_t others, int64_t size, int64_t least) {
      return std::max(pieces, std::min(ceil_div(wanted, others), size / least));
    };
    Tiling t;
    t.col_tiles = ceil_div(m, most_cols);
    t.row_tiles = more(ceil_div(n, 512), t.col_tiles, n, 128);
    t.col_tiles = more(t.col_tiles, t.row_tiles, m, 128);
    t.row_tiles = more(t.row_tiles, t.col_tiles, n, 56);
    t.cols = ceil_div(ceil_div(m, columns), t.col_tiles) * columns, t.col_tiles = ceil_div(m, t.cols);
    t.rows = ceil_div(n, t.row_tiles), t.row_tiles = ceil_div(n, t.rows);
    return t;
  }

  /// rows is a multiple of `height`, cols of `columns`. A task makes 2²¹ multiply-adds or reads 2¹⁶ numbers of b.
  Tiling(int64_t batch, int64_t n, int64_t m, int64_t k, int64_t height, int64_t columns, int threads) {
    const int64_t tasks = std::max(batch * n * m * k >> 21, batch * m * k >> 16);
    const int64_t wanted = ceil_div(std::clamp<int64_t>(tasks, 1, 8 * threads), batch);
    const bool near = m * k <= 3 << 17;  // b in L2
    const double square = near ? 1e9 : std::sqrt(double(wanted) * double(n) / double(m));
    const int64_t least = ceil_div(n, 336);
    row_tiles = std::clamp(static_cast<int64_t>(square), least, std::max(least, n / 56));
    row_tiles = std::min(row_tiles, std::max(least, wanted));
    rows = round_up(ceil_div(n, row_tiles), height), row_tiles = ceil_div(n, rows);
    const int64_t panels = ceil_div(m, columns);
    col_tiles = std::clamp<int64_t>(ceil_div(wanted, row_tiles), 1, ceil_div(panels, 4));
    cols = ceil_div(panels, col_tiles) * columns, col_tiles = ceil_div(m, cols);
  }
};

}  // namespace sluice::detail
