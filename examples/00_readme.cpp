#include <sluice/sluice.h>
#include <iostream>
using namespace sluice;

int main() {
  Rng rng(1);
  Gau gau({.dim = 16, .key_dim = 8, .causal = true}, rng);     // a Gated Attention Unit
  Tensor x = normal({1, 5, 16}, 0, 1, rng);                    // [batch, n, dim]
  Tensor y = gau(x);

  auto [first, state] = gau.step(narrow(x, 1, 0, 2), {});      // the same rows as a stream
  std::cout << "stream == full: " << max(abs(narrow(y, 1, 0, 2) - first)).item() << "\n";

  Adam adam(parameters(gau), {.lr = 1e-2});
  backward(mean(square(y)));                                   // gradients of every order
  adam.step();

  Tensor a({1, 2, 3}), b({0.5f, -1, 2});
  std::cout << map([](auto v, auto g) { return v * sigmoid(g); }, a, b) << "\n";  // your own fused op
}
