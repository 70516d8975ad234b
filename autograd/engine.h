// The backward walk: from outputs to leaves in descending order of creation.
//
// Threads. Each thread may record and walk graphs of its own, and the graphs may share leaves: gradients that reach a
// leaf from several threads are all added, in the order of their arrival. Not safe at the same time: two walks through
// one recorded node (other than a leaf), unless both retain the graph and no checkpoint of it draws random numbers; a
// walk, and reading, setting or clearing .grad() of a leaf that the walk reaches; a computation, and an in-place edit
// (an optimiser's step) of its operands; registering and removing hooks. AnomalyMode checks all threads; the thread
// that made a bad value gets the error.
#pragma once

#include <sluice/core/kernel/running_module.h>
#include <sluice/core/node.h>

#include <concepts>
#include <functional>
#include <initializer_list>
#include <span>
#include <utility>
#include <vector>

namespace sluice {

struct BackwardOptions {
  bool retain_graph = false;  // keep saved tensors for another walk
  /// Records the gradients, so that they can be differentiated (implies retain_graph). A leaf's .grad() then has a
  /// history that owns the leaf. This cycle is freed only by zero_grad(), set_grad(grad().detach()) or a backward()
  /// without create_graph. grad() below makes no cycle.
  bool create_graph = false;
  /// The only leaves that get a gradient; empty: all. Constants, and leaves that the root does not depend on, are left
  /// alone.
  std::vector<Tensor> inputs = {};
};

/// BackwardOptions as the second argument of backward(), written by name: {.create_graph = true}.
struct NamedBackwardOptions {
  /// No number converts to this type, so the list {1, 2} stays a gradient.
  struct ByName {
    constexpr ByName() {}
  };
  ByName by_name = {};              // always left out
  bool retain_graph = false;        // as in BackwardOptions
  bool create_graph = false;        // as in BackwardOptions
  std::vector<Tensor> inputs = {};  // as in BackwardOptions
};

struct GradOptions {
  bool create_graph = false;  // the gradients have history: gradients of gradients
  bool retain_graph = false;  // the history stays for another call
  /// An input that the outputs do not depend on gives an undefined gradient instead of an error.
  bool allow_unused = false;
  /// Gradients of the outputs, one each; empty means ones (outputs must then be scalars).
  std::vector<Tensor> grad_outputs = {};
};

namespace detail {
/// A Tensor or a type that converts to one. Not bool: a bool is meant as an option.
template <class T>
concept GradientOfRoot = std::convertible_to<const T&, Tensor> && !std::same_as<T, bool>;
/// A gradient in braces: {1, 2}, {{1, 2}, {3, 4}}, {g} or {}. Takes no number, because g++ 12 converts the list
/// {.misspelt = true} to a type that takes a number and a list, as if it were the number 1.
struct GradientInBraces {
  Tensor grad = {};
  GradientInBraces() = default;
  GradientInBraces(std::initializer_list<float> row) : grad(row) {}
  GradientInBraces(std::initializer_list<std::initializer_list<float>> rows) : grad(rows) {}
  template <std::same_as<Tensor> T> GradientInBraces(const T& g) : grad(g) {}
  operator const Tensor&() const { return grad; }
};
/// Calls final(leaf) during the walk, as soon as the leaf's .grad() has all gradients of this walk.
void backward(const Tensor& root, const Tensor& grad, BackwardOptions options,
              const std::function<void(Leaf&)>& final = nullptr);
Tensor number_like(const Tensor& root, double grad);
}  // namespace detail

/// Adds d(root)/d(leaf) · grad to the .grad() of every leaf that root depends on. Throws AutogradError when root has no
/// history, when root has several elements and `grad` is not given, and when a tensor that the gradient reads was
/// edited in place or freed by an earlier walk. Throws ShapeError, DTypeError or DeviceError for a `grad` that does not
/// fit root; a number takes root's dtype and device. Leaves that the walk had reached before an exception keep what
/// they got: call zero_grad() before the next one.
///
/// A bf16 leaf adds the gradients of several calls in f32, so that many small ones are not lost in a large one. From
/// the second call until zero_grad() the leaf keeps the f32 sum, and .grad() is this sum rounded. Calls with
/// create_graph keep no f32 sum. Within one call, the gradients of a leaf that is used many times are added in bf16.
template <detail::GradientOfRoot T = detail::GradientInBraces>
void backward(const Tensor& root, const T& grad, BackwardOptions options = {}) {
  if constexpr (std::is_arithmetic_v<T>)
    return backward(root, detail::number_like(root, static_cast<double>(grad)), options);
  else return detail::backward(root, grad, std::move(options));
}
/// The same without a gradient of root.
inline void backward(const Tensor& root, NamedBackwardOptions o = {}) {
  detail::backward(root, {}, {o.retain_graph, o.create_graph, std::move(o.inputs)});
}

/// Gradients of Σ outputs (weighted by grad_outputs) with respect to the inputs, in their order.
/// Touches no .grad(), and visits only nodes between outputs and inputs. Inputs may be leaves or
/// intermediate results. Throws as backward() does, for each output. Throws AutogradError for an input that needs no
/// gradient or that no output depends on, unless `allow_unused`, and for another number of grad_outputs than of
/// outputs.
std::vector<Tensor> grad(const std::vector<Tensor>& outputs, const std::vector<Tensor>& inputs,
                         GradOptions options = {});
/// Gradient of one output with respect to one input. A template, so that grad({y}, {x}) calls the function above: its
/// result is a list, and [0] is a gradient and not an element.
template <std::same_as<Tensor> T> Tensor grad(const T& output, const T& input, GradOptions options = {}) {
  return grad(std::vector{output}, std::vector{input}, std::move(options))[0];
}

/// Σ g over the dims in which `shape` was broadcast to g's shape: the adjoint of broadcasting.
Tensor sum_to(const Tensor& g, const Shape& shape);

namespace detail {
/// grad() for edges: neither roots nor wanted points need tensors. With `stop_at_wanted` the walk ends at the wanted
/// nodes and leaves their hooks to the outer walk, which goes on from there.
std::vector<Tensor> grad_edges(std::span<const Edge> roots, std::span<const Tensor> root_grads,
                               std::span<const Edge> wanted, BackwardOptions options, bool stop_at_wanted = false);
/// The path of the running module. Within a vjp: of the module in which its op was recorded, unless the vjp runs
/// modules of its own (a checkpoint's segment).
std::string running_module();
/// Notes the running module in a new node, for observers of its backward pass.
void remember_module(Node& node);
}  // namespace detail

}  // namespace sluice
