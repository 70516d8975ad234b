// Every layer of the table in bf16, against itself in f32 with the same weights: forward, gradients, streams, files.
#include "support/catch.h"
#include "support/table_samples.h"
#include "support/temp_folder.h"

#include <sluice/autograd/engine.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/shape/join.h>
#include <sluice/ops/rows/reduce.h>
#include <sluice/ops/shape/view.h>

#include <algorithm>

using namespace sluice;
using namespace sluice::testing;

namespace {

/// Of the largest value. Among drawn inputs are some for which gradients are small differences.
double tolerance() { return drawn_layers() > 0 ? 0.25 : 3e-2; }

/// Layers that choose by value what they compute: a rounding may choose otherwise. Among drawn ones all those may.
bool chooses(const LayerSample& s) {
  for (const char* name : {"top_k", "topk"})
    if (const Json* k = s.options.find(name); k && *k->as<int64_t>() > 0)
      return s.row.name == "sinkhorn_attention" || drawn_layers() > 0;
  return false;
}

/// x in f32, each number moved by up to an ulp of bf16 if `moved`.
Tensor wide(const Tensor& x, Rand* moved) {
  if (!x.defined() || x.dtype() != bf16) return x;
  Tensor y = to(x.detach(), f32);
  if (moved) y = y * (random_tensor(x.shape(), f32, *moved, -0x1p-8, 0x1p-8) + 1.0);
  return x.requires_grad() ? y.requires_grad_() : y;
}

struct Results {
  Tensor y;
  std::vector<std::string> names;
  std::vector<DType> dtypes;
  std::vector<Tensor> gradients;
};

/// Output and gradients of trained tensors and of x, for one cotangent.
Results run(const AnyLayer& layer, const LayerInputs& in) {
  Results r{call(layer, in), {}, {}, {}};
  std::vector<Tensor> leaves;
  for (const NamedTensor& t : layer.state())
    if (t.tensor.requires_grad()) leaves.push_back(t.tensor), r.names.push_back(t.name);
  if (is_float(in.x.dtype())) leaves.push_back(in.x), r.names.push_back("x");
  for (const Tensor& leaf : leaves) r.dtypes.push_back(leaf.dtype());
  Rand rand(7);
  const Tensor c = to(random_tensor(r.y.shape(), bf16, rand), r.y.dtype());
  if (r.y.requires_grad()) r.gradients = grad({r.y}, leaves, {.allow_unused = true, .grad_outputs = {c}});
  return r;
}

/// The sample's layer in f32, with the weights and inputs that it has in bf16.
Results run_wide(const LayerSample& half, const Json& sample, LayerInputs in, Rand* moved = nullptr) {
  Rng rng(3);
  const auto layer = half.row.make(sample, rng, f32);
  std::map<std::string, Tensor> state;
  for (const NamedTensor& t : half.layer->state()) state[t.name] = wide(t.tensor.detach(), moved);
  layer->load(state);
  layer->move(test_device());
  for (Tensor* x : {&in.x, &in.context}) *x = wide(*x, moved);
  return run(*layer, in);
}

void each_bf16(const std::function<void(LayerSample& half, const Json& sample)>& f) {
  for (const LayerRow& row : layer_table())
    for (const Json& sample : row.samples) {
      INFO(row.name << " " << to_text(sample));
      try {
        LayerSample half = make_sample(row, sample, bf16);
        if (!chooses(half)) f(half, sample);
      } catch (const std::exception& e) { FAIL_CHECK(e.what()); }
    }
}

/// `moved` is how far the result goes when inputs move in their last place: no bf16 can be nearer.
void check_near(const std::string& what, const Tensor& got, const Tensor& want, double scale, double moved = 0) {
  const double error = max_abs_diff(got, want),
               allowed = std::min(0.5 * scale, std::max(tolerance() * scale, 6 * moved));
  INFO(what << ": " << error << " apart, largest " << scale << ", moved " << moved);
  CHECK(error <= allowed);
}

}  // namespace

TEST_CASE("table: bf16 is f32, rounded", "[table][bf16]") {
  int tight = 0, all = 0;
  each_bf16([&](LayerSample& half, const Json& sample) {
    const LayerInputs in = half.inputs(2, 7, 1, true);
    const Results got = run(*half.layer, in), want = run_wide(half, sample, in);
    Rand rand(9);
    std::vector<Results> moved;
    for (int trial = 0; trial < 3; ++trial) moved.push_back(run_wide(half, sample, in, &rand));
    const auto furthest = [&](auto of) {
      double worst = 0;
      for (const Results& m : moved) worst = std::max(worst, max_abs_diff(of(m), of(want)));
      ++all, tight += 6 * worst <= 0.1 * max_abs(of(want));
      return worst;
    };
    CHECK(got.y.dtype() == bf16);
    check_near("output", got.y, want.y, max_abs(want.y), furthest([](const Results& r) { return r.y; }));
    double largest = 0;
    for (const Tensor& g : want.gradients)
      if (g.defined()) largest = std::max(largest, max_abs(g));
    REQUIRE(got.gradients.size() == want.gradients.size());
    for (std::size_t i = 0; i < got.gradients.size(); ++i) {
      const Tensor &a = got.gradients[i], &b = want.gradients[i];
      CHECK(a.defined() == b.defined());
      if (a.defined()) CHECK(a.dtype() == got.dtypes[i]);
      if (a.defined() && b.defined())
        check_near(got.names[i], a, b, std::max(max_abs(b), largest / 8),
                   furthest([i](const Results& r) { return r.gradients[i]; }));
    }
  });
  CHECK(tight > all / 2);  // else the tolerance would be no tolerance
}

TEST_CASE("table: bf16 streams give what the whole sequence gives", "[table][bf16]") {
  each_bf16([](LayerSample& half, const Json&) {
    if (!half.row.streams || !half.causal()) return;
    NoGrad guard;
    const Tensor x = half.inputs(2, 9, 1).x, y = (*half.layer)(x);
    Stream stream;
    std::vector<Tensor> parts;
    int64_t at = 0;
    for (int64_t n : {3, 1, 4, 1}) parts.push_back(step(*half.layer, narrow(x, 1, at, n), stream)), at += n;
    CHECK(cat(parts, 1).dtype() == bf16);
    check_near("stream", cat(parts, 1), y, max_abs(y));
  });
}

TEST_CASE("table: a file keeps a bf16 layer", "[table][bf16]") {
  TempFolder folder;
  const std::string path = folder / "layer";
  each_bf16([&](LayerSample& half, const Json&) {
    half.layer->save(path);
    const std::unique_ptr<AnyLayer> back = half.layer->reloaded(path);
    back->move(test_device());
    const LayerInputs in = half.inputs(2, 5, 1);
    CHECK(same_bits(call(*back, in), call(*half.layer, in)));
  });
}
