// Alternating updates (AltUp; Baykal et al. 2023, "Alternating Updates for Efficient Transformers") and the learned
// augmented residual (LAuReL; Menghani et al. 2024), as Gemma 3n has them. Of s streams the first is what the layers of
// a block read; maps of s numbers update the others.
//
//   H_0 = h, H_j = rescaled(h·W_j)                        enter: before the first block
//   P_j = H_j + Σ_i m_ji H_i                              predict: m [s, s] = t(H_0)·Wp, t(x) = tanh(RMS(x)·Wr/dim)
//   H_j = P_j + (1 + c_j)·(y − P_0)                       correct: c [s] = t(y)·Wc, y is what the block makes of P_0
//   h = (H_0 + Σ_j rescaled(H_j·U_j))/s                   leave: behind the last block
//
// rescaled(x) has the root mean square of H_0.
#pragma once

#include <sluice/layers/nn/linear.h>
#include <sluice/layers/nn/norm.h>

#include <vector>

namespace sluice {

struct AltUpOptions {
  int64_t streams = 4;     // s
  bool scale = true;       // of what a block's embedding reads, see PerLayerEmbedding
  int64_t laurel = 64;     // rank of the learned augmented residual
  int64_t dim = 0;         // of a stream; set by the decoder
  double norm_eps = 1e-6;  // set by the decoder
  DType dtype = f32;       // set by the decoder
};

/// W and U: the streams of a model.
struct AltUpStreams {
  static constexpr const char* type = "AltUpStreams";
  std::vector<Linear> in, out;  // W_j and U_j of the streams behind the first, dim → dim

  AltUpStreams() = default;
  /// Throws ValueError for less than one stream.
  AltUpStreams(const AltUpOptions& o, Rng& rng);
  /// h [..., dim] → H [..., s, dim].
  Tensor enter(const Tensor& h) const;
  /// H [..., s, dim] → h [..., dim].
  Tensor leave(const Tensor& h) const;
  SLUICE_PARTS(in, out);
};

/// Wr, Wp and Wc: what one block does to the streams.
struct AltUp {
  static constexpr const char* type = "AltUp";
  Norm norm;                        // RMS
  Linear router, predict, correct;  // dim → s, s → s², s → s
  Tensor scale;                     // [dim], of what the block's embedding reads; may be absent

  AltUp() = default;
  AltUp(const AltUpOptions& o, Rng& rng);
  /// H [..., s, dim] → P, the same shape.
  Tensor predicted(const Tensor& h) const;
  /// The streams behind a block that made y [..., dim] of the first of P [..., s, dim].
  Tensor corrected(const Tensor& p, const Tensor& y) const;
  SLUICE_PARTS(norm, router, predict, correct, scale);

 private:
  Tensor modes(const Tensor& x) const;  // t(x)
};

/// u + RMS(u·L·R), with L and R of a low rank.
struct Laurel {
  static constexpr const char* type = "Laurel";
  Linear down, up;
  Norm norm;

  Laurel() = default;
  Laurel(const AltUpOptions& o, Rng& rng);
  /// u [..., dim] → the same shape.
  Tensor operator()(const Tensor& u) const;
  SLUICE_PARTS(down, up, norm);
};

}  // namespace sluice
