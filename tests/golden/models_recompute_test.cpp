// Decoder::recompute: the same gradients from blocks that run again, with less memory.
#include "golden/model_logits.h"
#include "support/approx.h"
#include "support/catch.h"

#include <sluice/core/memory/allocator.h>
#include <sluice/layers/models/load_model_files.h>
#include <sluice/ops/basic.h>

#include <optional>

using namespace sluice;
using namespace sluice::testing;

namespace {

std::vector<Tensor> tensors_of(const Decoder& model) {
  std::vector<Tensor> all;
  for (const NamedTensor& p : parameters(model)) all.push_back(p.tensor);
  return all;
}

}  // namespace

TEST_CASE("models: of every family, blocks that run again have the same gradients", "[golden][models]") {
  Rand rand(1);
  for (const std::string& folder : model_folders()) {
    INFO(folder);
    std::optional<Decoder> model =
        load_model_files(folder, {.dtype = f64, .map = false, .long_texts = folder.ends_with("phi3_long")});
    const auto given = load_safetensors(folder + "/expected.safetensors").tensors;
    const Tensor &tokens = given.at("tokens"), &mask = given.at("mask");
    const std::vector<Tensor> wanted = tensors_of(*model);
    const Tensor weight =
        masked_fill(random_tensor({tokens.dim(0), tokens.dim(1), model->options.vocabulary}, f64, rand),
                    unsqueeze(logical_not(mask), -1), 0);
    const auto loss = [&] { return sum((*model)(tokens, {.key_mask = mask}) * weight); };
    const Tensor whole = loss();
    model->recompute = true;
    const Tensor again = loss();
    CHECK(again.item() == whole.item());
    model.reset();  // the graph keeps what it needs
    const auto want = grad({whole}, wanted, {.allow_unused = true}),
               got = grad({again}, wanted, {.allow_unused = true});
    for (std::size_t i = 0; i < want.size(); ++i) {
      REQUIRE(got[i].defined() == want[i].defined());
      if (want[i].defined()) CHECK(max_abs_diff(got[i], want[i]) <= 1e-13 * (1 + max_abs(want[i])));
    }
  }
}

TEST_CASE("models: blocks that run again draw the same dropout, and keep little", "[models]") {
  MultiHeadAttentionOptions attention{.heads = {.dim = 32, .heads = 2, .causal = true, .use_rope = true}};
  attention.heads.dropout = 0.25;
  DecoderOptions options{.vocabulary = 11, .dim = 32, .blocks = {}};
  for (int i = 0; i < 8; ++i)
    options.blocks.push_back({.mixer = attention, .feed = GluOptions{.dim = 32, .hidden = 96}});
  Rng rng(1);
  Decoder model(options, rng);
  const Tensor tokens = randint(0, 11, {2, 64}, rng);
  uint64_t drawn = 0;
  double peaks[2];
  std::vector<Tensor> gradients[2];
  for (const bool again : {false, true}) {
    model.recompute = again;
    Rng draws(7);
    const int64_t before = memory_stats().live;
    reset_peak_memory();
    const Tensor loss = mean(square(model(tokens, {.rng = &draws})));
    gradients[again] = grad({loss}, tensors_of(model));
    peaks[again] = static_cast<double>(memory_stats().peak - before);
    if (!again) drawn = draws.offset();
    CHECK((drawn > 0 && draws.offset() == drawn));  // what runs again draws nothing new
  }
  for (std::size_t i = 0; i < gradients[0].size(); ++i)
    CHECK(max_abs_diff(gradients[1][i], gradients[0][i]) <= 1e-6 * max_abs(gradients[0][i]));
  CHECK(peaks[1] < 0.5 * peaks[0]);
}

TEST_CASE("models: blocks that run again do not hide a field that nothing reads, and stream as ever", "[models]") {
  DecoderOptions options{.vocabulary = 11, .dim = 16, .blocks = {}};
  options.blocks.push_back({.mixer = MultiHeadAttentionOptions{.heads = {.dim = 16, .heads = 2, .causal = true}}});
  Rng rng(1);
  Decoder model(options, rng);
  model.recompute = true;
  const Tensor tokens = randint(0, 11, {2, 6}, rng);
  Tensor y;  // lives on, with its graph
  CHECK_THROWS_WITH((y = model(tokens, {.context = zeros({2, 3, 16})})), "pass: nothing in the model has read context");
  Stream stream;
  CHECK(max_abs_diff(step(model, tokens, stream), model(tokens).detach()) == 0);
}
