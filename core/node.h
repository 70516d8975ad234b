// History: the nodes and edges that ops record so that gradients can be computed. The backward walk is in
// sluice/autograd; ops need only this header.
//
//   y = f(a, b) recorded:   y.history ──► Node{f} ──edges──► history of a, history of b
//
// Ownership points backwards only (a result owns its node, a node owns its inputs' nodes), so there
// are no cycles; saved outputs are kept as aliases without history. Sequence numbers grow with
// creation, so descending order is a valid order for the backward walk.
#pragma once

#include <sluice/core/kernel/observer.h>
#include <sluice/core/tensor.h>

#include <algorithm>
#include <functional>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

namespace sluice {

namespace detail {
struct PartNode;
}

/// Where a gradient goes: output `index` of `node`. A null node means no gradient is wanted.
struct Edge {
  Ref<Node> node;
  uint32_t index = 0;
};

/// Shape, dtype and device of a node's output, without holding the tensor.
struct OutputMeta {
  Shape shape;
  DType dtype = f32;
  Device device = cpu;
};

/// A tensor kept for the backward pass, with its version at that time. An input keeps its history. An output is kept
/// without history, to avoid an ownership cycle; Node::saved() restores it while ops record.
struct Saved {
  Ref<TensorImpl> impl;
  uint32_t version = 0;
  bool is_output = false;
};

/// What an op left behind for the backward pass: an edge for each input, a description of each output, the tensors that
/// its gradient reads, and that gradient (vjp). The tensors that it made own it.
class Node : public RefCounted, public detail::Pooled {
 public:
  Node();
  virtual ~Node();

  /// The op's public name.
  virtual const char* name() const = 0;
  /// Vector-Jacobian product: the gradient of each input, given the gradient of the output. Written
  /// in ops, so that it can be recorded itself. Entries may be undefined (zero), may be larger than
  /// the input by broadcasting (the engine sums them down), and need not be computed when !needs(i).
  virtual Tensors vjp(const Tensor& g);
  /// For nodes with several outputs; entries of `gs` are undefined where no gradient arrived.
  virtual Tensors vjp_all(const Tensors& gs) { return vjp(gs[0]); }
  /// Drops the saved tensors. The engine calls it after the walk has passed this node, unless the graph is retained.
  virtual void release();
  virtual bool is_leaf() const { return false; }
  /// This node as one that can add its gradient to a sum; null for most.
  virtual const detail::PartNode* as_part() const { return nullptr; }

  bool needs(std::size_t input) const { return bool(edges[input].node); }
  /// The i-th saved tensor. Throws AutogradError naming this op if it was edited or released.
  Tensor saved(std::size_t i) const;
  void save(const Tensor& x);
  void mark_last_saved_as_output() { saved_.back().is_output = true; }
  /// All saved tensors, unchecked.
  std::span<const Saved> all_saved() const { return {saved_.begin(), saved_.end()}; }
  void add_output(Tensor& y);  // makes this the history of y
  /// Adds a hook of an output. This node owns the hook; emptying the returned hook removes it.
  std::weak_ptr<HookHandle::Hook> add_hook(uint32_t output, HookHandle::Hook hook);
  /// Applies the hooks of an output to its gradient.
  void run_hooks(uint32_t output, Tensor& grad);

  uint64_t seq;  // creation order
  SmallVector<Edge, 3> edges;
  SmallVector<OutputMeta, 1> outputs;
  struct Extras {
    std::vector<std::pair<uint32_t, std::shared_ptr<HookHandle::Hook>>> hooks;  // with the output that each is for
    std::string module_path;                                                    // set by anomaly mode and the profiler
  };
  Extras& extras();
  std::unique_ptr<Extras> extras_;

 private:
  friend void dispose(Node*);
  SmallVector<Saved, 3> saved_;
  Node* next_dead_ = nullptr;
  bool released_ = false;
};

namespace detail {
/// The node of a part of a tensor. The backward walk adds its gradient to the part's places in a sum that is there
/// already: a loop over the rows of a tensor would else add a tensor of its size for each row.
struct PartNode : Node {
  const PartNode* as_part() const final { return this; }
  /// sum += vjp(g)[0], in place: only the part is read and written.
  virtual void add_vjp(const Tensor& g, Tensor& sum) const = 0;
};
/// A literal as a template argument.
template <std::size_t N> struct Literal {
  char text[N] = {};
  constexpr Literal(const char (&s)[N]) { std::copy_n(s, N, text); }
};
}  // namespace detail
/// A node of the op with this name.
template <detail::Literal op> struct Op : Node {
  static const char* op_name() { return op.text; }
  const char* name() const override { return op_name(); }
};

/// Ends a node's life without recursion: a chain of a million nodes unwinds in a loop.
void dispose(Node*);

/// The edge that x's gradient takes; a null edge if x is undefined or needs no gradient.
inline Edge edge_of(const Tensor& x) {
  return x.requires_grad() ? Edge{x.impl().history, x.impl().output_index} : Edge{};
}

/// The history of a parameter: the place where its gradient is collected.
class Leaf final : public Node {
 public:
  explicit Leaf(Tensor& x);
  const char* name() const override { return "leaf"; }
  bool is_leaf() const override { return true; }
  void release() override {}
  Tensor grad;
  bool frozen = false;       // collects no gradients: its tensor requires none for a while
  Tensor sum = {};           // bf16 leaves: the f32 sum over several walks; `grad` is this sum, rounded
  uint32_t sum_version = 0;  // version of `grad` when it was rounded from `sum`; if it differs, `grad` was edited
  std::mutex adding;         // held while a backward walk adds to `grad`
};

// -- recording -----------------------------------------------------------------------------------

/// True while ops record history on this thread.
bool grad_enabled();
void set_grad_enabled(bool on);

namespace detail {
extern constinit thread_local bool grad_mode;
}
/// Switches recording for a scope. The constructors are nodiscard, not the type: so GCC, too, warns of `NoGrad();`.
struct GradMode : detail::Restored<bool> {
  [[nodiscard]] explicit GradMode(bool on) : Restored(detail::grad_mode, on) {}
};
struct NoGrad : GradMode {
  [[nodiscard]] NoGrad() : GradMode(false) {}
};

using TensorRef = std::reference_wrapper<const Tensor>;
/// Tensors for the length of a call, as {x, y}.
struct TensorRefs : std::span<const TensorRef> {
  using span::span;
  TensorRefs(std::initializer_list<TensorRef> xs) : span(xs.begin(), xs.size()) {}
};

namespace detail {
/// The next number in creation order; every Node takes one.
uint64_t next_seq();
inline bool any_requires_grad(TensorRefs xs) {
  for (const Tensor& x : xs)
    if (x.requires_grad()) return true;
  return false;
}
/// Makes a new node the history of y. Frees the node if there is no memory for that.
void connect(Node& node, TensorRefs inputs, TensorRefs saves, Tensor& y);
}  // namespace detail

inline bool grad_enabled() { return detail::grad_mode; }
inline void set_grad_enabled(bool on) { detail::grad_mode = on; }

namespace detail {
/// record() for a node N(args…), which observers see under the name `op`.
template <class N, class... Args>
Tensor record_as(const char* op, Tensor y, TensorRefs inputs, TensorRefs saves, Args&&... args) {
  Node* made = nullptr;
  if (grad_enabled() && any_requires_grad(inputs)) {
    made = new N(std::forward<Args>(args)...);
    connect(*made, inputs, saves, y);
  }
  if (observed()) [[unlikely]]
    note_op(op, y, made);
  return y;
}
}  // namespace detail

/// The last line of every op. Returns y. If gradients are wanted, makes a Node of type N(args…) its history, with one
/// edge per input, and keeps `saves` for the backward pass.
template <class N, class... Args> Tensor record(Tensor y, TensorRefs inputs, TensorRefs saves, Args&&... args) {
  return detail::record_as<N>(N::op_name(), std::move(y), inputs, saves, std::forward<Args>(args)...);
}

namespace detail {
/// The node of a rule: a gradient that is one expression. `rule` is called with g, or with (node, g) if it reads saved
/// tensors. It returns the gradient of the first input, or Tensors for all inputs.
template <class Rule> struct RuleNode final : Node {
  const char* op;
  Rule rule;
  RuleNode(const char* o, Rule r) : op(o), rule(std::move(r)) {}
  const char* name() const override { return op; }
  Tensors vjp(const Tensor& g) override {
    if constexpr (std::is_invocable_v<const Rule&, const Node&, const Tensor&>) return {rule(*this, g)};
    else return {rule(g)};
  }
};
}  // namespace detail

/// record() for a gradient that is one expression, written beside the result:
///
///   return record("permute", alias(x, l), {x}, {}, [inverse](const Tensor& g) { return permute(g, inverse); });
template <class Rule> Tensor record(const char* op, Tensor y, TensorRefs inputs, TensorRefs saves, Rule rule) {
  return detail::record_as<detail::RuleNode<Rule>>(op, std::move(y), inputs, saves, op, std::move(rule));
}

/// Throws unless x can be edited in place: ShapeError if several elements share one place in memory, AutogradError if x
/// requires a gradient and ops record.
void check_in_place(const char* op, const Tensor& x);

namespace detail {
/// Gives every handle of x, a leaf or a constant, the memory of `now`: its values, dtype and device. No other tensor
/// may hold this memory. A leaf stays the same leaf, with its hooks, and `grad` becomes its gradient. Graphs that saved
/// x throw AutogradError, as after an in-place edit.
void replace_memory(Tensor& x, const Tensor& now, Tensor grad);
/// How often replace_memory() has replaced memory of a device other than the CPU.
uint64_t replaced_memory();
}  // namespace detail

}  // namespace sluice
