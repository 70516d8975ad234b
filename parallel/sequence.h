// One long sequence, cut over ranks. Each rank calls the same layer with its piece [batch, n_r, d] — rank 0 the first
// rows, rank 1 those that follow, as many as it likes — and gets its piece of the output:
//
//   SequenceScope scope(world());
//   Tensor y = model(piece, piece_of_the_mask);
//   backward(sequence_mean(loss_of_each_token(y)));      // gradients of parameters: shares, to be added up
//
// What crosses the cuts goes through the functions below; a layer written with them computes what it computes uncut:
//
//   sequence_piece      positions: where this piece starts, how long the whole is
//   sequence_shift      token shift: one row of the rank before
//   sequence_rows       any rows of the whole: borders, chunks
//   sequence_sum        Σ over ranks: mean pooling, counts, the sums of linear attention without order
//   sequence_cumsum     running sums, and
//   sequence_scan       linear_scan: what lies before as one state per rank, whatever the length (LASP-2, Sun et al. 2025)
//   sequence_attention  attention (sequence_attention.h)
//
// Outside of a scope, and with one rank, each is the plain function, bit for bit.
//
// A scope, not an argument: positions, masks and sums lie deep inside of layers, and every call between would have to hand
// a communicator on that it has no use for. A model written without cuts in mind runs cut by opening a scope around it.
//
// Gradients are those of the sum of all ranks' losses. A backward pass meets the same exchanges in reverse, so every rank
// runs it, inside the scope or after it (checkpoint() runs parts of the forward pass again: inside). Tensors that all
// ranks hold — parameters, the context of cross attention — get each rank's share: add them up over ranks, or train with
// DataParallel, whose backward() takes the mean over this rank's tokens and their number. For many sequences, each over some
// of the ranks, cut over a split() and average over all.
#pragma once

#include <sluice/ops/scan/linear_scan.h>
#include <sluice/ops/scan/scan.h>
#include <sluice/parallel/communicator.h>

#include <memory>
#include <vector>

namespace sluice {

namespace detail {
struct Sequence;
}

/// While it lives, what this thread gives to layers and their functions (not to plain ops) are pieces of sequences, cut over `communicator` in the order of its
/// ranks. The first piece sets the lengths, which need not be equal and may be 0; for sequences cut otherwise there is
/// another scope. Scopes nest: the innermost counts.
class SequenceScope {
 public:
  explicit SequenceScope(const Communicator& communicator);
  /// Nothing is cut while it lives: for a part that has its tokens to itself.
  SequenceScope();
  /// As the scope that detail::this_sequence() came from.
  explicit SequenceScope(std::shared_ptr<detail::Sequence> sequence);
  ~SequenceScope();
  SequenceScope(const SequenceScope&) = delete;
  SequenceScope& operator=(const SequenceScope&) = delete;

 private:
  std::shared_ptr<detail::Sequence> before_;
};

/// Whether this thread's sequences are cut.
bool in_sequence();

/// Rows [begin, end) of a whole sequence.
struct RowRange {
  int64_t begin = 0, end = 0;  // the first one, and one behind the last
  /// Number of rows.
  int64_t length() const { return end - begin; }
};
/// Where a piece lies in its sequence.
struct SequencePiece {
  int64_t first;  // position of this rank's first row
  int64_t total;  // rows of all ranks
};
/// Of a piece of n rows; {0, n} if nothing is cut. ShapeError when the scope's sequence is cut otherwise.
SequencePiece sequence_piece(int64_t n);

/// Rows [begin, end) of the whole of x along dim, wherever they lie; every rank asks for its own, also for none.
/// Gradients of any order; any dtype.
Tensor sequence_rows(const Tensor& x, int64_t dim, RowRange rows);
/// Every row one later along dim, 0 (false) the first.
Tensor sequence_shift(const Tensor& x, int64_t dim);
/// Σ over ranks, the same on all, in the order of ranks.
Tensor sequence_sum(const Tensor& x);
/// Of any entries in the order of the sequence, as many as each rank has.
Tensor sequence_cumsum(const Tensor& x, int64_t dim, CumsumOptions options = {});
/// As linear_scan, without chunks_only and decay_on_values.
Tensor sequence_scan(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& log_decay = {},
                     const LinearScanOptions& options = {});
/// This rank's share of the mean over all tokens, Σ losses / count, so that the shares add up to it; with `counted`
/// (bool, of the shape of losses) over those alone. To report the mean: sequence_sum of it.
Tensor sequence_mean(const Tensor& losses, const Tensor& counted = {});

namespace detail {

/// A sequence's cut: rank r holds rows [starts[r], starts[r + 1]).
struct Sequence {
  Communicator communicator;
  std::vector<int64_t> starts = {};  // empty until the first piece is seen

  int rank() const { return communicator.rank(); }
  int size() const { return communicator.size(); }
  int64_t total() const { return starts.back(); }
  RowRange piece(int rank) const { return {starts[static_cast<std::size_t>(rank)], starts[static_cast<std::size_t>(rank) + 1]}; }
};
/// This thread's; null outside of a scope.
const std::shared_ptr<Sequence>& this_sequence();
/// The same, its lengths known: all ranks call it, with n rows here. Undefined outside of a scope.
const Sequence& sequence_of(int64_t n);

/// Which rows of dim lie where, and who wants which: the same on all ranks. What is owned covers the whole, in order.
struct RowPlan {
  std::vector<RowRange> owned, wanted;
};
/// x, the rows this rank owns → the rows it wants. Differentiable.
Tensor fetch_rows(const Tensor& x, int64_t dim, const Communicator& c, std::shared_ptr<const RowPlan> plan);
/// The adjoint: g, the rows this rank wanted, are added up where they lie, in the order of ranks. Differentiable.
Tensor return_rows(const Tensor& g, int64_t dim, const Communicator& c, std::shared_ptr<const RowPlan> plan);
/// The same without history, added to y. True if any rank `records`.
bool add_returned_rows(Tensor& y, const Tensor& g, int64_t dim, const Communicator& c, const RowPlan& plan, bool records = false);
/// x of the ranks [first, last), stacked in front: [last − first, ...x]; every rank asks for its own.
Tensor of_ranks(const Tensor& x, int first, int last);
/// Those before this rank, or after it.
Tensor of_ranks_before(const Tensor& x, bool reverse = false);

/// ValueError within a scope: `what` cannot be cut, and why.
void not_cut(const char* what, const char* why);

}  // namespace detail

}  // namespace sluice
