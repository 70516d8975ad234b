// Walks on several threads that end at the same leaves, and what becomes of the memory of recorded gradients.
#include <sluice/autograd/engine.h>

#include "support/catch.h"
#include "support/child.h"

#include <sluice/core/memory/allocator.h>
#include <sluice/core/kernel/parallel.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/matmul/matmul.h>
#include <sluice/ops/rows/reduce.h>
#include <sluice/ops/shape/view.h>

#include <thread>
#include <vector>

using namespace sluice;

namespace {

/// Every element of x is `value`.
bool all_are(const Tensor& x, double value) {
  for (double v : x.to_vector<double>())
    if (v != value) return false;
  return true;
}

void in_threads(int threads, const std::function<void(int)>& body) {
  std::vector<std::thread> all;
  for (int t = 0; t < threads; ++t) all.emplace_back(body, t);
  for (auto& t : all) t.join();
}

}  // namespace

TEST_CASE("backward: several threads add to one leaf, and nothing is lost", "[engine]") {
  for (int64_t n : {1, 40, 100000})
    for (bool create_graph : {false, true}) {
      INFO("n=" << n << ", create_graph " << create_graph);
      Tensor w = full({n}, 2, {f64}).requires_grad_(), b = zeros({n}, {f64}).requires_grad_();
      const int rounds = n > 1000 ? 20 : 400;
      in_threads(4, [&](int t) {
        for (int i = 0; i < rounds; ++i) {
          Tensor y = w * static_cast<double>(t + 1) + b;  // b's gradient is that of the sum: shared, and a view
          backward(sum(i % 2 ? y : reshape(y, {n, 1})), {}, {.create_graph = create_graph});
          if (create_graph && i % 50 == 0) (void)(w * w);
        }
      });
      CHECK(all_are(w.grad(), rounds * (1 + 2 + 3 + 4)));
      CHECK(all_are(b.grad(), rounds * 4));
      w.zero_grad(), b.zero_grad();
    }
}

TEST_CASE("backward: inside a parallel loop, into one leaf", "[engine]") {
  const std::string said = testing::in_child([] {  // what might wait for itself
    std::string wrong;
    std::thread([&] {
      Tensor w = full({70000}, 2, {f64}).requires_grad_(), m = full({64, 64}, 1, {f64}).requires_grad_();
      parallel_for(60, 1, [&](int64_t i, int64_t) { backward(sum(w * static_cast<double>(i)) + sum(matmul(m, m))); });
      if (!all_are(w.grad(), 59 * 60 / 2)) wrong += "w ";
      if (!all_are(m.grad(), 60 * 128)) wrong += "m";
    }).join();
    return wrong;
  });
  CHECK(said == "");
  Tensor w = full({70000}, 2, {f64}).requires_grad_();
  set_num_threads(4);
  parallel_for(60, 1, [&](int64_t i, int64_t) { backward(sum(w * static_cast<double>(i))); });
  set_num_threads(0);
  CHECK(all_are(w.grad(), 59 * 60 / 2));
}

TEST_CASE("backward: gradients with history are freed once cleared, detached or added to", "[engine]") {
  for (int round = 0; round < 8; ++round) {  // twice: constants that ops keep are made in the first
    const int how = round % 4;
    const int64_t start = memory_stats().live;
    {
      Tensor w = full({1000}, 2).requires_grad_();
      Tensor loss = sum(w * w * w);
      if (how == 3) {
        Tensor g = grad(loss, w, {.create_graph = true});  // keeps nothing by itself
        backward(sum(g));
        CHECK(all_are(w.grad(), 12));
      } else {
        backward(loss, {}, {.create_graph = true});
        const Tensor g = w.grad();
        CHECK(g.requires_grad());
        w.zero_grad();
        backward(sum(g), {}, {.retain_graph = true});
        CHECK(all_are(w.grad(), 12));
        w.set_grad(g);
        if (how == 0) w.zero_grad();
        if (how == 1) w.set_grad(w.grad().detach());
        if (how == 2) backward(sum(w));
        if (how > 0) CHECK(all_are(w.grad(), how == 1 ? 12 : 13));
        CHECK_FALSE(w.grad().requires_grad());
      }
    }
    INFO("way " << how);
    if (round >= 4) CHECK(memory_stats().live == start);
  }
}
