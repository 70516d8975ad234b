// The forget gate of softmax attention (Lin et al. 2025, "Forgetting Transformer: Softmax Attention with a Forget
// Gate", §3): scores decrease by the gates between key and query.
//
//   f_t = σ(x_t·W_f + b_f), one f_t for each query head     c_t = Σ_{l ≤ t} log f_l
//   y_i = Σ_{j ≤ i} softmax_j(scale·q_i·k_j + c_i − c_j)·v_j
//
// c_i − c_j is added to the scores by additional columns: −c_j in K, where Q has a constant, and c_i in Q, where K has
// a constant. With kv_heads < heads a key has one column for each query head that reads it. So attention() needs no
// change and O(n) memory, and a stream keeps the columns in its cache of keys. c grows along the text, and its
// differences between near tokens are small beside it. So c is summed in f64, and columns hold parts of it: two of f32,
// or three of bf16 where products round their operands to bf16. Three parts have 24 bits: where |c| reaches 10⁵, the
// weights of near tokens have errors of some 10⁻³. The sums go through all tokens: a document must be a run of equal
// segments.
//
// c_i is constant in a row of scores. The softmax does not depend on it, but the gradient of log f_t does:
//
//   with c_i      Σ of dS_ij over the pairs j < t ≤ i
//   without       −Σ_{j ≥ t} Σ_i dS_ij, whose pairs with t ≤ j add up to 0 but for roundings, many of them
//
// In tensors of bf16 the gradients of these columns are rounded to bf16 before the sum, so some of the error remains.
#pragma once

#include <sluice/layers/nn/heads.h>
#include <sluice/layers/nn/pass.h>

namespace sluice {

/// What f_t is made of. `learned` and `fixed` are what the paper compares with: their decay times differ by head.
enum class ForgetGate {
  input,    // σ(x_t·W_f + b_f)
  learned,  // σ(b_f)
  fixed,    // σ(b_f), not trained
  none,     // 1: softmax attention
};
constexpr const char* choices(ForgetGate) { return "input learned fixed none"; }

namespace detail {
/// Describes the four options of a forget gate, for each struct that has them.
void describe_forget_gate(auto& o, auto& f) {
  f("gate", o.gate, "f: sigmoid(x Wf + bf), sigmoid(bf), the same not trained, or 1");
  f.training("gate_bias", o.gate_bias, any_number(), "initial b_f");
  f.training("decay_first", o.decay_first, at_least(0),
             "tokens in which weights of the first head fall to 1/e at x = 0; others grow geometrically; 0: gate_bias");
  f.training("decay_last", o.decay_last, at_least(0), "of the last head");
}
}  // namespace detail

struct ForgetGateOptions {
  ForgetGate gate = ForgetGate::none;      // what f is made of
  double gate_bias = 0;                    // initial b_f
  double decay_first = 0, decay_last = 0;  // tokens in which a weight of the first and the last head falls to 1/e

  static void describe(auto& o, auto& f) { detail::describe_forget_gate(o, f); }
};

namespace detail {
/// W_f and b_f as a map dim → heads of dtype exact(dtype), for checked options. Only b_f if the gate does not read x;
/// empty without a gate.
Linear forget_map(const ForgetGateOptions& o, const HeadsOptions& heads, Rng& rng);
/// Adds the columns of c to q [batch, heads, n, dk] and k [batch, kv_heads, n, dk] of the call's tokens. The gate reads
/// x [batch, n, dim]. Padding forgets nothing: its f_t is 1. c is divided by `scale`, because attention() multiplies
/// scores by it. Outside of a stream bf16 becomes f32, and the caller must let products round it (Precision::bf16).
void add_forget_columns(Call& call, const Linear& map, const Tensor& x, double scale, Tensor& q, Tensor& k);
}  // namespace detail

}  // namespace sluice
