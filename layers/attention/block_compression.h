// How NSA turns a block of rows into one row: φ of Yuan et al. 2025, "Native Sparse Attention", arXiv 2502.11089,
// §3.3.1. For the rows x_0 … x_{B−1} of a block of one KV head; each KV head has weights of its own:
//
//   mean     Σ_b x_b / B
//   linear   [x_0 + p_0 | … | x_{B−1} + p_{B−1}]·W
//   mlp      relu([x_0 + p_0 | …]·W)·W'
//
// p_b is a vector for position b of a block. Padding counts as 0; a mean is over the real rows.
#pragma once

#include <sluice/layers/nn/init.h>
#include <sluice/layers/nn/module.h>
#include <sluice/ops/attention/key_selection.h>

namespace sluice {

/// How a block becomes one row.
enum class Compression { mean, linear, mlp };
constexpr const char* choices(Compression) { return "mean linear mlp"; }

/// Sizes of the rows and blocks, and the kind of φ.
struct BlockCompressionOptions {
  int64_t heads, width;   // KV heads, channels of a row
  int64_t block, stride;  // rows of a block; rows from one block to the next
  Compression kind = Compression::mean;
  int64_t hidden = 0;  // of mlp; 0 means block·width
  Init init = Init::xavier();
  DType dtype = f32;

  static void describe(auto& o, auto& f) {
    f.required("heads", o.heads, at_least(1), "KV heads");
    f.required("width", o.width, at_least(1), "channels of a row");
    f.required("block", o.block, at_least(1), "rows of a block");
    f.required("stride", o.stride, at_least(1), "from one block to the next; divides block if kind is mean");
    f("kind", o.kind, "mean of the rows, a linear map of all, or an MLP of all");
    f("hidden", o.hidden, at_least(0), "of mlp: width of the hidden layer; 0: block*width");
    describe_parameters(o, f);
  }
};

/// φ with its weights.
struct BlockCompression {
  static constexpr const char* type = "BlockCompression";
  BlockCompressionOptions options{};
  Tensor position;  // p, [heads, block, width]; absent in mean
  Tensor in, out;   // W [heads, block·width, width or hidden], W' [heads, hidden, width]

  BlockCompression() = default;
  /// Throws ValueError unless the stride of means divides the block.
  BlockCompression(BlockCompressionOptions o, Rng& rng);
  /// x [batch, heads, n, width] → a row for each whole block, [batch, heads, blocks, width], and which blocks have a
  /// real row by `keys` (bool [batch or 1, n]; undefined: all). Throws ShapeError for other heads or another width.
  BlockRows operator()(const Tensor& x, const Tensor& keys = {}) const;
  SLUICE_PARTS(position, in, out);
};

}  // namespace sluice
