// Every row on the meta device: the same shapes, dtypes and history as on cpu, forward, backward and to second order,
// with no memory that could be read or written. An op that touches bytes outside a kernel slot throws here, so this is
// the proof that a second device needs nothing but kernels.
#include "support/catch.h"
#include "support/op_cases.h"

#include <sluice/autograd/engine.h>
#include <sluice/core/text/print.h>
#include <sluice/core/number/random.h>
#include <sluice/ops/attention/attention.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/elementwise/dropout.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/index/gather.h>
#include <sluice/ops/matmul/matmul.h>
#include <sluice/ops/rows/reduce.h>
#include <sluice/ops/rows/rope.h>
#include <sluice/ops/shape/view.h>

#include <map>

using namespace sluice;
using namespace sluice::testing;

namespace {

/// Ops that choose by value what to compute, and so cannot run without values; each with the reason.
const std::map<std::string, std::string> kNeedValues = {{"nonzero", "the shape of its result depends on them"},
                                                        {"masked_select", "likewise"}};

std::string facts(const Tensor& x) {
  if (!x.defined()) return "undefined";
  return str(x.shape(), " ", x.dtype(), x.requires_grad() ? " recorded" : "", x.is_contiguous() ? "" : " strided");
}

/// What the row gives on `device`: its results, their gradients, and the gradients of those.
std::vector<Tensor> run(const OpCase& row, const std::vector<Dims>& shapes, DType dtype, Device device) {
  In xs;
  for (const Tensor& x : input_tensors(row, input_values(row, shapes), dtype, !row.flat)) {
    xs.push_back(to(x.detach(), device));
    if (x.requires_grad()) xs.back().requires_grad_();
  }
  const Outputs ys = row.call(xs);
  std::vector<Tensor> all(ys.begin(), ys.end());
  if (row.flat) return all;
  std::vector<Tensor> roots(all), wanted;
  std::erase_if(roots, [](const Tensor& y) { return !y.requires_grad(); });
  for (const Tensor& x : xs)
    if (x.requires_grad()) wanted.push_back(x);
  for (const bool record : {false, true}) {
    GradOptions options{.create_graph = record, .retain_graph = true, .allow_unused = true};
    for (const Tensor& y : roots) options.grad_outputs.push_back(ones_like(y));
    const auto first = grad(roots, wanted, options);
    all.insert(all.end(), first.begin(), first.end());
    if (!record) continue;
    options = {.allow_unused = true};
    std::vector<Tensor> again(first);
    std::erase_if(again, [](const Tensor& g) { return !g.requires_grad(); });
    for (const Tensor& g : again) options.grad_outputs.push_back(ones_like(g));
    if (again.empty()) continue;
    const auto second = grad(again, wanted, options);
    all.insert(all.end(), second.begin(), second.end());
  }
  return all;
}

}  // namespace

TEST_CASE("op cases: every row runs on meta", "[ops][cases][meta]") {
  for (const OpCase& row : all_cases()) {
    if (row.inputs.empty()) continue;  // nothing says where
    INFO(row.name());
    if (kNeedValues.count(row.op)) {
      CHECK_THROWS_AS(run(row, {}, f32, meta), DeviceError);
      continue;
    }
    try {
      const auto runs = shapes_of(row);
      const std::size_t own = runs.size();
      for (std::size_t k = 0; k <= own; ++k) {  // bf16 in the row's own shapes
        const DType dtype = k == own ? bf16 : f32;
        const auto& shapes = runs[k % own];
        const auto want = run(row, shapes, dtype, cpu), got = run(row, shapes, dtype, meta);
        REQUIRE(got.size() == want.size());
        for (std::size_t i = 0; i < got.size(); ++i) {
          INFO("result " << i);
          CHECK(facts(got[i]) == facts(want[i]));
          if (got[i].defined()) CHECK(got[i].device() == meta);
        }
      }
    } catch (const std::exception& e) { FAIL_CHECK("threw: " << e.what()); }
  }
}

TEST_CASE("meta: values can be neither read nor written", "[ops][meta]") {
  const Tensor x = ones({2, 3}, {f32, meta});
  const auto refuses = [](auto f, const std::string& text) {
    try {
      f();
      FAIL_CHECK("did not throw: " << text);
    } catch (const DeviceError& e) { CHECK(e.what() == text); }
  };
  refuses([&] { sum(x).item(); }, "item: a tensor on meta has no values");
  refuses([&] { x.to_vector(); }, "to_vector: a tensor on meta has no values");
  refuses([&] { x.data<float>(); }, "storage: a tensor on meta has no memory to read or write");
  refuses([&] { to(x, cpu); }, "to: a tensor on meta has no values to copy to cpu");
  refuses([&] { x + ones({2, 3}); }, "add: operands on meta and cpu; move them with to(x, device)");
  refuses(
      [&] {
        Tensor y = ones({2, 3});
        add_(y, x);
      },
      "add_: operands on cpu and meta; move them with to(x, device)");
  refuses(
      [&] {
        Tensor y = ones({2, 3});
        copy_(y, x);
      },
      "copy_: a tensor on meta has no values to copy to cpu");
  CHECK(to_string(x) == "Tensor[2,3] f32 meta\n(no values on meta)");
  CHECK_THROWS_AS(Tensor().raw(), ValueError);
}

TEST_CASE("meta: creations, random numbers and editing", "[ops][meta]") {
  const TensorOptions o{f32, meta};
  Rng rng(1), twin(1);
  CHECK(facts(linspace(0, 1, 5, o)) == "[5] f32");
  CHECK(facts(arange(7, {i64, meta})) == "[7] i64");
  CHECK(facts(eye(3, 4, o)) == "[3,4] f32");
  CHECK(facts(causal_mask(3, 4, meta)) == "[3,4] bool");
  CHECK(facts(t5_buckets(3, 4, {}, 0, meta)) == "[3,4] i64");
  CHECK(facts(visible_pairs({.causal = true}, 2, 2, 3, 4, meta)) == "[1,1,3,4] bool");
  CHECK(facts(normal({2, 3}, 0, 1, rng, o)) == "[2,3] f32");
  CHECK(facts(permutation(9, rng, meta)) == "[9] i64");
  CHECK(facts(dropout(ones({5}, o), 0.5, rng)) == "[5] f32");
  normal({2, 3}, 0, 1, twin), permutation(9, twin), dropout(ones({5}), 0.5, twin);
  CHECK(rng.offset() == twin.offset());  // the stream goes on as if values had been drawn

  Tensor x = zeros({2, 3}, o);
  fill_(x, 1), scale_(x, 2), add_(x, x), copy_(x, ones({3}));
  CHECK(x.version() == 4);
  Tensor w = ones({3}, o).requires_grad_();
  Tensor y = sum(square(w));
  {
    NoGrad guard;
    fill_(w, 0);
  }
  CHECK_THROWS_AS(backward(y), AutogradError);  // the saved w was edited
}

TEST_CASE("to(x, device) is differentiable", "[ops][meta]") {
  Tensor x = ones({2, 3}).requires_grad_();
  CHECK(to(x, cpu).ref() == x.ref());
  const Tensor y = to(x, meta);
  CHECK(facts(y) == "[2,3] f32 recorded");
  CHECK_THROWS_AS(backward(sum(y)), DeviceError);  // the gradient would have to come back from meta
  CHECK_FALSE(to(ones({2}, {i64, cpu}), meta).requires_grad());
}

TEST_CASE("meta: no memory is used", "[ops][meta]") {
  const int64_t n = int64_t{1} << 20;
  reset_peak_memory();
  const int64_t before = memory_stats().peak;
  const TensorOptions o{f32, meta};
  Tensor q = zeros({1, 4, n, 64}, o).requires_grad_(), k = zeros({1, 2, n, 64}, o), v = zeros({1, 2, n, 64}, o);
  backward(sum(attention(rope(q), k, v, {.mask = {.causal = true}})));
  CHECK(facts(q.grad()) == "[1,4,1048576,64] f32");
  CHECK(facts(matmul(q, transpose(repeat_interleave(k, 2, 1), -2, -1))) == "[1,4,1048576,1048576] f32 recorded");
  CHECK(memory_stats().peak - before < 1 << 16);
}
