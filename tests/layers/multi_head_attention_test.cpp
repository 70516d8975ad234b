// The softmax attention layer: its map, counts, initial values and errors. heads_reference.cpp says what it computes.
#include "layers/multi_head_attention_samples.h"
#include "support/catch.h"
#include "support/identities.h"
#include "support/table_samples.h"

#include <sluice/layers/report/cost.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/rows/reduce.h>

using namespace sluice;
using namespace sluice::testing;

TEST_CASE("multi_head_attention: the map holds the weights of the values", "[attention]") {
  for (const LayerRow& row : layer_table())
    for (const Json& sample : row.name == "multi_head_attention" ? row.samples : std::vector<Json>{}) {
      const LayerSample s = make_sample(row, sample);
      MultiHeadAttention a = *static_cast<const MultiHeadAttention*>(s.layer->object());
      a.options.ablation = SdpaAblationKind::none, a.ablation = a.sandwich = Norm(),
      a.options.heads.residual = a.options.kv_shift = false;
      std::erase_if(a.gates, [](const AttentionGate& g) {
        return g.options.position != GatePosition::g3 && g.options.position != GatePosition::g4;
      });
      if (a.options.separate_global_projections) a.global_v = a.heads.v;
      const HeadsOptions& h = a.options.heads;
      const LayerInputs in = s.inputs(2, 9, 1);
      const Tensor padding = prefix_mask(9, 0, 5);  // of nobody, and of some
      INFO(s.text);
      for (const Tensor& keys : {Tensor(), padding}) {
        Pass pass{.context = in.context};
        (s.cross() ? pass.context_mask : pass.key_mask) = keys;
        const Linear& map_of_values = a.options.tied_values ? a.heads.k : a.heads.v;
        Tensor v = detail::split_heads(map_of_values(s.cross() ? in.context : a.norm(in.x)), h.kv_heads);
        if (const double l = a.options.qkv_limit; l > 0) v = clamp(v, -l, l);
        v = a.v_norm(v);
        const Tensor map = a.map(in.x, pass);
        const Tensor y = detail::merge_heads(matmul(map, repeat_interleave(v, h.heads / h.kv_heads, 1)));
        CHECK(max_abs_diff(a(in.x, pass), h.project_out ? a.heads.out(y) : y) < 1e-12);
        if (keys.defined()) CHECK(max_abs(select(map, 0, 0)) == 0);
      }
      CHECK(a.map(narrow(in.x, 1, 0, 0), {.context = in.context}).dim(2) == 0);
    }
}

TEST_CASE("multi_head_attention: softmax-off-by-one is one more key and value, all zero", "[attention][identity]") {
  const char* const name = "softmax-off-by-one = one zero key and value";
  for (bool causal : {false, true})
    for (int64_t kv_heads : {1, 2, 4}) {
      Rand rand(21);
      const Tensor q = random_tensor({2, 4, 7, 4}, f64, rand, -2, 2);
      const Tensor k = random_tensor({2, kv_heads, 7, 4}, f64, rand, -2, 2);
      const Tensor v = random_tensor({2, kv_heads, 7, 3}, f64, rand);
      AttentionOptions o;
      o.mask.causal = causal;
      const Tensor want = attention(q, pad(k, 2, 1, 0), pad(v, 2, 1, 0), o);  // key 0 is before every query
      o.sink = zeros({1}, {f64});
      check_identity(name, attention(q, k, v, o), want, 1e-13);
      o.sink = zeros({4}, {f64});
      check_identity(name, attention(q, k, v, o), want, 1e-13);
    }
  // In the layer: a token whose keys and values are 0, in front of the sequence.
  for (bool causal : {false, true}) {
    MultiHeadAttentionOptions o{.heads = {.dim = 6, .heads = 4, .kv_heads = 2, .head_dim = 4, .causal = causal}};
    o.sink = AttentionSink::off_by_one;
    Rand rand(22);
    MultiHeadAttention a = random_attention(o, rand);
    const Tensor x = random_tensor({2, 7, 6}, f64, rand), y = a(x);
    a.options.sink = AttentionSink::none;
    check_identity(name, narrow(a(pad(x, 1, 1, 0)), 1, 1, 7), y, 1e-13);
    CHECK(max_abs_diff(a(x), y) > 1e-3);
    a.options.sink = AttentionSink::learned, a.sink = zeros({4}, {f64});
    CHECK(max_abs_diff(a(x), y) < 1e-14);
  }
}

TEST_CASE("multi_head_attention: number of parameters, defaults and initial values", "[attention]") {
  // MHA 3d², MQA d² + 2d²/h, GQA d²(1 + 2g/h); with Wo one d² more.
  const int64_t d = 64, h = 8;
  for (int64_t g : {1, 2, 4, 8})
    CHECK(cost(MultiHeadAttentionOptions{.heads = {.dim = d, .heads = h, .kv_heads = g}}, 1).parameters ==
          2 * d * d + 2 * d * d * g / h);
  Rng rng(1);
  MultiHeadAttentionOptions o{.heads = {.dim = 6, .heads = 3, .context_dim = 4}};
  o.gates = {{.position = GatePosition::g2}, {.position = GatePosition::g1}};
  // Wq, Wo 6·6 each, Wk, Wv 4·6 each; a gate's map reads what it gates: 4·6 of V, 6·6 of the output.
  CHECK(count(MultiHeadAttention(o, rng)) == 2 * 36 + 2 * 24 + 24 + 36);
  const MultiHeadAttention coarse({.heads = {.dim = 6}, .norm = NormKind::rms, .norm_eps = 0.25, .sandwich_norm = true},
                                  rng);
  CHECK(coarse.norm.options.eps == 0.25);
  CHECK(coarse.sandwich.options.eps == 0.25);

  const MultiHeadAttention plain({.heads = {.dim = 12, .heads = 3}}, rng);
  CHECK(plain.options.heads.kv_heads == 3);
  CHECK(plain.options.heads.head_dim == 4);
  CHECK(plain.options.heads.value_dim == 4);
  CHECK_FALSE(plain.heads.q.bias.defined());
  CHECK(parameters(plain).size() == 4);
  const MultiHeadAttention learned({.heads = {.dim = 4}, .sink = AttentionSink::learned}, rng);
  CHECK(max_abs(learned.sink) == 0);
  const MultiHeadAttentionOptions qwen = qwen_attention_options(64, 8, 2, 16);
  const MultiHeadAttention gated(qwen, rng);
  CHECK(gated.gates.size() == 1);
  CHECK(gated.gates[0].options.position == GatePosition::g1);
  CHECK(gated.norm.options.eps == 1e-6);
  CHECK(gated.q_norm.options.eps == 1e-6);
  CHECK_FALSE(gated.q_norm.weight.shares_storage(gated.k_norm.weight));
  CHECK(std::sqrt(mean(square(gated.heads.q.weight)).item()) == Approx(0.02).epsilon(0.05));
  CHECK(summary(gated).find("gates.0.map") != std::string::npos);
}

TEST_CASE("multi_head_attention: gate G5 comes before the sandwich norm, which takes its scale away", "[attention]") {
  for (bool sandwich : {false, true}) {
    MultiHeadAttentionOptions o{.heads = {.dim = 6, .heads = 2, .dtype = f64}, .norm = NormKind::rms, .norm_eps = 0};
    o.sandwich_norm = sandwich;
    o.gates = {{.position = GatePosition::g5, .input_independent = true}};
    Rng rng(9);
    const MultiHeadAttention half(o, rng);
    MultiHeadAttention open = half;
    open.gates[0].theta = full(half.gates[0].theta.shape(), 60, {f64});  // σ(60) = 1 − 10⁻²⁶, σ(0) = ½
    Rand rand(9);
    const Tensor x = random_tensor({2, 5, 6}, f64, rand);
    CHECK(max_abs_diff(half(x) * (sandwich ? 1.0 : 2.0), open(x)) < 1e-14 * max_abs(open(x)));
  }
}

TEST_CASE("multi_head_attention: what is refused, and by which words", "[attention]") {
  Rng rng(1);
  auto make = [&](const std::function<void(MultiHeadAttentionOptions&)>& change) {
    MultiHeadAttentionOptions o{.heads = {.dim = 8, .heads = 2}};
    change(o);
    return MultiHeadAttention(o, rng);
  };
  using O = MultiHeadAttentionOptions;
  CHECK_THROWS_WITH(make([](O& o) { o.heads.heads = 3; }), Contains("heads=3") && Contains("dim=8"));
  CHECK_THROWS_WITH(make([](O& o) { o.heads.heads = 4, o.heads.kv_heads = 3; }),
                    Contains("kv_heads=3") && Contains("heads=4"));
  CHECK_THROWS_WITH(make([](O& o) { o.heads.use_rope = true, o.heads.head_dim = 3; }),
                    Contains("RoPE") && Contains("head_dim=3"));
  CHECK_THROWS_WITH(make([](O& o) { o.heads.use_rope = true, o.heads.rope.rot_dim = 6; }), Contains("rot_dim"));
  CHECK_THROWS_WITH(make([](O& o) { o.heads.project_out = false, o.gates = {{.position = GatePosition::g5}}; }),
                    Contains("project_out") && Contains("G5"));
  CHECK_THROWS_WITH(make([](O& o) { o.gates = {{.position = GatePosition::g3, .source = GateSource::query}}; }),
                    Contains("g3") && Contains("query"));
  CHECK_THROWS_WITH(make([](O& o) {
                      o.global = {0}, o.separate_global_projections = true, o.gates = {{.position = GatePosition::g2}};
                    }),
                    Contains("G1"));
  CHECK_THROWS_WITH(make([](O& o) { o.heads.context_dim = 8, o.separate_global_projections = true; }),
                    Contains("no common positions") && Contains("separate_global_projections"));
  CHECK_THROWS_WITH(make([](O& o) { o.sandwich_norm = true; }), Contains("sandwich_norm"));
  CHECK_THROWS_WITH(make([](O& o) { o.ablation = SdpaAblationKind::silu, o.gates = {AttentionGateOptions{}}; }),
                    Contains("G1"));
  CHECK_THROWS_WITH(make([](O& o) { o.position_bias = PositionBias::toeplitz, o.max_length = 0; }),
                    Contains("max_length"));
  CHECK_THROWS_WITH(make([](O& o) { o.position_bias = PositionBias::t5, o.t5.buckets = 6; }), Contains("buckets"));
  for (int kind = 0; kind < 5; ++kind) {
    auto crossed = [kind](O& o) {
      o.heads.context_dim = 4;
      if (kind == 0) o.heads.causal = true;
      if (kind == 1) o.window = 2;
      if (kind == 2) o.heads.use_rope = true;
      if (kind == 3) o.position_bias = PositionBias::alibi;
      if (kind == 4) o.global = {0};
    };
    CHECK_THROWS_AS(make(crossed), ValueError);
    CHECK_THROWS_WITH(make(crossed), Contains("cross attention"));
  }

  const MultiHeadAttention a = make([](O&) {}), cross = make([](O&o) { o.heads.context_dim = 4; });
  CHECK_THROWS_WITH(a(ones({2, 3, 8}), {.context = ones({2, 3, 4})}), Contains("has read context"));
  CHECK_THROWS_WITH(a(ones({2, 3, 8}), {.mask = ones({3, 4}) > 0.0}), Contains("[3,4]"));
  CHECK_THROWS_WITH(cross(ones({2, 3, 8}), {.context = ones({2, 5, 4}), .segments = zeros({2, 3}, {i64})}),
                    Contains("context_segments"));
  const MultiHeadAttention table = make([](O& o) { o.position_bias = PositionBias::toeplitz, o.max_length = 5; });
  CHECK_NOTHROW(table(ones({1, 5, 8})));
  CHECK_THROWS_WITH(table(ones({1, 6, 8})), Contains("5") && Contains("6"));
  const MultiHeadAttention global = make([](O& o) { o.global = {0}, o.separate_global_projections = true; });
  for (int64_t outside : {-1, 4})
    CHECK_THROWS_WITH(global(ones({1, 4, 8}), {.positions = {outside}}),
                      Contains("multi_head_attention") && Contains(str("position ", outside)) && Contains("4 tokens"));
  CHECK_THROWS_WITH(global(ones({1, 4, 8}), {.blocks = ones({2, 2}) > 0.0, .block = 2}), Contains("block"));
}
