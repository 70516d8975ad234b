#include <sluice/layers/attention/block_compression.h>

#include <sluice/ops/elementwise/activation.h>
#include <sluice/ops/basic.h>

namespace sluice {

BlockCompression::BlockCompression(BlockCompressionOptions given, Rng& rng) : options(given) {
  BlockCompressionOptions& o = options;
  check_options("block_compression", o);
  if (o.kind == Compression::mean) {
    if (o.block % o.stride != 0)
      fail<ValueError>("block_compression: stride must divide block — got block=", o.block, ", stride=", o.stride);
    return;
  }
  const int64_t all = checked_mul("block_compression", o.block, o.width);
  if (o.hidden == 0) o.hidden = all;
  const auto drawn = [&](int64_t from, int64_t to) { return init_weights(o.heads, from, to, o.init, rng, o.dtype); };
  position = init_normal({o.heads, o.block, o.width}, 0.02, rng, o.dtype);
  in = drawn(all, o.kind == Compression::mlp ? o.hidden : o.width);
  if (o.kind == Compression::mlp) out = drawn(o.hidden, o.width);
}

BlockRows BlockCompression::operator()(const Tensor& x, const Tensor& keys) const {
  ModuleScope scope(this, type);
  const BlockCompressionOptions& o = options;
  if (o.kind == Compression::mean) return block_means(x, o.block, o.stride, keys);
  if (x.rank() != 4 || x.dim(1) != o.heads || x.dim(3) != o.width)
    fail("block_compression: got x=", x, "; need [batch, ", o.heads, ", n, ", o.width, "]");
  const int64_t blocks = x.dim(2) < o.block ? 0 : (x.dim(2) - o.block) / o.stride + 1;
  if (blocks == 0) return {narrow(x, 2, 0, 0), keys.defined() ? narrow(keys, 1, 0, 0) : Tensor()};
  Tensor rows = transpose(unfold(x, 2, o.block, o.stride), -2, -1) + unsqueeze(position, 1);
  BlockRows y;
  if (keys.defined()) {
    const Tensor real = unfold(keys, 1, o.block, o.stride);  // [batch or 1, blocks, block]
    rows = masked_fill(rows, logical_not(unsqueeze(unsqueeze(real, 1), -1)), 0);
    y.real = any(real, {-1});
  }
  y.rows = matmul(flatten(rows, -2, -1), in);
  if (out.defined()) y.rows = matmul(relu(y.rows), out);
  return y;
}

}  // namespace sluice
