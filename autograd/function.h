// Ops of your own: any forward computation with its vector-Jacobian product.
//
//   Tensor clipped_exp(const Tensor& x) {
//     return custom_op("clipped_exp", {x}, [](const Tensors& in) { return exp(clamp(in[0], -10, 10)); },
//                      [](const Tensor& g, const Tensors& in, const Tensor& y) -> Tensors { return {g * y}; });
//   }
//
// Forward runs without recording. The vjp is written in ops, so its gradient can be taken again.
#pragma once

#include <sluice/core/node.h>

#include <functional>
#include <string>
#include <vector>

namespace sluice {

/// The output, computed from the inputs without recording.
using CustomForward = std::function<Tensor(const Tensors& inputs)>;
/// Gradients of the inputs given g = dL/dy, the inputs and the output y; undefined entries mean zero.
using CustomVjp = std::function<Tensors(const Tensor& g, const Tensors& inputs, const Tensor& y)>;

/// An op of your own: `forward` runs without recording, `vjp` runs in the backward pass. `name` appears in errors and
/// graphs. With create_graph, a vjp made of ops has gradients, too. Without it the vjp records nothing; one that takes
/// gradients of a computation of its own, such as an adjoint method, records it in the scope of a GradMode(true).
/// ValueError for an empty function and for an undefined output. The backward pass throws AutogradError unless the vjp
/// gives a gradient for each input.
Tensor custom_op(std::string name, const std::vector<Tensor>& inputs, const CustomForward& forward, CustomVjp vjp);

/// custom_op() with any number of outputs. forward returns Tensors{y0, y1, …}. The vjp gets a gradient for each output,
/// zeros where none arrived. Integer and bool outputs have no history.
using CustomForwardMany = std::function<Tensors(const Tensors& inputs)>;
using CustomVjpMany = std::function<Tensors(const Tensors& gs, const Tensors& inputs, const Tensors& ys)>;
std::vector<Tensor> custom_op(std::string name, const std::vector<Tensor>& inputs, const CustomForwardMany& forward,
                              CustomVjpMany vjp);

/// Returns f(inputs) without keeping intermediate results; the backward pass runs f again (Chen et al. 2016, "sublinear
/// memory"). The second run draws the same random numbers, so dropout masks agree, and computes products in the
/// precision of the first. Gradients also reach tensors that f captures. The result of f must not be one of its inputs.
/// backward() throws AutogradError if the second run differs from the first: another shape or dtype, no history, other
/// random numbers, a captured reference that now names another tensor with gradients, or an edit of a captured tensor
/// that a gradient reads. Other edits, and references to another constant, are not noticed. ValueError for an empty f.
Tensor checkpoint(const std::function<Tensor(const std::vector<Tensor>&)>& f, const std::vector<Tensor>& inputs);

/// Jacobian-vector product J(x)·v of f at x, by differentiating the vector-Jacobian product twice. Throws ShapeError
/// unless v has the shape of x, DTypeError unless it has its dtype.
Tensor jvp(const std::function<Tensor(const Tensor&)>& f, const Tensor& x, const Tensor& v);
/// Hessian-vector product H(x)·v, with the shape of x, of a function f whose result has one element. Throws ShapeError
/// for a result of another size, and unless v has the shape of x. For the parameters of a model:
///   auto g = grad({loss}, ws, {.create_graph = true});
///   auto hv = grad(g, ws, {.grad_outputs = vs});
Tensor hvp(const std::function<Tensor(const Tensor&)>& f, const Tensor& x, const Tensor& v);
/// J(x) = ∂f/∂x [shape of f(x), shape of x], without history, by one backward pass for each element of f(x). A Hessian
/// is the Jacobian of
///   [&](const Tensor& x) { return grad(f(x), x, {.create_graph = true}); }
Tensor jacobian(const std::function<Tensor(const Tensor&)>& f, const Tensor& x);

}  // namespace sluice
