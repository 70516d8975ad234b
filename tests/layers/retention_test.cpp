// Retention and GroupNorm against loops: options, padding, errors.
#include "layers/linear_attention_reference.h"

#include <sluice/autograd/engine.h>
#include <sluice/ops/create.h>
#include <sluice/ops/reduce.h>

using namespace sluice;
using namespace sluice::testing;

namespace {

/// Each group of a row normalised, then scaled and shifted channel by channel.
Matrix group_norm_reference(const GroupNorm& norm, Matrix x) {
  const auto width = static_cast<std::size_t>(norm.options.dim);
  for (auto& row : x)
    for (std::size_t first = 0; first < row.size(); first += width) {
      double mean = 0, square = 0;
      if (norm.options.kind == NormKind::layer)
        for (std::size_t c = first; c < first + width; ++c) mean += row[c] / static_cast<double>(width);
      for (std::size_t c = first; c < first + width; ++c)
        square += (row[c] - mean) * (row[c] - mean) / static_cast<double>(width);
      for (std::size_t c = first; c < first + width; ++c) {
        row[c] = (row[c] - mean) / std::sqrt(square + norm.options.eps);
        if (norm.weight.defined()) row[c] *= norm.weight.to_vector<double>()[norm.options.shared ? c - first : c];
        if (norm.bias.defined()) row[c] += norm.bias.to_vector<double>()[norm.options.shared ? c - first : c];
      }
    }
  return x;
}

Matrix layer_reference(const Retention& r, Matrix x, const std::vector<bool>& real) {
  const RetentionOptions& o = r.options;
  for (std::size_t i = 0; i < x.size(); ++i)
    if (!real[i]) x[i].assign(x[i].size(), 0.0);
  const auto heads = static_cast<std::size_t>(o.heads);
  Matrix qs = linear_reference(r.heads.q, x), ks = linear_reference(r.heads.k, x), vs = linear_reference(r.heads.v, x);
  convolved_reference(r.conv, qs, ks, vs, real);
  const auto kv_heads = static_cast<std::size_t>(o.kv_heads);
  Matrix all;
  for (std::size_t h = 0; h < heads; ++h) {
    const std::size_t kv = h / (heads / kv_heads);
    Matrix q = head_columns(qs, h, heads), k = head_columns(ks, kv, kv_heads);
    const double width = static_cast<double>(q.empty() ? 1 : q[0].size());
    if (o.use_rope) q = rope_reference(q, o.rope), k = rope_reference(k, o.rope.of_keys());
    const double gamma = o.gamma[h];
    const LinearAttentionForm f{.direction = LinearDirection::causal, .normalize = LinearNormalize::none,
                                .scale = 1 / std::sqrt(width)};
    all =
        beside(all, pairs_reference({q, k, head_columns(vs, kv, kv_heads), Matrix(x.size(), {std::log(gamma)}), real}, f));
  }
  all = group_norm_reference(r.norm, all);
  if (o.gate) all = swish_gated_reference(r.output_gate, all, x);
  return linear_reference(r.heads.out, all);
}
Tensor layer_reference(const Retention& r, const Tensor& x, const Tensor& key_mask) {
  return each_sequence(
      x, key_mask, [&](const Matrix& m, const std::vector<bool>& real) { return layer_reference(r, m, real); });
}

std::vector<RetentionOptions> samples() {
  RetentionOptions base{.dim = 4, .heads = 2};
  base.dtype = f64, base.chunk = 3;
  std::vector<RetentionOptions> all(11, base);
  all[1].gamma = {0.9, 0.5};
  all[2].gate = false, all[2].use_rope = false;
  all[3].group_norm = NormKind::rms, all[3].gamma = {1, 0.7};
  all[4].group_norm = NormKind::rms_plain, all[4].gate = false;
  all[5].rope.pairing = RopePairing::interleaved, all[5].rope.offset = 3;
  all[6].expand_k = 2, all[6].expand_v = 1.5;
  all[7].heads = 1, all[7].expand_k = 0.5;
  all[8].norm_eps = 0.1;
  all[9].kv_heads = 1, all[9].short_conv = 3, all[9].shared_norm = true, all[9].rope.xpos = 6;
  all[10].heads = 4, all[10].kv_heads = 2, all[10].use_rope = false, all[10].short_conv = 2, all[10].group_norm = NormKind::rms;
  all[10].shared_norm = true;
  return all;
}

Retention make(const RetentionOptions& o, Rand& rand) {
  Rng rng(1);
  return randomised(Retention(o, rng), rand);
}

}  // namespace

TEST_CASE("GroupNorm: against loops", "[retention]") {
  for (NormKind kind : {NormKind::layer, NormKind::rms, NormKind::rms_plain})
    for (int64_t groups : {1, 2, 3}) {
      Rand rand(1);
      const GroupNorm norm = randomised(GroupNorm({groups, 3, kind, 1e-3, f64}), rand);
      const Tensor x = random_tensor({5, 3 * groups}, f64, rand), y = norm(unsqueeze(x, 0));
      const Matrix want = group_norm_reference(norm, matrix_of(x)), got = matrix_of(select(y, 0, 0));
      for (std::size_t i = 0; i < want.size(); ++i)
        for (std::size_t c = 0; c < want[i].size(); ++c) CHECK(got[i][c] == Approx(want[i][c]).epsilon(1e-12));
    }
  CHECK_THROWS_WITH(GroupNorm({2, 3})(ones({4, 5})), Contains("[4,5]") && Contains("6"));
  CHECK_THROWS_AS(GroupNorm({0, 3}), ValueError);
  CHECK_THROWS_WITH(GroupNorm({2, 3, NormKind::scale}), Contains("rms_plain"));
}

TEST_CASE("Retention: every option against loops", "[retention]") {
  for (const RetentionOptions& o : samples()) {
    Rand rand(2);
    const Retention r = make(o, rand);
    const Tensor x = random_tensor({2, 8, 4}, f64, rand), want = layer_reference(r, x, {});
    CHECK(max_abs_diff(r(x), want) < 1e-10);
    for (int64_t chunk : {1, 4, 5, 7, 12, 64}) {
      Retention other = r;
      other.options.chunk = chunk;
      CHECK(max_abs_diff(other(x), want) < 1e-10);
    }
    const Tensor mask = prefix_mask(8, 8, 4);
    CHECK(max_abs_diff(real_rows(r(x, {.key_mask = mask}), mask), real_rows(layer_reference(r, x, mask), mask)) <
          1e-10);
    const Tensor one = random_tensor({2, 1, 4}, f64, rand);
    CHECK(max_abs_diff(r(one), layer_reference(r, one, {})) < 1e-10);
    // Padding before the first token of a sequence, too; it moves positions, so without rope.
    if (o.use_rope) continue;
    const Tensor front = cat({full({2, 2, 4}, std::nan(""), {f64}), x}, 1);
    CHECK(max_abs_diff(narrow(r(front, {.key_mask = cat({zeros({2, 2}), ones({2, 8})}, 1) > 0.0}), 1, 2, 8), r(x)) <
          1e-12);
  }
}

TEST_CASE("Retention: defaults, counts, errors", "[retention]") {
  Rng rng(1);
  const Retention r({.dim = 64}, rng);
  CHECK(r.key_dim() == 8);
  CHECK(r.value_dim() == 16);
  CHECK(count(r) == 64 * 64 * (1 + 1 + 2 + 2 + 2) + 2 * 128);  // GroupNorm: 128 channels
  for (std::size_t h = 0; h < 8; ++h) {
    CHECK(r.options.gamma[h] == 1 - std::pow(2.0, -5.0 - static_cast<double>(h)));
    CHECK(std::exp(r.log_gamma.to_vector<double>()[h]) == Approx(r.options.gamma[h]).epsilon(1e-7));
  }
  CHECK_FALSE(r.log_gamma.requires_grad());
  CHECK_THROWS_AS(Retention({.dim = 0}, rng), ValueError);
  CHECK_THROWS_WITH(Retention({.dim = 8, .heads = 3}, rng), Contains("heads=3") && Contains("expand_k"));
  CHECK_THROWS_WITH(Retention({.dim = 8, .heads = 2, .expand_v = 0.3}, rng), Contains("expand_v"));
  CHECK_THROWS_WITH(Retention({.dim = 8, .heads = 8}, rng), Contains("pairs"));
  CHECK_NOTHROW(Retention({.dim = 8, .heads = 8, .use_rope = false}, rng));
  CHECK_THROWS_WITH(Retention({.dim = 8, .heads = 2, .gamma = {0.5}}, rng), Contains("heads=2"));
  CHECK_THROWS_WITH(Retention({.dim = 8, .heads = 2, .gamma = {0.5, 0}}, rng), Contains("(0, 1]"));
  CHECK_THROWS_WITH(r(ones({2, 3, 5})), Contains("[2,3,5]") && Contains("64"));
  CHECK_THROWS_WITH(r(ones({2, 3, 64}), {.key_mask = ones({2, 4}) > 0.0}), Contains("[2,4]"));
}
