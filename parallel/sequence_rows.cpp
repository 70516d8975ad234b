// The one exchange on which all functions of a split sequence are built: rows go from the ranks that own them to the
// ranks that want them, and gradients go back.
#include <sluice/core/node.h>
#include <sluice/ops/basic.h>
#include <sluice/parallel/raw.h>
#include <sluice/parallel/sequence.h>

#include <algorithm>
#include <string>

namespace sluice::detail {

namespace {

/// The rows of `a` that are also those of rank r in `ranges`.
RowRange common(RowRange a, const std::vector<RowRange>& ranges, int r) {
  const RowRange b = ranges[static_cast<std::size_t>(r)];
  const int64_t begin = std::max(a.begin, b.begin);
  return {begin, std::max(begin, std::min(a.end, b.end))};
}

/// A hash of a plan.
uint64_t hash_of(const RowPlan& plan) {
  std::string text;
  for (const std::vector<RowRange>* ranges : {&plan.owned, &plan.wanted})
    for (const RowRange r : *ranges) text += str(r.begin, '-', r.end, ' ');
  return detail::hash_of(text);
}

/// Sends rows goes(r) of `from`, whose first row is from_first, to each rank r, and receives rows comes(r) from it.
/// Calls f(comes(r), the received rows) in the order of ranks. All ranks must have the same plan. True if any rank
/// `records`. On meta there are no rows to send.
template <class Out, class In, class F>
bool exchange_rows(bool records, const Tensor& from, int64_t dim, const Communicator& c, const RowPlan& plan,
                   int64_t from_first, const Out& goes, const In& comes, F f) {
  if (from.device() == meta) return records;
  const int ranks = c.size(), self = c.rank();
  Group& group = c.group();
  std::vector<Tensor> sent, received(static_cast<std::size_t>(ranks));
  bool anyone = false;
  const ObservedTraffic traffic("sequence_rows", group);
  group.call([&] {
    const std::string text = str("sequence_rows(dim ", dim, ", plan ", hash_of(plan), ") ",
                                 signature(from.dtype(), from.shape(), static_cast<int>(dim)));
    for (const PeerCall& told : group.agree({"sequence_rows", on_device(text, from.device()), 0, records}))
      anyone = anyone || told.flags != 0;
    const Device place = meeting_place(group, from.device());
    std::vector<Outgoing> sends;
    std::vector<Incoming> receives;
    for (int r = 0; r < ranks; ++r) {
      const RowRange out = goes(r), in = comes(r);
      const auto rows = [&] { return narrow(from, dim, out.begin - from_first, out.length()); };
      if (r == self) {
        if (out.length() > 0) received[static_cast<std::size_t>(r)] = rows();
        continue;
      }
      if (out.length() > 0) {
        sent.push_back(to(contiguous(rows()), place));
        sends.push_back(outgoing(r, sent.back()));
      }
      if (in.length() == 0) continue;
      Tensor& x = received[static_cast<std::size_t>(r)] =
          empty(resized(from.shape(), dim, in.length()), {from.dtype(), place});
      receives.push_back(incoming(r, x));
    }
    group.exchange("sequence_rows", std::move(sends), std::move(receives), place);
  });
  for (int r = 0; r < ranks; ++r)
    if (const Tensor& x = received[static_cast<std::size_t>(r)]; x.defined()) f(comes(r), x);
  return anyone;
}

}  // namespace

Tensor fetch_rows(const Tensor& x, int64_t dim, const Communicator& c, std::shared_ptr<const RowPlan> plan) {
  dim = wrap_dim("sequence_rows", dim, x.rank());
  const auto self = static_cast<std::size_t>(c.rank());
  const RowRange mine = plan->owned[self], want = plan->wanted[self];
  if (x.dim(dim) != mine.length())
    fail("sequence_rows: x=", x, " has ", x.dim(dim), " rows in dim ", dim, "; this rank holds ", mine.length());
  Tensor y = empty(resized(x.shape(), dim, want.length()), x.options());
  bool anyone = grad_enabled() && x.requires_grad();
  {
    NoGrad guard;
    anyone = exchange_rows(
        anyone, x.detach(), dim, c, *plan, mine.begin, [&](int r) { return common(mine, plan->wanted, r); },
        [&](int r) { return common(want, plan->owned, r); },
        [&](RowRange rows, const Tensor& part) {
          Tensor place = narrow(y, dim, rows.begin - want.begin, rows.length());
          copy_elements(part, place);
        });
  }
  return recorded("sequence_rows", std::move(y), x, anyone,
                  [dim, c, plan](const Tensor& given) { return return_rows(given, dim, c, plan); });
}

bool add_returned_rows(Tensor& y, const Tensor& g, int64_t dim, const Communicator& c, const RowPlan& plan,
                       bool records) {
  NoGrad guard;
  const auto self = static_cast<std::size_t>(c.rank());
  const RowRange mine = plan.owned[self], want = plan.wanted[self];
  return exchange_rows(
      records, g.detach(), dim, c, plan, want.begin, [&](int r) { return common(want, plan.owned, r); },
      [&](int r) { return common(mine, plan.wanted, r); },
      [&](RowRange rows, const Tensor& part) {
        Tensor place = narrow(y, dim, rows.begin - mine.begin, rows.length());
        add_(place, to(to(part, g.device()), place.dtype()));
      });
}

Tensor return_rows(const Tensor& g, int64_t dim, const Communicator& c, std::shared_ptr<const RowPlan> plan) {
  dim = wrap_dim("sequence_rows", dim, g.rank());
  const RowRange mine = plan->owned[static_cast<std::size_t>(c.rank())];
  Tensor y = zeros(resized(g.shape(), dim, mine.length()), widened(g.options()));  // rounded once, as in all_reduce
  const bool anyone = add_returned_rows(y, g, dim, c, *plan, grad_enabled() && g.requires_grad());
  return recorded("sequence_rows", to(y, g.dtype()), g, anyone,
                  [dim, c, plan](const Tensor& given) { return fetch_rows(given, dim, c, plan); });
}

}  // namespace sluice::detail
