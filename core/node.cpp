#include <sluice/core/node.h>

#include <sluice/core/operands.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <utility>
#include <vector>

namespace sluice {

namespace detail {
constinit thread_local bool grad_mode = true;
}  // namespace detail

uint64_t detail::next_seq() {
  static std::atomic<uint64_t> counter{1};
  return counter.fetch_add(1, std::memory_order_relaxed);
}

Node::Node() : seq(detail::next_seq()) {}
Node::~Node() = default;

Tensors Node::vjp(const Tensor&) { fail<AutogradError>(name(), ": has no gradient"); }

void Node::release() {
  saved_.clear();
  released_ = true;
}

void Node::save(const Tensor& x) { saved_.push_back({x.ref(), x.defined() ? x.version() : 0, false}); }

Tensor Node::saved(std::size_t i) const {
  if (released_)
    fail<AutogradError>(name(),
                        ": the graph was already freed by an earlier backward pass; "
                        "keep it with {.retain_graph = true} in that pass, or detach() what an earlier step computed");
  const Saved& s = saved_[i];
  if (!s.impl) return {};
  if (s.impl->storage->version() != s.version)
    fail<AutogradError>(name(), ": tensor ", s.impl->layout.shape,
                        " saved for the backward pass was edited in place or converted (version ",
                        s.impl->storage->version(), ", saved at ", s.version, "); edit a clone instead");
  if (!s.is_output || !grad_enabled()) return Tensor(s.impl);
  Tensor y = alias(Tensor(s.impl), s.impl->layout);
  y.impl().history = Ref<Node>(const_cast<Node*>(this));
  return y;
}

void Node::add_output(Tensor& y) {
  y.impl().history = Ref<Node>(this);
  y.impl().output_index = static_cast<uint32_t>(outputs.size());
  outputs.push_back({y.shape(), y.dtype(), y.device()});
}

Node::Extras& Node::extras() {
  if (!extras_) extras_ = std::make_unique<Extras>();
  return *extras_;
}

std::weak_ptr<HookHandle::Hook> Node::add_hook(uint32_t output, HookHandle::Hook hook) {
  auto& hooks = extras().hooks;
  std::erase_if(hooks, [](const auto& h) { return !*h.second; });  // those that were removed
  return hooks.emplace_back(output, std::make_shared<HookHandle::Hook>(std::move(hook))).second;
}

void Node::run_hooks(uint32_t output, Tensor& grad) {
  if (!extras_) return;
  const auto hooks = extras_->hooks;  // a copy: a hook may register another
  for (const auto& [index, shared] : hooks) {
    const HookHandle::Hook hook = *shared;  // a copy: a hook may remove itself
    if (index != output || !hook) continue;
    Tensor replacement = hook(grad);
    if (!replacement.defined()) continue;
    if (replacement.dtype() != grad.dtype())
      fail<AutogradError>(name(), ": a hook returned dtype ", replacement.dtype(), " for a gradient of dtype ",
                          grad.dtype());
    if (replacement.shape() != grad.shape())
      fail<AutogradError>(name(), ": a hook returned shape ", replacement.shape(), " for a gradient of shape ",
                          grad.shape());
    if (replacement.device() != grad.device())
      fail<AutogradError>(name(), ": a hook returned a tensor on ", replacement.device(), " for a gradient on ",
                          grad.device());
    grad = replacement;
  }
}

Leaf::Leaf(Tensor& x) { outputs.push_back({x.shape(), x.dtype(), x.device()}); }

void dispose(Node* node) {
  // Deleting a node may drop the last reference to its inputs' nodes. The nested calls queue these nodes here, so the
  // stack stays flat however long the chain is.
  constinit thread_local Node* queue = nullptr;
  constinit thread_local bool draining = false;
  node->next_dead_ = queue;
  queue = node;
  if (draining) return;
  draining = true;
  while (queue) delete std::exchange(queue, queue->next_dead_);
  draining = false;
}

void detail::connect(Node& node, TensorRefs inputs, TensorRefs saves, Tensor& y) try {
  for (const Tensor& x : inputs) {
    node.edges.push_back(edge_of(x));
    if (x.ref() == y.ref()) y = alias(y, y.layout());  // x keeps its own history
  }
  for (const Tensor& s : saves) {
    if (s.ref() == y.ref()) {
      // Saves an alias: y is about to own this node, and saving y itself would be a cycle.
      node.save(alias(y, y.layout()));
      node.mark_last_saved_as_output();
    } else {
      node.save(s);
    }
  }
  node.add_output(y);
} catch (...) {
  if (node.use_count() == 0) dispose(&node);
  throw;
}

/// True if two elements may share one place in memory. Exact for layouts whose dims nest. For other layouts, such as an
/// unfold that is then sliced with a step, it may return true although no elements share memory.
static bool overlaps(const Tensor& x) {
  std::vector<std::pair<int64_t, int64_t>> dims;  // stride, last index
  for (int d = 0; d < x.rank(); ++d)
    if (x.shape()[d] > 1) dims.emplace_back(std::abs(x.strides()[d]), x.shape()[d] - 1);
  std::sort(dims.begin(), dims.end());
  int64_t reach = 0;  // of the dims so far, from their first element to their last
  for (const auto& [stride, last] : dims) {
    if (stride <= reach) return true;
    reach += stride * last;
  }
  return false;
}

void check_in_place(const char* op, const Tensor& x) {
  detail::check_defined(op, x);
  if (!x.is_contiguous() && x.numel() > 0 && overlaps(x))
    fail(op, ": several elements of ", x, " share one place in memory (strides ", x.strides(),
         "); edit a clone instead");
  if (grad_enabled() && x.requires_grad())
    fail<AutogradError>(op, ": in-place edit of a tensor ", x.shape(),
                        " that requires a gradient; use the out-of-place op, or NoGrad for a "
                        "parameter update");
}

namespace {
constinit std::atomic<uint64_t> replaced{0};
}  // namespace
uint64_t detail::replaced_memory() { return replaced; }

void detail::replace_memory(Tensor& x, const Tensor& now, Tensor grad) {
  if (x.device() != cpu) ++replaced;
  TensorImpl &t = x.impl(), &n = now.impl();
  n.storage->supersede(*t.storage);
  t.storage = n.storage, t.layout = n.layout, t.dtype = n.dtype, t.contiguous = n.contiguous;
  const Ref<Node>& node = t.history ? t.history : t.frozen;
  if (!node) return;
  Leaf& leaf = static_cast<Leaf&>(*node);
  leaf.outputs[0].dtype = t.dtype, leaf.outputs[0].device = t.storage->device();
  leaf.grad = std::move(grad), leaf.sum = Tensor();
}

}  // namespace sluice
