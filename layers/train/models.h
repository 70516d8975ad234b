// Operations of training on a whole model: copies, running averages, freezing, other parameters, and members missing in
// SLUICE_PARTS.
//
//   Model average = clone(model);                            // shares nothing with the model
//   optimizer.step(); update_average(average, model, 0.999); // exponential moving average of the weights
//
//   const auto frozen = freeze(model.encoder);               // optimisers do not change the encoder
//   for (NamedTensor p : frozen) p.tensor.requires_grad_();  // train the encoder again
//
//   for (const std::string& s : unlisted(model, loss)) std::cerr << s << '\n';
#pragma once

#include <sluice/layers/nn/module.h>
#include <sluice/layers/train/optim.h>

#include <concepts>
#include <string>
#include <vector>

namespace sluice {

namespace detail {
void copy_state(const Members& from, const Members& to);
void update_average(const Members& average, const Members& model, double decay);
std::vector<NamedTensor> freeze(const Members& m, const ParameterFilter& which);
void replace_parameters(const Members& m, const std::vector<Tensor>& values);
std::vector<std::string> unlisted(const Members& m, const Tensor& loss);
}  // namespace detail

/// Returns a copy with its own tensors of the same values. Parameters of the copy are leaves without gradients. Members
/// that share a tensor share its copy. (`M copy = m` shares the tensors of m.)
template <class M>
requires(!std::convertible_to<const M&, const Tensor&>)  // a tensor is cloned by ops/shape/create.h
    M clone(const M& m) {
  M copy = m;
  detail::unshare(detail::members(copy));
  return copy;
}
/// Copies the values of every tensor of `from` into the tensor of `to` with the same name, converted to the dtype of
/// the latter. The models may be of different types. Throws ValueError, before anything changes, unless names and
/// shapes agree.
template <class From, class To> void copy_state(const From& from, const To& to) {
  detail::copy_state(detail::members(from), detail::members(to));
}
/// average ← decay·average + (1 − decay)·model for the parameters of the model, frozen ones too; buffers are copied. A
/// decay of 1 leaves the average unchanged and a decay of 0 copies the model, even if the other side holds NaN. An
/// average in bf16 would lose its updates by rounding: convert it with to(average, f32); the model may be bf16. Throws
/// ValueError, before anything changes, unless 0 <= decay <= 1, names and shapes agree, and the average shares no
/// parameter with the model.
template <class M, class N> void update_average(const M& average, const N& model, double decay) {
  detail::update_average(detail::members(average), detail::members(model), decay);
}
/// Makes the parameters that `which` chooses (all, if it is empty) constants. No gradient is computed for frozen
/// parameters, parameters(m) does not list them, and an optimiser that has them does not change them. Their gradients
/// are cleared. Returns the frozen parameters; requires_grad_() makes a tensor a parameter again.
template <class M> std::vector<NamedTensor> freeze(const M& m, const ParameterFilter& which = {}) {
  return detail::freeze(detail::members(m), which);
}
/// Returns a copy whose parameters are `values`, one for each of parameters(m) in their order. The values may be
/// results: gradients then reach what they were computed from, as in a step of training that is itself trained (MAML),
/// or where another network computes the weights. The other tensors are those of m, which stays as it is. Throws
/// ValueError for another number of values, and for a value of another shape, dtype or device than its parameter.
template <class M> M with_parameters(const M& m, const std::vector<Tensor>& values) {
  M copy = m;
  detail::replace_parameters(detail::members(copy), values);
  return copy;
}
/// Returns the leaves that the loss depends on and that the model's SLUICE_PARTS do not list, as "f32[4,8], read by
/// linear". Such a leaf is usually a member that was forgotten there and is therefore neither trained nor saved; inputs
/// that require a gradient are also returned. For parameters that the loss does not reach see
/// Optimizer::without_gradient(). Throws AutogradError if the loss has no history.
template <class M> std::vector<std::string> unlisted(const M& m, const Tensor& loss) {
  return detail::unlisted(detail::members(m), loss);
}

}  // namespace sluice
