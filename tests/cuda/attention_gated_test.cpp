// Attention and its gate in one kernel, from the layer's call, against attention followed by the gate in f64 on the
// CPU: results, gradients and gradients of gradients, one row beyond every tile; and which calls are fused.
#include "support/approx.h"
#include "support/catch.h"

#include <sluice/autograd/engine.h>
#include <sluice/core/kernel/kernel.h>
#include <sluice/cuda/emulator/emulator.h>
#include <sluice/layers/attention/gated_attention.h>
#include <sluice/layers/attention/multi_head_attention.h>
#include <sluice/ops/elementwise/activation.h>
#include <sluice/ops/attention/gated.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/gemm/precision.h>
#include <sluice/ops/rows/reduce.h>
#include <sluice/ops/shape/view.h>

#include <algorithm>
#include <string_view>

using namespace sluice;
using namespace sluice::testing;

namespace {

const Device gpu = Device::cuda();

/// The kernels that were called.
struct Called : detail::Observer {
  std::vector<std::string> names;
  void on_call(const detail::KernelCall& c) override { names.push_back(c.op); }
  int64_t count(std::string_view name) const { return std::count(names.begin(), names.end(), name); }
};

struct Call {
  int64_t batch, heads, kv_heads, m, n, d;
  bool headwise;
  Weighting weighting = Weighting::softmax;
  AttentionMask mask = {};
  bool keys = false, sink = false;
  DType dtype = f32;
};

/// q, k, v, logits, the sink if there is one: numbers that bf16 holds. The logits lie as a map's result does.
std::vector<Tensor> leaves(const Call& c, Device device, DType dtype, Rand& rand) {
  const auto numbers = [&](const Shape& shape, double range) {
    return to(to(random_tensor(shape, f32, rand, -range, range), bf16), dtype);
  };
  std::vector<Tensor> xs{numbers({c.batch, c.heads, c.m, c.d}, 2), numbers({c.batch, c.kv_heads, c.n, c.d}, 1),
                         numbers({c.batch, c.kv_heads, c.n, c.d}, 1),
                         transpose(numbers({c.batch, c.m, c.heads, c.headwise ? 1 : c.d}, 3), 1, 2)};
  if (c.sink) xs.push_back(numbers({c.heads}, 3));
  for (Tensor& x : xs) x = to(to(x, cpu), device).detach().requires_grad_();
  return xs;
}
AttentionOptions options_of(const Call& c, const std::vector<Tensor>& xs) {
  AttentionOptions o{.weighting = c.weighting, .scale = 0.125, .mask = c.mask};
  if (c.sink) o.sink = xs[4];
  if (c.keys) {  // of the second batch the last 20 are padding
    const Tensor at = to(arange(c.n, {i64, cpu}), f64);
    o.mask.keys = to(stack({at < static_cast<double>(c.n), at < static_cast<double>(c.n - 20)}, 0), xs[0].device());
  }
  return o;
}

void check(const Call& c, uint64_t seed) {
  INFO("m " << c.m << ", n " << c.n << ", d " << c.d << ", headwise " << c.headwise << ", weighting "
            << static_cast<int>(c.weighting) << ", causal " << c.mask.causal << ", keys " << c.keys << ", sink "
            << c.sink << ", " << str(c.dtype));
  // The gradients, by a random cotangent, and the gradient of their products with random directions.
  struct Found {
    Tensor out;
    std::vector<Tensor> first, later, second;
  };
  const auto run = [&](Device device, DType dtype) {
    Rand rand(seed);
    const std::vector<Tensor> xs = leaves(c, device, dtype, rand);
    const auto numbers = [&](const Shape& shape) {
      return to(to(to(random_tensor(shape, f32, rand, -1, 1), bf16), dtype), device);
    };
    const AttentionOptions o = options_of(c, xs);
    const Tensor cotangent = numbers({c.batch, c.heads, c.m, c.d});
    std::vector<Tensor> directions;
    for (const Tensor& x : xs) directions.push_back(numbers(x.shape()));
    Found f;
    {
      PrecisionScope scope(device == cpu ? Precision::f32 : Precision::bf16);
      if (device == cpu) {
        f.out = attention(xs[0], xs[1], xs[2], o) * sigmoid(xs[3]);
      } else {
        const detail::MaybeGated y = detail::attention_and_gate(xs[0], xs[1], xs[2], xs[3], o);
        REQUIRE(y.gated);
        f.out = y.out;
      }
      f.first = grad({f.out}, xs, {.retain_graph = true, .grad_outputs = {cotangent}});
    }
    f.later = grad({f.out}, xs, {.retain_graph = true, .grad_outputs = {cotangent}});  // at another precision
    const Tensor g = cotangent.detach().requires_grad_();
    const std::vector<Tensor> gs = grad({f.out}, xs, {.create_graph = true, .grad_outputs = {g}});
    std::vector<Tensor> all = xs;
    all.push_back(g);
    f.second = grad(gs, all, {.grad_outputs = directions});
    return f;
  };
  cuda::emulator::set_schedule(seed);
  const Found got = run(gpu, c.dtype);
  cuda::emulator::set_schedule(0);
  const Found want = run(cpu, f64);
  const double half = c.dtype == bf16 ? 2 : 1;  // results are rounded, too
  CHECK(relative_distance(got.out, want.out) < half * 0x1.8p-9);
  for (std::size_t i = 0; i < want.first.size(); ++i) {
    INFO("operand " << i);
    const double allowed = half * (i == 4 ? 0x1p-7 : 0x1p-8);  // the sink's is three sums over δ of both signs
    CHECK(relative_distance(got.first[i], want.first[i]) < allowed);
    CHECK(relative_distance(got.later[i], want.first[i]) < allowed);
  }
  for (std::size_t i = 0; i < want.second.size(); ++i) {
    INFO("second, operand " << i);
    CHECK(relative_distance(got.second[i], want.second[i]) < (c.dtype == bf16 ? 0x1p-7 : 1e-5));
  }
}

}  // namespace

TEST_CASE("cuda attention: gated in one kernel, with gradients of two orders", "[cuda]") {
  uint64_t seed = 0;
  for (bool headwise : {false, true}) {
    check({2, 4, 2, 65, 65, 64, headwise, Weighting::softmax, {.causal = true}, true}, ++seed);
    check({1, 3, 1, 129, 193, 64, headwise, Weighting::softmax, {.causal = true}, false, true}, ++seed);
    check({1, 2, 1, 17, 129, 128, headwise, Weighting::relu2, {}}, ++seed);
    check({1, 2, 2, 129, 129, 128, headwise, Weighting::softmax, {.window = 40}}, ++seed);
    check({2, 2, 1, 129, 65, 64, headwise, Weighting::relu2, {}, true}, ++seed);
    check({1, 2, 1, 129, 129, 64, headwise, Weighting::softmax, {.causal = true}, false, false, bf16}, ++seed);
    check({1, 2, 1, 33, 65, 64, headwise, Weighting::relu2, {.causal = true}, false, false, bf16}, ++seed);
  }
}

TEST_CASE("cuda attention: layers with a gate, in one kernel", "[cuda]") {
  const auto check_layer = [](auto options, int64_t n, uint64_t seed) {
    INFO("n " << n << ", seed " << seed);
    const auto run = [&](Device device, bool fused) {
      Rng rng(seed);
      auto layer = [&] {
        if constexpr (std::is_same_v<decltype(options), GatedAttentionOptions>) return GatedAttention(options, rng);
        else return MultiHeadAttention(options, rng);
      }();
      Rand rand(seed);
      Tensor x = random_tensor({2, n, options.heads.dim}, f32, rand), g = random_tensor(x.shape(), f32, rand);
      if (device == cpu) to(layer, f64), x = to(x, f64), g = to(g, f64);
      else to(layer, device), x = to(x, device), g = to(g, device);
      std::vector<Tensor> xs{x.detach().requires_grad_()};
      for (const NamedTensor& p : parameters(layer)) xs.push_back(p.tensor);
      PrecisionScope scope(device == cpu ? Precision::f32 : Precision::bf16);
      Called called;
      const Tensor y = layer(xs[0]);
      std::vector<Tensor> all = grad({y}, xs, {.grad_outputs = {g}});
      CHECK(called.count("attention") == 1);
      CHECK(called.count("attention backward") == 1);
      CHECK(called.count("glu") == (fused ? 0 : 2));  // forward and backward
      all.push_back(y);
      return all;
    };
    const std::vector<Tensor> got = run(gpu, true), want = run(cpu, false);
    for (std::size_t i = 0; i < want.size(); ++i) {
      INFO("gradient " << i << " of " << want.size() - 1);
      // Every product's operands are rounded; a headwise gate's bias has two numbers, sums whose terms cancel.
      CHECK(relative_distance(got[i], want[i]) < (want[i].numel() < 3 ? 0x1p-5 : 0x1p-6));
    }
  };
  uint64_t seed = 20;
  for (GateGranularity granularity : {GateGranularity::elementwise, GateGranularity::headwise}) {
    const HeadsOptions heads{.dim = 40, .heads = 2, .kv_heads = 1, .head_dim = 64, .causal = true};
    const AttentionGateOptions gate{.granularity = granularity, .init = Init::lecun()};
    for (int64_t n : {65, 129}) check_layer(MultiHeadAttentionOptions{.heads = heads, .gates = {gate}}, n, ++seed);
    check_layer(GatedAttentionOptions{.heads = heads, .granularity = granularity}, 129, ++seed);
    check_layer(GatedAttentionOptions{.heads = heads, .output = OutputGate::from_query, .granularity = granularity}, 17,
                ++seed);
  }
}

TEST_CASE("cuda attention: which gates are fused", "[cuda]") {
  const auto gates_apart = [](const MultiHeadAttentionOptions& options, int64_t n = 17, Precision p = Precision::bf16) {
    Rng rng(1);
    MultiHeadAttention layer(options, rng);
    to(layer, gpu);
    Rand rand(2);
    const Tensor x = to(random_tensor({1, n, 16}, f32, rand), gpu);
    PrecisionScope scope(p);
    Called called;
    layer(x);
    return called.count("glu") + called.count("swiglu") + called.count("sigmoid") + called.count("mul") +
           called.count("add");
  };
  const HeadsOptions heads{.dim = 16, .heads = 2, .head_dim = 64};
  const auto with = [&](std::vector<AttentionGateOptions> gates) {
    return MultiHeadAttentionOptions{.heads = heads, .gates = std::move(gates)};
  };
  CHECK(gates_apart(with({})) == 0);
  CHECK(gates_apart(with({{}})) == 0);
  CHECK(gates_apart(with({{.bias = true}}), 16) == gates_apart(with({{.bias = true}}), 17));
  CHECK(gates_apart(with({{}}), 15) > 0);  // attention without tensor cores
  CHECK(gates_apart(with({{}}), 17, Precision::f32) > 0);
  CHECK(gates_apart(with({{.activation = Act::silu}})) > 0);
  CHECK(gates_apart(with({{.mode = GateMode::add}})) > 0);
  CHECK(gates_apart(with({{.sharing = GateSharing::logits}})) > 0);
  CHECK(gates_apart(with({{.input_independent = true}})) > 0);
  CHECK(gates_apart(with({{}, {}})) > 0);
  CHECK(gates_apart(with({{}, {.position = GatePosition::g4}})) == 1);  // that of the queries
}
