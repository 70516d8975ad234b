#include <sluice/autograd/engine.h>

#include <sluice/autograd/node_map.h>
#include <sluice/ops/create.h>
#include <sluice/ops/elementwise.h>
#include <sluice/ops/reduce.h>
#include <sluice/ops/view.h>

#include <algorithm>

namespace sluice {

namespace detail {
void (*after_vjp)(const Node&, const Tensors&) = nullptr;
constinit thread_local const Node* vjp_of = nullptr;
}

namespace {

/// Gradients that have arrived at a node and not been processed yet, one per output.
struct Pending {
  Ref<Node> node;  // keeps the node alive while it waits
  Tensors grads;
};

/// The nodes that wait, youngest first. A node's inputs are older than itself, so when it is taken
/// every gradient it will ever receive has arrived: no counting of dependencies is needed.
class Frontier {
 public:
  bool empty() const { return heap_.empty(); }

  Tensors& at(const Ref<Node>& node) {
    const bool reuse = !unused_.empty();
    auto [slot, fresh] =
        index_.insert(node.get(), reuse ? unused_.back() : static_cast<uint32_t>(pending_.size()));
    if (!fresh) return pending_[slot].grads;
    if (reuse) unused_.pop_back();
    else pending_.emplace_back();
    Pending& p = pending_[slot];
    p.node = node;
    p.grads.resize(node->outputs.size());
    heap_.push_back({node->seq, slot});
    std::push_heap(heap_.begin(), heap_.end());
    return p.grads;
  }

  Pending take() {
    std::pop_heap(heap_.begin(), heap_.end());
    uint32_t slot = heap_.back().second;
    heap_.pop_back();
    Pending p = std::move(pending_[slot]);
    unused_.push_back(slot);
    index_.erase(p.node.get());
    return p;
  }

 private:
  std::vector<std::pair<uint64_t, uint32_t>> heap_;  // (seq, slot)
  std::vector<Pending> pending_;
  std::vector<uint32_t> unused_;
  detail::NodeMap index_;
};

/// into += g. Edits `into` when nobody else can see it, so that a sum of k gradients needs one buffer.
void accumulate(Tensor& into, Tensor g, bool create_graph) {
  if (!into.defined()) {
    into = std::move(g);
    return;
  }
  bool sole_owner = !create_graph && into.impl().use_count() == 1 &&
                    into.impl().storage->use_count() == 1 && into.is_contiguous() &&
                    !into.requires_grad();
  if (sole_owner) add_(into, g);
  else into = into + g;
}

/// Adds g to a leaf's .grad(), which belongs to that leaf alone: a gradient that is a view, or that another
/// leaf received too (both sides of a + b), is copied first.
void collect(Tensor& into, Tensor g, bool create_graph) {
  const bool shared = g.impl().use_count() > 1 || g.impl().storage->use_count() > 1 || !g.is_contiguous();
  if (!into.defined() && shared && !create_graph) g = clone(g);
  accumulate(into, std::move(g), create_graph);
}

/// A gradient as the edge's target wants it; throws if a vjp returned something impossible.
Tensor fitted(const Node& from, const Edge& to, const Tensor& g) {
  const OutputMeta& meta = to.node->outputs[to.index];
  if (g.dtype() != meta.dtype)
    fail<AutogradError>(from.name(), ": returned a gradient of dtype ", g.dtype(), " for an input of dtype ",
                        meta.dtype);
  if (g.shape() == meta.shape) return g;
  try {
    return sum_to(g, meta.shape);
  } catch (const ShapeError&) {
    fail<AutogradError>(from.name(), ": returned a gradient of shape ", g, " for an input of shape ", meta.shape);
  }
}

/// The nodes between roots and wanted edges; the others need not be visited.
class Between {
 public:
  Between(std::span<const Edge> roots, std::span<const Edge> wanted) {
    uint64_t oldest = UINT64_MAX;
    for (const Edge& w : wanted) {
      if (!w.node) continue;
      mark_.insert(w.node.get(), kLeads);
      oldest = std::min(oldest, w.node->seq);
    }
    std::vector<const Node*> order, stack;
    auto visit = [&](const Edge& e) {
      if (!e.node || e.node->seq < oldest) return;
      auto [mark, fresh] = mark_.insert(e.node.get(), 0);
      if (!fresh && (mark & kSeen)) return;
      mark |= kSeen;
      stack.push_back(e.node.get());
    };
    for (const Edge& r : roots) visit(r);
    while (!stack.empty()) {
      const Node* n = stack.back();
      stack.pop_back();
      order.push_back(n);
      for (const Edge& e : n->edges) visit(e);
    }
    std::sort(order.begin(), order.end(), [](auto* a, auto* b) { return a->seq < b->seq; });
    for (const Node* n : order)  // oldest first, so the answer for its inputs is known
      for (const Edge& e : n->edges)
        if (e.node && contains(e.node.get())) mark_.insert(n, 0).first |= kLeads;
  }
  bool contains(const Node* n) const {
    const uint32_t mark = mark_.find(n);
    return mark != detail::NodeMap::kAbsent && (mark & kLeads);
  }

 private:
  static constexpr uint32_t kSeen = 1, kLeads = 2;  // visited; leads to a wanted edge
  detail::NodeMap mark_;
};

/// Says whose vjp runs, for anomaly mode; checkpoints nest.
struct VjpScope {
  const Node* outer;
  explicit VjpScope(const Node& n) : outer(std::exchange(detail::vjp_of, &n)) {}
  ~VjpScope() { detail::vjp_of = outer; }
};
Tensors call_vjp(Node& node, const Tensors& grads) {
  VjpScope scope(node);
  return node.vjp_all(grads);
}

class Traversal {
 public:
  Traversal(BackwardOptions o) : options_(o) {}

  void start(const Edge& root, const Tensor& g) {
    accumulate(frontier_.at(root.node)[root.index], g, options_.create_graph);
  }

  /// visit(node, grads) is called when a node's gradients are complete; it returns false to stop there.
  template <class Visit>
  void run(Visit visit, const Between* between) {
    GradMode mode(options_.create_graph);
    while (!frontier_.empty()) {
      Pending p = frontier_.take();
      Node& node = *p.node;
      if (node.extras_)
        for (uint32_t i = 0; i < p.grads.size(); ++i)
          if (p.grads[i].defined()) node.run_hooks(i, p.grads[i]);
      if (!visit(node, p.grads)) continue;
      const bool goes_on = std::any_of(node.edges.begin(), node.edges.end(), [&](const Edge& e) {
        return e.node && (!between || between->contains(e.node.get()));
      });
      if (!goes_on) continue;
      Tensors grads = call_vjp(node, p.grads);
      if (grads.size() != node.edges.size())
        fail<AutogradError>(node.name(), ": returned ", grads.size(), " gradients for ",
                            node.edges.size(), " inputs");
      if (detail::after_vjp) detail::after_vjp(node, grads);
      if (!options_.retain_graph && !options_.create_graph) node.release();
      p.grads.clear();
      for (std::size_t i = 0; i < grads.size(); ++i) {
        const Edge& e = node.edges[i];
        if (!e.node || !grads[i].defined()) continue;
        if (between && !between->contains(e.node.get())) continue;
        Tensor g = fitted(node, e, grads[i]);
        grads[i] = Tensor();
        accumulate(frontier_.at(e.node)[e.index], std::move(g), options_.create_graph);
      }
    }
  }

 private:
  BackwardOptions options_;
  Frontier frontier_;
};

Tensor seed(const char* op, const Tensor& root, const Tensor& grad) {
  if (!root.requires_grad())
    fail<AutogradError>(op, ": the output ", root, " has no history; no input required a gradient, or "
                        "it was made under NoGrad");
  if (!grad.defined()) {
    if (root.numel() != 1)
      fail<AutogradError>(op, ": an output of shape ", root,
                          " is not a scalar; pass its gradient, or reduce it with sum() or mean()");
    return ones(root.shape(), root.options());
  }
  if (grad.shape() != root.shape())
    fail(op, ": gradient of shape ", grad, " for an output of shape ", root);
  if (grad.dtype() != root.dtype())
    fail<DTypeError>(op, ": gradient of dtype ", grad.dtype(), " for an output of dtype ", root.dtype());
  return grad;
}

}  // namespace

Tensor sum_to(const Tensor& g, const Shape& shape) {
  if (g.shape() == shape) return g;
  int extra = g.rank() - shape.rank();
  Shape dims;
  bool ok = extra >= 0;
  for (int d = 0; ok && d < g.rank(); ++d) {
    int64_t want = d < extra ? 1 : shape[d - extra];
    if (d < extra || (want == 1 && g.shape()[d] != 1)) dims.push_back(d);
    else ok = want == g.shape()[d];
  }
  if (!ok) fail("sum_to: ", g, " was not broadcast from ", shape);
  return reshape(dims.empty() ? g : sum(g, dims), shape);
}

void backward(const Tensor& root, const Tensor& grad, BackwardOptions options) {
  Tensor g = seed("backward", root, grad);
  Traversal walk(options);
  walk.start({root.impl().history, root.impl().output_index}, g);
  walk.run(
      [&](Node& node, Tensors& grads) {
        if (!node.is_leaf()) return true;
        collect(static_cast<Leaf&>(node).grad, std::move(grads[0]), options.create_graph);
        return false;
      },
      nullptr);
}

std::vector<Tensor> detail::grad_edges(std::span<const Edge> roots, std::span<const Tensor> root_grads,
                                       std::span<const Edge> wanted, BackwardOptions options,
                                       bool stop_at_wanted) {
  Between between(roots, wanted);
  Traversal walk(options);
  for (std::size_t i = 0; i < roots.size(); ++i)
    if (between.contains(roots[i].node.get())) walk.start(roots[i], root_grads[i]);
  std::vector<std::pair<const Node*, std::size_t>> wanted_at;
  for (std::size_t i = 0; i < wanted.size(); ++i)
    if (wanted[i].node) wanted_at.emplace_back(wanted[i].node.get(), i);
  std::sort(wanted_at.begin(), wanted_at.end());
  std::vector<Tensor> result(wanted.size());
  walk.run(
      [&](Node& node, Tensors& grads) {
        auto it = std::lower_bound(wanted_at.begin(), wanted_at.end(), std::pair<const Node*, std::size_t>(&node, 0));
        bool stop = node.is_leaf();
        for (; it != wanted_at.end() && it->first == &node; ++it) {
          result[it->second] = grads[wanted[it->second].index];
          stop |= stop_at_wanted;
        }
        return !stop;
      },
      &between);
  return result;
}

std::vector<Tensor> grad(const std::vector<Tensor>& outputs, const std::vector<Tensor>& inputs,
                         GradOptions options) {
  if (!options.grad_outputs.empty() && options.grad_outputs.size() != outputs.size())
    fail<AutogradError>("grad: ", options.grad_outputs.size(), " grad_outputs for ", outputs.size(),
                        " outputs");
  std::vector<Edge> roots, wanted;
  std::vector<Tensor> seeds;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (options.allow_unused && !outputs[i].requires_grad()) continue;
    seeds.push_back(seed("grad", outputs[i],
                         options.grad_outputs.empty() ? Tensor() : options.grad_outputs[i]));
    roots.push_back({outputs[i].impl().history, outputs[i].impl().output_index});
  }
  for (const Tensor& x : inputs) {
    if (!x.requires_grad() && !options.allow_unused)
      fail<AutogradError>("grad: input ", x, " does not require a gradient");
    wanted.push_back({x.impl().history, x.impl().output_index});
  }
  auto result = detail::grad_edges(roots, seeds, wanted, {options.retain_graph, options.create_graph});
  for (std::size_t i = 0; i < inputs.size(); ++i)
    if (!result[i].defined() && !options.allow_unused)
      fail<AutogradError>("grad: the outputs do not depend on input ", i, " of shape ", inputs[i],
                          "; pass {.allow_unused = true} for an undefined gradient");
  return result;
}

}  // namespace sluice
