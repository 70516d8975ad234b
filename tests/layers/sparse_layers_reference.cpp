// References of the layers with chosen or doubly stochastic weights.
#include "layers/heads_reference.h"

namespace sluice::testing {

namespace {

/// The k best visible keys of each row: the first of equals, or all that are at least as good as the k-th.
Matrix topk_attention(const LayerFacts& l, const LayerSequence& s) {
  const std::size_t top = l.size("k"), window = l.size("window");
  return by_heads(l, s, projected(l, s), [&](std::size_t h, const Matrix& q, const Matrix& k, const Matrix& v) {
    Matrix scores(q.size(), std::vector<double>(k.size(), kHidden));
    for (std::size_t i = 0; i < q.size(); ++i) {
      std::vector<std::size_t> best;
      for (std::size_t j = 0; j < k.size(); ++j) {
        const std::size_t distance = i > j ? i - j : j - i;
        if (sees(l, s, h, i, j) && (window == 0 || distance < window)) best.push_back(j);
      }
      const auto score = [&](std::size_t j) { return scaled_dot(q[i], k[j]) + (s.bias.empty() ? 0 : s.bias[i][j]); };
      std::stable_sort(best.begin(), best.end(), [&](std::size_t a, std::size_t b) { return score(a) > score(b); });
      std::size_t kept = std::min(top, best.size());
      if (l.text("ties") == "threshold")
        while (kept < best.size() && score(best[kept]) == score(best[kept - 1])) ++kept;
      for (std::size_t r = 0; r < kept; ++r) scores[i][best[r]] = score(best[r]);
    }
    return softmax_of(q.size(), v, [&](std::size_t i, std::size_t j) { return scores[i][j]; });
  });
}

/// f of all pairs; the options that say which are "kind" and "activation", or those of ThresholdAttention.
Matrix pair_scores(const LayerFacts& l, const std::string& kind, const std::string& act, const Matrix& x) {
  const Matrix rows = dense(l, "row", x), cols = dense(l, "col", x);
  const std::vector<double> distance = l.values("distance"), weight = l.values("weight"), bias = l.values("bias");
  Matrix f = matrix(static_cast<int64_t>(x.size()), static_cast<int64_t>(x.size()));
  for (std::size_t i = 0; i < x.size(); ++i)
    for (std::size_t j = 0; j < x.size(); ++j) {
      if (kind == "bilinear") {
        f[i][j] = dot(rows[i], cols[j]);
        continue;
      }
      f[i][j] = bias[0];
      for (std::size_t c = 0; c < weight.size(); ++c)
        f[i][j] +=
            weight[c] * activation_reference(
                            from_name<Act>(act),
                            rows[i][c] + cols[j][c] + (static_cast<double>(i) - static_cast<double>(j)) * distance[c]);
    }
  return f;
}

Matrix threshold_attention(const LayerFacts& l, const LayerSequence& s) {
  const Matrix f = pair_scores(l.part("score"), l.text("score"), "gelu", s.x);
  const bool soft = l.text("mode") == "soft";
  const bool self = l.option("include_self").is_null() ? !soft : l.text("include_self") == "yes";
  const double tau = l.values("tau")[0];
  return by_heads(l, s, projected(l, s), [&](std::size_t h, const Matrix& q, const Matrix& k, const Matrix& v) {
    return softmax_of(q.size(), v, [&](std::size_t i, std::size_t j) {
      if (!sees(l, s, h, i, j)) return kHidden;
      const double score = scaled_dot(q[i], k[j]) + (s.bias.empty() ? 0 : s.bias[i][j]), above = f[i][j] - tau;
      if (self && i == j) return score;
      if (soft) return score - std::log1p(std::exp(-above / l.real("temperature")));
      return above > 0 ? score : kHidden;
    });
  });
}

// -- Sinkhorn ------------------------------------------------------------------------------------------------------

/// Iterations in the plain domain, on a square matrix of what is real. The first division takes the factor of a whole
/// column (row) away, so that the largest exponent of each may be 0.
Matrix doubly_stochastic(const LayerFacts& l, Matrix m) {
  const bool literal = l.text("variant") == "literal", rows_last = l.text("last") == "rows";
  const auto exponentiate = [&] {
    std::vector<double> largest(m.size(), l.size("iterations") == 0 ? 0 : -INFINITY);
    for (std::size_t i = 0; i < m.size() && l.size("iterations") > 0; ++i)
      for (std::size_t j = 0; j < m.size(); ++j)
        largest[rows_last ? j : i] = std::max(largest[rows_last ? j : i], m[i][j]);
    for (std::size_t i = 0; i < m.size(); ++i)
      for (std::size_t j = 0; j < m.size(); ++j)
        m[i][j] = std::exp(l.real("lambda") * (m[i][j] - largest[rows_last ? j : i]));
  };
  if (!literal) exponentiate();
  for (std::size_t t = 0; t < l.size("iterations"); ++t) {
    if (literal) exponentiate();
    if (rows_last) divide_columns(m), divide_rows(m);
    else divide_rows(m), divide_columns(m);
  }
  return m;
}

std::vector<std::size_t> real_tokens(const LayerSequence& s) {
  std::vector<std::size_t> real;
  for (std::size_t i = 0; i < s.x.size(); ++i)
    if (s.real[i]) real.push_back(i);
  return real;
}

/// As if padding were not there; its rows are 0.
Matrix sinkhorn_attention(const LayerFacts& l, const LayerSequence& s) {
  const std::vector<std::size_t> real = real_tokens(s);
  return by_heads(l, s, projected(l, s), [&](std::size_t, const Matrix& q, const Matrix& k, const Matrix& v) {
    Matrix p(real.size(), std::vector<double>(real.size()));
    for (std::size_t i = 0; i < real.size(); ++i)
      for (std::size_t j = 0; j < real.size(); ++j) p[i][j] = scaled_dot(q[real[i]], k[real[j]]);
    p = doubly_stochastic(l, p);
    if (const std::size_t top = l.size("top_k"); top > 0) {
      for (auto& row : p) {
        std::vector<double> sorted = row;
        std::sort(sorted.begin(), sorted.end(), std::greater<>());
        for (double& w : row)
          if (top < row.size() && w < sorted[top - 1]) w = 0;
      }
      divide_rows(p);
    }
    Matrix y = matrix(static_cast<int64_t>(v.size()), static_cast<int64_t>(v[0].size()));
    for (std::size_t i = 0; i < real.size(); ++i)
      for (std::size_t j = 0; j < real.size(); ++j)
        for (std::size_t c = 0; c < v[0].size(); ++c) y[real[i]][c] += p[i][j] * v[real[j]][c];
    return y;
  });
}

/// Means of the real tokens of each block; none for a block without one.
Matrix block_means(const Matrix& x, const std::vector<bool>& real, std::size_t block) {
  Matrix means;
  for (std::size_t from = 0; from < x.size(); from += block) {
    std::vector<double> mean(x[0].size(), 0.0);
    double tokens = 0;
    for (std::size_t j = from; j < std::min(x.size(), from + block); ++j)
      if (real[j]) {
        ++tokens;
        for (std::size_t c = 0; c < mean.size(); ++c) mean[c] += x[j][c];
      }
    if (tokens == 0) mean.clear();
    for (double& m : mean) m /= tokens;
    means.push_back(mean);
  }
  return means;
}

/// A query sees its own block, and a second one whose slot t is the mean of the real tokens at slot t of all blocks,
/// weighed by a row of P, a doubly stochastic matrix of the blocks' means.
Matrix sinkhorn_block_attention(const LayerFacts& l, const LayerSequence& s) {
  const std::size_t block = l.size("block");
  return by_heads(l, s, projected(l, s), [&](std::size_t, const Matrix& q, const Matrix& k, const Matrix& v) {
    const Matrix mq = block_means(q, s.real, block), mk = block_means(k, s.real, block);
    std::vector<std::size_t> live;
    for (std::size_t g = 0; g < mq.size(); ++g)
      if (!mq[g].empty()) live.push_back(g);
    Matrix p(live.size(), std::vector<double>(live.size()));
    for (std::size_t g = 0; g < live.size(); ++g)
      for (std::size_t h = 0; h < live.size(); ++h) p[g][h] = scaled_dot(mq[live[g]], mk[live[h]]);
    p = doubly_stochastic(l, p);

    const auto is_real = [&](std::size_t j) { return j < s.x.size() && s.real[j]; };
    Matrix out = matrix(static_cast<int64_t>(q.size()), static_cast<int64_t>(v[0].size()));
    for (std::size_t row = 0; row < live.size(); ++row)
      for (std::size_t i = live[row] * block; i < std::min(q.size(), (live[row] + 1) * block); ++i) {
        if (!s.real[i]) continue;
        Matrix values;
        std::vector<double> scores;
        for (std::size_t t = 0; t < block; ++t) {
          if (const std::size_t own = live[row] * block + t; is_real(own))
            values.push_back(v[own]), scores.push_back(scaled_dot(q[i], k[own]));
          double total = 0, shown = 0;
          std::vector<double> key(k[0].size(), 0.0), value(v[0].size(), 0.0);
          for (std::size_t h = 0; h < live.size(); ++h) {
            const double w = p[row][h];
            const std::size_t j = live[h] * block + t;
            total += w;
            if (!is_real(j)) continue;
            shown += w;
            for (std::size_t c = 0; c < key.size(); ++c) key[c] += w * k[j][c];
            for (std::size_t c = 0; c < value.size(); ++c) value[c] += w * v[j][c];
          }
          const double share = shown / total;
          if (!(share > 0)) continue;
          for (double& x : key) x /= share;
          for (double& x : value) x /= share;
          values.push_back(value), scores.push_back(scaled_dot(q[i], key) + std::log(share));
        }
        out[i] = softmax_of(1, values, [&](std::size_t, std::size_t j) { return scores[j]; })[0];
      }
    return out;
  });
}

/// |i − j| <= w, or one of both at a global position; rows of global positions may have projections of their own.
Matrix global_local_attention(const LayerFacts& l, const LayerSequence& s) {
  const auto is_global = [&](std::size_t p) {
    return std::find(s.positions.begin(), s.positions.end(), static_cast<int64_t>(p)) != s.positions.end();
  };
  HeadRows own;
  if (l.yes("separate_global")) {
    own = {heads_of(dense(l, "global_q", s.x), l.size("heads")),
           heads_of(dense(l, "global_k", s.x), l.size("kv_heads")),
           heads_of(dense(l, "global_v", s.x), l.size("kv_heads"))};
    if (l.yes("use_rope")) {
      for (Matrix& q : own.q) q = turned(l, q, false);
      for (Matrix& k : own.k) k = turned(l, k, true);
    }
  }
  const std::size_t group = l.size("heads") / l.size("kv_heads"), w = l.size("w");
  return by_heads(l, s, projected(l, s), [&](std::size_t h, const Matrix& q, const Matrix& k, const Matrix& v) {
    const auto attended = [&](const Matrix& queries, const Matrix& keys, const Matrix& values) {
      return softmax_of(queries.size(), values, [&](std::size_t i, std::size_t j) {
        const bool near = (i > j ? i - j : j - i) <= w;
        if (!s.real[j] || !(near || is_global(i) || is_global(j))) return kHidden;
        if (!s.documents.empty() && s.documents[i] != s.documents[j]) return kHidden;
        if (s.allowed && !s.allowed(h, i, j)) return kHidden;
        return scaled_dot(queries[i], keys[j]) + (s.bias.empty() ? 0 : s.bias[i][j]);
      });
    };
    Matrix y = attended(q, k, v);
    if (!own.q.empty()) {
      const Matrix rows = attended(own.q[h], own.k[h / group], own.v[h / group]);
      for (std::size_t i = 0; i < y.size(); ++i)
        if (is_global(i)) y[i] = rows[i];
    }
    return y;
  });
}

const bool registered[] = {
    register_reference("topk_attention_layer", topk_attention),
    register_reference("pair_score",
                       [](const LayerFacts& l, const LayerSequence& s) {
                         return pair_scores(l, l.text("kind"), l.text("activation"), s.x);
                       }),
    register_reference("threshold_attention_layer", threshold_attention),
    register_reference("sinkhorn_attention", sinkhorn_attention),
    register_reference("sinkhorn_block_attention", sinkhorn_block_attention),
    register_reference("global_local_attention", global_local_attention),
};

}  // namespace

}  // namespace sluice::testing
