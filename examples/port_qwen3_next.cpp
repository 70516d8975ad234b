// Qwen3-Next's gated attention with its own weights: query and gate in one map, norms that store w − 1, partial RoPE.
// Output and input gradient are compared with those of transformers; its options and names: support/ports.h.
#include "support/compare.h"
#include "support/ports.h"

using namespace sluice;
using namespace sluice::examples;

int main() {
  Numbers numbers{SLUICE_EXAMPLE_DATA "/qwen3_next.safetensors"};
  const auto [options, rules] = qwen3_next();
  Rng rng(1);
  const MultiHeadAttention attention(options, rng);
  load_pytorch(attention, numbers.path, rules, numbers.but_numbers());

  const Tensor x = clone(numbers["input.x"]).requires_grad_();
  const Tensor y = attention(x);
  backward(sum(y * numbers["cotangent"]));
  numbers.compare(y, "output");
  numbers.compare(x.grad(), "grad.input.x");
  return numbers.worst < 1e-9 ? 0 : 1;
}
