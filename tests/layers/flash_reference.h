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
      GauAttentionOptions a{
          .kind = o.kind, .length = GauLength::constant, .constant_length = o.chunk, .min_length = o.min_length};
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

inline Tokens tokens_of(int64_t n, int64_t batch_entry, const Tensor& key_mask, const Tensor& segments) {
  Tokens t{std::vector<bool>(static_cast<std::size_t>(n), true), {}};
  if (key_mask.defined()) t.real = select(key_mask, 0, batch_entry).to_vector<bool>();
  if (segments.defined()) t.document = select(segments, 0, batch_entry).to_vector<int64_t>();
  return t;
}

// -- samples ------------------------------------------------------------------------------------------------

constexpr ChunkScaling kChunkScalings[] = {ChunkScaling::su, ChunkScaling::lucid, ChunkScaling::eq,
                                           ChunkScaling::paper_code, ChunkScaling::chunk};

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
