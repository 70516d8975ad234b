// What a user writes: a module of two layers with a gate of its own, trained for a few steps.
#include <sluice/sluice.h>

#include <iostream>

struct Net {
  sluice::Linear first, gate, second;

  explicit Net(sluice::Rng& rng)
      : first({.in = 4, .out = 16}, rng), gate({.in = 4, .out = 16}, rng), second({.in = 16, .out = 1}, rng) {}

  sluice::Tensor operator()(const sluice::Tensor& x) const {
    auto mine = [](auto value, auto g) { return tanh(value) * sigmoid(g * 2.0); };
    return second(sluice::map(mine, first(x), gate(x)));
  }
  SLUICE_PARTS(first, gate, second);
};

int main() {
  using namespace sluice;
  Rng rng(7);
  Net net(rng);
  Tensor x = normal({64, 4}, 0, 1, rng);
  Tensor target = x * x;
  target = sum(target, {1}, keep);  // of squares: no linear map fits it
  Adam adam(parameters(net), {.lr = 0.02});
  double first = 0, last = 0;
  for (int step = 0; step < 60; ++step) {
    Tensor loss = mse_loss(net(x), target);
    adam.zero_grad();
    backward(loss);
    adam.step();
    last = loss.item();
    if (step == 0) first = last;
  }
  std::cout << count(net) << " parameters, loss " << first << " -> " << last << "\n" << net(x).shape()[0] << " rows\n";
  return last < 0.5 * first ? 0 : 1;
}
