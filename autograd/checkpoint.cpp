// checkpoint: keeps a segment's inputs instead of its graph, and runs the segment again in the backward pass.
#include <sluice/autograd/function.h>

#include <sluice/autograd/engine.h>
#include <sluice/autograd/walk.h>
#include <sluice/core/number/random.h>
#include <sluice/core/scope.h>
#include <sluice/ops/gemm/precision.h>
#include <sluice/ops/basic.h>

#include <algorithm>
#include <set>
#include <unordered_map>
#include <utility>

namespace sluice {

namespace {

bool is_frozen(const Edge& e) { return e.node->is_leaf() && static_cast<const Leaf&>(*e.node).frozen; }

/// What a segment of a graph, the nodes above `root` that were created after `start`, takes from outside.
struct Captured {
  struct Memory {
    Ref<Storage> storage;
    uint32_t version;
  };
  std::vector<Edge> edges;                            // to older nodes
  std::set<const Node*> reached;                      // all older nodes
  std::unordered_map<const Storage*, Memory> memory;  // memory that its nodes saved but did not make

  Captured() = default;
  /// Leaves out the edges in `known`.
  Captured(const Edge& root, uint64_t start, std::span<const Edge> known);
};

/// Edges: the inputs, then everything older than the segment that it captured. The segment's own graph is dropped after
/// the forward pass and built again by vjp.
struct Checkpoint final : Op<"checkpoint"> {
  std::function<Tensor(const std::vector<Tensor>&)> f;
  RngLog tape;
  // When the segment ran first: the precision of products, and the sequence that is cut over ranks.
  Precision precision = sluice::precision();
  std::shared_ptr<detail::Sequence> sequence = detail::this_sequence();
  std::size_t inputs;
  Captured captured;
  Checkpoint(std::function<Tensor(const std::vector<Tensor>&)> fn, RngLog t, std::size_t n)
      : f(std::move(fn)), tape(std::move(t)), inputs(n) {}
  Tensors vjp(const Tensor& g) override;
  void release() override { Node::release(), f = nullptr, captured = {}; }

 private:
  /// Versions, before the second run, of the memory that the first run read.
  using Versions = std::unordered_map<const Storage*, uint32_t>;

  /// The inputs as leaves, unless the gradient itself is to be recorded: then they lead to the real history, each by an
  /// edge of its own, even when two of them are one tensor.
  std::vector<Tensor> inputs_again(bool create_graph) const;
  Tensor run_again(const std::vector<Tensor>& xs) const;
  /// Throws AutogradError if the second run read something else than the first.
  void check_reads(const Captured& again, const Versions& before) const;
};

}  // namespace

Tensor checkpoint(const std::function<Tensor(const std::vector<Tensor>&)>& f, const std::vector<Tensor>& inputs) {
  if (!f) fail<ValueError>("checkpoint: the function is empty");
  if (!grad_enabled()) return f(inputs);
  std::function<Tensor(const std::vector<Tensor>&)> own = f;  // the copy that runs again: it may hold a generator
  RngLog tape;
  std::vector<Tensor> xs;
  for (const Tensor& x : inputs) {
    xs.push_back(x.defined() ? x.detach() : x);
    if (x.requires_grad()) xs.back().requires_grad_();
  }
  const uint64_t start = detail::next_seq();  // nodes of the segment come after this number
  Tensor y;
  {
    RngLog::Record on(tape);
    y = own(xs);
  }
  if (!y.requires_grad()) return y;
  std::vector<Edge> known;
  for (const Tensor& x : xs) known.push_back(edge_of(x));
  Captured captured(edge_of(y), start, known);
  Ref<Checkpoint> node(new Checkpoint(std::move(own), std::move(tape), inputs.size()));
  for (const Tensor& x : inputs) {
    node->save(x);
    node->edges.push_back(edge_of(x));
  }
  for (Edge& e : captured.edges) node->edges.push_back(std::move(e));
  Tensor out = y.detach();
  y = Tensor();  // drops the segment's graph: what memory has no other owner now, the segment made
  std::erase_if(captured.memory, [&](const auto& m) {
    return m.second.storage->use_count() == 1 || m.second.storage == out.impl().storage;
  });
  captured.edges.clear(), captured.reached.clear();
  node->captured = std::move(captured);
  node->add_output(out);
  if (detail::observed()) [[unlikely]]
    detail::note_op(node->name(), out, node.get());
  return out;
}

Tensors Checkpoint::vjp(const Tensor& g) {
  if (!f)
    fail<AutogradError>("checkpoint: the graph was already freed by an earlier backward pass; keep it with ",
                        "{.retain_graph = true} in that pass");
  const bool create_graph = grad_enabled();
  const std::vector<Tensor> xs = inputs_again(create_graph);
  Versions before;
  for (const auto& [storage, then] : captured.memory) before[storage] = storage->version();
  const uint64_t start = detail::next_seq();
  const Tensor y = run_again(xs);
  std::vector<Edge> wanted;
  for (std::size_t i = 0; i < edges.size(); ++i) wanted.push_back(i < inputs ? edge_of(xs[i]) : edges[i]);
  const Edge root = edge_of(y);
  if (!root.node) return Tensors(edges.size());
  check_reads(Captured(root, start, wanted), before);
  auto grads = detail::grad_edges({&root, 1}, {&g, 1}, wanted, {.create_graph = create_graph}, true);
  // Hooks that f registers on its inputs. Those of captured tensors run when the outer walk gets there.
  for (std::size_t i = 0; i < inputs; ++i)
    if (grads[i].defined()) wanted[i].node->run_hooks(wanted[i].index, grads[i]);
  return Tensors(grads.begin(), grads.end());
}

std::vector<Tensor> Checkpoint::inputs_again(bool create_graph) const {
  std::vector<Tensor> xs;
  for (std::size_t i = 0; i < inputs; ++i) {
    const Tensor x = saved(i);
    if (!x.defined()) xs.push_back(x);
    else if (create_graph) xs.push_back(record("checkpoint", x.detach(), {x}, {}, [](const Tensor& g) { return g; }));
    else xs.push_back(needs(i) ? x.detach().requires_grad_() : x.detach());
  }
  return xs;
}

Tensor Checkpoint::run_again(const std::vector<Tensor>& xs) const {
  GradMode on(true);
  PrecisionScope as_before(precision);
  const detail::Restored<std::shared_ptr<detail::Sequence>> in_sequence(detail::this_sequence(), sequence);
  RngLog::Replay replay(tape);
  RngLog again;
  const Tensor y = [&] {
    RngLog::Record on(again);
    return f(xs);
  }();
  if (!same_draws(tape, again))
    fail<AutogradError>("checkpoint: the second run drew other random numbers than the first");
  const OutputMeta& first = outputs[0];
  if (!y.defined()) fail<AutogradError>("checkpoint: the second run returned an undefined tensor");
  if (y.shape() != first.shape || y.dtype() != first.dtype)
    fail<AutogradError>("checkpoint: the second run gave ", y.dtype(), y, ", the first gave ", first.dtype,
                        first.shape);
  const auto captured_frozen = std::any_of(edges.begin() + static_cast<std::ptrdiff_t>(inputs), edges.end(), is_frozen);
  if (!y.requires_grad() && !captured_frozen)
    fail<AutogradError>("checkpoint: the second run gave a constant, the first a tensor with a history");
  return y;
}

void Checkpoint::check_reads(const Captured& again, const Versions& before) const {
  for (std::size_t i = inputs; i < edges.size(); ++i) {
    const Node* const node = edges[i].node.get();
    if (node->is_leaf() && !is_frozen(edges[i]) && !again.reached.contains(node))
      fail<AutogradError>("checkpoint: the second run did not read a leaf that the first had read; ",
                          "capture tensors by value");
  }
  for (const Edge& e : again.edges)  // a leaf may have been frozen in the first run
    if (!e.node->is_leaf())
      fail<AutogradError>("checkpoint: the second run read a tensor with a history that the first had not read; ",
                          "capture tensors by value");
  for (const auto& [storage, now] : again.memory) {
    const auto then = captured.memory.find(storage);
    if (then == captured.memory.end() || then->second.version == before.at(storage)) continue;
    if (storage->version() == before.at(storage))  // otherwise f writes it itself, before it reads it
      fail<AutogradError>("checkpoint: a tensor that the function captured was edited in place (version ",
                          storage->version(), ", read at version ", then->second.version,
                          "); edit a clone of it instead");
  }
}

Captured::Captured(const Edge& root, uint64_t start, std::span<const Edge> known) {
  std::set<std::pair<const Node*, uint32_t>> seen;
  for (const Edge& e : known) seen.emplace(e.node.get(), e.index);
  const auto inside = [&](const Edge& e) {
    if (e.node->seq >= start) return true;
    reached.insert(e.node.get());
    if (seen.emplace(e.node.get(), e.index).second) edges.push_back(e);
    return false;
  };
  detail::each_node({&root, 1}, inside, [&](const Node& n) {
    for (const Saved& s : n.all_saved()) {
      const bool made_here = s.is_output || (s.impl && s.impl->history && s.impl->history->seq >= start);
      if (s.impl && !made_here) memory.try_emplace(s.impl->storage.get(), Memory{s.impl->storage, s.version});
    }
    if (const auto* inner = dynamic_cast<const Checkpoint*>(&n))
      memory.insert(inner->captured.memory.begin(), inner->captured.memory.end());
  });
}

}  // namespace sluice
