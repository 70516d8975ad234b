// Long graphs: no recursion anywhere, saved tensors freed on the way, memory back where it began.
#include <sluice/autograd/engine.h>

#include "support/catch.h"

#include <sluice/autograd/dot.h>
#include <sluice/autograd/function.h>
#include <sluice/core/memory/allocator.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/index/gather.h>
#include <sluice/ops/rows/reduce.h>
#include <sluice/ops/shape/view.h>

#include <pthread.h>

#include <exception>
#include <functional>

using namespace sluice;
using Doubles = std::vector<double>;

namespace {

constexpr int kDepth = 1'000'000;

/// Runs f on a thread with a stack of its own size and hands its exception on.
void with_stack(std::size_t bytes, std::function<void()> f) {
  struct Job {
    std::function<void()> f;
    std::exception_ptr error;
  } job{std::move(f), nullptr};
  pthread_attr_t attributes;
  pthread_t thread;
  REQUIRE(pthread_attr_init(&attributes) == 0);
  REQUIRE(pthread_attr_setstacksize(&attributes, bytes) == 0);
  auto run = [](void* p) -> void* {
    Job& j = *static_cast<Job*>(p);
    try {
      j.f();
    } catch (...) { j.error = std::current_exception(); }
    return nullptr;
  };
  REQUIRE(pthread_create(&thread, &attributes, run, &job) == 0);
  pthread_join(thread, nullptr);
  pthread_attr_destroy(&attributes);
  if (job.error) std::rethrow_exception(job.error);
}

Tensor leaf(double v) { return Tensor::from<double>({v}, {}).requires_grad_(); }

}  // namespace

TEST_CASE("deep: a chain of a million nodes goes forward, backward and away", "[engine][deep]") {
  const int64_t start = memory_stats().live;
  double gradient = 0;
  with_stack(std::size_t{8} << 20, [&] {
    Tensor x = leaf(2), y = x;
    for (int i = 0; i < kDepth; ++i) y = y + 1e-6;
    backward(y);
    gradient = x.grad().item();
  });
  CHECK(gradient == 1);
  CHECK(memory_stats().live == start);
}

TEST_CASE("deep: a million nodes of two inputs each, which save their inputs", "[engine][deep]") {
  const int64_t start = memory_stats().live;
  double got = 0, expected = 0;
  with_stack(std::size_t{8} << 20, [&] {
    Tensor x = leaf(1), w = leaf(1), y = x;
    for (int i = 0; i < kDepth / 2; ++i) y = y * w + x;  // w = 1: y grows by 1
    std::vector<Tensor> g = grad({y}, {x, w});
    got = g[0].item();
    expected = g[1].item();
  });
  CHECK(got == kDepth / 2 + 1);
  CHECK(expected == 0.5 * (kDepth / 2) * (kDepth / 2 + 1.0));
  CHECK(memory_stats().live == start);
}

TEST_CASE("deep: teardown without a walk, in a small stack", "[engine][deep]") {
  const int64_t start = memory_stats().live;
  with_stack(std::size_t{256} << 10, [&] {
    Tensor x = leaf(0.5), y = x;
    for (int i = 0; i < kDepth / 4; ++i) y = sin(y * x);
    y = Tensor();
    CHECK(memory_stats().live <= start + 1024);
  });
  CHECK(memory_stats().live == start);
}

TEST_CASE("deep: views, pieces and custom ops unwind in a loop too", "[engine][deep]") {
  const int64_t start = memory_stats().live;
  with_stack(std::size_t{256} << 10, [&] {
    Tensor x = Tensor::from<double>({1, 2}).requires_grad_(), y = x;
    for (int i = 0; i < 20000; ++i) {
      y = flip(y, {0});
      auto p = split(y, {1, 1});
      y = cat({p[1], p[0]});
      y = custom_op(
          "same", {y}, [](const Tensors& in) { return in[0]; },
          [](const Tensor& g, const Tensors&, const Tensor&) -> Tensors { return {g}; });
    }
    CHECK(to_dot(y).size() > 20000);
    backward(y, Tensor::from<double>({3, 4}));
    CHECK(x.grad().to_vector<double>() == Doubles{3, 4});
  });
  CHECK(memory_stats().live == start);
}

TEST_CASE("deep: a recorded gradient of a long chain unwinds", "[engine][deep]") {
  Tensor warm = leaf(1);  // the library makes its constants at first use
  grad(sin(warm), warm, {.create_graph = true});
  const int64_t start = memory_stats().live;
  with_stack(std::size_t{256} << 10, [&] {
    Tensor x = leaf(0.3), y = x;
    for (int i = 0; i < 20000; ++i) y = sin(y);
    Tensor g = grad(y, x, {.create_graph = true});
    CHECK(grad(g, x).defined());
  });
  CHECK(memory_stats().live == start);
}

TEST_CASE("deep: a tensor that only a node still holds is freed with it", "[engine][deep]") {
  const int64_t start = memory_stats().live;
  {
    Tensor y;
    {
      Tensor x = leaf(2), big = ones({1000, 1000}, {f64});
      y = sum(big * x);
    }
    CHECK(memory_stats().live > start + 8'000'000);
    backward(y);  // frees what was saved; y itself lives on
    CHECK(memory_stats().live < start + 10'000);
  }
  CHECK(memory_stats().live == start);
}

TEST_CASE("memory: saved tensors are freed during the walk", "[engine]") {
  constexpr int kLength = 100;
  constexpr int64_t kBlock = 1 << 20;
  const int64_t start = memory_stats().live;
  {
    Tensor x = zeros({kBlock / 8}, {f64}).requires_grad_(), y = x;
    std::vector<int64_t> live;
    for (int i = 0; i < kLength; ++i) {
      y = tanh(y);
      y.register_hook([&](const Tensor&) {
        live.push_back(memory_stats().live - start);
        return Tensor();
      });
    }
    Tensor loss = sum(y);
    y = Tensor();
    const int64_t before = memory_stats().live;
    CHECK(before - start >= kLength * kBlock);
    reset_peak_memory();
    backward(loss);
    CHECK(memory_stats().peak <= before + 4 * kBlock * 5 / 4);
    REQUIRE(live.size() == kLength);
    CHECK(live.back() < live.front() / 4);
    // x, its gradient, and nothing of the chain.
    CHECK(memory_stats().live - start <= 3 * kBlock * 5 / 4);
  }
  CHECK(memory_stats().live == start);
}

TEST_CASE("memory: retain_graph keeps what was saved, and gives the same gradient again", "[engine]") {
  const int64_t start = memory_stats().live;
  {
    Tensor x = leaf(0.7), y = x;
    for (int i = 0; i < 100; ++i) y = tanh(y);
    double a = grad(y, x, {.retain_graph = true}).item(), b = grad(y, x, {.retain_graph = true}).item();
    CHECK(a == b);
    CHECK(grad(y, x).item() == a);
  }
  CHECK(memory_stats().live == start);
}

TEST_CASE("memory: a gradient of many uses is summed in one buffer", "[engine]") {
  constexpr int64_t kBlock = 1 << 20;
  Tensor x = ones({kBlock / 4}).requires_grad_(), y = Tensor(0.f);
  for (int i = 0; i < 50; ++i) y = y + sum(x * 2.0);
  const int64_t before = memory_stats().live;
  reset_peak_memory();
  backward(y);
  CHECK(memory_stats().peak - before <= 4 * kBlock * 5 / 4);
  CHECK(x.grad().to_vector<float>()[7] == 100);
}

TEST_CASE("memory: the gradients of slices are added in their boxes of one sum", "[engine][slice]") {
  constexpr int64_t kRows = 64, kBlock = 1 << 20;
  Tensor x = ones({kRows, kBlock / 4 / kRows}).requires_grad_(), y = Tensor(0.f);
  for (int64_t i = 0; i < kRows; ++i) y = y + sum(x[i]) * static_cast<double>(i);
  const int64_t before = memory_stats().live;
  reset_peak_memory();
  backward(y);
  CHECK(memory_stats().peak - before <= kBlock * 5 / 4);  // a tensor of zeros around a row would be another block
  for (const int64_t i : {int64_t{0}, int64_t{1}, kRows - 1}) CHECK(x.grad()[i][5].item<int64_t>() == i);
}

TEST_CASE("memory: the gradients of tokens are added in their rows of one table", "[engine][slice]") {
  constexpr int64_t kRows = 64, kBlock = 1 << 20;
  Tensor x = ones({kRows, kBlock / 4 / kRows}).requires_grad_(), y = Tensor(0.f);
  for (int64_t i = 0; i < kRows; ++i)
    y = y + sum(embedding(x, Tensor::from<int64_t>({i, 3, i}))) * static_cast<double>(i);
  const int64_t before = memory_stats().live;
  reset_peak_memory();
  backward(y);
  CHECK(memory_stats().peak - before <= kBlock * 3 / 2);  // a table of zeros for each call would be another block
  for (const int64_t i : {int64_t{0}, int64_t{1}, kRows - 1}) CHECK(x.grad()[i][5].item<int64_t>() == 2 * i);
  CHECK(x.grad()[3][5].item<int64_t>() == 6 + kRows * (kRows - 1) / 2);
}

TEST_CASE("backward: slices that overlap, in any order and beside other uses, add up as recorded", "[engine][slice]") {
  for (const DType dtype : {f64, f32, bf16}) {
    Tensor x = to(arange(24.0), dtype);
    x = reshape(x, {4, 6}).requires_grad_();
    const auto loss = [&](bool first) {
      Tensor y = sum(select(x, 1, 2) * 3.0) + sum(slice(x, 1, 1, 6, 2) * slice(x, 1, 0, 5, 2)) + sum(x[1] * x[3]);
      y = y + sum(index_select(x, 1, Tensor::from<int64_t>({4, 1, 4})) * narrow(x, 1, 1, 3));
      y = y + sum(index_select(transpose(x, 0, 1), 0, Tensor::from<int64_t>({5, 5})) * 2.0);
      y = y + sum(narrow(flip(x, {1}), 1, 1, 3) * 5.0) + sum(narrow(transpose(x, 0, 1), 0, 2, 2) * 2.0);
      return first ? y + sum(square(x)) : sum(square(x)) + y;
    };
    for (const bool first : {true, false}) {
      CAPTURE(dtype, first);
      x.zero_grad();
      backward(loss(first), {.retain_graph = true});
      const Tensor recorded = grad(loss(first), x, {.create_graph = true});
      CHECK(x.grad().to_vector() == recorded.to_vector());
      CHECK(grad(loss(first), x).to_vector() == recorded.to_vector());
    }
  }
}

TEST_CASE("backward: a slice leaves alone a gradient that somebody holds", "[engine][slice]") {
  Tensor x = leaf(1), h = cat({reshape(x, {1}), reshape(x, {1})}), seen;
  const Tensor whole = h * 2.0, given = Tensor::from<double>({10, 20});
  grad({h[0], h}, {x}, {.retain_graph = true, .grad_outputs = {Tensor::from<double>({3}, {}), given}});
  CHECK(given.to_vector<double>() == Doubles{10, 20});
  h.register_hook([&](const Tensor& g) { return seen = g, Tensor(); });
  backward(sum(h) + h[0] * 7.0);
  CHECK(seen.to_vector<double>() == Doubles{8, 1});
}

TEST_CASE("memory: an exception in the middle of a walk leaks nothing", "[engine]") {
  const int64_t start = memory_stats().live;
  {
    Tensor x = leaf(1), y = x;
    for (int i = 0; i < 1000; ++i) {
      y = exp(y * 0.0);
      if (i == 500)
        y = custom_op(
            "fragile", {y}, [](const Tensors& in) { return in[0] * 1.0; },
            [](const Tensor&, const Tensors&, const Tensor&) -> Tensors { throw 1; });
    }
    CHECK_THROWS_AS(backward(y), int);
  }
  CHECK(memory_stats().live == start);
}
