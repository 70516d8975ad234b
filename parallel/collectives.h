// Collectives of a group of ranks, as ops with gradients.
//
// Gradients are those of the sum, over all ranks, of the losses on which the ranks call backward(). The adjoint of
// all_reduce is all_reduce, of all_gather reduce_scatter, of broadcast reduce, of a shift the shift back. Each adjoint
// is a collective itself, so gradients of any order work. If the operand of one rank has a history, the result has one
// on every rank; every rank must then run the same backward pass, and its loss must depend on the result. NoGrad must
// live on all ranks or on none.
//
// Values are f32, f64, bf16 or i64, of any layout. Results are contiguous and on the device of the operand. Tensors of
// a GPU go through host memory unless the devices are linked (Communicator::device_link). On meta nothing is sent, and
// all pieces are assumed to have the length of this rank's piece. Sums are taken in the order of ranks, so the same
// ranks give the same bits. bf16 is added in f32 and rounded once. With one rank the operand itself is returned, of
// max and min without history; exclusive_scan, and a shift that is not cyclic, give zeros.
//
// If the calls of the ranks differ in op, options, dtype or shape, all ranks throw a CommunicationError that names the
// ranks that differ. Before a rank has sent anything, it throws DTypeError for other dtypes, ShapeError for a scalar
// that has no `dim`, ValueError for a `root` that is no rank, and DeviceError while it records a graph.
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

/// y = Σ x over the ranks (or the max or min), on all ranks. max and min have no gradient.
Tensor all_reduce(const Tensor& x, const Communicator& group, ReduceOp op = ReduceOp::sum);
/// y = Σ x on rank `root`, zeros on the others.
Tensor reduce(const Tensor& x, int root, const Communicator& group);
/// y = x of rank `root`.
Tensor broadcast(const Tensor& x, int root, const Communicator& group);
/// y = cat(x of rank 0, x of rank 1, …) along dim. The lengths along dim may differ between ranks.
Tensor all_gather(const Tensor& x, int64_t dim, const Communicator& group);
/// Returns this rank's piece along dim of Σ x. `lengths` has one entry per rank; if it is empty, even_pieces() gives
/// the lengths. ShapeError unless they add up to the length of dim, ValueError for a negative one.
Tensor reduce_scatter(const Tensor& x, int64_t dim, const Communicator& group,
                      const std::vector<int64_t>& lengths = {});

struct ShiftOptions {
  bool cyclic = true;  // false: a rank to which no rank sends gets zeros of its own shape
  int64_t dim = 0;     // the lengths along dim may differ between ranks
};
/// y = x of rank() − by: every rank sends x to rank() + by.
Tensor ring_shift(const Tensor& x, int by, const Communicator& group, ShiftOptions options = {});

/// y = Σ x over the ranks before this one; zeros on rank 0.
Tensor exclusive_scan(const Tensor& x, const Communicator& group);
/// Returns the state S with which this rank's piece of a recurrence begins. S is 0 on rank 0; the piece of each rank
/// maps S to decay ⊙ S + state. The shapes must be the same on all ranks. ShapeError unless decay broadcasts to state,
/// DTypeError unless their dtypes are equal.
Tensor exclusive_scan(const Tensor& decay, const Tensor& state, const Communicator& group);

/// Returns the text of rank `root`.
std::string broadcast_text(const std::string& text, int root, const Communicator& group);
/// Runs f on rank 0; all ranks wait for it. If f throws, all ranks throw an error with its text. The other ranks keep
/// the types ShapeError, DTypeError, IOError, ValueError and MemoryError; any other becomes a CommunicationError.
void on_rank_0(const Communicator& group, const std::function<void()>& f);

/// Returns the lengths of `ranks` pieces of n things: ⌊n/ranks⌋ each, and one more in the first n mod ranks pieces.
/// ValueError for n < 0 and for ranks < 1.
std::vector<int64_t> even_pieces(int64_t n, int ranks);

// -- in the background ------------------------------------------------------------------------------------------------

/// A collective under way. Callers must not touch its tensors until wait() has returned.
class Pending {
 public:
  Pending() = default;
  bool done() const;  // wait() would return at once
  /// Returns when the collective is done; throws its error. Without a collective under way it does nothing.
  void wait();

 private:
  friend Pending start_all_reduce(Tensor&, const Communicator&, ReduceOp);
  friend Pending start_all_gather(const Tensor&, Tensor&, const Communicator&);
  std::shared_ptr<detail::Job> job_;
  Communicator group_;
};

/// x = Σ x over the ranks (or the max or min), in place. Calls run on a background thread in the order in which they
/// were started. ShapeError for an x that is not contiguous, AutogradError for one with history, DeviceError on meta.
Pending start_all_reduce(Tensor& x, const Communicator& group, ReduceOp op = ReduceOp::sum);
/// y = cat(x of rank 0, x of rank 1, …) along dim 0. Throws as start_all_reduce() does, and ShapeError for a y that
/// cannot hold the rows; if the number of rows is wrong, wait() throws it.
Pending start_all_gather(const Tensor& x, Tensor& y, const Communicator& group);

}  // namespace sluice
