// References of attention with latent keys and values, and of differential attention.
#include "layers/heads_reference.h"

#include <algorithm>

namespace sluice::testing {

namespace {

Matrix scaled(Matrix x, double by) {
  for (auto& row : x)
    for (double& v : row) v *= by;
  return x;
}
Matrix rotated(const LayerFacts& l, const Matrix& x, bool keys) { return l.yes("use_rope") ? turned(l, x, keys) : x; }

/// The scores of DeepSeek's index: q of each head, w, and rows of keys or pools.
double index_score(const std::vector<Matrix>& q, const Matrix& w, std::size_t i, const std::vector<double>& k) {
  double score = 0;
  for (std::size_t h = 0; h < q.size(); ++h) score += w[i][h] * std::max(0.0, dot(q[h][i], k));
  return score;
}

/// The keys of the best pools of each query, and of the pool that is not whole. A pool's row is a mean of its keys
/// whose weights are, channel by channel, the softmax of x·G + p.
std::vector<std::vector<bool>> indexed_by_pools(const LayerFacts& l, const LayerSequence& s, const Matrix& latent) {
  const std::size_t size = l.size("index_pool"), width = l.size("index_dim");
  const std::vector<Matrix> q = heads_of(dense(l, "indexer.q", latent), l.size("index_heads"));
  const Matrix k = norm_of(l, "indexer.k_norm", "layer", 1e-6, dense(l, "indexer.k", s.x)),
               gate = dense(l, "indexer.pool_gate", s.x), place = l.matrix("indexer.pool_position"),
               w = dense(l, "indexer.weights", s.x);
  return in_pools(s, size, l.size("topk") / size, [&](std::size_t i, const std::vector<std::size_t>& keys) {
    std::vector<double> row(width, 0.0);
    for (std::size_t c = 0; c < width; ++c) {
      double total = 0;
      for (std::size_t b = 0; b < size; ++b) {
        const double e = std::exp(gate[keys[b]][c] + place[b][c]);
        total += e, row[c] += e * k[keys[b]][c];
      }
      row[c] /= total;
    }
    return index_score(q, w, i, row);
  });
}

/// The topk keys of each query by DeepSeek's index, the first of equals.
std::vector<std::vector<bool>> indexed(const LayerFacts& l, const LayerSequence& s, const Matrix& latent) {
  if (l.size("index_pool") > 0) return indexed_by_pools(l, s, latent);
  const std::size_t n = s.x.size(), heads = l.size("index_heads"), dr = l.size("rope_dim");
  const auto rotate = [&](const Matrix& x, double sign) {  // of the first channels, in pairs of its own
    if (dr == 0 || !l.yes("use_rope")) return x;
    RopeOptions o;
    o.base = l.real("rope_base"), o.factor = l.real("rope_factor"), o.frequencies = l.reals("rope_frequencies");
    o.offset = l.option("rope_offset").get<int64_t>(), o.xpos = sign * l.real("rope_xpos");
    o.pairing = from_name<RopePairing>(l.text("index_pairing"));
    o.rot_dim = l.option("rope_rot_dim").get<int64_t>() > 0 ? l.option("rope_rot_dim").get<int64_t>()
                                                            : static_cast<int64_t>(dr);
    return rope_reference(x, o);
  };
  std::vector<Matrix> q = heads_of(dense(l, "indexer.q", latent), heads);
  for (Matrix& h : q) h = rotate(h, 1);
  const Matrix k = rotate(norm_of(l, "indexer.k_norm", "layer", 1e-6, dense(l, "indexer.k", s.x)), -1),
               w = dense(l, "indexer.weights", s.x);
  std::vector<std::vector<bool>> seen(n, std::vector<bool>(n));
  for (std::size_t i = 0; i < n; ++i) {
    std::vector<std::size_t> best;
    std::vector<double> scores(n, 0.0);
    for (std::size_t j = 0; j < n; ++j) {
      if (!s.real[j] || (l.yes("causal") && j > i) || (!s.documents.empty() && s.documents[i] != s.documents[j]))
        continue;
      best.push_back(j);
      scores[j] = index_score(q, w, i, k[j]);
    }
    std::stable_sort(best.begin(), best.end(), [&](std::size_t a, std::size_t b) { return scores[a] > scores[b]; });
    for (std::size_t r = 0; r < std::min(l.size("topk"), best.size()); ++r) seen[i][best[r]] = true;
  }
  return seen;
}

/// Head by head with all keys and values written out.
Matrix mla(const LayerFacts& l, const LayerSequence& s) {
  const std::size_t heads = l.size("heads"), dn = l.size("nope_dim"), dr = l.size("rope_dim"), dv = l.size("value_dim"),
                    rank = l.size("kv_rank");
  const double eps = l.real("norm_eps"), scale = l.real("scale", 1 / std::sqrt(static_cast<double>(dn + dr)));
  const Matrix down = dense(l, "kv_down", s.x);
  const Matrix c = scaled(norm_of(l, "kv_norm", "rms", eps, columns(down, 0, rank)), l.real("kv_factor"));
  Matrix k_rope = columns(down, rank, dr), mixed;
  std::vector<std::vector<bool>> chosen;
  if (dr > 0 && l.yes("rope_norm")) k_rope = norm_of(l, "rope_norm", "rms", eps, k_rope);
  if (dr > 0) k_rope = rotated(l, k_rope, true);
  const bool raw = l.yes("raw_latent");
  if (l.size("q_rank") > 0) {
    const Matrix z = dense(l, "q_down", s.x), latent = scaled(norm_of(l, "q_norm", "rms", eps, z), l.real("q_factor"));
    mixed = dense(l, "q_up", raw ? beside(latent, z) : latent);
    if (l.size("topk") > 0) chosen = indexed(l, s, raw ? z : latent);
  } else {
    mixed = dense(l, "q", s.x);
  }
  const std::vector<Matrix> q = heads_of(mixed, heads), kv = heads_of(dense(l, "kv_up", c), heads);
  const std::vector<double> sinks = l.yes("sink") ? l.values("sink") : std::vector<double>(heads, kHidden);
  std::vector<Matrix> y;
  for (std::size_t h = 0; h < heads; ++h) {
    const Matrix q_nope = columns(q[h], 0, dn), k_nope = columns(kv[h], 0, dn), v = columns(kv[h], dn, dv);
    const Matrix q_rope = dr > 0 ? rotated(l, columns(q[h], dn, dr), false) : columns(q[h], dn, dr);
    y.push_back(softmax_of(
        s.x.size(), v,
        [&](std::size_t i, std::size_t j) {
          if (!sees(l, s, h, i, j) || (!chosen.empty() && !chosen[i][j])) return kHidden;
          const double grown =
              1 + l.real("growth_beta") * std::log1p(std::floor((static_cast<double>(i) + l.real("growth_offset")) /
                                                                l.real("growth_length")));
          return grown * scale * (dot(q_nope[i], k_nope[j]) + dot(q_rope[i], k_rope[j])) +
                 (s.bias.empty() ? 0 : s.bias[i][j]);
        },
        sinks[h]));
  }
  if (const std::string& gate = l.text("gate"); gate != "none") {
    const std::size_t width = gate == "headwise" ? 1 : dv;
    for (std::size_t h = 0; h < heads; ++h) {
      const Matrix logits = raw ? columns(q[h], dn + dr, width) : columns(dense(l, "gate", s.x), h * width, width),
                   g = activated(logits, "sigmoid");
      for (std::size_t i = 0; i < s.x.size(); ++i)
        for (std::size_t e = 0; e < dv; ++e) y[h][i][e] *= g[i][e % width];
    }
  }
  return dense(l, "out", joined(y));
}

/// Each map of each pair on its own, with the numbers of its heads counted out.
Matrix diff_attention(const LayerFacts& l, const LayerSequence& s) {
  const bool first = l.size("version") == 1, halves = l.text("pairing") == "halves";
  const std::size_t heads = l.size("heads"), kv_heads = l.size("kv_heads"), group = heads / kv_heads;
  const std::vector<Matrix> q = heads_of(dense(l, "q", s.x), 2 * heads),
                            k = heads_of(dense(l, "k", s.x), first ? 2 * kv_heads : kv_heads),
                            v = heads_of(dense(l, "v", s.x), first ? 2 * kv_heads : kv_heads);
  const auto numbered = [&](std::size_t pair, std::size_t member, std::size_t pairs) {
    return halves ? pair + member * pairs : 2 * pair + member;
  };
  const auto map = [&](std::size_t i, std::size_t member) {
    const std::size_t j = i / group;
    const Matrix queries = rotated(l, q[numbered(i, member, heads)], false),
                 keys = rotated(l, k[first ? numbered(j, member, kv_heads) : j], true),
                 values = first ? beside(v[numbered(j, 0, kv_heads)], v[numbered(j, 1, kv_heads)]) : v[j];
    return softmax_of(s.x.size(), values, [&](std::size_t row, std::size_t column) {
      return sees(l, s, i, row, column) ? scaled_dot(queries[row], keys[column]) : kHidden;
    });
  };
  const double init = l.real("lambda_init");
  double of_layer = 0;
  Matrix of_token;
  if (first) {
    of_layer = std::exp(dot(l.values("lambda_q1"), l.values("lambda_k1"))) -
               std::exp(dot(l.values("lambda_q2"), l.values("lambda_k2"))) + init;
  } else {
    of_token = activated(dense(l, "lambda", s.x), "sigmoid");
  }
  std::vector<Matrix> y;
  for (std::size_t i = 0; i < heads; ++i) {
    const Matrix one = map(i, 0), two = map(i, 1);
    Matrix rest = one;
    for (std::size_t t = 0; t < rest.size(); ++t)
      for (std::size_t c = 0; c < rest[t].size(); ++c)
        rest[t][c] = one[t][c] - (first ? of_layer : of_token[t][i]) * two[t][c];
    y.push_back(first ? scaled(norm_of(l, "norm", l.text("norm"), l.real("norm_eps"), rest), 1 - init) : rest);
  }
  return dense(l, "out", joined(y));
}

const bool registered[] = {register_reference("mla", mla), register_reference("diff_attention", diff_attention)};

}  // namespace

}  // namespace sluice::testing
