// Calls of delta_scan() and the recurrence that they must equal.
#pragma once

#include "support/approx.h"
#include "support/array.h"

#include <sluice/ops/scan/delta_scan.h>

#include <string>

namespace sluice::testing {

enum class DeltaDecay { none, scalar, keys };
constexpr DeltaDecay kDeltaDecays[] = {DeltaDecay::none, DeltaDecay::scalar, DeltaDecay::keys};

/// S̄ = e^g ∘ S, u = w − e S̄, S = S̄ + kᵀu, o = q S, step by step: q, k [b, h, n, dk], erase [b, hv, n, dk], write
/// [b, hv, n, dv], log decays [b, hv, n] or [b, hv, n, dk] (absent: null), S_0 [b, hv, dk, dv] (absent: null). Gives o,
/// S_n and u.
Arrays delta_by_steps(const Array& q, const Array& k, const Array& erase, const Array& write, const Array* decay,
                      const Array* initial);

struct DeltaSample {
  Tensor q, k, v, beta, decay, initial;  // f64, values that f32 has too
  DeltaScanOptions options;

  DeltaSample in(DType dtype) const;
  DeltaSample in(Device device) const;
  std::string text() const;
  Tensor erase() const;  // βk, for each value head
  Tensor write() const;  // βv
};

struct DeltaSizes {
  int64_t batch, heads, value_heads, n, dk, dv;
};
/// Keys of length 1, of which two in a row have the cosine `alike`, and β in [0, 2].
DeltaSample random_delta(Rand& rand, DeltaDecay decay, const DeltaSizes& s, double alike = 0);
/// o and S_n of the recurrence.
std::vector<Tensor> delta_recurrence(const DeltaSample& s);
/// delta_rule(): o and S_n, then the gradients of q, k, v, β, the decay and S_0, which have the cotangents of a seed.
std::vector<Tensor> run_delta(const DeltaSample& s, bool differentiable = false);
/// Fails unless each result is within tolerance · the largest number of `want`, which counts as 0.1 at least.
void check_delta(const std::vector<Tensor>& got, const std::vector<Tensor>& want, double tolerance,
                 const std::string& text);

}  // namespace sluice::testing
