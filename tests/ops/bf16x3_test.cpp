// attention() of f32 on AMX, in three parts of bf16: operands of every size, errors no larger than those of
// multiply-adds, what is not finite where these have it, and bits that no later token and no thread changes.
#include "ops/gemm_samples.h"
#include "support/attention_samples.h"
#include "support/catch.h"

#include <sluice/core/kernel/parallel.h>
#include <sluice/ops/attention/attention_reference.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/gemm/bf16x3.h>
#include <sluice/ops/shape/view.h>

using namespace sluice;
using namespace sluice::detail;
using namespace sluice::testing;

namespace {

/// Memory that holds NaN: what is not written shows.
Tensor nans(int64_t floats) { return full({std::max<int64_t>(floats, 16)}, NAN); }

/// All of a, and of b the columns from `col` on; a's k are b's from first_k on.
void multiply(const Product<float>& p, int64_t first_k, int64_t k_of_b, int64_t col) {
  const Tensor for_a = nans(Bf16x3::size(p.n, p.k)), for_b = nans(Bf16x3::size(p.m + col, k_of_b));
  const Bf16x3 a(p.n, p.k, for_a.raw()), b(p.m + col, k_of_b, for_b.raw());
  CHECK(a.fill_a(p.ta, p.a, p.lda));
  CHECK(b.fill_b(p.tb, p.b, p.ldb));
  b.multiply(a, first_k, col, p.m, p.alpha, p.beta, p.c, p.ldc);
}

double rms(const Tensor& got, const Tensor& want) {
  const Tensor g = contiguous(to(got, f64)), w = contiguous(want);
  double sum = 0;
  for (int64_t i = 0; i < g.numel(); ++i) sum += std::pow(g.data<double>()[i] - w.data<double>()[i], 2);
  return std::sqrt(sum / static_cast<double>(g.numel()));
}

}  // namespace

TEST_CASE("parts: every size, reading, factor and place", "[gemm][amx]") {
  if (isa() < Isa::amx) return;
  std::vector<Sizes> sizes;
  for (int64_t n : {1, 15, 16, 17, 31, 32, 33, 47, 48, 65, 129}) sizes.push_back({n, 37, 70});
  for (int64_t m : {1, 15, 16, 17, 31, 32, 33, 48, 49, 65, 129}) sizes.push_back({35, m, 66});
  for (int64_t k : {1, 2, 15, 16, 17, 31, 32, 33, 47, 48, 64, 65, 127, 128, 129, 160, 257, 513})
    sizes.push_back({37, 35, k});
  int wrong = 0;
  for (const Sizes& s : sizes)
    for (Trans ta : kTrans)
      for (Trans tb : kTrans)
        for (int64_t gap : {0, 3})
          for (auto [first_k, more_k, col] : {std::tuple{0, 0, 0}, {32, 0, 16}, {64, 5, 48}}) {
            const int64_t k_of_b = first_k + (s.k + 31) / 32 * 32 * (more_k > 0) + (more_k > 0 ? more_k : s.k);
            if (more_k > 0 && s.k % 32 != 0) continue;  // a's last step would meet more of b
            Sample<float> x(s, ta, tb, gap), whole({1, s.m + col, k_of_b}, Trans::no, tb, gap, true, 7);
            Product<float> p = x.product(1, 0, x.c);
            p.ldb = whole.ldb;
            // Two parts on one side: up to 3 · 2045, and all sums below 2²⁴.
            const std::size_t count = Sample<float>::count(tb == Trans::no ? k_of_b : s.m + col,
                                                           tb == Trans::no ? s.m + col : k_of_b, whole.ldb);
            for (std::size_t i = 0; i < count; ++i) whole.b.data()[i] *= static_cast<float>(1 + 7 * (i % 110));
            for (auto [alpha, beta] : {std::pair{1.0f, 0.0f}, {1.0f, 1.0f}, {2.0f, -0.5f}}) {
              std::vector<float> expected = x.c, c = x.c;
              p.alpha = alpha, p.beta = beta;
              p.b = whole.b.data() + (tb == Trans::no ? first_k * p.ldb + col : col * p.ldb + first_k),
              p.c = expected.data();
              gemm_naive(p);
              p.b = whole.b.data(), p.c = c.data();
              multiply(p, first_k, k_of_b, col);
              if (same(c, expected)) continue;
              ++wrong;
              UNSCOPED_INFO(s.n << " × " << s.m << " × " << s.k << (ta == Trans::no ? " n" : " t")
                                << (tb == Trans::no ? "n" : "t") << " gap " << gap << " alpha " << alpha << " from "
                                << first_k << ", " << col);
            }
          }
  CHECK(wrong == 0);
  for (float odd : {0x1p56f, -0x1p56f, INFINITY, NAN}) {
    Sample<float> x({17, 1, 33}, Trans::no, Trans::no, 0);
    const Tensor memory = nans(Bf16x3::size(17, 33));
    CHECK(Bf16x3(17, 33, memory.raw()).fill_a(Trans::no, x.a.data(), 33));
    x.a.data()[17 * 33 - 1] = odd;
    CHECK_FALSE(Bf16x3(17, 33, memory.raw()).fill_a(Trans::no, x.a.data(), 33));
    CHECK_FALSE(Bf16x3(17, 33, memory.raw()).fill_b(Trans::yes, x.a.data(), 33));
  }
}

TEST_CASE("attention in parts: equals its definition, with errors no larger than those of multiply-adds",
          "[attention][amx]") {
  if (isa() < Isa::amx) return;
  Rand rand(31);
  double error = 0, usual = 0;
  for (Weighting weighting : kWeightings)
    for (auto [m, n, d, dv] : {std::tuple{300, 300, 33, 65}, {129, 577, 65, 33}, {65, 65, 24, 129}})
      for (bool causal : {false, true}) {
        AttentionSample s = plain_attention(rand, {1, 4, m, d}, 2, n, dv);
        s.options.weighting = weighting, s.options.mask.causal = causal;
        if (m == 300) s.options.mask.window = 97;
        const std::vector<Tensor> want = run_attention(attention_reference, s),
                                  got = run_attention(attention, s.in(f32));
        const std::vector<Tensor> chain = with_isa(Isa::avx512, [&] { return run_attention(attention, s.in(f32)); });
        check_all_close(got, want, 4e-6, 2e-5, s.text());
        for (std::size_t i = 0; i < 4; ++i) {
          CHECK_FALSE(same_bits(got[i], chain[i]));  // it is another way
          error += std::log(rms(got[i], want[i])), usual += std::log(rms(chain[i], want[i]));
        }
      }
  INFO("geometric mean of errors: " << std::exp((error - usual) / 120) << " of those of multiply-adds");
  CHECK(error < usual);
}

TEST_CASE("attention in parts: what is not finite is where multiply-adds have it", "[attention][amx]") {
  if (isa() < Isa::amx) return;
  Rand rand(33);
  const int64_t n = 150, at = 101;
  const float most = std::numeric_limits<float>::max();
  const Tensor there_only = reshape(arange(n), {n, 1}) == static_cast<double>(at),
               before = reshape(arange(n), {n, 1}) >= static_cast<double>(at);
  for (Weighting weighting : {Weighting::softmax, Weighting::relu2, Weighting::linear})
    for (bool causal : {false, true}) {
      AttentionSample clean = plain_attention(rand, {1, 2, n, 40}, 1, n, 33).in(f32);
      clean.options.weighting = weighting, clean.options.mask.causal = causal;
      const Tensor g = random_tensor({1, 2, n, 33}, f32, rand);
      const std::vector<Tensor> usual = run_attention(attention, clean, g);
      for (float odd : {INFINITY, -INFINITY, NAN, most, -most, 1e30f, 0x1p55f})
        for (int which = 0; which < 4; ++which) {
          AttentionSample s = clean;
          Tensor cotangent = g;
          Tensor* const x[] = {&s.q, &s.k, &s.v, &cotangent};
          const Tensor corner =
              logical_and(there_only, reshape(arange(x[which]->dim(3)), {1, x[which]->dim(3)}) == 17.0);
          *x[which] = filled(*x[which], corner, odd);
          const std::vector<Tensor> got = run_attention(attention, s, cotangent);
          const std::vector<Tensor> want =
              with_isa(Isa::avx512, [&] { return run_attention(attention, s, cotangent); });
          INFO(s.text() << " " << odd << " in operand " << which);
          for (std::size_t r = 0; r < 4; ++r) {
            int kind = 0, far = 0;
            double size = 1e-3;
            const Tensor a = contiguous(got[r]), b = contiguous(want[r]);
            for (int64_t i = 0; i < a.numel(); ++i)
              if (std::isfinite(b.data<float>()[i])) size = std::max<double>(size, std::abs(b.data<float>()[i]));
            for (int64_t i = 0; i < a.numel(); ++i) {
              const float y = a.data<float>()[i], w = b.data<float>()[i];
              kind += std::isfinite(w) ? !std::isfinite(y) : std::isnan(w) ? !std::isnan(y) : y != w;
              far += std::isfinite(w) && !(std::abs(y - w) <= 1e-5 * size);
            }
            INFO("result " << r);
            CHECK(kind == 0);
            // A row that one key has all of has dS = P (dP − δ) = 0, up to rounding; that times a huge number is
            // anything.
            if (weighting != Weighting::softmax || which > 1 || !std::isfinite(odd) || r == 0 || r == 3)
              CHECK(far == 0);
          }
          // Rows before it see nothing of it, and of dq only those of the operands that they see.
          if (causal && which < 3)
            for (std::size_t r : {0, 1})
              CHECK(same_bits(masked_fill(got[r], before, 0), masked_fill(usual[r], before, 0)));
        }
    }
}

TEST_CASE("attention in parts: later tokens change no bit of earlier rows", "[attention][amx][bits]") {
  if (isa() < Isa::amx) return;
  Rand rand(35);
  for (Weighting weighting : {Weighting::softmax, Weighting::relu2, Weighting::linear})
    for (int64_t n : {65, 130, 300})
      for (int64_t tile : {0, 48}) {
        AttentionSample s = plain_attention(rand, {1, 2, n, 24}, 1, n, 25).in(f32);
        s.options.weighting = weighting, s.options.mask.causal = true;
        s.options.tile_rows = s.options.tile_cols = tile;
        if (n == 130) s.options.mask.window = 41;
        const Tensor g = random_tensor({1, 2, n, 25}, f32, rand);
        const std::vector<Tensor> y = run_attention(attention, s, g);
        for (int64_t t : {int64_t{1}, n / 2, n - 1})
          for (double value : {3.0, 1e30, static_cast<double>(INFINITY), static_cast<double>(NAN)}) {
            const Tensor later = reshape(arange(n), {n, 1}) >= static_cast<double>(t);
            AttentionSample changed = s;
            for (Tensor* x : {&changed.q, &changed.k, &changed.v}) *x = filled(*x, later, value);
            const std::vector<Tensor> got = run_attention(attention, changed, g);
            INFO(s.text() << " from token " << t << " on " << value);
            for (std::size_t r : {0, 1}) CHECK(same_bits(narrow(got[r], 2, 0, t), narrow(y[r], 2, 0, t)));
            CHECK_FALSE(same_bits(narrow(got[0], 2, t, n - t), narrow(y[0], 2, t, n - t)));
          }
      }
}

TEST_CASE("attention in parts: the same bits for any number of threads, and for heads alone",
          "[attention][amx][bits]") {
  if (isa() < Isa::amx) return;
  Rand rand(37);
  const int threads = num_threads();
  for (auto [heads, n] : {std::pair{6, 300}, {1, 1300}})  // each head a thread's own, or packed by all
    for (bool causal : {false, true}) {
      AttentionSample s = plain_attention(rand, {1, heads, n, 33}, heads, n, 40).in(f32);
      s.options.mask.causal = causal;
      const Tensor g = random_tensor({1, heads, n, 40}, f32, rand);
      set_num_threads(1);
      const std::vector<Tensor> one = run_attention(attention, s, g);
      set_num_threads(5);
      const std::vector<Tensor> five = run_attention(attention, s, g);
      AttentionSample last = s;
      for (Tensor* x : {&last.q, &last.k, &last.v}) *x = narrow(*x, 1, heads - 1, 1);
      const std::vector<Tensor> alone = run_attention(attention, last, narrow(g, 1, heads - 1, 1));
      set_num_threads(threads);
      for (std::size_t r = 0; r < 4; ++r) CHECK(same_bits(one[r], five[r]));
      CHECK(same_bits(narrow(one[0], 1, heads - 1, 1), alone[0]));
    }
}
