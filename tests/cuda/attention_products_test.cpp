// Attention on tensor cores for every option, by products of matrices: random calls against f64 on the CPU, slices, NaN
// behind the mask and before it, and which of the three ways serves a call.
#include "attention_slots.h"
#include "support/catch.h"

#include <sluice/autograd/engine.h>
#include <sluice/core/kernel/observer.h>
#include <sluice/cuda/attention/bf16.h>
#include <sluice/cuda/attention/products.h>
#include <sluice/cuda/emulator/emulator.h>
#include <sluice/layers/gau/flash.h>
#include <sluice/layers/gau/gau.h>
#include <sluice/layers/train/models.h>
#include <sluice/ops/gemm/precision.h>

using namespace sluice;
using namespace sluice::testing;
using cuda::AttentionServer;

namespace {

/// Calls that each way served since this object was made.
struct Served {
  static int64_t all(AttentionServer by) { return cuda::attention_calls(by); }
  int64_t tiles = all(AttentionServer::tiles), rungs = all(AttentionServer::rungs),
          products = all(AttentionServer::products);
  std::string text() const {
    return str("tiles ", all(AttentionServer::tiles) - tiles, ", rungs ", all(AttentionServer::rungs) - rungs,
               ", products ", all(AttentionServer::products) - products);
  }
};

/// Fewer bytes for scores than usual.
struct SlabScope : detail::Restored<int64_t> {
  explicit SlabScope(int64_t bytes) : Restored(cuda::attention_products_bytes, bytes) {}
};

const SampleLimits kLimits{.sizes = {16, 17, 31, 33, 64, 65, 97}, .width = 9};

/// Operands that bf16 holds exactly.
AttentionSample rounded(AttentionSample s) {
  for (Tensor* x : {&s.q, &s.k, &s.v}) *x = to(to(*x, bf16), f64);
  return s;
}
/// Narrow calls, too.
SlotResults on_device(const AttentionSample& s, bool heads_inside, const Tensor& poison = {}) {
  const detail::Restored<int64_t> narrow(cuda::attention_products_width, 1);
  PrecisionScope scope(Precision::bf16);
  return run_slots(s.in(f32), Device::cuda(), heads_inside, poison);
}

/// Within 2^-7 in L2: weights, and the gradients of scores and results, are rounded to 8 bits.
void check_near(const std::vector<Tensor>& got, const std::vector<Tensor>& want, const std::string& text) {
  REQUIRE(got.size() == want.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    const std::vector<double> x = to(got[i], f64).to_vector<double>(), y = want[i].to_vector<double>();
    double off = 0, size = 0;
    int64_t astray = 0;
    for (std::size_t e = 0; e < x.size(); ++e) {
      if (x[e] == y[e]) continue;  // infinities, too: lse of a row that sees nothing
      astray += !std::isfinite(x[e]) || !std::isfinite(y[e]);
      off += (x[e] - y[e]) * (x[e] - y[e]), size += y[e] * y[e];
    }
    INFO(text << ": result " << i << " is off by " << std::sqrt(off) << " of " << std::sqrt(size));
    CHECK(astray == 0);
    CHECK(off <= 0x1p-14 * size + 1e-12);
  }
}
/// The gradients of q, k, v and the bias from tensors of `dtype`, for run_slots' numbers. Memory holds NaN before, that
/// of the bias zeros. No tensor is copied in f32.
std::vector<Tensor> gradients_on_device(const AttentionSample& sample, DType dtype, bool heads_inside) {
  const detail::Restored<int64_t> narrow(cuda::attention_products_width, 1);
  PrecisionScope scope(Precision::bf16);
  const Device gpu = Device::cuda();
  const AttentionSample s = sample.in(dtype);
  const auto [q0, k0, v0, options, rank] = sluice::detail::attention_operands("test", s.q, s.k, s.v, s.options);
  const Tensor q = stored_on(gpu, q0, heads_inside), k = stored_on(gpu, k0, heads_inside),
               v = stored_on(gpu, v0, !heads_inside);
  sluice::detail::AttentionCall call{q, k, v, options, {s.dropout_seed, 0xFFFF'FFF0}};
  call.options.bias = on(gpu, call.options.bias);
  const Shape rows{q.dim(0), q.dim(1), q.dim(2)};
  Rand rand(9);
  const Tensor g = stored_on(gpu, to(random_tensor({rows[0], rows[1], rows[2], v.dim(3)}, f64, rand), dtype), false);
  Tensor lse, delta;
  sluice::detail::WorkCounter counter;
  if (options.weighting == Weighting::softmax) {
    Tensor out = empty(g.shape(), g.options());
    lse = empty(rows, {f32, gpu}), delta = on(gpu, to(random_tensor(rows, f64, rand), f32));
    kernel::attention(call, out, lse);
  }
  sluice::detail::AttentionGradients grads;
  grads.dq = sluice::detail::empty_heads(q.shape(), q.options());
  grads.dk = heads_inside ? sluice::detail::empty_heads(k.shape(), k.options()) : empty(k.shape(), k.options());
  grads.dv = empty(v.shape(), v.options());
  for (Tensor* x : {&grads.dq, &grads.dk, &grads.dv}) kernel::fill(*x, NAN);
  grads.bias = zeros({rows[0], rows[1], rows[2], k.dim(2)}, q.options());
  kernel::attention_backward(call, g, lse, delta, grads);
  CHECK(counter.work().widened == 0);
  std::vector<Tensor> all{grads.dq, grads.dk, grads.dv, grads.bias};
  for (Tensor& x : all) x = on(cpu, contiguous(x));
  return all;
}
void check(const AttentionSample& s, bool heads_inside) {
  const SlotResults want = run_slots(s, cpu, false), got = on_device(s, heads_inside);
  check_near(got.forward, want.forward, s.text() + ", forward");
  check_near(got.backward, want.backward, s.text() + ", backward");
}

}  // namespace

TEST_CASE("cuda attention by products: random calls are near those in f64, forward and backward", "[cuda]") {
  Rand rand(41);
  const Served before;
  for (int i = 0; i < 60; ++i) check(rounded(random_attention(rand, kLimits)), i % 2);
  CHECK(before.text() == "tiles 0, rungs 0, products 120");
}

TEST_CASE("cuda attention by products: slices of queries and of heads", "[cuda]") {
  Rand rand(42);
  for (int i = 0; i < 40; ++i) {
    const AttentionSample s = rounded(random_attention(rand, kLimits));
    const int64_t least = 16 * 12 * ((s.k.dim(2) + 7) / 8 * 8);  // 16 rows in the backward pass
    const SlabScope scope(i % 2 ? least : 3 * least);
    const Served before;
    check(s, i % 3 == 0);
    CHECK(before.text() == "tiles 0, rungs 0, products 2");
  }
  const SlabScope scope(16 * 12 * 24 - 1);
  const Served before;
  check(rounded(plain_attention(rand, {1, 2, 17, 3}, 1, 24, 5)), false);  // forward 16 rows still fit
  CHECK(before.text() == "tiles 1, rungs 0, products 1");
}

TEST_CASE("cuda attention by products: slices whose keys begin later", "[cuda]") {
  Rand rand(48);
  for (Weighting weighting : {Weighting::softmax, Weighting::relu2})
    for (const bool causal : {false, true}) {
      AttentionSample s = plain_attention(rand, {2, 4, 150, 5}, 2, 210, 7);
      AttentionOptions& o = s.options;
      o.weighting = weighting, o.mask.causal = causal, o.mask.window = 20, o.dropout = 0.2;
      o.bias = random_tensor({150, 210}, f64, rand), o.relative_bias = random_tensor({4, 359}, f64, rand);
      const SlabScope scope(32 * 12 * 216);
      check(rounded(s), causal);
    }
}

TEST_CASE("cuda attention by products: every key has a gradient, whatever the slices, masks and dtypes", "[cuda]") {
  Rand rand(50);
  for (const int64_t group : {1, 2})
    for (const auto& [m, n] : {std::pair<int64_t, int64_t>{40, 40}, {33, 140}, {70, 33}})
      for (const bool causal : {false, true})
        for (const int64_t window : {0, 9}) {
          AttentionSample s = plain_attention(rand, {2, 2 * group, m, 8}, 2, n, 16);
          AttentionOptions& o = s.options;
          o.weighting = group == 1 ? Weighting::softmax : Weighting::sigmoid;
          o.mask.causal = causal, o.mask.window = window, o.dropout = 0.1;
          o.bias = to(to(random_tensor(causal ? Shape{2, 2 * group, m, n} : Shape{m, n}, f64, rand), bf16), f64);
          s = rounded(s);
          const std::vector<Tensor> want = run_slots(s, cpu, false).backward;
          const int64_t least = 16 * 12 * ((n + 7) / 8 * 8);
          for (const DType dtype : {f32, bf16})
            for (const bool cut : {false, true}) {
              const SlabScope scope(cut ? least : cuda::attention_products_bytes);
              const Served before;
              check_near(gradients_on_device(s, dtype, cut == causal), want,
                         str(s.text(), ", ", dtype, cut ? ", slices" : ", one slice"));
              CHECK(before.text() == str("tiles 0, rungs 0, products ", group == 1 ? 2 : 1));
            }
        }
}

TEST_CASE("cuda attention by products: operands that lie at any number", "[cuda]") {
  Rand rand(51);
  PrecisionScope scope(Precision::bf16);
  for (const DType dtype : {f32, bf16}) {
    const auto view = [&](int64_t rows) {  // every fourth or eighth row is aligned
      return narrow(to(to(random_tensor({2, 2, rows, 17}, f64, rand), dtype), Device::cuda()), 3, 1, 16);
    };
    const Tensor q = view(40), k = view(33), v = view(33);
    const AttentionOptions options{.softcap = 3};
    const Served before;
    const Tensor got = attention(q, k, v, options),
                 want = attention(contiguous(q), contiguous(k), contiguous(v), options);
    CHECK(before.text() == "tiles 0, rungs 0, products 2");
    CHECK(same_bits(on(cpu, contiguous(got)), on(cpu, contiguous(want))));
  }
}

TEST_CASE("cuda attention by products: narrow calls are left to the tiles", "[cuda]") {
  Rand rand(49);
  PrecisionScope scope(Precision::bf16);
  for (const int64_t dv : {20, 21}) {
    AttentionSample s = plain_attention(rand, {1, 2, 24, 11}, 2, 24, dv);
    s.options.softcap = 3;
    const Served before;
    run_slots(s.in(f32), Device::cuda(), false);
    CHECK(before.text() == (dv == 20 ? "tiles 2, rungs 0, products 0" : "tiles 0, rungs 0, products 2"));
  }
}

TEST_CASE("cuda attention by products: GAU's widths", "[cuda]") {
  Rand rand(43);
  for (const auto& [d, dv] : {std::pair<int64_t, int64_t>{64, 128}, {128, 256}, {1, 33}, {129, 64}}) {
    AttentionSample s = plain_attention(rand, {2, 1, 80, d}, 1, 80, dv);
    s.options.weighting = Weighting::relu2, s.options.mask.causal = true;
    s.options.row_scale = random_tensor({80}, f64, rand, 0.2, 1.5);
    s.options.relative_bias = random_tensor({1, 159}, f64, rand), s.options.dropout = 0.1;
    check(rounded(s), false);
  }
}

TEST_CASE("cuda attention by products: NaN behind the mask stays there", "[cuda]") {
  Rand rand(44);
  check_hidden_values(rand, kLimits, 40,
                      [](const AttentionSample& s, const Tensor& poison) { return on_device(s, false, poison); });
}

TEST_CASE("cuda attention by products: NaN reaches those who see it, and nobody else", "[cuda]") {
  Rand rand(45);
  struct Case {
    bool whole_key;
    int64_t d, dv;  // operands are rounded number by number, or by eights
  };
  for (Weighting weighting : {Weighting::softmax, Weighting::sigmoid, Weighting::linear})
    for (const auto& [whole_key, d, dv] : {Case{false, 6, 11}, {true, 6, 11}, {false, 8, 16}, {true, 8, 16}}) {
      AttentionSample s = plain_attention(rand, {2, 4, 40, d}, 2, 33, dv);
      s.options.weighting = weighting, s.options.mask.causal = true;
      const SlabScope scope(16 * 12 * 40);  // queries that see the key stand in two slices
      const SlotResults want = on_device(s, true);
      Tensor where = zeros({33, dv}, {.dtype = boolean});  // of v: one number, or the row, and then of k, too
      for (int64_t e = 0; e < dv; ++e) where.mutable_data<bool>()[20 * dv + e] = whole_key || e == 3;
      s.v = filled(s.v, expand(where, s.v.shape()), whole_key ? NAN : INFINITY);
      if (whole_key) s.k = filled(s.k, expand(narrow(where, 1, 0, d), s.k.shape()), NAN);
      const SlotResults got = on_device(s, true);
      const Tensor sees = expand(unsqueeze(reshape(narrow(s.visible(), 3, 20, 1), {2, 4, 40}), 3), {2, 4, 40, dv}),
                   reached = logical_and(sees, expand(narrow(where, 0, 20, 1), sees.shape()));
      const std::string text = str("weighting ", static_cast<int>(weighting), whole_key ? ", a key" : ", a number");
      check_all_same({filled(got.forward[0], reached, 0)}, {filled(want.forward[0], reached, 0)}, text);
      CHECK_FALSE(any(logical_and(isfinite(got.forward[0]), reached)).item() != 0);
      // A query that sees it has no gradient; the others keep theirs.
      const Tensor rows = narrow(sees, 3, 0, d);
      check_all_same({filled(got.backward[0], rows, 0)}, {filled(want.backward[0], rows, 0)}, text + ", dq");
      CHECK_FALSE(any(logical_and(isfinite(got.backward[0]), rows)).item() != 0);
    }
}

TEST_CASE("cuda attention by products: a NaN of k reaches dq, and one of q dk, with linear weights", "[cuda]") {
  Rand rand(48);
  for (const auto& [of_key, at] : {std::pair{true, 20}, {true, 32}, {false, 20}, {false, 39}}) {  // 32, 39: the last
    AttentionSample s = plain_attention(rand, {2, 4, 40, 6}, 2, 33, 11);
    s.options.weighting = Weighting::linear;
    const SlabScope scope(16 * 12 * 40);
    const std::size_t reached = of_key ? 0 : 1;  // of the gradients dq, dk, dv
    Tensor& x = of_key ? s.k : s.q;
    Tensor where = zeros({x.dim(2), 6}, {.dtype = boolean});
    where.mutable_data<bool>()[at * 6 + 3] = true;
    x = filled(x, expand(where, x.shape()), NAN);
    const Tensor bad = isnan(on_device(s, true).backward[reached]);
    CHECK(sum(to(bad, i64)).item<int64_t>() >= bad.dim(0) * bad.dim(1) * bad.dim(2));  // column 3 of every row
    CHECK(all(select(bad, 3, 3)).item() != 0);
  }
}

TEST_CASE("cuda attention by products: a gradient of NaN reaches the keys that the query sees", "[cuda]") {
  Rand rand(46);
  AttentionSample s = plain_attention(rand, {1, 2, 40, 6}, 1, 40, 11);
  s.options.weighting = Weighting::sigmoid, s.options.mask.causal = true;
  const SlabScope scope(16 * 12 * 40);
  const SlotResults want = on_device(s, false);
  Tensor poison = zeros({1, 2, 40}, {.dtype = boolean});
  poison.mutable_data<bool>()[40 + 22] = true;  // of the second head, in the second slice
  const SlotResults got = on_device(s, false, poison);
  Tensor seen = zeros({1, 1, 40, 1}, {.dtype = boolean});
  for (int64_t j = 0; j <= 22; ++j) seen.mutable_data<bool>()[j] = true;
  for (const std::size_t i : {std::size_t{1}, std::size_t{2}}) {  // dk, dv
    const Tensor rows = expand(seen, want.backward[i].shape());
    check_all_same({filled(got.backward[i], rows, 0)}, {filled(want.backward[i], rows, 0)}, "hidden");
    CHECK_FALSE(any(logical_and(isfinite(got.backward[i]), rows)).item() != 0);
  }
}

TEST_CASE("cuda attention by products: the same bits in every schedule", "[cuda]") {
  Rand rand(47);
  for (int i = 0; i < 6; ++i) {
    AttentionSample s = random_attention(rand, kLimits);
    if (i % 2) s.v = filled(s.v, expand(s.v < -0.98, s.v.shape()), INFINITY);
    const SlabScope scope(16 * 12 * 104 * 3);
    const SlotResults first = on_device(s, false);
    for (uint64_t seed : {2, 3}) {
      cuda::emulator::set_schedule(seed);
      const SlotResults again = on_device(s, false);
      cuda::emulator::set_schedule(0);
      check_all_same(again.forward, first.forward, s.text());
      check_all_same(again.backward, first.backward, s.text());
    }
  }
}

TEST_CASE("cuda attention by products: GAU, FLASH and cross GAU train on tensor cores", "[cuda]") {
  const Device gpu = Device::cuda();
  PrecisionScope scope(Precision::bf16);
  Rng rng(3);
  const auto served = [&](auto layer, int64_t n, auto pass, DType dtype = f32) {
    to(layer, gpu);
    const Tensor x = to(normal({2, n, 24}, 0, 1, rng, {dtype}), gpu).requires_grad_();
    const Served before;
    backward(sum(to(square(layer(x, pass)), f32)));
    return before.text();
  };
  for (const GauKind kind :
       {GauKind::su, GauKind::paper_eq, GauKind::lucid, GauKind::softmax, GauKind::softmax_plus, GauKind::laplace})
    for (const bool causal : {false, true}) {
      INFO("kind " << static_cast<int>(kind) << ", causal " << causal);
      const GauOptions o{.dim = 24, .key_dim = 16, .kind = kind, .causal = causal, .attention_dropout = 0.1};
      CHECK(served(Gau(o, rng), 40, Pass{.rng = &rng}) == "tiles 0, rungs 0, products 2");
    }
  for (const GauBias bias : {GauBias::toeplitz, GauBias::rope, GauBias::t5})
    CHECK(served(Gau({.dim = 24, .key_dim = 16, .causal = true, .bias = bias}, rng), 40, Pass{}) ==
          "tiles 0, rungs 0, products 2");
  CHECK(served(Gau({.dim = 24, .key_dim = 16, .heads = 2, .causal = true, .window = 9}, rng), 40, Pass{}) ==
        "tiles 0, rungs 0, products 2");
  CHECK(served(Gau({.dim = 24, .key_dim = 16, .causal = true, .dtype = bf16}, rng), 40, Pass{}, bf16) ==
        "tiles 0, rungs 0, products 2");
  CHECK(served(Flash({.dim = 24, .key_dim = 16, .chunk = 16, .causal = true, .bias = GauBias::toeplitz}, rng), 48,
               Pass{}) == "tiles 0, rungs 0, products 2");
  const Tensor context = to(normal({2, 20, 24}, 0, 1, rng), gpu);
  CHECK(served(CrossGau({.dim = 24, .key_dim = 16}, rng), 40, Pass{.context = context}) ==
        "tiles 0, rungs 0, products 2");
  const Tensor query = to(to(normal({1, 4, 1, 64}, 0, 1, rng), bf16), gpu),  // a step of decoding
      keys = to(to(normal({1, 2, 50, 64}, 0, 1, rng), bf16), gpu);
  const Served before;
  attention(query, keys, keys);
  CHECK(before.text() == "tiles 0, rungs 1, products 0");
}

TEST_CASE("cuda attention: which way serves chosen blocks of keys", "[cuda]") {
  const Device gpu = Device::cuda();
  PrecisionScope scope(Precision::bf16);
  Rng rng(5);
  const auto served = [&](int64_t m, int64_t n, AttentionMask mask, bool by_query = false, DType dtype = f32,
                          Weighting weighting = Weighting::softmax, bool bias = false) {
    const auto operand = [&](int64_t heads, int64_t rows) {
      return to(normal({1, heads, rows, 64}, 0, 1, rng, {dtype}), gpu).requires_grad_();
    };
    const int64_t cols = ceil_div(n, mask.block);
    mask.blocks = ones(by_query ? Shape{1, 2, m, cols} : Shape{ceil_div(m, mask.block), cols}, {boolean, gpu});
    AttentionOptions o{.weighting = weighting, .mask = mask};
    if (bias) o.bias = zeros({m, n}, {dtype, gpu});
    const Served before;
    backward(sum(to(attention(operand(4, m), operand(2, n), operand(2, n), o), f32)));
    return before.text();
  };
  const std::string rungs = "tiles 0, rungs 2, products 0", products = "tiles 0, rungs 0, products 2";
  for (const DType dtype : {f32, bf16})
    for (const bool by_query : {false, true}) {
      CHECK(served(128, 128, {.causal = true, .block = 64}, by_query, dtype) == rungs);
      CHECK(served(200, 130, {.block = 192}, by_query, dtype) == rungs);
      CHECK(served(130, 200, {.causal = true, .window = 90, .block = 128}, by_query, dtype) == rungs);
      CHECK(served(127, 128, {.block = 64}, by_query, dtype) == products);
      CHECK(served(128, 127, {.block = 64}, by_query, dtype) == products);
      CHECK(served(128, 128, {.block = 32}, by_query, dtype) == products);
      CHECK(served(128, 128, {.dilation = 2, .block = 64}, by_query, dtype) == products);
      CHECK(served(128, 128, {.block = 64}, by_query, dtype, Weighting::relu2) == products);
      CHECK(served(128, 128, {.block = 64}, by_query, dtype, Weighting::softmax, true) == products);
    }
}
