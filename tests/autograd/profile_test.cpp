// Profile and WorkCounter: exact counts of known calls, the module that each call belongs to, and a trace that parses.
#include <sluice/autograd/function.h>
#include <sluice/autograd/profile.h>

#include "support/catch.h"
#include "support/temp_folder.h"

#include <sluice/autograd/anomaly.h>
#include <sluice/autograd/engine.h>
#include <sluice/core/kernel/cpu.h>
#include <sluice/core/text/file.h>
#include <sluice/core/number/random.h>
#include <sluice/layers/nn/mlp.h>
#include <sluice/layers/nn/linear.h>
#include <sluice/layers/nn/module.h>
#include <sluice/ops/elementwise/activation.h>
#include <sluice/ops/attention/attention.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/matmul/matmul.h>
#include <sluice/ops/rows/reduce.h>
#include <sluice/ops/scan/linear_scan.h>
#include <sluice/ops/shape/view.h>

using namespace sluice;
using sluice::testing::TempFolder;

namespace {

struct Net {
  static constexpr const char* type = "Net";
  Linear first, second;
  explicit Net(Rng& rng) : first({4, 6}, rng), second({6, 2}, rng) {}
  Tensor operator()(const Tensor& x) const {
    ModuleScope scope(this, type);
    return second(silu(first(x)));
  }
  SLUICE_PARTS(first, second);
};

template <class F> Work work_of(F f) {
  detail::WorkCounter counter;
  f();
  return counter.work();
}

const ProfileRow* find(const std::vector<ProfileRow>& rows, const std::string& name, bool backward) {
  for (const ProfileRow& r : rows)
    if (r.name == name && r.backward == backward) return &r;
  return nullptr;
}

}  // namespace

TEST_CASE("work: products, attention and scans are counted alike on cpu and meta", "[profile]") {
  for (const Device device : {cpu, meta}) {
    const TensorOptions o{f32, device};
    const Tensor a = ones({3, 5, 7}, o), b = ones({3, 7, 2}, o), row = ones({7}, o);
    CHECK(work_of([&] { matmul(a, b); }) == Work{2 * 3 * 5 * 2 * 7, 0, 4 * (3 * 5 * 7 + 3 * 7 * 2 + 3 * 5 * 2)});
    CHECK(work_of([&] { matmul(a, row); }).flops == 2 * 3 * 5 * 7);
    CHECK(work_of([&] { a + a; }) == Work{0, 0, 4 * 3 * 105});

    Tensor q = ones({2, 4, 9, 8}, o).requires_grad_(), k = ones({2, 2, 9, 8}, o), v = ones({2, 2, 9, 6}, o);
    Tensor y;
    auto pairs_of = [&](const AttentionMask& mask) {
      const Work w = work_of([&] { y = attention(q, k, v, {.mask = mask}); });
      CHECK(w.flops == 2 * w.attention_elements * (8 + 6));
      return w.attention_elements / (2 * 4);
    };
    CHECK(pairs_of({}) == 81);
    CHECK(pairs_of({.causal = true}) == 81);
    CHECK(pairs_of({.causal = true, .window = 3}) == 27);
    CHECK(pairs_of({.window = 3}) == 45);
    CHECK(pairs_of({.causal = true, .window = 3, .global = {0, 5}}) == 7 * 5 + 2 * 9);
    CHECK(pairs_of({.dilation = 2}) == 45);
    y = attention(q, k, v);
    const Work back = work_of([&] { backward(sum(y)); });
    CHECK(back.flops == 2 * 648 * (3 * 8 + 2 * 6));
    CHECK(back.attention_elements == 648);

    const Tensor s = ones({2, 3, 100, 5}, o), e = ones({2, 3, 100, 7}, o);
    for (int64_t chunk : {1, 16, 200})  // the recurrence, whatever the chunk
      CHECK(work_of([&] { linear_scan(s, s, e, {}, {.chunk = chunk}); }).flops == 6 * 4 * 100 * 5 * 7);
  }
}

TEST_CASE("work: counters nest, and only see their own lifetime", "[profile]") {
  const Tensor a = ones({4, 4}, {f32, meta});
  matmul(a, a);
  detail::WorkCounter outer;
  matmul(a, a);
  {
    detail::WorkCounter inner;
    matmul(a, a);
    CHECK(inner.calls() == 1);
    CHECK(inner.work().flops == 128);
  }
  matmul(a, a);
  CHECK(outer.calls() == 3);
  CHECK(outer.work().flops == 3 * 128);
  // A transposed operand that BLAS cannot read is copied by the kernel itself: its own matter.
  const Tensor c = ones({4, 4, 4});
  CHECK(work_of([&] { matmul(transpose(c, 0, 2), c); }).bytes == 4 * 3 * 64);
}

TEST_CASE("profile: calls, passes and modules of a training step", "[profile]") {
  Rng rng(1);
  const Net net(rng);
  const Tensor x = normal({8, 4}, 0, 1, rng);
  Profile profile({.modules = name_modules(net)});
  backward(sum(net(x)));

  const auto ops = profile.by_op();
  const ProfileRow* forward = find(ops, "matmul", false);
  REQUIRE(forward);
  CHECK(forward->calls == 2);
  CHECK(forward->work.flops == 2 * 8 * (4 * 6 + 6 * 2));
  CHECK(forward->means == std::string(isa() == Isa::base   ? "OpenBLAS"
                                      : isa() < Isa::avx2  ? "NEON"
                                      : isa() == Isa::avx2 ? "AVX2"
                                                           : "AVX-512"));
  CHECK_THAT(profile.table(), Contains("matmul (" + forward->means + ")"));
  const ProfileRow* back = find(ops, "matmul", true);
  REQUIRE(back);
  CHECK(back->calls == 3);  // no gradient for x
  CHECK(back->work.flops == 2 * 8 * (4 * 6 + 2 * 6 * 2));
  REQUIRE(find(ops, "silu", false));
  REQUIRE(find(ops, "silu", true));
  CHECK(find(ops, "silu", true)->calls == 1);
  CHECK(find(ops, "silu", false)->allocated == 8 * 6 * 4);

  const auto modules = profile.by_module();
  for (const char* name : {"first (Linear)", "second (Linear)"})
    for (const bool pass : {false, true}) {
      INFO(name << (pass ? " backward" : " forward"));
      REQUIRE(find(modules, name, pass));
      CHECK(find(modules, name, pass)->work.flops > 0);
    }
  CHECK(find(modules, "first (Linear)", true)->work.flops == 2 * 8 * 4 * 6);

  double seconds = 0;
  for (std::size_t i = 0; i < ops.size(); ++i) {
    seconds += ops[i].seconds;
    CHECK((i == 0 || ops[i - 1].seconds >= ops[i].seconds));
  }
  CHECK(std::abs(seconds - profile.kernel_seconds()) < 1e-9);
  CHECK(profile.kernel_seconds() <= profile.wall_seconds());
  CHECK_THAT(profile.table(), Contains("silu") && Contains("first (Linear)") && Contains("backward"));
}

TEST_CASE("profile: the backward pass of a checkpoint belongs to the modules of its segment", "[profile]") {
  Rng rng(1);
  const Mlp mlp({.dim = 8}, rng);
  const Tensor x = normal({4, 8}, 0, 1, rng).requires_grad_();
  const Tensor y = sum(checkpoint([&](const std::vector<Tensor>& in) { return mlp(in[0]); }, {x}));
  Profile profile({.modules = name_modules(mlp)});
  backward(y);
  double apart = 0, inside = 0;
  for (const ProfileRow& row : profile.by_module())
    (row.name.empty() ? apart : inside) += static_cast<double>(row.calls);
  CHECK(inside > 5);
  CHECK(apart <= 1);  // of the sum
}

TEST_CASE("profile: the squares of a variance bear its name", "[profile]") {
  Profile profile;
  var(ones({8, 4}), {0});
  const auto ops = profile.by_op();
  CHECK(find(ops, "var", false));
  CHECK_FALSE(find(ops, "mse_loss", false));
}

TEST_CASE("profile: time of nested calls is counted once", "[profile]") {
  Rng rng(1);
  const Tensor big = normal({64, 64, 64}, 0, 1, rng);
  Profile profile;
  matmul(transpose(big, 0, 2), big);  // copies its operand inside
  const auto ops = profile.by_op();
  REQUIRE(find(ops, "copy", false));
  double seconds = 0;
  for (const ProfileRow& r : ops) {
    CHECK(r.seconds >= 0);
    seconds += r.seconds;
  }
  CHECK(seconds <= profile.wall_seconds());
}

TEST_CASE("profile: one at a time, beside anomaly mode, and nothing is left behind", "[profile]") {
  Rng rng(1);
  const Net net(rng);
  const Tensor x = normal({8, 4}, 0, 1, rng);
  {
    Profile profile;
    CHECK_THROWS_AS(Profile(), AutogradError);
    {
      AnomalyMode anomaly;
      net(x);
    }
    backward(sum(net(x)));
    CHECK(find(profile.by_module(), "Net / Linear", true));
  }
  CHECK_FALSE(detail::observed());
  CHECK_FALSE(net(x).impl().history->extras_);
  {
    AnomalyMode anomaly;
    { Profile profile; }
    CHECK_THROWS_AS(log(x * 0.0 - 1.0), AutogradError);
  }
}

TEST_CASE("profile: the trace holds every call", "[profile]") {
  TempFolder folder;
  const std::string path = folder / "trace.json";
  Profile profile;
  const Tensor a = ones({4, 4});
  for (int i = 0; i < 3; ++i) matmul(a, a);
  profile.save_trace(path);
  const std::string text = read_file(path);
  std::size_t events = 0, braces = 0;
  for (std::size_t at = 0; (at = text.find("\"ph\":\"X\"", at)) != std::string::npos; ++at) ++events;
  CHECK(events == 4);  // the ones, and three products
  int depth = 0;
  for (const char c : text) {
    depth += c == '{' || c == '[';
    depth -= c == '}' || c == ']';
    braces += c == '{';
    REQUIRE(depth >= 0);
  }
  CHECK(depth == 0);
  CHECK(braces == 1 + 2 * events);
  CHECK_THROWS_WITH(profile.save_trace(folder / "none/trace.json"), Contains("save_trace: cannot "));
  CHECK_THAT(text, Contains("\"name\":\"matmul\",\"cat\":\"forward\"") && Contains("\"flops\":128"));
}

TEST_CASE("profile: memory that was created before it is not its own", "[profile]") {
  const Tensor a = ones({4, 4});
  {
    Profile profile;
    empty({1000});  // and no kernel call after it
  }
  Profile profile;
  exp(a);
  const auto ops = profile.by_op();
  REQUIRE(find(ops, "exp", false));
  CHECK(find(ops, "exp", false)->allocated == 4 * 4 * 4);
}
