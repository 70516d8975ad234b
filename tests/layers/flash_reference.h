// Mixed-chunk attention and FLASH written as plain loops over one sequence: two dense n×n matrices of
// weights, entry by entry. Of the library it uses only the option names and the weights.
#pragma once

#include "layers/gau_reference.h"

#include <sluice/layers/gau/flash.h>

namespace sluice::testing {

/// What is known of the tokens of one sequence; `document` may be empty.
struct Tokens {
  std::vector<bool> real;
  std::vector<int64_t> document;
};

struct MixedMatrices {
  Matrix q_quad, k_quad, q_lin, k_lin, v;
};

/// quad + lin. `bias` is C×C, by positions within a chunk, or empty.
inline Matrix mixed_chunk_reference(const MixedMatrices& x, const MixedChunkOptions& o, const Matrix& bias,
                                    const Tokens& tokens) {
  const std::size_t n = x.v.size(), c = static_cast<std::size_t>(o.chunk), chunks = (n + c - 1) / c;
  const std::size_t e = n == 0 ? 0 : x.v[0].size();
  Matrix out = matrix(static_cast<int64_t>(n), static_cast<int64_t>(e));
  const bool documents = !tokens.document.empty();

  // Chunk by chunk: real tokens, and the range of their documents.
  std::vector<double> real(chunks, 0);
  std::vector<int64_t> low(chunks, INT64_MAX), high(chunks, INT64_MIN);
  double all_real = 0;
  for (std::size_t i = 0; i < n; ++i) {
    if (!tokens.real[i]) continue;
    real[i / c] += 1, all_real += 1;
    if (!documents) continue;
    low[i / c] = std::min(low[i / c], tokens.document[i]), high[i / c] = std::max(high[i / c], tokens.document[i]);
  }
  auto interact = [&](std::size_t g, std::size_t h) {
    if (!o.across_chunks) return g == h;
    if (o.causal && h >= g) return false;
    if (!documents) return true;
    return real[g] > 0 && real[h] > 0 && low[g] <= high[h] && low[h] <= high[g];
  };

  for (std::size_t i = 0; i < n; ++i) {
    const std::size_t g = i / c;
    if (o.quadratic) {
      Matrix keys, values, row_bias(1);
      for (std::size_t j = g * c; j < std::min(n, (g + 1) * c); ++j) {
        if (!tokens.real[j] || (o.causal && j > i)) continue;
        if (documents && tokens.document[i] != tokens.document[j]) continue;
        keys.push_back(x.k_quad[j]), values.push_back(x.v[j]);
        if (!bias.empty()) row_bias[0].push_back(bias[i - g * c][j - g * c]);
      }
      GauAttentionOptions a{.kind = o.kind, .length = GauLength::constant, .constant_length = o.chunk, .min_length = o.min_length};
      if (o.length == ChunkLength::visible) a.constant_length = static_cast<int64_t>(keys.size());
      if (!keys.empty()) {
        const Matrix y = attention_reference({x.q_quad[i]}, keys, values, a, bias.empty() ? Matrix{} : row_bias,
                                             std::vector<bool>(keys.size(), true));
        for (std::size_t f = 0; f < e; ++f) out[i][f] += y[0][f];
      }
    }
    if (o.linear) {
      double divisor = 0;
      switch (o.scaling) {
        case ChunkScaling::eq: divisor = 1; break;
        case ChunkScaling::chunk: divisor = static_cast<double>(c); break;
        case ChunkScaling::lucid:
          divisor = o.causal ? static_cast<double>(c) : o.count_padding ? static_cast<double>(n) : all_real;
          break;
        case ChunkScaling::su:
          for (std::size_t h = 0; h < chunks; ++h)
            if (interact(g, h)) divisor += real[h];
          break;
        case ChunkScaling::paper_code:
          for (std::size_t h = 0; h < chunks; ++h)
            if (interact(g, h) && real[h] > 0) divisor += static_cast<double>(c);
          break;
      }
      for (std::size_t j = 0; j < n; ++j) {
        if (!tokens.real[j] || !interact(g, j / c)) continue;
        double score = 0;
        for (std::size_t a = 0; a < x.q_lin[i].size(); ++a) score += x.q_lin[i][a] * x.k_lin[j][a];
        for (std::size_t f = 0; f < e; ++f) out[i][f] += score / divisor * x.v[j][f];
      }
    }
  }
  return out;
}

inline MixedChunkOptions mixed_options_of(const FlashOptions& o) {
  return {.chunk = o.chunk, .causal = o.causal, .kind = o.kind, .scaling = o.scaling, .length = o.length,
          .count_padding = o.count_padding, .across_chunks = o.across_chunks, .quadratic = o.quadratic,
          .linear = o.linear, .min_length = o.min_length};
}

/// b for the positions of a chunk; empty for none.
inline Matrix chunk_bias_reference(const Flash& f) {
  const FlashOptions& o = f.options;
  if (o.bias == GauBias::none) return {};
  const auto c = static_cast<std::size_t>(o.chunk);
  Matrix b = matrix(o.chunk, o.chunk), rows, cols;
  if (o.bias == GauBias::rope) {
    const Matrix ab = matrix_of(f.rope_bias);
    rows = rope_reference(Matrix(c, ab[0]), o.rope), cols = rope_reference(Matrix(c, ab[1]), o.rope.of_keys());
  }
  for (std::size_t i = 0; i < c; ++i)
    for (std::size_t j = 0; j < c; ++j) {
      if (o.bias == GauBias::toeplitz) b[i][j] = f.toeplitz_bias.to_vector<double>()[c - 1 + j - i];
      if (o.bias == GauBias::rope)
        for (std::size_t a = 0; a < rows[i].size(); ++a) b[i][j] += rows[i][a] * cols[j][a];
      if (o.bias == GauBias::t5) {
        const int bucket = t5_reference(static_cast<int>(j) - static_cast<int>(i), o.causal);
        b[i][j] = f.t5_bias.to_vector<double>()[static_cast<std::size_t>(bucket)] * std::sqrt(1.0 * o.key_dim);
      }
    }
  return b;
}

/// The whole layer on x [n, dim].
inline Matrix flash_reference(const Flash& f, const Matrix& x, const Tokens& tokens) {
  const FlashOptions& o = f.options;
  const auto e = static_cast<std::size_t>(o.expansion), s = static_cast<std::size_t>(o.key_dim);
  Matrix normed = norm_reference(f.norm, x);
  if (o.token_shift) {
    const Matrix before = normed;
    const auto width = static_cast<std::size_t>((o.dim + 1) / 2);
    for (std::size_t i = 0; i < normed.size(); ++i)
      for (std::size_t a = 0; a < width; ++a) {
        bool from_before = i > 0 && tokens.real[i - 1];
        if (from_before && !tokens.document.empty()) from_before = tokens.document[i - 1] == tokens.document[i];
        normed[i][a] = from_before ? before[i - 1][a] : 0;
      }
  }
  Matrix uvz = linear_reference(f.in, normed);
  for (auto& row : uvz)
    for (double& v : row) v = activation_reference(o.activation, v);
  const Matrix z = columns(uvz, 2 * e, s), gamma = matrix_of(f.gamma), beta = matrix_of(f.beta);
  auto scaled = [&](std::size_t which) {
    Matrix q = z;
    for (auto& row : q)
      for (std::size_t a = 0; a < s; ++a) row[a] = gamma[which][a] * row[a] + beta[which][a];
    return o.use_rope ? rope_reference(q, which % 2 == 0 ? o.rope : o.rope.of_keys()) : q;
  };
  Matrix mixed = mixed_chunk_reference({scaled(0), scaled(1), scaled(2), scaled(3), columns(uvz, e, e)},
                                       mixed_options_of(o), chunk_bias_reference(f), tokens);
  for (std::size_t i = 0; i < mixed.size(); ++i)
    for (std::size_t a = 0; a < e; ++a) mixed[i][a] *= uvz[i][a];
  Matrix y = linear_reference(f.out, mixed);
  for (std::size_t i = 0; i < y.size(); ++i)
    for (std::size_t a = 0; a < y[i].size(); ++a) y[i][a] += x[i][a];
  return y;
}

inline Tokens tokens_of(int64_t n, int64_t batch_entry, const Tensor& key_mask, const Tensor& segments) {
  Tokens t{std::vector<bool>(static_cast<std::size_t>(n), true), {}};
  if (key_mask.defined()) t.real = select(key_mask, 0, batch_entry).to_vector<bool>();
  if (segments.defined()) t.document = select(segments, 0, batch_entry).to_vector<int64_t>();
  return t;
}

/// The layer on a batch.
inline Tensor flash_reference(const Flash& f, const Tensor& x, const Tensor& key_mask = {}, const Tensor& segments = {}) {
  std::vector<double> all;
  for (int64_t b = 0; b < x.dim(0); ++b)
    for (const auto& row :
         flash_reference(f, matrix_of(select(x, 0, b)), tokens_of(x.dim(1), b, key_mask, segments)))
      all.insert(all.end(), row.begin(), row.end());
  return Tensor::from(all, x.shape());
}

// -- samples ------------------------------------------------------------------------------------------------

constexpr ChunkScaling kChunkScalings[] = {ChunkScaling::su, ChunkScaling::lucid, ChunkScaling::eq,
                                           ChunkScaling::paper_code, ChunkScaling::chunk};
constexpr ChunkLength kChunkLengths[] = {ChunkLength::chunk, ChunkLength::visible};

/// A layer in f64 with random parameters.
inline Flash random_flash(FlashOptions o, Rand& rand) {
  o.dtype = f64;
  Rng rng(1);
  return randomised(Flash(o, rng), rand);
}

/// i64 [2, n]: the documents of both sequences, which change at the given positions.
inline Tensor documents(int64_t n, const std::vector<int64_t>& first, const std::vector<int64_t>& second) {
  std::vector<int64_t> ids;
  for (const auto& cuts : {first, second})
    for (int64_t i = 0, id = 3; i < n; ++i) {
      if (std::find(cuts.begin(), cuts.end(), i) != cuts.end()) ++id;
      ids.push_back(id);
    }
  return Tensor::from(ids, {2, n});
}

/// None, padding, documents, or both, for [2, n].
struct Masks {
  Tensor keys, segments;
};
inline Masks masks(int which, int64_t n) {
  Masks m;
  if (which & 1) m.keys = prefix_mask(n, std::max<int64_t>(0, n - 4), n);
  if (which & 2) m.segments = documents(n, {n / 2}, {1, 2 * n / 3});
  return m;
}

}  // namespace sluice::testing
