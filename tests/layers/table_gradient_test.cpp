// How every layer of the table learns: derivatives of first and second order, and the mean over dropout's masks.
#include "support/table_samples.h"
#include "support/catch.h"

#include <sluice/autograd/engine.h>
#include <sluice/core/node.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/rows/reduce.h>
#include <sluice/ops/shape/view.h>

#include <cmath>

using namespace sluice;
using namespace sluice::testing;

namespace {

/// A scalar of all leaves, and what the leaves are.
struct Scalar {
  std::vector<NamedTensor> leaves;
  std::function<Tensor()> value;
};

/// sum(y ⊙ a fixed random tensor) of a layer's call, a function of its inputs and weights. With `drops` each call has
/// the same dropout.
Scalar loss_of(const LayerSample& s, bool drops = false) {
  auto in = std::make_shared<LayerInputs>(s.inputs(2, 6, 1, true));
  if (s.masks_keys()) s.mask_of_keys(*in) = tensor_of({1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0}, {2, 6}, boolean);
  if (s.documents()) in->segments = tensor_of({0, 0, 0, 0, 0, 0, 2, 2, 2, 5, 5, 5}, {2, 6}, i64);
  Scalar f;
  for (const NamedTensor& t : s.layer->state())
    if (t.tensor.requires_grad()) f.leaves.push_back(t);
  if (is_float(in->x.dtype())) f.leaves.push_back({"x", in->x});
  if (in->context.defined()) f.leaves.push_back({"context", in->context});
  f.value = [in, drops, layer = s.layer.get()] {
    Rng rng(23);
    const Tensor y = call(*layer, *in, drops ? &rng : nullptr);
    Rand rand(11);
    return sum(y * random_tensor(y.shape(), f64, rand));
  };
  return f;
}

/// Σ ⟨∂f/∂leaf, fixed random⟩: its derivatives are f's second ones.
Scalar slope_of(const Scalar& f) {
  return {f.leaves, [f] {
            std::vector<Tensor> leaves;
            for (const NamedTensor& l : f.leaves) leaves.push_back(l.tensor);
            Rand rand(13);
            Tensor total = full({}, 0, {f64, test_device()});
            const std::vector<Tensor> g = grad({f.value()}, leaves, {.create_graph = true, .allow_unused = true});
            for (std::size_t i = 0; i < g.size(); ++i) {
              const Tensor v = random_tensor(leaves[i].shape(), f64, rand);
              if (g[i].defined()) total = total + sum(g[i] * v);
            }
            return total;
          }};
}

/// The derivative along one random direction of each leaf against a central difference.
void check_directions(const Scalar& f, double tolerance) {
  std::vector<Tensor> leaves;
  for (const NamedTensor& l : f.leaves) leaves.push_back(l.tensor);
  const Tensor value = f.value();
  if (leaves.empty()) return;
  std::vector<Tensor> gradients(leaves.size());
  if (value.requires_grad()) gradients = grad({value}, leaves, {.allow_unused = true});
  Rand rand(17);
  const double step = 1e-6;
  for (std::size_t i = 0; i < leaves.size(); ++i) {
    const Tensor direction = random_tensor(leaves[i].shape(), f64, rand);
    const double along = gradients[i].defined() ? sum(gradients[i].detach() * direction).item() : 0;
    const Tensor before = clone(leaves[i].detach());
    auto at = [&](double by) {
      {
        NoGrad guard;
        copy_(leaves[i], before + direction * by);
      }
      return f.value().item();
    };
    auto difference = [&](double by) { return (at(by) - at(-by)) / (2 * by); };
    const double numeric = difference(step), allowed = tolerance * (1 + std::abs(numeric));
    // A drawn layer may divide by next to nothing; then differences say too little.
    const bool rough = drawn_layers() > 0 && !(std::abs(numeric - difference(4 * step)) <= allowed);
    {
      NoGrad guard;
      copy_(leaves[i], before);
    }
    if (rough) continue;
    INFO("along " << f.leaves[i].name << ": " << along << ", by differences " << numeric);
    CHECK(std::abs(along - numeric) <= allowed);
  }
}

/// Values of hard, gradients of soft: not a derivative.
bool straight_through(const LayerSample& s) { return s.has("mode", "straight_through"); }

bool nonlinear_after_dropout(const LayerSample& s) {
  const auto& options = s.row.nonlinear_after_dropout;
  const auto has = [&](const auto& o) { return s.has(o.first, o.second); };
  return options && (options->empty() || std::any_of(options->begin(), options->end(), has));
}

}  // namespace

TEST_CASE("table: gradients are derivatives", "[table][gradient]") {
  each_sample([](LayerSample& s) {
    if (!straight_through(s)) check_directions(loss_of(s), 1e-6);
  });
}

TEST_CASE("table: gradients of gradients are second derivatives", "[table][gradient]") {
  each_sample([](LayerSample& s) {
    if (!straight_through(s)) check_directions(slope_of(loss_of(s)), 1e-5);
  });
}

TEST_CASE("table: gradients with dropout are derivatives, and theirs are", "[table][gradient]") {
  each_sample([](LayerSample& s) {
    if (!s.row.dropout || straight_through(s)) return;
    check_directions(loss_of(s, true), 1e-6);
    check_directions(slope_of(loss_of(s, true)), 1e-5);
  });
}

TEST_CASE("table: the mean over dropout's masks is the layer without dropout", "[table]") {
  int dropped = 0;
  each_sample([&](LayerSample& s) {
    if (!s.row.dropout) return;
    LayerInputs in = s.inputs(1, 4, 1);
    const Tensor y = call(*s.layer, in);
    bool drops = false;
    for (const Option& o : s.layer->options().all)
      drops = drops || (o.name.find("dropout") != std::string::npos && *static_cast<double*>(o.at) > 0);
    Rng one(5), same(5);
    CHECK(same_bits(call(*s.layer, in, &one), call(*s.layer, in, &same)));
    const bool random = one.offset() > 0;
    if (!drawn_layers()) CHECK(random == drops);  // a drawn layer may have no use for its dropout
    constexpr int64_t kMasks = 4096;
    auto many = [&](const Tensor& x) {
      if (!x.defined()) return x;
      return contiguous(expand(x, x.rank() == 2 ? Shape{kMasks, x.dim(1)} : Shape{kMasks, x.dim(1), x.dim(2)}));
    };
    in.x = many(in.x), in.context = many(in.context);
    NoGrad guard;
    Rng rng(5);
    const Tensor all = call(*s.layer, in, &rng);
    if (!random) {
      CHECK(max_abs_diff(narrow(all, 0, 7, 1), y.detach()) < 1e-12);  // rows of other tiles
      return;
    }
    const Json* noise = s.options.find("gumbel");  // which need not have this mean
    if (!drops || (noise && *noise->as<double>() > 0) || nonlinear_after_dropout(s)) return;
    ++dropped;
    const Tensor mean_of = mean(all, {0}, keep), spread = sqrt(mean(square(all - mean_of), {0}, keep));
    if (!drawn_layers()) CHECK(max_abs(spread) > 1e-3);  // drawn weights may be 0
    // Errors of the mean are normal: 5.5 standard deviations, for some hundreds of numbers.
    const Tensor off = abs(mean_of - y.detach()) - spread * (5.5 / std::sqrt(static_cast<double>(kMasks)));
    CHECK(max(off).item() < 1e-9);
  });
  CHECK(enough(dropped, 15));
}
