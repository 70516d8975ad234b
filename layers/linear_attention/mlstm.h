// mLSTM, the matrix memory of xLSTM (Beck et al. 2024, "xLSTM: Extended Long Short-Term Memory", §2.3; as in xLSTM 7B,
// Beck et al. 2025): linear attention whose input gate is exponential, and divided by what the gates let in.
//
//   ĩ_t = cap(x_t·W_i + b_i)    log f_t = log σ(cap(x_t·W_f + b_f))   of each head; cap(z) = c·tanh(z/c)
//   S_t = f_t·S_{t−1} + e^{ĩ_t}·k_tᵀ [v_t, 1]
//   [o_t, d_t] = q_t·S_t / √dk      h_t = o_t / max(|d_t|, 1)
//   y = (σ(x·Wg) ⊙ LayerNorm_h(h))·Wo
//
// e^ĩ may be beyond all numbers. All sums therefore have the factor e^{−m_t} with m_t = max(m_{t−1} + log f_t, ĩ_t),
// m_0 = 0: then no gate exceeds 1, and h_t = o_t / (max(|d_t|, e^{−m_t}) + ε).
#pragma once

#include <sluice/layers/linear_attention/group_norm.h>
#include <sluice/layers/linear_attention/linear_mixer.h>

namespace sluice {

struct MlstmOptions {
  using Layer = struct Mlstm;
  int64_t dim;
  int64_t heads = 8;
  int64_t kv_heads = 0;   // 0 means heads; head h reads KV head ⌊h/(heads/kv_heads)⌋
  double expand_k = 0.5;  // heads·dk = expand_k·dim
  double expand_v = 1;    // heads·dv = expand_v·dim
  double gate_cap = 15;   // c, of the gates' logits; 0: they are not capped
  double eps = 1e-6;      // ε
  double norm_eps = 1e-6;
  int64_t chunk = 64;
  double dropout = 0;
  Init init = Init::xavier();
  DType dtype = f32;

  static void describe(auto& o, auto& f) {
    detail::describe_sizes(o, f);
    f("gate_cap", o.gate_cap, at_least(0), "c: the gates' logits become c*tanh(logit/c); 0: not");
    f("eps", o.eps, at_least(0), "of the denominator");
    detail::describe_rest(o, f);
  }
};

/// Causal, without a residual; of the maps only those of the gates have biases. Initially the gates do not depend on x:
/// b_i is −10, and b_f grows from 3 in the first head to 6 in the last.
struct Mlstm : LinearMixer {
  static constexpr const char* type = "Mlstm";
  MlstmOptions options{};
  Linear input_gate, forget_gate;  // dim → heads
  GroupNorm norm;

  Mlstm() = default;
  Mlstm(MlstmOptions o, Rng& rng);

  /// x [batch, n, dim] → the same shape. Padding changes no state. A document, a run of equal segments, begins with an
  /// empty state. A stream keeps h·(dk·(dv + 1) + 2) numbers a sequence.
  Tensor operator()(const Tensor& x, const Pass& pass = {}) const;

  SLUICE_PARTS(heads, input_gate, forget_gate, output_gate, norm);
};

}  // namespace sluice
