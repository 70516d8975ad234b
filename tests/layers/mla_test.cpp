// What MLA alone promises: two forms of one function, a small cache, and what it is in special cases.
#include "layers/streamed.h"
#include "support/approx.h"
#include "support/catch.h"

#include <sluice/autograd/engine.h>
#include <sluice/layers/attention/mla.h>
#include <sluice/layers/report/cost.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/index/gather.h>
#include <sluice/ops/matmul/matmul.h>
#include <sluice/ops/scan/scan.h>
#include <sluice/layers/train/models.h>
#include <sluice/ops/rows/reduce.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/shape/join.h>
#include <sluice/ops/shape/view.h>

#include <cmath>

using namespace sluice;
using namespace sluice::testing;

namespace {

/// Of sizes beyond a tile, and none equal to another.
MlaOptions options_of(MlaForm form) {
  return {.dim = 48,
          .heads = 3,
          .nope_dim = 24,
          .rope_dim = 16,
          .value_dim = 20,
          .kv_rank = 40,
          .form = form,
          .dtype = f64};
}

/// The output of x, and the gradients of Σ y² for x and all parameters.
std::vector<Tensor> results(const Mla& mla, const Tensor& given, const Tensor& key_mask, const Tensor& segments) {
  const Tensor x = clone(given).requires_grad_();
  std::vector<Tensor> wanted{x};
  for (const NamedTensor& p : parameters(mla)) wanted.push_back(p.tensor);
  const Tensor y = mla(x, {.key_mask = key_mask, .segments = segments});
  std::vector<Tensor> all = grad({sum(square(y))}, wanted);
  all.push_back(y.detach());
  return all;
}

}  // namespace

TEST_CASE("mla: absorbed = expanded, gradients included; streamed in any pieces = both", "[layers][mla]") {
  Rand rand(1);
  const int64_t n = 150;
  const Tensor x = random_tensor({2, n, 48}, f64, rand),
               segments = cumsum(to(random_tensor({2, n}, f64, rand) > 0.9, i64), 1);
  const Tensor key_mask = random_tensor({2, n}, f64, rand) > -0.8;
  for (const MlaGate gate : {MlaGate::none, MlaGate::headwise, MlaGate::elementwise})
    for (const int64_t q_rank : {0, 29}) {
      MlaOptions o = options_of(MlaForm::expanded);
      o.gate = gate, o.q_rank = q_rank, o.kv_factor = 0.7, o.q_factor = 1.3, o.rope_norm = q_rank > 0;
      Rng rng(5);
      const Mla expanded(o, rng);
      Mla absorbed = expanded, cheapest = expanded;
      absorbed.options.form = MlaForm::absorbed, cheapest.options.form = MlaForm::cheapest;
      for (int variant = 0; variant < 3; ++variant) {
        const Tensor mask = variant == 1 ? key_mask : Tensor(), documents = variant == 2 ? segments : Tensor();
        const std::vector<Tensor> a = results(expanded, x, mask, documents), b = results(absorbed, x, mask, documents);
        for (std::size_t i = 0; i < a.size(); ++i) {
          CHECK(max_abs(a[i]) > 1e-3);
          CHECK(max_abs_diff(a[i], b[i]) <= 1e-12 * max_abs(a[i]));
        }
      }
      const Tensor y = expanded(x);
      for (const Mla* mla : std::initializer_list<const Mla*>{&expanded, &absorbed, &cheapest})
        for (const std::vector<int64_t>& pieces : {std::vector<int64_t>{1}, {100, 1, 1, 3}, {64, 5, 80}})
          CHECK(max_abs_diff(streamed(*mla, x, pieces), y) <= 1e-12 * max_abs(y));
    }
}

TEST_CASE("mla: a stream keeps r + dr numbers a token, whatever the heads", "[layers][mla][stream]") {
  for (const int64_t heads : {1, 5}) {
    MlaOptions o = options_of(MlaForm::cheapest);
    o.heads = heads;
    Rng rng(1);
    const Mla mla(o, rng);
    Rand rand(2);
    const Stream stream = stream_of(mla, random_tensor({2, 7, 48}, f64, rand));
    CHECK(stream.numel() == 2 * 7 * (40 + 16));
    CHECK(cost(o, 7).state == 7 * (40 + 16));
  }
}

TEST_CASE("mla: the cheaper form is taken, and counted", "[layers][mla][cost]") {
  const int64_t d = 48, h = 3, dn = 24, dr = 16, dv = 20, r = 40, n = 30;
  const auto flops = [](const MlaOptions& o, int64_t cached, int64_t tokens) {
    Rng rng(1);
    return cost_of(Mla(o, rng),
                   [&](const Mla& mla) {
                     Stream stream;
                     if (cached > 0) step(mla, zeros({1, cached, o.dim}, {o.dtype, meta}), stream);
                     step(mla, zeros({1, tokens, o.dim}, {o.dtype, meta}), stream);
                   })
        .flops;
  };
  const auto maps = [&](int64_t m) { return 2 * m * (d * h * (dn + dr) + d * (r + dr) + h * dv * d); };
  const auto expanded = [&](int64_t m, int64_t all) {
    return maps(m) + 2 * h * (all * r * (dn + dv) + m * all * (dn + dr + dv));
  };
  const auto absorbed = [&](int64_t m, int64_t all) {
    return maps(m) + 2 * h * (m * r * (dn + dv) + m * all * (2 * r + dr));
  };
  CHECK(flops(options_of(MlaForm::expanded), 0, n) == expanded(n, n));
  CHECK(flops(options_of(MlaForm::absorbed), 0, n) == absorbed(n, n));
  const MlaOptions free = options_of(MlaForm::cheapest);
  CHECK(flops(free, 0, n) == expanded(n, n));
  CHECK(cost(free, n).flops == expanded(n, n));
  REQUIRE(absorbed(1, n + 1) < expanded(1, n + 1));
  CHECK(flops(free, n, 1) - flops(free, 0, n) == absorbed(1, n + 1));
  for (int64_t m : {1, 5, 20, 40, 100, 400})
    CHECK(flops(free, n, m) - flops(free, 0, n) == std::min(absorbed(m, n + m), expanded(m, n + m)));
  MlaOptions narrow_latent = free;  // 2r < dn + dv: absorbed is cheaper for a whole sequence, too
  narrow_latent.kv_rank = 8;
  MlaOptions same = narrow_latent;
  same.form = MlaForm::absorbed;
  CHECK(flops(narrow_latent, 0, n) == flops(same, 0, n));
  same.form = MlaForm::expanded;
  CHECK(flops(narrow_latent, 0, n) < flops(same, 0, n));
}

TEST_CASE("mla: one head without rotary channels is attention with keys and values of low rank", "[layers][mla]") {
  for (const MlaForm form : {MlaForm::expanded, MlaForm::absorbed}) {
    MlaOptions o = options_of(form);
    o.heads = 1, o.rope_dim = 0;
    Rng rng(1);
    const Mla mla(o, rng);
    Rand rand(3);
    const Tensor x = random_tensor({2, 70, 48}, f64, rand), c = mla.kv_norm(mla.kv_down(x));
    const Tensor k = matmul(c, narrow(mla.kv_up.weight, 1, 0, 24)), v = matmul(c, narrow(mla.kv_up.weight, 1, 24, 20));
    const Tensor y = attention(unsqueeze(mla.q(x), 1), unsqueeze(k, 1), unsqueeze(v, 1), {.mask = {.causal = true}});
    CHECK(max_abs_diff(mla(x), mla.out(squeeze(y, 1))) <= 1e-12);
  }
}

TEST_CASE("mla: positions enter by RoPE alone", "[layers][mla]") {
  Rand rand(4);
  const Tensor x = random_tensor({2, 9, 48}, f64, rand),
               order = Tensor::from(std::vector<int64_t>{3, 1, 8, 0, 5, 2, 7, 6, 4});
  for (const MlaForm form : {MlaForm::expanded, MlaForm::absorbed})
    for (const bool use_rope : {false, true}) {
      MlaOptions o = options_of(form);
      o.causal = false, o.use_rope = use_rope;
      Rng rng(1);
      const Mla mla(o, rng);
      const double off = max_abs_diff(mla(index_select(x, 1, order)), index_select(mla(x), 1, order));
      CHECK((use_rope ? off > 1e-3 : off <= 1e-13));
      Mla later = mla;
      later.options.rope.offset = 1000;
      CHECK(max_abs_diff(later(x), mla(x)) <= 1e-11);  // distances alone
    }
}

TEST_CASE("mla: a norm of the latents times sqrt(d/r) is a weight times as much", "[layers][mla]") {
  MlaOptions o = options_of(MlaForm::cheapest);
  o.q_rank = 12;
  Rng rng(1);
  const Mla plain(o, rng);
  Mla factored = plain, weighed = clone(plain);
  factored.options.q_factor = std::sqrt(48.0 / 12), factored.options.kv_factor = std::sqrt(48.0 / 40);
  weighed.q_norm.weight = (plain.q_norm.weight * std::sqrt(48.0 / 12)).detach();
  weighed.kv_norm.weight = (plain.kv_norm.weight * std::sqrt(48.0 / 40)).detach();
  Rand rand(5);
  const Tensor x = random_tensor({1, 11, 48}, f64, rand);
  CHECK(max_abs_diff(factored(x), weighed(x)) <= 1e-13);
  CHECK(max_abs_diff(factored(x), plain(x)) > 1e-3);
}

TEST_CASE("mla: YaRN scales frequencies and scores, and rotates without a factor", "[layers][mla]") {
  const MlaOptions v3 = yarn_mla({.dim = 7168, .heads = 128, .q_rank = 1536}, 40, 4096);
  CHECK(v3.rope.factor == 1);
  CHECK(v3.rope.frequencies == yarn_rope({}, 64, 40, 4096).frequencies);
  CHECK(*v3.scale == Approx(0.1352337788608801).epsilon(1e-12));  // softmax_scale of DeepSeek-V3
  const MlaOptions v2 = yarn_mla({.dim = 2048, .heads = 16}, 40, 4096, 0.707);
  CHECK(*v2.scale == Approx(std::pow(0.0707 * std::log(40.0) + 1, 2) / std::sqrt(192.0)).epsilon(1e-12));
  MlaOptions given{.dim = 8, .scale = 0.5};
  CHECK(*yarn_mla(given, 1, 4096).scale == 0.5);
}

TEST_CASE("mla: options that do not fit are errors that name them", "[layers][mla]") {
  {
    Rng none(1);
    CHECK_THROWS_WITH(Mla({.dim = 8, .heads = int64_t{1} << 40, .nope_dim = int64_t{1} << 40}, none), Contains("mla"));
  }
  const auto error = [](auto change) -> std::string {
    MlaOptions o = options_of(MlaForm::cheapest);
    change(o);
    Rng rng(1);
    try {
      Mla mla(o, rng);
    } catch (const ValueError& e) { return e.what(); }
    return "";
  };
  CHECK_THAT(error([](MlaOptions& o) { o.rope_dim = 5; }), Contains("mla: RoPE turns pairs") && Contains("rope_dim=5"));
  CHECK_THAT(error([](MlaOptions& o) { o.rope.rot_dim = 18; }), Contains("got 18"));
  CHECK_THAT(error([](MlaOptions& o) { o.kv_rank = 0; }), Contains("mla: kv_rank must be at least 1"));
  CHECK(error([](MlaOptions& o) { o.rope_dim = 5, o.use_rope = false; }).empty());
  MlaOptions o = options_of(MlaForm::cheapest);
  o.causal = false;
  Rng rng(1);
  const Mla mla(o, rng);
  Stream stream;
  CHECK_THROWS_WITH(step(mla, zeros({1, 2, 48}, {f64}), stream), Contains("mla: only a causal layer can be streamed"));
}

TEST_CASE("mla: a latent as it is, and a sink, where they are something else", "[layers][mla]") {
  Rand rand(4);
  const Tensor x = random_tensor({2, 70, 48}, f64, rand);
  MlaOptions o = options_of(MlaForm::expanded);
  o.q_rank = 29, o.gate = MlaGate::elementwise;
  Rng rng(5);
  const Mla plain(o, rng);
  o.raw_latent = o.sink = true;
  Mla raw(o, rng);
  CHECK(raw.q_up.weight.shape() == Shape{2 * 29, 3 * (24 + 16 + 20)});
  CHECK(parameters(raw).size() == parameters(plain).size());  // a sink for the gate's map
  // q of the normed latent alone, and a gate of x through the latent as it is.
  raw.q_down = plain.q_down, raw.q_norm = plain.q_norm, raw.kv_down = plain.kv_down, raw.kv_norm = plain.kv_norm;
  raw.kv_up = plain.kv_up, raw.out = plain.out;
  const Tensor wg = random_tensor({29, 3 * 20}, f64, rand), q = unflatten(plain.q_up.weight, 1, {3, 40}),
               gate = unflatten(wg, 1, {3, 20});
  raw.q_up.weight =
      cat({flatten(cat({q, zeros_like(gate)}, -1), 1, 2), flatten(cat({zeros_like(q), gate}, -1), 1, 2)}, 0);
  Mla other = plain;
  other.gate.map.weight = matmul(plain.q_down.weight, wg);
  raw.sink = full({3}, -INFINITY, {f64});
  CHECK(max_abs_diff(raw(x), other(x)) <= 1e-12 * max_abs(other(x)));
  raw.sink = zeros({3}, {f64});
  CHECK(max_abs_diff(raw(x), other(x)) > 1e-3);
  o.q_rank = 0;
  CHECK_THROWS_WITH(Mla(o, rng), Contains("raw_latent") && Contains("q_rank"));
}

TEST_CASE("mla: no sequences, with keys that an indexer chooses of many", "[layers][mla]") {
  Rng rng(1);
  MlaOptions o{.dim = 6, .heads = 8};  // so many heads that the chosen keys are gathered
  o.kv_rank = 3, o.q_rank = 3, o.nope_dim = 3, o.rope_dim = o.value_dim = 4, o.topk = 2;
  o.index_heads = 6, o.index_dim = 5;
  CHECK(Mla(o, rng)(zeros({0, 40, 6})).shape() == Shape{0, 40, 6});
}
