// The identities that concern the attention engine, measured against naive loops or dense
// formulae written out here; what dropout draws; operands, defaults and errors.
#include "support/attention_samples.h"
#include "support/catch.h"
#include "support/identities.h"
#include "support/naive_attention.h"
#include "support/worse.h"

#include <sluice/autograd/engine.h>
#include <sluice/core/kernel/parallel.h>
#include <sluice/ops/attention/attention_reference.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/matmul/matmul.h>
#include <sluice/ops/rows/reduce.h>
#include <sluice/ops/shape/view.h>

#include <cmath>

using namespace sluice;
using namespace sluice::testing;

namespace {

constexpr std::pair<int64_t, int64_t> kTilings[] = {{1, 1}, {2, 3}, {3, 2}, {4, 4}, {5, 7}, {64, 64}};

Tensor naive(const AttentionSample& s) {
  const Array y = naive_attention(array_of(s.q), array_of(s.k), array_of(s.v), s.options).out;
  return tensor_of(y.v, {y.shape[0], y.shape[1], y.shape[2], y.shape[3]}, f64);
}
AttentionSample sample(uint64_t seed, int64_t m = 13, int64_t n = 13, int64_t heads = 2, int64_t kv_heads = 2) {
  Rand rand(seed);
  return plain_attention(rand, {2, heads, m, 4}, kv_heads, n, 3);
}
Tensor engine(const AttentionSample& s) { return attention(s.q, s.k, s.v, s.options); }

}  // namespace

TEST_CASE("attention: any tiling, in either order or in the engine, is naive attention", "[attention][identity]") {
  uint64_t seed = 0;
  for (bool causal : {false, true})
    for (auto [rows, cols] : kTilings)
      for (auto [m, n] : {std::pair<int64_t, int64_t>{13, 13}, {7, 18}, {18, 7}}) {  // ragged; causal 18×7: masked rows
        ++seed;
        AttentionSample s = sample(seed, m, n, 2, seed % 2 ? 1 : 2);
        s.options.mask.causal = causal;
        s.options.tile_rows = rows, s.options.tile_cols = cols;
        const Tensor want = naive(s);
        check_identity("flash: 6 tilings x causal x FA-1 = naive",
                       attention_in_order(s.q, s.k, s.v, TileOrder::flash1, rows, cols, s.options), want, 1e-13);
        check_identity("flash: 6 tilings x causal x FA-2 = naive",
                       attention_in_order(s.q, s.k, s.v, TileOrder::flash2, rows, cols, s.options), want, 1e-13);
        check_identity("flash: engine, 6 tilings x causal = naive", engine(s), want, 1e-13);
        Rand rand(seed);  // and behind padding and an arbitrary mask
        s.options.mask.dense = random_tensor({2, 2, m, n}, f64, rand) > -0.4;
        s.options.mask.keys = random_tensor({2, n}, f64, rand) > -0.6;
        const Tensor masked = naive(s);
        check_identity("flash: 6 tilings x causal x FA-1 = naive",
                       attention_in_order(s.q, s.k, s.v, TileOrder::flash1, rows, cols, s.options), masked, 1e-13);
        check_identity("flash: 6 tilings x causal x FA-2 = naive",
                       attention_in_order(s.q, s.k, s.v, TileOrder::flash2, rows, cols, s.options), masked, 1e-13);
        check_identity("flash: engine, 6 tilings x causal = naive", engine(s), masked, 1e-13);
      }
}

TEST_CASE("attention: fully masked rows are 0, in every order", "[attention][identity]") {
  for (auto [rows, cols] : kTilings) {
    AttentionSample s = sample(40, 9, 5);
    s.options.mask.causal = true;  // queries 0 … 3 stand before all keys
    s.options.mask.keys = tensor_of({1, 1, 1, 1, 1, 0, 0, 0, 0, 0}, {2, 5}, boolean);  // the second sequence has none
    s.options.tile_rows = rows, s.options.tile_cols = cols;
    for (const Tensor& y : {engine(s), attention_in_order(s.q, s.k, s.v, TileOrder::flash1, rows, cols, s.options),
                            attention_in_order(s.q, s.k, s.v, TileOrder::flash2, rows, cols, s.options)}) {
      const Tensor first = select(y, 0, 0), second = select(y, 0, 1);
      check_identity("flash: fully masked rows are 0", max_abs_diff(narrow(first, 1, 0, 4), zeros({2, 4, 3}, {f64})),
                     0);
      check_identity("flash: fully masked rows are 0", max_abs_diff(second, zeros({2, 9, 3}, {f64})), 0);
      CHECK(min(abs(narrow(first, 1, 4, 5))).item() > 0);
    }
    for (const Tensor& x : run_attention(attention, s)) CHECK(max_abs(select(x, 0, 1)) == 0);
    const Tensor lse = attention_with_lse(s.q, s.k, s.v, s.options).lse;
    CHECK(all(eq(lse == -INFINITY, logical_not(any(s.visible(), {3})))).item() == 1);
  }
}

TEST_CASE("attention: skipping blocks is masking them", "[attention][identity]") {
  Rand rand(41);
  for (Weighting weighting : kWeightings)
    for (int64_t block : {1, 3, 4, 16})
      for (auto [tile_rows, tile_cols] : kTilings) {
        AttentionSample s = sample(42, 19, 22), dense = s;
        const int64_t rows = (19 + block - 1) / block, cols = (22 + block - 1) / block;
        s.options.weighting = dense.options.weighting = weighting;
        s.options.tile_rows = tile_rows, s.options.tile_cols = tile_cols;
        s.options.mask.blocks = random_tensor({2, rows, cols}, f64, rand) > 0.2, s.options.mask.block = block;
        const Tensor spread = repeat_interleave(repeat_interleave(s.options.mask.blocks, block, 1), block, 2);
        dense.options.mask.dense = narrow(narrow(spread, 1, 0, 19), 2, 0, 22);
        check_identity("flash: skipped blocks = masked dense", engine(s),
                       attention_reference(dense.q, dense.k, dense.v, dense.options), 1e-12);
        check_identity("flash: skipped blocks = masked dense", engine(s), naive(dense), 1e-12);
      }
}

TEST_CASE("attention: two halves of the keys merge into the whole, and so do their gradients",
          "[attention][identity]") {
  for (int64_t cut : {0, 1, 6, 17, 18})
    for (bool causal : {false, true}) {
      AttentionSample s = sample(43, 5, 18, 4, 2);
      for (Tensor* x : {&s.q, &s.k, &s.v}) x->requires_grad_();
      // Positions align at the end, so the parts take their piece of the whole mask.
      AttentionOptions whole;
      whole.mask.causal = causal, whole.mask.window = causal ? 4 : 0;
      const Tensor visible = visible_pairs(whole.mask, 2, 4, 5, 18);
      auto part = [&](int64_t first, int64_t count, bool sink) {
        AttentionOptions o;
        o.mask.dense = narrow(visible, 3, first, count);
        if (sink) o.sink = tensor_of({0.3, -0.2, 0.1, 0.5}, {4}, f64);
        return attention_with_lse(s.q, narrow(s.k, 2, first, count), narrow(s.v, 2, first, count), o);
      };
      for (bool sink : {false, true}) {  // a sink belongs to one of the parts
        const AttentionAndLse merged = merge_attention(part(0, cut, false), part(cut, 18 - cut, sink));
        if (sink) whole.sink = tensor_of({0.3, -0.2, 0.1, 0.5}, {4}, f64);
        const AttentionAndLse want = attention_with_lse(s.q, s.k, s.v, whole);
        check_identity("flash: split-KV merge = full", merged.out, want.out, 1e-13);
        check_identity("flash: split-KV merge = full", merged.lse, want.lse, 1e-13);
        Rand rand(44);
        const Tensor g = random_tensor(want.out.shape(), f64, rand), h = random_tensor(want.lse.shape(), f64, rand);
        const auto got = grad({merged.out, merged.lse}, {s.q, s.k, s.v}, {.grad_outputs = {g, h}});
        const auto expected = grad({want.out, want.lse}, {s.q, s.k, s.v}, {.grad_outputs = {g, h}});
        for (std::size_t i = 0; i < 3; ++i) check_identity("flash: split-KV merge = full", got[i], expected[i], 1e-12);
      }
    }
  // In any grouping, from parts of one key.
  const AttentionSample s = sample(45, 3, 6);
  AttentionAndLse all = attention_with_lse(s.q, narrow(s.k, 2, 0, 1), narrow(s.v, 2, 0, 1));
  for (int64_t j = 1; j < 6; ++j)
    all = merge_attention(attention_with_lse(s.q, narrow(s.k, 2, j, 1), narrow(s.v, 2, j, 1)), all);
  check_identity("flash: split-KV merge = full", all.out, naive(s), 1e-13);
  CHECK_THROWS_WITH(merge_attention(all, attention_with_lse(narrow(s.q, 2, 0, 2), s.k, s.v)),
                    Contains("merge_attention") && Contains("[2,2,3,3]") && Contains("[2,2,2,3]"));
}

TEST_CASE("attention: few queries see many keys as many queries would", "[attention][identity]") {
  for (int64_t m : {1, 3, 4, 5})
    for (int64_t n : {1, 1031})  // one tile of keys, or parts
      for (auto weighting : {Weighting::softmax, Weighting::relu2})
        for (int variant = 0; variant < 4; ++variant) {
          Rand rand(static_cast<uint64_t>(100 * m + n + variant));
          AttentionSample s = plain_attention(rand, {2, 4, m, 67}, 2, n, 37);
          AttentionOptions& o = s.options;
          o.weighting = weighting;
          if (variant >= 1) o.mask.causal = true, o.bias = random_tensor({4, 1, n}, f64, rand);
          if (variant >= 2) o.mask.dense = random_tensor({2, 1, m, n}, f64, rand) > 0.3;
          if (variant == 3) o.mask.window = 700;  // some parts see nothing
          if (weighting == Weighting::softmax && variant >= 1) o.sink = random_tensor({4}, f64, rand, -1, 3);
          const Tensor want = attention_reference(s.q, s.k, s.v, o);
          INFO("m " << m << " n " << n << " variant " << variant);
          CHECK(max_abs_diff(engine(s), want) < 1e-12);
          const AttentionSample narrow = s.in(f32);
          CHECK(max_abs_diff(to(engine(narrow), f64), want) < 2e-5 * (1 + max_abs(want)));
          const int threads = num_threads();
          const Tensor y = engine(narrow);
          set_num_threads(1);
          CHECK(same_bits(y, engine(narrow)));
          set_num_threads(threads);
        }
}

TEST_CASE("attention: the backward pass is the dense one, written out", "[attention][identity]") {
  auto check = [](AttentionSample s, double tolerance) {
    const Shape scores{2, 2, s.q.dim(2), s.k.dim(2)}, outputs{2, 2, s.q.dim(2), 3};
    s.options.scale = 0.37;
    Rand rand(47);
    const Tensor g = random_tensor(outputs, f64, rand);
    const std::vector<Tensor> got = run_attention(attention, s, g);
    // D_i = Σ_c g_ic o_ic; dV = Pᵀ g; dS = P ⊙ (g Vᵀ − D); dQ = scale·dS K; dK = scale·dSᵀ Q
    const NaiveAttention forward = naive_attention(array_of(s.q), array_of(s.k), array_of(s.v), s.options);
    const Tensor p = tensor_of(forward.weights.v, scores, f64), o = tensor_of(forward.out.v, outputs, f64);
    const Tensor d = sum(g * o, {-1}, keep), ds = p * (matmul(g, transpose(s.v, -2, -1)) - d);
    check_identity("flash: backward = dense backward", got[1], matmul(ds, s.k) * 0.37, tolerance);
    check_identity("flash: backward = dense backward", got[2], matmul(transpose(ds, -2, -1), s.q) * 0.37, tolerance);
    check_identity("flash: backward = dense backward", got[3], matmul(transpose(p, -2, -1), g), tolerance);
  };
  for (bool causal : {false, true}) {
    for (auto [rows, cols] : kTilings)
      for (auto [m, n] : {std::pair<int64_t, int64_t>{13, 13}, {7, 18}, {18, 7}}) {
        AttentionSample s = sample(46, m, n);
        s.options.mask.causal = causal, s.options.tile_rows = rows, s.options.tile_cols = cols;
        check(s, 1e-13);
      }
    // Long enough for the keys to be split: with as many groups of queries as splits, with fewer, with one.
    for (auto [m, n] : {std::pair<int64_t, int64_t>{140, 1030}, {200, 1540}, {60, 1030}})
      if (causal == (m == 200)) {
        AttentionSample s = sample(48, m, n);
        s.options.mask.causal = causal;
        check(s, 1e-13);
      }
  }
}

TEST_CASE("attention: no two threads add to one gradient", "[attention][bits]") {
  const int threads = num_threads();
  for (auto [m, n] : {std::pair<int64_t, int64_t>{400, 1100}, {200, 2100}}) {
    Rand rand(49);
    const AttentionSample s = plain_attention(rand, {1, 1, m, 8}, 1, n, 8);
    const Tensor g = random_tensor({1, 1, m, 8}, f64, rand);
    set_num_threads(1);
    const std::vector<double> want = run_attention(attention, s, g)[1].to_vector<double>();
    set_num_threads(2);
    for (int i = 0; i < 6; ++i) CHECK(run_attention(attention, s, g)[1].to_vector<double>() == want);
  }
  set_num_threads(threads);
}

TEST_CASE("attention: finite at scores of 1e4, in every order", "[attention][identity]") {
  for (bool causal : {false, true})
    for (auto [rows, cols] : kTilings) {
      AttentionSample s = sample(48, 13, 13);
      s.options.scale = 5000, s.options.mask.causal = causal;
      s.options.tile_rows = rows, s.options.tile_cols = cols;
      const Tensor scores = matmul(s.q, transpose(s.k, -2, -1)) * 5000.0;
      REQUIRE(max_abs(scores) > 1e4);
      const Tensor want = naive(s);
      for (const Tensor& y : {engine(s), attention_in_order(s.q, s.k, s.v, TileOrder::flash1, rows, cols, s.options),
                              attention_in_order(s.q, s.k, s.v, TileOrder::flash2, rows, cols, s.options)})
        check_identity("flash: finite at scores of 1e4", y, want, 1e-10);  // e^s of s = 1e4 ± ε
      for (const Tensor& x : run_attention(attention, s.in(f32))) CHECK(all(isfinite(x)).item() == 1);
    }
}

TEST_CASE("attention: dropout", "[attention][dropout]") {
  const Tensor q = zeros({2, 3, 60, 4}, {f64}), k = zeros({2, 3, 64, 4}, {f64});
  const Tensor v = contiguous(expand(eye(64, 64, {f64}), {2, 3, 64, 64}));  // the output is the dropped map
  AttentionOptions o;
  o.dropout = 0.3;
  Rng rng(9), same(9), definition(9);
  const Tensor a = attention(q, k, v, o, &rng), b = attention(q, k, v, o, &same);
  CHECK(same_bits(a, b));
  CHECK(max_abs_diff(attention_reference(q, k, v, o, &definition), a) < 1e-15);
  CHECK(rng.offset() == definition.offset());
  CHECK(rng.offset() > 0);
  CHECK_FALSE(same_bits(attention(q, k, v, o, &rng), a));  // the generator went on
  double kept = 0, wrong = 0;
  for (double w : a.to_vector<double>())
    kept += w != 0, wrong = worse(wrong, std::min(std::abs(w), std::abs(w - 1 / (64 * 0.7))));
  CHECK(wrong < 1e-15);
  CHECK(std::abs(kept / static_cast<double>(a.numel()) - 0.7) < 0.015);  // 5 σ
  // Rows, heads and sequences draw on their own.
  const Tensor zero = a == 0.0;
  CHECK_FALSE(same_bits(select(zero, 0, 0), select(zero, 0, 1)));
  CHECK_FALSE(same_bits(select(zero, 1, 0), select(zero, 1, 1)));
  CHECK_FALSE(same_bits(select(zero, 2, 0), select(zero, 2, 1)));
  // Neither tiles nor the mask nor the dtype choose what is dropped.
  for (int64_t tile : {1, 7, 16}) {
    AttentionOptions tiled = o;
    tiled.tile_rows = tiled.tile_cols = tile;
    Rng again(9);
    CHECK(max_abs_diff(attention(q, k, v, tiled, &again), a) < 1e-15);
  }
  AttentionOptions causal = o;
  causal.mask.causal = true;
  Rng again(9), narrow32(9);
  const Tensor lower = attention(q, k, v, causal, &again) == 0.0;
  CHECK(same_bits(logical_or(zero, logical_not(visible_pairs(causal.mask, 1, 1, 60, 64))), lower));
  CHECK(same_bits(attention(to(q, f32), to(k, f32), to(v, f32), o, &narrow32) == 0.0, zero));
  // Each row takes ⌈n/4⌉ blocks: the next draw begins after the last row's.
  Rng odd(9);
  attention(narrow(q, 2, 0, 5), narrow(k, 2, 0, 9), narrow(v, 2, 0, 9), o, &odd);
  CHECK(odd.offset() == 2 * 3 * 5 * 3);
  // Without a generator, or without a probability, nothing is dropped and nothing drawn.
  CHECK(max_abs_diff(attention(q, k, v, o), attention(q, k, v)) == 0);
  Rng idle(9);
  attention(q, k, v, {}, &idle);
  CHECK(idle.offset() == 0);
  // The mean over draws is the output without.
  Rand rand(49);
  AttentionSample s = plain_attention(rand, {1, 1, 3, 2}, 1, 6, 2);
  s.options.dropout = 0.4;
  Tensor total = zeros({1, 1, 3, 2}, {f64});
  Rng many(10);
  for (int i = 0; i < 6000; ++i) total = total + attention(s.q, s.k, s.v, s.options, &many);
  CHECK(max_abs_diff(total / 6000.0, engine(s)) < 0.02);
}

TEST_CASE("attention: the map is its weights, and a sink one more key of value 0", "[attention]") {
  for (Weighting weighting : kWeightings) {
    AttentionSample s = sample(50, 9, 11, 4, 2);
    s.options.weighting = weighting, s.options.mask.causal = true, s.options.dropout = 0.5;  // the map has none
    const NaiveAttention want = naive_attention(array_of(s.q), array_of(s.k), array_of(s.v), s.options);
    const Tensor map = attention_map(s.q, s.k, s.options);
    CHECK(max_abs_diff(map, tensor_of(want.weights.v, {2, 4, 9, 11}, f64)) < 1e-13);
    if (weighting != Weighting::softmax) continue;
    CHECK(max_abs_diff(sum(map, {-1}), ones({2, 4, 9}, {f64})) < 1e-14);
    s.options.sink = tensor_of({0.5}, {1}, f64);
    const Tensor less = sum(attention_map(s.q, s.k, s.options), {-1});
    CHECK(max(less).item() < 1);
    // A key whose score is the sink and whose value is 0.
    const Tensor sunk = engine(s);
    AttentionOptions with_key = s.options;
    with_key.sink = Tensor(), with_key.mask = AttentionMask();
    with_key.mask.dense = cat({visible_pairs(s.options.mask, 1, 1, 9, 11), ones({1, 1, 9, 1}) > 0.0}, 3);
    with_key.bias = cat({zeros({11}, {f64}), full({1}, 0.5, {f64})});
    auto longer = [](const Tensor& x) { return pad(x, 2, 0, 1); };
    CHECK(max_abs_diff(attention(s.q, longer(s.k), longer(s.v), with_key), sunk) < 1e-14);
  }
}

TEST_CASE("attention: an operand or a result edited in place before the backward pass is an error", "[attention]") {
  for (int which : {0, 1, 2}) {
    AttentionSample s = sample(52, 4, 4);
    s.q.requires_grad_();
    Tensor y = attention(s.q, s.k, s.v);
    const Tensor loss = sum(y);
    Tensor edited[] = {s.k, s.v, y.detach()};
    fill_(edited[which], 1);
    CHECK_THROWS_AS(grad({loss}, {s.q}), AutogradError);
  }
}

TEST_CASE("attention: a mask or a row scale edited in place before the backward pass is an error", "[attention]") {
  AttentionSample s = sample(53, 4, 4);
  s.q.requires_grad_();
  const auto yes = [](const Shape& shape) { return ones(shape) > 0.0; };
  AttentionMask& m = s.options.mask;
  m.keys = yes({2, 4}), m.blocks = yes({2, 2}), m.block = 2, m.dense = yes({4, 4});
  m.query_segments = zeros({2, 4}, {i64}), m.key_segments = zeros({2, 4}, {i64});
  s.options.row_scale = ones({4}, {f64});
  for (Tensor* x : {&m.keys, &m.blocks, &m.dense, &m.query_segments, &m.key_segments, &s.options.row_scale})
    for (const bool create_graph : {false, true}) {
      const Tensor loss = sum(engine(s));
      fill_(*x, 1);
      CHECK_THROWS_WITH(grad({loss}, {s.q}, {.create_graph = create_graph}),
                        Contains("attention") && Contains("edited in place"));
    }
}

TEST_CASE("attention: what does not fit, and by which words", "[attention]") {
  auto f = [](const Shape& shape) { return zeros(shape); };
  const Tensor q = f({2, 4, 5, 3}), k = f({2, 2, 7, 3}), v = f({2, 2, 7, 6});
  CHECK_THROWS_WITH(attention(f({5}), f({5}), f({5})),
                    Contains("attention:") && Contains("[5]") && Contains("[batch, heads, m, d]"));
  CHECK_THROWS_AS(attention(q, select(k, 0, 0), v), ShapeError);
  CHECK_THROWS_WITH(attention(q, f({2, 2, 7, 4}), v), Contains("[2,4,5,3]") && Contains("[2,2,7,4]"));
  CHECK_THROWS_WITH(attention(q, k, f({2, 2, 6, 6})), Contains("[2,2,6,6]"));
  CHECK_THROWS_WITH(attention(q, f({1, 2, 7, 3}), v), Contains("[1,2,7,3]"));
  CHECK_THROWS_WITH(attention(q, f({2, 3, 7, 3}), f({2, 3, 7, 6})),
                    Contains("3 key heads") && Contains("4 query heads"));
  CHECK_THROWS_AS(attention(q, f({2, 0, 7, 3}), f({2, 0, 7, 6})), ShapeError);
  CHECK_THROWS_AS(attention(q, to(k, f64), v), DTypeError);
  CHECK_THROWS_WITH(attention(to(q, i64), to(k, i64), to(v, i64)), Contains("f32") && Contains("i64"));
  auto with = [&](const std::function<void(AttentionOptions&)>& set) {
    AttentionOptions o;
    set(o);
    return attention(q, k, v, o);
  };
  CHECK_THROWS_WITH(with([&](auto& o) { o.bias = f({5, 6}); }), Contains("[5,6]"));
  CHECK_THROWS_WITH(with([&](auto& o) { o.bias = f({3, 4, 5, 7}); }), Contains("[3,4,5,7]"));
  CHECK_THROWS_AS(with([&](auto& o) { o.bias = zeros({5, 7}, {f64}); }), DTypeError);
  CHECK_THROWS_WITH(with([&](auto& o) { o.row_scale = f({5, 7}); }), Contains("[5,7]"));
  CHECK_THROWS_WITH(with([&](auto& o) { o.sink = f({3}); }), Contains("sink") && Contains("[3]") && Contains("4"));
  CHECK_THROWS_WITH(with([&](auto& o) { o.sink = f({4}), o.weighting = Weighting::relu2; }),
                    Contains("sink") && Contains("softmax"));
  CHECK_THROWS_AS(with([&](auto& o) { o.dropout = 1; }), ValueError);
  CHECK_THROWS_AS(with([&](auto& o) { o.dropout = -0.1; }), ValueError);
  CHECK_THROWS_AS(with([&](auto& o) { o.dropout = NAN; }), ValueError);
  CHECK_THROWS_WITH(with([&](auto& o) { o.tile_rows = -3; }), Contains("tile") && Contains("-3"));
  CHECK_THROWS_WITH(with([&](auto& o) { o.softcap = -1; }),
                    "attention: softcap must be positive and finite in f32, or 0 for none — got -1");
  CHECK_THROWS_WITH(with([&](auto& o) { o.softcap = INFINITY; }), Contains("softcap"));
  CHECK_THROWS_WITH(merge_attention({q, f({2, 4, 3})}, {q, f({2, 4, 3})}),
                    "merge_attention: lse=[2,4,3] does not fit out=[2,4,5,3]; need one number a row");
  CHECK_THROWS_WITH(attention_with_lse(q, k, v, {.weighting = Weighting::sigmoid}),
                    Contains("attention_with_lse") && Contains("softmax"));
  CHECK_THROWS_WITH(attention_map(q, f({2, 2, 7, 4})), Contains("attention_map") && Contains("[2,2,7,4]"));
  CHECK_THROWS_WITH(attention_reference(q, k, f({2, 2, 6, 6})), Contains("attention_reference"));
  CHECK_THROWS_AS(attention_in_order(q, k, v, TileOrder::flash1, 0, 4), ValueError);
  CHECK_THROWS_AS(attention_in_order(q, k, v, TileOrder::flash2, 4, 4, {.weighting = Weighting::linear}), ValueError);
  CHECK_THROWS_AS(attention_in_order(q, k, v, TileOrder::flash2, 4, 4, {.dropout = 0.1}), ValueError);
}

TEST_CASE("attention: heads whose keys are packed one after the other", "[attention][bits]") {
  Rng rng(50);  // 16.9 MB of keys and values a head
  const Tensor q = normal({1, 2, 130, 64}, 0, 1, rng), k = normal({1, 2, 33000, 64}, 0, 1, rng),
               v = normal({1, 2, 33000, 64}, 0, 1, rng);
  const Tensor both = attention(q, k, v);
  for (int64_t h : {0, 1}) {
    const Tensor one = attention(narrow(q, 1, h, 1), narrow(k, 1, h, 1), narrow(v, 1, h, 1));
    CHECK(one.to_vector<float>() == narrow(both, 1, h, 1).to_vector<float>());
  }
}
