// Copies, averages, freezing, and members that visit() forgot.
#include <sluice/layers/train/models.h>

#include "support/catch.h"

#include <sluice/autograd/engine.h>
#include <sluice/autograd/function.h>
#include <sluice/autograd/gradcheck.h>
#include <sluice/core/number/random.h>
#include <sluice/layers/nn/linear.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/rows/reduce.h>

using namespace sluice;
using Doubles = std::vector<double>;
using Names = std::vector<std::string>;

namespace {

struct Net {
  Linear in, out;
  std::vector<Linear> hidden;
  std::optional<Tensor> tied;  // the weight of `out`
  Tensor table, forgotten;
  SLUICE_PARTS(in, out, hidden, tied, table);
  explicit Net(uint64_t seed) {
    Rng rng(seed);
    in = Linear({3, 4}, rng), out = Linear({4, 2}, rng);
    hidden = {Linear({4, 4}, rng), Linear({4, 4, false}, rng)};
    tied = out.weight;
    table = arange(3);
    forgotten = normal({2}, 0, 1, rng).requires_grad_();
  }
  Tensor operator()(const Tensor& x) const { return sum(out(hidden[1](hidden[0](in(x)))) * forgotten); }
};

struct Pair {
  Tensor a, b;
  SLUICE_PARTS(a, b);
};

/// A part that is called what other layers call their names.
struct Typed {
  Linear type;
  SLUICE_PARTS(type);
};

/// A map there and back by one weight, with a buffer.
struct Tied {
  Linear in;
  std::optional<Tensor> back;  // the weight of `in`
  Tensor scale;
  SLUICE_PARTS(in, back, scale);
  explicit Tied(Rng& rng) : in({.in = 3, .out = 3, .dtype = f64}, rng), back(in.weight), scale(full({}, 2, {f64})) {}
  Tensor loss(const Tensor& x) const { return mean(square(matmul(tanh(in(x)), *back) * scale - x)); }
};

std::vector<Doubles> values(const Net& m) {
  std::vector<Doubles> all;
  for (const auto& [name, x] : state_dict(m)) all.push_back(x.to_vector<double>());
  return all;
}

}  // namespace

TEST_CASE("models: a clone has tensors of its own", "[models]") {
  const Net model(1);
  backward(model(ones({1, 3})));
  Net copy = clone(model);
  CHECK(values(copy) == values(model));
  CHECK(copy.tied->ref() == copy.out.weight.ref());  // what is shared stays shared
  const auto a = state_dict(model), b = state_dict(copy);
  for (std::size_t i = 0; i < a.size(); ++i) {
    CHECK_FALSE(a[i].tensor.shares_storage(b[i].tensor));
    CHECK(a[i].tensor.requires_grad() == b[i].tensor.requires_grad());
    CHECK(b[i].tensor.is_leaf());
    CHECK_FALSE(b[i].tensor.grad().defined());
  }
  const auto before = values(model);
  NoGrad guard;
  for (NamedTensor p : parameters(copy)) fill_(p.tensor, 7);
  CHECK(values(model) == before);
}

TEST_CASE("models: copy_state copies every value, into its dtype, or nothing", "[models]") {
  const Net model(1);
  Net other(2), wide(3);
  to(wide, f64);
  copy_state(model, other), copy_state(model, wide);
  CHECK(values(other) == values(model));
  CHECK(values(wide) == values(model));
  CHECK(wide.in.weight.dtype() == f64);

  const auto untouched = values(Net(4));
  Net short_one(4), narrow(4), missing(4);
  short_one.hidden.pop_back();
  CHECK_THROWS_WITH(copy_state(model, short_one),
                    "copy_state: there is no place for the source's tensor \"hidden.1.weight\" [4,4]");
  CHECK_THROWS_WITH(copy_state(short_one, missing), "copy_state: the source has no tensor \"hidden.1.weight\" [4,4]");
  narrow.table = arange(2);
  CHECK_THROWS_AS(copy_state(model, narrow), ValueError);
  CHECK_THROWS_WITH(copy_state(model, narrow), "copy_state: shapes of \"table\" differ — got [3] for [2]");
  CHECK(values(missing) == untouched);
  CHECK(narrow.in.weight.to_vector<double>() == untouched[0]);
}

TEST_CASE("models: copy_state of tensors that change places, and of one without values", "[models]") {
  const Pair pair{full({2}, 1), full({2}, 2)}, crossed{pair.b, pair.a};
  copy_state(pair, crossed);
  CHECK(pair.a.to_vector() == std::vector<float>{2, 2});
  CHECK(pair.b.to_vector() == std::vector<float>{1, 1});

  const Pair half{full({2}, 3), zeros({2}, {f32, meta})};
  CHECK_THROWS_WITH(copy_state(half, pair), StartsWith("copy_state: tensor \"b\" is on meta"));
  CHECK(pair.a.to_vector() == std::vector<float>{2, 2});
}

TEST_CASE("models: an average moves by 1 - decay, buffers are copied", "[models]") {
  Net model(1);
  to(model, f64);
  Net average = clone(model);
  const auto start = values(model);
  {
    NoGrad guard;
    for (NamedTensor p : parameters(model)) add_(p.tensor, ones_like(p.tensor), 8);
    fill_(model.table, 5);
  }
  update_average(average, model, 0.75), update_average(average, model, 0.75);
  const auto names = state_dict(model);
  for (std::size_t i = 0; i < names.size(); ++i) {
    const Doubles got = values(average)[i];
    for (std::size_t j = 0; j < got.size(); ++j) {
      if (names[i].name == "table") CHECK(got[j] == 5);
      else
        CHECK(got[j] == Approx(start[i][j] + 8 * (1 - 0.75 * 0.75)).epsilon(1e-14));  // `tied`, too, moved once a step
    }
  }
  CHECK(average.in.weight.requires_grad());

  to(model, bf16);  // an average in f64 of a model in bf16
  update_average(average, model, 0);
  CHECK(values(average) == values(model));

  Net still(1), mean = clone(still);  // in f32, of weights that do not change
  for (int i = 0; i < 1000; ++i) update_average(mean, still, 0.9999);
  CHECK(values(mean) == values(still));

  Net thawed(1), slow = clone(thawed);  // a parameter is averaged while it is frozen, too
  {
    NoGrad guard;
    fill_(thawed.in.weight, 0);
  }
  update_average(slow, thawed, 0.5);
  const Doubles half = slow.in.weight.to_vector<double>();
  freeze(thawed.in);
  update_average(slow, thawed, 0.5);
  const Doubles quarter = slow.in.weight.to_vector<double>();
  for (std::size_t i = 0; i < half.size(); ++i) CHECK(quarter[i] == half[i] / 2);

  Net infinite(1);  // a mask that is trained, say
  const auto fill = [&](double x) {
    NoGrad guard;
    fill_(infinite.in.weight, x);
  };
  fill(-INFINITY);
  Net also = clone(infinite);
  update_average(also, infinite, 0.5);
  CHECK(values(also) == values(infinite));
  fill(NAN);
  update_average(also, infinite, 1);
  CHECK(also.in.weight.to_vector<double>() == Doubles(also.in.weight.to_vector<double>().size(), -INFINITY));

  const auto before = values(average);
  CHECK_THROWS_WITH(update_average(average, model, 1.5), "update_average: decay 1.5 is outside [0, 1]");
  CHECK_THROWS_AS(update_average(average, model, NAN), ValueError);
  Net alias = average;
  CHECK_THROWS_WITH(update_average(alias, average, 0.5), Contains("same memory") && Contains("clone(model)"));
  CHECK(values(average) == before);
}

TEST_CASE("models: frozen parameters are constants until they are thawed", "[models]") {
  Net model(1);
  const std::size_t all = parameters(model).size();
  const auto frozen = freeze(model, [](const NamedTensor& p) { return p.name.starts_with("hidden."); });
  Names names;
  for (const auto& p : frozen) names.push_back(p.name);
  CHECK(names == Names{"hidden.0.weight", "hidden.0.bias", "hidden.1.weight"});
  CHECK(parameters(model).size() == all - 3);
  backward(model(ones({1, 3})));
  CHECK(model.in.weight.grad().defined());  // gradients pass through frozen layers
  CHECK_FALSE(model.hidden[0].weight.grad().defined());
  CHECK(state_dict(model).size() == all + 2);  // `tied` and `table` are listed there, frozen or not
  for (NamedTensor p : frozen) p.tensor.requires_grad_();
  CHECK(parameters(model).size() == all);
  CHECK(freeze(model.hidden[0]).size() == 2);
  Rng other(1);
  Linear fast({2, 2}, other);
  fast.bias = fast.bias * 2;
  CHECK_THROWS_WITH(freeze(fast), Contains("freeze: 'bias'") && Contains("the result of an op"));
  CHECK(fast.weight.requires_grad());
  CHECK(freeze(model, [](const NamedTensor& p) { return p.name == "tied"; }).size() == 1);
  CHECK_FALSE(model.out.weight.requires_grad());
  freeze(model);
  CHECK(parameters(model).empty());
}

TEST_CASE("models: unlisted names what the loss reads and visit() leaves out", "[models]") {
  Net model(1);
  const Tensor x = ones({1, 3});
  CHECK(unlisted(model, model(x)) == Names{"f32[2], read by mul"});
  const auto checkpointed = [&](const std::vector<Tensor>& in) { return model(in[0]); };
  CHECK(unlisted(model, checkpoint(checkpointed, {x})) == Names{"f32[2], read by checkpoint"});
  model.forgotten = Tensor({1, 2});
  CHECK(unlisted(model, model(x)).empty());
  CHECK(unlisted(model.in, model(x)).size() == 5);  // of out two, of hidden.0 two, of hidden.1 one
  CHECK_THROWS_AS(unlisted(model, x), AutogradError);
  Tensor deep = sum(model.in(x));
  for (int i = 0; i < 100'000; ++i) deep = deep + 1;
  CHECK(unlisted(model, deep).empty());  // without recursion
}

TEST_CASE("models: an average that shares a parameter under another name is refused", "[models]") {
  const Tensor x = ones({1}).requires_grad_(), y = full({1}, 2).requires_grad_();
  const Pair model{x, y}, average{y, x};
  CHECK_THROWS_AS(update_average(average, model, 0.5), ValueError);
  CHECK(x.item() == 1);
  CHECK(y.item() == 2);
}

TEST_CASE("models: gradients reach what other parameters were computed from", "[models][maml]") {
  Rng rng(3);
  const Tied model(rng);
  const Tensor x = normal({4, 3}, 0, 1, rng, {f64}), y = normal({4, 3}, 0, 1, rng, {f64});
  std::vector<Tensor> weights;
  for (const NamedTensor& p : parameters(model)) weights.push_back(p.tensor);
  REQUIRE(weights.size() == 2);
  const Doubles before = model.in.weight.to_vector<double>();

  const Tied doubled = with_parameters(model, {weights[0] * 2.0, weights[1]});
  CHECK(doubled.in.weight.to_vector<double>() == (weights[0] * 2.0).to_vector<double>());
  CHECK(doubled.back->ref() == doubled.in.weight.ref());  // what is shared is replaced everywhere
  CHECK(doubled.scale.ref() == model.scale.ref());
  CHECK(doubled.in.bias.ref() == weights[1].ref());
  CHECK(model.in.weight.to_vector<double>() == before);
  CHECK(model.back->ref() == model.in.weight.ref());

  const auto after_steps = [&](std::vector<Tensor> w) {  // the loss of y after two steps on x
    const GradMode on(true);                             // gradcheck takes differences of constants, without recording
    for (Tensor& v : w) v = v.requires_grad() ? v : clone(v).requires_grad_();
    for (int step = 0; step < 2; ++step) {
      const std::vector<Tensor> g = grad({with_parameters(model, w).loss(x)}, w, {.create_graph = true});
      for (std::size_t i = 0; i < w.size(); ++i) w[i] = w[i] - g[i] * 0.1;
    }
    return with_parameters(model, w).loss(y);
  };
  const GradcheckResult result = gradcheck(after_steps, weights);
  INFO(result.message);
  CHECK(result.ok);
}

TEST_CASE("models: other parameters that do not fit are named", "[models][maml]") {
  Rng rng(3);
  const Tied model(rng);
  const Tensor w = zeros({3, 3}, {f64}), b = zeros({3}, {f64});
  CHECK_THROWS_WITH(with_parameters(model, {w}), "with_parameters: 1 values for 2 parameters");
  CHECK_THROWS_WITH(with_parameters(model, {w, {}}), "with_parameters: the value of \"in.bias\" [3] is undefined");
  CHECK_THROWS_WITH(with_parameters(model, {b, b}),
                    "with_parameters: \"in.weight\" needs f64[3,3] on cpu — got f64[3] on cpu");
  CHECK_THROWS_WITH(with_parameters(model, {w, to(b, f32)}),
                    "with_parameters: \"in.bias\" needs f64[3] on cpu — got f32[3] on cpu");
  CHECK_THROWS_WITH(with_parameters(model, {w, to(b, meta)}),
                    "with_parameters: \"in.bias\" needs f64[3] on cpu — got f64[3] on meta");
}

TEST_CASE("models: a part may be called type", "[models]") {
  Rng rng(1);
  const Typed m{Linear({2, 3}, rng)}, copy = clone(m);
  CHECK(parameters(copy)[0].name == "type.weight");
  CHECK(detail::members(m).parts[0].type == "module");
}
