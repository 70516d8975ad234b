// What stands behind a mask stays there: rows without keys are 0, NaN and infinities reach nobody who must not see
// them, later tokens change no earlier row.
#include "support/attention_samples.h"
#include "support/catch.h"

#include <sluice/ops/shape/create.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/rows/reduce.h>
#include <sluice/ops/shape/view.h>

#include <cmath>

using namespace sluice;
using namespace sluice::testing;

namespace {

/// The same bits, or where NaN and infinities lie behind the mask, the same up to rounding: such tiles may be
/// multiplied in another order.
void check_unmoved(const std::vector<Tensor>& got, const std::vector<Tensor>& want, double junk,
                   const std::string& text) {
  if (std::isfinite(junk)) check_all_same(got, want, text);
  else check_all_close(got, want, got[0].dtype() == f64 ? 1e-14 : 3e-6, got[0].dtype() == f64 ? 1e-13 : 1e-5, text);
}
/// Rows of q, and of k and v, that no pair of the mask touches: [batch, heads, m, 1] and [batch, kv_heads, n, 1].
struct Unseen {
  Tensor queries, keys;
  explicit Unseen(const AttentionSample& s) {
    const Tensor visible = s.visible();
    const int64_t kv_heads = s.k.dim(1), group = s.q.dim(1) / kv_heads;
    queries = logical_not(any(visible, {3}, keep));
    keys = logical_not(unsqueeze(any(unflatten(any(visible, {2}), 1, {kv_heads, group}), {2}), -1));
  }
};

}  // namespace

TEST_CASE("attention: a row that sees nothing is 0, and so are its gradients", "[attention][mask]") {
  Rand rand(9);
  for (int i = 0; i < 80; ++i) {
    AttentionSample s = random_attention(rand, {.sizes = {1, 2, 5, 17, 40}});
    s.options.mask.keys = tensor_of({0}, {1, 1}, boolean);
    s.options.mask.keys = contiguous(expand(s.options.mask.keys, {1, s.k.dim(2)}));
    for (DType dtype : {f64, f32})
      for (const Tensor& x : run_attention(attention, s.in(dtype))) CHECK(max_abs(x) == 0);
  }
  // Some rows only: more queries than keys, and padding of one sequence.
  for (Weighting weighting : kWeightings) {
    AttentionSample s = plain_attention(rand, {2, 2, 20, 3}, 2, 13, 4);
    s.options.weighting = weighting, s.options.mask.causal = true;
    s.options.mask.keys = tensor_of({0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0}, {1, 13}, boolean);
    const Tensor blind = Unseen(s).queries;
    REQUIRE(sum(blind).item() == 2 * 2 * 8);
    for (DType dtype : {f64, f32}) {
      const std::vector<Tensor> r = run_attention(attention, s.in(dtype));
      for (const Tensor& x : {r[0], r[1]}) CHECK(max_abs(masked_fill(x, logical_not(blind), 0)) == 0);
      if (weighting == Weighting::softmax) CHECK(all(logical_or(r[0] != zeros_like(r[0]), blind)).item() == 1);
    }
  }
}

TEST_CASE("attention: NaN and infinities that nobody sees change nothing", "[attention][mask]") {
  Rand rand(10);
  int poisoned = 0;
  for (int i = 0; i < 300; ++i) {
    AttentionSample clean = random_attention(rand, {.sizes = {1, 3, 8, 17, 40}});
    if (i % 2 == 0)
      clean.options.mask.keys =
          clean.options.mask.keys.defined() ? clean.options.mask.keys : tensor_of({0}, {1, 1}, boolean);
    if (clean.options.mask.keys.defined() && clean.options.mask.keys.dim(1) != clean.k.dim(2)) {
      std::vector<double> real(static_cast<std::size_t>(clean.k.dim(2)));
      for (double& x : real) x = rand.below(3) > 0;
      clean.options.mask.keys = tensor_of(real, {1, clean.k.dim(2)}, boolean);
    }
    const Unseen unseen(clean);
    poisoned += any(unseen.keys).item() != 0 || any(unseen.queries).item() != 0;
    const Tensor hidden = logical_not(clean.visible());
    auto with = [&](double junk) {
      AttentionSample s = clean;
      s.q = filled(s.q, unseen.queries, junk), s.k = filled(s.k, unseen.keys, junk),
      s.v = filled(s.v, unseen.keys, junk);
      if (s.options.bias.defined() && s.options.bias.shape() == hidden.shape())
        s.options.bias = filled(s.options.bias, hidden, junk);
      return s;
    };
    for (DType dtype : {f64, f32})
      for (const bool recorded : {false, true}) {
        const std::vector<Tensor> want = run_attention(attention, with(0).in(dtype), {}, recorded);
        for (double junk :
             {static_cast<double>(NAN), static_cast<double>(INFINITY), -static_cast<double>(INFINITY), 1e30}) {
          const std::vector<Tensor> got = run_attention(attention, with(junk).in(dtype), {}, recorded);
          check_unmoved(got, want, junk,
                        clean.text() + str(" junk ", junk, " ", name_of(dtype), recorded ? " recorded" : ""));
          for (const Tensor& x : got) CHECK(all_finite(x));
          for (std::size_t g : {2, 3}) CHECK(max_abs(masked_fill(got[g], logical_not(unseen.keys), 0)) == 0);
        }
      }
  }
  CHECK(poisoned > 150);
}

TEST_CASE("attention: NaN in one key reaches the rows that see it, and no other", "[attention][mask]") {
  Rand rand(11);
  int checked = 0;
  for (int i = 0; i < 200; ++i) {
    AttentionSample clean =
        random_attention(rand, {.sizes = {2, 3, 8, 17, 40}, .batch = 2, .kv_heads = 2, .group = 2, .width = 5});
    clean.options.mask.causal |= i % 2 == 0;
    const int64_t n = clean.k.dim(2), kv_heads = clean.k.dim(1), group = clean.q.dim(1) / kv_heads, j = rand.below(n);
    const Tensor column = reshape(arange(n), {n, 1}) == static_cast<double>(j);
    const Tensor sees = narrow(clean.visible(), 3, j, 1);  // [batch, heads, m, 1]
    if (all(sees).item() != 0) continue;
    ++checked;
    for (double junk : {static_cast<double>(NAN), static_cast<double>(INFINITY)})
      for (DType dtype : {f64, f32}) {
        AttentionSample dirty = clean;
        dirty.k = filled(dirty.k, column, junk), dirty.v = filled(dirty.v, column, junk);
        // The loss reads only rows that do not see the key.
        Rand same(3);
        const Tensor all_rows =
            random_tensor({clean.q.dim(0), clean.q.dim(1), clean.q.dim(2), clean.v.dim(3)}, dtype, same);
        const Tensor cotangent = filled(all_rows, sees, 0);
        const std::vector<Tensor> want = run_attention(attention, clean.in(dtype), cotangent),
                                  got = run_attention(attention, dirty.in(dtype), cotangent);
        const std::string text = clean.text() + str(" key ", j, " junk ", junk, " ", name_of(dtype));
        check_unmoved({masked_fill(got[0], sees, 0), masked_fill(got[1], sees, 0)},
                      {masked_fill(want[0], sees, 0), masked_fill(want[1], sees, 0)}, junk, text);
        if (clean.options.weighting == Weighting::softmax && clean.options.dropout == 0 && std::isnan(junk))
          CHECK(all(logical_or(logical_not(sees), isnan(got[0]))).item() == 1);
        // Keys that share no row with the bad one get the same gradients.
        const Tensor bad_rows = logical_and(clean.visible(), sees);  // broadcasts along keys
        const Tensor touched = unsqueeze(any(unflatten(any(bad_rows, {2}), 1, {kv_heads, group}), {2}), -1);
        check_unmoved({masked_fill(got[2], touched, 0), masked_fill(got[3], touched, 0)},
                      {masked_fill(want[2], touched, 0), masked_fill(want[3], touched, 0)}, junk,
                      text + ", gradients of k and v");
      }
  }
  CHECK(checked > 100);
}

TEST_CASE("attention: a document full of NaN leaves the others alone", "[attention][mask]") {
  Rand rand(12);
  for (Weighting weighting : kWeightings)
    for (bool causal : {false, true})
      for (int64_t tile : {0, 5, 16})
        for (DType dtype : {f64, f32}) {
          AttentionSample clean = plain_attention(rand, {1, 2, 40, 3}, 1, 40, 4).in(dtype);
          AttentionOptions& o = clean.options;
          o.weighting = weighting, o.mask.causal = causal, o.tile_rows = o.tile_cols = tile;
          std::vector<double> document(40);
          for (std::size_t i = 0; i < 40; ++i) document[i] = i < 13 ? 0 : i < 29 ? 1 : 2;
          o.mask.query_segments = o.mask.key_segments = tensor_of(document, {1, 40}, i64);
          const Tensor bad = reshape(o.mask.key_segments, {40, 1}) == 1.0;
          AttentionSample dirty = clean;
          for (Tensor* x : {&dirty.q, &dirty.k, &dirty.v}) *x = filled(*x, bad, NAN);
          Rand same(3);
          const Tensor cotangent = filled(random_tensor({1, 2, 40, 4}, dtype, same), bad, 0);
          const std::vector<Tensor> want = run_attention(attention, clean, cotangent),
                                    got = run_attention(attention, dirty, cotangent);
          for (std::size_t i = 0; i < 4; ++i)
            check_unmoved({masked_fill(got[i], bad, 0)}, {masked_fill(want[i], bad, 0)}, NAN,
                          clean.text() + str(" result ", i));
        }
}

TEST_CASE("attention: later tokens change no bit of earlier rows", "[attention][bits]") {
  Rand rand(17);
  for (Weighting weighting : kWeightings)
    for (int64_t n : {5, 17, 65, 130, 300})
      for (int64_t tile : {0, 1, 16, 64})
        for (DType dtype : {f64, f32}) {
          if (tile == 1 && n > 65) continue;
          AttentionSample s = plain_attention(rand, {1, 2, n, 4}, 1, n, 3).in(dtype);
          s.options.weighting = weighting, s.options.mask.causal = true;
          s.options.tile_rows = s.options.tile_cols = tile;
          if (n == 65) s.options.mask.window = 9;
          const Tensor y = attention(s.q, s.k, s.v, s.options);
          for (int64_t t : {int64_t{1}, n / 2, n - 1})
            for (double value : {3.0, 1e30, static_cast<double>(NAN)}) {
              const Tensor later = reshape(arange(n), {n, 1}) >= static_cast<double>(t);
              const Tensor changed =
                  attention(filled(s.q, later, value), filled(s.k, later, value), filled(s.v, later, value), s.options);
              INFO(s.text() << " from token " << t << " on " << value);
              check_unmoved({narrow(changed, 2, 0, t)}, {narrow(y, 2, 0, t)}, value, s.text());
              CHECK_FALSE(same_bits(narrow(changed, 2, t, n - t), narrow(y, 2, t, n - t)));
            }
        }
}
