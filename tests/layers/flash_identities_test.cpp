// The identities that concern FLASH, and what masks promise.
#include "layers/flash_reference.h"
#include "support/catch.h"
#include "support/identities.h"

#include <sluice/autograd/engine.h>
#include <sluice/core/memory/allocator.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/index/gather.h>
#include <sluice/ops/rows/reduce.h>

using namespace sluice;
using namespace sluice::testing;

namespace {

FlashOptions small(GauKind kind = GauKind::su) {
  FlashOptions o{.dim = 5, .expansion = 6, .key_dim = 4, .chunk = 3};
  o.kind = kind;
  return o;
}

/// Operands of one head.
struct Inputs {
  Tensor q_quad, k_quad, q_lin, k_lin, v;
  Inputs(int64_t batch, int64_t n, int64_t s, int64_t e, Rand& rand) {
    for (Tensor* t : {&q_quad, &k_quad, &q_lin, &k_lin}) *t = random_tensor({batch, n, s}, f64, rand);
    v = random_tensor({batch, n, e}, f64, rand);
  }
  Tensor operator()(const MixedChunkOptions& o, const Tensor& key_mask = {}, const Tensor& segments = {}) const {
    return mixed_chunk_attention(q_quad, k_quad, q_lin, k_lin, v, o, {}, key_mask, segments);
  }
};

/// The GAU that shares everything with the quadratic term of a Flash layer.
Gau gau_of(const Flash& f) {
  const FlashOptions& o = f.options;
  GauOptions g{.dim = o.dim, .expansion = o.expansion, .key_dim = o.key_dim};
  g.kind = o.kind, g.causal = o.causal, g.length = GauLength::constant, g.constant_length = o.chunk;
  g.norm = o.norm, g.dtype = f64;
  Rng rng(1);
  Gau gau(g, rng);
  gau.norm = f.norm, gau.in = f.in, gau.out = f.out;
  gau.gamma = narrow(f.gamma, 0, 0, 2), gau.beta = narrow(f.beta, 0, 0, 2);
  return gau;
}

}  // namespace

TEST_CASE("flash: chunked ≡ dense matrix", "[flash][identity]") {
  Rand rand(1);
  const int64_t n = 12;
  const Inputs x(2, n, 4, 3, rand);
  const Tensor position = arange(n);
  for (bool causal : {false, true})
    for (GauKind kind : {GauKind::su, GauKind::paper_code, GauKind::rownorm, GauKind::softmax})
      for (int64_t c : {1, 2, 3, 5, 12, 20}) {
        // A: GAU's weights behind a block-diagonal mask, one chunk after the other; W: w(g, h)·q_lin·k_linᵀ.
        std::vector<int64_t> chunk_of;
        for (int64_t i = 0; i < n; ++i) chunk_of.push_back(i / c);
        const Tensor g = unsqueeze(Tensor::from(chunk_of), 1), h = unsqueeze(Tensor::from(chunk_of), 0);
        std::vector<Tensor> quad;
        for (int64_t first = 0; first < n; first += c) {
          auto piece = [&](const Tensor& t) { return narrow(t, 1, first, std::min(c, n - first)); };
          const GauAttentionOptions a{
              .kind = kind, .length = GauLength::constant, .constant_length = c, .mask = {.causal = causal}};
          quad.push_back(gau_attention(piece(x.q_quad), piece(x.k_quad), piece(x.v), a));
        }
        Tensor weight = full({n, n}, 1.0 / static_cast<double>(n), {f64});
        if (causal) weight = masked_fill(to(h < g, f64) / to(g * static_cast<double>(c), f64), !(h < g), 0);
        const Tensor lin = matmul(weight * matmul(x.q_lin, transpose(x.k_lin, 1, 2)), x.v);
        check_identity("FLASH: chunked = dense, 2 x 4 kinds x 6 C", x({.chunk = c, .causal = causal, .kind = kind}),
                       cat(quad, 1) + lin, 1e-13);
      }
}

TEST_CASE("flash: one chunk is GAU, with the linear term when not causal", "[flash][identity]") {
  Rand rand(2);
  for (GauKind kind : kGauKinds)
    for (int64_t c : {7, 11}) {
      FlashOptions o = small(kind);
      o.chunk = c, o.causal = true;
      Flash f = random_flash(o, rand);
      const Tensor x = random_tensor({2, 7, 5}, f64, rand);
      check_identity("FLASH: causal one chunk = GAU", f(x), gau_of(f)(x), 1e-13);

      f.options.causal = false;
      const Gau gau = gau_of(f);
      const std::vector<Tensor> part = split(silu(f.in(f.norm(x))), {6, 6, 4}, -1);
      auto head = [&](int64_t i) { return rope(part[2] * select(f.gamma, 0, i) + select(f.beta, 0, i)); };
      const Tensor lin = matmul(matmul(head(2), transpose(head(3), 1, 2)) / 7.0, part[1]);
      const Tensor term = matmul(part[0] * lin, f.out.weight);
      REQUIRE(max_abs(term) > 1e-3);
      check_identity("FLASH: non-causal one chunk = GAU + linear term", f(x), gau(x) + term, 1e-13);
    }
}

TEST_CASE("flash: the linear term without causality does not know C", "[flash][identity]") {
  Rand rand(3);
  const Inputs x(2, 10, 4, 3, rand);
  for (ChunkScaling scaling : {ChunkScaling::su, ChunkScaling::lucid, ChunkScaling::eq}) {
    const MixedChunkOptions whole{.chunk = 10, .scaling = scaling, .quadratic = false};
    for (int64_t c : {1, 2, 3, 4, 7, 64}) {
      MixedChunkOptions o = whole;
      o.chunk = c;
      check_identity("FLASH: linear term independent of C", x(o), x(whole), 1e-13);
    }
  }
}

TEST_CASE("flash: causal, C = 1, no scaling: strictly causal linear attention", "[flash][identity]") {
  Rand rand(4);
  const Inputs x(2, 9, 4, 3, rand);
  const Tensor scores = tril(matmul(x.q_lin, transpose(x.k_lin, 1, 2)), -1);  // without the diagonal
  const MixedChunkOptions o{.chunk = 1, .causal = true, .scaling = ChunkScaling::eq, .quadratic = false};
  check_identity("FLASH: causal C = 1, eq: strictly causal linear attention", x(o), matmul(scores, x.v), 1e-13);
  MixedChunkOptions both = o;  // the diagonal comes from quad
  both.quadratic = true, both.kind = GauKind::paper_eq;
  const Tensor own = sum(x.q_quad * x.k_quad, {-1}, keep);
  CHECK(max_abs_diff(x(both) - x(o), square(maximum(own, zeros({1}, {f64}))) * x.v) < 1e-13);
}

TEST_CASE("flash: lucidrains counts the padding", "[flash][identity]") {
  FlashOptions o = small();
  o.scaling = ChunkScaling::lucid, o.quadratic = false, o.norm = NormKind::none;
  Rand rand(7);
  Flash f = random_flash(o, rand);
  f.out.bias = zeros({5}, {f64});
  const Tensor x = random_tensor({2, 9, 5}, f64, rand), mask = prefix_mask(9, 6, 6);
  auto added = [&] { return narrow(f(x, {.key_mask = mask}) - x, 1, 0, 6); };
  const Tensor real = added();
  f.options.count_padding = true;
  REQUIRE(max_abs(real) > 1e-3);
  CHECK(max_abs_diff(added(), real * (6.0 / 9)) < 1e-13);
}

TEST_CASE("flash: the segment mask with rows divided by their sum is the mean of su", "[flash][identity]") {
  Rand rand(8);
  for (int64_t n : {12, 14}) {
    const Inputs x(2, n, 4, 3, rand);
    for (bool causal : {false, true})
      for (bool with_documents : {false, true}) {
        const Tensor segments = with_documents ? documents(n, {6}, {3, 10}) : Tensor();
        MixedChunkOptions o{.chunk = 3, .causal = causal};
        const Tensor su = x(o, {}, segments);
        o.scaling = ChunkScaling::paper_code;
        const Tensor paper = x(o, {}, segments);
        // A shorter last chunk counts as a whole one in the paper's code: only then the two differ.
        if (n % 3 == 0 || causal) check_identity("FLASH: segment mask row-normalised = su", paper, su, 1e-13);
        else CHECK(max_abs_diff(paper, su) > 1e-4);
      }
  }
  // One document is no mask at all.
  const Inputs x(2, 11, 4, 3, rand);
  for (bool causal : {false, true})
    for (ChunkScaling scaling : kChunkScalings) {
      const MixedChunkOptions o{.chunk = 3, .causal = causal, .scaling = scaling};
      CHECK(max_abs_diff(x(o, {}, documents(11, {}, {})), x(o)) < 1e-13);
    }
}

TEST_CASE("flash: packed documents of whole chunks ≡ each document alone", "[flash][identity]") {
  for (GauKind kind : kGauKinds)
    for (ChunkScaling scaling : {ChunkScaling::su, ChunkScaling::paper_code})
      for (bool causal : {false, true}) {
        FlashOptions o = small(kind);
        o.causal = causal, o.scaling = scaling, o.token_shift = true, o.bias = GauBias::t5;
        Rand rand(9);
        const Flash f = random_flash(o, rand);
        const Tensor x = random_tensor({2, 14, 5}, f64, rand), ids = documents(14, {3, 9}, {3, 9});
        const Tensor packed = f(x, {.segments = ids});
        std::vector<Tensor> alone;
        for (const auto& [first, count] : {std::pair<int64_t, int64_t>{0, 3}, {3, 6}, {9, 5}})
          alone.push_back(f(narrow(x, 1, first, count)));  // RoPE knows differences of positions only
        check_identity("FLASH: documents do not mix", packed, cat(alone, 1), 1e-12);
      }
}

TEST_CASE("flash: documents that share a chunk mix in the linear term only", "[flash][identity]") {
  Rand rand(10);
  const Inputs x(2, 12, 4, 3, rand);
  const Tensor ids = documents(12, {5}, {5}), second = reshape(arange(12), {12, 1}) >= 5.0;
  for (bool causal : {false, true})
    for (bool linear : {false, true}) {
      MixedChunkOptions o{.chunk = 3, .causal = causal, .linear = linear};
      Inputs y = x;
      for (Tensor* t : {&y.k_quad, &y.k_lin, &y.v}) *t = masked_fill(*t, logical_not(second), 2);  // document 1 changes
      const double moved = max_abs_diff(narrow(x(o, {}, ids), 1, 5, 7), narrow(y(o, {}, ids), 1, 5, 7));
      if (linear) CHECK(moved > 1e-2);
      else CHECK(moved == 0);
    }
}

TEST_CASE("flash: memory is linear in n", "[flash][identity]") {
  FlashOptions o{.dim = 4, .expansion = 4, .key_dim = 4, .chunk = 16};
  Rng rng(1);
  Rand rand(11);
  for (bool causal : {false, true}) {
    o.causal = causal;
    const Flash f(o, rng);
    auto peak = [&](int64_t n) {
      const Tensor x = random_tensor({1, n, 4}, f32, rand), mask = ones({1, n}) > 0.0;
      const int64_t before = memory_stats().live;
      reset_peak_memory();
      backward(sum(square(f(x, {.key_mask = mask}))));
      return memory_stats().peak - before;
    };
    peak(64);  // buffers that stay
    const int64_t small = peak(1024), large = peak(4096);
    INFO("peak of n = 1024: " << small << ", of 4096: " << large << " bytes");
    CHECK(static_cast<double>(large) < 5 * static_cast<double>(small));
    CHECK(large < 4096 * 4096);  // a quarter of one n×n tensor
  }
}

TEST_CASE("flash: a chunk longer than the sequence takes no more memory than one of its length", "[flash][identity]") {
  Rng rng(1);
  Rand rand(12);
  const Tensor x = random_tensor({1, 20, 4}, f32, rand);
  for (const Tensor& segments : {Tensor(), zeros({1, 20}, {i64})}) {
    const auto peak = [&](int64_t chunk) {
      const Flash f({.dim = 4, .expansion = 4, .key_dim = 4, .chunk = chunk}, rng);
      const int64_t before = memory_stats().live;
      reset_peak_memory();
      backward(sum(square(f(x, {.segments = segments}))));
      return memory_stats().peak - before;
    };
    peak(20);  // buffers that stay
    const int64_t fits = peak(20), longer = peak(1 << 20);
    INFO("peak of chunk = n: " << fits << ", of 2^20: " << longer << " bytes");
    CHECK(longer < 2 * fits);
  }
}
