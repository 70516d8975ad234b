// Attention around a ring of ranks (Liu et al. 2023, "Ring Attention"): in step t each rank has the keys and values of the
// rank t places before it. Softmax parts merge by their log-sum-exp, elementwise weights add up. Backward, the row
// statistics of the whole make every part's gradients exact, so the keys go around once more and their gradients go home.
#include <sluice/autograd/engine.h>
#include <sluice/core/node.h>
#include <sluice/ops/attention/attention_kernels.h>
#include <sluice/ops/attention/attention_reference.h>
#include <sluice/ops/attention/heads.h>
#include <sluice/ops/create.h>
#include <sluice/ops/elementwise.h>
#include <sluice/ops/reduce.h>
#include <sluice/ops/view.h>
#include <sluice/parallel/sequence_attention.h>

namespace sluice::detail {

namespace {

/// Where another rank's keys and values lie, and who wants them in step t; nobody wants later ones if `causal`.
std::shared_ptr<const RowPlan> plan_of_step(const Sequence& s, int t, bool causal) {
  auto plan = std::make_shared<RowPlan>();
  for (int r = 0; r < s.size(); ++r) {
    const int from = (r - t + s.size()) % s.size();
    const RowRange theirs = s.piece(from);
    const bool visible = s.piece(r).length() > 0 && !(causal && from > r);
    plan->owned.push_back(s.piece(r)), plan->wanted.push_back(visible ? theirs : RowRange{theirs.begin, theirs.begin});
  }
  return plan;
}

/// The keys and values of a step, [batch, kv_heads, n, d + dv], and what the options say of them; rows of none where this
/// rank sees nothing.
struct Part {
  Tensor kv;
  AttentionOptions options;
  std::shared_ptr<const RowPlan> plan;
};
Part part_of_step(const Sequence& s, int t, const Tensor& kv, const AttentionOptions& o) {
  Part part{kv, o, plan_of_step(s, t, o.mask.causal)};
  if (t == 0) return part;
  auto fetch = [&](Tensor& x, int64_t dim) {
    if (x.defined()) x = fetch_rows(x, dim, s.communicator, part.plan);
  };
  AttentionMask& mask = part.options.mask;
  fetch(part.kv, 2), fetch(mask.keys, -1), fetch(mask.key_segments, 1);
  mask.causal = false, part.options.sink = Tensor();  // the sink is counted once
  return part;
}

Tensor keys_of(const Tensor& kv, int64_t d) { return narrow(kv, 3, 0, d); }
Tensor values_of(const Tensor& kv, int64_t d) { return narrow(kv, 3, d, kv.dim(3) - d); }

struct Same final : Node {
  static const char* op_name() { return "sequence_attention"; }
  const char* name() const override { return op_name(); }
  Tensors vjp(const Tensor& g) override { return {g}; }
};

// saved: q, kv, sink, out; of softmax lse
struct RingAttention final : Node {
  std::shared_ptr<Sequence> sequence;
  AttentionOptions options;  // without the sink
  RingAttention(std::shared_ptr<Sequence> s, AttentionOptions o) : sequence(std::move(s)), options(std::move(o)) {
    options.sink = Tensor();
  }
  static const char* op_name() { return "sequence_attention"; }
  const char* name() const override { return op_name(); }

  Tensors vjp(const Tensor& given) override {
    const Tensor q = saved(0), kv = saved(1), sink = saved(2);
    if (grad_enabled()) return recorded_vjp({q, kv, sink}, given);
    const Tensor out = saved(3), lse = saved(4), g = readable_rows(given), rq = readable_rows(q);
    const Tensor delta = lse.defined() ? contiguous(sum(g * out, {-1})) : Tensor();
    Tensor dq, dkv;
    for (int t = 0; t < sequence->size(); ++t) {
      Part part = part_of_step(*sequence, t, kv, options);
      Tensor dpart = empty(part.kv.shape(), kv.options());
      if (g.numel() > 0 && part.kv.numel() > 0) {
        AttentionGradients grads{.dq = empty_heads(q.shape(), q.options()), .dk = keys_of(dpart, q.dim(3)),
                                 .dv = values_of(dpart, q.dim(3)), .bias = {}, .relative = {}};
        const Tensor rk = readable_rows(keys_of(part.kv, q.dim(3))), rv = readable_rows(values_of(part.kv, q.dim(3)));
        kernel::attention_backward({rq, rk, rv, part.options, 0, 0}, g, lse, delta, grads);
        if (dq.defined()) add_(dq, grads.dq);
        else dq = grads.dq;
      } else {
        fill_(dpart, 0);
      }
      part.kv = Tensor();
      if (t == 0) dkv = dpart;
      else add_returned_rows(dkv, dpart, 2, sequence->communicator, *part.plan);
    }
    if (!dq.defined()) dq = zeros(q.shape(), q.options());
    // p_sink = e^{sink − lse}; its value is 0, so its score's gradient is p_sink (0 − δ)
    Tensor dsink;
    if (needs(2)) dsink = sum(neg(exp(reshape(sink, {sink.dim(0), 1}) - lse) * delta), {0, 2});
    return {dq, dkv, dsink};
  }

  /// The same gradients with a history: through all keys at once.
  Tensors recorded_vjp(const Tensors& given, const Tensor& g) {
    SequenceScope scope(sequence);
    std::vector<Tensor> xs;
    for (const Tensor& x : given) xs.push_back(x.defined() ? record<Same>(x.detach(), {x}, {}) : x);
    AttentionOptions o = options;
    o.sink = xs[2];
    const int64_t d = xs[0].dim(3);
    const Tensor y = gathered_attention(xs[0], keys_of(xs[1], d), values_of(xs[1], d), o, nullptr);
    std::vector<Edge> wanted;
    for (std::size_t i = 0; i < xs.size(); ++i)
      wanted.push_back(needs(i) ? Edge{xs[i].impl().history, xs[i].impl().output_index} : Edge{});
    const Edge root{y.impl().history, y.impl().output_index};
    const auto grads = grad_edges({&root, 1}, {&g, 1}, wanted, {.create_graph = true}, true);
    return Tensors(grads.begin(), grads.end());
  }
};

}  // namespace

Tensor ring_attention(const Tensor& q_in, const Tensor& k_in, const Tensor& v_in, const AttentionOptions& given) {
  auto [q, k, v, o, rank] = attention_operands("sequence_attention", q_in, k_in, v_in, given);
  o.dropout = 0, o.mask.global.clear();
  const Sequence& s = sequence_of(q.dim(2));
  const Tensor kv = cat({k, v}, -1);  // what is sent, and kept for the backward pass in place of both
  const int64_t d = q.dim(3), dv = v.dim(3);
  const bool softmax = o.weighting == Weighting::softmax;
  k = v = Tensor();
  AttentionAndLse total;
  {
    NoGrad guard;
    for (int t = 0; t < s.size(); ++t) {
      const Part part = part_of_step(s, t, kv, o);
      if (q.dim(2) == 0 || part.kv.dim(2) == 0) continue;
      const Tensor keys = keys_of(part.kv, d), values = values_of(part.kv, d);
      if (softmax) {
        const AttentionAndLse one = attention_with_lse(q, keys, values, part.options);
        total = total.out.defined() ? merge_attention(total, one) : one;
      } else {
        const Tensor one = attention(q, keys, values, part.options);
        if (total.out.defined()) add_(total.out, one);
        else total.out = one;
      }
    }
    if (!total.out.defined()) {
      total.out = zeros({q.dim(0), q.dim(1), q.dim(2), dv}, q.options());
      if (softmax) total.lse = zeros({q.dim(0), q.dim(1), q.dim(2)}, q.options());
    }
  }
  const Tensor kept = total.out.detach();
  return restore_rank(record<RingAttention>(total.out, {q, kv, o.sink}, {q, kv, o.sink, kept, total.lse}, this_sequence(), o), rank);
}

}  // namespace sluice::detail
