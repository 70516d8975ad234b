// What the n-grams that end at a token add to the residual streams of a decoder (Qwen4's per-layer embedding). For
// each length 2 … N each of `heads` hash functions names one row of a table. e is all these rows side by side:
//
//   e_t = rows of the n-grams that end at t         k = RMS(e·Wk)  v = e·Wv      k [s, dim], v [dim]
//   a_i = k_i·RMS(H_i)/√dim                          u_i = σ(sign(a_i)·√max(|a_i|, 1e-6)) ⊙ v
//   H_i ← H_i + u_i + silu(Σ_j c_j ⊙ RMS(u_i)_{t − j·N})                          c: taps of a causal convolution
//
// An n-gram that would begin before the text, or before the last boundary token, has boundary tokens there instead.
#pragma once

#include <sluice/layers/nn/linear.h>
#include <sluice/layers/nn/norm.h>
#include <sluice/layers/nn/pass.h>

#include <vector>

namespace sluice {

struct NgramInjectionOptions {
  int64_t dim;                            // of a stream
  int64_t streams = 4;                    // s
  int64_t width;                          // of e; a multiple of the number of hash functions
  int64_t boundary = 0;                   // the token between texts
  std::vector<int64_t> multipliers = {};  // N odd numbers: an n-gram's hash is the XOR of its tokens times these
  std::vector<int64_t> sizes = {};        // rows of each hash function, by length, then head: hash mod size
  int64_t rows = 0;                       // of the table, at least the sum of the sizes
  int64_t taps = 4;                       // of the convolution
  double norm_eps = 1e-6;                 // of the RMSNorms
  DType dtype = f32;                      // of all parameters

  /// N
  int64_t longest() const { return std::ssize(multipliers); }
};

/// The options' multipliers and sizes for the `layer`-th injection of a model with this vocabulary, as Qwen4 makes them
/// from a seed: sizes are the primes from `least` on, of which each injection takes those behind the one before it.
/// `divisor` divides the rows. Throws ValueError for numbers that make no table, for more than 1024 primes, and for a
/// `least` above 2³¹.
void hash_ngrams(NgramInjectionOptions& o, int64_t vocabulary, int64_t longest, int64_t heads, int64_t layer,
                 int64_t least, int64_t divisor, int64_t seed);

struct NgramInjection {
  static constexpr const char* type = "NgramInjection";
  NgramInjectionOptions options{};
  Embedding table;                        // [rows, width/functions]
  Linear key, value;                      // Wk, width → s·dim; Wv, width → dim
  Norm key_norm, query_norm, value_norm;  // of k, H and u
  Tensor conv;                            // c, [taps, s·dim]

  NgramInjection() = default;
  /// Throws ValueError for options that do not fit.
  NgramInjection(NgramInjectionOptions o, Rng& rng);
  /// What is added to h [batch, n, s·dim], for the tokens i64 [batch, n]. Padding counts as boundary tokens. A stream
  /// keeps the last N − 1 tokens and (taps − 1)·N rows.
  Tensor operator()(const Tensor& h, const Tensor& tokens, const Pass& pass = {}) const;
  /// The rows of the table for tokens i64 [batch, before + n]: i64 [batch, n, functions].
  Tensor hashes(const Tensor& tokens, int64_t before) const;

  SLUICE_PARTS(table, key, value, key_norm, query_norm, value_norm, conv);
};

}  // namespace sluice
