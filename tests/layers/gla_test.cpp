// Gated linear attention: its three forms, its limits. linear_layers_reference.cpp says what the layer computes.
#include "layers/linear_attention_reference.h"
#include "support/identities.h"
#include "support/linear_stream.h"

#include <sluice/autograd/gradcheck.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/rows/reduce.h>

using namespace sluice;
using namespace sluice::testing;

namespace {

LinearAttentionForm gated(const Tensor& log_decay, int64_t chunk = 64) {
  return {.direction = LinearDirection::causal,
          .normalize = LinearNormalize::none,
          .scale = 0.6,
          .log_decay = log_decay,
          .chunk = chunk};
}

}  // namespace

TEST_CASE("GLA: recurrent = parallel = chunked", "[gla][identity]") {
  Rand rand(1);
  const int64_t n = 13;
  const Tensor q = random_tensor({2, 2, n, 4}, f64, rand), k = random_tensor({2, 2, n, 4}, f64, rand);
  const Tensor v = random_tensor({2, 2, n, 5}, f64, rand);
  for (const Tensor& log_alpha :
       {random_tensor({2, 2, n, 4}, f64, rand, -1, 0), random_tensor({2, 2, n}, f64, rand, -1, 0)}) {
    const Tensor parallel = linear_attention_by_pairs(q, k, v, gated(log_alpha));
    check_identity("GLA: recurrent = parallel = chunked", linear_attention_by_steps(q, k, v, gated(log_alpha)),
                   parallel, 1e-12);
    for (int64_t chunk : {1, 4, 5, 7, 12, 64})
      check_identity("GLA: recurrent = parallel = chunked", linear_attention(q, k, v, gated(log_alpha, chunk)),
                     parallel, 1e-12);
    check_identity("GLA: recurrent = parallel = chunked", linear_attention_streamed(q, k, v, gated(log_alpha)),
                   parallel, 1e-12);
  }
}

TEST_CASE("GLA: its limits", "[gla][identity]") {
  Rand rand(2);
  const Tensor q = random_tensor({2, 3, 11, 4}, f64, rand), k = random_tensor({2, 3, 11, 4}, f64, rand);
  const Tensor v = random_tensor({2, 3, 11, 5}, f64, rand);
  const Tensor none = linear_attention(q, k, v, gated({}, 4));
  check_identity("GLA: alpha = 1 is causal linear attention",
                 linear_attention(q, k, v, gated(zeros({2, 3, 11, 4}, {f64}), 4)), none, 1e-12);
  check_identity("GLA: alpha = 1 is causal linear attention",
                 linear_attention(q, k, v, gated(zeros({2, 3, 11}, {f64}), 4)), none, 1e-12);
  const Tensor log_gamma = log(Tensor::from(retention_gammas(3)));
  const Tensor retention = linear_attention_by_pairs(q, k, v, gated(reshape(log_gamma, {1, 3, 1})));
  check_identity("GLA: alpha = gamma is retention",
                 linear_attention(q, k, v, gated(expand(reshape(log_gamma, {1, 3, 1, 1}), {2, 3, 11, 4}), 4)),
                 retention, 1e-12);
  check_identity("GLA: alpha = gamma is retention",
                 linear_attention(q, k, v, gated(expand(reshape(log_gamma, {1, 3, 1}), {2, 3, 11}), 4)), retention,
                 1e-12);
  CHECK(max_abs_diff(retention, none) > 1e-2);
}

TEST_CASE("GLA: the two layers agree where they must", "[gla][identity]") {
  // A GLA whose gate does not look at the token is a Retention without rope.
  Rand rand(3);
  Rng rng(1);
  RetentionOptions r{.dim = 6, .heads = 2, .expand_v = 1, .gamma = {0.9, 0.6}};
  r.use_rope = false, r.group_norm = NormKind::rms_plain, r.chunk = 4, r.dtype = f64;
  const Retention retention = randomised(Retention(r, rng), rand);
  for (GlaGate gate : {GlaGate::per_head, GlaGate::per_channel}) {
    GlaOptions o{.dim = 6, .heads = 2, .expand_k = 1, .gate = gate, .gate_temperature = 1, .norm = NormKind::rms_plain};
    o.chunk = 4, o.dtype = f64;
    Gla gla(o, rng);
    gla.heads.q = retention.heads.q, gla.heads.k = retention.heads.k, gla.heads.v = retention.heads.v,
    gla.heads.out = retention.heads.out;
    gla.output_gate = retention.output_gate;
    gla.gate_up.weight = zeros(gla.gate_up.weight.shape(), {f64});
    const int64_t width = gla.gate_up.bias.dim(0) / 2;
    const Tensor gamma = Tensor::from(std::vector<double>{0.9, 0.6});
    gla.gate_up.bias = repeat_interleave(log(gamma / (1.0 - gamma)), width, 0);
    const Tensor x = random_tensor({2, 9, 6}, f64, rand);
    check_identity("GLA: alpha = gamma is retention", gla(x), retention(x), 1e-12);
  }
}

TEST_CASE("GLA: the gate's logarithm is exact where the gate rounds to 0 or 1", "[gla]") {
  const Tensor z = Tensor::from(std::vector<double>{-800, -40, -1, 0, 1, 40, 800});
  const std::vector<double> got = gla_log_decay(z).to_vector<double>();
  const double want[] = {-50,
                         -2.5,
                         -std::log1p(std::exp(1.0)) / 16,
                         -std::log(2.0) / 16,
                         -std::log1p(std::exp(-1.0)) / 16,
                         -std::exp(-40.0) / 16,
                         0};
  for (std::size_t i = 0; i < 7; ++i) CHECK(got[i] == Approx(want[i]).epsilon(1e-14).margin(1e-300));
  CHECK(all(isfinite(gla_log_decay(to(z, f32)))).item() == 1);
  const Tensor in = Tensor::from(std::vector<double>{-3, -0.5, 0, 0.7, 4}).requires_grad_();
  const TensorFunction f = [](const std::vector<Tensor>& x) { return gla_log_decay(x[0], 4); };
  CHECK(gradcheck(f, {in}).ok);
  CHECK(gradgradcheck(f, {in}).ok);
  CHECK_THROWS_WITH(gla_log_decay(z, 0), Contains("temperature"));
}

TEST_CASE("Gla: defaults, counts, errors", "[gla]") {
  Rng rng(1);
  const Gla g({.dim = 64}, rng);
  CHECK(g.options.heads == 4);
  CHECK(g.key_dim() == 8);
  CHECK(g.value_dim() == 16);
  CHECK(g.norm.options.kind == NormKind::rms);
  for (GlaGate gate : {GlaGate::per_channel, GlaGate::per_head}) {
    const Tensor decay = Gla({.dim = 8, .heads = 2, .gate = gate}, rng).log_decay(ones({2, 5, 8}));
    CHECK(decay.shape() == (gate == GlaGate::per_head ? Shape{2, 2, 5} : Shape{2, 2, 5, 2}));
    CHECK(max(decay).item() < 0);
  }
  // q, k: 64·32; v, gate, out: 64²; low rank: 64·16 + 16·32 + 32; norm: 16
  CHECK(count(g) == 2 * 64 * 32 + 3 * 64 * 64 + 64 * 16 + 16 * 32 + 32 + 16);
  CHECK(count(Gla({.dim = 64, .gate = GlaGate::per_head, .output_gate = false}, rng)) ==
        2 * 64 * 32 + 2 * 64 * 64 + 64 * 4 + 4 + 16);
  CHECK_THROWS_WITH(Gla({.dim = 6, .heads = 2}, rng), Contains("heads=2") && Contains("expand_k"));
  CHECK_THROWS_WITH(Gla({.dim = 8}, rng)(ones({2, 5, 8}), {.segments = zeros({2, 4}, {i64})}), Contains("segments"));
}
