// What training does with a whole model: copies, running averages, freezing, and members that visit() forgot.
//
//   Model average = clone(model);                            // shares nothing with the model
//   optimizer.step(); update_average(average, model, 0.999); // exponential moving average of the weights
//
//   const auto frozen = freeze(model.encoder);               // an optimiser leaves it as it is
//   for (NamedTensor p : frozen) p.tensor.requires_grad_();  // and trained again
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
std::vector<std::string> unlisted(const Members& m, const Tensor& loss);
}  // namespace detail

/// A copy with tensors of its own, of the same values: parameters are leaves without gradients, and what two members
/// share they share in the copy. (`M copy = m` shares the tensors of m.)
template <class M>
  requires(!std::convertible_to<const M&, const Tensor&>)  // a tensor is cloned by ops/create.h
M clone(const M& m) {
  M copy = m;
  detail::unshare(detail::members(copy));
  return copy;
}
/// Copies the values of every tensor of `from` into the one of `to` that has its name, converted to its dtype. The models
/// may be of different types. ValueError, before anything changes, unless names and shapes agree.
template <class From, class To>
void copy_state(const From& from, const To& to) {
  detail::copy_state(detail::members(from), detail::members(to));
}
/// average ← decay·average + (1 − decay)·model for the parameters of the model; other tensors are copied. 0 <= decay <= 1.
/// An average of bf16 would lose its steps to rounding: keep it in f32, by to(average, f32); the model may be bf16.
/// ValueError, before anything changes, as copy_state().
template <class M, class N>
void update_average(const M& average, const N& model, double decay) {
  detail::update_average(detail::members(average), detail::members(model), decay);
}
/// Parameters that `which` chooses (all, if it is empty) are constants from now on: no gradient is computed for them, and
/// parameters(m) leaves them out; an optimiser that has them changes them no more. Their gradients are forgotten.
/// Returns them; requires_grad_() makes them parameters again.
template <class M>
std::vector<NamedTensor> freeze(const M& m, const ParameterFilter& which = {}) {
  return detail::freeze(detail::members(m), which);
}
/// The leaves that the loss depends on and visit() of the model does not list, as "f32[4,8], read by linear": a member
/// that was forgotten in visit() and therefore is neither trained nor saved. (The other way round, parameters that the
/// loss does not reach: Optimizer::without_gradient().) Inputs that require a gradient count, too.
template <class M>
std::vector<std::string> unlisted(const M& m, const Tensor& loss) {
  return detail::unlisted(detail::members(m), loss);
}

}  // namespace sluice
