// What holds for every layer of the table: files, printing, options, threads, dtypes. table_masks_test.cpp has what
// layers see, table_gradient_test.cpp how they learn.
#include "support/table_samples.h"
#include "support/catch.h"
#include "support/temp_folder.h"

#include <sluice/autograd/engine.h>
#include <sluice/core/node.h>
#include <sluice/core/kernel/parallel.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/rows/reduce.h>

#include <cmath>
#include <limits>
#include <set>

using namespace sluice;
using namespace sluice::testing;

namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

/// Builds the layer of a row's first sample after `change` of one option. What is thrown, or "".
template <class F> std::string built(const LayerRow& row, std::size_t option, F change) {
  LayerDraft draft = row.draft();
  detail::from_json(row.name, row.samples[0], draft.options);
  change(draft.options.all[option]);
  Rng rng(1);
  try {
    draft.build(rng);
  } catch (const ValueError& e) { return e.what(); }
  return "";
}

void set_number(const Option& o, double x) {
  const Json number = o.type == Option::whole ? Json(static_cast<int64_t>(x)) : Json(x);
  o.set("", o.list ? Json(Json::List{number}) : number);
}

/// Sets the last byte of a choice, as no name does.
void set_unnamed(const Option& o) {
  o.set("", o.choice_names()[0]);
  *static_cast<unsigned char*>(o.at) = 99;
}

/// Values that the range of a number leaves out.
std::vector<double> outside(const Option& o) {
  const OptionRange& r = o.range;
  const bool whole = o.type == Option::whole;
  std::vector<double> xs;
  if (std::isfinite(r.low)) xs.insert(xs.end(), {r.without_low ? r.low : r.low - 1, whole ? -9e18 : -1e300});
  if (std::isfinite(r.high)) xs.insert(xs.end(), {r.without_high ? r.high : r.high + 1, whole ? 9e18 : 1e300});
  if (!whole) {
    xs.push_back(std::nan(""));
    if (!r.infinite) xs.insert(xs.end(), {kInf, -kInf});
  }
  return xs;
}

/// Whether another option decides that this one is read at all.
bool read_by_layer(const LayerRow& row, const Option& o) {
  return !(row.name == "linear_attention" && o.name.starts_with("feature_map_init"));
}

}  // namespace

TEST_CASE("table: names are unique, and every sample builds", "[table]") {
  std::set<std::string> names;
  int samples = 0;
  for (const LayerRow& row : layer_table()) CHECK(names.insert(row.name).second);
  each_sample([&](LayerSample& s) {
    ++samples;
    const Tensor y = call(*s.layer, s.inputs(2, 5, 1));
    CHECK(y.dtype() == f64);
    CHECK(all(isfinite(y)).item());
    bool trained = false;
    for (const NamedTensor& t : s.layer->state()) trained = trained || t.tensor.requires_grad();
    CHECK(y.requires_grad() == trained);
  });
  CHECK(samples > 90);
  CHECK_THROWS_WITH(layer_row("gaus"), Contains("did you mean \"gau\"?"));
}

TEST_CASE("table: a file rebuilds every layer", "[table]") {
  TempFolder folder;
  const std::string path = folder / "layer";
  each_sample([&](LayerSample& s) {
    s.layer->save(path);
    const std::unique_ptr<AnyLayer> back = s.layer->reloaded(path);
    CHECK(to_text(detail::to_json(back->options())) == to_text(s.options));
    const LayerInputs in = s.inputs(2, 5, 1);
    back->move(test_device());
    CHECK(same_bits(call(*back, in), call(*s.layer, in)));
    LayerDraft fresh = s.row.draft();
    const std::string printed = detail::text_of(s.layer->options(), fresh.options);
    for (const Option& o : s.layer->options().all)
      if (o.required) CHECK_THAT(printed, Contains(o.name + "="));
    CHECK((printed.front() == '{' && printed.back() == '}'));
  });
}

TEST_CASE("table: options out of range are ValueErrors that name them", "[table]") {
  for (const LayerRow& row : layer_table()) {
    const std::vector<Option> options = row.draft().options.all;
    for (std::size_t i = 0; i < options.size(); ++i) {
      const Option& o = options[i];
      if (!read_by_layer(row, o)) continue;
      INFO(row.name << ": " << o.name);
      if (o.type == Option::choice && o.choices == std::string("no yes")) continue;  // a bool
      if (o.type == Option::choice) {
        CHECK_THAT(built(row, i, set_unnamed), Contains(": " + o.name + " must be one of"));
      } else if (o.type != Option::yes_no && o.type != Option::object) {
        for (double x : outside(o)) {
          INFO(x);
          CHECK_THAT(built(row, i, [&](const Option& c) { set_number(c, x); }), Contains(": " + o.name + " must be"));
        }
      }
    }
  }
}

TEST_CASE("table: inputs that do not fit are errors that show them", "[table]") {
  int64_t refusals = 0;
  each_sample([&](LayerSample& s) {
    const LayerInputs fits = s.inputs(2, 5, 1);
    const auto refused = [&](auto change, const std::string& text) {
      LayerInputs in = fits;
      change(in);
      INFO(text);
      CHECK_THROWS_WITH(call(*s.layer, in), Contains(text));
      ++refusals;
    };
    const bool any_width =
        s.row.name == "norm" && *s.options.at("parts").as<int64_t>() == 1;  // of a norm of one weight
    if (is_float(fits.x.dtype()) && !any_width) {
      const int64_t width = fits.x.dim(2);
      refused([&](LayerInputs& in) { in.x = ones({2, 5, width + 1}, in.x.options()); }, str(Shape{2, 5, width + 1}));
      if (s.row.key_mask)
        refused([&](LayerInputs& in) { in.x = ones({5, width}, in.x.options()); }, str(Shape{5, width}));
    }
    const auto masked = [&](const char* name, Tensor LayerInputs::*field) {
      const TensorOptions on{boolean, test_device()};
      refused([&](LayerInputs& in) { in.*field = ones({2, 6}, on); }, std::string(name) + "=[2,6]");
      refused([&](LayerInputs& in) { in.*field = ones({3, 5}, on); }, std::string(name) + "=[3,5]");
      refused([&](LayerInputs& in) { in.*field = ones({5}, on); }, std::string(name) + "=[5]");
      refused([&](LayerInputs& in) { in.*field = ones({2, 5}, {f64, test_device()}); }, "bool");
    };
    if (s.row.key_mask) masked("key_mask", &LayerInputs::key_mask);
    if (s.cross()) {
      masked("context_mask", &LayerInputs::context_mask);
      const int64_t width = fits.context.dim(2);
      refused([](LayerInputs& in) { in.context = Tensor(); }, "needs a context");
      refused(
          [&](LayerInputs& in) {
            in.context = ones({2, 5, width + 1}, in.x.options());
          },
          str(Shape{2, 5, width + 1}));
      refused([&](LayerInputs& in) { in.context = ones({3, 5, width}, in.x.options()); }, str(Shape{3, 5, width}));
    }
    if (s.documents()) {
      refused(
          [](LayerInputs& in) {
            in.segments = zeros({2, 4}, {i64, test_device()});
          },
          ": segments=[2,4] does not fit x=" + (is_float(fits.x.dtype()) ? str(fits.x.shape()) : "[2,5,"));
      refused([](LayerInputs& in) { in.segments = zeros({2, 5}, {f64, test_device()}); }, ": segments must be i64");
    }
  });
  CHECK(enough(refusals, 500));
}

TEST_CASE("table: options within range build a layer or are ValueErrors", "[table]") {
  int64_t built_layers = 0;
  for (const LayerRow& row : layer_table()) {
    const std::vector<Option> options = row.draft().options.all;
    for (std::size_t i = 0; i < options.size(); ++i)
      if (options[i].type == Option::whole)
        for (int64_t x : {0, 1, 2, 3, 5, 8})
          built_layers += built(row, i, [&](const Option& c) { set_number(c, static_cast<double>(x)); }).empty();
  }
  CHECK(built_layers > 500);
}

TEST_CASE("table: results do not depend on the number of threads", "[table]") {
  const int before = num_threads();
  each_sample([&](LayerSample& s) {
    std::vector<std::vector<Tensor>> results;
    for (int threads : {1, 4}) {
      set_num_threads(threads);
      const LayerInputs in = s.inputs(3, 70, 2, true);  // enough to be cut
      const Tensor y = call(*s.layer, in);
      results.push_back(grad({sum(square(y))}, s.leaves(in), {.allow_unused = true}));
      results.back().push_back(y);
    }
    for (std::size_t i = 0; i < results[0].size(); ++i)
      CHECK((!results[0][i].defined() ? !results[1][i].defined() : same_bits(results[0][i], results[1][i])));
  });
  set_num_threads(before);
}

TEST_CASE("table: on meta every layer has the shapes that it has with memory", "[table]") {
  each_sample([](LayerSample& s) {
    LayerInputs in = s.inputs(2, 7, 1);
    const Tensor real = call(*s.layer, in);
    s.layer->move(meta);
    for (Tensor* x : {&in.x, &in.context})
      if (x->defined()) *x = to(*x, meta);
    if (s.masks_keys()) s.mask_of_keys(in) = to(ones({2, 7}) > 0.0, meta);
    if (s.documents()) in.segments = zeros({2, 7}, {i64, meta});
    if (s.row.scores) in.mask = to(ones({7, 7}) > 0.0, meta), in.bias = zeros({7, 7}, {f64, meta});
    const Tensor y = call(*s.layer, in);
    CHECK(y.device() == meta);
    CHECK(y.shape() == real.shape());
    CHECK(y.dtype() == real.dtype());
  });
}

TEST_CASE("table: f32 is f64, rounded", "[table]") {
  each_sample([](LayerSample& s) {
    const LayerSample single = make_sample(s.row, s.sample, f32);
    std::map<std::string, Tensor> state;  // random buffers are drawn anew in f32
    for (const NamedTensor& t : s.layer->state())
      state[t.name] = is_float(t.tensor.dtype()) ? to(t.tensor.detach(), f32) : t.tensor;
    single.layer->load(state);
    const Tensor y = call(*s.layer, s.inputs(2, 7, 1)), z = call(*single.layer, single.inputs(2, 7, 1));
    CHECK(z.dtype() == f32);
    CHECK(max_abs_diff(to(z, f64), y) < 2e-5 * (1 + max_abs(y)));
  });
}
