// gau_attention against loops, and the identities that concern it alone.
#include "layers/gau_reference.h"
#include "support/catch.h"
#include "support/identities.h"
#include "support/worse.h"

#include <sluice/autograd/engine.h>
#include <sluice/autograd/gradcheck.h>
#include <sluice/ops/attention/attention.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/matmul/matmul.h>
#include <sluice/ops/rows/reduce.h>
#include <sluice/ops/rows/softmax.h>

using namespace sluice;
using namespace sluice::testing;

namespace {

struct Sample {
  Tensor q, k, v, bias;
  Sample(Rand& rand, const Shape& q_shape, const Shape& k_shape, int64_t e, double reach = 1)
      : q(random_tensor(q_shape, f64, rand, -reach, reach)), k(random_tensor(k_shape, f64, rand, -reach, reach)) {
    Shape v_shape = k_shape;
    v_shape[v_shape.rank() - 1] = e;
    v = random_tensor(v_shape, f64, rand);
    bias = random_tensor({q_shape[q_shape.rank() - 2], k_shape[k_shape.rank() - 2]}, f64, rand);
  }
};
Sample square_sample(uint64_t seed, int64_t n = 6, int64_t s = 4, int64_t e = 3) {
  Rand rand(seed);
  return Sample(rand, {2, n, s}, {2, n, s}, e);
}

Tensor reference(const Sample& x, const GauAttentionOptions& o, const Tensor& bias, const Tensor& mask) {
  std::vector<double> all;
  for (int64_t b = 0; b < x.q.dim(0); ++b) {
    std::vector<bool> real(static_cast<std::size_t>(x.k.dim(1)), true);
    if (mask.defined()) real = select(mask, 0, b).to_vector<bool>();
    for (const auto& row :
         attention_reference(matrix_of(select(x.q, 0, b)), matrix_of(select(x.k, 0, b)), matrix_of(select(x.v, 0, b)),
                             o, bias.defined() ? matrix_of(bias) : Matrix{}, real))
      all.insert(all.end(), row.begin(), row.end());
  }
  return Tensor::from(all, {x.q.dim(0), x.q.dim(1), x.v.dim(2)});
}

void each_option(const std::function<void(const GauAttentionOptions&)>& f) {
  for (GauKind kind : kGauKinds)
    for (GauLength length : kGauLengths)
      for (bool causal : {false, true})
        for (int64_t top_k : {0, 3})
          f({.kind = kind, .length = length, .constant_length = 3, .mask = {.causal = causal}, .top_k = top_k});
}
std::string describe(const GauAttentionOptions& o) {
  return str(name_of(o.kind), " length ", static_cast<int>(o.length), " causal ", o.mask.causal, " top_k ", o.top_k);
}

}  // namespace

TEST_CASE("gau_attention: equals loops; queries may be fewer or more than keys", "[gau_attention]") {
  int compared = 0;
  each_option([&](const GauAttentionOptions& o) {
    for (auto [m, n] : {std::pair<int64_t, int64_t>{6, 6}, {2, 7}, {5, 3}})
      for (bool padded : {false, true})
        for (bool biased : {false, true}) {
          Rand rand(1);
          const Sample x(rand, {2, m, 4}, {2, n, 4}, 3);
          const Tensor mask = padded ? prefix_mask(n, n - 2, n) : Tensor(), bias = biased ? x.bias : Tensor();
          const double e = max_abs_diff(gau_attention(x.q, x.k, x.v, o, bias, mask), reference(x, o, bias, mask));
          if (!(e < 1e-12))
            FAIL_CHECK(describe(o) << " m " << m << " n " << n << " padded " << padded << ": off by " << e);
          ++compared;
        }
  });
  CHECK(compared > 100);
}

TEST_CASE("gau_attention: leading dims are a batch", "[gau_attention]") {
  each_option([&](const GauAttentionOptions& o) {
    const Sample x = square_sample(2);
    const Tensor mask = prefix_mask(6, 4, 6), all = gau_attention(x.q, x.k, x.v, o, x.bias, mask);
    const Tensor rank4 =
        gau_attention(unsqueeze(x.q, 1), unsqueeze(x.k, 1), unsqueeze(x.v, 1), o, x.bias, unsqueeze(mask, 1));
    const Tensor rank2 =
        gau_attention(select(x.q, 0, 0), select(x.k, 0, 0), select(x.v, 0, 0), o, x.bias, narrow(mask, 0, 0, 1));
    INFO(describe(o));
    CHECK(max_abs_diff(squeeze(rank4, 1), all) < 1e-14);
    CHECK(max_abs_diff(rank2, select(all, 0, 0)) < 1e-14);
  });
}

TEST_CASE("gau_attention: long causal sequences, which may be computed in blocks", "[gau_attention]") {
  for (int64_t n : {128, 129, 300})
    each_option([&](const GauAttentionOptions& o) {
      if (!o.mask.causal || (o.top_k == 0 && n == 128)) return;
      Rand rand(11);
      const Sample x(rand, {2, n, 4}, {2, n, 4}, 3);
      const Tensor mask = n == 300 ? prefix_mask(n, 140, n) : Tensor(), bias = o.top_k > 0 ? x.bias : Tensor();
      const double e = max_abs_diff(gau_attention(x.q, x.k, x.v, o, bias, mask), reference(x, o, bias, mask));
      if (!(e < 1e-11)) FAIL_CHECK(describe(o) << " n " << n << ": off by " << e);
      const Tensor column = narrow(x.bias, 1, 0, 1), row = narrow(x.bias, 0, 0, 1);  // biases that broadcast
      for (const Tensor& b : {column, row, select(row, 0, 0), unsqueeze(x.bias, 0)})
        CHECK(max_abs_diff(gau_attention(x.q, x.k, x.v, o, b),
                           gau_attention(x.q, x.k, x.v, o, contiguous(expand(b, {2, n, n})))) < 1e-13);
    });
  Rand rand(12);
  Sample x(rand, {1, 140, 2}, {1, 140, 2}, 2);
  const GauAttentionOptions o{.length = GauLength::visible, .mask = {.causal = true}};
  const TensorFunction f = [&](const std::vector<Tensor>& v) {
    return gau_attention(x.q * v[0], x.k + v[0], x.v * v[0], o, x.bias * v[1]);
  };
  const std::vector<Tensor> t{ones({2}, {f64}).requires_grad_(), ones({140, 1}, {f64}).requires_grad_()};
  CHECK(gradcheck(f, t));
  for (const Shape& wrong : {Shape{140, 141}, Shape{141, 140}, Shape{139, 140}, Shape{140, 128}})
    CHECK_THROWS_AS(gau_attention(x.q, x.k, x.v, o, zeros(wrong, {f64})), ShapeError);
}

TEST_CASE("gau_attention: su ≡ relu²(T)/(n·s), and paper_code·n/s, without bias", "[gau_attention][identity]") {
  const Sample x = square_sample(3);
  const double n = 6, s = 4;
  const Tensor su = gau_attention(x.q, x.k, x.v, {});
  const Tensor raw = matmul(relu2(matmul(x.q, transpose(x.k, -2, -1))), x.v);
  check_identity("GAU: su is relu^2(T)/(n s)", su, raw / (n * s), 1e-14);
  CHECK(max_abs_diff(gau_attention(x.q, x.k, x.v, {.kind = GauKind::paper_eq}), raw) < 1e-14);
  CHECK(max_abs_diff(gau_attention(x.q, x.k, x.v, {.kind = GauKind::paper_code}), raw / (n * n)) < 1e-14);
  for (GauLength length : kGauLengths)
    for (bool causal : {false, true}) {
      // The quotient is that of the lengths, so it depends on the row where L is the number of visible keys.
      const GauAttentionOptions o{.length = length, .constant_length = 9, .mask = {.causal = causal}};
      GauAttentionOptions code = o;
      code.kind = GauKind::paper_code;
      Tensor rows = full({6, 1}, length == GauLength::constant ? 9 : n, {f64});
      if (length == GauLength::visible && causal) rows = reshape(arange(1, 7, 1, {f64}), {6, 1});
      CHECK(max_abs_diff(gau_attention(x.q, x.k, x.v, o), gau_attention(x.q, x.k, x.v, code) * rows / s) < 1e-13);
    }
  // With a bias it fails, as it should: paper_code does not divide b.
  CHECK(max_abs_diff(gau_attention(x.q, x.k, x.v, {}, x.bias),
                     gau_attention(x.q, x.k, x.v, {.kind = GauKind::paper_code}, x.bias) * (n / s)) > 1e-3);
}

TEST_CASE("gau_attention: lucid ≡ paper_code without bias", "[gau_attention][identity]") {
  const Sample x = square_sample(4);
  for (GauLength length : kGauLengths)
    for (bool causal : {false, true}) {
      const GauAttentionOptions a{.kind = GauKind::lucid, .length = length, .mask = {.causal = causal}};
      const GauAttentionOptions b{.kind = GauKind::paper_code, .length = length, .mask = {.causal = causal}};
      CHECK(max_abs_diff(gau_attention(x.q, x.k, x.v, a), gau_attention(x.q, x.k, x.v, b)) < 1e-15);
      CHECK(max_abs_diff(gau_attention(x.q, x.k, x.v, a, x.bias), gau_attention(x.q, x.k, x.v, b, x.bias)) > 1e-3);
    }
}

TEST_CASE("gau_attention: softmax_plus ≡ softmax at L = 512", "[gau_attention][identity]") {
  const Sample x = square_sample(5);
  for (bool causal : {false, true}) {
    GauAttentionOptions plus{.kind = GauKind::softmax_plus,
                             .length = GauLength::constant,
                             .constant_length = 512,
                             .mask = {.causal = causal}};
    GauAttentionOptions plain = plus;
    plain.kind = GauKind::softmax;
    CHECK(max_abs_diff(gau_attention(x.q, x.k, x.v, plus, x.bias), gau_attention(x.q, x.k, x.v, plain, x.bias)) <
          1e-15);
    plus.constant_length = 511;
    CHECK(max_abs_diff(gau_attention(x.q, x.k, x.v, plus, x.bias), gau_attention(x.q, x.k, x.v, plain, x.bias)) > 1e-6);
    // L = 1: κ is 0, all weights are equal. With a smallest length, κ is that length's.
    plus.constant_length = 1;
    const Tensor level = gau_attention(x.q * 0, x.k, x.v, plain);
    CHECK(max_abs_diff(gau_attention(x.q, x.k, x.v, plus), level) < 1e-15);
    GauAttentionOptions floor = plus;
    floor.constant_length = 16, plus.min_length = 16;
    CHECK(max_abs_diff(gau_attention(x.q, x.k, x.v, plus), gau_attention(x.q, x.k, x.v, floor)) == 0);
    CHECK(max_abs_diff(gau_attention(x.q, x.k, x.v, plus), level) > 1e-3);
  }
}

TEST_CASE("gau_attention: rownorm does not see the scale of q", "[gau_attention][identity]") {
  const Sample x = square_sample(6);
  for (bool causal : {false, true}) {
    const GauAttentionOptions o{.kind = GauKind::rownorm, .mask = {.causal = causal}};
    const Tensor y = gau_attention(x.q, x.k, x.v, o);
    for (double factor : {1e-3, 7.0, 1e4}) CHECK(max_abs_diff(gau_attention(x.q * factor, x.k, x.v, o), y) < 1e-12);
    CHECK(max_abs_diff(gau_attention(x.q * 7, x.k, x.v, {.mask = {.causal = causal}}),
                       gau_attention(x.q, x.k, x.v, {.mask = {.causal = causal}})) > 1e-2);
  }
  // Rows of A sum to 1, or to 0 where no score is positive.
  const Tensor one = ones({2, 6, 1}, {f64}), sums = gau_attention(x.q, x.k, one, {.kind = GauKind::rownorm});
  CHECK(max_abs_diff(sums, one) < 1e-14);
  const Tensor below = full({6, 6}, -100, {f64});
  CHECK(max_abs(gau_attention(x.q, x.k, one, {.kind = GauKind::rownorm}, below)) == 0);
}

TEST_CASE("gau_attention: top_k = n keeps everything, top_k = 1 the best, ties the first",
          "[gau_attention][identity]") {
  each_option([&](GauAttentionOptions o) {
    const Sample x = square_sample(7);
    const Tensor mask = prefix_mask(6, 4, 6);
    o.top_k = 0;
    const Tensor all = gau_attention(x.q, x.k, x.v, o, x.bias, mask);
    for (int64_t k : {6, 9}) {
      o.top_k = k;
      CHECK(same_bits(gau_attention(x.q, x.k, x.v, o, x.bias, mask), all));
      check_identity("GAU: top-k with k = n is GAU", gau_attention(x.q, x.k, x.v, o, x.bias, mask), all, 0);
    }
    if (o.kind == GauKind::softmax) {  // one key left: its value
      o.top_k = 1;
      const Tensor same_keys = expand(narrow(x.k, 1, 0, 1), {2, 6, 4});
      CHECK(max_abs_diff(gau_attention(x.q, same_keys, x.v, o), expand(narrow(x.v, 1, 0, 1), {2, 6, 3})) < 1e-15);
    }
  });
}

TEST_CASE("gau_attention: computed tile by tile it is the same", "[gau_attention][identity]") {
  // relu² and the others have no row maximum: in the attention engine their tiles simply add.
  constexpr std::pair<int64_t, int64_t> tilings[] = {{1, 1}, {2, 3}, {3, 2}, {4, 4}, {5, 7}, {64, 64}};
  for (GauKind kind : kGauKinds)
    for (GauLength length : kGauLengths)
      for (bool causal : {false, true})
        for (auto [rows, cols] : tilings) {
          Rand rand(13);
          const Sample x(rand, {2, 11, 4}, {2, 11, 4}, 3);
          const GauAttentionOptions o{.kind = kind, .length = length, .constant_length = 9, .mask = {.causal = causal}};
          // L of each row [11, 1]
          Tensor l = full({11, 1}, length == GauLength::constant ? 9 : 11, {f64});
          if (length == GauLength::visible && causal) l = reshape(arange(1, 12, 1, {f64}), {11, 1});
          AttentionOptions e;
          e.mask.causal = causal, e.tile_rows = rows, e.tile_cols = cols, e.bias = x.bias;
          e.weighting = kind == GauKind::softmax || kind == GauKind::softmax_plus ? Weighting::softmax
                        : kind == GauKind::laplace                                ? Weighting::laplace
                                                                                  : Weighting::relu2;
          const bool by_length = kind == GauKind::lucid || kind == GauKind::laplace || kind == GauKind::paper_code;
          if (by_length || kind == GauKind::paper_eq) e.scale = 1;
          if (by_length) e.row_scale = squeeze(1.0 / l, 1);  // (T + b)/L
          if (kind == GauKind::paper_code) e.bias = x.bias * l;
          if (kind == GauKind::softmax_plus) e.row_scale = squeeze(log(l), 1) / std::log(512.0);
          Tensor y = attention(x.q, x.k, x.v, e);
          if (kind == GauKind::su) y = y / l;
          if (kind == GauKind::rownorm) {
            const Tensor total = attention(x.q, x.k, ones({2, 11, 1}, {f64}), e);
            y = y / masked_fill(total, total == 0.0, 1);
          }
          check_identity("GAU: tiled = whole", y, gau_attention(x.q, x.k, x.v, o, x.bias), 1e-13);
        }
}

TEST_CASE("gau_attention: names and refusals", "[gau_attention]") {
  for (GauKind kind : kGauKinds) CHECK(from_name<GauKind>(name_of(kind)) == kind);
  CHECK_THROWS_AS(from_name<GauKind>("relu"), ValueError);
  CHECK_THROWS_WITH(from_name<GauKind>("relu"), Contains("relu") && Contains("paper_code"));
  const Sample x = square_sample(10);
  auto f = [](const Shape& shape) { return zeros(shape, {f64}); };
  CHECK_THROWS_WITH(gau_attention(f({2, 6, 3}), x.k, x.v, {}), Contains("[2,6,3]") && Contains("[2,6,4]"));
  CHECK_THROWS_WITH(gau_attention(x.q, x.k, f({2, 5, 3}), {}), Contains("[2,5,3]") && Contains("[2,6,4]"));
  CHECK_THROWS_WITH(gau_attention(f({6, 4}), x.k, x.v, {}), Contains("[6,4]"));
  CHECK_THROWS_AS(gau_attention(f({4}), f({4}), f({4}), {}), ShapeError);
  CHECK_THROWS_WITH(gau_attention(x.q, x.k, x.v, {}, {}, f({2, 5}) > 0.0), Contains("[2,5]") && Contains("6"));
  CHECK_THROWS_WITH(gau_attention(x.q, x.k, x.v, {}, {}, f({2, 6})), Contains("bool"));
  CHECK_THROWS_WITH(gau_attention(x.q, x.k, x.v, {}, f({5, 5})), Contains("[5,5]"));
  CHECK_THROWS_AS(gau_attention(x.q, x.k, x.v, {.length = GauLength::constant, .constant_length = 0}), ValueError);
  CHECK_THROWS_AS(gau_attention(x.q, x.k, x.v, {.top_k = -1}), ValueError);
  CHECK_THROWS_WITH(check_options("gau_attention", GauAttentionOptions{.top_k = -1}), Contains("top_k=-1"));
  CHECK(str(GauAttentionOptions{.mask = {.window = 4}, .top_k = 3}) == "{top_k=3, window=4}");
}

TEST_CASE("gau_attention: a row that sees nothing gives 0, and gradients that are finite", "[gau]") {
  each_option([](const GauAttentionOptions& given) {
    INFO(describe(given));
    Sample x = square_sample(11);
    GauAttentionOptions o = given;
    o.mask.keys = prefix_mask(6, 0, 4);
    for (Tensor* t : {&x.q, &x.k, &x.v}) t->requires_grad_();
    const Tensor y = gau_attention(x.q, x.k, x.v, o);
    CHECK(max_abs(select(y, 0, 0)) == 0);
    for (const Tensor& g : grad({y}, {x.q, x.k, x.v}, {.grad_outputs = {ones_like(y)}})) {
      CHECK(all(isfinite(g)).item() == 1);
      CHECK(max_abs(select(g, 0, 0)) == 0);
    }
  });
}

TEST_CASE("gau_attention: L = n counts the keys of the row's document", "[gau_attention]") {
  // A document of 4 tokens, one of them padding, beside one of 5, and alone.
  const Sample x = square_sample(24, 9);
  const Tensor keys = Tensor::from(std::vector<bool>{1, 0, 1, 1, 1, 1, 1, 0, 1, 1, 1, 1, 0, 1, 1, 1, 1, 1}, {2, 9});
  const Tensor segments = Tensor::from(std::vector<int64_t>{7, 7, 7, 7, 2, 2, 2, 2, 2}, {1, 9});
  const auto first = [](const Tensor& t) { return narrow(t, 1, 0, 4); };
  for (GauKind kind : kGauKinds) {
    INFO(name_of(kind));
    GauAttentionOptions o{.kind = kind, .mask = {.keys = keys, .query_segments = segments, .key_segments = segments}};
    const Tensor packed = gau_attention(x.q, x.k, x.v, o);
    o.mask = {.keys = first(keys)};
    CHECK(max_abs_diff(first(packed), gau_attention(first(x.q), first(x.k), first(x.v), o)) < 1e-14);
  }
}

TEST_CASE("gau_attention: a bias of -inf hides a key, from a row with one key too", "[gau_attention]") {
  for (GauKind kind : {GauKind::softmax, GauKind::softmax_plus}) {
    INFO(name_of(kind));
    Sample x = square_sample(25);
    std::vector<double> bias = x.bias.to_vector<double>();
    bias[0] = bias[3 * 6 + 2] = -INFINITY;  // the one key of row 0, and one of four
    x.bias = Tensor::from(bias, {6, 6});
    for (Tensor* t : {&x.q, &x.k, &x.v}) t->requires_grad_();
    const GauAttentionOptions o{.kind = kind, .length = GauLength::visible, .mask = {.causal = true}};
    const Tensor y = gau_attention(x.q, x.k, x.v, o, x.bias);
    CHECK(max_abs(narrow(y, 1, 0, 1)) == 0);
    CHECK(max_abs_diff(y, reference(x, o, x.bias, {})) < 1e-12);
    for (const Tensor& g : grad({y}, {x.q, x.k, x.v}, {.grad_outputs = {ones_like(y)}}))
      CHECK(all(isfinite(g)).item() == 1);
  }
}

TEST_CASE("gau_attention: what dropout keeps grows by 1/(1 - p), in every kind", "[gau_attention]") {
  Rand rand(22);
  const Tensor q = random_tensor({2, 9, 3}, f64, rand), k = random_tensor({2, 9, 3}, f64, rand);
  const Tensor identity = expand(eye(9, 9, {f64}), {2, 9, 9});  // the output is A itself
  for (GauKind kind : kGauKinds)
    for (int64_t top_k : {0, 5}) {
      GauAttentionOptions o{.kind = kind, .top_k = top_k, .dropout = 0.3};
      Rng rng(6);
      const std::vector<double> thin = gau_attention(q, k, identity, o, &rng).to_vector<double>();
      const std::vector<double> whole = gau_attention(q, k, identity, o).to_vector<double>();
      double worst = 0;
      int dropped = 0;
      for (std::size_t i = 0; i < thin.size(); ++i) {
        dropped += thin[i] == 0 && whole[i] != 0;
        if (thin[i] != 0) worst = worse(worst, std::abs(thin[i] - whole[i] / 0.7));
      }
      INFO(name_of(kind) << " top_k " << top_k);
      CHECK(dropped > 0);
      CHECK(worst < 1e-14);
    }
}

TEST_CASE("gau_attention: the rules of an AttentionMask, as weights of hidden pairs", "[gau_attention]") {
  // Every rule at once, against a dense mask of the same pairs; and L counts what a row sees.
  Rand rand(23);
  const int64_t n = 12;
  const Tensor q = random_tensor({2, 2, n, 3}, f64, rand), k = random_tensor({2, 2, n, 3}, f64, rand),
               v = random_tensor({2, 2, n, 4}, f64, rand);
  const Tensor segments = Tensor::from(std::vector<int64_t>{0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2}, {1, n});
  const Tensor keys = random_tensor({2, 2, n}, f64, rand, -1, 3) > 0.0;  // a mask for each head
  AttentionMask mask{.causal = true, .window = 5, .keys = keys, .query_segments = segments, .key_segments = segments};
  const Tensor i = unsqueeze(arange(n), 1), j = unsqueeze(arange(n), 0);
  Tensor dense = logical_and(logical_and(j <= i, i - j < 5.0), transpose(segments, 0, 1) == segments);
  dense = logical_and(dense, unsqueeze(keys, 2));
  for (GauKind kind : kGauKinds)
    for (GauLength length : {GauLength::visible, GauLength::constant}) {
      INFO(name_of(kind));
      GauAttentionOptions a{.kind = kind, .length = length, .constant_length = 7, .mask = mask}, b = a;
      b.mask = {.dense = dense};
      CHECK(max_abs_diff(gau_attention(q, k, v, a), gau_attention(q, k, v, b)) < 1e-14);
      // One row by hand: query 7 of batch 0, head 1.
      std::vector<std::vector<double>> rows, values;
      for (int64_t key = 3; key <= 7; ++key) {
        if (key < 5 || select(select(select(keys, 0, 0), 0, 1), 0, key).item() == 0) continue;
        rows.push_back(select(select(select(k, 0, 0), 0, 1), 0, key).to_vector<double>());
        values.push_back(select(select(select(v, 0, 0), 0, 1), 0, key).to_vector<double>());
      }
      GauAttentionOptions plain{.kind = kind, .length = length, .constant_length = 7};
      const Matrix row{select(select(select(q, 0, 0), 0, 1), 0, 7).to_vector<double>()};
      const Matrix want = attention_reference(row, rows, values, plain, {}, std::vector<bool>(rows.size(), true));
      const Tensor got = select(select(select(gau_attention(q, k, v, a), 0, 0), 0, 1), 0, 7);
      for (std::size_t c = 0; c < 4; ++c) CHECK(std::abs(got.to_vector<double>()[c] - want[0][c]) < 1e-13);
    }
}

TEST_CASE("gau_attention: lengths are not rounded to bf16", "[gau][bf16]") {
  Rand rand(31);
  const int64_t n = 1001;
  const Tensor q = random_tensor({1, n, 16}, bf16, rand), k = random_tensor({1, n, 16}, bf16, rand),
               v = random_tensor({1, n, 8}, bf16, rand);
  for (GauKind kind : {GauKind::su, GauKind::lucid, GauKind::laplace}) {
    const GauAttentionOptions o{.kind = kind};
    const Tensor want = gau_attention(to(q, f64), to(k, f64), to(v, f64), o), got = gau_attention(q, k, v, o);
    const double off = std::sqrt(mean(square(to(got, f64) - want)).item() / mean(square(want)).item());
    INFO(name_of(kind));
    CHECK(off < 2.5e-3);  // a rounded L would be 4e-3 off in all rows
  }
}
