// One long sequence, split over ranks. Each rank calls the same layer with its piece [batch, n_r, d] and gets its piece
// of the output. Rank 0 has the first rows, rank 1 the next ones, and so on; the lengths n_r may differ:
//
//   SequenceScope scope(world());
//   Tensor y = model(piece, {.key_mask = piece_of_the_mask});
//   backward(sequence_mean(loss_of_each_token(y)));      // each rank gets its share of the parameters' gradients
//
// A layer must use the functions below for everything that crosses the borders of pieces; it then computes the same as
// on the whole sequence:
//
//   sequence_piece      position of this piece and length of the whole
//   sequence_shift      token shift: needs one row of the rank before
//   sequence_rows       any rows of the whole: borders, chunks
//   sequence_sum        Σ over ranks: mean pooling, counts, the sums of linear attention without order
//   sequence_cumsum     running sums
//   sequence_scan       linear_scan; each rank sends one state, whatever the length (LASP-2, Sun et al. 2025)
//   sequence_delta_scan delta_scan; each rank sends two matrices
//   sequence_attention  attention (sequence_attention.h)
//
// Outside of a scope, and with one rank, each function is the plain one, bit for bit.
//
// A scope serves better than an argument: positions, masks and sums lie deep inside of layers, and every call between
// would have to pass on a communicator. A model written for one rank runs split when a scope is opened around it.
//
// Gradients are those of the sum of all ranks' losses. A backward pass does the same exchanges in reverse, so every
// rank must run it, inside the scope or after it; checkpoint() runs again in the scopes of its first run. Tensors that
// all ranks hold (parameters, the context of cross attention) get each rank's share of the gradient. Add the shares up
// over ranks, or train with DataParallel, whose backward() takes the mean over this rank's tokens and their number. For
// many sequences, each over some of the ranks, open the scope with a split() and average over all ranks.
#pragma once

#include <sluice/core/scope.h>
#include <sluice/ops/scan/delta_scan.h>
#include <sluice/ops/scan/linear_scan.h>
#include <sluice/ops/scan/scan.h>
#include <sluice/parallel/communicator.h>

#include <memory>
#include <vector>

namespace sluice {

namespace detail {
struct Sequence;
}

/// While a SequenceScope lives, layers and their functions (not plain ops) take the tensors of this thread as pieces of
/// a sequence that is split over `communicator` in the order of its ranks. The first piece sets the lengths, which may
/// differ and may be 0. A sequence with other lengths needs a scope of its own. Scopes nest: the innermost counts.
struct SequenceScope : detail::Restored<std::shared_ptr<detail::Sequence>> {
  /// Sequences are split over the ranks of `communicator` to the end of its scope.
  [[nodiscard]] explicit SequenceScope(const Communicator& communicator);
  /// While this scope lives, nothing is split: for a part of a model whose tokens all lie on this rank.
  [[nodiscard]] SequenceScope();
  /// The same split as in the scope from which detail::this_sequence() gave `sequence`.
  [[nodiscard]] explicit SequenceScope(std::shared_ptr<detail::Sequence> sequence);
};

/// True if this thread's sequences are split.
bool in_sequence();

/// Rows [begin, end) of a whole sequence.
struct RowRange {
  int64_t begin = 0, end = 0;  // positions
  /// Number of rows.
  int64_t length() const { return end - begin; }
  friend bool operator==(const RowRange&, const RowRange&) = default;
};
/// Where a piece lies in its sequence.
struct SequencePiece {
  int64_t first;  // position of this rank's first row
  int64_t total;  // rows of all ranks
};
/// The place of this rank's piece of n rows; {0, n} if nothing is split. The first call in a scope sets the lengths, so
/// all ranks must make it. Throws ShapeError if this rank holds another number of rows in the scope's sequence.
SequencePiece sequence_piece(int64_t n);

/// Returns rows [begin, end) of the whole of x along dim, whichever ranks hold them. All ranks must call it; each may
/// ask for other rows, or for none. Any dtype; gradients of any order. On meta this and the functions below send their
/// lengths only.
Tensor sequence_rows(const Tensor& x, int64_t dim, RowRange rows);
/// Moves every row of the sequence one place later along dim; the first row is 0 (false).
Tensor sequence_shift(const Tensor& x, int64_t dim);
/// Σ x over ranks, in the order of ranks: the same bits on all ranks.
Tensor sequence_sum(const Tensor& x);
/// cumsum along dim over all ranks in their order. The length of dim may differ between ranks and need not be that of
/// the scope's pieces.
Tensor sequence_cumsum(const Tensor& x, int64_t dim, CumsumOptions options = {});
/// linear_scan over the whole sequence.
Tensor sequence_scan(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& log_decay = {},
                     const LinearScanOptions& options = {});
/// delta_scan().out over the whole sequence. Each rank sends its state and what it leaves of a state before it,
/// dk·(dk + dv) numbers a head, whatever the length.
Tensor sequence_delta_scan(const Tensor& q, const Tensor& k, const Tensor& erase, const Tensor& write,
                           const Tensor& log_decay = {}, const DeltaScanOptions& options = {});
/// This rank's share of the mean over all tokens: (Σ losses of this rank) / (tokens of all ranks). sequence_sum of the
/// share gives the mean. `counted` (bool, of the shape of losses) selects the tokens.
Tensor sequence_mean(const Tensor& losses, const Tensor& counted = {});

namespace detail {

/// How a sequence is split: rank r holds rows [starts[r], starts[r + 1]).
struct Sequence {
  Communicator communicator;
  std::vector<int64_t> starts = {};  // empty until the first piece is seen

  int rank() const { return communicator.rank(); }
  int size() const { return communicator.size(); }
  int64_t total() const { return starts.back(); }
  RowRange piece(int rank) const {
    return {starts[static_cast<std::size_t>(rank)], starts[static_cast<std::size_t>(rank) + 1]};
  }
};
/// this_sequence() with known lengths; n: rows of this rank's piece. All ranks must call it. Undefined outside a scope.
const Sequence& sequence_of(int64_t n);

/// The rows of dim that each rank holds and wants, by rank. The plan must be the same on all ranks, and `owned` must
/// cover the whole, in order.
struct RowPlan {
  std::vector<RowRange> owned, wanted;
};
/// Of `ranks` ranks, each of which holds owned(rank) and wants wanted(rank).
std::shared_ptr<const RowPlan> row_plan(int ranks, const auto& owned, const auto& wanted) {
  auto plan = std::make_shared<RowPlan>();
  for (int r = 0; r < ranks; ++r) plan->owned.push_back(owned(r)), plan->wanted.push_back(wanted(r));
  return plan;
}
/// Of ranks that hold their pieces of the sequence.
std::shared_ptr<const RowPlan> row_plan(const Sequence& s, const auto& wanted) {
  const auto piece = [&](int r) { return s.piece(r); };
  return row_plan(s.size(), piece, wanted);
}
/// Takes x, the rows that this rank owns, and returns the rows that it wants. Differentiable.
Tensor fetch_rows(const Tensor& x, int64_t dim, const Communicator& c, std::shared_ptr<const RowPlan> plan);
/// The adjoint of fetch_rows: g holds the rows that this rank wanted. Each owner adds up what the ranks return for its
/// rows, in the order of ranks. Differentiable.
Tensor return_rows(const Tensor& g, int64_t dim, const Communicator& c, std::shared_ptr<const RowPlan> plan);
/// Adds what return_rows gives to y, in the dtype of y, without history. True if any rank `records`.
bool add_returned_rows(Tensor& y, const Tensor& g, int64_t dim, const Communicator& c, const RowPlan& plan,
                       bool records = false);
/// x of the ranks [first, last), stacked in a new first dim: [last − first, ...x]. All ranks must give the same range.
Tensor of_ranks(const Tensor& x, int first, int last);
/// x of the ranks before this one, or after it if `reverse`, stacked as in of_ranks.
Tensor of_ranks_before(const Tensor& x, bool reverse = false);

/// Throws ValueError within a scope: `what` cannot be split over ranks, because of `why`.
void not_cut(const char* what, const char* why);

}  // namespace detail

}  // namespace sluice
