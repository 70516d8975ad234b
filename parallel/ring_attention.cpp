// Attention around a ring of ranks (Liu et al. 2023, "Ring Attention"): in each round a rank computes its queries with
// the keys and values of one other rank. Partial results of softmax merge by their log-sum-exp; those of elementwise
// weightings add up. The backward pass uses the row statistics of the whole, so the gradients of each part are exact.
// The keys go around once more, and their gradients return to their ranks.
//
// In a causal sequence rank r sees the keys of r other ranks, and rank 0 of none. To balance the work, the rank of the
// keys computes pairs of ranks that are far apart: the queries come to it and outputs return (the idea of Li et al.
// 2023, "DistFlashAttn"). With R ranks, in round t < R/2 rank w >= t takes its queries and the keys of w − t; rank w <
// t takes its keys and the queries of w + R − t. Every rank then has one pair a round. If R is even, round R/2 has half
// a pair for each.
#include <sluice/autograd/engine.h>
#include <sluice/core/node.h>
#include <sluice/ops/attention/attention_kernels.h>
#include <sluice/ops/attention/attention_reference.h>
#include <sluice/ops/attention/heads.h>
#include <sluice/ops/basic.h>
#include <sluice/parallel/sequence_attention.h>

#include <algorithm>

namespace sluice::detail {

namespace {

bool none(const std::vector<RowRange>& ranges) {
  return std::all_of(ranges.begin(), ranges.end(), [](RowRange r) { return r.length() == 0; });
}

/// The queries and keys that each rank computes in a round, as rows of the whole. The queries or the keys are its own.
struct Round {
  std::vector<RowRange> queries, keys;
};
std::vector<Round> rounds_of(const Sequence& s, bool causal) {
  const int ranks = s.size();
  std::vector<Round> rounds;
  for (int t = 0; t < (causal ? ranks / 2 + 1 : ranks); ++t) {
    Round round;
    for (int w = 0; w < ranks; ++w) {
      const bool here = !causal || w >= t, halved = causal && t > 0 && 2 * t == ranks;
      RowRange queries = s.piece(here ? w : w + ranks - t);
      const RowRange keys = here ? s.piece((w - t + ranks) % ranks) : s.piece(w);
      const int64_t middle = (queries.begin + queries.end) / 2;
      if (halved) (here ? queries.end : queries.begin) = middle;
      const bool any = queries.length() > 0 && keys.length() > 0;
      round.queries.push_back(any ? queries : RowRange{queries.begin, queries.begin});
      round.keys.push_back(any ? keys : RowRange{keys.begin, keys.begin});
    }
    rounds.push_back(std::move(round));
  }
  return rounds;
}

/// The transfers of a round. A rank fetches only rows that it does not hold; a plan that moves nothing is null.
struct Moves {
  std::shared_ptr<const RowPlan> queries, keys;  // from their owners to the ranks that compute
  std::shared_ptr<const RowPlan> home;           // results per query, back to the owners of the queries
  RowRange mine, theirs;                         // the queries and the keys with which this rank computes
  bool guests = false;                           // `mine` belongs to another rank

  Moves(const Sequence& s, const Round& round) {
    RowPlan q, k, back;
    const auto ranks = static_cast<std::size_t>(s.size()), self = static_cast<std::size_t>(s.rank());
    auto foreign = [&](RowRange rows, std::size_t r) {
      const RowRange piece = s.piece(static_cast<int>(r));
      return rows.begin >= piece.begin && rows.end <= piece.end ? RowRange{rows.begin, rows.begin} : rows;
    };
    back.wanted.assign(ranks, {});
    for (std::size_t r = 0; r < ranks; ++r) {
      const RowRange piece = s.piece(static_cast<int>(r)), guest = foreign(round.queries[r], r);
      q.owned.push_back(piece), q.wanted.push_back(guest);
      k.owned.push_back(piece), k.wanted.push_back(foreign(round.keys[r], r));
      back.owned.push_back(guest);
      for (std::size_t host = 0; host < ranks && guest.length() > 0; ++host) {
        const RowRange at = s.piece(static_cast<int>(host));
        if (guest.begin >= at.begin && guest.end <= at.end && at.length() > 0) back.wanted[host] = guest;
      }
    }
    mine = round.queries[self], theirs = round.keys[self], guests = q.wanted[self].length() > 0;
    if (!none(k.wanted)) keys = std::make_shared<RowPlan>(std::move(k));
    if (none(q.wanted)) return;
    queries = std::make_shared<RowPlan>(std::move(q)), home = std::make_shared<RowPlan>(std::move(back));
  }
};

/// A round's operands on this rank: queries() gives q and everything per query, keys() gives kv [batch, kv_heads, n, d
/// + dv] and everything per key.
class Part {
 public:
  Moves moves;
  AttentionOptions options;

  Part(const Sequence& s, const Round& round, const AttentionOptions& o, bool own)
      : moves(s, round), options(o), c_(s.communicator), first_(s.piece(s.rank()).begin) {
    AttentionMask& mask = options.mask;
    options.row_scale = queries(options.row_scale, 2), mask.query_segments = queries(mask.query_segments, 1);
    mask.keys = keys(mask.keys, -1), mask.key_segments = keys(mask.key_segments, 1);
    if (!own) mask.causal = false, options.sink = Tensor();  // the sink is counted once
  }
  bool empty() const { return moves.mine.length() == 0; }
  Tensor queries(const Tensor& x, int64_t dim) const {
    if (!x.defined()) return x;
    const Tensor guests = moves.queries ? fetch_rows(x, dim, c_, moves.queries) : Tensor();
    return moves.guests ? guests
                        : contiguous_row(narrow(x, dim, empty() ? 0 : moves.mine.begin - first_, moves.mine.length()));
  }
  Tensor keys(const Tensor& x, int64_t dim) const {
    if (!x.defined()) return x;
    const Tensor fetched = moves.keys ? fetch_rows(x, dim, c_, moves.keys) : Tensor();
    return others_keys() ? fetched : empty() ? narrow(x, dim, 0, 0) : x;
  }
  bool others_keys() const {
    return moves.keys && moves.keys->wanted[static_cast<std::size_t>(c_.rank())].length() > 0;
  }
  /// Calls f(rows of this rank's queries, their results) for the results x [batch, heads, rows, ·] that this rank
  /// computed, and for those that another rank did.
  template <class F> void home(const Tensor& x, F f) const {
    if (!moves.guests && !empty()) f(RowRange{moves.mine.begin - first_, moves.mine.end - first_}, x);
    if (!moves.home) return;
    const Tensor arrived = fetch_rows(moves.guests ? x : narrow(x, 2, 0, 0), 2, c_, moves.home);
    const RowRange rows = moves.home->wanted[static_cast<std::size_t>(c_.rank())];
    if (rows.length() > 0) f(RowRange{rows.begin - first_, rows.end - first_}, arrived);
  }

 private:
  static Tensor contiguous_row(const Tensor& x) {
    return x.strides()[x.rank() - 1] == 1 || x.rank() == 0 ? x : contiguous(x);
  }
  Communicator c_;
  int64_t first_;
};

Tensor keys_of(const Tensor& kv, int64_t d) { return narrow(kv, 3, 0, d); }
Tensor values_of(const Tensor& kv, int64_t d) { return narrow(kv, 3, d, kv.dim(3) - d); }

// saved: q, kv, sink, out, lse (softmax only)
struct RingAttention final : Op<"sequence_attention"> {
  std::shared_ptr<Sequence> sequence;
  AttentionOptions options;  // without the sink
  RingAttention(std::shared_ptr<Sequence> s, AttentionOptions o) : sequence(std::move(s)), options(std::move(o)) {
    options.sink = Tensor();
  }

  Tensors vjp(const Tensor& given) override {
    const Tensor q = saved(0), kv = saved(1), sink = saved(2);
    if (grad_enabled()) return recorded_vjp({q, kv, sink}, given);
    const Tensor out = saved(3), lse = saved(4), g = readable_rows(given);
    const Tensor delta = lse.defined() ? contiguous(sum(widened(g) * widened(out), {-1})) : Tensor();
    const int64_t d = q.dim(3);
    const TensorOptions wide = widened(q.options());  // of sums over rounds
    Tensor dq, dkv;
    for (const Round& round : rounds_of(*sequence, options.mask.causal)) {
      const bool own = !dq.defined();
      const Part part(*sequence, round, options, own);
      const Tensor rq = readable_rows(part.queries(q, 2)), rg = readable_rows(part.queries(g, 2));
      const Tensor rlse = part.queries(lse, 2), rdelta = part.queries(delta, 2);
      Tensor rows = part.keys(kv, 2), dpart = empty(rows.shape(), kv.options()), dqueries;
      if (!part.empty() && rg.numel() > 0) {
        AttentionGradients grads{.dq = empty_heads(rq.shape(), q.options()),
                                 .dk = keys_of(dpart, d),
                                 .dv = values_of(dpart, d),
                                 .bias = {},
                                 .relative = {}};
        const Tensor rk = readable_rows(keys_of(rows, d)), rv = readable_rows(values_of(rows, d));
        const Tensor row_lse = rlse.defined() ? contiguous(rlse) : rlse,
                     row_delta = rdelta.defined() ? contiguous(rdelta) : rdelta;
        const PrecisionScope scope(precision_of(part.options, q.dtype()));
        kernel::attention_backward({rq, rk, rv, part.options}, rg, row_lse, row_delta, grads);
        dqueries = widened(grads.dq), dpart = widened(dpart);
      } else {
        dpart = zeros(rows.shape(), wide), dqueries = zeros(rq.shape(), wide);
      }
      if (own) {
        dq = dqueries, dkv = dpart;
        continue;
      }
      rows = Tensor();
      part.home(dqueries, [&](RowRange at, const Tensor& x) {
        Tensor place = narrow(dq, 2, at.begin, at.length());
        add_(place, x);
      });
      if (part.moves.keys)
        add_returned_rows(dkv, part.others_keys() ? dpart : narrow(dpart, 2, 0, 0), 2, sequence->communicator,
                          *part.moves.keys);
      if (!part.empty() && !part.others_keys()) add_(dkv, dpart);
    }
    const Tensor dsink = needs(2) ? sink_gradient(sink, lse, delta) : Tensor();
    return {to(dq, q.dtype()), to(dkv, kv.dtype()), dsink};
  }

  /// The gradients of vjp with a history, by gathered_attention.
  Tensors recorded_vjp(const Tensors& given, const Tensor& g) {
    SequenceScope scope(sequence);
    std::vector<Tensor> xs;
    for (const Tensor& x : given)
      xs.push_back(x.defined() ? record("sequence_attention", x.detach(), {x}, {}, [](const Tensor& g) { return g; })
                               : x);
    AttentionOptions o = options;
    o.sink = xs[2];
    const int64_t d = xs[0].dim(3);
    const Tensor y = gathered_attention(xs[0], keys_of(xs[1], d), values_of(xs[1], d), o, nullptr);
    std::vector<Edge> wanted;
    for (std::size_t i = 0; i < xs.size(); ++i) wanted.push_back(needs(i) ? edge_of(xs[i]) : Edge{});
    const Edge root = edge_of(y);
    const auto grads = grad_edges({&root, 1}, {&g, 1}, wanted, {.create_graph = true}, true);
    return Tensors(grads.begin(), grads.end());
  }
};

}  // namespace

Tensor ring_attention(const Tensor& q_in, const Tensor& k_in, const Tensor& v_in, const AttentionOptions& given) {
  auto [q, k, v, o, rank] = attention_operands("sequence_attention", q_in, k_in, v_in, given);
  o.dropout = 0, o.mask.global.clear();
  const Sequence& s = sequence_of(q.dim(2));
  const Tensor kv = cat({k, v}, -1);  // sent as one tensor, and kept for the backward pass in place of k and v
  const int64_t d = q.dim(3), dv = v.dim(3);
  const bool softmax = o.weighting == Weighting::softmax;
  k = v = Tensor();
  if (o.row_scale.defined()) o.row_scale = contiguous(expand(o.row_scale, {q.dim(0), q.dim(1), q.dim(2)}));
  AttentionAndLse total;
  {
    NoGrad guard;
    for (const Round& round : rounds_of(s, o.mask.causal)) {
      const bool own = !total.out.defined();
      const Part part(s, round, o, own);
      const Tensor rq = part.queries(q, 2), rows = part.keys(kv, 2);
      AttentionAndLse one;
      if (softmax) one = attention_with_lse(rq, keys_of(rows, d), values_of(rows, d), part.options);
      else one.out = attention(rq, keys_of(rows, d), values_of(rows, d), part.options);
      one.out = widened(one.out);
      if (own) {
        total = one;
        continue;
      }
      const Tensor sent = softmax ? cat({one.out, unsqueeze(one.lse, -1)}, -1) : one.out;
      part.home(sent, [&](RowRange at, const Tensor& x) {
        auto place = [&](const Tensor& of) { return narrow(of, 2, at.begin, at.length()); };
        Tensor out = place(total.out);
        if (!softmax) return add_(out, x);
        Tensor lse = place(total.lse);
        const AttentionAndLse merged =
            merge_attention({out, lse}, {narrow(x, 3, 0, dv), squeeze(narrow(x, 3, dv, 1), 3)});
        copy_(out, merged.out), copy_(lse, merged.lse);
      });
    }
  }
  const Tensor out = to(total.out, q.dtype()), kept = out.detach();
  return restore_rank(record<RingAttention>(out, {q, kv, o.sink}, {q, kv, o.sink, kept, total.lse}, this_sequence(), o),
                      rank);
}

}  // namespace sluice::detail
