// Calls of linear_scan() with decays from none to total, and the recurrence they must equal.
#pragma once

#include "support/approx.h"
#include "support/array.h"

#include <sluice/ops/scan/linear_scan.h>

#include <string>

namespace sluice::testing {

struct ScanSample {
  Tensor q, k, v, decay;  // f64, values that f32 has too
  LinearScanOptions options;

  ScanSample in(DType dtype) const;
  std::string text() const;
};

enum class ScanKind { none, scalar, keys, values };
constexpr ScanKind kScanKinds[] = {ScanKind::none, ScanKind::scalar, ScanKind::keys, ScanKind::values};
/// Logs of decays: mild, of all sizes mixed, or one for all: 0, −50, −10⁴.
enum class Strength { mild, mixed, none, strong, total };
constexpr Strength kStrengths[] = {Strength::mild, Strength::mixed, Strength::none, Strength::strong, Strength::total};

/// q, k of shape `q`, values of width e, and a decay that may broadcast in any of its dims.
ScanSample random_scan(Rand& rand, ScanKind kind, Strength strength, const Shape& q, int64_t e);

/// S ← e^g ∘ S + kᵀv, o = q S (exclusive: before kᵀv), step by step as the header writes it: q, k [b, h, n, m], v [b,
/// h, n, e], log decays [b, h, n], [b, h, n, m] or, on values, [b, h, n, e]. Each step shrinks the state and adds to
/// it; in reverse, a decay stands between its step and the one before.
Array scan_by_steps(const Arrays& xs, const LinearScanOptions& o);
Tensor recurrence(const ScanSample& s);
/// linear_scan() by its definition, a masked n×n product: composed of ops, for gradients. f32 and f64.
Tensor scan_by_pairs(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& log_decay,
                     const LinearScanOptions& o);

using ScanFunction = Tensor (*)(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const LinearScanOptions&);
/// The output, then the gradients of q, k, v and the decay.
std::vector<Tensor> run_scan(ScanFunction f, const ScanSample& s);
/// Results within tolerance · the largest. The gradient of a broadcast decay is a sum over steps, which may nearly
/// cancel: decay_steps is the largest of what it adds.
void check_scan_close(const std::vector<Tensor>& got, const std::vector<Tensor>& want, double tolerance,
                      const std::string& text, double decay_steps = 0);

}  // namespace sluice::testing
