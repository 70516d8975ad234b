// Attention over chosen blocks of keys on rung 4; for the slots in bf16.cu.
#pragma once

#include <sluice/cuda/attention/wgmma_backward.cuh>
#include <sluice/ops/attention/attention_kernels.h>

#include <optional>

namespace sluice::cuda {

/// The bits of a call: a slab for each batch and group of heads that has its own.
struct BlockExtents {
  int64_t batches, groups, words, rows, shift;  // batches: 1 if all have the same blocks
  int64_t bits() const { return batches * groups * words * rows; }
  explicit BlockExtents(const sluice::detail::AttentionCall& c);
};

/// The bits of a call, the lists of one of its kernels, and what is known of its operands. `call` must outlive it.
class ChosenTiles {
 public:
  ChosenTiles(const sluice::detail::AttentionCall& call, Window span);
  /// Lists for blocks of 128 queries and tiles of `cols` keys, or with by_keys for blocks of 128 keys and tiles of
  /// `cols` queries. They are valid until the next.
  template <bool by_keys, int cols> ChosenBlocks lists();
  /// Looks for NaN and infinities in what the kernel will multiply with weights: these operands of keys, or of queries.
  template <int D> void look(bool of_keys, std::initializer_list<HeadRows<const BFloat16>> operands);

 private:
  const sluice::detail::AttentionCall& call_;
  const BlockExtents extents_;
  const Scratch<uint32_t> bits_;
  std::optional<Scratch<int>> lists_;
  const Scratch<int> not_finite_;
  ChosenBlocks mask_;
};

/// True if rung 4 serves the call's mask.blocks, forward and backward; the rest of the call must be one for the rungs.
bool serves_chosen_blocks(const sluice::detail::AttentionCall& call);

/// Runs a call that has mask.blocks. `span`: causality and window; the operands have rows of `width`, 64 or 128.
template <class Out>
void run_attention_chosen_blocks(const sluice::detail::AttentionCall& call, int64_t width, Window span,
                                 const AttentionProblem<BFloat16, Out>& p, const HeadRows<const BFloat16>& q,
                                 const HeadRows<const BFloat16>& k, const HeadRows<const BFloat16>& v);
void run_attention_chosen_blocks_backward(const sluice::detail::AttentionCall& call, int64_t width, Window span,
                                          const AttentionBackwardProblem& p, const BackwardRows& rows);

}  // namespace sluice::cuda
