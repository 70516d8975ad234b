// Mamba-2 against a file of tests/golden/next: outputs, last state and all gradients, computed in f64 by another
// program. The file has the layer's options in its metadata; its numbers agree with transformers' Mamba2Mixer.
#include "support/approx.h"
#include "support/catch.h"
#include "support/folders.h"

#include <sluice/autograd/engine.h>
#include <sluice/core/text/safetensors.h>
#include <sluice/layers/linear_attention/mamba2.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/rows/reduce.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/shape/view.h>

using namespace sluice;
using namespace sluice::testing;

TEST_CASE("Mamba-2: the golden case, output, state and gradients", "[golden][mamba2]") {
  const SafeTensors file = load_safetensors(source_folder() + "/tests/golden/next/mamba2.safetensors");
  const auto of = [&](const std::string& name) { return file.tensors.at(name); };
  const auto close = [&](const std::string& name, const Tensor& got) {
    INFO(name);
    REQUIRE(got.shape() == of(name).shape());
    CHECK(max_abs_diff(got, of(name)) <= 1e-9 * max_abs(of(name)));
  };
  Mamba2Options o{.dim = 0, .dtype = f64};
  from_json("mamba2", parse_json(file.metadata.at("config")), o);
  Rng rng(1);
  Mamba2 layer(o, rng);
  std::map<std::string, Tensor> state;
  for (const auto& [name, tensor] : file.tensors)
    if (name.starts_with("param.")) state[name.substr(6)] = tensor;
  load_state(layer, state);  // an error unless these are all
  const Tensor x = clone(of("input.x")).requires_grad_(), y = layer(x);
  const Pass pass;
  const Mamba2::Operands p = layer.operands(Call(layer, "mamba2", x, o.dim, pass));
  const Tensor last = transpose(linear_scan_state(p.k, p.v, p.log_decay), -2, -1);
  close("output", y), close("output.state", last);
  backward(sum(y * of("cotangent")) + sum(last * of("cotangent.state")));
  close("grad.input.x", x.grad());
  for (const NamedTensor& own : state_dict(layer)) close("grad.param." + own.name, own.tensor.grad());
}
