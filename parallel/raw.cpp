#include <sluice/parallel/raw.h>

#include <sluice/parallel/collectives.h>

#include <algorithm>
#include <cstring>

namespace sluice::detail {

namespace {

/// Up to this size each rank sends all it has to all others: one round instead of two.
constexpr int64_t kSmall = 16 << 10;

std::size_t bytes_of(const Tensor& x) { return static_cast<std::size_t>(x.numel() * size_of(x.dtype())); }

}  // namespace

void all_reduce_raw(Group& group, Tensor& x, ReduceOp op) {
  const int n = group.size(), me = group.rank();
  const int64_t width = size_of(x.dtype()), bytes = x.numel() * width;
  if (bytes == 0) return;
  // Each rank reduces one piece of the values and sends the result to all; a small operand it reduces whole.
  const bool whole = bytes <= kSmall;
  std::vector<int64_t> lengths = whole ? std::vector<int64_t>(static_cast<std::size_t>(n), x.numel()) : even_pieces(x.numel(), n);
  std::vector<int64_t> starts(lengths.size(), 0);
  if (!whole)
    for (std::size_t r = 1; r < starts.size(); ++r) starts[r] = starts[r - 1] + lengths[r - 1];
  const auto part = [&](int r) { return x.raw() + starts[static_cast<std::size_t>(r)] * width; };
  const auto size = [&](int r) { return static_cast<std::size_t>(lengths[static_cast<std::size_t>(r)] * width); };

  const Tensor received = empty({(n - 1) * lengths[static_cast<std::size_t>(me)]}, {x.dtype()}, "all_reduce");
  std::vector<const std::byte*> pieces;
  std::vector<Outgoing> sends;
  std::vector<Incoming> receives;
  std::byte* to = received.raw();
  for (int r = 0; r < n; ++r) {
    pieces.push_back(r == me ? part(me) : to);
    if (r == me) continue;
    sends.push_back({r, part(r), size(r)});
    receives.push_back({r, to, size(me)});
    to += size(me);
  }
  group.exchange("all_reduce", sends, receives);
  reduce_pieces("all_reduce", op, x.dtype(), pieces, part(me), lengths[static_cast<std::size_t>(me)]);
  if (whole) return;
  sends.clear(), receives.clear();
  for (int r = 0; r < n; ++r) {
    if (r == me) continue;
    sends.push_back({r, part(me), size(me)});
    receives.push_back({r, part(r), size(r)});
  }
  group.exchange("all_reduce", std::move(sends), std::move(receives));
}

void broadcast_raw(Group& group, Tensor& x, int root) {
  // A binomial tree: in each round those who have it send it on.
  const int n = group.size(), me = (group.rank() - root + n) % n;
  const std::size_t bytes = bytes_of(x);
  if (bytes == 0) return;
  const auto rank = [&](int i) { return (i + root) % n; };
  for (int have = 1; have < n; have *= 2) {
    if (me < have && me + have < n) group.exchange("broadcast", {{rank(me + have), x.raw(), bytes}}, {});
    else if (me >= have && me < 2 * have) group.exchange("broadcast", {}, {{rank(me - have), x.raw(), bytes}});
  }
}

void all_gather_raw(Group& group, const Tensor& x, std::vector<Tensor>& pieces) {
  std::vector<Outgoing> sends;
  std::vector<Incoming> receives;
  for (int r = 0; r < group.size(); ++r) {
    if (r == group.rank()) continue;
    const Tensor& theirs = pieces[static_cast<std::size_t>(r)];
    if (x.numel() > 0) sends.push_back({r, x.raw(), bytes_of(x)});
    if (theirs.numel() > 0) receives.push_back({r, theirs.raw(), bytes_of(theirs)});
  }
  group.exchange("all_gather", std::move(sends), std::move(receives));
}

void reduce_scatter_raw(Group& group, const char* kind, const std::vector<Tensor>& parts, Tensor& y) {
  const int n = group.size(), me = group.rank();
  const Tensor& mine = parts[static_cast<std::size_t>(me)];
  const Tensor received = empty({(n - 1) * mine.numel()}, {y.dtype()}, kind);
  std::vector<const std::byte*> pieces;
  std::vector<Outgoing> sends;
  std::vector<Incoming> receives;
  std::byte* to = received.raw();
  for (int r = 0; r < n; ++r) {
    const Tensor& theirs = parts[static_cast<std::size_t>(r)];
    pieces.push_back(r == me ? mine.raw() : to);
    if (r == me) continue;
    if (theirs.numel() > 0) sends.push_back({r, theirs.raw(), bytes_of(theirs)});
    if (mine.numel() > 0) receives.push_back({r, to, bytes_of(mine)});
    to += bytes_of(mine);
  }
  group.exchange(kind, std::move(sends), std::move(receives));
  reduce_pieces(kind, ReduceOp::sum, y.dtype(), pieces, y.raw(), mine.numel());
}

void shift_raw(Group& group, const Tensor& x, int to, Tensor& y, int from) {
  std::vector<Outgoing> sends;
  std::vector<Incoming> receives;
  if (to >= 0 && x.numel() > 0) sends.push_back({to, x.raw(), bytes_of(x)});
  if (from >= 0 && y.numel() > 0) receives.push_back({from, y.raw(), bytes_of(y)});
  group.exchange("ring_shift", std::move(sends), std::move(receives));
}

}  // namespace sluice::detail
