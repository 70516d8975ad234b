// Random calls of attention(): any weighting, any set of mask rules, grouped heads, biases, sink, dropout, tiles.
#pragma once

#include "support/approx.h"

#include <sluice/ops/attention/attention.h>

#include <string>

namespace sluice::testing {

struct AttentionSample {
  Tensor q, k, v;  // f64, values that f32 has too
  AttentionOptions options;
  uint64_t dropout_seed = 5;

  AttentionSample in(DType dtype) const;
  std::string text() const;
  /// bool [batch, heads, m, n].
  Tensor visible() const;
};

struct SampleLimits {
  std::vector<int64_t> sizes;  // of m and n
  int64_t batch = 2, kv_heads = 2, group = 3, width = 9;
};
AttentionSample random_attention(Rand& rand, const SampleLimits& limits);
/// Plain operands: no options set.
AttentionSample plain_attention(Rand& rand, Shape q, int64_t kv_heads, int64_t n, int64_t dv);

using AttentionFunction = Tensor (*)(const Tensor&, const Tensor&, const Tensor&, const AttentionOptions&, Rng*);
/// The output, then the gradients of q, k, v and of bias, relative_bias and sink where there are any, for a
/// random cotangent or the given one; with `recorded` the gradients have history, and are composed of ops.
std::vector<Tensor> run_attention(AttentionFunction f, const AttentionSample& s, const Tensor& cotangent = {},
                                  bool recorded = false);

/// |got − want| <= tolerance · max|want| (or 0.05, where all of want is nearly 0) for the first result, with
/// `gradient_tolerance` for the others.
void check_all_close(const std::vector<Tensor>& got, const std::vector<Tensor>& want, double tolerance,
                     double gradient_tolerance, const std::string& text);
void check_all_same(const std::vector<Tensor>& got, const std::vector<Tensor>& want, const std::string& text);
/// x with `value` where it is said, without history.
Tensor filled(const Tensor& x, const Tensor& where, double value);
bool all_finite(const Tensor& x);

constexpr Weighting kWeightings[] = {Weighting::softmax, Weighting::relu2, Weighting::laplace, Weighting::sigmoid,
                                     Weighting::linear};

}  // namespace sluice::testing
