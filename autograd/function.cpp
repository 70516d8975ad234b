#include <sluice/autograd/function.h>

#include <sluice/autograd/engine.h>
#include <sluice/autograd/walk.h>
#include <sluice/core/number/random.h>
#include <sluice/core/operands.h>
#include <sluice/core/scope.h>
#include <sluice/ops/gemm/precision.h>
#include <sluice/ops/basic.h>

#include <algorithm>
#include <set>
#include <unordered_map>
#include <utility>

namespace sluice {

namespace {

struct Custom final : Node {
  std::string op;
  CustomVjpMany f;
  std::size_t count;
  Custom(std::string o, CustomVjpMany v, std::size_t n) : op(std::move(o)), f(std::move(v)), count(n) {}
  const char* name() const override { return op.c_str(); }
  Tensors vjp_all(const Tensors& gs) override {
    Tensors inputs, ys, full;
    for (std::size_t i = 0; i < count; ++i) inputs.push_back(saved(i));
    for (std::size_t i = 0; i < gs.size(); ++i) {
      Tensor y = saved(count + i);
      if (y.requires_grad()) y.impl().output_index = static_cast<uint32_t>(i);
      full.push_back(gs[i].defined() ? gs[i] : zeros_like(y));
      ys.push_back(std::move(y));
    }
    Tensors grads = f(full, inputs, ys);
    if (grads.size() != count)
      fail<AutogradError>(op, ": its vjp returned ", grads.size(), " gradients for ", count, " inputs");
    return grads;
  }
};

/// What a segment of a graph, the nodes above `root` that were created after `start`, takes from outside.
struct Captured {
  struct Memory {
    Ref<Storage> storage;
    uint32_t version;
  };
  std::vector<Edge> edges;                            // to older nodes
  std::unordered_map<const Storage*, Memory> memory;  // that its nodes have saved and did not make, with its version

  Captured() = default;
  /// Without the edges in `known`.
  Captured(const Edge& root, uint64_t start, std::span<const Edge> known);
};

// Edges: the inputs, then everything older than the segment that it captured. The segment's own graph is dropped after
// the forward pass and built again by vjp.
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

  Tensors vjp(const Tensor& g) override {
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

 private:
  /// Versions of what the first run read, before the second.
  using Versions = std::unordered_map<const Storage*, uint32_t>;

  /// The inputs as leaves, unless the gradient itself is to be recorded: then they lead to the real history, each by an
  /// edge of its own, even when two of them are one tensor.
  std::vector<Tensor> inputs_again(bool create_graph) const {
    std::vector<Tensor> xs;
    for (std::size_t i = 0; i < inputs; ++i) {
      const Tensor x = saved(i);
      if (!x.defined()) xs.push_back(x);
      else if (create_graph) xs.push_back(record("checkpoint", x.detach(), {x}, {}, [](const Tensor& g) { return g; }));
      else xs.push_back(needs(i) ? x.detach().requires_grad_() : x.detach());
    }
    return xs;
  }

  Tensor run_again(const std::vector<Tensor>& xs) const {
    GradMode on(true);
    PrecisionScope as_before(precision);
    const detail::Restored<std::shared_ptr<detail::Sequence>> in_sequence(detail::this_sequence(), sequence);
    RngLog::Replay replay(tape);
    const Tensor y = f(xs);
    if (y.shape() != outputs[0].shape)
      fail<AutogradError>("checkpoint: the second run gave shape ", y, ", the first gave ", outputs[0].shape);
    return y;
  }

  /// Throws AutogradError if the second run read something else than the first.
  void check_reads(const Captured& again, const Versions& before) const {
    for (const Edge& e : again.edges)  // a leaf may have been frozen in the first run
      if (!e.node->is_leaf())
        fail<AutogradError>("checkpoint: the second run read a tensor with a history that the first had not read; ",
                            "capture tensors by value");
    for (const auto& [storage, now] : again.memory) {
      const auto then = captured.memory.find(storage);
      if (then == captured.memory.end() || then->second.version == before.at(storage)) continue;
      if (storage->version() == before.at(storage))  // else the function writes it itself, before it reads it
        fail<AutogradError>("checkpoint: a tensor that the function captured was edited in place (version ",
                            storage->version(), ", read at version ", then->second.version,
                            "); edit a clone of it instead");
    }
  }
};

Captured::Captured(const Edge& root, uint64_t start, std::span<const Edge> known) {
  std::set<std::pair<const Node*, uint32_t>> seen;
  for (const Edge& e : known) seen.emplace(e.node.get(), e.index);
  const auto inside = [&](const Edge& e) {
    if (e.node->seq >= start) return true;
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

}  // namespace

std::vector<Tensor> custom_op(std::string name, const std::vector<Tensor>& inputs, const CustomForwardMany& forward,
                              CustomVjpMany vjp) {
  if (!forward || !vjp) fail<ValueError>("custom_op: ", name, " has no ", forward ? "vjp" : "forward function");
  std::vector<Tensor> ys;
  {
    NoGrad guard;
    for (const Tensor& y : forward(Tensors(inputs.begin(), inputs.end()))) {
      if (!y.defined()) fail<ValueError>("custom_op: the forward function of ", name, " returned an undefined tensor");
      ys.push_back(alias(y, y.layout()));  // y may be an input or captured; its own history stays
    }
  }
  Ref<Node> node;
  const auto needs_gradient = [](const Tensor& x) { return x.requires_grad(); };
  if (grad_enabled() && std::any_of(inputs.begin(), inputs.end(), needs_gradient)) {
    node = Ref<Node>(new Custom(std::move(name), std::move(vjp), inputs.size()));
    for (const Tensor& x : inputs) {
      node->save(x);
      node->edges.push_back(edge_of(x));
    }
    for (Tensor& y : ys) {
      node->save(y.detach());
      if (is_float(y.dtype())) node->mark_last_saved_as_output();
      node->add_output(y);
      if (!is_float(y.dtype())) y.impl().history = nullptr;
    }
  }
  if (detail::observed()) [[unlikely]]
    for (const Tensor& y : ys) detail::note_op(node ? node->name() : name.c_str(), y, node.get());
  return ys;
}

Tensor custom_op(std::string name, const std::vector<Tensor>& inputs, const CustomForward& forward, CustomVjp vjp) {
  CustomForwardMany many;
  CustomVjpMany vjp_many;
  if (forward) many = [&](const Tensors& in) { return Tensors{forward(in)}; };
  if (vjp)
    vjp_many = [vjp = std::move(vjp)](const Tensors& gs, const Tensors& in, const Tensors& ys) {
      return vjp(gs[0], in, ys[0]);
    };
  return custom_op(std::move(name), inputs, many, std::move(vjp_many))[0];
}

Tensor checkpoint(const std::function<Tensor(const std::vector<Tensor>&)>& f, const std::vector<Tensor>& inputs) {
  if (!f) fail<ValueError>("checkpoint: the function is empty");
  if (!grad_enabled()) return f(inputs);
  std::function<Tensor(const std::vector<Tensor>&)> own = f;  // the one that runs again: it may hold a generator
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
  y = Tensor();  // and with it the segment's graph: memory that nobody else has was its own
  std::erase_if(captured.memory, [&](const auto& m) {
    return m.second.storage->use_count() == 1 || m.second.storage == out.impl().storage;
  });
  captured.edges.clear();
  node->captured = std::move(captured);
  node->add_output(out);
  if (detail::observed()) [[unlikely]]
    detail::note_op(node->name(), out, node.get());
  return out;
}

/// Throws unless f is a function and v can be a direction at x.
static void check_direction(const char* op, const std::function<Tensor(const Tensor&)>& f, const Tensor& x,
                            const Tensor& v) {
  if (!f) fail<ValueError>(op, ": the function is empty");
  detail::check_defined(op, {{"x", x}, {"v", v}});
  detail::check_float(op, x);
  if (v.shape() != x.shape()) fail(op, ": v=", v, " must have the shape of x=", x);
  if (v.dtype() != x.dtype()) fail<DTypeError>(op, ": v is ", v.dtype(), ", x is ", x.dtype());
}

/// f(x), which must have gradients.
static Tensor value_of(const char* op, const std::function<Tensor(const Tensor&)>& f, const Tensor& x) {
  Tensor y = f(x);
  if (!y.defined()) fail<ValueError>(op, ": the function returned an undefined tensor");
  if (!is_float(y.dtype())) fail<DTypeError>(op, ": the function must return f32, f64 or bf16 — got ", y.dtype(), y);
  return y;
}

/// The gradient of <g, v> by x for a gradient g that was recorded; zeros where g does not depend on x.
static Tensor differentiated(const Tensor& g, const Tensor& x, const Tensor& v) {
  Tensor result;
  if (g.defined() && g.requires_grad()) result = grad(g, x, {.allow_unused = true, .grad_outputs = {v}});
  return result.defined() ? result : zeros_like(x);
}

Tensor jvp(const std::function<Tensor(const Tensor&)>& f, const Tensor& x, const Tensor& v) {
  check_direction("jvp", f, x, v);
  // g(u) = Jᵀu is linear in u, and d/du <g(u), v> = J·v.
  Tensor in = x.detach().requires_grad_();
  GradMode on(true);
  const Tensor y = value_of("jvp", f, in), u = zeros_like(y).requires_grad_();
  Tensor g;
  if (y.requires_grad()) g = grad(y, in, {.create_graph = true, .allow_unused = true, .grad_outputs = {u}});
  return differentiated(g, u, v);
}

Tensor hvp(const std::function<Tensor(const Tensor&)>& f, const Tensor& x, const Tensor& v) {
  check_direction("hvp", f, x, v);
  Tensor in = x.detach().requires_grad_();
  GradMode on(true);
  const Tensor y = value_of("hvp", f, in);
  if (y.numel() != 1) fail("hvp: needs a function with one element — got f(x)=", y, " for x=", x);
  Tensor g;
  if (y.requires_grad()) g = grad(y, in, {.create_graph = true, .allow_unused = true});
  return differentiated(g, in, v);
}

Tensor jacobian(const std::function<Tensor(const Tensor&)>& f, const Tensor& x) {
  if (!f) fail<ValueError>("jacobian: the function is empty");
  detail::check_defined("jacobian", x), detail::check_float("jacobian", x);
  Tensor in = x.detach().requires_grad_();
  GradMode on(true);
  const Tensor y = value_of("jacobian", f, in);
  detail::check_rank("jacobian", y.rank() + x.rank(), x);
  Shape shape = y.shape();
  for (int64_t size : x.shape()) shape.push_back(size);
  Tensor rows = zeros({y.numel(), x.numel()}, y.options());
  for (int64_t i = 0; i < y.numel() && y.requires_grad(); ++i) {
    NoGrad guard;
    Tensor pick = zeros({y.numel()}, y.options()), one = narrow(pick, 0, i, 1), row = select(rows, 0, i);
    fill_(one, 1);
    const Tensor g =
        grad(y, in, {.retain_graph = true, .allow_unused = true, .grad_outputs = {reshape(pick, y.shape())}});
    if (g.defined()) copy_(row, reshape(g, {x.numel()}));
  }
  return reshape(rows, shape);
}

}  // namespace sluice
