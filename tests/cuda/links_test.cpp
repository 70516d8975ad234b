// Tensors of a device between ranks: directly where the devices are linked, through the host where one cannot; the same
// bits both ways, and one message when something fails.
#include "parallel/ranks.h"
#include "support/approx.h"
#include "support/catch.h"

#include <sluice/core/kernel/link.h>
#include <sluice/layers/nn/linear.h>
#include <sluice/layers/train/data_parallel.h>
#include <sluice/layers/train/graphed_step.h>
#include <sluice/layers/train/optim.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/rows/reduce.h>
#include <sluice/ops/shape/view.h>
#include <sluice/parallel/collectives.h>
#include <sluice/parallel/sequence.h>

#include <atomic>
#include <chrono>
#include <thread>

using namespace sluice;
using namespace sluice::testing;
using detail::DeviceLink, detail::DeviceLinks, detail::DeviceMessages, detail::LinkRequest;

namespace {

const Device gpu = Device::cuda();

// -- links that fail as told ----------------------------------------------------------------------------------------

enum class Fault { none, missing, shared, refused, alone, hangs, half, dies };
std::atomic<Fault> fault = Fault::none;
std::atomic<int> faulty_rank = 0, exchanges = 0;
thread_local int asking = 0;  // this thread's rank, for the questions that do not say

struct Faulty final : DeviceLink {
  std::unique_ptr<DeviceLink> inside;
  int rank;
  Faulty(std::unique_ptr<DeviceLink> l, int r) : inside(std::move(l)), rank(r) {}
  void exchange(DeviceMessages sends, DeviceMessages receives, const std::function<void()>& waiting) override {
    ++exchanges;
    if (rank == faulty_rank && fault == Fault::half) return;  // it is done with its part
    if (rank == faulty_rank && fault == Fault::dies) fail<DeviceError>("the bus is on fire");
    // As a GPU does whose partner never comes.
    while (fault == Fault::hangs || fault == Fault::half || fault == Fault::dies) {
      waiting();
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    inside->exchange(sends, receives, waiting);
  }
};

const DeviceLinks* real = nullptr;
constexpr DeviceLinks kFaulty{[] {
                                if (fault == Fault::missing && asking == faulty_rank)
                                  fail<DeviceError>("libnccl.so.2: no such file");
                                return std::string("tried");
                              },
                              [] { return fault == Fault::shared ? detail::DeviceId{} : real->device(); },
                              [] { return real->new_id(); },
                              [](const LinkRequest& request) -> std::unique_ptr<DeviceLink> {
                                if ((fault == Fault::refused || fault == Fault::alone) && request.rank == faulty_rank)
                                  fail<DeviceError>("two ranks have the same GPU");
                                while (fault == Fault::alone) {  // as NCCL does until all have joined
                                  request.waiting();
                                  std::this_thread::sleep_for(std::chrono::milliseconds(5));
                                }
                                return std::make_unique<Faulty>(real->join(request), request.rank);
                              }};

/// With faulty links for as long as it lives.
struct WithFault {
  WithFault(Fault f, int rank) {
    (void)zeros({1}, {f32, gpu});  // the backend is there
    real = detail::links_of(gpu);
    detail::install_links(DeviceKind::cuda, kFaulty);
    fault = f, faulty_rank = rank, exchanges = 0;
  }
  ~WithFault() { detail::install_links(DeviceKind::cuda, *real), fault = Fault::none; }
};

struct Variable {  // of the environment
  std::string name;
  Variable(const char* n, const char* value) : name(n) { setenv(n, value, 1); }
  ~Variable() { unsetenv(name.c_str()); }
};

/// Every collective on this rank's tensors of a device; results on the host.
std::vector<Tensor> results(const Communicator& all, Device device) {
  asking = all.rank();
  std::vector<Tensor> out;
  for (const DType dtype : {f32, f64, bf16, i64}) {
    Rand rand(static_cast<uint64_t>(all.rank()) + 7);
    const auto make = [&](const Shape& shape) {
      const Tensor x = random_tensor(shape, f64, rand, -30, 30);
      return to(to(to(x, cpu), dtype), device);
    };
    const auto keep = [&](const Tensor& y) {
      expect(y.device() == device, str("on its device: ", y.device()));
      out.push_back(to(y, cpu));
    };
    const Tensor small = make({3, 5}), large = make({3, 2053}), ragged = make({all.rank() % 3, 4}),
                 columns = make({2, 1 + all.rank()});
    for (const Tensor& x : {small, large, make({0, 4}), make({})}) keep(all_reduce(x, all));
    keep(all_reduce(small, all, ReduceOp::max)), keep(all_reduce(large, all, ReduceOp::min));
    keep(reduce(large, all.size() - 1, all)), keep(broadcast(large, all.size() - 1, all));
    keep(all_gather(ragged, 0, all)), keep(all_gather(columns, 1, all));
    keep(reduce_scatter(large, 1, all)), keep(ring_shift(ragged, 1, all)),
        keep(ring_shift(columns, -1, all, {false, 1}));
    Tensor background = clone(large);
    start_all_reduce(background, all).wait();
    keep(background);
    Tensor rows = empty({3 * all.size(), 5}, {dtype, device});
    start_all_gather(small, rows, all).wait();
    keep(rows);
  }
  return out;
}

void expect_same(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  expect(a.size() == b.size(), "as many");
  for (std::size_t i = 0; i < a.size(); ++i)
    expect(same_bits(a[i], b[i]), str("result ", i, ": ", a[i], " and ", b[i]));
}

}  // namespace

TEST_CASE("links: collectives of a device's tensors have the host's bits and traffic") {
  on_ranks([](const Communicator& all) {
    const auto want = results(all, cpu);
    const Traffic::Count there = all.traffic().total();
    all.reset_traffic();
    const auto got = results(all, gpu);
    const Traffic::Count here = all.traffic().total();
    expect_same(want, got);
    expect(here.bytes == there.bytes && here.messages == there.messages, "as much is sent");
    expect(all.device_link() == (all.size() == 1 ? "" : "emulated"), all.device_link());
  });
}

TEST_CASE("links: without a link on one rank all go through the host") {
  for (const auto& [f, why] : {std::pair{Fault::missing, "host: rank 1: libnccl.so.2: no such file"},
                               std::pair{Fault::shared, "host: rank 1 shares its device with rank 0"},
                               std::pair{Fault::refused, "host: rank 1: two ranks have the same GPU"}}) {
    const WithFault with(f, 1);
    run_ranks(3, [&](const Communicator& all) {
      expect_same(results(all, cpu), results(all, gpu));
      expect(all.device_link() == why, all.device_link());
    });
    CHECK(exchanges == 0);
  }
  const WithFault with(Fault::none, 0);
  {
    const Variable off("SLUICE_NCCL", "off");
    run_ranks(2, [](const Communicator& all) {
      expect_same(results(all, cpu), results(all, gpu));
      expect(all.device_link() == "host: rank 0: SLUICE_NCCL=off in the environment", all.device_link());
    });
    CHECK(exchanges == 0);
  }
  run_ranks(2, [](const Communicator& all) { expect_same(results(all, cpu), results(all, gpu)); });
  CHECK(exchanges > 0);  // the counter counts
}

TEST_CASE("links: a link that is demanded and missing ends all ranks with one message") {
  const WithFault with(Fault::missing, 2);
  const Variable on("SLUICE_NCCL", "on");
  for (const std::string& e : errors_on_ranks(3, [](const Communicator& all) {
         asking = all.rank();
         all_reduce(ones({3}, {f32, gpu}), all);
       }))
    CHECK(e ==
          "SLUICE_NCCL=on, but the devices of these ranks have no link — host: rank 2: libnccl.so.2: no such file");
}

TEST_CASE("links: devices that never answer, and one that fails") {
  {
    const WithFault with(Fault::hangs, 0);
    const auto errors = errors_on_ranks(3, [](const Communicator& all) {
      all.set_timeout(0.3);
      asking = all.rank();
      all_reduce(ones({3}, {f32, gpu}), all);
    });
    for (const std::string& e : errors)
      CHECK(e == "all_reduce: devices did not exchange their messages within 0.3 s, though all ranks wait");
  }
  const WithFault with(Fault::dies, 1);
  const auto errors = errors_on_ranks(3, [](const Communicator& all) {
    asking = all.rank();
    all_reduce(ones({3}, {f32, gpu}), all);
  });
  CHECK(errors[1] == "the bus is on fire");
  for (const int r : {0, 2}) CHECK(errors[static_cast<std::size_t>(r)] == "rank 1 failed: the bus is on fire");
}

TEST_CASE("links: an exchange in the background is no part of a recorded step") {
  run_ranks(2, [](const Communicator& all) {
    const Tensor x = ones({3}, {f32, gpu}), w = ones({3}, {f32, gpu}).requires_grad_();
    GraphedStep step(std::vector<NamedTensor>{{"w", w}}, [&](const std::vector<Tensor>& in) {
      Tensor y = clone(in[0]);
      start_all_reduce(y, all).wait();
      return sum(w * y);
    });
    expect(step({x}).item() == 6, "is done where nothing is recorded");
    std::string what;
    try {
      step({x});
    } catch (const DeviceError& e) { what = e.what(); }
    expect(what.starts_with("start_all_reduce: exchanging with other ranks cannot be recorded in a graph"), what);
  });
}

TEST_CASE("links: where one rank cannot join, the others wait in vain, and all go through the host") {
  const WithFault with(Fault::alone, 1);
  run_ranks(3, [](const Communicator& all) {
    asking = all.rank();
    all.barrier();
    all.set_timeout(1);
    const Tensor y = all_reduce(ones({3}, {f32, gpu}), all);
    expect(to(y, cpu).to_vector() == std::vector<float>{3, 3, 3}, "the sum");
    expect(all.device_link() == "host: rank 1: two ranks have the same GPU", all.device_link());
  });
  CHECK(exchanges == 0);
}

TEST_CASE("links: a roll call is not mistaken for the message of a rank that has gone on") {
  const WithFault with(Fault::half, 1);
  for (const std::string& e : errors_on_ranks(2, [](const Communicator& all) {
         asking = all.rank();
         all.barrier();
         all.set_timeout(all.rank() == 1 ? 30 : 0.5);
         all_reduce(ones({3}, {f32, gpu}), all);
         all.barrier();
       }))
    CHECK(e ==
          "all_reduce: nothing arrived within 2 s, all wait for one another — rank 0 in all_reduce, rank 1 in barrier");
}

TEST_CASE("links: a rank on a device and one on the host disagree") {
  const auto errors = errors_on_ranks(2, [](const Communicator& all) {
    all_reduce(ones({3}, {f32, all.rank() ? gpu : cpu}), all);
  });
  for (const std::string& e : errors)
    CHECK(e ==
          "all_reduce: ranks disagree — rank 1 calls all_reduce(sum) f32[3] on a GPU; the others call all_reduce(sum) "
          "f32[3]");
}

TEST_CASE("links: data-parallel training on devices, with moments spread over ranks") {
  const auto train = [](const Communicator& all, Device device) {
    Rng rng(3);
    Linear a({.in = 6, .out = 9}, rng),
        b({.in = 9, .out = 2, .bias = false}, rng);  // three tensors: of four ranks one keeps no moments
    for (Tensor* w : {&a.weight, &a.bias, &b.weight}) *w = to(w->detach(), device).requires_grad_();
    const std::vector<NamedTensor> state{{"a.weight", a.weight}, {"a.bias", a.bias}, {"b.weight", b.weight}};
    DataParallel parallel(state, all, {.bucket_bytes = 100});
    Adam adam(state, {.lr = 1e-2});
    adam.shard(all);
    const Tensor x = to(normal({8, 6}, 0, 1, rng), device);
    std::vector<double> losses;
    for (int step = 0; step < 5; ++step) {
      const Tensor mine = rows_of(x, all), loss = mean(square(b(tanh(a(mine)))));
      adam.zero_grad();
      const int before = exchanges;
      parallel.backward(loss, static_cast<double>(mine.dim(0)));
      if (device == gpu && all.size() > 1) expect(exchanges > before, "gradients go from device to device");
      adam.step();
      losses.push_back(parallel.mean(loss.item(), static_cast<double>(mine.dim(0))));
    }
    return losses;
  };
  const WithFault counting(Fault::none, 0);
  const auto want = train(Communicator(), cpu);
  on_ranks([&](const Communicator& all) {
    const auto got = train(all, gpu);
    for (std::size_t i = 0; i < want.size(); ++i)
      expect(std::abs(got[i] - want[i]) < 1e-5 * want[i], str("loss ", i, ": ", got[i], ", alone ", want[i]));
    expect(want.back() < 0.9 * want[0], "it learns");
  });
}
