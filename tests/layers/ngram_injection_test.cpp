// N-grams added to residual streams: against loops, with padding and boundaries, in streams, and what is refused.
#include "layers/gau_reference.h"
#include "support/approx.h"
#include "support/catch.h"
#include "support/naive_attention.h"
#include "support/worse.h"

#include <sluice/layers/models/decoder.h>
#include <sluice/layers/nn/generate.h>
#include <sluice/ops/basic.h>

#include <cmath>
#include <numeric>

using namespace sluice;
using namespace sluice::testing;

namespace {

using Whole = std::vector<int64_t>;

NgramInjectionOptions small() {
  NgramInjectionOptions o{.dim = 3, .streams = 2, .width = 12, .boundary = 2, .taps = 3, .dtype = f64};
  hash_ngrams(o, 40, 3, 2, 1, 11, 8, 1234);
  return o;
}

NgramInjection drawn(const NgramInjectionOptions& o, Rand& rand) {
  Rng rng(1);
  return randomised(NgramInjection(o, rng), rand);
}

}  // namespace

TEST_CASE("n-grams: primes of each table, odd multipliers, the hash of an n-gram by hand", "[models][ngrams]") {
  const NgramInjectionOptions o = small();
  CHECK(o.sizes == Whole{23, 29, 31, 37});  // 11, 13, 17, 19 are those of the injection before
  CHECK(o.rows == 120);
  REQUIRE(o.longest() == 3);
  for (const int64_t m : o.multipliers) {
    CHECK(m % 2 == 1);
    CHECK(m > 0);
    CHECK(m <= INT64_MAX / 40);
  }
  Rand rand(2);
  const NgramInjection layer = drawn(o, rand);
  const Whole text{7, 9, 2, 5, 6};  // 2 ends a text
  const auto rows = [&](int64_t a, int64_t b, int64_t c) {
    const auto times = [&](int64_t token, std::size_t i) {
      return static_cast<uint64_t>(token) * static_cast<uint64_t>(o.multipliers[i]);
    };
    const uint64_t two = times(a, 0) ^ times(b, 1), three = two ^ times(c, 2);
    return Whole{static_cast<int64_t>(two % 23), static_cast<int64_t>(23 + two % 29),
                 static_cast<int64_t>(52 + three % 31), static_cast<int64_t>(83 + three % 37)};
  };
  Whole want;
  for (const Whole& row : {rows(7, 2, 2), rows(9, 7, 2), rows(2, 9, 7), rows(5, 2, 2), rows(6, 5, 2)})
    want.insert(want.end(), row.begin(), row.end());
  CHECK(layer.hashes(Tensor::from(text, {1, 5}), 0).to_vector<int64_t>() == want);
  const Whole last(want.end() - 8, want.end());
  CHECK(layer.hashes(Tensor::from(text, {1, 5}), 3).to_vector<int64_t>() == last);
  CHECK(layer.hashes(empty({2, 5}, {i64, meta}), 2).shape() == Shape{2, 3, 4});
}

TEST_CASE("n-grams: the layer is its formula, padding counts as boundaries, a stream as one text", "[models][ngrams]") {
  Rand rand(3);
  const NgramInjectionOptions o = small();
  const NgramInjection layer = drawn(o, rand);
  const int64_t n = 13, s = o.streams, d = o.dim;
  const Tensor h = random_tensor({2, n, s * d}, f64, rand);
  const Tensor tokens =
      Tensor::from(Whole{5, 7, 2, 9, 1, 1, 2, 2, 3, 39, 0, 4, 8, 6, 6, 6, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, {2, n});
  const Tensor real =
      tensor_of({1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 1, 1, 1, 0, 1, 1, 1, 1, 1, 1, 0}, {2, n}, boolean);
  for (const Tensor& mask : {Tensor(), real}) {
    const Tensor y = layer(h, tokens, {.key_mask = mask});
    const Tensor read = mask.defined() ? masked_fill(tokens, logical_not(mask), 2) : tokens;
    const Array rows = array_of(to(layer.hashes(read, 0), f64)), table = array_of(layer.table.weight),
                key = array_of(layer.key.weight), value = array_of(layer.value.weight), taps = array_of(layer.conv),
                wk = array_of(layer.key_norm.weight), wq = array_of(layer.query_norm.weight),
                wu = array_of(layer.value_norm.weight), in = array_of(h), got = array_of(y);
    const auto rms = [&](std::vector<double> x, const Array& w, int64_t stream) {
      double square = 0;
      for (const double v : x) square += v * v / static_cast<double>(d);
      for (int64_t c = 0; c < d; ++c)
        x[static_cast<std::size_t>(c)] *= w({stream * d + c}) / std::sqrt(square + o.norm_eps);
      return x;
    };
    double worst = 0;
    for (int64_t b = 0; b < 2; ++b)
      for (int64_t i = 0; i < s; ++i) {
        std::vector<std::vector<double>> u, normed;
        for (int64_t t = 0; t < n; ++t) {
          std::vector<double> e, k(static_cast<std::size_t>(d)), v = k, x = k;
          for (int64_t f = 0; f < 4; ++f)
            for (int64_t c = 0; c < 3; ++c) e.push_back(table({static_cast<int64_t>(rows({b, t, f})), c}));
          for (int64_t c = 0; c < d; ++c) {
            for (int64_t a = 0; a < 12; ++a) {
              k[static_cast<std::size_t>(c)] += e[static_cast<std::size_t>(a)] * key({a, i * d + c});
              v[static_cast<std::size_t>(c)] += e[static_cast<std::size_t>(a)] * value({a, c});
            }
            x[static_cast<std::size_t>(c)] = in({b, t, i * d + c});
          }
          k = rms(k, wk, i), x = rms(x, wq, i);
          const double a = std::inner_product(k.begin(), k.end(), x.begin(), 0.0) / std::sqrt(static_cast<double>(d));
          const double gate = 1 / (1 + std::exp(-std::copysign(std::sqrt(std::max(std::abs(a), 1e-6)), a)));
          for (double& one : v) one *= gate;
          std::vector<double> w = rms(v, wu, i);
          if (mask.defined() && !mask.to_vector<bool>()[static_cast<std::size_t>(b * n + t)])
            v.assign(v.size(), 0), w = v;
          u.push_back(v), normed.push_back(w);
        }
        for (int64_t t = 0; t < n; ++t)
          for (int64_t c = 0; c < d; ++c) {
            double z = 0;
            for (int64_t back = 0; back < 3 && back * 3 <= t; ++back)
              z += taps({2 - back, i * d + c}) *
                   normed[static_cast<std::size_t>(t - 3 * back)][static_cast<std::size_t>(c)];
            const double want = u[static_cast<std::size_t>(t)][static_cast<std::size_t>(c)] + z / (1 + std::exp(-z));
            worst = worse(worst, std::abs(got({b, t, i * d + c}) - want));
          }
      }
    CHECK(worst < 1e-13);
    // A stream gives the same rows.
    for (const Whole& pieces : {Whole{1, 1, 1, 10}, Whole{6, 2, 5}, Whole{13}}) {
      Stream stream;
      std::vector<Tensor> parts;
      int64_t at = 0;
      for (const int64_t m : pieces) {
        const Tensor now = mask.defined() ? narrow(mask, 1, at, m) : mask;
        StreamStep running(stream, m);
        parts.push_back(layer(narrow(h, 1, at, m), narrow(tokens, 1, at, m), {.key_mask = now, .stream = &stream}));
        running.end();
        at += m;
      }
      CHECK(max_abs_diff(cat(parts, 1), y) < 1e-14);
    }
  }
  CHECK_THROWS_WITH(layer(h, narrow(tokens, 1, 0, 2)), Contains("ngram_injection: tokens=[2,2]"));
  CHECK_THROWS_WITH(layer(h, to(tokens, i32)), Contains("need i64"));
  CHECK_THROWS_WITH(layer(narrow(h, 2, 0, 3), tokens), Contains("ngram_injection"));
  CHECK_THROWS_WITH(layer(h, tokens, {.segments = zeros({2, n}, {i64})}), Contains("documents"));
}

TEST_CASE("n-grams: a decoder with streams trains and generates; options that do not fit", "[models][ngrams]") {
  Rng rng(1);
  NgramInjectionOptions grams = small();
  HeadsOptions heads{.dim = 8, .heads = 2};
  DecoderBlockOptions block{
      .mixer = QsaAttentionOptions{.heads = heads, .topk = 4, .pool = 2, .index_heads = 2, .index_dim = 4},
      .feed = GluOptions{.dim = 8}};
  block.mixer_norms.before = block.feed_norms.before = false;
  DecoderOptions o{.vocabulary = 40, .dim = 8, .blocks = {block, block}};
  o.streams = HyperConnectionOptions{.dim = 8, .streams = 3, .kind = HyperKind::gated};
  o.mixes_streams = true;
  grams.dtype = f32, o.blocks[1].ngrams = grams;
  const Decoder model(o, rng);
  CHECK(model.blocks[1].ngrams.options.streams == 3);
  CHECK_FALSE(model.streams.map.weight.defined());
  const Tensor tokens = Tensor::from(Whole{5, 7, 2, 9, 1, 1, 2, 2, 3}, {1, 9});
  CHECK(generate(model, tokens, {.tokens = 4, .temperature = 0}, rng).dim(1) == 13);
  CHECK_THROWS_WITH(model.streams.write(model.streams.read(zeros({1, 24})), zeros({1, 8})), Contains("read_only"));
  DecoderOptions wrong = o;
  wrong.streams.reset();
  CHECK_THROWS_WITH(Decoder(wrong, rng), Contains("decoder: n-grams are added to residual streams"));
  wrong = o, wrong.residual_scale = 0.5;
  CHECK_THROWS_WITH(Decoder(wrong, rng), Contains("decoder: residual streams take no residual_scale"));
  const auto refused = [&](auto change) {
    NgramInjectionOptions given = small();
    change(given);
    CHECK_THROWS_WITH(NgramInjection(given, rng), Contains("ngram_injection"));
  };
  refused([](NgramInjectionOptions& g) { g.width = 13; });
  refused([](NgramInjectionOptions& g) { g.rows = 119; });
  refused([](NgramInjectionOptions& g) { g.sizes[1] = 0; });
  refused([](NgramInjectionOptions& g) { g.multipliers = {3}; });
  refused([](NgramInjectionOptions& g) { g.dim = int64_t{1} << 62; });
  CHECK_THROWS_WITH(hash_ngrams(grams, 40, 1, 2, 0, 7, 1, 0), Contains("hash_ngrams") && Contains("longest=1"));
  CHECK_THROWS_AS(hash_ngrams(grams, 40, 3, 2, 0, int64_t{1} << 62, 1, 0), ValueError);
  CHECK_THROWS_AS(hash_ngrams(grams, 40, 3, 257, 1, 7, 1, 0), ValueError);  // 1028 primes
  CHECK_NOTHROW(hash_ngrams(grams, 40, 3, 256, 1, 7, 1, 0));
}
