#include "support/table_samples.h"

#include "support/catch.h"

#include <sluice/ops/create.h>

namespace sluice::testing {

bool LayerSample::has(std::string_view option, const Json& value) const {
  const Json* j = options.find(option);
  return j && *j == value;
}
bool LayerSample::cross() const {
  const Json* width = options.find("context_dim");
  return row.context && width && *width->as<int64_t>() > 0;
}
bool LayerSample::causal() const {
  const bool always = row.streams && !options.find("causal") && !options.find("direction");
  return !cross() && (always || has("causal", true) || has("direction", "causal"));
}

LayerInputs LayerSample::inputs(int64_t batch, int64_t n, uint64_t seed, bool traced) const {
  Rand rand(seed);
  const LayerWidth w = layer_width(options);
  const DType dtype = from_name<DType>(*options.find("dtype")->as<std::string>());
  auto floats = [&](int64_t rows, int64_t width) {
    Tensor x = random_tensor({batch, rows, width}, dtype, rand);
    return traced ? x.requires_grad_() : x;
  };
  LayerInputs in{.x = w.vocabulary > 0 ? Tensor() : floats(n, w.width)};
  if (w.vocabulary > 0) {
    Rng rng(seed);
    in.x = randint(0, w.vocabulary, {batch, n}, rng, test_device());
  }
  if (cross()) in.context = floats(n, w.context);
  if (row.branch) in.branch = floats(n, w.width);
  if (row.positions) in.positions = {0, n / 3};
  return in;
}

LayerSample make_sample(const LayerRow& row, const Json& sample, DType dtype) {
  Rng rng(3);
  LayerSample s{row, {}, {}, row.make(sample, rng, dtype)};
  s.options = detail::to_json(s.layer->options());
  s.text = row.name + " " + to_text(sample);
  Rand rand(5);
  std::map<std::string, Tensor> state;
  for (const NamedTensor& t : s.layer->state())
    state[t.name] = t.tensor.requires_grad() ? random_tensor(t.tensor.shape(), t.tensor.dtype(), rand, -0.7, 0.7)
                                             : t.tensor.detach();
  s.layer->load(state);
  s.layer->move(test_device());
  return s;
}

void each_sample(const std::function<void(LayerSample&)>& f) {
  for (const LayerRow& row : layer_table())
    for (const Json& sample : row.samples) {
      LayerSample s = make_sample(row, sample);
      INFO(s.text);
      try {
        f(s);
      } catch (const Error& e) {
        FAIL_CHECK(e.what());
      }
    }
}

}  // namespace sluice::testing
