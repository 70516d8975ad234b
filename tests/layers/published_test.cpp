// Layers as published, by options: weights, inputs, outputs and gradients of other packages, in f64 (numbers only). A
// file of tests/golden/published says in its metadata of each case what it is, which layer of the table it is, and with
// which options; of the package fla the layers, around its reference functions in place of its Triton kernels.
#include "support/approx.h"
#include "support/catch.h"
#include "support/folders.h"

#include <sluice/autograd/engine.h>
#include <sluice/core/text/safetensors.h>
#include <sluice/layers/table.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/rows/reduce.h>

#include <filesystem>

using namespace sluice;
using namespace sluice::testing;

TEST_CASE("published layers: outputs and all gradients are those of their packages", "[golden][layers]") {
  int checked = 0;
  for (const auto& entry : std::filesystem::directory_iterator(source_folder() + "/tests/golden/published")) {
    const SafeTensors file = load_safetensors(entry.path().string());
    const Json cases = parse_json(file.metadata.at("cases"));
    int64_t number = 0;
    for (const Json& one : *cases.as<Json::List>()) {
      const std::string name = *one.find("name")->as<std::string>(), prefix = str(number++, '/');
      INFO(name);
      auto of = [&](const std::string& which) { return file.tensors.at(prefix + which); };
      auto close = [&](const Tensor& got, const Tensor& want) {
        REQUIRE(got.shape() == want.shape());
        CHECK(max_abs_diff(got, want) <= 1e-9 * max_abs(want));
      };
      Rng rng(1);
      const auto layer = layer_row(*one.find("layer")->as<std::string>()).make(*one.find("config"), rng, f64);
      std::map<std::string, Tensor> state;
      for (const NamedTensor& own : layer->state()) {  // a buffer that follows from the options stays
        const auto given = file.tensors.find(prefix + "param." + own.name);
        state[own.name] = given == file.tensors.end() ? own.tensor : given->second;
        CHECK((given != file.tensors.end() || !own.tensor.requires_grad()));
      }
      layer->load(state);
      Tensor x = of("x");
      const bool floats = is_float(x.dtype());
      if (floats) x = clone(x).requires_grad_();
      const Tensor y = (*layer)(x);
      close(y, of("y"));
      backward(sum(y * of("cotangent")));
      if (floats) close(x.grad(), of("grad.x"));
      for (const NamedTensor& own : layer->state())
        if (own.tensor.requires_grad()) close(own.tensor.grad(), of("grad." + own.name));
      ++checked;
    }
  }
  CHECK(checked >= 34);
}
