// References of the layers that attend to selected blocks of keys.
#include "layers/heads_reference.h"

#include <algorithm>

namespace sluice::testing {

namespace {

using Marks = std::vector<bool>;

/// The rows of x from `from` on, `count` of them, that are real: their mean, or nothing.
std::vector<double> mean_of(const Matrix& x, const LayerSequence& s, std::size_t from, std::size_t count) {
  std::vector<double> mean;
  double rows = 0;
  for (std::size_t j = from; j < from + count; ++j) {
    if (!s.real[j]) continue;
    mean.resize(x[j].size());
    for (std::size_t c = 0; c < mean.size(); ++c) mean[c] += x[j][c];
    ++rows;
  }
  for (double& v : mean) v /= rows;
  return mean;
}

/// The `count` best blocks of query i: those that are always chosen first, then by score, the first of equals.
Marks chosen(const LayerSequence& s, std::size_t i, std::vector<double> scores, std::size_t block, std::size_t count,
             std::size_t initial, std::size_t local) {
  const std::size_t own = i / block;
  std::vector<std::size_t> candidates;
  for (std::size_t j = 0; j <= own; ++j) {
    const std::size_t end = std::min(s.real.size(), (j + 1) * block);
    if (std::count(s.real.begin() + static_cast<std::ptrdiff_t>(j * block),
                   s.real.begin() + static_cast<std::ptrdiff_t>(end), true) == 0)
      continue;
    candidates.push_back(j);
    if (j < initial || j + local > own) scores[j] = INFINITY;
  }
  std::stable_sort(candidates.begin(), candidates.end(),
                   [&](std::size_t a, std::size_t b) { return scores[a] > scores[b]; });
  Marks marks(scores.size());
  for (std::size_t r = 0; r < std::min(count, candidates.size()); ++r) marks[candidates[r]] = true;
  return marks;
}

Matrix to_blocks(const LayerSequence& s, const Matrix& q, const Matrix& k, const Matrix& v,
                 const std::vector<Marks>& blocks, std::size_t block) {
  return softmax_of(q.size(), v, [&](std::size_t i, std::size_t j) {
    return s.real[j] && j <= i && blocks[i][j / block] ? scaled_dot(q[i], k[j]) : kHidden;
  });
}

Matrix moba_attention(const LayerFacts& l, const LayerSequence& s) {
  const std::size_t n = s.x.size(), block = l.size("block");
  return by_heads(l, s, projected(l, s), [&](std::size_t, const Matrix& q, const Matrix& k, const Matrix& v) {
    std::vector<Marks> blocks;
    for (std::size_t i = 0; i < n; ++i) {
      std::vector<double> scores(n / block + 1, 0.0);
      for (std::size_t j = 0; j < i / block; ++j)
        if (const std::vector<double> mean = mean_of(k, s, j * block, block); !mean.empty())
          scores[j] = dot(q[i], mean);
      blocks.push_back(chosen(s, i, scores, block, l.size("topk"), 0, 1));
    }
    return to_blocks(s, q, k, v, blocks, block);
  });
}

/// The scores of a block are those of its keys up to the query, and the largest counts.
Matrix msa_attention(const LayerFacts& l, const LayerSequence& s) {
  const std::size_t n = s.x.size(), block = l.size("block"), kv_heads = l.size("kv_heads"),
                    group = l.size("heads") / kv_heads;
  const double eps = l.real("norm_eps");
  const auto side = [&](const std::string& name, std::size_t heads, bool keys, bool of_index) {
    std::vector<Matrix> y = heads_of(dense(l, name, s.x), heads);
    for (Matrix& h : y) {
      if (of_index || l.yes("qk_norm")) h = norm_of(l, name + "_norm", "rms", eps, h);
      if (!l.yes("use_rope")) continue;
      // As many channels of the index turn as of a head.
      const std::size_t turning = of_index && l.size("rope_rot_dim") == 0 ? l.size("head_dim") : h[0].size();
      h = beside(turned(l, columns(h, 0, turning), keys), columns(h, turning, h[0].size() - turning));
    }
    return y;
  };
  const std::vector<Matrix> index_q = side("index_q", kv_heads, false, true), index_k = side("index_k", 1, true, true);
  std::vector<Matrix> scores(kv_heads, Matrix(n, std::vector<double>(n / block + 1, kHidden)));
  for (std::size_t h = 0; h < kv_heads; ++h)
    for (std::size_t i = 0; i < n; ++i)
      for (std::size_t j = 0; j <= i; ++j)
        for (std::size_t to = 0; to < kv_heads; ++to)
          if (s.real[j] && (to == h || l.yes("shared_choice")))
            scores[to][i][j / block] = std::max(scores[to][i][j / block], dot(index_q[h][i], index_k[0][j]));
  const HeadRows rows{side("q", l.size("heads"), false, false), side("k", kv_heads, true, false),
                      heads_of(dense(l, "v", s.x), kv_heads)};
  return by_heads(l, s, rows, [&](std::size_t head, const Matrix& q, const Matrix& k, const Matrix& v) {
    std::vector<Marks> blocks;
    for (std::size_t i = 0; i < n; ++i)
      blocks.push_back(chosen(s, i, scores[head / group][i], block, l.size("count"), 0, l.size("local")));
    return to_blocks(s, q, k, v, blocks, block);
  });
}

/// φ of the rows from `from` on, with the weights of KV head `kv`.
std::vector<double> compressed(const LayerFacts& l, const std::string& part, std::size_t kv, const Matrix& x,
                               const LayerSequence& s, std::size_t from) {
  const std::size_t block = l.size("block"), width = x[0].size(), kv_heads = l.size("kv_heads");
  if (l.text("compression") == "mean") return mean_of(x, s, from, block);
  const std::vector<double> position = l.values(part + ".position");
  std::vector<double> row;
  for (std::size_t b = 0; b < block; ++b)
    for (std::size_t c = 0; c < width; ++c)
      row.push_back(s.real[from + b] ? x[from + b][c] + position[(kv * block + b) * width + c] : 0);
  const auto map = [&](const std::string& name, const std::vector<double>& in) {
    const std::vector<double> w = l.values(part + name);
    const std::size_t out = w.size() / kv_heads / in.size();
    std::vector<double> y(out, 0.0);
    for (std::size_t a = 0; a < in.size(); ++a)
      for (std::size_t c = 0; c < out; ++c) y[c] += in[a] * w[(kv * in.size() + a) * out + c];
    return y;
  };
  row = map(".in", row);
  if (l.text("compression") == "linear") return row;
  for (double& v : row) v = std::max(v, 0.0);
  return map(".out", row);
}

Matrix nsa_attention(const LayerFacts& l, const LayerSequence& s) {
  const std::size_t n = s.x.size(), block = l.size("block"), stride = l.size("stride"), select = l.size("select"),
                    window = l.size("window"), heads = l.size("heads"), kv_heads = l.size("kv_heads"),
                    group = heads / kv_heads, means = n < block ? 0 : (n - block) / stride + 1;
  const HeadRows rows = projected(l, s);
  HeadRows cmp = rows, win = rows;  // of the other branches
  if (l.yes("separate_keys"))
    for (auto& [branch, name] :
         {std::pair{&cmp, std::string("compressed_")}, std::pair{&win, std::string("window_")}}) {
      branch->k = heads_of(dense(l, name + "k", s.x), kv_heads),
      branch->v = heads_of(dense(l, name + "v", s.x), kv_heads);
      for (Matrix& k : branch->k) k = l.yes("use_rope") ? turned(l, k, true) : k;
    }
  const Matrix gates = activated(dense(l, "gate", s.x), "sigmoid");
  std::vector<Matrix> y;
  for (std::size_t kv = 0; kv < kv_heads; ++kv) {
    const Matrix &k = rows.k[kv], &v = rows.v[kv];
    Matrix mean_k, mean_v;
    Marks real;
    for (std::size_t c = 0; c < means; ++c) {
      real.push_back(!mean_of(k, s, c * stride, block).empty());
      mean_k.push_back(real[c] ? compressed(l, "k_compression", kv, cmp.k[kv], s, c * stride)
                               : std::vector<double>(k[0].size()));
      mean_v.push_back(real[c] ? compressed(l, "v_compression", kv, cmp.v[kv], s, c * stride)
                               : std::vector<double>(v[0].size()));
    }
    const auto score = [&](const Matrix& q) {
      return [&](std::size_t i, std::size_t c) {
        return real[c] && c * stride + block <= i + 1 ? scaled_dot(q[i], mean_k[c]) : kHidden;
      };
    };
    Matrix shared(n, std::vector<double>(means));  // the weights of the means, added over the heads of the group
    Matrix unit(means, std::vector<double>(means));
    for (std::size_t c = 0; c < means; ++c) unit[c][c] = 1;
    for (std::size_t h = kv * group; h < (kv + 1) * group; ++h)
      if (means > 0) shared = plus(shared, softmax_of(n, unit, score(rows.q[h])));
    std::vector<Marks> blocks;
    for (std::size_t i = 0; i < n; ++i) {
      std::vector<double> scores(n / select + 1, 0.0);
      for (std::size_t j = 0; j < scores.size(); ++j)
        for (std::size_t c = 0; c < means; ++c) {
          std::size_t overlap = 0;  // strides of [c·stride, + block) within [j·select, + select)
          for (std::size_t t = c * stride; t < c * stride + block; t += stride)
            overlap += t >= j * select && t < (j + 1) * select;
          // One addition for each mean, as the layer has: where means are equal, equal scores must have equal bits.
          scores[j] += static_cast<double>(overlap) * shared[i][c];
        }
      blocks.push_back(chosen(s, i, scores, select, l.size("count"), l.size("initial"), l.size("local")));
    }
    for (std::size_t h = kv * group; h < (kv + 1) * group; ++h) {
      const Matrix& q = rows.q[h];
      const Matrix coarse = means > 0 ? softmax_of(n, mean_v, score(q)) : Matrix(n, std::vector<double>(v[0].size())),
                   selected = to_blocks(s, q, k, v, blocks, select),
                   near = softmax_of(n, win.v[kv], [&](std::size_t i, std::size_t j) {
                     return s.real[j] && j <= i && i - j < window ? scaled_dot(q[i], win.k[kv][j]) : kHidden;
                   });
      Matrix o = coarse;
      for (std::size_t i = 0; i < n; ++i)
        for (std::size_t c = 0; c < o[i].size(); ++c)
          o[i][c] =
              gates[i][3 * h] * coarse[i][c] + gates[i][3 * h + 1] * selected[i][c] + gates[i][3 * h + 2] * near[i][c];
      y.push_back(o);
    }
  }
  return finished(l, y, s.x);
}

/// The pools are those of Qwen4: a mean of keys, normed, then turned by the position of its first key.
Matrix qsa_attention(const LayerFacts& l, const LayerSequence& s) {
  const std::size_t n = s.x.size(), heads = l.size("heads"), kv_heads = l.size("kv_heads"), size = l.size("pool"),
                    width = l.size("index_dim");
  const double eps = l.real("norm_eps");
  const auto rotated = [&](const Matrix& h, bool keys) {
    if (!l.yes("use_rope")) return h;
    const std::size_t turning = l.size("rope_rot_dim") > 0 ? l.size("rope_rot_dim") : l.size("head_dim");
    return beside(turned(l, columns(h, 0, turning), keys), columns(h, turning, h[0].size() - turning));
  };
  const auto side = [&](const std::string& name, std::size_t count, bool keys) {
    std::vector<Matrix> y = heads_of(dense(l, name, s.x), count);
    for (Matrix& h : y) h = rotated(l.yes("qk_norm") ? norm_of(l, name + "_norm", "rms", eps, h) : h, keys);
    return y;
  };
  std::vector<Matrix> index_q = heads_of(dense(l, "indexer.q", s.x), l.size("index_heads"));
  for (Matrix& h : index_q) h = rotated(norm_of(l, "indexer.q_norm", "rms", eps, h), false);
  const Matrix raw = dense(l, "indexer.k", s.x);
  const auto seen = in_pools(s, size, l.size("topk") / size, [&](std::size_t i, const std::vector<std::size_t>& keys) {
    Matrix rows(keys[0] + 1, std::vector<double>(width, 0.0));  // RoPE counts rows
    for (const std::size_t key : keys)
      for (std::size_t c = 0; c < width; ++c) rows.back()[c] += raw[key][c] / static_cast<double>(size);
    const Matrix row = rotated(norm_of(l, "indexer.k_norm", "rms", eps, rows), true);
    double score = 0;
    for (const Matrix& h : index_q) score += std::max(0.0, scaled_dot(h[i], row.back()));
    return score;
  });
  const std::vector<Matrix> q = side("q", heads, false), k = side("k", kv_heads, true),
                            v = heads_of(dense(l, "v", s.x), kv_heads);
  std::vector<Matrix> y;
  for (std::size_t h = 0; h < heads; ++h)
    y.push_back(softmax_of(n, v[h / (heads / kv_heads)], [&](std::size_t i, std::size_t j) {
      const bool visible = j <= i && seen[i][j] && sees(l, s, h, i, j);
      return visible ? scaled_dot(q[h][i], k[h / (heads / kv_heads)][j]) + (s.bias.empty() ? 0 : s.bias[i][j])
                     : kHidden;
    }));
  if (l.yes("gate")) {
    const std::vector<Matrix> g = heads_of(activated(dense(l, "gates.0.map", s.x), "sigmoid"), heads);
    for (std::size_t h = 0; h < heads; ++h) y[h] = product(y[h], g[h]);
  }
  return finished(l, y, s.x);
}

const bool registered[] = {
    register_reference("nsa_attention", nsa_attention), register_reference("moba_attention", moba_attention),
    register_reference("msa_attention", msa_attention), register_reference("qsa_attention", qsa_attention)};

}  // namespace

std::vector<std::vector<bool>> in_pools(
    const LayerSequence& s, std::size_t size, std::size_t count,
    const std::function<double(std::size_t query, const std::vector<std::size_t>& keys)>& score) {
  const std::size_t n = s.x.size();
  std::vector<Marks> seen(n, Marks(n));
  for (std::size_t i = 0; i < n; ++i) {
    std::vector<std::vector<std::size_t>> pools(1);
    for (std::size_t j = 0; j <= i; ++j) {
      if (!s.real[j]) continue;
      pools.back().push_back(j);
      if (pools.back().size() == size) pools.emplace_back();
    }
    for (const std::size_t j : pools.back()) seen[i][j] = true;  // not whole
    pools.pop_back();
    std::vector<std::pair<double, std::size_t>> ranked;  // minus its score, the pool
    for (std::size_t p = 0; p < pools.size(); ++p) ranked.emplace_back(-score(i, pools[p]), p);
    std::sort(ranked.begin(), ranked.end());
    for (std::size_t r = 0; r < std::min(count, ranked.size()); ++r)
      for (const std::size_t j : pools[ranked[r].second]) seen[i][j] = true;
  }
  return seen;
}

}  // namespace sluice::testing
