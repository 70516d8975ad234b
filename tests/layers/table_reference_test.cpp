// Every layer of the table against its independent reference: the table's samples and drawn ones, with padding before,
// between and behind the real tokens, documents, masks and biases of scores, one token and many.
#include "support/catch.h"
#include "support/identities.h"
#include "support/layer_reference.h"
#include "support/table_samples.h"

#include <sluice/ops/shape/create.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/shape/view.h>

using namespace sluice;
using namespace sluice::testing;

namespace {

constexpr int64_t kTokens = 9;

/// A call beside x and its context. Of a context some last keys of the rows are left out.
struct Variant {
  const char* name;
  std::vector<bool> keys = {};  // [2, kTokens]; empty: all real
  bool documents = false, scores = false, blocks = false;
};
const Variant kPlain{"plain"}, kFront{"padding in front", {0, 0, 0, 0, 1, 1, 1, 1, 1, 0, 1, 1, 1, 1, 1, 1, 1, 1}},
    kMiddle{"padding between", {1, 0, 1, 1, 0, 0, 0, 0, 1, 1, 1, 0, 1, 1, 0, 1, 0, 1}},  // a chunk of padding
    kEnd{"padding behind", {1, 1, 1, 1, 1, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 0}},
    kNobody{"a context of padding", {0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 1, 1, 1, 1, 1, 1, 1}},
    kDocuments{"documents", {}, true}, kMixed{"documents and padding", kMiddle.keys, true},
    kScores{"masked and biased scores", kEnd.keys, true, true}, kBlocks{"blocks of scores", {}, false, false, true};

std::vector<const Variant*> variants_of(const LayerSample& s) {
  std::vector<const Variant*> all{&kPlain};
  if (s.masks_keys()) all.insert(all.end(), {&kFront, &kMiddle, &kEnd});
  if (s.cross()) all.push_back(&kNobody);
  if (s.documents() || (s.row.segments && s.cross())) all.insert(all.end(), {&kDocuments, &kMixed});
  if (s.row.scores) all.push_back(&kScores);
  const bool own_rows = s.has("separate_global_projections", true) || s.has("separate_global", true);
  if (s.row.scores && !own_rows) all.push_back(&kBlocks);
  return all;
}

Matrix rows_of(const Tensor& x, int64_t b) {
  if (!x.defined()) return {};
  const auto n = static_cast<std::size_t>(x.dim(1)), width = static_cast<std::size_t>(x.rank() == 2 ? 1 : x.dim(2));
  const std::vector<double> v = select(x, 0, b).to_vector<double>();
  Matrix m;
  for (std::size_t i = 0; i < n; ++i)
    m.emplace_back(v.begin() + static_cast<std::ptrdiff_t>(i * width),
                   v.begin() + static_cast<std::ptrdiff_t>((i + 1) * width));
  return m;
}
template <class T> std::vector<T> line_of(const Tensor& x, int64_t b) {
  return x.defined() ? select(x, 0, b).to_vector<T>() : std::vector<T>{};
}
std::vector<bool> real_of(const Tensor& mask, int64_t b, const Tensor& x) {
  if (mask.defined()) return line_of<bool>(mask, b);
  return std::vector<bool>(x.defined() ? static_cast<std::size_t>(x.dim(1)) : 0, true);
}

LayerInputs inputs_of(const LayerSample& s, const Variant& v, int64_t n) {
  LayerInputs in = s.inputs(2, n, 1);
  const int64_t keys = s.cross() && n > 2 && !s.has("reading", "literal") ? n - 2 : n;
  if (s.cross()) in.context = narrow(in.context, 1, 0, keys);
  if (!in.positions.empty()) in.positions = n > 1 ? std::vector<int64_t>{0, n / 3} : std::vector<int64_t>{0};
  if (!v.keys.empty()) {
    s.mask_of_keys(in) = narrow(to(Tensor::from(v.keys, {2, n}), test_device()), 1, 0, keys);
    if (s.has("reading", "pooled")) in.key_mask = to(Tensor::from(kEnd.keys, {2, n}), test_device());
  }
  if (v.documents && (s.documents() || s.cross())) {
    in.segments = tensor_of({0, 0, 0, 0, 7, 7, 7, 7, 7, 1, 2, 2, 2, 2, 2, 2, 3, 3}, {2, n}, i64);
    if (s.cross())
      in.context_segments =
          narrow(tensor_of({0, 0, 7, 7, 7, 7, 7, 7, 7, 2, 2, 2, 1, 2, 2, 2, 2, 3}, {2, n}, i64), 1, 0, keys);
  }
  Rand rand(8);
  if (v.scores) {
    in.bias = random_tensor({2, 1, n, keys}, f64, rand);
    in.mask = random_tensor({2, *s.options.at("heads").as<int64_t>(), n, keys}, f64, rand, 0, 3) > 1.0;
  }
  if (v.blocks)
    in.block = 3, in.blocks = to(Tensor::from(std::vector<bool>{1, 0, 1, 1, 1, 0, 0, 1, 1}, {3, 3}), test_device());
  return in;
}

LayerSequence sequence_of(const LayerInputs& in, int64_t b) {
  LayerSequence q;
  q.x = rows_of(in.x, b), q.context = rows_of(in.context, b);
  q.real = real_of(in.key_mask, b, in.x), q.real_context = real_of(in.context_mask, b, in.context);
  q.documents = line_of<int64_t>(in.segments, b), q.context_documents = line_of<int64_t>(in.context_segments, b);
  q.positions = in.positions;
  if (in.bias.defined()) q.bias = rows_of(select(in.bias, 1, 0), b);
  std::vector<Matrix> masks;  // of each head
  for (int64_t h = 0; in.mask.defined() && h < in.mask.dim(1); ++h)
    masks.push_back(rows_of(to(select(in.mask, 1, h), f64), b));
  if (in.mask.defined())
    q.allowed = [masks](std::size_t h, std::size_t i, std::size_t j) { return masks[h][i][j] != 0; };
  if (in.blocks.defined())
    q.allowed = [m = rows_of(to(unsqueeze(in.blocks, 0), f64), 0), size = static_cast<std::size_t>(in.block)](
                    std::size_t, std::size_t i, std::size_t j) { return m[i / size][j / size] != 0; };
  return q;
}

/// x and the context, each number moved by up to 1e-12 of itself: some thousand roundings.
LayerSequence moved(LayerSequence q) {
  Rand rand(9);
  for (Matrix* m : {&q.x, &q.context})
    for (auto& row : *m)
      for (double& v : row) v *= 1 + rand.uniform(-1e-12, 1e-12);
  return q;
}

double apart(const Matrix& a, const Matrix& b, const std::vector<bool>& counted) {
  double worst = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    for (std::size_t c = 0; counted[i] && c < a[i].size(); ++c)
      worst = std::max(worst, std::isnan(a[i][c] - b[i][c]) ? INFINITY : std::abs(a[i][c] - b[i][c]));
  return worst;
}

/// Compares one call. False if the inputs, moved by rounding, give something else: then differences say nothing.
bool compare(const LayerSample& s, const LayerReference& reference, const LayerInputs& in) {
  std::map<std::string, Tensor> tensors;
  for (const NamedTensor& t : s.layer->state()) tensors[t.name] = t.tensor.detach();
  const LayerFacts facts(s.options, tensors);
  const Tensor got = call(*s.layer, in);
  for (int64_t b = 0; b < in.x.dim(0); ++b) {
    const LayerSequence q = sequence_of(in, b);
    const Matrix want = reference(facts, q), have = rows_of(got, b);
    REQUIRE(want.size() == have.size());
    REQUIRE((want.empty() || want[0].size() == have[0].size()));
    const Matrix zero(want.size(), std::vector<double>(want.empty() ? 0 : want[0].size(), 0.0));
    const double size = 1 + apart(want, zero, q.real);
    const double rough = s.options.find("vocabulary") ? 0 : apart(want, reference(facts, moved(q)), q.real);
    if (!(size < 1e12) || rough > 1e-8 * size) return false;
    const double error = apart(have, want, q.real);
    INFO("sequence " << b << ": " << error << " apart, largest " << size << ", moved " << rough);
    CHECK(error <= 1e-11 * size + rough);  // a denominator of 1e-6 alone multiplies what rounding leaves
    if (s.row.name == "gated_cross_attention" && s.has("reading", "per_query"))
      check_identity("gates: per-query cross gate = g * Attn(g * Q, K, V)", error, 1e-11 * size + rough);
  }
  return true;
}

/// Options that act together, for the rows that have them.
const char* const kTogether[] = {
    R"({"use_rope": true, "rope_xpos": 16})",
    R"({"use_rope": true, "rope_factor": 1.3, "rope_rot_dim": 2})",
    R"({"use_rope": true, "rope_offset": 3, "rope_pairing": "interleaved", "rope_base": 50})",
    R"({"use_rope": "inputs", "rope_xpos": 16})",
    R"({"use_rope": "features", "rope_xpos": 16, "rope_factor": 1.3})",
    R"({"bias": "rope", "rope_xpos": 16, "rope_offset": 3})",
    R"({"bias": "t5", "buckets": 4, "max_distance": 6})",
    R"({"position_bias": "t5", "buckets": 4, "max_distance": 6})",
    R"({"kv_heads": 1, "use_rope": true})",
    R"({"qk_norm": true, "qk_norm_kind": "layer", "qk_norm_over": "per_head"})",
    R"({"kv_heads": 1, "value_dim": 3})",
    R"({"qk_norm": true, "qk_norm_over": "width", "softcap": 0.5})",
    R"({"scale": 0.3, "sink": "learned"})",
    R"({"gates": [{"position": "g3", "after_qk_norm": true, "sharing": "logits"},
                  {"mode": "add", "sharing": "scores"}]})"};

/// Every value of every choice and yes or no, one at a time, as what it changes in a sample; in a list of objects as
/// its only object.
std::vector<Json> choices_of(const OptionList& options) {
  std::vector<Json> changes;
  for (const Option& o : options.all) {
    if (o.training) continue;
    std::vector<Json> values;
    if (o.type == Option::yes_no) values = {true, false};
    if (o.type == Option::choice)
      for (const std::string& name : o.choice_names()) values.push_back(name);
    if (o.list && o.fields)
      for (const Json& inner : choices_of(o.fields())) values.push_back(Json::List{inner});
    for (const Json& value : values) changes.push_back(Json::Object{{o.name, value}});
  }
  return changes;
}

bool builds(const LayerRow& row, const Json& sample) {
  try {
    Rng rng(1);
    row.make(sample, rng);
    return true;
  } catch (const ValueError&) { return false; }
}

/// Whether its formula is defined. The literal Sinkhorn iteration ends in weights that are equal but for rounding, so
/// no k of them are the largest.
bool defined(const LayerSample& s) {
  const auto whole = [&](const char* name) { return *s.options.at(name).as<int64_t>(); };
  if (s.has("variant", "literal") && s.row.name == "sinkhorn_attention") return whole("top_k") == 0;
  return !s.has("variant", "literal") || whole("iterations") > 0;  // blocks: logarithms of negative shares
}

}  // namespace

TEST_CASE("table: every layer equals its independent reference", "[table][reference]") {
  int64_t compared = 0, rough = 0;
  for (const LayerRow& row : layer_table()) {
    const LayerReference* reference = find_reference(row.name);
    INFO("layer " << row.name << ": its register_reference() belongs into tests/layers/*_reference.cpp");
    CHECK(reference);
    if (!reference) continue;
    const auto check = [&](const LayerSample& s, const Variant& v, int64_t n) {
      INFO(s.text << ", " << n << " tokens, " << v.name);
      try {
        rough += !compare(s, *reference, inputs_of(s, v, n)), ++compared;
      } catch (const std::exception& e) { FAIL_CHECK(e.what()); }
    };
    const auto check_in_turn = [&](const Json& sample) {  // variants take turns
      const LayerSample s = make_sample(row, sample);
      const std::vector<const Variant*> variants = variants_of(s);
      if (defined(s)) check(s, *variants[static_cast<std::size_t>(compared) % variants.size()], kTokens);
    };
    for (const Json& sample : samples_of(row)) {
      const LayerSample s = make_sample(row, sample);
      if (!defined(s)) continue;
      for (const Variant* v : variants_of(s)) check(s, *v, kTokens);
      check(s, kPlain, 1);
      Json longer = sample;
      if (longer.find("chunk")) longer["chunk"] = 64;
      check(make_sample(row, longer), kPlain, 70);  // where T5's buckets widen
    }
    std::vector<Json> changes = choices_of(row.draft().options);
    for (const char* together : kTogether) changes.push_back(parse_json(together));
    for (const Json& change : changes)
      for (Json sample : samples_of(row)) {
        for (const auto& [name, value] : change.get<Json::Object>()) sample[name] = value;
        if (builds(row, sample)) check_in_turn(sample);
      }
    for (const Json& sample : drawn_samples(row, 6 * std::ssize(row.draft().options.all), 77)) check_in_turn(sample);
  }
  CHECK(compared > 5000);
  CHECK(rough * 50 < compared);
}
