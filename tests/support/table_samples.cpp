#include "support/table_samples.h"

#include <sluice/ops/shape/create.h>

#include <cstdlib>
#include <optional>

namespace sluice::testing {

namespace {

std::optional<uint64_t> layer_seed() {
  const char* text = std::getenv("SLUICE_LAYER_SEED");
  return text ? std::optional<uint64_t>(std::strtoull(text, nullptr, 10)) : std::nullopt;
}

std::map<std::string, std::vector<Json>> drawn;  // by the row's name

/// A number of its type.
Json drawn_number(const Option& o, Rand& rand) {
  static constexpr double kReals[] = {0, 0.1, 0.3, 0.5, 0.7, 1, 1.3, 2};
  static constexpr int64_t kWhole[] = {0, 1, 2, 3, 4, 5, 6, 8};
  if (o.type == Option::whole) return kWhole[rand.below(8)];
  if (o.name.ends_with("eps")) return kReals[1 + rand.below(4)];  // with 0 a row of zeros has no norm
  if (o.name.ends_with("xpos")) return 8 * rand.below(4);         // less than 8 tells apart what doubles cannot
  return kReals[rand.below(o.name.find("dropout") != std::string::npos ? 3 : 8)];
}
/// Another value of its type.
Json drawn_value(const Option& o, Rand& rand, bool item = false) {
  if (o.optional && rand.below(2)) return {};
  if (o.list && !item) {
    Json::List list(static_cast<std::size_t>(rand.below(3)));
    for (Json& j : list) j = drawn_value(o, rand, true);
    return list;
  }
  switch (o.type) {
    case Option::yes_no: return rand.below(2) == 1;
    case Option::choice: {
      const std::vector<std::string> names = o.choice_names();
      return names[static_cast<std::size_t>(rand.below(std::ssize(names)))];
    }
    case Option::whole:
    case Option::real: return drawn_number(o, rand);
    case Option::text: return "";
    case Option::object: {
      Json::Object object;
      for (const Option& field : o.fields().all)
        if (rand.below(2)) object.emplace_back(field.name, drawn_value(field, rand));
      return object;
    }
  }
  return {};
}

/// What is not drawn: tables of positions stay as long as the longest test, a feature map has no heads and a mixture no
/// numbers of tokens, which their inputs would need, and a convolution has a past.
bool fixed(const LayerRow& row, const std::string& option) {
  return option == "dtype" || option == "max_length" || (row.name == "feature_map" && option == "heads") ||
         (row.name == "moe" && option == "token_table") ||
         (row.name.ends_with("short_convolution") && option == "width");
}

/// The literal Sinkhorn makes all shares nearly equal: rounding decides which are the best.
bool rounding_decides(const Json& sample) {
  const Json *const variant = sample.find("variant"), *const top = sample.find("top_k");
  return variant && top && *variant == Json("literal") && *top != Json(0);
}

/// A sample with about a fifth of the options drawn, until the layer takes them.
Json drawn_sample(const LayerRow& row, const Json& sample, Rand& rand) {
  for (;;) {
    Json other = sample;
    try {
      const LayerDraft draft = row.draft();
      detail::from_json(row.name, sample, draft.options);
      for (const Option& o : draft.options.all)
        if (!fixed(row, o.name) && rand.below(5) == 0) {
          o.set(row.name, drawn_value(o, rand));
          other[o.name] = o.get();
        }
      Rng rng(1);
      draft.build(rng);
      if (!rounding_decides(other)) return other;
    } catch (const ValueError&) {  // they do not go together
    }
  }
}

}  // namespace

int64_t drawn_layers() {
  int64_t n = 0;
  for (const auto& [name, samples] : drawn) n += std::ssize(samples);
  return n;
}

const std::vector<Json>& samples_of(const LayerRow& row) {
  if (!layer_seed()) return row.samples;
  std::vector<Json>& samples = drawn[row.name];
  if (samples.empty())
    samples = drawn_samples(row, std::ssize(row.samples),
                            *layer_seed() * 1000 + static_cast<uint64_t>(&row - layer_table().data()));
  return samples;
}

std::vector<Json> drawn_samples(const LayerRow& row, int64_t count, uint64_t seed) {
  Rand rand(seed + 100 * layer_seed().value_or(0));
  std::vector<Json> samples;
  while (std::ssize(samples) < count)
    samples.push_back(drawn_sample(row, row.samples[samples.size() % row.samples.size()], rand));
  return samples;
}

Pass LayerInputs::pass(Rng* rng) const {
  return {.key_mask = key_mask,
          .context = context,
          .context_mask = context_mask,
          .segments = segments,
          .context_segments = context_segments,
          .mask = mask,
          .bias = bias,
          .blocks = blocks,
          .block = block,
          .positions = positions,
          .rng = rng};
}

bool enough(int64_t n, int64_t least) { return layer_seed() || n >= least; }

bool LayerSample::has(std::string_view option, const Json& value) const {
  const Json* j = options.find(option);
  return j && *j == value;
}
bool LayerSample::cross() const {
  const Json* width = options.find("context_dim");
  return row.context && width && *width->as<int64_t>() > 0;
}
bool LayerSample::documents() const {
  const Json* refuses = options.find(row.refuses_segments);
  return row.segments && !cross() && !(refuses && *refuses->as<int64_t>() > 0);
}
bool LayerSample::causal() const {
  if (has("length", "n") || has("separate_global_projections", true))
    return false;  // a later token counts, or has other maps
  const bool always = row.streams && !options.find("causal") && !options.find("direction");
  return !cross() && (always || has("causal", true) || has("direction", "causal"));
}

std::vector<Tensor> LayerSample::leaves(const LayerInputs& in) const {
  std::vector<Tensor> leaves;
  for (const NamedTensor& t : layer->state())
    if (t.tensor.requires_grad()) leaves.push_back(t.tensor);
  if (in.x.defined() && is_float(in.x.dtype())) leaves.push_back(in.x);
  return leaves;
}

LayerInputs LayerSample::inputs(int64_t batch, int64_t n, uint64_t seed, bool traced) const {
  Rand rand(seed + 100 * layer_seed().value_or(0));
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
  if (row.branch) in.context = floats(n, w.width);
  if (row.positions && !cross() && !causal()) in.positions = {0, n / 3};
  return in;
}

LayerSample make_sample(const LayerRow& row, const Json& sample, DType dtype) {
  Rng rng(3);
  LayerSample s{row, sample, {}, {}, row.make(sample, rng, dtype)};
  s.options = detail::to_json(s.layer->options());
  s.text = row.name + " " + to_text(sample);
  Rand rand(5 + 100 * layer_seed().value_or(0));
  std::map<std::string, Tensor> state;
  for (const NamedTensor& t : s.layer->state()) {
    const bool drawn_here = t.tensor.requires_grad() || t.name == "router_bias";  // which is not trained, but given
    state[t.name] = drawn_here ? random_tensor(t.tensor.shape(), t.tensor.dtype(), rand, -0.7, 0.7) : t.tensor.detach();
  }
  s.layer->load(state);
  s.layer->move(test_device());
  return s;
}

}  // namespace sluice::testing
