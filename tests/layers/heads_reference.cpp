// References of the layers whose heads attend with softmax weights: multi-head attention with all its options, and the
// textbook gates.
#include "layers/heads_reference.h"

#include <algorithm>
#include <set>

namespace sluice::testing {

HeadRows projected(const LayerFacts& l, const LayerSequence& s, bool rotate) {
  const Matrix& source = s.context.empty() ? s.x : s.context;
  const std::size_t kv_heads = l.size("kv_heads");
  HeadRows rows{heads_of(dense(l, "q", s.x), l.size("heads")), heads_of(dense(l, "k", source), kv_heads),
                heads_of(dense(l, "v", source), kv_heads)};
  if (rotate) turn(l, rows);
  return rows;
}

void turn(const LayerFacts& l, HeadRows& rows) {
  if (!l.yes("use_rope")) return;
  for (Matrix& q : rows.q) q = turned(l, q, false);
  for (Matrix& k : rows.k) k = turned(l, k, true);
}

Matrix finished(const LayerFacts& l, const std::vector<Matrix>& attended, const Matrix& x) {
  Matrix y = joined(attended);
  if (l.yes("project_out")) y = dense(l, "out", y);
  return l.yes("residual") ? plus(y, x) : y;
}

std::vector<Matrix> each_head(const HeadRows& rows, const AttendHead& attend) {
  std::vector<Matrix> attended;
  const std::size_t group = rows.q.size() / rows.k.size();
  for (std::size_t h = 0; h < rows.q.size(); ++h)
    attended.push_back(attend(h, rows.q[h], rows.k[h / group], rows.v[h / group]));
  return attended;
}
Matrix by_heads(const LayerFacts& l, const LayerSequence& s, const HeadRows& rows, const AttendHead& attend) {
  return finished(l, each_head(rows, attend), s.x);
}

bool sees(const LayerFacts& l, const LayerSequence& s, std::size_t h, std::size_t i, std::size_t j) {
  if (!s.real[j] || (l.yes("causal") && j > i)) return false;
  return (s.documents.empty() || s.documents[i] == s.documents[j]) && (!s.allowed || s.allowed(h, i, j));
}

namespace {

// -- multi-head attention ------------------------------------------------------------------------------------------

/// y [heads][n][width] gated by x [n][dim].
void gate(const LayerFacts& g, std::vector<Matrix>& y, const Matrix& x) {
  const std::size_t heads = y.size(), n = x.size(), width = n == 0 ? 0 : y[0][0].size();
  const bool wide = g.text("granularity") == "elementwise", multiply = g.text("mode") == "multiply";
  const std::string &act = g.text("activation"), &sharing = g.text("sharing");
  Matrix logits = g.yes("input_independent") ? Matrix(n, g.values("theta")) : dense(g, "map", x);
  if (g.yes("head_bias"))
    for (auto& row : logits)
      for (std::size_t c = 0; c < row.size(); ++c) row[c] += g.values("head_bias")[c / width];
  const Matrix scores = activated(logits, act);
  for (std::size_t i = 0; i < n; ++i)
    for (std::size_t c = 0; c < width; ++c) {
      const auto at = [&](std::size_t h) { return wide ? h * width + c : h; };
      double mean_score = 0, mean_logit = 0;
      for (std::size_t h = 0; h < heads; ++h) {
        mean_score += scores[i][at(h)] / static_cast<double>(heads);
        mean_logit += logits[i][at(h)] / static_cast<double>(heads);
      }
      for (std::size_t h = 0; h < heads; ++h) {
        double score = scores[i][at(h)];
        if (sharing == "scores") score = mean_score;
        if (sharing == "logits") score = activation_reference(from_name<Act>(act), mean_logit);
        y[h][i][c] = multiply ? y[h][i][c] * score : y[h][i][c] + score;
      }
    }
}

/// All gates at a position, in order. They read x, or the queries as projected from `queries`.
/// The map `name` of x, within ±qkv_limit.
Matrix mapped(const LayerFacts& l, const std::string& name, const Matrix& x) {
  Matrix y = dense(l, name, x);
  const double limit = l.real("qkv_limit");
  for (auto& row : y)
    for (double& value : row)
      if (limit > 0) value = std::min(std::max(value, -limit), limit);
  return y;
}

void gates(const LayerFacts& l, const std::string& position, bool after, std::vector<Matrix>& y, const Matrix& given,
           const Matrix& queries) {
  const auto& list = l.option("gates").get<Json::List>();
  for (std::size_t i = 0; i < list.size(); ++i) {
    const LayerFacts g = l.part(list[i], "gates." + std::to_string(i));
    if (g.text("position") != position || g.yes("after_qk_norm") != after) continue;
    const Matrix x = g.text("source") == "query" ? mapped(l, "q", queries) : given;
    if (position == "g5" && g.text("granularity") == "headwise") {  // of as many equal parts of the channels
      std::vector<Matrix> parts = heads_of(y[0], l.size("heads"));
      gate(g, parts, x);
      y = {joined(parts)};
    } else {
      gate(g, y, x);
    }
  }
}

/// Rows of the heads [heads][n][width], each mixed with the row before it, which counts as 0 where it is padding or of
/// another document.
void shift_heads(const LayerFacts& l, const LayerSequence& s, const char* map, const Matrix& x,
                 std::vector<Matrix>& heads) {
  const Matrix logit = dense(l, map, x);
  for (std::size_t h = 0; h < heads.size(); ++h)
    for (std::size_t t = s.x.size(); t-- > 0;)  // from the last one, so that the row before is still as it was
      for (std::size_t c = 0; c < heads[h][t].size(); ++c) {
        const double share = 1 / (1 + std::exp(-logit[t][h]));
        const bool same = s.documents.empty() || t == 0 || s.documents[t] == s.documents[t - 1];
        const double before = t > 0 && s.real[t - 1] && same ? heads[h][t - 1][c] : 0;
        heads[h][t][c] = share * before + (1 - share) * heads[h][t][c];
      }
}

/// log f of each token and head; 0 for padding, which forgets nothing.
Matrix forget_logs(const LayerFacts& l, const LayerSequence& s, const std::string& gate, const Matrix& x) {
  if (gate == "none") return Matrix(x.size(), std::vector<double>(l.size("heads"), 0.0));
  Matrix f = activated(gate == "input" ? dense(l, "forget", x) : Matrix(x.size(), l.values("forget.bias")), "sigmoid");
  for (std::size_t t = 0; t < f.size(); ++t)
    for (double& value : f[t]) value = s.real[t] ? std::log(value) : 0;
  return f;
}

/// Shift, gate, norm of the heads, late gate, RoPE of queries or keys; with qk_norm_late RoPE before the norm.
std::vector<Matrix> side(const LayerFacts& l, const LayerSequence& s, const std::string& map, bool keys,
                         const Matrix& x) {
  const std::size_t heads = l.size(keys ? "kv_heads" : "heads");
  const std::string position = keys ? "g3" : "g4", norm = keys ? "k_norm" : "q_norm";
  std::vector<Matrix> y = heads_of(mapped(l, map, x), heads);
  const auto turn_heads = [&](bool now) {
    if (now && l.yes("use_rope"))
      for (Matrix& h : y) h = turned(l, h, keys);
  };
  if (keys && l.yes("kv_shift")) shift_heads(l, s, "k_shift", x, y);
  gates(l, position, false, y, x, x);
  turn_heads(l.yes("qk_norm_late"));
  if (l.yes("qk_norm")) {
    const std::string &kind = l.text("qk_norm_kind"), &over = l.text("qk_norm_over");
    const auto normed = [&](const Matrix& m, std::size_t parts) {
      return norm_of(l, norm, kind, l.real("qk_norm_eps"), m, parts);
    };
    if (over == "shared")
      for (Matrix& h : y) h = normed(h, 1);
    else y = heads_of(normed(joined(y), over == "width" ? 1 : heads), heads);
  }
  gates(l, position, true, y, x, x);
  turn_heads(!l.yes("qk_norm_late"));
  return y;
}

/// 2^(−8(h+1)/heads); for other numbers of heads the slopes of the next lower power of two, then every other one of the
/// next higher (Press et al. 2022).
double alibi_slope(std::size_t h, std::size_t heads) {
  std::size_t power = 1;
  while (2 * power <= heads) power *= 2;
  const double step = 8 / static_cast<double>(power);
  return h < power ? std::pow(2.0, -step * static_cast<double>(h + 1))
                   : std::pow(2.0, -step / 2 * static_cast<double>(2 * (h - power) + 1));
}

double position_bias(const LayerFacts& l, std::size_t h, int distance) {  // j − i
  const std::string& kind = l.text("position_bias");
  if (kind == "alibi") return -alibi_slope(h, l.size("heads")) * std::abs(distance);
  if (kind == "toeplitz")
    return l.matrix("toeplitz_bias")[h][l.size("max_length") - 1 + static_cast<std::size_t>(distance)];
  if (kind == "none") return 0;
  const int bucket = t5_reference(distance, l.yes("causal"), static_cast<int>(l.size("buckets")),
                                  static_cast<int>(l.size("max_distance")));
  return l.matrix("t5_bias")[static_cast<std::size_t>(bucket)][h];
}

Matrix multi_head_attention(const LayerFacts& l, const LayerSequence& s) {
  const bool cross = l.size("context_dim") > 0;
  const std::string &norm_kind = l.text("norm"), &sink_kind = l.text("sink"), &ablation = l.text("ablation");
  const Matrix normed = norm_of(l, "norm", norm_kind, l.real("norm_eps"), s.x), &source = cross ? s.context : normed;
  const std::vector<bool>& real = cross ? s.real_context : s.real;
  const std::vector<int64_t>& key_documents = cross ? s.context_documents : s.documents;
  const std::size_t m = s.x.size(), heads = l.size("heads"), group = heads / l.size("kv_heads");
  const double scale = l.real("scale", 1 / std::sqrt(l.real("head_dim"))), cap = l.real("softcap");
  std::vector<double> sinks(heads, sink_kind == "off_by_one" ? 0 : kHidden);
  if (sink_kind == "learned") sinks = l.values("sink");
  std::set<std::size_t> global;
  for (double p : l.reals("global_positions")) global.insert(static_cast<std::size_t>(p));
  for (int64_t p : s.positions) global.insert(static_cast<std::size_t>(p));
  const std::size_t window = l.size("window"), dilation = l.size("dilation");
  const bool causal = l.yes("causal");
  const std::size_t chunk = l.size("chunk_size");
  const auto text = static_cast<std::size_t>(std::find(real.begin(), real.end(), true) - real.begin());
  const Matrix log_f = forget_logs(l, s, l.text("forget_gate"), normed);
  Matrix relative(heads);  // the bias of each head, by j − i + m − 1
  for (std::size_t h = 0; h < heads; ++h)
    for (int distance = 1 - static_cast<int>(m); distance < static_cast<int>(source.size()); ++distance)
      relative[h].push_back(position_bias(l, h, distance));

  // Rows of global positions with projections of their own are bound by neither window nor dilation.
  const auto attended = [&](const std::string& prefix, bool free) {
    const std::vector<Matrix> q = side(l, s, prefix + "q", false, normed), k = side(l, s, prefix + "k", true, source);
    const std::string values = prefix + (l.yes("tied_values") ? "k" : "v");
    std::vector<Matrix> v = heads_of(mapped(l, values, source), l.size("kv_heads")), y;
    if (l.yes("kv_shift")) shift_heads(l, s, "v_shift", source, v);
    for (Matrix& one : v)
      if (l.yes("v_norm")) one = norm_of("rms_plain", l.real("qk_norm_eps"), {}, {}, one, 1);
    gates(l, "g2", false, v, source, normed);
    for (std::size_t h = 0; h < heads; ++h)
      y.push_back(softmax_of(
          m, v[h / group],
          [&](std::size_t i, std::size_t j) {
            const std::size_t distance = i > j ? i - j : j - i;
            if (!real[j] || (causal && j > i)) return kHidden;
            if (!free && !global.count(i) && !global.count(j)) {
              if (window > 0 && distance > (window - 1) * dilation) return kHidden;
              if (distance % dilation != 0) return kHidden;
            }
            if (!s.documents.empty() && s.documents[i] != key_documents[j]) return kHidden;
            if (chunk > 0 && (i < text || (i - text) / chunk != (j - text) / chunk)) return kHidden;  // j >= text: real
            if (s.allowed && !s.allowed(h, i, j)) return kHidden;
            double t = scale * dot(q[h][i], k[h / group][j]);
            const double p = static_cast<double>(i) + l.real("growth_offset");
            t *= 1 + l.real("growth_beta") * std::log1p(std::floor(p / l.real("growth_length")));
            if (cap > 0) t = cap * std::tanh(t / cap);
            for (std::size_t between = j + 1; between <= i && !cross; ++between) t += log_f[between][h];
            return t + relative[h][j + m - 1 - i] + (s.bias.empty() ? 0 : s.bias[i][j]);
          },
          sinks[h]));
    return y;
  };
  std::vector<Matrix> y = attended("", false);
  if (l.yes("separate_global_projections")) {
    const std::vector<Matrix> own = attended("global_", true);
    for (std::size_t h = 0; h < heads; ++h)
      for (std::size_t i : global)
        if (i < m) y[h][i] = own[h][i];
  }
  for (Matrix& h : y) {
    if (ablation == "head_norm" && !l.yes("ablation_per_head"))
      h = norm_of(l, "ablation", l.text("ablation_norm"), l.real("ablation_eps"), h);
    if (ablation == "silu") h = activated(h, "silu");
  }
  if (ablation == "head_norm" && l.yes("ablation_per_head"))
    y = heads_of(norm_of(l, "ablation", l.text("ablation_norm"), l.real("ablation_eps"), joined(y), heads), heads);
  gates(l, "g1", false, y, normed, normed);
  std::vector<Matrix> out{l.yes("project_out") ? dense(l, "out", joined(y)) : joined(y)};
  gates(l, "g5", false, out, normed, normed);
  if (l.yes("sandwich_norm")) out[0] = norm_of(l, "sandwich", norm_kind, l.real("norm_eps"), out[0]);
  return l.yes("residual") ? plus(out[0], s.x) : out[0];
}

// -- textbook gates ------------------------------------------------------------------------------------------------

Matrix gated_attention(const LayerFacts& l, const LayerSequence& s) {
  const std::string& output = l.text("output");
  const Matrix ungated = dense(l, "q", s.x);
  // Scores have a column for each channel, or for each head.
  const auto gated = [&](const std::string& name, std::vector<Matrix> y, const Matrix& x) {
    const std::vector<Matrix> g = heads_of(activated(dense(l, name + ".map", x), "sigmoid"), y.size());
    for (std::size_t h = 0; h < y.size(); ++h)
      for (std::size_t i = 0; i < x.size(); ++i)
        for (std::size_t c = 0; c < y[h][i].size(); ++c) y[h][i][c] *= g[h][i][c % g[h][i].size()];
    return y;
  };
  HeadRows rows = projected(l, s, false);
  if (l.yes("gate_query")) rows.q = gated("query_gate", rows.q, s.x);
  if (l.yes("gate_key")) rows.k = gated("key_gate", rows.k, s.x);
  if (l.yes("gate_value")) rows.v = gated("value_gate", rows.v, s.x);
  turn(l, rows);
  std::vector<Matrix> y = each_head(rows, [&](std::size_t h, const Matrix& q, const Matrix& k, const Matrix& v) {
    return softmax_of(s.x.size(), v, [&](std::size_t i, std::size_t j) {
      const double bias = s.bias.empty() ? 0 : s.bias[i][j];
      return sees(l, s, h, i, j) ? scaled_dot(q[i], k[j]) + bias : kHidden;
    });
  });
  if (output != "none") y = gated("output_gate", y, output == "from_query" ? ungated : s.x);
  return finished(l, y, s.x);
}

/// Each query forms its own gated keys and values, as the definition says.
Matrix gated_cross_attention(const LayerFacts& l, const LayerSequence& s) {
  const std::string& reading = l.text("reading");
  const Matrix q = dense(l, "q", s.x);
  Matrix source = q;
  if (reading == "pooled") {
    std::vector<double> mean(q[0].size(), 0.0);
    const auto tokens = static_cast<double>(std::count(s.real.begin(), s.real.end(), true));
    for (std::size_t i = 0; i < q.size(); ++i)
      for (std::size_t c = 0; c < mean.size(); ++c) mean[c] += s.real[i] ? q[i][c] / tokens : 0;
    source.assign(q.size(), mean);
  }
  std::vector<Matrix> g, gv;
  const std::size_t heads = l.size("heads");
  if (reading != "flamingo") {
    g = heads_of(activated(dense(l, "gate", source), "sigmoid"), heads);
    gv = l.has("value_gate.weight") ? heads_of(activated(dense(l, "value_gate", source), "sigmoid"), heads) : g;
  }
  const HeadRows rows = projected(l, s, false);
  Matrix y = by_heads(l, s, rows, [&](std::size_t h, const Matrix& qh, const Matrix& k, const Matrix& v) {
    Matrix out;
    for (std::size_t i = 0; i < qh.size(); ++i) {
      Matrix keys = k, values = v;
      for (std::size_t j = 0; j < keys.size() && !g.empty(); ++j) {
        const std::size_t row = reading == "literal" ? j : i;
        for (std::size_t c = 0; c < keys[j].size(); ++c) keys[j][c] *= g[h][row][c];
        for (std::size_t c = 0; c < values[j].size(); ++c) values[j][c] *= gv[h][row][c];
      }
      out.push_back(softmax_of(1, values, [&](std::size_t, std::size_t j) {
        return s.real_context[j] ? scaled_dot(qh[i], keys[j]) : kHidden;
      })[0]);
    }
    return out;
  });
  if (reading == "flamingo")
    for (std::size_t i = 0; i < y.size(); ++i)
      for (std::size_t c = 0; c < y[i].size(); ++c) {
        const double x = l.yes("residual") ? s.x[i][c] : 0;
        y[i][c] = (y[i][c] - x) * std::tanh(l.values("alpha")[0]) + x;
      }
  return y;
}

/// The scores decrease by log f of every token after the key up to the query; padding forgets nothing.
Matrix forgetting_attention(const LayerFacts& l, const LayerSequence& s) {
  const Matrix log_f = forget_logs(l, s, l.text("gate"), s.x);
  HeadRows rows = projected(l, s, false);
  if (l.yes("kv_shift")) shift_heads(l, s, "k_shift", s.x, rows.k), shift_heads(l, s, "v_shift", s.x, rows.v);
  const auto normed = [&](const char* name, double eps, const std::vector<Matrix>& heads) {
    return heads_of(norm_of(l, name, "rms", eps, joined(heads), heads.size()), heads.size());
  };
  if (l.yes("qk_norm")) {
    rows.q = normed("q_norm", l.real("qk_norm_eps"), rows.q);
    rows.k = normed("k_norm", l.real("qk_norm_eps"), rows.k);
  }
  turn(l, rows);
  std::vector<Matrix> y = each_head(rows, [&](std::size_t h, const Matrix& q, const Matrix& k, const Matrix& v) {
    return softmax_of(q.size(), v, [&](std::size_t i, std::size_t j) {
      if (j > i || !sees(l, s, h, i, j)) return kHidden;
      double score = scaled_dot(q[i], k[j]) + (s.bias.empty() ? 0 : s.bias[i][j]);
      for (std::size_t t = j + 1; t <= i; ++t) score += log_f[t][h];
      return score;
    });
  });
  if (l.yes("output_norm")) y = normed("output_norm", l.real("output_norm_eps"), y);
  if (l.yes("output_gate")) y = {product(joined(y), activated(dense(l, "output_gate", s.x), "sigmoid"))};
  return finished(l, y, s.x);
}

/// g·softmax + (1 − g)·Σ φ(q)·φ(k) v / (Σ φ(q)·φ(k) + eps), φ = elu + 1.
Matrix fused_attention(const LayerFacts& l, const LayerSequence& s) {
  const Matrix g = activated(dense(l, "gate", s.x), "sigmoid");
  const std::string& gate = l.text("gate");
  return by_heads(l, s, projected(l, s), [&](std::size_t h, const Matrix& q, const Matrix& k, const Matrix& v) {
    Matrix y = softmax_of(q.size(), v, [&](std::size_t i, std::size_t j) {
      return sees(l, s, h, i, j) ? scaled_dot(q[i], k[j]) : kHidden;
    });
    const Matrix phi_q = activated(q, "elu1"), phi_k = activated(k, "elu1");
    for (std::size_t i = 0; i < y.size(); ++i) {
      std::vector<double> sum(y[i].size(), 0.0);
      double total = l.real("eps");
      for (std::size_t j = 0; j < k.size(); ++j) {
        if (!sees(l, s, h, i, j)) continue;
        const double w = dot(phi_q[i], phi_k[j]);
        total += w;
        for (std::size_t c = 0; c < sum.size(); ++c) sum[c] += w * v[j][c];
      }
      for (std::size_t c = 0; c < sum.size(); ++c) {
        const double share = g[i][gate == "per_token" ? 0 : gate == "per_head" ? h : h * sum.size() + c];
        y[i][c] = share * y[i][c] + (1 - share) * (total == 0 ? 0 : sum[c] / total);
      }
    }
    return y;
  });
}

const bool registered[] = {
    register_reference("multi_head_attention", multi_head_attention),
    register_reference("gated_attention", gated_attention),
    register_reference("gated_cross_attention", gated_cross_attention),
    register_reference("forgetting_attention", forgetting_attention),
    register_reference("fused_attention", fused_attention),
};

}  // namespace

}  // namespace sluice::testing
