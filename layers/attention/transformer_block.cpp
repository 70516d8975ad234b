#include <sluice/layers/attention/transformer_block.h>

#include <sluice/ops/elementwise/dropout.h>

namespace sluice::detail {

void check_block(const TransformerBlockOptions& o, const BranchFacts& attention, const BranchFacts& feed) {
  check_options("transformer_block", o);
  if (attention.dim != feed.dim)
    fail<ValueError>("transformer_block: attention and feed must have one width — got dim=", attention.dim,
                     " and dim=", feed.dim);
  if (attention.dtype != feed.dtype)
    fail<ValueError>("transformer_block: attention and feed must have one dtype — got ", attention.dtype, " and ",
                     feed.dtype);
  if (attention.adds_input || feed.adds_input)
    fail<ValueError>("transformer_block: ", attention.adds_input ? "the attention" : "the feed",
                     " adds its input by itself, as the block does; need one without (residual = false), or use it in "
                     "place of a block");
}

Tensor residual_sum(const Tensor& x, const Tensor& f, double scale, double p, Rng* rng) {
  if (f.shape() != x.shape()) fail("transformer_block: a branch made ", f, " of x=", x, "; need the same shape");
  const Tensor branch = rng && p > 0 ? dropout(f, p, *rng) : f;
  return scale == 1 ? x + branch : x * scale + branch;
}

}  // namespace sluice::detail
