// The block of MC-TFM++ against loops.
#include "layers/flash_reference.h"
#include "layers/streamed.h"
#include "support/catch.h"

#include <sluice/layers/gau/flash_model.h>
#include <sluice/ops/create.h>
#include <sluice/ops/elementwise.h>

using namespace sluice;
using namespace sluice::testing;

namespace {

McTfmOptions small_block(bool causal, GauKind kind = GauKind::softmax) {
  McTfmOptions o{.dim = 6, .heads = 3, .hidden = 5, .chunk = 3, .causal = causal, .kind = kind};
  o.rope.pairing = RopePairing::interleaved, o.dtype = f64;
  return o;
}
McTfm random_block(const McTfmOptions& o, Rand& rand) {
  Rng rng(1);
  return randomised(McTfm(o, rng), rand);
}

/// The block in plain loops.
Matrix mc_tfm_reference(const McTfm& f, const Matrix& x, const Tokens& tokens) {
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
                                .length = o.length, .count_padding = o.count_padding,
                                .across_chunks = o.across_chunks, .quadratic = o.quadratic, .linear = o.linear};
  Matrix joined = v;
  for (std::size_t head = 0; head < h; ++head) {
    auto part = [&](const Matrix& m) {
      const Matrix c = columns(m, head * dk, dk);
      return o.use_rope ? rope_reference(c, o.rope) : c;
    };
    const Matrix y = mixed_chunk_reference({part(q), part(k), part(q_lin), part(k_lin), columns(v, head * dk, dk)},
                                           mixed, {}, tokens);
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
Tensor mc_tfm_reference(const McTfm& f, const Tensor& x, const Masks& m) {
  std::vector<double> all;
  for (int64_t b = 0; b < x.dim(0); ++b)
    for (const auto& row :
         mc_tfm_reference(f, matrix_of(select(x, 0, b)), tokens_of(x.dim(1), b, m.keys, m.segments)))
      all.insert(all.end(), row.begin(), row.end());
  return Tensor::from(all, x.shape());
}

}  // namespace

TEST_CASE("mc_tfm: equals loops", "[flash]") {
  int turn = 0;
  for (GauKind kind : {GauKind::softmax, GauKind::su, GauKind::laplace})
    for (bool causal : {false, true})
      for (int which = 0; which < 4; ++which)
        for (int terms : {1, 2, 3}) {
          McTfmOptions o = small_block(causal, kind);
          o.quadratic = terms & 1, o.linear = terms & 2, o.scaling = kChunkScalings[turn++ % 5];
          o.length = kChunkLengths[turn % 2], o.use_rope = turn % 5 != 0;
          o.across_chunks = causal || turn % 3 != 0;
          o.count_padding = !causal && o.scaling == ChunkScaling::lucid && turn % 2 != 0;
          o.heads = turn % 4 ? 3 : 1;
          Rand rand(static_cast<uint64_t>(turn));
          const McTfm f = random_block(o, rand);
          const Tensor x = random_tensor({2, 7, 6}, f64, rand);
          const Masks m = masks(which, 7);
          INFO(name_of(kind) << " causal " << causal << " mask " << which << " terms " << terms);
          const Tensor got = f(x, {.key_mask = m.keys, .segments = m.segments}), want = mc_tfm_reference(f, x, m);
          CHECK(max_abs_diff(real_rows(got, m.keys), real_rows(want, m.keys)) < 1e-12);
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

TEST_CASE("mc_tfm: counts and errors", "[flash]") {
  Rng rng(1);
  const McTfm f({.dim = 16, .heads = 4, .hidden = 24}, rng);
  CHECK(count(f) == 4 * 16 * 16 + 4 * 16 + 4 * 16 + 3 * 16 * 24 + 2 * 24 + 16 + 4 * 16);
  CHECK_THROWS_WITH(f(ones({2, 3, 8})), Contains("[2,3,8]") && Contains("16"));
  CHECK_THROWS_WITH(f(ones({2, 3, 16}), {.key_mask = ones({2, 4}) > 0.0}), Contains("key_mask=[2,4]"));
  CHECK_THROWS_WITH(stream_of(f, ones({2, 3, 16})), Contains("causal"));
  CHECK_THROWS_WITH(McTfm({.dim = 16, .heads = 3}, rng), Contains("heads=3") && Contains("dim=16"));
  CHECK_THROWS_WITH(McTfm({.dim = 16, .heads = 4, .quadratic = false, .linear = false}, rng),
                    Contains("mc_tfm: one of the terms"));
}
