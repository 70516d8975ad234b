#include <sluice/parallel/raw.h>

#include <sluice/ops/basic.h>
#include <sluice/parallel/collectives.h>

namespace sluice::detail {

namespace {

/// Bytes up to which each rank of an all_reduce sends its whole operand to all others: one round instead of two.
constexpr int64_t kSmall = 16 << 10;

/// y = the op over pieces, in the order of ranks; y may be one of them.
void reduce_tensors(const char* op, ReduceOp how, const std::vector<Tensor>& pieces, Tensor& y) {
  if (y.device() == cpu) {
    std::vector<const std::byte*> bytes;
    for (const Tensor& x : pieces) bytes.push_back(x.raw());
    return reduce_pieces(op, how, y.dtype(), bytes, y.raw(), y.numel());
  }
  if (y.dtype() == i64) {  // devices have no maximum of integers; such operands are small
    std::vector<Tensor> here;
    for (const Tensor& x : pieces) here.push_back(to(x, cpu));
    Tensor all = empty(y.shape(), {i64});
    reduce_tensors(op, how, here, all);
    return copy_elements(to(all, y.device()), y);
  }
  // The same sums as reduce_pieces: bf16 is added in f32 and rounded once.
  Tensor all = widened(pieces[0]);
  for (std::size_t r = 1; r < pieces.size(); ++r) {
    const Tensor x = widened(pieces[r]);
    all = how == ReduceOp::sum ? all + x : how == ReduceOp::max ? maximum(all, x) : minimum(all, x);
  }
  copy_elements(to(all, y.dtype()), y);
}

}  // namespace

void reduce_scatter_raw(Group& group, const char* kind, ReduceOp op, const std::vector<Tensor>& parts,
                        const Tensor& y) {
  const int n = group.size(), me = group.rank();
  const Tensor& mine = parts[static_cast<std::size_t>(me)];
  const Tensor received = empty({n - 1, mine.numel()}, {y.dtype(), y.device()}, kind);
  std::vector<Tensor> pieces;
  for (int r = 0; r < n; ++r)
    pieces.push_back(r == me ? reshape(mine, {mine.numel()}) : select(received, 0, r < me ? r : r - 1));
  group.exchange_all(
      kind, [&](int r) { return outgoing(r, parts[static_cast<std::size_t>(r)]); },
      [&](int r) { return incoming(r, pieces[static_cast<std::size_t>(r)]); }, y.device());
  if (mine.numel() == 0) return;
  Tensor result = reshape(y, {y.numel()});
  reduce_tensors(kind, op, pieces, result);
}

void all_reduce_raw(Group& group, Tensor& x, ReduceOp op) {
  const int64_t bytes = x.numel() * size_of(x.dtype());
  if (bytes == 0) return;
  // Each rank reduces one piece of the values and sends the result to all; every rank reduces all of a small operand.
  const bool whole = bytes <= kSmall;
  const Tensor flat = reshape(x, {x.numel()});
  const std::vector<Tensor> parts = whole ? std::vector<Tensor>(static_cast<std::size_t>(group.size()), flat)
                                          : split(flat, even_pieces(x.numel(), group.size()));
  const Tensor& mine = parts[static_cast<std::size_t>(group.rank())];
  reduce_scatter_raw(group, "all_reduce", op, parts, mine);
  if (!whole) all_gather_raw(group, "all_reduce", mine, parts);
}

void broadcast_raw(Group& group, Tensor& x, int root) {
  // A binomial tree: in each round the ranks that have x send it on; `me` and `have` count from root.
  const int n = group.size(), me = (group.rank() - root + n) % n;
  if (x.numel() == 0) return;
  const auto rank = [&](int i) { return (i + root) % n; };
  for (int have = 1; have < n; have *= 2) {
    if (me < have && me + have < n) group.exchange("broadcast", {outgoing(rank(me + have), x)}, {}, x.device());
    else if (me >= have && me < 2 * have) group.exchange("broadcast", {}, {incoming(rank(me - have), x)}, x.device());
  }
}

void all_gather_raw(Group& group, const char* kind, const Tensor& x, const std::vector<Tensor>& pieces) {
  group.exchange_all(
      kind, [&](int r) { return outgoing(r, x); },
      [&](int r) { return incoming(r, pieces[static_cast<std::size_t>(r)]); }, x.device());
}

void shift_raw(Group& group, const Tensor& x, int to, Tensor& y, int from) {
  std::vector<Outgoing> sends;
  std::vector<Incoming> receives;
  if (to >= 0 && x.numel() > 0) sends.push_back(outgoing(to, x));
  if (from >= 0 && y.numel() > 0) receives.push_back(incoming(from, y));
  group.exchange("ring_shift", std::move(sends), std::move(receives), x.device());
}

}  // namespace sluice::detail
