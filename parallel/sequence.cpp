#include <sluice/parallel/sequence.h>

#include <sluice/core/node.h>
#include <sluice/core/operands.h>
#include <sluice/ops/attention/heads.h>
#include <sluice/ops/basic.h>
#include <sluice/ops/elementwise/formulas_of_layers.h>
#include <sluice/ops/elementwise/map.h>
#include <sluice/parallel/group.h>

namespace sluice {

SequenceScope::SequenceScope(std::shared_ptr<detail::Sequence> sequence)
    : Restored(detail::this_sequence(), std::move(sequence)) {}
SequenceScope::SequenceScope() : SequenceScope(nullptr) {}
SequenceScope::SequenceScope(const Communicator& c)
    : SequenceScope(c.size() > 1 ? std::make_shared<detail::Sequence>(detail::Sequence{c}) : nullptr) {}

bool in_sequence() { return detail::this_sequence() != nullptr; }

namespace detail {

const Sequence& sequence_of(int64_t n) {
  Sequence& s = *this_sequence();
  const auto self = static_cast<std::size_t>(s.rank());
  if (s.starts.empty()) {
    Group& group = s.communicator.group();
    std::vector<PeerCall> told;
    group.call([&] { told = group.agree({.op = "sequence", .text = "its lengths", .length = n}); });
    std::vector<int64_t> starts{0};
    for (const PeerCall& t : told) starts.push_back(checked_add("sequence", starts.back(), t.length));
    s.starts = std::move(starts);  // all or nothing: what is refused is asked for again
  }
  if (s.starts[self + 1] - s.starts[self] != n)
    fail("sequence: a piece of ", n, " rows in the scope of a sequence of which this rank holds ",
         s.starts[self + 1] - s.starts[self], "; need a SequenceScope for each way of cutting");
  return s;
}

/// The tensors x of the ranks in wanted(r), stacked, on each rank r.
static Tensor of_some_ranks(const Tensor& x, const auto& wanted) {
  const Communicator& c = this_sequence()->communicator;
  const auto own = [](int r) { return RowRange{r, r + 1}; };
  return fetch_rows(unsqueeze(x, 0), 0, c, row_plan(c.size(), own, wanted));
}

Tensor of_ranks(const Tensor& x, int first, int last) {
  return of_some_ranks(x, [=](int) { return RowRange{first, last}; });
}

Tensor of_ranks_before(const Tensor& x, bool reverse) {
  return of_some_ranks(x, [=, all = this_sequence()->size()](int r) {
    return reverse ? RowRange{r + 1, all} : RowRange{0, r};
  });
}

void not_cut(const char* what, const char* why) {
  if (in_sequence()) fail<ValueError>(what, ": cannot be cut over ranks (SequenceScope): ", why);
}

}  // namespace detail

SequencePiece sequence_piece(int64_t n) {
  if (!in_sequence()) return {0, n};
  const detail::Sequence& s = detail::sequence_of(n);
  return {s.piece(s.rank()).begin, s.total()};
}

Tensor sequence_rows(const Tensor& x, int64_t dim, RowRange rows) {
  detail::check_defined("sequence_rows", x);
  if (!in_sequence()) return narrow(x, dim, rows.begin, rows.length());
  const detail::Sequence& s = detail::sequence_of(x.dim(dim));
  if (rows.begin < 0 || rows.end < rows.begin || rows.end > s.total())
    fail("sequence_rows: rows ", rows.begin, " to ", rows.end, " of a sequence of ", s.total());
  std::vector<detail::PeerCall> told;  // each rank's rows.begin and rows.end, as length and flags
  detail::Group& group = s.communicator.group();
  group.call([&] {
    told = group.agree({.op = "sequence_rows", .text = "sequence_rows", .length = rows.begin, .flags = rows.end});
  });
  const auto wanted = [&](int r) {
    const detail::PeerCall& t = told[static_cast<std::size_t>(r)];
    return RowRange{t.length, t.flags};
  };
  return detail::fetch_rows(x, dim, s.communicator, detail::row_plan(s, wanted));
}

Tensor sequence_shift(const Tensor& x, int64_t dim) {
  detail::check_defined("sequence_shift", x);
  const int64_t n = x.dim(dim);
  if (!in_sequence()) return n == 0 ? x : pad(narrow(x, dim, 0, n - 1), dim, 1, 0);
  const detail::Sequence& s = detail::sequence_of(n);
  const auto one_before = [&](int r) {
    const RowRange rows = s.piece(r);
    const int64_t begin = std::max<int64_t>(0, rows.begin - 1);
    return RowRange{begin, rows.length() == 0 ? begin : std::max<int64_t>(0, rows.end - 1)};
  };
  const Tensor before = detail::fetch_rows(x, dim, s.communicator, detail::row_plan(s, one_before));
  return before.dim(dim) < n ? pad(before, dim, 1, 0) : before;  // the first row of the whole
}

Tensor sequence_sum(const Tensor& x) {
  detail::check_defined("sequence_sum", x);
  return in_sequence() ? to(sum(detail::of_ranks(x, 0, detail::this_sequence()->size()), {0}), x.dtype()) : x;
}

Tensor sequence_cumsum(const Tensor& x, int64_t dim, CumsumOptions o) {
  detail::check_defined("sequence_cumsum", x);
  if (in_sequence() && x.dtype() == bf16)  // 256 + 1 would be 256
    return to(sequence_cumsum(detail::widened(x), dim, o), bf16);
  const Tensor here = cumsum(x, dim, o);
  if (!in_sequence()) return here;
  return here + to(sum(detail::of_ranks_before(sum(x, {dim}, keep), o.reverse), {0}), here.dtype());
}

// S_t = e^{G_t} ∘ S_before + (the state of the piece alone), with S_before = Σ_s e^{decay of the pieces between} ∘ S_s
// over the earlier ranks s. A rank sends only its state and the decay of its whole piece. In reverse, s runs over the
// later ranks. A decay on values is one of the rows of Sᵀ.
Tensor sequence_scan(const Tensor& q_in, const Tensor& k_in, const Tensor& v, const Tensor& log_decay,
                     const LinearScanOptions& o) {
  detail::check_defined("sequence_scan", {{"q", q_in}, {"k", k_in}, {"v", v}});
  if (!in_sequence()) return linear_scan(q_in, k_in, v, log_decay, o);
  if (v.dtype() == bf16)  // else the states and the decays of whole pieces would be rounded
    return to(
        sequence_scan(detail::widened(q_in), detail::widened(k_in), detail::widened(v), detail::widened(log_decay), o),
        bf16);
  const Tensor here = linear_scan(q_in, k_in, v, log_decay, o);
  const Tensor q = detail::spread_heads(q_in, v.dim(1)), k = detail::spread_heads(k_in, v.dim(1));
  if (!log_decay.defined()) {
    const Tensor state = matmul(transpose(k, -2, -1), v);
    return here + matmul(q, sum(detail::of_ranks_before(state, o.reverse), {0}));
  }
  const bool by_channel = log_decay.rank() == 4, on_values = by_channel && o.decay_on_values;
  const Tensor &rows = on_values ? v : k, &columns = on_values ? k : v;  // the state here is rowsᵀ·columns
  const int64_t m = rows.dim(3), e = columns.dim(3);
  const Tensor g =
      expand(by_channel ? log_decay : unsqueeze(log_decay, -1), {q.dim(0), q.dim(1), q.dim(2), by_channel ? m : 1});
  const Tensor upto = detail::running_decay(g, 2), all = detail::total_decay(g, 2);       // [batch, heads, 1 or m]
  const Tensor left = detail::running_decay(g, 2, {.exclusive = true, .reverse = true});  // decay after a step
  const Tensor state = detail::decayed_state(rows, columns, o.reverse ? upto : left);     // [batch, heads, m, e]
  const Tensor whole = unsqueeze(by_channel ? all : expand(all, {k.dim(0), k.dim(1), m}), -1);
  const Tensor sent = detail::of_ranks_before(cat({state, whole}, -1), o.reverse);  // [ranks, batch, heads, m, e + 1]
  const Tensor between = detail::running_decay(narrow(sent, -1, e, 1), 0, {.exclusive = true, .reverse = !o.reverse});
  const Tensor before = sum(map(formula::Decayed{}, narrow(sent, -1, 0, e), between), {0});
  const Tensor& on_the_way = o.reverse ? left : upto;
  return here + (on_values ? map(formula::Decayed{}, matmul(q, transpose(before, -2, -1)), on_the_way)
                           : detail::carried(q, before, on_the_way));
}

// A piece maps the state S before it to M S + N. N is its final state from S = 0. M is its final state from S = I if
// nothing is written.
Tensor sequence_delta_scan(const Tensor& q, const Tensor& k, const Tensor& erase, const Tensor& write,
                           const Tensor& log_decay, const DeltaScanOptions& o) {
  detail::check_defined("sequence_delta_scan", {{"q", q}, {"k", k}, {"erase", erase}, {"write", write}});
  const DeltaScanResult here = delta_scan(q, k, erase, write, log_decay, {}, o);
  if (!in_sequence()) return here.out;
  const int64_t dk = k.dim(3), dv = write.dim(3);
  const Tensor one = expand(eye(dk, dk, here.state.options()), {k.dim(0), write.dim(1), dk, dk});
  const Tensor left = delta_scan(q, k, erase, zeros(erase.shape(), erase.options()), log_decay, one, o).state;
  const Tensor sent = detail::of_ranks_before(cat({left, here.state}, -1));  // [ranks, batch, heads, dk, dk + dv]
  // 0, and a function of what was sent even on the first rank: its backward pass has to receive, too.
  Tensor state = narrow(sum(narrow(sent, 0, 0, 0), {0}), -1, dk, dv);
  for (int64_t r = 0; r < sent.dim(0); ++r) {
    const Tensor piece = select(sent, 0, r);
    state = matmul(narrow(piece, -1, 0, dk), state) + narrow(piece, -1, dk, dv);
  }
  return delta_scan(q, k, erase, write, log_decay, state, o).out;
}

Tensor sequence_mean(const Tensor& losses, const Tensor& counted) {
  detail::check_defined("sequence_mean", {{"losses", losses}});
  const Tensor wide = detail::widened(losses),
               tokens = counted.defined() ? where(counted, wide, zeros({}, wide.options())) : wide;
  Tensor count = full({}, static_cast<double>(losses.numel()), {f64, losses.device()});
  if (counted.defined()) count = to(sum(counted), f64);
  {
    NoGrad guard;
    count = to(sequence_sum(count), wide.dtype());
  }
  return to(sum(tokens) / maximum(count, 1), losses.dtype());
}

}  // namespace sluice
