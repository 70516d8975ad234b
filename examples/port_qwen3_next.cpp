// Qwen3-Next's gated attention with its own weights: query and gate in one map, norms that store w − 1, partial RoPE.
// Output and input gradient are compared with those of transformers (data/make_numbers.py).
#include <sluice/sluice.h>

#include <cstdio>

using namespace sluice;

#ifndef SLUICE_EXAMPLE_DATA
#define SLUICE_EXAMPLE_DATA "examples/data"
#endif

int main() {
  const std::string path = SLUICE_EXAMPLE_DATA "/qwen3_next.safetensors";
  constexpr int64_t dim = 10, heads = 4, kv_heads = 2, head_dim = 8;

  MultiHeadAttentionOptions options = qwen_attention_options(dim, heads, kv_heads, head_dim);
  options.norm = NormKind::none, options.heads.residual = false;  // in transformers the decoder layer does both
  options.heads.rope.rot_dim = head_dim / 2;                      // partial_rotary_factor
  options.heads.dtype = f64;
  Rng rng(1);
  const MultiHeadAttention attention(options, rng);

  load_pytorch(attention, path,
               {{"^q\\.", "q_proj.", {.part = 0, .groups = heads}},  // [heads, query | gate]
                {"^gates\\.0\\.map\\.", "q_proj.", {.part = 1, .groups = heads}},
                {"^([kv])\\.", "$1_proj."},
                {"^out\\.", "o_proj."},
                {"^([qk]_norm)\\.", "$1.", {.add = 1}}},  // w − 1
               {.ignore = {"^(input|output|cotangent|grad)"}});  // the file has numbers beside the weights

  const SafeTensors file = load_safetensors(path);
  const Tensor x = clone(file.tensors.at("input.x")).requires_grad_();
  const Tensor y = attention(x);
  backward(sum(y * file.tensors.at("cotangent")));

  const auto difference = [&](const Tensor& got, const char* name) {
    const double d = max(abs(got.detach() - file.tensors.at(name))).item();
    std::printf("%-14s differs by %.1e\n", name, d);
    return d;
  };
  const double of_output = difference(y, "output"), of_gradient = difference(x.grad(), "grad.input.x");
  return of_output < 1e-9 && of_gradient < 1e-9 ? 0 : 1;
}
