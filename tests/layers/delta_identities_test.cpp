// The identities of the delta rule and its layers: what they are in their limits.
#include "support/array.h"
#include "support/catch.h"
#include "support/delta_samples.h"
#include "support/identities.h"
#include "support/naive_attention.h"

#include <sluice/layers/linear_attention/delta_net.h>
#include <sluice/layers/linear_attention/kda.h>
#include <sluice/ops/attention/heads.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/index/gather.h>
#include <sluice/ops/matmul/matmul.h>
#include <sluice/ops/rows/reduce.h>
#include <sluice/ops/scan/linear_scan.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/shape/join.h>
#include <sluice/ops/shape/view.h>

#include <cmath>

using namespace sluice;
using namespace sluice::testing;

namespace {

const DeltaOptions kSizes{.dim = 6, .heads = 2, .value_heads = 4, .key_dim = 3, .value_dim = 5, .dtype = f64};

/// The layer, which takes what its options do not say from `from`, by name.
template <class M> M with_weights_of(M layer, const std::map<std::string, Tensor>& from) {
  std::map<std::string, Tensor> state;
  for (const NamedTensor& t : state_dict(layer)) state[t.name] = from.at(t.name).detach();
  load_state(layer, state);
  return layer;
}
std::map<std::string, Tensor> by_name(const auto& layer) {
  std::map<std::string, Tensor> all;
  for (const NamedTensor& t : state_dict(layer)) all[t.name] = t.tensor.detach();
  return all;
}

/// Opens what the layers of the delta rule share.
struct Parts : GatedDeltaNet {
  explicit Parts(GatedDeltaNet layer) : GatedDeltaNet(std::move(layer)) {}
  Tensor by_hand(const Tensor& x) const {
    const Pass pass;
    const DeltaOptions& h = options.heads;
    Call call(static_cast<const GatedDeltaNet&>(*this), "gated_delta_net", x, h.dim, pass);
    const Rows r = unit_rows(h, call);
    const auto heads = [](const Tensor& t) { return transpose(t, 1, 2); };
    const Tensor o = delta_rule(heads(r.q), heads(r.k), heads(r.v), heads(squeeze(strength(h, call), -1)),
                                heads(log_decay(call.x)), {}, {.chunk = h.chunk})
                         .out;
    return finish(h, call, o, output_gate(call.x));
  }
};

}  // namespace

TEST_CASE("delta: keys at right angles to each other need no erasing", "[delta][identity]") {
  Rand rand(1);
  for (DeltaDecay decay : {DeltaDecay::none, DeltaDecay::scalar})
    for (int64_t chunk : {3, 64}) {
      DeltaSample s = random_delta(rand, decay, {2, 2, 4, 40, 40, 5});
      s.initial = Tensor();
      const Tensor mirror = random_tensor({2, 2, 40, 1}, f64, rand);  // rows of I − 2hhᵀ/h²
      s.k = eye(40, -1, {f64}) - mirror * transpose(mirror, -2, -1) * (2.0 / sum(mirror * mirror, {-2}, keep));
      const auto spread = [](const Tensor& t) { return detail::spread_heads(t, 4); };
      const Tensor plain = linear_scan(spread(s.q), spread(s.k), s.write(), s.decay);
      check_identity("delta: orthonormal keys are linear attention of beta v",
                     delta_rule(s.q, s.k, s.v, s.beta, s.decay, {}, {.chunk = chunk}).out, plain, 1e-12);
      const DeltaSample other = random_delta(rand, decay, {2, 2, 4, 40, 40, 5});  // other keys do
      CHECK(max_abs_diff(delta_rule(s.q, other.k, s.v, s.beta, s.decay, {}).out,
                         linear_scan(spread(s.q), spread(other.k), s.write(), s.decay)) > 1e-2);
    }
}

TEST_CASE("delta: a chunk that holds all tokens is the parallel form", "[delta][identity]") {
  Rand rand(2);
  for (DeltaDecay decay : kDeltaDecays) {
    const int64_t n = 21, dk = 4, dv = 3;
    DeltaSample s = random_delta(rand, decay, {1, 1, 1, n, dk, dv});
    if (s.decay.defined()) s.decay = clamp(s.decay, -5.0);  // the form below takes differences of its sums
    const Array q = array_of(s.q), k = array_of(s.k), v = array_of(s.v), beta = array_of(s.beta),
                g = s.decay.defined() ? array_of(s.decay) : Array();
    const auto pair = [&](const Array& x, int64_t i, int64_t j) {  // Σ_c x_ic k_jc e^{G_ic − G_jc}
      double total = 0;
      for (int64_t c = 0; c < dk; ++c) {
        double between = 0;
        for (int64_t t = j + 1; s.decay.defined() && t <= i; ++t)
          between += g.rank() == 4 ? g({0, 0, t, c}) : g({0, 0, t});
        total += x({0, 0, i, c}) * k({0, 0, j, c}) * std::exp(between);
      }
      return total;
    };
    Array u({n, dv}), o({1, 1, n, dv});  // (I + A) u = diag(β) v by substitution, o = P u
    for (int64_t i = 0; i < n; ++i)
      for (int64_t d = 0; d < dv; ++d) {
        u({i, d}) = beta({0, 0, i}) * v({0, 0, i, d});
        for (int64_t j = 0; j < i; ++j) u({i, d}) -= beta({0, 0, i}) * pair(k, i, j) * u({j, d});
        for (int64_t j = 0; j <= i; ++j) o({0, 0, i, d}) += pair(q, i, j) * u({j, d});
      }
    for (int64_t chunk : {n, n + 9, int64_t{4}})
      check_identity("delta: one chunk = P (I + A)^-1 diag(beta) V",
                     delta_rule(s.q, s.k, s.v, s.beta, s.decay, {}, {.chunk = chunk}).out,
                     tensor_of(o.v, {1, 1, n, dv}, f64), 1e-12);
  }
}

TEST_CASE("delta: gates of erasing and writing that are one strength give KDA", "[delta][identity]") {
  Rng rng(3);
  Rand rand(3);
  DeltaOptions sizes = kSizes;
  sizes.value_heads = sizes.heads;
  const Kda kda({.heads = sizes}, rng);
  std::map<std::string, Tensor> weights = by_name(kda);
  const Tensor beta = weights.at("beta.weight");
  weights["erase.weight"] = repeat_interleave(beta, sizes.key_dim, 1);
  weights["write.weight"] = repeat_interleave(beta, sizes.value_dim, 1);
  const Tensor x = random_tensor({2, 9, 6}, f64, rand);
  const Kda gated = with_weights_of(Kda({.heads = sizes, .erase_write = true}, rng), weights);
  check_identity("delta: GDN-2 with erase = write = beta is KDA", gated(x), kda(x), 1e-12);
  weights["write.weight"] = weights["write.weight"] * 0.5;
  CHECK(max_abs_diff(with_weights_of(Kda({.heads = sizes, .erase_write = true}, rng), weights)(x), kda(x)) > 1e-4);
}

TEST_CASE("delta: DeltaProduct of one update is the plain layer, and of empty updates, too", "[delta][identity]") {
  Rng rng(4);
  Rand rand(4);
  for (DType dtype : {f64, f32}) {
    DeltaOptions sizes = kSizes;
    sizes.dtype = dtype;
    const Parts layer(GatedDeltaNet(sizes, rng));
    const Tensor x = random_tensor({2, 70, 6}, dtype, rand);
    const Tensor y = static_cast<const GatedDeltaNet&>(layer)(x);
    const bool same = same_bits(y, layer.by_hand(x));
    check_identity("delta: DeltaProduct with m = 1 has the bits of Gated DeltaNet", same ? 0 : 1, 0);
  }
  const GatedDeltaNet plain({.heads = kSizes}, rng);
  const Tensor x = random_tensor({2, 70, 6}, f64, rand), want = plain(x);
  const std::map<std::string, Tensor> one = by_name(plain);
  for (int64_t at : {0, 1, 2}) {  // the update that writes; the others have keys of 0
    DeltaOptions sizes = kSizes;
    sizes.updates = 3;
    GatedDeltaNet more({.heads = sizes}, rng);
    std::map<std::string, Tensor> weights = by_name(more);
    for (auto& [name, w] : weights)
      if (!name.starts_with("k.") && !name.starts_with("v.") && !name.starts_with("beta.") && name != "conv.weight")
        w = one.at(name);
    const int64_t keys = 2 * 3, values = 4 * 5;
    const auto placed = [&](const Tensor& part, const Tensor& others, int64_t width) {  // in the columns of update `at`
      return cat({narrow(others, 1, 0, at * width), part, narrow(others, 1, (at + 1) * width, (2 - at) * width)}, 1);
    };
    weights["k.weight"] = placed(one.at("k.weight"), zeros(weights.at("k.weight").shape(), {f64}), keys);
    weights["v.weight"] = placed(one.at("v.weight"), weights.at("v.weight"), values);
    weights["beta.weight"] = placed(one.at("beta.weight"), weights.at("beta.weight"), 4);
    const std::vector<Tensor> taps = split(one.at("conv.weight"), {keys, keys, values}, 1),
                              all = split(weights.at("conv.weight"), {keys, 3 * keys, 3 * values}, 1);
    weights["conv.weight"] = cat({taps[0], placed(taps[1], all[1], keys), placed(taps[2], all[2], values)}, 1);
    check_identity("delta: an update under the key 0 is none", with_weights_of(std::move(more), weights)(x), want,
                   1e-12);
  }
}

TEST_CASE("KDA: initial decays, maps of full rank, what does not fit", "[delta]") {
  Rng rng(5);
  const DeltaOptions sizes{.dim = 256, .heads = 256, .key_dim = 1};
  const Tensor rates = exp(Kda(sizes, rng).a_log.detach());
  CHECK((min(rates).item() > 0.999 && max(rates).item() < 16.001));
  CHECK(std::abs(mean(rates).item() - 8.5) < 1);  // standard error 0.27
  CHECK(max_abs(Kda({.heads = sizes, .lower_bound = -5}, rng).a_log.detach()) == 0);
  const Kda full({.heads = {.dim = 6, .heads = 2}, .lower_bound = -5, .full_rank = true}, rng);
  CHECK_FALSE(full.decay_down.weight.defined());
  CHECK_FALSE(full.output_gate_down.weight.defined());
  CHECK((full.decay_up.weight.shape() == Shape{6, 6} && full.output_gate_up.weight.shape() == Shape{6, 6}));
  CHECK_THROWS_WITH(Kda({.heads = {.dim = 6, .heads = 2}, .rank = 3, .full_rank = true}, rng),
                    Contains("kda: full_rank needs rank=0, got 3"));
}
