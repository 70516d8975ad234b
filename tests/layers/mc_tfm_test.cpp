// The block of MC-TFM++ against loops: values, gradients, streaming, padding, errors.
#include "layers/flash_reference.h"
#include "support/catch.h"

#include <sluice/autograd/gradcheck.h>
#include <sluice/layers/gau/flash_model.h>
#include <sluice/ops/create.h>
#include <sluice/ops/elementwise.h>

using namespace sluice;
using namespace sluice::testing;
using Catch::Matchers::Contains;

namespace {

McTfmOptions small_block(bool causal, GauKind kind = GauKind::softmax) {
  McTfmOptions o{.dim = 6, .heads = 3, .hidden = 5, .chunk = 3, .causal = causal, .kind = kind};
  o.rope.pairing = RopePairing::interleaved, o.dtype = f64;
  return o;
}
McTfm random_block(const McTfmOptions& o, Rand& rand) {
  Rng rng(1);
  McTfm f(o, rng);
  for (NamedTensor& p : parameters(f)) {
    double* at = p.tensor.mutable_data<double>();
    for (int64_t i = 0; i < p.tensor.numel(); ++i) at[i] = rand.uniform(-0.7, 0.7);
  }
  return f;
}

/// The block in plain loops.
Matrix mc_tfm_reference(const McTfm& f, const Matrix& x, const Tokens& tokens, Margin* margin = nullptr) {
  const McTfmOptions& o = f.options;
  const auto d = static_cast<std::size_t>(o.dim), h = static_cast<std::size_t>(o.heads), dk = d / h;
  const Matrix qkv = linear_reference(f.qkv, norm_reference(f.attention_norm, x));
  const Matrix gamma = matrix_of(f.gamma), beta = matrix_of(f.beta);
  auto scaled = [&](Matrix m, std::size_t which) {
    for (auto& row : m)
      for (std::size_t a = 0; a < d; ++a) row[a] = gamma[which][a] * row[a] + beta[which][a];
    return m;
  };
  const Matrix q = columns(qkv, 0, d), k = columns(qkv, d, d), v = columns(qkv, 2 * d, d);
  const Matrix q_lin = scaled(q, 0), k_lin = scaled(k, 1);
  const MixedChunkOptions mixed{.chunk = o.chunk, .causal = o.causal, .kind = o.kind, .scaling = o.scaling,
                                .length = o.length, .quadratic = o.quadratic, .linear = o.linear};
  Matrix joined = v;
  for (std::size_t head = 0; head < h; ++head) {
    auto part = [&](const Matrix& m) {
      const Matrix c = columns(m, head * dk, dk);
      return o.use_rope ? rope_reference(c, o.rope) : c;
    };
    const Matrix y = mixed_chunk_reference({part(q), part(k), part(q_lin), part(k_lin), columns(v, head * dk, dk)},
                                           mixed, {}, tokens, margin);
    for (std::size_t i = 0; i < y.size(); ++i)
      for (std::size_t a = 0; a < dk; ++a) joined[i][head * dk + a] = y[i][a];
  }
  auto plus = [](Matrix a, const Matrix& b) {
    for (std::size_t i = 0; i < a.size(); ++i)
      for (std::size_t c = 0; c < a[i].size(); ++c) a[i][c] += b[i][c];
    return a;
  };
  const Matrix y = plus(x, linear_reference(f.out, joined)), normed = norm_reference(f.glu_norm, y);
  Matrix hidden = linear_reference(f.glu.value, normed);
  const Matrix gate = linear_reference(f.glu.gate, normed);
  for (std::size_t i = 0; i < hidden.size(); ++i)
    for (std::size_t c = 0; c < hidden[i].size(); ++c) hidden[i][c] *= activation_reference(Act::silu, gate[i][c]);
  return plus(y, linear_reference(f.glu.out, hidden));
}
Tensor mc_tfm_reference(const McTfm& f, const Tensor& x, const Masks& m, Margin* margin = nullptr) {
  std::vector<double> all;
  for (int64_t b = 0; b < x.dim(0); ++b)
    for (const auto& row :
         mc_tfm_reference(f, matrix_of(select(x, 0, b)), tokens_of(x.dim(1), b, m.keys, m.segments), margin))
      all.insert(all.end(), row.begin(), row.end());
  return Tensor::from(all, x.shape());
}

Tensor streamed(const McTfm& m, const Tensor& x, const std::vector<int64_t>& sizes) {
  McTfm::State state;
  std::vector<Tensor> outputs;
  int64_t at = 0;
  for (std::size_t i = 0; at < x.dim(1); ++i) {
    const int64_t size = std::min(sizes[std::min(i, sizes.size() - 1)], x.dim(1) - at);
    auto [y, next] = m.step(narrow(x, 1, at, size), std::move(state));
    outputs.push_back(y), state = std::move(next), at += size;
  }
  return cat(outputs, 1);
}

}  // namespace

TEST_CASE("mc_tfm: equals loops, and its gradients", "[flash]") {
  int turn = 0;
  for (GauKind kind : {GauKind::softmax, GauKind::su, GauKind::laplace})
    for (bool causal : {false, true})
      for (int which = 0; which < 4; ++which)
        for (int terms : {1, 2, 3}) {
          McTfmOptions o = small_block(causal, kind);
          o.quadratic = terms & 1, o.linear = terms & 2, o.scaling = kChunkScalings[turn++ % 4];
          o.length = kChunkLengths[turn % 2], o.use_rope = turn % 5 != 0;
          for (uint64_t seed = 1;; ++seed) {
            REQUIRE(seed < 50);
            Rand rand(seed * 100 + static_cast<uint64_t>(turn));
            const McTfm f = random_block(o, rand);
            const Tensor x = random_tensor({2, 7, 6}, f64, rand);
            const Masks m = masks(which, 7);
            Margin margin;
            const Tensor want = mc_tfm_reference(f, x, m, &margin);
            if (margin.value < 1e-4) continue;
            INFO(name_of(kind) << " causal " << causal << " mask " << which << " terms " << terms);
            const Tensor got = f(x, m.keys, nullptr, m.segments);
            CHECK(max_abs_diff(real_rows(got, m.keys), real_rows(want, m.keys)) < 1e-12);
            if (terms != 3) break;
            const TensorFunction layer = [&](const std::vector<Tensor>& v) {
              McTfm copy = f;
              copy.gamma = v[1], copy.beta = v[2], copy.qkv.bias = v[3];
              return real_rows(copy(v[0], m.keys, nullptr, m.segments), m.keys);
            };
            const std::vector<Tensor> inputs{x.detach().requires_grad_(), f.gamma, f.beta, f.qkv.bias};
            const GradcheckResult first = gradcheck(layer, inputs);
            INFO(first.message);
            CHECK(first.ok);
            if (which == 3) CHECK(gradgradcheck(layer, inputs, {.tolerance = 1e-5}).ok);
            break;
          }
        }
}

TEST_CASE("mc_tfm: one chunk without the linear term is a Transformer block", "[flash]") {
  McTfmOptions o = small_block(true);
  o.chunk = 20, o.linear = false;
  Rand rand(8);
  const McTfm f = random_block(o, rand);
  const Tensor x = random_tensor({2, 7, 6}, f64, rand);
  std::vector<Tensor> part = split(f.qkv(f.attention_norm(x)), {6, 6, 6}, -1);
  for (Tensor& t : part) t = transpose(unflatten(t, -1, {3, 2}), 1, 2);
  const Tensor mha = gau_attention(rope(part[0], o.rope), rope(part[1], o.rope), part[2],
                                   {.kind = GauKind::softmax, .mask = {.causal = true}});
  const Tensor y = x + f.out(flatten(transpose(mha, 1, 2), 2, 3));
  CHECK(max_abs_diff(f(x), y + f.glu(f.glu_norm(y))) < 1e-13);
}

TEST_CASE("mc_tfm: streaming, its state, and causality", "[flash][streaming]") {
  for (GauKind kind : {GauKind::softmax, GauKind::su})
    for (ChunkScaling scaling : kChunkScalings) {
      McTfmOptions o = small_block(true, kind);
      o.scaling = scaling;
      Rand rand(9);
      const McTfm f = random_block(o, rand);
      const Tensor x = random_tensor({2, 11, 6}, f64, rand), full = f(x);
      for (const std::vector<int64_t>& sizes : {std::vector<int64_t>{1}, {5, 1}, {2, 6, 1}, {11}})
        CHECK(max_abs_diff(streamed(f, x, sizes), full) < 1e-12);
      const McTfm::State s = f.step(x, {}).second;
      CHECK(s.sum.numel() + s.k_quad.numel() + s.k_lin.numel() + s.v.numel() == 2 * 3 * (2 * 2 + 3 * 3 * 2));
      const Tensor changed = f(masked_fill(x, reshape(arange(11), {11, 1}) >= 7.0, 3));
      CHECK(same_bits(narrow(changed, 1, 0, 7), narrow(full, 1, 0, 7)));
    }
}

TEST_CASE("mc_tfm: padding, counts, dropout and errors", "[flash]") {
  Rand rand(10);
  for (bool causal : {false, true}) {
    const McTfm f = random_block(small_block(causal), rand);
    const Tensor x = random_tensor({2, 8, 6}, f64, rand), mask = prefix_mask(8, 5, 5);
    const Tensor y = f(masked_fill(x, unsqueeze(logical_not(mask), -1), NAN), mask);
    CHECK(max_abs_diff(narrow(y, 1, 0, 5), f(narrow(x, 1, 0, 5))) < 1e-12);
    CHECK(f(narrow(x, 1, 0, 0)).shape() == Shape{2, 0, 6});
    CHECK(f(narrow(x, 0, 0, 0)).shape() == Shape{0, 8, 6});
  }
  Rng rng(1);
  const McTfm f({.dim = 16, .heads = 4, .hidden = 24}, rng);
  CHECK(count(f) == 4 * 16 * 16 + 4 * 16 + 4 * 16 + 3 * 16 * 24 + 2 * 24 + 16 + 4 * 16);
  McTfmOptions o = small_block(true);
  o.dropout = 0.25, o.attention_dropout = 0.25;
  const McTfm dropped = random_block(o, rand);
  const Tensor x = random_tensor({1, 7, 6}, f64, rand);
  Rng a(1), b(1);
  CHECK(same_bits(dropped(x, {}, &a), dropped(x, {}, &b)));
  CHECK_FALSE(same_bits(dropped(x, {}, &a), dropped(x)));
  CHECK_THROWS_WITH(f(ones({2, 3, 8})), Contains("[2,3,8]") && Contains("16"));
  CHECK_THROWS_WITH(f(ones({2, 3, 16}), ones({2, 4}) > 0.0), Contains("key_mask=[2,4]"));
  CHECK_THROWS_WITH(f.step(ones({2, 3, 16}), {}), Contains("causal"));
  CHECK_THROWS_WITH(McTfm({.dim = 16, .heads = 3}, rng), Contains("heads=3") && Contains("dim=16"));
}
