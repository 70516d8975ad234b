// Which query may attend to which key. A mask is a set of rules, all of which must allow a pair. The attention
// kernels evaluate it tile by tile and skip tiles without allowed pairs, so no rule but `dense` costs m·n memory.
#pragma once

#include <sluice/core/tensor.h>

#include <cstdint>
#include <vector>

namespace sluice {

/// Query i of m and key j of n stand at positions p_i = i + n − m and p_j = j: aligned at the end, so that
/// the last query sits on the last key (streaming, cross attention with a prefix).
struct AttentionMask {
  /// p_j <= p_i.
  bool causal = false;
  /// W > 0: |p_i − p_j| <= (W − 1)·dilation, so a causal query sees W keys including its own position
  /// (Longformer's one-sided w is W − 1). 0: no window.
  int64_t window = 0;
  /// p_i − p_j is a multiple of `dilation`.
  int64_t dilation = 1;
  /// Positions to which window and dilation do not apply, neither as query nor as key (Longformer, BigBird).
  std::vector<int64_t> global = {};
  /// bool [batch or 1, n] or [batch or 1, heads or 1, n]: true marks real keys, false padding.
  Tensor keys = {};
  /// i64 [batch or 1, m] and [batch or 1, n]: document numbers; only equal ones see each other.
  Tensor query_segments = {}, key_segments = {};
  /// bool [⌈m/block⌉, ⌈n/block⌉] or [heads, …, …]: allows whole blocks of queries × keys, counted from 0. Or bool
  /// [batch or 1, g, m, ⌈n/block⌉]: the blocks of keys that each query sees; g divides heads, and head h has those of
  /// ⌊h/(heads/g)⌋.
  Tensor blocks = {};
  int64_t block = 0;
  /// bool, broadcasts to [batch, heads, m, n].
  Tensor dense = {};

  void each_tensor(auto f) const { f(keys), f(query_segments), f(key_segments), f(blocks), f(dense); }
  bool unrestricted() const {
    return !causal && window == 0 && dilation == 1 && !keys.defined() && !query_segments.defined() &&
           !blocks.defined() && !dense.defined();
  }
};

/// The mask with its tensors moved to `device`, which must be the device of the queries.
AttentionMask to(AttentionMask mask, Device device);

/// The pairs that a mask allows, as a bool tensor [batch or 1, heads or 1, m, n]. Throws ShapeError, DTypeError or
/// ValueError for rules that do not fit. `device` must be that of the mask's tensors, if it has any.
Tensor visible_pairs(const AttentionMask& mask, int64_t batch, int64_t heads, int64_t m, int64_t n,
                     Device device = cpu);
/// How many keys each query may see, i64 [batch or 1, heads or 1, m], without the pairs themselves.
Tensor visible_count(const AttentionMask& mask, int64_t batch, int64_t heads, int64_t m, int64_t n,
                     Device device = cpu);

namespace detail {

void check_mask(const char* op, const AttentionMask& mask, int64_t batch, int64_t heads, int64_t m, int64_t n);
/// True if heads may see different pairs.
bool varies_by_head(const AttentionMask& mask);

/// The rules of a mask that need no tensors, as kernels ask for them.
struct DistanceRules {
  int64_t reach;   // (window − 1)·dilation; without a window more than any distance, but safe to add positions to
  bool banded;     // window or dilation applies
  bool globals;    // global positions are exempt from both
  bool only_span;  // causality and the window are the whole mask: each row sees one interval
  explicit DistanceRules(const AttentionMask& mask);
};

/// A mask prepared for questions about single rows and whole tiles.
class Visibility {
 public:
  Visibility(const AttentionMask& mask, int64_t batch, int64_t heads, int64_t m, int64_t n);

  enum class Sees { none, some, all };
  /// Whether rows [row, row + rows) × columns [col, col + cols) are allowed nowhere, in places, or
  /// everywhere. May say `some` where a closer look would say none or all.
  Sees classify(int64_t batch, int64_t head, int64_t row, int64_t rows, int64_t col, int64_t cols) const;
  /// B > 0 if each query has its own list of blocks of B keys; otherwise 0.
  int64_t block_of_query() const { return by_query_ ? mask_.block : 0; }
  /// Writes the numbers of those rows of [row, row + rows) that have a block with one of the columns [col, col + cols),
  /// and returns how many. Sets `masked`: true if a pair of these rows and columns may be forbidden.
  int64_t rows_with(int64_t batch, int64_t head, int64_t row, int64_t rows, int64_t col, int64_t cols, int32_t* out,
                    bool& masked) const;
  /// Writes row `row`, columns [col, col + cols): 1 allowed, 0 not.
  void fill_row(int64_t batch, int64_t head, int64_t row, int64_t col, int64_t cols, uint8_t* out) const;
  /// The allowed columns of a row by the rules that give one interval: causal, and window without
  /// dilation and globals.
  struct Span {
    int64_t begin, end;
  };
  Span span(int64_t row) const;
  /// True if span() is the whole rule, so that fill_row() is not needed.
  bool only_span() const { return rules_.only_span; }

 private:
  const uint8_t* blocks_of(int64_t batch, int64_t head, int64_t row) const;
  Sees classify(int64_t batch, int64_t head, int64_t row, int64_t rows, int64_t col, int64_t cols, bool blocks) const;

  AttentionMask mask_;
  DistanceRules rules_;
  int64_t m_, n_;
  bool by_query_;
  std::vector<uint8_t> is_global_;      // by position; empty if there are none
  std::vector<int64_t> global_before_;  // number of global positions < p
  // strides of the broadcast tensors
  int64_t keys_batch_ = 0, keys_head_ = 0, dense_stride_[4] = {0, 0, 0, 0}, query_batch_ = 0, key_batch_ = 0;
  int64_t blocks_batch_ = 0, blocks_head_ = 0, blocks_row_ = 0;
  int64_t block_rows_ = 1, block_heads_ = 1;  // queries, and heads, that share a row of the blocks
};

}  // namespace detail

}  // namespace sluice
