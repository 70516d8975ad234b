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

/// The part of one step: another rank's keys, or this rank's own.
struct Part {
  Tensor k, v;
  AttentionOptions options;
  std::shared_ptr<const RowPlan> plan;  // null: this rank's own
};

/// Calls f with each part in turn, an undefined k where this rank has nothing to see. `kv`: own keys beside own values.
template <class F>
void each_part(const Sequence& s, const Tensor& kv, int64_t d, const AttentionOptions& o, F f) {
  const int ranks = s.size(), self = s.rank();
  for (int t = 0; t < ranks; ++t) {
    Part part{{}, {}, o, {}};
    Tensor rows = kv;
    if (t > 0) {
      auto plan = std::make_shared<RowPlan>();
      for (int r = 0; r < ranks; ++r) {
        const int from = (r - t + ranks) % ranks;
        const RowRange theirs = s.piece(from);
        const bool visible = s.piece(r).length() > 0 && !(o.mask.causal && from > r);
        plan->owned.push_back(s.piece(r)), plan->wanted.push_back(visible ? theirs : RowRange{theirs.begin, theirs.begin});
      }
      AttentionMask& mask = part.options.mask;
      rows = fetch_rows(kv, 2, s.communicator, plan);
      if (mask.keys.defined()) mask.keys = fetch_rows(mask.keys, -1, s.communicator, plan);
      if (mask.key_segments.defined()) mask.key_segments = fetch_rows(mask.key_segments, 1, s.communicator, plan);
      mask.causal = false, part.options.sink = Tensor();  // the sink is counted once
      part.plan = std::move(plan);
    }
    if (s.piece(self).length() > 0 && rows.dim(2) > 0) {
      part.k = narrow(rows, 3, 0, d), part.v = narrow(rows, 3, d, rows.dim(3) - d);
      f(part);
    } else if (part.plan) {
      f(part);
    }
  }
}

struct Same final : Node {
  static const char* op_name() { return "sequence_attention"; }
  const char* name() const override { return op_name(); }
  Tensors vjp(const Tensor& g) override { return {g}; }
};

// saved: q, k, v, sink, out; of softmax lse
struct RingAttention final : Node {
  std::shared_ptr<Sequence> sequence;
  AttentionOptions options;  // without the sink
  RingAttention(std::shared_ptr<Sequence> s, AttentionOptions o) : sequence(std::move(s)), options(std::move(o)) {
    options.sink = Tensor();
  }
  static const char* op_name() { return "sequence_attention"; }
  const char* name() const override { return op_name(); }

  Tensors vjp(const Tensor& given) override {
    const Tensor q = saved(0), k = saved(1), v = saved(2), sink = saved(3);
    if (grad_enabled()) return recorded_vjp({q, k, v, sink}, given);
    const Tensor out = saved(4), lse = saved(5), g = readable_rows(given), rq = readable_rows(q);
    const bool softmax = options.weighting == Weighting::softmax;
    const Tensor delta = softmax ? contiguous(sum(g * out, {-1})) : Tensor();
    const Tensor kv = cat({k, v}, -1);
    Tensor dq = zeros(q.shape(), q.options()), dkv = zeros(kv.shape(), kv.options());
    each_part(*sequence, kv, q.dim(3), options, [&](const Part& part) {
      Tensor dpart;
      if (part.k.defined()) {
        const Tensor rk = readable_rows(part.k), rv = readable_rows(part.v);
        AttentionGradients grads{.dq = empty_heads(q.shape(), q.options()), .dk = empty_heads(rk.shape(), rk.options()),
                                 .dv = empty_heads(rv.shape(), rv.options()), .bias = {}, .relative = {}};
        if (g.numel() > 0) {
          kernel::attention_backward({rq, rk, rv, part.options, 0, 0}, g, lse, delta, grads);
        } else {
          for (Tensor* x : {&grads.dq, &grads.dk, &grads.dv}) fill_(*x, 0);
        }
        add_(dq, grads.dq);
        dpart = cat({grads.dk, grads.dv}, -1);
      } else {
        Shape none = kv.shape();
        none[2] = 0;
        dpart = zeros(none, kv.options());
      }
      add_(dkv, part.plan ? return_rows(dpart, 2, sequence->communicator, part.plan) : dpart);
    });
    // p_sink = e^{sink − lse}; its value is 0, so its score's gradient is p_sink (0 − δ)
    Tensor dsink;
    if (needs(3)) dsink = sum(neg(exp(reshape(sink, {sink.dim(0), 1}) - lse) * delta), {0, 2});
    return {dq, narrow(dkv, 3, 0, q.dim(3)), narrow(dkv, 3, q.dim(3), v.dim(3)), dsink};
  }

  /// The same gradients with a history: through all keys at once.
  Tensors recorded_vjp(const Tensors& given, const Tensor& g) {
    SequenceScope scope(sequence);
    std::vector<Tensor> xs;
    for (const Tensor& x : given) xs.push_back(x.defined() ? record<Same>(x.detach(), {x}, {}) : x);
    AttentionOptions o = options;
    o.sink = xs[3];
    const Tensor y = gathered_attention(xs[0], xs[1], xs[2], o, nullptr);
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
  sequence_of(q.dim(2));
  const bool softmax = o.weighting == Weighting::softmax;
  AttentionAndLse total;
  {
    NoGrad guard;
    each_part(*this_sequence(), cat({k, v}, -1), q.dim(3), o, [&](const Part& part) {
      if (!part.k.defined()) return;
      if (softmax) {
        const AttentionAndLse one = attention_with_lse(q, part.k, part.v, part.options);
        total = total.out.defined() ? merge_attention(total, one) : one;
      } else {
        const Tensor one = attention(q, part.k, part.v, part.options);
        total.out = total.out.defined() ? total.out + one : one;
      }
    });
    if (!total.out.defined()) {
      total.out = zeros({q.dim(0), q.dim(1), q.dim(2), v.dim(3)}, q.options());
      if (softmax) total.lse = zeros({q.dim(0), q.dim(1), q.dim(2)}, q.options());
    }
  }
  const Tensor kept = total.out.detach();
  Tensor y = record<RingAttention>(total.out, {q, k, v, o.sink}, {q, k, v, o.sink, kept, total.lse}, this_sequence(), o);
  return restore_rank(y, rank);
}

}  // namespace sluice::detail
