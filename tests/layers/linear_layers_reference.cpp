// References of feature maps and of the linear-time layers, pair by pair.
#include "layers/nn_reference.h"

namespace sluice::testing {

namespace {

/// φ of the rows of head `head`. `prefix` begins the names of the options, `map` holds the tensors; with option `heads`
/// those that are learned have a matrix for each head.
Matrix features(const LayerFacts& l, const std::string& prefix, const LayerFacts& map, const Matrix& x,
                std::size_t head) {
  const auto option = [&](const char* name) { return prefix + name; };
  const std::string& kind = l.text(option("kind"));
  const double offset = l.real(option("offset")), scale = l.real(option("input_scale"), 1),
               smoothing = l.real(option("smoothing"));
  const std::size_t degree = l.size(option("degree"));
  const auto mapped = [&](const std::vector<double>& in, const char* weight, const char* bias) {
    const std::vector<double> w = map.values(weight), b = map.values(bias);
    const bool own = l.size(option("heads")) > 0 && weight != std::string("omega");
    const std::size_t count = own ? l.size(option("heads")) : 1, width = w.size() / count / in.size();
    const std::size_t first = own ? head * in.size() * width : 0, shift = own ? head * width : 0;
    std::vector<double> out(width, 0.0);
    for (std::size_t c = 0; c < width; ++c) {
      for (std::size_t r = 0; r < in.size(); ++r) out[c] += in[r] * w[first + r * width + c];
      if (!b.empty()) out[c] += b[shift + c];
    }
    return out;
  };
  Matrix all;
  for (std::vector<double> in : x) {
    for (double& v : in) v *= scale;
    std::vector<double> y = in;
    if (kind == "exp" || kind == "elu1") {
      y = (kind == "exp" ? Matrix{in} : activated({in}, "elu1"))[0];
      if (kind == "exp")
        for (double& v : y) v = std::exp(v);
    } else if (kind == "relu" || kind == "t2r") {
      y = activated({map.has("weight") ? mapped(in, "weight", "bias") : in}, "relu")[0];
      for (double& v : y) v += offset;
    } else if (kind == "poly_elem") {
      y.clear();
      for (std::size_t r = 1; r <= degree; ++r)
        for (double v : in) y.push_back(std::pow(v, static_cast<double>(r)));
    } else if (kind == "poly_kernel") {
      in.push_back(std::sqrt(l.real(option("constant"))));
      y = {1.0};
      for (std::size_t r = 0; r < degree; ++r) {
        std::vector<double> next;
        for (double a : y)
          for (double b : in) next.push_back(a * b);
        y = next;
      }
      if (smoothing > 0) y.push_back(std::sqrt(smoothing));
    } else if (kind == "favor") {
      y = mapped(in, "omega", "");
      for (double& v : y) v = (std::exp(v - dot(in, in) / 2) + offset) / std::sqrt(static_cast<double>(y.size()));
    } else if (kind == "fourier") {
      const std::vector<double> p = mapped(in, "omega", "");
      const double by = 1 / std::sqrt(static_cast<double>(p.size()));
      y.clear();
      for (double v : p) y.push_back(by * std::cos(v));
      for (double v : p) y.push_back(by * std::sin(v));
      if (smoothing > 0) y.push_back(std::sqrt(smoothing));
    } else if (kind == "mlp") {
      y = activated({mapped(activated({mapped(in, "weight", "bias")}, "relu")[0], "weight2", "bias2")}, "softplus")[0];
    } else if (kind == "hedgehog") {
      const std::vector<double> p = mapped(in, "weight", "bias");
      y.clear();
      double total = 0;
      for (double sign : {2.0, -2.0})
        for (double v : p) y.push_back(std::exp(sign * v)), total += y.back();
      for (double& v : y) v /= total;
    }
    all.push_back(y);
  }
  return all;
}

/// One head: v_j weighed by Σ_c q_ic k_jc Π α_tc, over the tokens t between j and i, the later end included.
struct Pairs {
  Matrix q, k;                        // of the numerator
  Matrix plain_q = {}, plain_k = {};  // of the denominator
  Matrix v;
  Matrix log_decay = {};  // [n][1] or [n][channels]; empty: none
  double scale = 1;
};

/// Σ_j w_ij v_j, and last Σ_j of the denominator's weights.
Matrix sums(const Pairs& p, const LayerSequence& s, bool earlier, bool later) {
  const std::vector<bool>& real = s.real;
  const auto apart = [&s](std::size_t i, std::size_t j) {  // a document is a run of equal segments
    for (std::size_t t = std::min(i, j) + 1; !s.documents.empty() && t <= std::max(i, j); ++t)
      if (s.documents[t] != s.documents[t - 1]) return true;
    return false;
  };
  Matrix out = matrix(static_cast<int64_t>(p.q.size()), static_cast<int64_t>(p.v.empty() ? 1 : p.v[0].size() + 1));
  for (std::size_t i = 0; i < p.q.size(); ++i)
    for (std::size_t j = 0; j < p.q.size(); ++j) {
      if (!real[j] || (j < i && !earlier) || (j > i && !later) || apart(i, j)) continue;
      double w = 0, plain = 0;
      for (std::size_t c = 0; c < p.q[i].size(); ++c) {
        double kept = 0;
        for (std::size_t t = std::min(i, j) + 1; t <= std::max(i, j) && !p.log_decay.empty(); ++t)
          if (real[t]) kept += p.log_decay[t][c % p.log_decay[t].size()];
        w += p.scale * p.q[i][c] * p.k[j][c] * std::exp(kept);
        if (!p.plain_q.empty()) plain += p.scale * p.plain_q[i][c] * p.plain_k[j][c] * std::exp(kept);
      }
      for (std::size_t c = 0; c < p.v[j].size(); ++c) out[i][c] += w * p.v[j][c];
      out[i].back() += plain;
    }
  return out;
}
Matrix numerators(Matrix sums) {
  for (auto& row : sums) row.pop_back();
  return sums;
}
Matrix quotients(Matrix sums, double eps) {
  for (auto& row : sums) {
    const double d = row.back() + eps;
    row.pop_back();
    for (double& x : row) x = d == 0 ? x : x / d;
  }
  return sums;
}

/// x with zeros in place of padding, and its q | k | v through the three maps and the short convolution.
struct LinearRows {
  Matrix x;
  std::vector<Matrix> q, k, v;  // of heads, KV heads, KV heads
};
LinearRows linear_rows(const LayerFacts& l, const LayerSequence& s) {
  const MappedRows m = mapped_rows(l, s, "silu");
  const std::size_t kv_heads = l.size("kv_heads");
  return {m.x, heads_of(m.q, l.size("heads")), heads_of(m.k, kv_heads), heads_of(m.v, kv_heads)};
}

/// y ⊙ swish(x·W)
Matrix swish_gated(const LayerFacts& l, const char* name, const Matrix& y, const Matrix& x) {
  return product(y, activated(dense(l, name, x), "silu"));
}

Matrix linear_attention(const LayerFacts& l, const LayerSequence& s) {
  const LinearRows r = linear_rows(l, s);
  const std::string &direction = l.text("direction"), &decay = l.text("decay"), &rope = l.text("use_rope");
  const std::size_t group = r.q.size() / r.k.size();
  const std::vector<double> gamma = decay == "fixed"     ? l.reals("gamma")
                                    : decay == "learned" ? activated({l.values("gamma_logit")}, "sigmoid")[0]
                                                         : std::vector<double>{};
  const LayerFacts map = l.part("feature_map"), key_map = l.yes("tie_feature_map") ? map : l.part("key_feature_map");
  std::vector<Matrix> heads;
  for (std::size_t h = 0; h < r.q.size(); ++h) {
    Matrix q = r.q[h], k = r.k[h / group];
    if (rope == "inputs") q = turned(l, q, false), k = turned(l, k, true);
    q = features(l, "feature_map_", map, q, h), k = features(l, "feature_map_", key_map, k, h);
    Pairs p{.q = q, .k = k, .plain_q = q, .plain_k = k, .v = r.v[h / group], .scale = l.real("scale")};
    if (rope == "features") p.q = turned(l, q, false), p.k = turned(l, k, true);
    if (!gamma.empty()) p.log_decay = Matrix(s.x.size(), {std::log(gamma[h])});
    const auto out = [&](bool earlier, bool later) {
      const Matrix m = sums(p, s, earlier, later);
      return l.text("normalize") == "sum" ? quotients(m, l.real("eps")) : numerators(m);
    };
    Matrix y;
    if (direction == "two_direction_mean")
      y = merged(out(true, false), out(false, true), [](double a, double b) { return (a + b) / 2; });
    else y = out(true, direction != "causal");
    heads.push_back(norm_of(l, "norm", l.text("output_norm"), l.real("norm_eps"), y));
  }
  Matrix y = joined(heads);
  if (l.yes("output_gate")) y = swish_gated(l, "output_gate", y, r.x);
  return dense(l, "out", y);
}

Matrix group_norm(const LayerFacts& l, const std::string& kind, double eps, const Matrix& x, std::size_t groups) {
  return norm_of(kind, eps, l.values("weight"), l.values("bias"), x, groups);
}

Matrix retention(const LayerFacts& l, const LayerSequence& s) {
  const LinearRows r = linear_rows(l, s);
  const std::vector<double> gamma = l.reals("gamma");
  std::vector<Matrix> heads;
  for (std::size_t h = 0, group = r.q.size() / r.k.size(); h < r.q.size(); ++h) {
    Pairs p{.q = r.q[h],
            .k = r.k[h / group],
            .v = r.v[h / group],
            .log_decay = Matrix(s.x.size(), {std::log(gamma[h])}),
            .scale = 1 / std::sqrt(static_cast<double>(r.q[h][0].size()))};
    if (l.yes("use_rope")) p.q = turned(l, p.q, false), p.k = turned(l, p.k, true);
    heads.push_back(numerators(sums(p, s, true, false)));
  }
  Matrix y = group_norm(l.part("norm"), l.text("group_norm"), l.real("norm_eps"), joined(heads), heads.size());
  if (l.yes("gate")) y = swish_gated(l, "gate", y, r.x);
  return dense(l, "out", y);
}

Matrix gla(const LayerFacts& l, const LayerSequence& s) {
  const LinearRows r = linear_rows(l, s);
  const bool wide = l.text("gate") == "per_channel";
  Matrix log_decay = activated(dense(l, "gate_up", wide ? dense(l, "gate_down", r.x) : r.x), "sigmoid");
  for (auto& row : log_decay)
    for (double& a : row) a = std::log(a) / l.real("gate_temperature");
  const std::vector<Matrix> decays = heads_of(log_decay, wide ? r.k.size() : r.q.size());
  std::vector<Matrix> heads;
  for (std::size_t h = 0, group = r.q.size() / r.k.size(); h < r.q.size(); ++h) {
    const double width = static_cast<double>(r.q[h][0].size());
    const Pairs p{.q = r.q[h],
                  .k = r.k[h / group],
                  .v = r.v[h / group],
                  .log_decay = decays[wide ? h / group : h],
                  .scale = l.real("scale", 1 / std::sqrt(width))};
    heads.push_back(norm_of(l, "norm", l.text("norm"), l.real("norm_eps"), numerators(sums(p, s, true, false))));
  }
  Matrix y = joined(heads);
  if (l.yes("output_gate")) y = swish_gated(l, "output_gate", y, r.x);
  return dense(l, "out", y);
}

Matrix lightning_attention(const LayerFacts& l, const LayerSequence& s) {
  Matrix x = s.x;
  for (std::size_t i = 0; i < x.size(); ++i)
    if (!s.real[i]) x[i].assign(x[i].size(), 0.0);
  const auto rows = [&](const char* map, const char* heads) {
    return heads_of(activated(dense(l, map, x), "silu"), l.size(heads));
  };
  const std::vector<Matrix> q = rows("q", "heads"), k = rows("k", "kv_heads"), v = rows("v", "kv_heads");
  const std::vector<double> gamma = l.reals("gamma");
  std::vector<Matrix> heads;
  for (std::size_t h = 0, group = q.size() / k.size(); h < q.size(); ++h) {
    const Pairs p{.q = q[h], .k = k[h / group], .v = v[h / group], .log_decay = Matrix(x.size(), {std::log(gamma[h])})};
    heads.push_back(numerators(sums(p, s, true, false)));
  }
  const Matrix y = norm_of(l, "norm", "rms", l.real("norm_eps"), joined(heads));
  return dense(l, "out", product(y, activated(dense(l, "output_gate", x), "sigmoid")));
}

const bool registered[] = {
    register_reference("feature_map",
                       [](const LayerFacts& l, const LayerSequence& s) { return features(l, "", l, s.x, 0); }),
    register_reference("linear_attention", linear_attention),
    register_reference("group_norm",
                       [](const LayerFacts& l, const LayerSequence& s) {
                         return group_norm(l, l.text("kind"), l.real("eps"), s.x, l.size("groups"));
                       }),
    register_reference("retention", retention),
    register_reference("gla", gla),
    register_reference("lightning_attention", lightning_attention),
};

}  // namespace

}  // namespace sluice::testing
