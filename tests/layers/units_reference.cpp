// References of gated attention units, FLASH and the models made of FLASH layers.
#include "layers/flash_reference.h"
#include "layers/nn_reference.h"

namespace sluice::testing {

namespace {

/// What all kinds of weights of a unit read.
GauAttentionOptions weights_of(const LayerFacts& l) {
  return {.kind = from_name<GauKind>(l.text("kind")), .min_length = l.option("min_length").get<int64_t>()};
}

/// γ ⊙ z + β with row i of gamma and beta.
Matrix scaled(const LayerFacts& l, Matrix z, std::size_t i) {
  const Matrix gamma = l.matrix("gamma"), beta = l.matrix("beta");
  for (auto& row : z)
    for (std::size_t c = 0; c < row.size(); ++c) row[c] = gamma[i][c] * row[c] + beta[i][c];
  return z;
}

/// b of n positions with a T5 table times `t5_scale`; empty for none.
Matrix bias_of(const LayerFacts& l, std::size_t n, double t5_scale) {
  const std::string& kind = l.text("bias");
  if (kind == "none") return {};
  Matrix b = matrix(static_cast<int64_t>(n), static_cast<int64_t>(n)), rows, cols;
  if (kind == "rope") {
    const Matrix ab = l.matrix("rope_bias");
    rows = turned(l, Matrix(n, ab[0]), false), cols = turned(l, Matrix(n, ab[1]), true);
  }
  const std::vector<double> toeplitz = l.values("toeplitz_bias"), table = l.values("t5_bias");
  for (std::size_t i = 0; i < n; ++i)
    for (std::size_t j = 0; j < n; ++j) {
      const int distance = static_cast<int>(j) - static_cast<int>(i);
      if (kind == "toeplitz") b[i][j] = toeplitz[(toeplitz.size() + 1) / 2 - 1 + j - i];
      if (kind == "rope") b[i][j] = dot(rows[i], cols[j]);
      if (kind == "t5")
        b[i][j] =
            t5_scale *
            table[static_cast<std::size_t>(t5_reference(distance, l.yes("causal"), static_cast<int>(l.size("buckets")),
                                                        static_cast<int>(l.size("max_distance"))))];
    }
  return b;
}

Matrix gau(const LayerFacts& l, const LayerSequence& s) {
  const std::size_t e = l.size("expansion"), width = l.size("key_dim"), heads = l.size("heads");
  const bool post = l.text("placement") == "post";
  const auto norm = [&](const Matrix& x) { return norm_of(l, "norm", l.text("norm"), l.real("norm_eps"), x); };
  const auto qk_norm = [&](const char* name, const Matrix& x) {
    return l.yes("qk_norm") ? norm_of(l, name, l.text("qk_norm_kind"), l.real("qk_norm_eps"), x) : x;
  };
  const Matrix uvz = activated(dense(l, "in", post ? s.x : norm(s.x)), l.text("activation"));
  const Matrix z = columns(uvz, 2 * e, width);
  const std::vector<Matrix> qs = heads_of(scaled(l, z, 0), heads), ks = heads_of(scaled(l, z, 1), heads),
                            vs = heads_of(columns(uvz, e, e), heads);
  GauAttentionOptions a = weights_of(l);
  a.length = from_name<GauLength>(l.text("length")), a.constant_length = l.option("constant_length").get<int64_t>();
  a.mask.causal = l.yes("causal"), a.mask.window = l.option("window").get<int64_t>();
  a.top_k = l.option("top_k").get<int64_t>();
  Matrix bias = bias_of(l, s.x.size(), std::sqrt(l.real("dim")));
  if (!s.bias.empty()) bias = bias.empty() ? s.bias : plus(bias, s.bias);
  std::vector<Matrix> attended;
  for (std::size_t h = 0; h < heads; ++h) {
    Matrix q = qk_norm("q_norm", qs[h]), k = qk_norm("k_norm", ks[h]);
    if (l.yes("use_rope")) q = turned(l, q, false), k = turned(l, k, true);
    const auto together = [&](std::size_t i, std::size_t j) {
      return s.documents.empty() || s.documents[i] == s.documents[j];
    };
    const auto sees = [&](std::size_t i, std::size_t j) {
      return together(i, j) && (!s.allowed || s.allowed(h, i, j));
    };
    attended.push_back(attention_reference(q, k, vs[h], a, bias, s.real, sees, together));
  }
  Matrix y = dense(l, "out", product(columns(uvz, 0, e), joined(attended)));
  const double alpha = !l.yes("residual") ? 0 : post ? l.real("residual_scale") : 1;
  for (std::size_t i = 0; i < y.size(); ++i)
    for (std::size_t c = 0; c < y[i].size(); ++c) y[i][c] += alpha * s.x[i][c];
  return post ? norm(y) : y;
}

Matrix cross_gau(const LayerFacts& l, const LayerSequence& s) {
  const std::size_t e = l.size("expansion");
  const auto act = [&](const Matrix& m) { return activated(m, l.text("activation")); };
  const Matrix uq = act(dense(l, "uq", norm_of(l, "norm", l.text("norm"), l.real("norm_eps"), s.x)));
  const Matrix y = attention_reference(columns(uq, e, l.size("key_dim")), act(dense(l, "key", s.context)),
                                       act(dense(l, "value", s.context)), weights_of(l), {}, s.real_context);
  return plus(s.x, dense(l, "out", product(y, columns(uq, 0, e))));
}

/// Softmax over q·k/√(e/2), then gelu, then a gate between it and x·Wz.
Matrix tutorial_gau(const LayerFacts& l, const LayerSequence& s) {
  const Matrix u = times(s.x, l.matrix("wu")), v = times(s.x, l.matrix("wv")), z = times(s.x, l.matrix("wz"));
  const std::size_t half = l.size("expansion") / 2;
  const Matrix q = columns(u, 0, half), k = columns(u, half, half);
  Matrix y = softmax_of(s.x.size(), columns(v, 0, half), [&](std::size_t i, std::size_t j) {
    return s.real[j] && (!l.yes("causal") || j <= i) ? scaled_dot(q[i], k[j]) : kHidden;
  });
  y = activated(y, l.yes("gelu_tanh") ? "gelu_tanh" : "gelu");
  const Matrix gate = activated(columns(v, half, half), l.yes("sigmoid_gate") ? "sigmoid" : "identity");
  for (std::size_t i = 0; i < y.size(); ++i)
    for (std::size_t c = 0; c < half; ++c) y[i][c] = y[i][c] * gate[i][c] + (1 - gate[i][c]) * z[i][c];
  return l.yes("project_out") ? times(y, l.matrix("w_out")) : y;
}

/// What FLASH and MC-TFM++ have in common.
MixedChunkOptions mixed_of(const LayerFacts& l) {
  const GauAttentionOptions a = weights_of(l);
  MixedChunkOptions o;
  o.chunk = l.option("chunk").get<int64_t>(), o.causal = l.yes("causal");
  o.kind = a.kind, o.min_length = a.min_length;
  o.scaling = from_name<ChunkScaling>(l.text("scaling")), o.length = from_name<ChunkLength>(l.text("length"));
  o.quadratic = l.yes("quadratic"), o.linear = l.yes("linear");
  o.count_padding = l.yes("count_padding"), o.across_chunks = l.yes("across_chunks");
  return o;
}

/// Half of the normed channels come from the token before, unless it is padding or of another document.
Matrix shifted(const Matrix& x, const LayerSequence& s) {
  Matrix y = x;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const bool from_before = i > 0 && s.real[i - 1] && (s.documents.empty() || s.documents[i - 1] == s.documents[i]);
    for (std::size_t c = 0; c < (x[i].size() + 1) / 2; ++c) y[i][c] = from_before ? x[i - 1][c] : 0;
  }
  return y;
}

Matrix flash(const LayerFacts& l, const LayerSequence& s) {
  const std::size_t e = l.matrix("out.weight").size(), width = l.size("key_dim");
  Matrix normed = norm_of(l, "norm", l.text("norm"), l.real("norm_eps"), s.x);
  if (l.yes("token_shift")) normed = shifted(normed, s);
  const Matrix uvz = activated(dense(l, "in", normed), l.text("activation")), z = columns(uvz, 2 * e, width);
  const auto part = [&](std::size_t i) {
    return l.yes("use_rope") ? turned(l, scaled(l, z, i), i % 2 == 1) : scaled(l, z, i);
  };
  const Matrix bias = bias_of(l, l.size("chunk"), std::sqrt(l.real("key_dim")));
  const Matrix mixed = mixed_chunk_reference({part(0), part(1), part(2), part(3), columns(uvz, e, e)}, mixed_of(l),
                                             bias, {s.real, s.documents});
  return plus(s.x, dense(l, "out", product(mixed, columns(uvz, 0, e))));
}

Matrix stack(const LayerFacts& l, LayerSequence s) {
  for (std::size_t i = 0; i < l.size("layers"); ++i) s.x = flash(l.part("layers").part(std::to_string(i)), s);
  return s.x;
}

/// x + scale·[sin(p·base^(−2c/d)), cos(…)]
Matrix positioned(const LayerFacts& l, double base, Matrix x) {
  const double scale = l.values("scale")[0];
  for (std::size_t p = 0; p < x.size(); ++p)
    for (std::size_t c = 0, half = x[p].size() / 2; c < half; ++c) {
      const double angle = static_cast<double>(p) * std::pow(base, -static_cast<double>(c) / static_cast<double>(half));
      x[p][c] += scale * std::sin(angle), x[p][c + half] += scale * std::cos(angle);
    }
  return x;
}

Matrix flash_model(const LayerFacts& l, LayerSequence s) {
  if (l.size("vocabulary") > 0) {
    const Matrix table = l.matrix("embedding.weight");
    for (auto& row : s.x) row = table[static_cast<std::size_t>(row[0])];
  }
  if (l.yes("positions")) s.x = positioned(l.part("positions"), 10000, s.x);
  const std::string& kind = l.option("final_norm").is_null() ? l.text("norm") : l.text("final_norm");
  const Matrix y = norm_of(l, "norm", kind, l.real("norm_eps"), stack(l.part("body"), s));
  return l.size("outputs") > 0 ? dense(l, "head", y) : y;
}

Matrix mc_tfm(const LayerFacts& l, const LayerSequence& s) {
  const std::size_t d = l.size("dim"), heads = l.size("heads");
  const auto norm = [&](const char* name, const Matrix& x) {
    return norm_of(l, name, l.text("norm"), l.real("norm_eps"), x);
  };
  const Matrix qkv = dense(l, "qkv", norm("attention_norm", s.x)), q = columns(qkv, 0, d), k = columns(qkv, d, d);
  const std::vector<Matrix> parts[] = {heads_of(q, heads), heads_of(k, heads), heads_of(scaled(l, q, 0), heads),
                                       heads_of(scaled(l, k, 1), heads)};
  const std::vector<Matrix> v = heads_of(columns(qkv, 2 * d, d), heads);
  std::vector<Matrix> mixed;
  for (std::size_t h = 0; h < heads; ++h) {
    const auto part = [&](std::size_t i) {
      return l.yes("use_rope") ? turned(l, parts[i][h], i % 2 == 1) : parts[i][h];
    };
    mixed.push_back(
        mixed_chunk_reference({part(0), part(1), part(2), part(3), v[h]}, mixed_of(l), {}, {s.real, s.documents}));
  }
  const Matrix y = plus(s.x, dense(l, "out", joined(mixed)));
  return plus(y, glu_reference(l.part("glu"), l.text("glu"), norm("glu_norm", y)));
}

const bool registered[] = {
    register_reference("gau", gau),
    register_reference("cross_gau", cross_gau),
    register_reference("tutorial_gau", tutorial_gau),
    register_reference("flash", flash),
    register_reference("scaled_sinusoidal",
                       [](const LayerFacts& l, const LayerSequence& s) { return positioned(l, l.real("base"), s.x); }),
    register_reference("flash_block", stack),
    register_reference("flash_model", flash_model),
    register_reference("mc_tfm", mc_tfm),
};

}  // namespace

}  // namespace sluice::testing
