// The rows of a stream against those of the full pass, for models and layers of your own.
#pragma once

#include <sluice/layers/nn/pass.h>

#include <functional>
#include <string>

namespace sluice {

/// Result of streamcheck(). Converts to bool: true if all rows agree.
struct StreamcheckResult {
  bool ok = false;       // all rows agree
  double max_error = 0;  // largest |stream − full| / max(1, |full|)
  std::string message;   // the first tokens whose rows differ
  /// `ok`
  explicit operator bool() const { return ok; }
};

namespace detail {
StreamcheckResult streamcheck(const Tensor& x, const Tensor& full,
                              const std::function<Tensor(const Tensor& piece, Stream&)>& step, double tolerance);
}  // namespace detail

/// Compares the rows of step(), first token by token, then in pieces of 1, 2, 3, … tokens, with those of model(x).
/// x [batch, n, …] must not be empty. A model that mixes tokens without asking its Call, as by a cumsum() over them,
/// streams other rows without an error: this check finds it. Throws ShapeError for a result that is not [batch, n, …],
/// and what the model throws.
template <TakesPass M> StreamcheckResult streamcheck(const M& model, const Tensor& x, double tolerance = 1e-4) {
  NoGrad guard;
  const auto next = [&](const Tensor& piece, Stream& stream) { return step(model, piece, stream); };
  return detail::streamcheck(x, model(x, Pass{}), next, tolerance);
}

}  // namespace sluice
