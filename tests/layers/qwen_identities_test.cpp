// The gated attention layer of Qwen: what its gates are equal to, how checkpoints are packed, and the
// parameters that Table 1 of the paper counts.
#include "layers/multi_head_attention_samples.h"
#include "support/catch.h"
#include "support/identities.h"
#include "support/worse.h"

#include <sluice/autograd/gradcheck.h>
#include <sluice/core/node.h>
#include <sluice/layers/attention/attention_conversion.h>
#include <sluice/layers/report/cost.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/elementwise/elementwise.h>

using namespace sluice;
using namespace sluice::testing;

namespace {

constexpr GatePosition kPositions[] = {GatePosition::g1, GatePosition::g2, GatePosition::g3, GatePosition::g4,
                                       GatePosition::g5};
constexpr GateGranularity kGranularities[] = {GateGranularity::elementwise, GateGranularity::headwise};

/// A small layer; all that the tests of one identity share is the seed of its weights.
MultiHeadAttention layer(std::vector<AttentionGateOptions> gates, bool qk_norm = true, bool residual = true,
                         int64_t kv_heads = 2) {
  MultiHeadAttentionOptions o = qwen_attention_options(12, 4, kv_heads, 4, std::move(gates));
  o.qk_norm = qk_norm, o.heads.residual = residual;
  Rand rand(1);
  return random_attention(o, rand);
}
/// The same weights without gates.
MultiHeadAttention ungated(const MultiHeadAttention& a) {
  MultiHeadAttention plain = a;
  plain.gates.clear(), plain.options.gates.clear();
  return plain;
}
Tensor tokens(int64_t n = 9, uint64_t seed = 2) {
  Rand rand(seed);
  return random_tensor({2, n, 12}, f64, rand);
}
void set(Tensor& t, double value) {
  NoGrad guard;
  fill_(t, value);
}
/// Columns h·width … of a weight, each head's `times` times.
Tensor repeated_columns(const Tensor& weight, int64_t times) { return repeat_interleave(weight, times, -1); }

}  // namespace

TEST_CASE("qwen: a gate of 1 is the baseline, at every place", "[attention][gates][identity]") {
  for (GatePosition p : kPositions)
    for (GateGranularity g : kGranularities)
      for (bool qk_norm : {false, true}) {
        if (p == GatePosition::g5 && g == GateGranularity::headwise) continue;
        MultiHeadAttention a = layer({{.position = p, .granularity = g, .bias = true}}, qk_norm);
        set(a.gates[0].map.weight, 0), set(a.gates[0].map.bias, 40);  // σ(40) is 1 in f64
        check_identity("Qwen: gate = 1 is the baseline, G1-G5", a(tokens()), ungated(a)(tokens()), 1e-12);
        set(a.gates[0].map.bias, 1);
        const bool cancelled = qk_norm && (p == GatePosition::g3 || p == GatePosition::g4);
        CHECK((max_abs_diff(a(tokens()), ungated(a)(tokens())) > 1e-3) != cancelled);
        AttentionGateOptions added{.position = p, .granularity = g, .mode = GateMode::add};
        a = layer({added}, qk_norm);  // Y + σ would be another layer; Y + silu(0) is the same
        a.gates[0].options.activation = Act::silu, set(a.gates[0].map.weight, 0);
        check_identity("Qwen: gate = 1 is the baseline, G1-G5", a(tokens()), ungated(a)(tokens()), 1e-12);
      }
}

TEST_CASE("qwen: W = 0 halves the output for G1, G2, G5, and the logits for G3, G4", "[attention][gates][identity]") {
  for (GatePosition p : kPositions)
    for (GateGranularity g : kGranularities)
      for (bool fixed : {false, true}) {
        if (p == GatePosition::g5 && g == GateGranularity::headwise) continue;
        MultiHeadAttention a = layer({{.position = p, .granularity = g, .input_independent = fixed}}, false, false);
        set(fixed ? a.gates[0].theta : a.gates[0].map.weight, 0);
        MultiHeadAttention plain = ungated(a);
        if (p == GatePosition::g3 || p == GatePosition::g4) {
          plain.options.scale = 0.5 / std::sqrt(4.0);
          CHECK(max_abs_diff(a(tokens()), plain(tokens())) < 1e-12);
        } else {
          check_identity("Qwen: W = 0 is half the baseline, G1 G2 G5", a(tokens()), plain(tokens()) * 0.5, 1e-12);
        }
      }
  Rng rng(1);  // and so it starts: θ is 0, and W is small
  MultiHeadAttentionOptions o = qwen_attention_options(12, 4, 2, 4);
  o.heads.dtype = f64, o.heads.residual = false;
  const MultiHeadAttention fresh(o, rng);
  const Tensor half = ungated(fresh)(tokens()) * 0.5;
  CHECK(max_abs_diff(fresh(tokens()), half) < 0.1 * max_abs(half));
}

TEST_CASE("qwen: headwise = elementwise with repeated columns", "[attention][gates][identity]") {
  for (GatePosition p : {GatePosition::g1, GatePosition::g2, GatePosition::g3, GatePosition::g4})
    for (Act act : {Act::sigmoid, Act::silu, Act::ns_sigmoid, Act::identity})
      for (GateMode mode : {GateMode::multiply, GateMode::add})
        for (bool qk_norm : {false, true}) {
          AttentionGateOptions g{.position = p, .granularity = GateGranularity::headwise, .mode = mode};
          g.activation = act;
          MultiHeadAttention head = layer({g}, qk_norm);
          g.granularity = GateGranularity::elementwise;
          MultiHeadAttention element = layer({g}, qk_norm);
          for (const NamedTensor& t : parameters(head))
            if (t.name != "gates.0.map.weight")
              for (NamedTensor& u : parameters(element))
                if (u.name == t.name) {
                  NoGrad guard;
                  copy_(u.tensor, t.tensor);
                }
          element.gates[0].map.weight = repeated_columns(head.gates[0].map.weight, 4);
          check_identity("Qwen: headwise = elementwise with repeated columns", head(tokens()), element(tokens()),
                         1e-12);
        }
}

TEST_CASE("qwen: head-shared = head-specific with equal weights", "[attention][gates][identity]") {
  for (GatePosition p : {GatePosition::g1, GatePosition::g2, GatePosition::g3, GatePosition::g4})
    for (GateSharing sharing : {GateSharing::scores, GateSharing::logits})
      for (GateGranularity g : kGranularities) {
        MultiHeadAttention shared = layer({{.position = p, .granularity = g, .sharing = sharing}}, false);
        Tensor& w = shared.gates[0].map.weight;
        const int64_t heads = shared.gates[0].heads, width = w.dim(1) / heads;
        MultiHeadAttention specific = shared;
        specific.gates[0].options.sharing = GateSharing::none;
        CHECK(max_abs_diff(shared(tokens()), specific(tokens())) > 1e-3);
        w = repeat(narrow(w.detach(), 1, 0, width), heads, 1);
        specific.gates[0].map.weight = w;
        check_identity("Qwen: head-shared = head-specific with equal weights", shared(tokens()), specific(tokens()),
                       1e-12);
      }
}

TEST_CASE("qwen: for one token and g = h, G1 is G2", "[attention][gates][identity]") {
  for (GateGranularity g : kGranularities)
    for (Act act : {Act::sigmoid, Act::silu}) {
      const MultiHeadAttention g1 = layer({{.granularity = g, .activation = act}}, true, true, 4);
      MultiHeadAttention g2 = g1;
      g2.gates[0].options.position = GatePosition::g2;
      check_identity("Qwen: n = 1 and g = h: G1 = G2", g1(tokens(1)), g2(tokens(1)), 1e-12);
      CHECK(max_abs_diff(g1(tokens(2)), g2(tokens(2))) > 1e-3);
    }
}

TEST_CASE("qwen: QK-norm cancels a headwise gate before it", "[attention][gates][identity]") {
  for (GatePosition p : {GatePosition::g3, GatePosition::g4})
    for (double eps : {0.0, 1e-6}) {
      AttentionGateOptions g{.position = p, .granularity = GateGranularity::headwise};
      MultiHeadAttention a = layer({g});
      a.q_norm.options.eps = a.k_norm.options.eps = eps;
      if (eps == 0)
        check_identity("Qwen: QK-norm cancels a headwise G3/G4 gate", a(tokens()), ungated(a)(tokens()), 1e-12);
      else CHECK(max_abs_diff(a(tokens()), ungated(a)(tokens())) < 1e-4);
      a.gates[0].options.after_qk_norm = true;
      CHECK(max_abs_diff(a(tokens()), ungated(a)(tokens())) > 1e-3);
      g.granularity = GateGranularity::elementwise;
      a = layer({g});
      a.q_norm.options.eps = a.k_norm.options.eps = eps;
      CHECK(max_abs_diff(a(tokens()), ungated(a)(tokens())) > 1e-3);
    }
}

TEST_CASE("qwen: G1, G2 and G5 leave the attention map alone, G3 and G4 do not", "[attention][gates][identity]") {
  for (GatePosition p : kPositions) {
    const MultiHeadAttention a = layer({{.position = p}});
    const Tensor with = a.map(tokens()), without = ungated(a).map(tokens());
    if (p == GatePosition::g1) check_identity("Qwen: G1 leaves the attention map unchanged", with, without, 0);
    const bool unchanged = p != GatePosition::g3 && p != GatePosition::g4;
    CHECK((max_abs_diff(with, without) == 0) == unchanged);
    CHECK(max_abs_diff(a(tokens()), ungated(a)(tokens())) > 1e-3);
  }
}

TEST_CASE("qwen: the outputs of a prefix are the prefix of the outputs", "[attention][gates][identity]") {
  for (GatePosition p : kPositions)
    for (GateGranularity g : kGranularities) {
      if (p == GatePosition::g5 && g == GateGranularity::headwise) continue;
      const MultiHeadAttention a = layer({{.position = p, .granularity = g}});
      for (int64_t n : {1, 4, 8})
        check_identity("Qwen: prefix property", a(narrow(tokens(), 1, 0, n)), narrow(a(tokens()), 1, 0, n), 1e-12);
    }
}

TEST_CASE("qwen: both packings of q_proj, against the released views", "[attention][gates][identity]") {
  const int64_t dim = 6, heads = 4, dk = 3;
  for (int64_t kv_heads : {1, 2, 4})
    for (GateGranularity g : kGranularities)
      for (QProjPacking packing : {QProjPacking::per_kv_group, QProjPacking::per_head}) {
        const bool by_head = packing == QProjPacking::per_head;
        const int64_t scores = g == GateGranularity::headwise ? 1 : dk, width = heads * (dk + scores);
        Rand rand(3);
        const Tensor w = random_tensor({dim, width}, f64, rand), x = random_tensor({5, dim}, f64, rand);
        // The released code splits the projection: (n, groups, ·) into [per·dk | per·scores] for each group.
        const int64_t groups = by_head ? heads : kv_heads, per = heads / groups;
        const Matrix y = times(matrix_of(x), matrix_of(w));
        Matrix q = matrix(5, heads * dk), gate = matrix(5, heads * scores);
        for (std::size_t i = 0; i < 5; ++i)
          for (int64_t h = 0; h < heads; ++h) {
            const int64_t base = h / per * per * (dk + scores), within = h % per;
            for (int64_t c = 0; c < dk; ++c)
              q[i][static_cast<std::size_t>(h * dk + c)] = y[i][static_cast<std::size_t>(base + within * dk + c)];
            for (int64_t c = 0; c < scores; ++c)
              gate[i][static_cast<std::size_t>(h * scores + c)] =
                  y[i][static_cast<std::size_t>(base + per * dk + within * scores + c)];
          }
        const QueryAndGate parts = unpack_q_proj(w, packing, heads, kv_heads, dk, g);
        const char* name = by_head ? "Qwen: packing per head" : "Qwen: packing per KV group";
        auto difference = [](const Tensor& a, const Matrix& b) {
          double worst = 0;
          const Matrix m = matrix_of(a);
          for (std::size_t i = 0; i < b.size(); ++i)
            for (std::size_t c = 0; c < b[i].size(); ++c) worst = worse(worst, std::abs(m[i][c] - b[i][c]));
          return m[0].size() == b[0].size() ? worst : INFINITY;
        };
        check_identity(name, difference(matmul(x, parts.query), q), 1e-14);
        check_identity(name, difference(matmul(x, parts.gate), gate), 1e-14);
        CHECK(same_bits(pack_q_proj(parts, packing, heads, kv_heads, dk, g), w));
        const Tensor bias = select(w, 0, 0);  // of a bias, too
        CHECK(same_bits(unpack_q_proj(bias, packing, heads, kv_heads, dk, g).query, select(parts.query, 0, 0)));
        if (kv_heads != 2) continue;
        Tensor leaf = clone(w).requires_grad_();
        CHECK(gradcheck(
            [&](const std::vector<Tensor>& v) {
              const QueryAndGate p = unpack_q_proj(v[0], packing, heads, kv_heads, dk, g);
              return pack_q_proj({p.query * p.query, p.gate * 3.0}, packing, heads, kv_heads, dk, g);
            },
            {leaf}));
      }
  // With one head a group the two are the same; else they are not.
  Rand rand(4);
  const Tensor w = random_tensor({dim, heads * 2 * dk}, f64, rand);
  auto query = [&](QProjPacking p, int64_t kv_heads) { return unpack_q_proj(w, p, heads, kv_heads, dk).query; };
  CHECK(same_bits(query(QProjPacking::per_kv_group, 4), query(QProjPacking::per_head, 4)));
  CHECK(max_abs_diff(query(QProjPacking::per_kv_group, 2), query(QProjPacking::per_head, 2)) > 1e-2);
  CHECK_THROWS_AS(unpack_q_proj(w, QProjPacking::per_head, heads, 2, dk + 1), ShapeError);
  CHECK_THROWS_WITH(unpack_q_proj(w, QProjPacking::per_head, heads, 2, dk, GateGranularity::headwise),
                    Contains("[6,24]") && Contains("16"));
  CHECK_THROWS_AS(unpack_q_proj(w, QProjPacking::per_kv_group, heads, 3, dk), ValueError);
  CHECK_THROWS_WITH(pack_q_proj({w, w}, QProjPacking::per_head, heads, 2, dk), Contains("[6,24]") && Contains("12"));
}

TEST_CASE("qwen: a layer from a packed checkpoint", "[attention][gates]") {
  for (GateGranularity g : kGranularities) {
    const MultiHeadAttention a = layer({{.granularity = g}});
    const Tensor packed =
        pack_q_proj({a.heads.q.weight, a.gates[0].map.weight}, QProjPacking::per_kv_group, 4, 2, 4, g);
    MultiHeadAttention b = a;
    const QueryAndGate parts = unpack_q_proj(packed, QProjPacking::per_kv_group, 4, 2, 4, g);
    b.heads.q.weight = parts.query, b.gates[0].map.weight = parts.gate;
    CHECK(same_bits(a(tokens()), b(tokens())));
  }
}

TEST_CASE("qwen: added parameters of Table 1", "[attention][gates][identity]") {
  // 24 layers, d = 2048, q = 32, kv = 4, dk = 128; in millions, as printed.
  const auto parameters_of = [](const MultiHeadAttentionOptions& o) { return cost(o, 1).parameters; };
  const int64_t baseline = parameters_of(qwen_attention_options(2048, 32, 4, 128, {}));
  auto check = [&](const MultiHeadAttentionOptions& o, double printed, double digits) {
    const double millions = 24e-6 * static_cast<double>(parameters_of(o) - baseline);
    // Row 9 prints 100 for 24·2048² = 100.66 million: cut off, where the others are rounded.
    const double last = o.gates.size() == 1 && o.gates[0].position == GatePosition::g5 ? std::floor(millions * digits)
                                                                                       : std::round(millions * digits);
    check_identity("Qwen: added parameters of Table 1", std::abs(last / digits - printed), 0);
  };
  auto gated = [](AttentionGateOptions g) { return qwen_attention_options(2048, 32, 4, 128, {g}); };
  check(qwen_attention_options(2048, 32, 8, 128, {}), 50, 1);   // row 2: k = 8
  check(qwen_attention_options(2048, 48, 4, 128, {}), 201, 1);  // row 3: q = 48
  check(gated({}), 201, 1);
  check(gated({.position = GatePosition::g2}), 25, 1);
  check(gated({.position = GatePosition::g3}), 25, 1);
  check(gated({.position = GatePosition::g4}), 201, 1);
  check(gated({.position = GatePosition::g5}), 100, 1);
  check(gated({.granularity = GateGranularity::headwise}), 1.6, 10);
  check(gated({.position = GatePosition::g2, .granularity = GateGranularity::headwise}), 0.2, 10);
  check(gated({.sharing = GateSharing::scores}), 201, 1);
  check(gated({.position = GatePosition::g2, .sharing = GateSharing::scores}), 25, 1);
  check(gated({.mode = GateMode::add, .activation = Act::silu}), 201, 1);
  check(gated({.activation = Act::silu}), 201, 1);
}
