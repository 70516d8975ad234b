// lucidrains' FLASHTransformer, a causal language model, with its own weights; they come back to PyTorch the same way.
// Logits and the gradient of the embedding are compared with those of FLASH-pytorch; its options and names:
// support/ports.h.
#include "support/compare.h"
#include "support/ports.h"

using namespace sluice;
using namespace sluice::examples;

int main() {
  Numbers numbers{SLUICE_EXAMPLE_DATA "/flash_transformer.safetensors"};
  const auto [options, rules] = flash_transformer();
  Rng rng(1);
  const FlashModel model(options, rng);
  load_pytorch(model, numbers.path, rules, numbers.but_numbers());

  const Tensor y = model(numbers["input.x"]);
  backward(sum(y * numbers["cotangent"]));
  numbers.compare(y, "output");
  numbers.compare(model.embedding->weight.grad(), "grad.token_emb.weight");

  save_pytorch(model, "flash_transformer.safetensors", rules);  // load_state_dict() reads it
  bool same = true;
  for (const auto& [name, x] : load_safetensors("flash_transformer.safetensors").tensors)
    same = same && all(eq(x, numbers.file.tensors.at(name))).item();
  std::printf("weights come back %s\n", same ? "bit for bit" : "changed");
  return same && numbers.worst < 1e-9 ? 0 : 1;
}
