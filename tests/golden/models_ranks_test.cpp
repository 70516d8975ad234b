// Models of every family on sequences that are cut over ranks.
#include "golden/model_logits.h"
#include "parallel/ranks.h"
#include "support/approx.h"
#include "support/catch.h"

#include <sluice/autograd/engine.h>
#include <sluice/layers/models/load_model_files.h>
#include <sluice/ops/basic.h>
#include <sluice/parallel/collectives.h>
#include <sluice/parallel/sequence.h>

using namespace sluice;
using namespace sluice::testing;

namespace {

/// Outputs of the model and gradients of its parameters; undefined where tokens do not reach them.
std::vector<Tensor> outputs_and_gradients(const Decoder& model, const Tensor& tokens, const Tensor& weight) {
  std::vector<Tensor> wanted;
  for (const NamedTensor& p : parameters(model)) wanted.push_back(p.tensor);
  const Tensor y = model(tokens);
  std::vector<Tensor> result = grad({sum(y * weight)}, wanted, {.allow_unused = true});
  result.insert(result.begin(), y.detach());
  return result;
}

bool near(const Tensor& got, const Tensor& want) { return max_abs_diff(got, want) <= 1e-10 * (1 + max_abs(want)); }

}  // namespace

TEST_CASE("models: of every family, pieces of a sequence are the whole, with all gradients", "[golden][models]") {
  Rand rand(1);
  for (const std::string& folder : model_folders()) {
    INFO(folder);
    const bool long_texts = folder.ends_with("phi3_long");
    const Decoder model = load_model_files(folder, {.dtype = f64, .map = false, .long_texts = long_texts});
    const Tensor tokens = load_safetensors(folder + "/expected.safetensors").tensors.at("stream");
    const int64_t n = tokens.dim(1);
    const Tensor weight = random_tensor({tokens.dim(0), n, model.options.vocabulary}, f64, rand);
    const std::vector<Tensor> want = outputs_and_gradients(model, tokens, weight);
    run_ranks(3, [&](const Communicator& c) {
      const std::vector<int64_t> lengths = even_pieces(n, c.size());
      int64_t first = 0;
      for (int r = 0; r < c.rank(); ++r) first += lengths[static_cast<std::size_t>(r)];
      const auto piece = [&](const Tensor& x) {
        return narrow(x, 1, first, lengths[static_cast<std::size_t>(c.rank())]);
      };
      const SequenceScope scope(c);
      const std::vector<Tensor> got = outputs_and_gradients(model, piece(tokens), piece(weight));
      expect(near(got[0], piece(want[0])), "outputs are those of the whole");
      for (std::size_t i = 1; i < got.size(); ++i) {
        const Tensor zero = zeros_like(parameters(model)[i - 1].tensor);
        const Tensor all = all_reduce(got[i].defined() ? got[i] : zero, c);
        expect(near(all, want[i].defined() ? want[i] : zero), parameters(model)[i - 1].name);
      }
    });
  }
}
