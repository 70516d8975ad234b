#include <sluice/layers/train/optim.h>

#include <sluice/autograd/engine.h>
#include <sluice/core/kernel/kernel.h>
#include <sluice/core/kernel/parallel.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/rows/reduce.h>

#include "layers/optim_steps.h"
#include "support/approx.h"
#include "support/catch.h"
#include "support/worse.h"

#include <cmath>
#include <functional>
#include <memory>

using namespace sluice;
using namespace sluice::testing;

namespace {

using Made = std::unique_ptr<Optimizer>;
using Make = std::function<Made(std::vector<NamedTensor>)>;
constexpr int kSteps = 20;

template <class O, class Options> Make maker(Options o) {
  return [o](std::vector<NamedTensor> p) { return std::make_unique<O>(std::move(p), o); };
}

/// A matrix, which decays by default, and a bias, which does not.
std::vector<NamedTensor> weight_and_bias(DType dtype = f64) {
  return {{"weight", leaf(numbers(15, 1), {3, 5}, dtype)}, {"bias", leaf(numbers(7, 2), {7}, dtype)}};
}

/// One update by hand. t counts from 1; a and b are the moments, 0 at first.
using Rule = std::function<void(int t, double lr, bool matrix, Doubles& w, const Doubles& g, Doubles& a, Doubles& b)>;

/// The optimiser against the rule, on a matrix and a bias, over kSteps and a rate that changes from step to step; then
/// on sizes beyond what one task takes (2^14 elements), in steps of 512.
void agrees(const Make& make, const Rule& rule) {
  for (const auto& [dtype, tolerance] : {std::pair{f64, 1e-12}, {f32, 3e-6}})
    for (const bool large : {false, true}) {
      CAPTURE(dtype == f64, large);
      auto parameters = [&](DType type) {
        if (!large) return weight_and_bias(type);
        return std::vector<NamedTensor>{{"weight", leaf(numbers(32'769, 1), {3, 10'923}, type)},
                                        {"bias", leaf(numbers(16'900, 2), {16'900}, type)}};
      };
      const int steps = large ? 2 : kSteps;
      const Made o = make(parameters(dtype));
      const double lr = o->lr();
      auto rate = [&](int t) { return lr * (1 + 0.5 * std::sin(t)); };
      for (int t = 1; t <= steps; ++t) o->set_lr(rate(t)), one_step(*o, t);
      const auto start = parameters(f64);
      for (std::size_t k = 0; k < 2; ++k) {
        Doubles w = start[k].tensor.to_vector<double>(), a(w.size()), b(w.size());
        for (int t = 1; t <= steps; ++t) rule(t, rate(t), k == 0, w, gradient(w, t), a, b);
        const Doubles got = o->parameters()[k].tensor.to_vector<double>();
        double worst = 0;
        for (std::size_t i = 0; i < w.size(); ++i) worst = worse(worst, std::fabs(got[i] - w[i]));
        CHECK(worst < tolerance);
      }
      CHECK(o->steps() == steps);
      CHECK(o->without_gradient().empty());
    }
}

}  // namespace

TEST_CASE("optim: sgd equals its definition", "[optim]") {
  const double momentum = GENERATE(0.0, 0.9), decay = GENERATE(0.0, 0.03);
  const bool nesterov = momentum > 0 && GENERATE(false, true);
  CAPTURE(momentum, decay, nesterov);
  agrees(maker<Sgd>(SgdOptions{.lr = 0.1, .momentum = momentum, .nesterov = nesterov, .weight_decay = decay}),
         [=](int, double lr, bool, Doubles& w, const Doubles& g, Doubles& b, Doubles&) {
           for (std::size_t i = 0; i < w.size(); ++i) {
             const double d = g[i] + decay * w[i];
             b[i] = momentum * b[i] + d;
             w[i] = w[i] - lr * (nesterov ? d + momentum * b[i] : b[i]);
           }
         });
}

TEST_CASE("optim: rmsprop equals its definition", "[optim]") {
  const double momentum = GENERATE(0.0, 0.9), decay = GENERATE(0.0, 0.03);
  const bool centered = GENERATE(false, true);
  CAPTURE(momentum, decay, centered);
  agrees(maker<RmsProp>(RmsPropOptions{
             .lr = 0.02, .alpha = 0.9, .eps = 1e-3, .momentum = momentum, .centered = centered, .weight_decay = decay}),
         [=](int, double lr, bool, Doubles& w, const Doubles& g, Doubles& v, Doubles& b) {
           const std::size_t n = w.size();
           v.resize(2 * n);  // and the mean of gradients
           for (std::size_t i = 0; i < n; ++i) {
             const double d = g[i] + decay * w[i];
             v[i] = 0.9 * v[i] + 0.1 * d * d;
             v[n + i] = 0.9 * v[n + i] + 0.1 * d;
             b[i] = momentum * b[i] + d / (std::sqrt(v[i] - (centered ? v[n + i] * v[n + i] : 0)) + 1e-3);
             w[i] -= lr * b[i];
           }
         });
}

TEST_CASE("optim: a centered rmsprop divides by eps where gradients have not changed for long", "[optim]") {
  Tensor w = zeros({100}).requires_grad_();
  const Tensor g = to(Tensor::from(numbers(100, 1)), f32);  // v − m² is rounded to below 0 for some
  RmsProp rmsprop({w}, {.lr = 1, .alpha = 0.9, .eps = 1, .centered = true});
  for (int i = 0; i < 300; ++i) w.set_grad(g), rmsprop.step();
  const Tensor before = clone(w.detach());
  rmsprop.step();
  CHECK(max(abs((before - w) - g)).item() < 0.01);
}

TEST_CASE("optim: lion equals its definition", "[optim]") {
  const double decay = GENERATE(0.0, 0.1);
  const bool all = GENERATE(false, true);
  CAPTURE(decay, all);
  LionOptions options{.lr = 0.02, .beta1 = 0.8, .beta2 = 0.95, .weight_decay = decay};
  if (all) options.decay = {};
  agrees(maker<Lion>(options), [=](int, double lr, bool matrix, Doubles& w, const Doubles& g, Doubles& m, Doubles&) {
    for (std::size_t i = 0; i < w.size(); ++i) {
      const double c = 0.8 * m[i] + 0.2 * g[i], sign = c > 0 ? 1 : c < 0 ? -1 : 0;
      m[i] = 0.95 * m[i] + 0.05 * g[i];
      w[i] = (1 - lr * (matrix || all ? decay : 0)) * w[i] - lr * sign;
    }
  });
}

TEST_CASE("optim: adam and adamw equal their definition", "[optim]") {
  const double decay = GENERATE(0.0, 0.1);
  const bool decoupled = GENERATE(true, false), all = GENERATE(false, true);
  CAPTURE(decay, decoupled, all);
  AdamOptions options{.lr = 0.02, .beta1 = 0.8, .beta2 = 0.95, .weight_decay = decay, .decoupled = decoupled};
  if (all) options.decay = {};
  agrees(maker<Adam>(options),
         [=](int t, double lr, bool matrix, Doubles& w, const Doubles& g, Doubles& m, Doubles& v) {
           const double wd = matrix || all ? decay : 0;
           for (std::size_t i = 0; i < w.size(); ++i) {
             const double d = decoupled ? g[i] : g[i] + wd * w[i];
             m[i] = 0.8 * m[i] + 0.2 * d;
             v[i] = 0.95 * v[i] + 0.05 * d * d;
             const double m_hat = m[i] / (1 - std::pow(0.8, t)), v_hat = v[i] / (1 - std::pow(0.95, t));
             w[i] = w[i] - lr * m_hat / (std::sqrt(v_hat) + 1e-8) - (decoupled ? lr * wd * w[i] : 0);
           }
         });
}

TEST_CASE("optim: lamb equals its definition", "[optim]") {
  const double decay = GENERATE(0.0, 0.1);
  const bool correct = GENERATE(true, false), adapt_all = GENERATE(true, false);
  CAPTURE(decay, correct, adapt_all);
  LambOptions options{.lr = 0.02, .beta1 = 0.8, .beta2 = 0.95, .weight_decay = decay, .bias_correction = correct};
  if (!adapt_all) options.adapt = is_matrix;
  agrees(maker<Lamb>(options),
         [=](int t, double lr, bool matrix, Doubles& w, const Doubles& g, Doubles& m, Doubles& v) {
           const double cm = correct ? 1 - std::pow(0.8, t) : 1, cv = correct ? 1 - std::pow(0.95, t) : 1;
           Doubles u(w.size());
           double ww = 0, uu = 0;
           for (std::size_t i = 0; i < w.size(); ++i) {
             m[i] = 0.8 * m[i] + 0.2 * g[i];
             v[i] = 0.95 * v[i] + 0.05 * g[i] * g[i];
             u[i] = m[i] / cm / (std::sqrt(v[i] / cv) + 1e-6) + (matrix ? decay : 0) * w[i];
             ww += w[i] * w[i], uu += u[i] * u[i];
           }
           const double ratio = matrix || adapt_all ? std::sqrt(ww) / std::sqrt(uu) : 1;
           for (std::size_t i = 0; i < w.size(); ++i) w[i] -= lr * ratio * u[i];
         });
}

TEST_CASE("optim: lamb's ratio is 1 for a tensor of zeros", "[optim]") {
  Tensor w = leaf({0, 0}, {2});
  Lamb lamb({w}, {.lr = 0.5, .eps = 0});
  w.set_grad(Tensor::from<double>({3, -4}));
  lamb.step();
  CHECK(w.to_vector<double>() == Doubles{-0.5, 0.5});
}

TEST_CASE("optim: many parameters step as each by itself, in one call of a kernel", "[optim]") {
  const Make makers[] = {maker<Sgd>(SgdOptions{.lr = 0.1, .momentum = 0.9}),
                         maker<Adam>(AdamOptions{.lr = 0.1, .weight_decay = 0.1}),
                         maker<Lamb>(LambOptions{.lr = 0.1, .weight_decay = 0.1}),
                         maker<RmsProp>(RmsPropOptions{.lr = 0.1, .weight_decay = 0.1}),
                         maker<RmsProp>(RmsPropOptions{.lr = 0.1, .momentum = 0.5, .centered = true}),
                         maker<Lion>(LionOptions{.lr = 0.1, .weight_decay = 0.1})};
  for (const Make& make : makers)
    for (DType dtype : {f32, f64, bf16}) {
      INFO(name_of(dtype));
      std::vector<NamedTensor> together;
      std::vector<Made> alone;
      for (int64_t n :
           {1, 100, 16'383, 3, 16'385, 32'769, 511, 7}) {  // small ones share a task, large ones have several
        const Doubles start = numbers(static_cast<std::size_t>(n), static_cast<double>(n));
        together.push_back({str(n), leaf(start, {n, 1}, dtype)});
        alone.push_back(make({{"x", leaf(start, {n, 1}, dtype)}}));
      }
      const Made all = make(together);
      for (int t = 1; t <= 3; ++t) {
        for (NamedTensor p : together)
          p.tensor.set_grad(to(Tensor::from(gradient(p.tensor.to_vector<double>(), t), p.tensor.shape()), dtype));
        detail::WorkCounter counter;
        all->step();
        CHECK(counter.calls() == 1);
        for (const Made& one : alone) one_step(*one, t);
      }
      for (std::size_t i = 0; i < alone.size(); ++i)
        CHECK(same_bits(together[i].tensor, alone[i]->parameters()[0].tensor));
    }
}

TEST_CASE("optim: a resumed run continues bit for bit", "[optim]") {
  const Make make =
      GENERATE(maker<Sgd>(SgdOptions{.lr = 0.1}), maker<Sgd>(SgdOptions{.lr = 0.1, .momentum = 0.9}),
               maker<Adam>(AdamOptions{.weight_decay = 0.1}), maker<Lamb>(LambOptions{.weight_decay = 0.1}),
               maker<Muon>(MuonOptions{}), maker<RmsProp>(RmsPropOptions{.momentum = 0.9, .centered = true}),
               maker<RmsProp>(RmsPropOptions{}), maker<Lion>(LionOptions{.weight_decay = 0.1}));
  const DType dtype = GENERATE(f32, f64);
  const Made straight = make(weight_and_bias(dtype));
  for (int t = 1; t <= 7; ++t) one_step(*straight, t);
  const auto saved = straight->state();
  auto copies = straight->parameters();
  for (NamedTensor& p : copies) p.tensor = clone(p.tensor.detach()).requires_grad_();
  for (int t = 8; t <= kSteps; ++t) one_step(*straight, t);  // must not reach into `saved`

  const Made resumed = make(copies);
  resumed->load_state(saved);
  CHECK(resumed->steps() == 7);
  for (int t = 8; t <= kSteps; ++t) one_step(*resumed, t);
  for (std::size_t k = 0; k < 2; ++k)
    CHECK(same_bits(resumed->parameters()[k].tensor, straight->parameters()[k].tensor));
  const auto a = resumed->state(), b = straight->state();
  REQUIRE(a.size() == b.size());
  for (const auto& [key, t] : a) CHECK(same_bits(t, b.at(key)));
}

TEST_CASE("optim: a state that does not fit changes nothing", "[optim]") {
  Adam adam(weight_and_bias());
  for (int t = 1; t <= 3; ++t) one_step(adam, t);
  const auto good = adam.state();
  CHECK(good.size() == 7);  // steps, and updates, m, v for each
  Adam fresh(weight_and_bias());
  auto with = [&](const std::string& key, Tensor t) {
    auto s = good;
    s[key] = std::move(t);
    return s;
  };
  auto missing = good;
  missing.erase("weight.v");
  CHECK_THROWS_AS(fresh.load_state(missing), IOError);
  CHECK_THROWS_WITH(fresh.load_state(missing), Contains("'weight.v'"));
  CHECK_THROWS_AS(fresh.load_state(with("gain.m", zeros({7}))), IOError);
  CHECK_THROWS_WITH(fresh.load_state(with("gain.m", zeros({7}))), Contains("'gain.m'"));
  CHECK_THROWS_AS(fresh.load_state(with("weight.v", zeros({5, 3}, {.dtype = f64}))), ShapeError);
  CHECK_THROWS_WITH(fresh.load_state(with("weight.v", zeros({5, 3}, {.dtype = f64}))),
                    Contains("'weight.v'") && Contains("[5,3]") && Contains("[3,5]"));
  CHECK_THROWS_AS(fresh.load_state(with("weight.v", zeros({3, 5}))), DTypeError);
  CHECK_THROWS_AS(fresh.load_state(with("steps", Tensor::from<int64_t>({-1}, {}))), IOError);
  CHECK_THROWS_AS(fresh.load_state(with("bias.updates", Tensor::from<int64_t>({4}, {}))), IOError);
  CHECK_THROWS_AS(fresh.load_state(with("steps", Tensor())), IOError);
  CHECK_THROWS_AS(Sgd(weight_and_bias(), {.lr = 1}).load_state(good), IOError);
  CHECK(fresh.steps() == 0);
  for (const auto& [key, t] : fresh.state()) CHECK(t.to_vector<double>() == zeros_like(t).to_vector<double>());
  fresh.load_state(good);
  CHECK(fresh.steps() == 3);
}

namespace {
/// An optimiser of two groups is two optimisers, each on its part with its own rate and decay, bit for bit.
template <class O, class Options> void splits_into_groups(Options o) {
  auto parts = [](std::size_t k) { return std::vector<NamedTensor>{weight_and_bias()[k]}; };
  o.weight_decay = 0.1, o.decay = {};
  Options together = o, weight_only = o, bias_only = o;
  const ParameterFilter any_b = [](const NamedTensor& p) { return p.name.starts_with("b"); };
  together.groups = {{any_b, 0.25, 0.03}, {{}, 3}};  // the second takes what the first left
  weight_only.lr *= 3, bias_only.lr *= 0.25, bias_only.weight_decay = 0.03;
  O both(weight_and_bias(), together), weight(parts(0), weight_only), bias(parts(1), bias_only);
  for (int t = 1; t <= 5; ++t) {
    const double lr = o.lr * (1 + t);
    both.set_lr(lr), weight.set_lr(3 * lr), bias.set_lr(0.25 * lr);
    for (Optimizer* each :
         {static_cast<Optimizer*>(&both), static_cast<Optimizer*>(&weight), static_cast<Optimizer*>(&bias)})
      one_step(*each, t);
  }
  CHECK(same_bits(both.parameters()[0].tensor, weight.parameters()[0].tensor));
  CHECK(same_bits(both.parameters()[1].tensor, bias.parameters()[0].tensor));
  CHECK(both.lr() == o.lr * 6);
}
}  // namespace

TEST_CASE("optim: groups have their own rate and decay", "[optim]") {
  splits_into_groups<Sgd>(SgdOptions{.lr = 0.01, .momentum = 0.5});
  splits_into_groups<Adam>(AdamOptions{.lr = 0.01});
  splits_into_groups<Adam>(AdamOptions{.lr = 0.01, .decoupled = false});
  splits_into_groups<Lamb>(LambOptions{.lr = 0.01});
  splits_into_groups<Muon>(MuonOptions{.lr = 0.01});
  splits_into_groups<RmsProp>(RmsPropOptions{.lr = 0.01, .momentum = 0.5, .centered = true});
  splits_into_groups<Lion>(LionOptions{.lr = 0.01});

  const ParameterFilter none = [](const NamedTensor&) { return false; };
  const auto with = [&](ParameterGroups groups) { return Adam(weight_and_bias(), {.groups = std::move(groups)}), 0; };
  CHECK_THROWS_WITH(with({{is_matrix, 2}, {none, 3}}),
                    Contains("adam: no parameter belongs to groups[1]: it chooses none of") && Contains("frozen"));
  CHECK_THROWS_WITH(with({{{}, 2}, {is_matrix, 3}}),
                    "adam: no parameter belongs to groups[1]: earlier groups have all that it chooses");
  CHECK_THROWS_AS(with({{is_matrix, -1}}), ValueError);
  CHECK_THROWS_AS(with({{is_matrix, NAN}}), ValueError);
  CHECK_THROWS_AS(with({{is_matrix, 1, -0.1}}), ValueError);
}

TEST_CASE("optim: lists and options that cannot be right are refused", "[optim]") {
  const Tensor w = leaf({1, 2, 3, 4}, {2, 2}), b = leaf({1}, {1});
  const std::vector<NamedTensor> none;
  CHECK_THROWS_AS(Adam(none), ValueError);
  CHECK_THROWS_WITH(Adam({{"w", w}, {"b", b}, {"tied", w}}),
                    Contains("'w'") && Contains("'tied'") && Contains("share"));
  const Tensor row = alias(w, Layout({2}, {1}, 2)).requires_grad_();
  CHECK_THROWS_WITH(Adam({{"w", w}, {"row", row}}), Contains("'w'") && Contains("'row'"));
  CHECK_THROWS_WITH(Adam({{"w", w}, {"w", b}}), Contains("called 'w'"));
  CHECK_THROWS_AS(Adam({{"w", w}, {"mean", w.detach()}}), AutogradError);
  CHECK_THROWS_WITH(Adam({{"w", w}, {"mean", zeros({3})}}), Contains("'mean'") && Contains("[3]"));
  CHECK_THROWS_WITH(Adam({{"y", exp(w)}}), Contains("'y'") && Contains("exp"));
  CHECK_THROWS_WITH(Adam({{"w", Tensor()}}), Contains("undefined"));
  CHECK_THROWS_WITH(Adam({{"t", alias(w, Layout({2, 2}, {1, 2}, 0)).requires_grad_()}}), Contains("strided"));
  CHECK_THROWS_WITH(Adam({w, b, w}), Contains("'0'") && Contains("'2'"));

  CHECK_THROWS_AS(Sgd({w}, {}), ValueError);
  CHECK_THROWS_AS(Sgd({w}, {.lr = -1}), ValueError);
  CHECK_THROWS_AS(Sgd({w}, {.lr = 1, .momentum = 1}), ValueError);
  CHECK_THROWS_AS(Sgd({w}, {.lr = 1, .nesterov = true}), ValueError);
  CHECK_THROWS_AS(Adam({w}, {.beta2 = 1}), ValueError);
  CHECK_THROWS_AS(Adam({w}, {.eps = -1}), ValueError);
  CHECK_THROWS_AS(Lamb({w}, {.weight_decay = NAN}), ValueError);
  CHECK_THROWS_AS(RmsProp({w}, {.alpha = 1}), ValueError);
  CHECK_THROWS_AS(RmsProp({w}, {.momentum = -0.5}), ValueError);
  CHECK_THROWS_AS(Lion({w}, {.beta1 = 1}), ValueError);
  Adam adam({w});
  CHECK_THROWS_AS(adam.set_lr(INFINITY), ValueError);
  CHECK(adam.lr() == 1e-3);
}

TEST_CASE("optim: parameters without a gradient stay, and are named", "[optim]") {
  Tensor used = leaf({1, 1}, {2}), late = leaf({1}, {1}), unused = leaf({1}, {1});
  Adam adam({{"used", used}, {"late", late}, {"unused", unused}}, {.lr = 0.1, .eps = 0});
  CHECK(adam.without_gradient().size() == 3);
  const uint32_t before = used.version();
  backward(sum(used * 3));
  adam.step();
  CHECK(used.version() == before + 1);
  CHECK(unused.version() == 0);
  CHECK(adam.without_gradient() == std::vector<std::string>{"late", "unused"});
  adam.zero_grad();
  CHECK_FALSE(used.grad().defined());
  CHECK_THROWS_WITH(adam.step(), Contains("adam: none of 3 parameters has a gradient — call backward(loss) first"));
  for (int i = 0; i < 10; ++i) backward(sum(used * 3)), adam.step();
  backward(sum(late * 5));
  adam.step();
  CHECK(late.item() == Approx(0.9).epsilon(1e-12));  // its own first step: a full lr
  CHECK(unused.item() == 1);
  CHECK(adam.without_gradient() == std::vector<std::string>{"unused"});
  CHECK(adam.steps() == 12);
}

TEST_CASE("optim: gradients that are views", "[optim]") {
  Tensor a = leaf({1, 2}, {2}), b = leaf({3, 4}, {2});
  a.set_grad(b.detach());  // as for a·b: each is the gradient of the other
  b.set_grad(a.detach());
  Sgd({a, b}, {.lr = 1}).step();
  CHECK(a.to_vector<double>() == Doubles{-2, -2});
  CHECK(b.to_vector<double>() == Doubles{2, 2});

  Tensor w = leaf({0, 0, 0, 0}, {2, 2});
  w.set_grad(alias(Tensor::from<double>({1, 2}), Layout({2, 2}, {1, 0}, 0)));
  Sgd sgd({w}, {.lr = 1});
  sgd.step();
  CHECK(w.to_vector<double>() == Doubles{-1, -1, -2, -2});
}

TEST_CASE("optim: results do not depend on the number of threads", "[optim]") {
  const Make make = GENERATE(maker<Sgd>(SgdOptions{.lr = 0.1, .momentum = 0.9}), maker<Adam>(AdamOptions{}),
                             maker<Lamb>(LambOptions{}), maker<RmsProp>(RmsPropOptions{.centered = true}),
                             maker<Lion>(LionOptions{}));
  std::vector<Tensor> results;
  Doubles norms;
  for (int threads : {1, 4}) {
    set_num_threads(threads);
    Tensor w = leaf(numbers(70'003, 3), {70'003}, f32);
    const Made o = make({{"w", w}});
    for (int t = 1; t <= 2; ++t) one_step(*o, t);
    norms.push_back(clip_grad_norm(o->parameters(), 0.5));
    results.push_back(w.detach());
    results.push_back(w.grad());
  }
  set_num_threads(0);
  CHECK(norms[0] == norms[1]);
  CHECK(same_bits(results[0], results[2]));
  CHECK(same_bits(results[1], results[3]));
}
