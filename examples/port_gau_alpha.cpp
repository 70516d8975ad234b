// A layer of GAU-α (Su 2022) with its own weights: softmax_plus attention, interleaved RoPE, post-norm, no biases.
// Output and input gradient are compared with those of GAU-alpha-pytorch; its options and names: support/ports.h.
#include "support/compare.h"
#include "support/ports.h"

using namespace sluice;
using namespace sluice::examples;

int main() {
  Numbers numbers{SLUICE_EXAMPLE_DATA "/gau_alpha.safetensors"};
  const auto [options, rules] = gau_alpha();
  Rng rng(1);
  const Gau gau(options, rng);
  load_pytorch(gau, numbers.path, rules, numbers.but_numbers());

  const Tensor mask = numbers["input.key_mask"], real = to(unsqueeze(mask, -1), f64);
  const Tensor x = clone(numbers["input.x"]).requires_grad_();
  const Tensor y = gau(x, {.key_mask = mask}) * real;  // what stands in padding is of no use to anyone
  backward(sum(y * numbers["cotangent"]));
  numbers.compare(y, "output");
  numbers.compare(x.grad(), "grad.input.x");
  return numbers.worst < 1e-9 ? 0 : 1;
}
