// A layer of GAU-α (Su 2022) with its own weights: softmax_plus attention, interleaved RoPE, post-norm, no biases.
// Output and input gradient are compared with those of GAU-alpha-pytorch (data/make_numbers.py).
#include <sluice/sluice.h>

#include <cstdio>

using namespace sluice;

#ifndef SLUICE_EXAMPLE_DATA
#define SLUICE_EXAMPLE_DATA "examples/data"
#endif

int main() {
  const std::string path = SLUICE_EXAMPLE_DATA "/gau_alpha.safetensors";

  GauOptions options = gau_alpha_options(8, /*layers=*/24, /*dropout=*/0);
  options.expansion = 12, options.key_dim = 6, options.norm_eps = 1e-12;
  options.dtype = f64;
  Rng rng(1);
  const Gau gau(options, rng);

  constexpr int64_t single = PyTorchPiece::single;  // gamma's rows, which the file has as two vectors
  load_pytorch(gau, path,
               {{"^in", "gau.i_dense"},
                {"^out", "gau.o_dense"},
                {"^gamma", "", {.pieces = {{"gau.q_scaleoffset.weight", single}, {"gau.k_scaleoffset.weight", single}}}},
                {"^beta", ""}},                          // GAU-α has none: it stays 0
               {.ignore = {"^(input|output|cotangent|grad)"}});  // the file has numbers beside the weights

  const SafeTensors file = load_safetensors(path);
  const Tensor mask = file.tensors.at("input.key_mask"), real = to(unsqueeze(mask, -1), f64);
  const Tensor x = clone(file.tensors.at("input.x")).requires_grad_();
  const Tensor y = gau(x, mask) * real;  // what stands in padding is of no use to anyone
  backward(sum(y * file.tensors.at("cotangent")));

  const auto difference = [&](const Tensor& got, const char* name) {
    const double d = max(abs(got.detach() - file.tensors.at(name))).item();
    std::printf("%-14s differs by %.1e\n", name, d);
    return d;
  };
  const double of_output = difference(y, "output"), of_gradient = difference(x.grad(), "grad.input.x");
  return of_output < 1e-9 && of_gradient < 1e-9 ? 0 : 1;
}
