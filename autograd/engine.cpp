#include <sluice/autograd/engine.h>

#include <sluice/autograd/walk.h>
#include <sluice/core/kernel/parallel.h>
#include <sluice/core/operands.h>
#include <sluice/ops/basic.h>

#include <algorithm>
#include <optional>

namespace sluice {

namespace {

using detail::Subgraph, detail::Frontier, detail::LeafCounter;

Tensor seed(const char* op, const Tensor& root, const Tensor& grad);
Tensor fitted(const Node& from, const Edge& to, Tensor g);
void collect(Leaf& leaf, Tensor g, bool create_graph);

/// True if x may be written to: defined, contiguous, without history, seen by no other tensor.
bool is_free(const Tensor& x) { return x.defined() && x.is_sole_owner() && x.is_contiguous() && !x.requires_grad(); }

/// into += g. Edits `into` in place if it has no other owner, so that a sum of k gradients needs one buffer.
void accumulate(Tensor& into, Tensor g, bool create_graph) {
  if (!into.defined()) into = std::move(g);
  else if (!create_graph && is_free(into)) add_(into, g);
  else into = into + g;
}

void run_hooks(Node& node, Tensors& grads) {
  if (!node.extras_) return;
  for (uint32_t i = 0; i < grads.size(); ++i)
    if (grads[i].defined()) node.run_hooks(i, grads[i]);
}

Tensors call_vjp(Node& node, const Tensors& gs) {
  Tensors grads = node.vjp_all(gs);
  if (grads.size() != node.edges.size())
    fail<AutogradError>(node.name(), ": returned ", grads.size(), " gradients for ", node.edges.size(), " inputs");
  if (detail::observed()) [[unlikely]]
    detail::note_vjp(node, grads);
  return grads;
}

/// The module that was running when the vjp began.
constinit thread_local const ModuleScope* module_of_walk = nullptr;

/// Sets vjp_of, which tells anomaly mode and the profiler the node of the running vjp. Scopes nest in checkpoints.
struct VjpScope {
  const Node* outer = detail::vjp_of;
  const ModuleScope* outer_module = std::exchange(module_of_walk, ModuleScope::innermost());
  explicit VjpScope(const Node& n) { detail::vjp_of = &n; }
  ~VjpScope() { detail::vjp_of = outer, module_of_walk = outer_module; }
};

/// The walk: takes the youngest waiting node, whose gradients are then complete, and passes the gradients from its vjp
/// on to its inputs. visit(node, gradients) runs the node's hooks, and returns false to stop at this node. Nodes that
/// are not in `between` are left out. With `watch`, a leaf is visited as soon as its last edge was walked.
template <class Visit>
void walk(Frontier& frontier, const BackwardOptions& options, const Subgraph* between, Visit visit,
          LeafCounter* watch = nullptr) {
  GradMode mode(options.create_graph);
  detail::DenormalMode denormals;  // set once, not in each small op
  auto wanted = [&](const Edge& e) { return e.node && (!between || between->contains(e.node.get())); };
  auto complete = [&](LeafCounter::Entry& leaf) {
    if (!leaf.grad.defined()) return;
    VjpScope scope(*leaf.node);
    Tensors grads{std::move(leaf.grad)};
    visit(*leaf.node, grads);
  };
  while (!frontier.empty()) {
    detail::Arrived p = frontier.take();
    Node& node = *p.node;
    VjpScope scope(node);
    if (!visit(node, p.grads)) continue;
    if (std::none_of(node.edges.begin(), node.edges.end(), wanted)) continue;
    const detail::PartNode* const part = options.create_graph || detail::observed() ? nullptr : node.as_part();
    Tensors grads = part ? p.grads : call_vjp(node, p.grads);
    const bool releases = !options.retain_graph && !options.create_graph;
    if (releases && !part) node.release();
    p.grads.clear();
    for (std::size_t i = 0; i < grads.size(); ++i) {
      const Edge& e = node.edges[i];
      if (!wanted(e)) continue;
      LeafCounter::Entry* leaf = watch && e.node->is_leaf() ? &watch->at(e.node.get()) : nullptr;
      if (grads[i].defined()) {
        Tensor& sum = leaf ? leaf->grad : frontier.at(e.node)[e.index];
        if (part && is_free(sum)) part->add_vjp(grads[i], sum);
        else accumulate(sum, fitted(node, e, part ? node.vjp(grads[i])[0] : std::move(grads[i])), options.create_graph);
      }
      if (leaf && --leaf->left == 0) complete(*leaf);
    }
    if (releases && part) node.release();
  }
  if (watch)  // leaves below nodes that the walk never reached
    for (LeafCounter::Entry& leaf : watch->entries()) complete(leaf);
}

}  // namespace

Tensor detail::number_like(const Tensor& root, double grad) {
  return full(root.numel() == 1 ? root.shape() : Shape{}, grad, root.options());
}

void detail::backward(const Tensor& root, const Tensor& grad, BackwardOptions options,
                      const std::function<void(Leaf&)>& final) {
  Tensor g = seed("backward", root, grad);
  Frontier frontier;
  std::optional<LeafCounter> watch;
  if (final) watch.emplace(*root.impl().history);
  const Edge at = edge_of(root);
  std::vector<Edge> wanted;
  check_defined("backward", options.inputs);
  for (const Tensor& x : options.inputs) {
    if (x.requires_grad() && !x.is_leaf())
      fail<AutogradError>("backward: input ", x, " is not a leaf; grad() gives its gradient");
    wanted.push_back(edge_of(x));
  }
  std::optional<Subgraph> between;
  if (!wanted.empty()) between.emplace(std::span(&at, 1), wanted);
  if (between && !between->contains(at.node.get())) return;
  frontier.at(at.node)[at.index] = std::move(g);
  walk(
      frontier, options, between ? &*between : nullptr,
      [&](Node& node, Tensors& grads) {
        run_hooks(node, grads);
        if (!node.is_leaf()) return true;
        collect(static_cast<Leaf&>(node), std::move(grads[0]), options.create_graph);
        if (final) final(static_cast<Leaf&>(node));
        return false;
      },
      watch ? &*watch : nullptr);
}

std::vector<Tensor> grad(const std::vector<Tensor>& outputs, const std::vector<Tensor>& inputs, GradOptions options) {
  if (!options.grad_outputs.empty() && options.grad_outputs.size() != outputs.size())
    fail<AutogradError>("grad: ", options.grad_outputs.size(), " grad_outputs for ", outputs.size(), " outputs");
  std::vector<Edge> roots, wanted;
  std::vector<Tensor> seeds;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (options.allow_unused && !outputs[i].requires_grad()) continue;
    seeds.push_back(seed("grad", outputs[i], options.grad_outputs.empty() ? Tensor() : options.grad_outputs[i]));
    roots.push_back(edge_of(outputs[i]));
  }
  for (const Tensor& x : inputs) {
    if (!x.requires_grad() && !(options.allow_unused && x.defined()))
      fail<AutogradError>("grad: input ", x, " does not require a gradient");
    wanted.push_back(edge_of(x));
  }
  auto result = detail::grad_edges(roots, seeds, wanted, {options.retain_graph, options.create_graph});
  for (std::size_t i = 0; i < inputs.size(); ++i)
    if (!result[i].defined() && !options.allow_unused)
      fail<AutogradError>("grad: the outputs do not depend on input ", i, " of shape ", inputs[i],
                          "; pass {.allow_unused = true} for an undefined gradient");
  return result;
}

std::vector<Tensor> detail::grad_edges(std::span<const Edge> roots, std::span<const Tensor> root_grads,
                                       std::span<const Edge> wanted, BackwardOptions options, bool stop_at_wanted) {
  Subgraph between(roots, wanted);
  Frontier frontier;
  GradMode mode(options.create_graph);  // also of the sums of gradients that come to one root
  for (std::size_t i = 0; i < roots.size(); ++i)
    if (between.contains(roots[i].node.get()))
      accumulate(frontier.at(roots[i].node)[roots[i].index], root_grads[i], options.create_graph);
  std::vector<std::pair<const Node*, std::size_t>> wanted_at;
  for (std::size_t i = 0; i < wanted.size(); ++i)
    if (wanted[i].node) wanted_at.emplace_back(wanted[i].node.get(), i);
  std::sort(wanted_at.begin(), wanted_at.end());
  std::vector<Tensor> result(wanted.size());
  walk(frontier, options, &between, [&](Node& node, Tensors& grads) {
    auto it = std::lower_bound(wanted_at.begin(), wanted_at.end(), std::pair<const Node*, std::size_t>(&node, 0));
    const bool ends_here = stop_at_wanted && it != wanted_at.end() && it->first == &node;
    if (!ends_here) run_hooks(node, grads);
    for (; it != wanted_at.end() && it->first == &node; ++it) result[it->second] = grads[wanted[it->second].index];
    return !ends_here && !node.is_leaf();
  });
  return result;
}

Tensor sum_to(const Tensor& g, const Shape& shape) {
  if (g.shape() == shape) return g;
  const int extra = g.rank() - shape.rank();
  bool ok = extra >= 0;
  Shape dims;
  for (int d = 0; ok && d < g.rank(); ++d) {
    int64_t want = d < extra ? 1 : shape[d - extra];
    if (d < extra || (want == 1 && g.shape()[d] != 1)) dims.push_back(d);
    else ok = want == g.shape()[d];
  }
  if (!ok) fail("sum_to: ", g, " was not broadcast from ", shape);
  return reshape(dims.empty() ? g : sum(g, dims), shape);
}

namespace {

Tensor seed(const char* op, const Tensor& root, const Tensor& grad) {
  if (!root.defined()) fail<AutogradError>(op, ": the output is undefined (default-constructed or moved from)");
  if (!root.requires_grad())
    fail<AutogradError>(op, ": the output ", root, " has no history; no input required a gradient, it was made under ",
                        "NoGrad, or it is a gradient that is constant or was taken without {.create_graph = true}");
  if (!grad.defined()) {
    if (root.numel() != 1)
      fail<AutogradError>(op, ": an output of shape ", root,
                          " is not a scalar; pass its gradient, or reduce it with sum() or mean()");
    return ones(root.shape(), root.options());
  }
  detail::check_gradient(op, grad, "an output", root);
  return grad;
}

/// g summed to the shape of the edge's target. Throws AutogradError if a vjp returned a wrong dtype, device or shape.
Tensor fitted(const Node& from, const Edge& to, Tensor g) {
  const OutputMeta& meta = to.node->outputs[to.index];
  if (g.dtype() != meta.dtype)
    fail<AutogradError>(from.name(), ": returned a gradient of dtype ", g.dtype(), " for an input of dtype ",
                        meta.dtype);
  if (g.device() != meta.device)
    fail<AutogradError>(from.name(), ": returned a gradient on ", g.device(), " for an input on ", meta.device);
  if (g.shape() == meta.shape) return g;
  try {
    return sum_to(g, meta.shape);
  } catch (const ShapeError&) {
    fail<AutogradError>(from.name(), ": returned a gradient of shape ", g, " for an input of shape ", meta.shape);
  }
}

/// accumulate() for a bf16 leaf that has a gradient: the sum is kept in f32, because in bf16 256 + 1 is 256.
void accumulate_rounded(Leaf& leaf, const Tensor& g) {
  if (!leaf.sum.defined() || leaf.grad.version() != leaf.sum_version) leaf.sum = to(leaf.grad.detach(), f32);
  add_(leaf.sum, to(g, f32));
  if (is_free(leaf.grad)) copy_(leaf.grad, leaf.sum);
  else leaf.grad = to(leaf.sum, bf16);
  leaf.sum_version = leaf.grad.version();
}

/// Adds g to a leaf's .grad(). A leaf owns its gradient alone: a gradient that is a view, or that another leaf received
/// too (both sides of a + b), is copied first. Locks, because walks on other threads may end at the same leaf.
void collect(Leaf& leaf, Tensor g, bool create_graph) {
  if (leaf.frozen) return;
  std::lock_guard lock(leaf.adding);
  const bool own = g.is_sole_owner() && g.is_contiguous();
  if (!leaf.grad.defined() && !own) g = clone(g);
  if (leaf.grad.defined() && leaf.grad.dtype() == bf16 && !create_graph) accumulate_rounded(leaf, g);
  else leaf.sum = Tensor(), accumulate(leaf.grad, std::move(g), create_graph);
  if (detail::observed()) [[unlikely]]
    detail::note_vjp(leaf, {leaf.grad});
}

}  // namespace

std::string detail::running_module() {
  if (!vjp_of || ModuleScope::innermost() != module_of_walk) return ModuleScope::path();
  return vjp_of->extras_ ? vjp_of->extras_->module_path : "";
}
void detail::remember_module(Node& node) { node.extras().module_path = running_module(); }

}  // namespace sluice
