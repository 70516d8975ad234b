// Autograd by hand: what backward computes, checked against the calculation on paper.
#include <sluice/sluice.h>

#include <iostream>

using namespace sluice;

int main() {
  // L = Σ (x·w − t)²  ⇒  dL/dw = 2·xᵀ(x·w − t)
  Tensor x({{1, 2}, {3, 4}}), t = unsqueeze(Tensor({1, 2}), 1);
  Tensor w = unsqueeze(Tensor({0.5f, -0.5f}), 1);
  w.requires_grad_();
  Tensor error = matmul(x, w) - t;
  backward(sum(square(error)));
  Tensor by_hand = matmul(transpose(x, 0, 1), error.detach()) * 2;
  std::cout << "engine  " << to_string(w.grad()) << "\nby hand " << to_string(by_hand) << "\n\n";

  // Gradients are tensors with a history of their own, so they can be differentiated again.
  Tensor z = Tensor(0.5f).requires_grad_();
  Tensor y = tanh(z);
  for (int order = 1; order <= 4; ++order) {
    y = grad(y, z, {.create_graph = true});
    std::cout << "derivative " << order << " of tanh at 0.5: " << y.item() << "\n";
  }

  // The tape is data: here as a Graphviz picture.
  std::cout << "\n" << to_dot(sum(square(matmul(x, w) - t)), {{"w", w}});
}

// Expected output, figures within 0.01 %:
// engine  Tensor[2,1] f32 cpu
// [[-18.0],
//  [-26.0]]
// by hand Tensor[2,1] f32 cpu
// [[-18.0],
//  [-26.0]]
//
// derivative 1 of tanh at 0.5: 0.786448
// derivative 2 of tanh at 0.5: -0.726862
// derivative 3 of tanh at 0.5: -0.565209
// derivative 4 of tanh at 0.5: 3.95222
//
// digraph tape {
// …
// }
