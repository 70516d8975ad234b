// Data-parallel training against the same training in one process.
#include <sluice/layers/train/data_parallel.h>

#include "parallel/ranks.h"
#include "support/approx.h"
#include "support/catch.h"
#include "support/temp_folder.h"
#include "support/worse.h"

#include <sluice/autograd/engine.h>
#include <sluice/autograd/function.h>
#include <sluice/layers/gau/gau.h>
#include <sluice/layers/nn/linear.h>
#include <sluice/layers/train/training.h>
#include <sluice/ops/elementwise/activation.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/rows/loss.h>
#include <sluice/ops/rows/reduce.h>
#include <sluice/ops/shape/view.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <optional>

using namespace sluice;
using namespace sluice::testing;

namespace {

struct Model {
  Linear in;
  Gau gau;
  Linear out;
  Tensor unused;  // no loss reaches it

  explicit Model(uint64_t seed, DType dtype = f64, int64_t width = 6) : Model(Rng(seed), dtype, width) {}
  Model(Rng rng, DType dtype, int64_t width)
      : in({.in = 3, .out = width}, rng), gau({.dim = width, .key_dim = 4, .causal = true}, rng),
        out({.in = width, .out = 5}, rng), unused(zeros({2}).requires_grad_()) {
    to(*this, dtype);
  }
  Tensor operator()(const Tensor& x) const { return out(gau(in(x))); }
  SLUICE_PARTS(in, gau, out, unused);
};

struct How {
  int64_t batch = 5, steps = 50;
  int64_t bucket_bytes = 4 << 20;
  bool overlap = true, shard = false, lamb = false;
  int micro = 1;  // batches in a step
  DType dtype = f64;
  std::optional<DType> made = std::nullopt;  // of model and optimiser, before they are converted
};

std::unique_ptr<Optimizer> optimizer_of(const Model& m, const How& how) {
  if (how.lamb) return std::make_unique<Lamb>(parameters(m), LambOptions{.lr = 0.01, .weight_decay = 0.1});
  return std::make_unique<Adam>(parameters(m), AdamOptions{.lr = 0.01, .weight_decay = 0.1});
}

/// A step's batch, which every rank draws: rows of 4 tokens and their classes.
std::pair<Tensor, Tensor> draw_batch(const How& how, Rng& rng) {
  Tensor x = to(normal({how.batch, 4, 3}, 0, 1, rng, {f64}), how.dtype);
  return {x, argmax(x, -1)};
}

/// The steps' losses; `ranks` undefined: as anyone writes it for one process.
std::vector<double> train(const Model& m, Optimizer& adam, Rng& rng, const How& how, std::optional<Communicator> ranks,
                          DataParallel* parallel) {
  std::vector<double> losses;
  for (int64_t step = 0; step < how.steps; ++step) {
    adam.zero_grad();
    double sum = 0;
    for (int k = 0; k < how.micro; ++k) {
      auto [x, t] = draw_batch(how, rng);
      if (!ranks) {
        Tensor loss = cross_entropy(m(x), t);
        backward(loss / static_cast<double>(how.micro));
        sum += loss.item();
        continue;
      }
      x = rows_of(x, *ranks), t = rows_of(t, *ranks);
      const auto tokens = static_cast<double>(t.numel());
      Tensor loss = tokens > 0 ? cross_entropy(m(x), t) : Tensor();
      if (k + 1 < how.micro) parallel->accumulate(loss, tokens);
      else parallel->backward(loss, tokens);
      sum += parallel->mean(tokens > 0 ? loss.item() : 0, tokens);
    }
    clip_grad_norm(adam.parameters(), 0.5);
    adam.step();
    losses.push_back(sum / how.micro);
  }
  return losses;
}

std::vector<double> train_alone(const How& how) {
  Model m(1, how.dtype);
  auto adam = optimizer_of(m, how);
  Rng rng(3);
  return train(m, *adam, rng, how, std::nullopt, nullptr);
}

struct Trained {
  std::vector<double> losses;
  std::vector<Tensor> values;
};
Trained train_together(const How& how, const Communicator& all) {
  Model m(1 + static_cast<uint64_t>(all.rank()), how.made.value_or(how.dtype));  // rank 0's values count
  DataParallel parallel(m, all, {how.bucket_bytes, how.overlap});
  auto adam = optimizer_of(m, how);
  if (how.shard) adam->shard(all);
  to(m, how.dtype);
  Rng rng(3);
  Trained t{train(m, *adam, rng, how, all, &parallel), {}};
  expect(!m.unused.grad().defined() && max_abs(m.unused) == 0, "a parameter without a gradient stays as it is");
  for (const NamedTensor& p : parameters(m)) t.values.push_back(p.tensor.detach());
  return t;
}

double worst(const std::vector<double>& a, const std::vector<double>& b) {
  double most = a.size() == b.size() ? 0 : INFINITY;
  for (std::size_t i = 0; i < a.size() && i < b.size(); ++i)
    if (a[i] != b[i]) most = worse(most, std::abs(a[i] - b[i]) / std::abs(b[i]));
  return most;
}

bool same_values(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  bool same = a.size() == b.size();
  for (std::size_t i = 0; same && i < a.size(); ++i) same = same_bits(a[i], b[i]);
  return same;
}

std::string bytes_of(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

}  // namespace

TEST_CASE("data parallel: a model that is converted after it was shared trains as one that was before", "[parallel]") {
  CHECK_NOTHROW(on_ranks([](const Communicator& all) {
    for (bool shard : {false, true}) {
      const Trained want = train_together({.steps = 6, .shard = shard}, all);
      const Trained late = train_together({.steps = 6, .shard = shard, .made = f32}, all);
      expect(late.losses == want.losses && same_values(late.values, want.values), str("bits, shard ", shard));
    }
  }));
}

TEST_CASE("data parallel: 50 steps as in one process, whatever the number of ranks", "[parallel]") {
  for (const How& how : {How{}, How{.batch = 2}, How{.batch = 7, .steps = 10, .micro = 3},
                         How{.steps = 10, .lamb = true}, How{.steps = 10, .dtype = bf16}}) {
    const std::vector<double> alone = train_alone(how);
    REQUIRE(std::abs(alone.back() - alone.front()) > 0.01);  // it learns, so that mistakes show
    CHECK_NOTHROW(on_ranks([&](const Communicator& all) {
      const Trained whole = train_together(how, all);
      expect(worst(whole.losses, alone) <= (all.size() == 1 && how.micro == 1 ? 0
                                            : how.dtype == bf16               ? 0.02
                                                                              : 1e-12),
             str("losses, ", all.size(), " ranks: ", worst(whole.losses, alone)));
      // Neither how gradients are sent nor who keeps the moments changes a bit.
      for (How other : {How{.bucket_bytes = 1}, How{.bucket_bytes = 300}, How{.overlap = false}, How{.shard = true}}) {
        other.batch = how.batch, other.steps = how.steps, other.micro = how.micro, other.lamb = how.lamb,
        other.dtype = how.dtype;
        const Trained t = train_together(other, all);
        expect(t.losses == whole.losses && same_values(t.values, whole.values),
               str("bits, bucket ", other.bucket_bytes, ", overlap ", other.overlap, ", shard ", other.shard));
      }
      // All ranks hold the same model.
      for (const Tensor& v : whole.values) expect(same_bits(v, broadcast(v, all.size() - 1, all)), "equal everywhere");
    }));
  }
}

TEST_CASE("data parallel: f32 within rounding", "[parallel]") {
  const How how{.steps = 20, .dtype = f32};
  const std::vector<double> alone = train_alone(how);
  CHECK_NOTHROW(on_ranks([&](const Communicator& all) {
    const double off = worst(train_together(how, all).losses, alone);
    expect(off <= (all.size() == 1 ? 0 : 2e-5), str("f32 differs by ", off));
  }));
}

TEST_CASE("data parallel: parameters that only some ranks reach, buffers, weights", "[parallel]") {
  CHECK_NOTHROW(on_ranks([](const Communicator& all) {
    const double n = all.size(), me = all.rank();
    Tensor a = full({2}, 3 + me, {f64}).requires_grad_(), b = full({3}, 1, {f32}).requires_grad_(),
           buffer = full({2}, me, {i64});
    DataParallel parallel({{"a", a}, {"b", b}, {"buffer", buffer}}, all);
    expect(max_abs_diff(a, full({2}, 3, {f64})) == 0 && max_abs(buffer) == 0, "values of rank 0");
    for (int round = 0; round < 3; ++round) {
      a.zero_grad(), b.zero_grad();
      const bool last = all.rank() == all.size() - 1;
      Tensor loss = sum(a * (me + 1));
      if (last) loss = loss + to(sum(b * 5), f64);
      parallel.backward(loss, me + 1);
      const double weights = n * (n + 1) / 2, squares = n * (n + 1) * (2 * n + 1) / 6;
      expect(max_abs_diff(a.grad(), full({2}, squares / weights, {f64})) < 1e-14, "weighted mean");
      expect(max_abs_diff(b.grad(), full({3}, 5 * n / weights, {f32})) < 1e-6, "of one rank");
    }
    expect(std::abs(parallel.mean(me, me + 1) - (n * (n + 1) * (2 * n + 1) / 6 - n * (n + 1) / 2) / (n * (n + 1) / 2)) <
               1e-14,
           "mean");
    const bool idle = all.size() > 1 && me == 0;  // a rank without rows, whose loss is a mean of nothing
    expect(parallel.mean(idle ? std::nan("") : 7, idle ? 0 : 2) == 7, "a mean without what has no weight");
    const auto refused = [&](const Tensor& loss, double weight) {
      try {
        parallel.backward(loss, weight);
      } catch (const ValueError&) { return true; }
      return false;
    };
    expect(refused({}, 0), "no weight at all");
    expect(refused(sum(a), -1) && refused(sum(a), std::nan("")), "impossible weights");
    const Tensor rows = rows_of(arange(7), all);
    expect(same_bits(all_gather(rows, 0, all), arange(7)), "rows");
    Rng shared(9), copy(9);
    Rng mine = stream_of(shared, all), again = stream_of(copy, all), later = stream_of(shared, all);
    const Tensor draws = all_gather(uniform({1, 8}, 0, 1, mine), 0, all), own = select(draws, 0, all.rank());
    expect(same_bits(own, select(uniform({1, 8}, 0, 1, again), 0, 0)), "a function of rank, seed and offset");
    expect(max_abs_diff(own, select(uniform({1, 8}, 0, 1, later), 0, 0)) > 0.01 && shared.offset() == 2,
           "a stream for each step");
    for (int r = 0; r < all.size(); ++r)
      for (int q = 0; q < r; ++q)
        expect(max_abs_diff(select(draws, 0, r), select(draws, 0, q)) > 0.01, "a stream for each rank");
  }));
}

namespace {

/// Changes nothing, and counts the bytes of what it was given to change and keep.
struct Counting : Optimizer {
  explicit Counting(std::vector<NamedTensor> p) : Optimizer("counting", std::move(p), {"m"}, 0, 0, {}, {}) {}
  void update(const std::vector<Due>& due) override {
    for (const Due& d : due)
      for (const Tensor& t : {d.w, d.slot->moments[0]}) bytes += static_cast<double>(t.numel() * size_of(t.dtype()));
  }
  double bytes = 0;
};

}  // namespace

TEST_CASE("data parallel: moments are shared by bytes, not by how many tensors or numbers they are", "[parallel]") {
  CHECK_NOTHROW(on_ranks([](const Communicator& all) {
    std::vector<NamedTensor> p;
    for (const int64_t size : {120, 60, 60, 40, 40, 40, 30, 30, 30, 30})
      for (const DType dtype : {f64, f32, bf16}) {
        Tensor w = zeros({dtype == f64 ? size / 2 : size}, {dtype}).requires_grad_();
        w.set_grad(zeros(w.shape(), {dtype}));
        p.push_back({str(p.size()), w});
      }
    Counting each(p);
    each.shard(all);
    each.step();
    const auto loads = all_gather(full({1}, each.bytes, {f64}), 0, all).to_vector<double>();
    const auto [least, most] = std::minmax_element(loads.begin(), loads.end());
    expect(*most - *least <= 30 * 8, str("shares of ", *least, " to ", *most, " bytes"));
  }));
}

TEST_CASE("data parallel: another model on one rank is an error that names it", "[parallel]") {
  for (const std::string& e : errors_on_ranks(4, [](const Communicator& all) {
         Model m(1, f64, all.rank() == 2 ? 7 : 6);
         DataParallel parallel(m, all);
       }))
    CHECK(e ==
          "model: rank 2 has another one — got 'in.weight f64[3,7] trained'; the others have 'in.weight f64[3,6] "
          "trained'");
  for (const std::string& e : errors_on_ranks(4, [](const Communicator& all) {
         Tensor w = zeros({2}).requires_grad_(), v = zeros({2}).requires_grad_();
         Adam adam(std::vector<NamedTensor>{{all.rank() == 1 ? "v" : "w", w}, {"x", v}});
         adam.shard(all);
       }))
    CHECK(e == "parameters of adam: rank 1 has another one — got 'v f32[2]'; the others have 'w f32[2]'");
  CHECK_THROWS_WITH(DataParallel(std::vector<NamedTensor>{}, Communicator(), {.bucket_bytes = 0}),
                    "data_parallel: bucket_bytes must be above 0 — got 0");
}

TEST_CASE("data parallel: gradients are sent while the backward pass goes on", "[parallel]") {
  // A leaf's gradient is told as soon as it is complete, and has the same bits as without.
  Rng rng(4);
  Tensor w1 = normal({4, 4}, 0, 1, rng, {f64}).requires_grad_(), w2 = normal({4, 4}, 0, 1, rng, {f64}).requires_grad_();
  Tensor w3 = normal({4}, 0, 1, rng, {f64}).requires_grad_(), x = normal({4, 4}, 0, 1, rng, {f64});
  std::vector<std::string> events;
  const auto loss = [&] {
    Tensor h = custom_op(
        "early", {x * w1 + w3}, [](const Tensors& in) { return in[0] * 2.0; },
        [&](const Tensor& g, const Tensors&, const Tensor&) -> Tensors {
          events.push_back("early op");
          return {g * 2.0};
        });
    // A way to w3 that no gradient goes: it is known to be complete only at the end.
    Tensor blind = custom_op(
        "blind", {w3 * 3.0, x * w1}, [](const Tensors& in) { return in[0] + in[1]; },
        [](const Tensor& g, const Tensors&, const Tensor&) -> Tensors {
          return {Tensor(), g};
        });
    return sum(tanh(h * w2) * w2 + w3 + blind);
  };
  backward(loss());
  std::vector<Tensor> want;
  for (Tensor* w : {&w1, &w2, &w3}) want.push_back(w->grad()), w->zero_grad();
  events.clear();
  detail::backward(loss(), {}, {}, [&](Leaf& leaf) {
    events.push_back(&leaf == w1.impl().history.get() ? "w1" : &leaf == w2.impl().history.get() ? "w2" : "w3");
  });
  CHECK(events[0] == "w2");
  CHECK(events[1] == "early op");
  CHECK(events.size() == 4);
  CHECK(events.back() == "w3");
  std::size_t i = 0;
  for (Tensor* w : {&w1, &w2, &w3}) CHECK(same_bits(w->grad(), want[i++]));
}

TEST_CASE("data parallel: after the first step, gradients that come together are sent together", "[parallel]") {
  CHECK_NOTHROW(on_ranks([](const Communicator& all) {
    if (all.size() == 1) return;  // nothing is sent
    // A model that names its last layers first, so that gradients come in the order of the names: 8, 16, 8, 16 bytes.
    std::vector<NamedTensor> layers;
    for (const int64_t size : {1, 2, 1, 2})
      layers.push_back({str(layers.size()), ones({size}, {f64}).requires_grad_()});
    DataParallel parallel(layers, all, {.bucket_bytes = 16});
    const auto sums = [&] {  // but for that of the weights
      Tensor h = ones({2}, {f64});
      for (std::size_t i = layers.size(); i-- > 0;) layers[i].tensor.zero_grad(), h = tanh(h * layers[i].tensor);
      parallel.backward(sum(h));
      return parallel.take_traffic().by_kind["all_reduce"].calls - 1;
    };
    expect(sums() == 3, "16 | 8 16 | 8: as for a model that names them last, since nothing is known");
    for (int step = 0; step < 2; ++step) expect(sums() == 2, "8 16 | 8 16");
  }));
}

TEST_CASE("data parallel: one checkpoint, whatever wrote it", "[parallel][threads]") {
  const TempFolder folder;
  How how{.steps = 4};
  const auto go_on = [&](int ranks, bool shard, const std::string& from, const std::string& to) {
    std::vector<double> losses;
    run_ranks(ranks, [&](const Communicator& all) {
      Model m(5 + static_cast<uint64_t>(all.rank()), how.dtype);
      DataParallel parallel(m, all);
      auto adam = optimizer_of(m, how);
      if (shard) adam->shard(all);
      Rng rng(all.rank() == 0 ? 3 : 77);
      if (!from.empty()) {
        const TrainingState state = load_checkpoint(m, from, *adam, rng, all);
        expect(state.step == adam->steps() && state.config.at("name") == "a value" && state.config.at("none").empty(),
               "state on all ranks");
      } else {
        rng.set_state(3, 0);
      }
      const auto here = train(m, *adam, rng, how, all, &parallel);
      save_checkpoint(m, to, *adam, rng, {adam->steps(), {{"name", "a value"}, {"none", ""}}}, all);
      if (all.rank() == 0) losses = here;
    });
    return losses;
  };
  const auto file = [&](const std::string& name) { return folder / name; };
  go_on(3, false, "", file("plain")), go_on(3, true, "", file("shared"));
  CHECK((bytes_of(file("plain")) == bytes_of(file("shared"))));
  how.dtype = bf16;  // with master copies
  go_on(3, false, "", file("plain16")), go_on(3, true, "", file("shared16")),
      go_on(3, true, file("plain16"), file("a")), go_on(3, false, file("shared16"), file("b"));
  CHECK((bytes_of(file("plain16")) == bytes_of(file("shared16"))));
  CHECK((bytes_of(file("a")) == bytes_of(file("b"))));
  how.dtype = f64;
  // Interrupted or not, the same ranks make the same bits.
  how.steps = 8;
  go_on(3, true, "", file("whole"));
  how.steps = 4;
  go_on(3, false, file("shared"), file("resumed"));
  CHECK((bytes_of(file("whole")) == bytes_of(file("resumed"))));
  // 1 → 4 → 2 → 1 ranks against one rank throughout.
  std::vector<double> moved = go_on(1, false, "", file("1"));
  for (const auto& [ranks, from, to] : {std::tuple{4, "1", "2"}, {2, "2", "3"}, {1, "3", "4"}})
    for (const double loss : go_on(ranks, ranks != 1, file(from), file(to))) moved.push_back(loss);
  how.steps = 16;
  CHECK(worst(moved, go_on(1, false, "", file("alone"))) <= 1e-12);

  // A file that cannot be read or written is the same error on all ranks, and changes nothing.
  std::ofstream(file("broken")) << "nonsense";
  for (const bool write : {false, true})
    for (const std::string& e : errors_on_ranks(3, [&](const Communicator& all) {
           Model m(5);
           const Tensor before = clone(m.in.weight.detach());
           auto adam = optimizer_of(m, how);
           Rng rng(1);
           try {
             if (write) save_checkpoint(m, file("no/such/folder"), *adam, rng, {}, all);
             else load_checkpoint(m, file("broken"), *adam, rng, all);
           } catch (const IOError&) {
             expect(same_bits(before, m.in.weight.detach()) && rng.seed() == 1, "unchanged");
             throw;
           }
         }))
      CHECK_THAT(e, Contains(write ? "no/such/folder" : "broken"));
}
