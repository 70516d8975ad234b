// Data-parallel training that goes on after an error: the next backward pass is as if the failed one had not been.
#include <sluice/layers/gau/gau.h>
#include <sluice/layers/nn/linear.h>
#include <sluice/layers/train/data_parallel.h>

#include "parallel/ranks.h"
#include "support/approx.h"
#include "support/catch.h"

#include <sluice/autograd/engine.h>
#include <sluice/autograd/function.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/rows/reduce.h>
#include <sluice/layers/train/models.h>
#include <sluice/layers/train/optim.h>
#include <sluice/ops/shape/view.h>
#include <sluice/parallel/sequence.h>
#include <sluice/ops/shape/create.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <string>

using namespace sluice;
using namespace sluice::testing;

TEST_CASE("data parallel: a backward pass that failed leaves no weight and no order", "[parallel]") {
  CHECK_NOTHROW(on_ranks([](const Communicator& all) {
    for (const int64_t bucket_bytes : {1, 4 << 20}) {  // of one parameter each; of both
      const double weight = all.rank() + 1;
      Tensor a = ones({2}, {f64}).requires_grad_(), b = ones({2}, {f64}).requires_grad_();
      DataParallel parallel(std::vector<NamedTensor>{{"b", b}, {"a", a}}, all, {.bucket_bytes = bucket_bytes});
      const auto loss = [&](bool fails) {  // the gradient of a arrives before that of b
        const Tensor last = custom_op(
            "last", {b}, [](const Tensors& in) { return in[0] * 1.0; },
            [fails](const Tensor& g, const Tensors&, const Tensor&) -> Tensors {
              if (fails) fail<ValueError>("last: fails");
              return {g};
            });
        return sum(a * 2.0) + sum(last);
      };
      const auto refused = [&](const Tensor& y) {
        try {
          parallel.backward(y, weight);
        } catch (const Error&) { return true; }
        return false;
      };
      const auto expect_gradients = [&](double of_a, double of_b, const char* what) {
        expect(max_abs_diff(a.grad(), full({2}, of_a, {f64})) < 1e-14, what);
        expect(max_abs_diff(b.grad(), full({2}, of_b, {f64})) < 1e-14, what);
        a.zero_grad(), b.zero_grad();
      };
      expect(refused(loss(true)), "an error of the walk");
      a.zero_grad(), b.zero_grad();
      for (int step = 0; step < 3; ++step) {
        parallel.backward(loss(false), weight);
        expect_gradients(2, 1, "after an error of the walk");
      }
      parallel.accumulate(loss(false), weight);
      expect(refused(a * 1.0), "a loss of two elements");
      parallel.backward(loss(false) * 3.0, weight);
      expect_gradients(4, 2, "after a loss of two elements");
    }
  }));
}

TEST_CASE("data parallel: a gradient of an earlier step is an error on any number of ranks", "[parallel]") {
  CHECK_NOTHROW(on_ranks([](const Communicator& all) {
    Tensor w = ones({2}, {f64}).requires_grad_();
    DataParallel parallel(std::vector<NamedTensor>{{"w", w}}, all);
    const auto refused = [&](const auto& call) {
      try {
        call();
      } catch (const ValueError& e) {
        return std::string(e.what()).find("parameter 'w' has a gradient already; call zero_grad()") !=
               std::string::npos;
      }
      return false;
    };
    const auto loss = [&] { return sum(w * (all.rank() + 1.0)); };
    parallel.backward(loss());
    expect(refused([&] { parallel.backward(loss()); }), "zero_grad() was forgotten");
    expect(refused([&] { parallel.accumulate(loss()); }), "zero_grad() was forgotten before accumulate()");
    w.zero_grad();
    backward(loss());
    expect(refused([&] { parallel.backward(loss()); }), "a backward() that is not of this");
    w.zero_grad();
    parallel.accumulate(loss()), parallel.accumulate(loss());
    parallel.backward(loss());
    expect(max_abs_diff(w.grad(), full({2}, 0.5 * (all.size() + 1), {f64})) < 1e-14, "the mean of all losses");
    w.zero_grad();
    parallel.accumulate(loss() * 7.0, 3);
    w.zero_grad();
    parallel.backward(loss());
    expect(max_abs_diff(w.grad(), full({2}, 0.5 * (all.size() + 1), {f64})) < 1e-14, "zero_grad() takes a loss back");
    w.zero_grad();
    try {
      parallel.backward(loss(), 0);
      expect(false, "all weights are 0");
    } catch (const ValueError&) {}
    expect(!w.grad().defined(), "losses of weight 0 leave no gradient");
    Tensor other = ones({2}, {f64}).requires_grad_();  // not of the model: its loss reaches no parameter, but counts
    parallel.accumulate(sum(other), 1);
    parallel.backward(loss());
    expect(max_abs_diff(w.grad(), full({2}, 0.25 * (all.size() + 1), {f64})) < 1e-14, "a loss that reaches nothing");
  }));
}

TEST_CASE("data parallel: an error of the walk forgets the weights of accumulate()", "[parallel]") {
  CHECK_NOTHROW(on_ranks([](const Communicator& all) {
    Tensor w = ones({2}, {f64}).requires_grad_();
    DataParallel parallel(std::vector<NamedTensor>{{"w", w}}, all);
    const Tensor bad = custom_op(
        "bad", {w}, [](const Tensors& in) { return sum(in[0]); },
        [](const Tensor&, const Tensors&, const Tensor&) -> Tensors { fail<ValueError>("bad: fails"); });
    parallel.accumulate(sum(w));
    try {
      parallel.backward(bad);
    } catch (const Error&) {}
    w.zero_grad();
    parallel.backward(sum(w));
    expect(max_abs_diff(w.grad(), ones({2}, {f64})) < 1e-14, "the gradient of the second loss alone");
  }));
}

TEST_CASE("data parallel: a rank whose piece of a sequence has no counted tokens takes part", "[parallel]") {
  Rng rng(1);
  const Gau whole({.dim = 8, .causal = true, .dtype = f64}, rng);
  const Tensor x = normal({1, 9, 8}, 0, 1, rng, {f64});
  const int64_t counted = 3;  // the first tokens: with four ranks those of one rank
  Gau alone = clone(whole);
  backward(mean(square(narrow(alone(x), 1, 0, counted))));
  for (const bool after : {false, true})
    CHECK_NOTHROW(on_ranks([&](const Communicator& all) {  // backward in the scope, or after it
      Gau gau = clone(whole);
      DataParallel parallel(gau, all);
      std::optional<SequenceScope> scope(std::in_place, all);
      const Tensor y = gau(rows_of(x, all, 1));
      const int64_t begin = sequence_piece(y.dim(1)).first, mine = std::clamp<int64_t>(counted - begin, 0, y.dim(1));
      const auto tokens = static_cast<double>(mine);
      const Tensor loss = sum(square(narrow(y, 1, 0, mine))) / std::max(1.0, tokens * 8);
      if (after) scope.reset();
      parallel.backward(loss, tokens);
      expect(max_abs_diff(gau.in.weight.grad(), alone.in.weight.grad()) < 1e-12, "the gradient of the whole");
      parallel.accumulate(Tensor(), 0);  // of another sequence, of which this rank has nothing
    }));
}

TEST_CASE("data parallel: a weight that bf16 has not is divided out again", "[parallel][bf16]") {
  run_ranks(2, [&](const Communicator& all) {
    Rng rng(1);
    Linear map({1, 1, false, Init::lecun(), bf16}, rng);
    DataParallel parallel(map, all);
    parallel.backward(sum(map(ones({1, 1}, {bf16}))), 257);
    expect(map.weight.grad().item() == 1, "the mean of gradients of 1 is 1");
  });
}

TEST_CASE("data parallel: a parameter that was frozen and is not any more is an error", "[parallel]") {
  CHECK_NOTHROW(on_ranks([](const Communicator& all) {
    Tensor a = ones({2}).requires_grad_(), b = ones({2});
    DataParallel parallel(std::vector<NamedTensor>{{"a", a}, {"b", b}}, all);
    parallel.backward(sum(a * b));
    b.requires_grad_();
    std::string said;
    try {
      parallel.backward(sum(a * b));
    } catch (const ValueError& e) { said = e.what(); }
    expect(said.find("'b' was frozen when this was made") != std::string::npos, said.c_str());
  }));
}

TEST_CASE("data parallel: buffers of whole numbers and bools are those of rank 0", "[parallel]") {
  CHECK_NOTHROW(on_ranks([](const Communicator& all) {
    Tensor w = ones({2}).requires_grad_(), count = full({3}, all.rank() + 5, {i32}),
           flags = full({3}, all.rank() == 0, {boolean});
    DataParallel parallel(std::vector<NamedTensor>{{"w", w}, {"count", count}, {"flags", flags}}, all);
    expect(count.to_vector<double>() == std::vector<double>{5, 5, 5}, "i32");
    expect(sluice::all(flags).item() == 1, "bool");
  }));
}

TEST_CASE("optimizer: shards whose ranks have gradients of different parameters say so, each", "[parallel]") {
  // On rank 1 b has no gradient, none has one, or b has no gradient and no owner.
  for (const std::string said : {"got '-x'", "none of 2 parameters has", "'b' of shape [2] belongs to no model"}) {
    std::atomic<int> refused = 0;
    run_ranks(2, [&](const Communicator& all) {
      Tensor w = ones({2}).requires_grad_(), b = ones({2}).requires_grad_();
      Sgd sgd({{"b", b}, {"w", w}}, {.lr = 1});
      sgd.shard(all);
      const bool odd = all.rank() == 1;
      if (!odd || !said.starts_with("none")) backward(odd ? sum(w) : sum(w * b));
      if (odd && said.starts_with("'b'")) b = Tensor();
      try {
        sgd.step();
      } catch (const CommunicationError& e) {
        const std::string what = e.what();
        if (what.find("that have a gradient") != what.npos && what.find(said) != what.npos) ++refused;
      }
      for (const NamedTensor& p : sgd.parameters())
        expect(p.tensor.to_vector() == std::vector<float>{1, 1} && sgd.steps() == 0, "nothing has changed");
    });
    CHECK(refused == 2);
  }
}

TEST_CASE("data parallel: a tied tensor is one parameter, on one rank as on two", "[parallel]") {
  for (const int ranks : {1, 2})
    run_ranks(ranks, [](const Communicator& all) {
      Tensor tied = ones({1}, {f64}).requires_grad_();
      DataParallel parallel(std::vector<NamedTensor>{{"a", tied}, {"b", tied}}, all);
      parallel.accumulate(sum(tied) * 3.0, 2);
      parallel.backward(sum(tied) * 3.0, 2);
      if (tied.grad().item<double>() != 3) fail<ValueError>("the gradient is ", tied.grad().item<double>());
    });
}

TEST_CASE("data parallel: a loss that is undefined but has a weight is named", "[parallel][threads]") {
  const auto made = [](const Communicator& all) {
    return DataParallel(std::vector<NamedTensor>{{"a", ones({2}).requires_grad_()}}, all);
  };
  const auto none = Contains("data_parallel: the loss of weight 3 is undefined");
  CHECK_THROWS_WITH(made(Communicator()).backward({}, 3), none);
  CHECK_THROWS_WITH(made(Communicator()).accumulate({}, 3), none);
  CHECK_THROWS_WITH(run_ranks(2, [&](const Communicator& all) { made(all).backward({}, 3); }), none);
  CHECK_NOTHROW(made(Communicator()).accumulate({}, 0));
  for (const double weight : {-1.0, std::nan(""), double{INFINITY}}) {
    const auto refused = Contains("data_parallel: a weight must be >= 0");
    CHECK_THROWS_WITH(made(Communicator()).mean(3, weight), refused);
    CHECK_THROWS_WITH(run_ranks(2, [&](const Communicator& all) { made(all).mean(3, weight); }), refused);
  }
  const Tensor loss = sum(ones({2}).requires_grad_());
  const auto beyond = Contains("data_parallel: the weight 1e+39 is inf in f32");
  CHECK_THROWS_WITH(made(Communicator()).backward(loss, 1e39), beyond);
  CHECK_THROWS_WITH(made(Communicator()).accumulate(loss, 1e39), beyond);
  CHECK_THROWS_WITH(made(Communicator()).backward(loss, 1e-46), Contains("the weight 1e-46 is 0 in f32"));
}
