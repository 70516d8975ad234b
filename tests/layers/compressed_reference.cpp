// Reference of attention to a window and to rows of pools.
#include "layers/heads_reference.h"

#include <algorithm>

namespace sluice::testing {

namespace {

/// `turn` of the last rope_dim columns.
Matrix last_turned(const LayerFacts& l, const Matrix& x, const std::function<Matrix(const Matrix&)>& turn) {
  const std::size_t count = l.yes("use_rope") ? l.size("rope_dim") : 0, others = x[0].size() - count;
  return count == 0 ? x : beside(columns(x, 0, others), turn(columns(x, others, count)));
}
Matrix forward(const LayerFacts& l, const Matrix& x, bool keys) {
  return last_turned(l, x, [&](const Matrix& t) { return turned(l, t, keys); });
}
/// The mirror of a turn: both members of a pair are turned the other way if the second one changes its sign before and
/// after.
Matrix backward(const LayerFacts& l, const Matrix& x) {
  return last_turned(l, x, [&](Matrix t) {
    const std::size_t width = l.size("rope_rot_dim") > 0 ? l.size("rope_rot_dim") : t[0].size();
    const auto mirror = [&] {
      for (auto& row : t)
        for (std::size_t c = 0; c < width; ++c)
          if (l.text("rope_pairing") == "interleaved" ? c % 2 == 1 : c >= width / 2) row[c] = -row[c];
    };
    mirror(), t = turned(l, t, false), mirror();
    return t;
  });
}

using Keys = std::vector<std::size_t>;

/// The row of each pool, made by the part `name`.
Matrix pool_rows(const LayerFacts& l, const std::string& name, const Matrix& x, const std::vector<Keys>& pools) {
  const Matrix values = dense(l, name + ".value", x), gates = dense(l, name + ".gate", x),
               place = l.matrix(name + ".position");
  const bool overlap = l.yes("overlap");
  const std::size_t width = values[0].size() / (overlap ? 2 : 1);
  Matrix rows;
  for (std::size_t p = 0; p < pools.size(); ++p) {
    std::vector<double> row(width, 0.0);
    for (std::size_t c = 0; c < width; ++c) {
      double total = 0;
      const auto add = [&](const Keys& keys, std::size_t column) {
        for (std::size_t b = 0; b < keys.size(); ++b) {
          const double e = std::exp(gates[keys[b]][column] + place[b][column]);
          total += e, row[c] += e * values[keys[b]][column];
        }
      };
      add(pools[p], overlap ? width + c : c);
      if (overlap && p > 0) add(pools[p - 1], c);
      row[c] /= total;
    }
    Matrix upto(pools[p][0] + 1, row);  // RoPE counts rows
    rows.push_back(forward(l, norm_of(l, name + ".norm", "rms", l.real("norm_eps"), upto), true).back());
  }
  return rows;
}

Matrix compressed_attention(const LayerFacts& l, const LayerSequence& s) {
  const std::size_t n = s.x.size(), heads = l.size("heads"), size = l.size("pool"), window = l.size("window");
  const double eps = l.real("norm_eps");
  const Matrix z = norm_of(l, "q_norm", "rms", eps, dense(l, "q_down", s.x));
  Matrix keys = forward(l, norm_of(l, "kv_norm", "rms", eps, dense(l, "kv", s.x)), true);  // then the rows of pools
  std::vector<Keys> pools;
  if (size > 0) {
    pools.emplace_back();
    for (std::size_t j = 0; j < n; ++j) {
      if (!s.real[j]) continue;
      pools.back().push_back(j);
      if (pools.back().size() == size) pools.emplace_back();
    }
    pools.pop_back();
    const Matrix rows = pool_rows(l, "compressor", s.x, pools);
    keys.insert(keys.end(), rows.begin(), rows.end());
  }
  std::vector<std::vector<bool>> chosen(n, std::vector<bool>(pools.size(), l.size("topk") == 0));
  if (size > 0 && l.size("topk") > 0) {
    const Matrix rows = pool_rows(l, "index_compressor", s.x, pools), w = dense(l, "index_weights", s.x);
    std::vector<Matrix> q = heads_of(dense(l, "index_q", z), l.size("index_heads"));
    for (Matrix& h : q) h = forward(l, h, false);
    for (std::size_t i = 0; i < n; ++i) {
      std::vector<std::pair<double, std::size_t>> ranked;  // minus its score, the pool
      for (std::size_t p = 0; p < pools.size() && pools[p].back() <= i; ++p) {
        double score = 0;
        for (std::size_t h = 0; h < q.size(); ++h) score += w[i][h] * std::max(0.0, dot(q[h][i], rows[p]));
        ranked.emplace_back(-score, p);
      }
      std::sort(ranked.begin(), ranked.end());
      for (std::size_t r = 0; r < std::min(l.size("topk"), ranked.size()); ++r) chosen[i][ranked[r].second] = true;
    }
  }
  const auto sees = [&](std::size_t i, std::size_t j) {
    if (j >= n) return pools[j - n].back() <= i && chosen[i][j - n];
    return s.real[j] && j <= i && i - j < window && (s.documents.empty() || s.documents[i] == s.documents[j]);
  };
  const std::vector<double> sinks = l.yes("sink") ? l.values("sink") : std::vector<double>(heads, kHidden);
  const std::vector<Matrix> q = heads_of(dense(l, "q_up", z), heads);
  std::vector<Matrix> y;
  for (std::size_t h = 0; h < heads; ++h) {
    const Matrix queries = forward(l, norm_of("rms", eps, {}, {}, q[h]), false);
    y.push_back(backward(
        l, softmax_of(
               n, keys,
               [&](std::size_t i, std::size_t j) { return sees(i, j) ? scaled_dot(queries[i], keys[j]) : kHidden; },
               sinks[h])));
  }
  const std::size_t groups = l.size("out_groups"), rank = l.size("out_rank"), members = heads / groups;
  const Matrix down = l.matrix("out_down.weight");
  Matrix mixed;
  for (std::size_t g = 0; g < groups; ++g) {
    Matrix group;
    for (std::size_t h = g * members; h < (g + 1) * members; ++h) group = beside(std::move(group), y[h]);
    mixed = beside(std::move(mixed), times(group, columns(down, g * rank, rank)));
  }
  return dense(l, "out_up", mixed);
}

const bool registered = register_reference("compressed_attention", compressed_attention);

}  // namespace

}  // namespace sluice::testing
