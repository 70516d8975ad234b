// lucidrains' FLASHTransformer, a causal language model, with its own weights; they come back to PyTorch the same way.
// Logits and the gradient of the embedding are compared with those of FLASH-pytorch (data/make_numbers.py).
#include <sluice/sluice.h>

#include <cstdio>

using namespace sluice;

#ifndef SLUICE_EXAMPLE_DATA
#define SLUICE_EXAMPLE_DATA "examples/data"
#endif

int main() {
  const std::string path = SLUICE_EXAMPLE_DATA "/flash_transformer.safetensors";
  constexpr int64_t dim = 8, e = 16, s = 6;

  FlashOptions layer{.dim = dim, .expansion = e, .key_dim = s, .chunk = 4, .causal = true};
  layer.kind = GauKind::paper_code;     // relu²(T/C + b)
  layer.scaling = ChunkScaling::lucid;  // of the linear term
  layer.rope.pairing = RopePairing::interleaved;
  layer.bias = GauBias::t5;
  layer.norm = NormKind::scale_l2;
  layer.token_shift = true;
  layer.dtype = f64;
  FlashModelOptions options{.layers = 2, .layer = layer, .vocabulary = 11, .outputs = 11};
  options.final_norm = NormKind::layer;
  Rng rng(1);
  const FlashModel model(options, rng);

  const PyTorchRules rules{
      {"^embedding", "token_emb"},
      {"^positions", "abs_pos_emb"},
      {"^norm", "to_logits.0"},
      {"^head", "to_logits.1"},
      {"^body\\.", ""},
      {"(layers\\.\\d+\\.norm)\\.weight", "$1.g"},
      {"\\.out\\.", ".to_out."},
      {"t5_bias", "rel_pos_bias.relative_attention_bias.weight"},
      // U | V | Z here, V | U and Z there; rows of γ and β: q_quad, k_quad, q_lin, k_lin here, both queries first there.
      {"\\.in\\.", "", {.pieces = {{".to_hidden.0.", e, 1}, {".to_hidden.0.", e, 0}, {".to_qk.0.", s}}}},
      {"gamma|beta", "", {.pieces = {{"qk_offset_scale.$&", 1, 0}, {"qk_offset_scale.$&", 1, 2},
                                     {"qk_offset_scale.$&", 1, 1}, {"qk_offset_scale.$&", 1, 3}}}}};
  load_pytorch(model, path, rules, {.ignore = {"inv_freq", "^(input|output|cotangent|grad)"}});  // no weights of ours

  const SafeTensors file = load_safetensors(path);
  const Tensor y = model(file.tensors.at("input.x"));
  backward(sum(y * file.tensors.at("cotangent")));

  const auto difference = [&](const Tensor& got, const char* name) {
    const double d = max(abs(got.detach() - file.tensors.at(name))).item();
    std::printf("%-21s differs by %.1e\n", name, d);
    return d;
  };
  const double of_output = difference(y, "output");
  const double of_gradient = difference(model.embedding->weight.grad(), "grad.token_emb.weight");

  save_pytorch(model, "flash_transformer.safetensors", rules);  // load_state_dict() reads it
  bool same = true;
  for (const auto& [name, x] : load_safetensors("flash_transformer.safetensors").tensors)
    same = same && all(eq(x, file.tensors.at(name))).item();
  std::printf("weights come back %s\n", same ? "bit for bit" : "changed");
  return same && of_output < 1e-9 && of_gradient < 1e-9 ? 0 : 1;
}
