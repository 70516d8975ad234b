// custom_op: a node that holds the user's vjp.
#include <sluice/autograd/function.h>

#include <sluice/autograd/engine.h>
#include <sluice/ops/basic.h>

#include <algorithm>
#include <utility>

namespace sluice {

namespace {

/// Saves the inputs, then the outputs.
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

}  // namespace sluice
