// What a group of ranks computes together, as ops with gradients.
//
// Gradients are those of the sum, over all ranks, of what each rank calls backward() on: the whole job is one function. So
// the adjoint of all_reduce is all_reduce, of all_gather reduce_scatter, of broadcast reduce, of a shift the shift back — each
// a collective in turn, for any order of gradient. A result has a history on every rank as soon as the operand of one rank
// has; every rank must then run the same backward pass, and its loss must depend on the result.
//
// Values are f32, f64, bf16 or i64, of any layout. Results are contiguous and on the device of the operand; other devices than
// the CPU go by way of its memory, and on meta nothing is sent: pieces are then taken to be of equal length. Sums are taken by
// rank, so that the same ranks give the same bits. With one rank the operand itself is returned.
//
// Ranks whose calls differ — op, options, dtype, shape — all fail with a CommunicationError that names who differs.
#pragma once

#include <sluice/core/tensor.h>
#include <sluice/parallel/communicator.h>
#include <sluice/parallel/reduce.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace sluice {

namespace detail {
struct Job;
}

/// y = Σ x over the ranks, on all of them; max and min have no gradient.
Tensor all_reduce(const Tensor& x, const Communicator& group, ReduceOp op = ReduceOp::sum);
/// y = Σ x on rank `root`, zeros on the others.
Tensor reduce(const Tensor& x, int root, const Communicator& group);
/// y = x of rank `root`.
Tensor broadcast(const Tensor& x, int root, const Communicator& group);
/// y = cat(x of rank 0, x of rank 1, …) along dim. Pieces may differ in length along it.
Tensor all_gather(const Tensor& x, int64_t dim, const Communicator& group);
/// This rank's piece along dim of Σ x. `lengths`, one for each rank, must add up to the dim; without them pieces are as equal
/// as they can be (even_pieces).
Tensor reduce_scatter(const Tensor& x, int64_t dim, const Communicator& group, const std::vector<int64_t>& lengths = {});

struct ShiftOptions {
  bool cyclic = true;  // else what would come from beyond the ends is zeros of this rank's own shape
  int64_t dim = 0;     // along which pieces may differ in length
};
/// y = x of rank() − by: every rank's x goes `by` ranks on.
Tensor ring_shift(const Tensor& x, int by, const Communicator& group, ShiftOptions options = {});

/// y = Σ x over the ranks before this one; zeros on rank 0.
Tensor exclusive_scan(const Tensor& x, const Communicator& group);
/// The state that this rank's piece of a recurrence begins with, S = 0 before rank 0, where the piece of each rank makes
/// decay ⊙ S + state of S. decay broadcasts to state, of one shape on all ranks.
Tensor exclusive_scan(const Tensor& decay, const Tensor& state, const Communicator& group);

/// The text of rank `root`.
std::string broadcast_text(const std::string& text, int root, const Communicator& group);
/// Runs f on rank 0 and waits for it; what it throws is thrown on all ranks, as an error of the same type with its text.
void on_rank_0(const Communicator& group, const std::function<void()>& f);

/// n things in `ranks` pieces, the first ones longer by one.
std::vector<int64_t> even_pieces(int64_t n, int ranks);

// -- in the background -------------------------------------------------------------------------------------------------

/// A collective under way. What it works on must be left alone until wait().
class Pending {
 public:
  Pending() = default;
  bool done() const;  // wait() would return at once
  /// Returns when it is done; throws what went wrong. Without one under way it does nothing.
  void wait();

 private:
  friend Pending start_all_reduce(Tensor&, const Communicator&, ReduceOp);
  friend Pending start_all_gather(const Tensor&, Tensor&, const Communicator&);
  std::shared_ptr<detail::Job> job_;
  Communicator group_;
};

/// x = Σ x over the ranks, in place: contiguous, on the CPU, without history. Calls run in the order in which they were
/// started, on a thread of their own.
Pending start_all_reduce(Tensor& x, const Communicator& group, ReduceOp op = ReduceOp::sum);
/// y = cat(x of rank 0, x of rank 1, …) along dim 0; both contiguous, on the CPU, without history.
Pending start_all_gather(const Tensor& x, Tensor& y, const Communicator& group);

}  // namespace sluice
