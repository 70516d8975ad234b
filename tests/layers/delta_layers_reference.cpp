// References of the layers of the delta rule, step by step.
#include "layers/nn_reference.h"

namespace sluice::testing {

namespace {

struct DeltaRows {
  Matrix x;
  std::vector<Matrix> q, k, v;  // of heads; of heads and of value heads for each update in turn
};
/// q | k | v of x with zeros in place of padding: through the maps, the convolution and the activations.
DeltaRows delta_rows(const LayerFacts& l, const LayerSequence& s, const std::string& act) {
  const MappedRows m = mapped_rows(l, s, "identity");
  const std::size_t heads = l.size("heads"), value_heads = l.size("value_heads") ? l.size("value_heads") : heads;
  return {m.x, heads_of(activated(m.q, act), heads), heads_of(activated(m.k, act), l.size("updates") * heads),
          heads_of(activated(m.v, "silu"), l.size("updates") * value_heads)};
}

std::vector<double> normalised(std::vector<double> row, bool l2) {
  double total = 0;
  for (double c : row) total += l2 ? c * c : c;
  const double by = l2 ? std::sqrt(total + 1e-6) : total;
  for (double& c : row) c = by == 0 ? 0 : c / by;
  return row;
}

/// One write of a value head at each token: v at k. `erase` has a number for each key channel, `write` for each value
/// channel.
struct Update {
  Matrix k, v, erase, write;
};

/// The rows o of one value head, with a state that is written to token by token, and is empty where a document begins.
/// `decay` has a number for each key channel.
Matrix delta_head(const Matrix& q, const std::vector<Update>& updates, const Matrix& decay, const LayerSequence& s,
                  bool l2) {
  const std::size_t dk = q[0].size(), dv = updates[0].v[0].size();
  Matrix o, state(dk, std::vector<double>(dv));
  for (std::size_t t = 0; t < q.size(); ++t) {
    if (t > 0 && !s.documents.empty() && s.documents[t] != s.documents[t - 1])
      state.assign(dk, std::vector<double>(dv));
    for (std::size_t c = 0; s.real[t] && !decay.empty() && c < dk; ++c)
      for (double& x : state[c]) x *= std::exp(decay[t][c]);
    for (const Update& u : updates) {
      const std::vector<double> key = normalised(u.k[t], l2);
      for (std::size_t j = 0; s.real[t] && j < dv; ++j) {
        double said = 0;
        for (std::size_t c = 0; c < dk; ++c) said += u.erase[t][c] * key[c] * state[c][j];
        for (std::size_t c = 0; c < dk; ++c) state[c][j] += key[c] * (u.write[t][j] * u.v[t][j] - said);
      }
    }
    const std::vector<double> query = normalised(q[t], l2);
    o.emplace_back(dv);
    for (std::size_t j = 0; j < dv; ++j)
      for (std::size_t c = 0; c < dk; ++c) o[t][j] += query[c] * state[c][j] / std::sqrt(static_cast<double>(dk));
  }
  return o;
}

/// Column h of x in `width` columns.
Matrix spread(const Matrix& x, std::size_t h, std::size_t width) {
  Matrix y;
  for (const auto& row : x) y.emplace_back(width, row[h]);
  return y;
}

Matrix delta_layer(const LayerFacts& l, const LayerSequence& s, const std::string& kind) {
  const bool plain = kind == "delta_net", by_channel = kind == "kda";
  const DeltaRows r = delta_rows(l, s, plain ? l.text("qk_activation") : "silu");
  const std::size_t m = l.size("updates"), value_heads = r.v.size() / m, heads_of_keys = r.q.size();
  const std::size_t group = value_heads / heads_of_keys, dk = r.k[0][0].size(), dv = r.v[0][0].size();
  Matrix beta, z;
  if (plain && !l.yes("use_beta")) beta = Matrix(r.x.size(), std::vector<double>(r.v.size(), 1.0));
  else if (!by_channel || !l.yes("erase_write")) beta = activated(dense(l, "beta", r.x), "sigmoid");
  const bool full = by_channel && l.yes("full_rank");
  const auto inner = [&](const char* map) { return full ? r.x : dense(l, map, r.x); };
  if (!plain) z = by_channel ? dense(l, "decay_up", inner("decay_down")) : dense(l, "decay", r.x);
  const std::vector<double> a = plain ? std::vector<double>() : l.values("a_log"),
                            bias = plain ? std::vector<double>() : l.values("dt_bias");
  const double scale = l.real("beta_scale");
  std::vector<Matrix> heads;
  for (std::size_t h = 0; h < value_heads; ++h) {
    Matrix decay;
    if (!plain) {
      decay = by_channel ? columns(z, h * dk, dk) : spread(z, h, dk);
      for (auto& row : decay)
        for (std::size_t c = 0; c < dk; ++c) {
          const double x = row[c] + bias[by_channel ? h * dk + c : h], rate = std::exp(a[h]),
                       bound = by_channel ? l.real("lower_bound", 1) : 1;
          row[c] = bound <= 0 ? bound / (1 + std::exp(-rate * x)) : -rate * std::log1p(std::exp(x));
        }
    }
    std::vector<Update> updates;
    for (std::size_t i = 0; i < m; ++i) {
      Update u{r.k[i * heads_of_keys + h / group], r.v[i * value_heads + h], {}, {}};
      if (beta.empty()) {
        u.erase = columns(activated(dense(l, "erase", r.x), "sigmoid"), h / group * dk, dk);
        u.write = columns(activated(dense(l, "write", r.x), "sigmoid"), h * dv, dv);
      } else {
        u.erase = spread(beta, i * value_heads + h, dk), u.write = spread(beta, i * value_heads + h, dv);
      }
      for (Matrix* gate : {&u.erase, &u.write})
        for (auto& row : *gate)
          for (double& x : row) x *= beta.empty() && gate == &u.write ? 1 : scale;
      updates.push_back(std::move(u));
    }
    const Matrix o = delta_head(r.q[h / group], updates, decay, s, !plain || l.text("qk_norm") == "l2");
    heads.push_back(norm_of(l, "norm", "rms", l.real("norm_eps"), o));
  }
  Matrix y = joined(heads);
  if (by_channel) y = product(y, activated(dense(l, "output_gate_up", inner("output_gate_down")), "sigmoid"));
  else if (plain ? l.yes("output_gate") : l.text("output_gate") != "none")
    y = product(y, activated(dense(l, "output_gate", r.x), plain ? "silu" : l.text("output_gate")));
  return dense(l, "out", y);
}

const bool registered[] = {
    register_reference("delta_net",
                       [](const LayerFacts& l, const LayerSequence& s) { return delta_layer(l, s, "delta_net"); }),
    register_reference("gated_delta_net", [](const LayerFacts& l,
                                             const LayerSequence& s) { return delta_layer(l, s, "gated_delta_net"); }),
    register_reference("kda", [](const LayerFacts& l, const LayerSequence& s) { return delta_layer(l, s, "kda"); }),
};

}  // namespace

}  // namespace sluice::testing
