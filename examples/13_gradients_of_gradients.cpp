// What gradients of gradients are for: curvature (HVP), a gradient penalty, and learning to learn (MAML).
#include <sluice/sluice.h>

#include <cmath>
#include <cstdio>
#include <vector>

using namespace sluice;

/// The largest eigenvalue of the Hessian of f at x, by power iteration: only products H·v, never H itself.
double sharpness(const std::function<Tensor(const Tensor&)>& f, const Tensor& x, int64_t rounds, Rng& rng) {
  Tensor v = normal(x.shape(), 0, 1, rng);
  double value = 0;
  for (int64_t i = 0; i < rounds; ++i) {
    const Tensor hv = hvp(f, x, v).detach();
    value = sum(v * hv).item() / sum(v * v).item();
    v = hv / norm(hv);
  }
  return value;
}

/// mean (‖∂D/∂x‖ − 1)², which keeps a critic's slope near 1 (WGAN-GP, Gulrajani et al. 2017). Differentiable once more.
Tensor gradient_penalty(const auto& critic, const Tensor& x) {
  Tensor at = x.detach();
  at.requires_grad_();
  const Tensor slope = grad(sum(critic(at)), at, {.create_graph = true});
  return mean(square(norm(slope, {-1}) - 1.0));
}

// MAML (Finn et al. 2017): weights from which one step on five points learns a new sine wave. The weights are a plain
// list, so that the inner step can make new ones: w' = w − lr·∂loss/∂w, with history.
using Weights = std::vector<Tensor>;

Tensor forward(const Weights& w, const Tensor& x) {
  return linear(tanh(linear(tanh(linear(x, w[0], w[1])), w[2], w[3])), w[4], w[5]);
}

Weights adapted(const Weights& w, const Tensor& x, const Tensor& y, bool create_graph) {
  const Weights g = grad({mse_loss(forward(w, x), y)}, w, {.create_graph = create_graph});
  Weights next;
  for (std::size_t i = 0; i < w.size(); ++i) next.push_back(w[i] - g[i] * 0.1);
  return next;
}

struct Wave {
  double height, phase;
  explicit Wave(Rng& rng) : height(uniform({}, 0.5, 2, rng).item()), phase(uniform({}, 0, M_PI, rng).item()) {}
  Tensor operator()(const Tensor& x) const { return sin(x + phase) * height; }
};

int main(int argc, char**) {
  const int64_t steps = argc > 1 ? 3 : 600, tasks = 4;  // any argument (--smoke): few steps
  Rng rng(1);

  const Tensor curvature({{3, 1}, {1, 2}});  // of ½·xᵀHx: eigenvalues (5 ± √5)/2
  const auto bowl = [&](const Tensor& x) { return sum(x * matmul(curvature, x)) * 0.5; };
  std::printf("sharpness %.4f, on paper %.4f\n", sharpness(bowl, ones({2, 1}), 20, rng), (5 + std::sqrt(5.0)) / 2);

  const Mlp critic(MlpOptions{.dim = 2, .hidden = 32, .activation = Act::tanh}, rng);
  Adam tamer(parameters(critic), {.lr = 0.01});
  const Tensor points = normal({64, 2}, 0, 1, rng);
  const double before = gradient_penalty(critic, points).item();
  for (int64_t i = 0; i < steps / 3; ++i) {
    tamer.zero_grad();
    backward(gradient_penalty(critic, points));
    tamer.step();
  }
  std::printf("gradient penalty %.4f, after training %.4f\n", before, gradient_penalty(critic, points).item());

  Weights w;
  for (const auto& [in, out] : {std::pair{1, 40}, {40, 40}, {40, 1}})
    w.push_back(normal({in, out}, 0, std::sqrt(1.0 / in), rng).requires_grad_()),
        w.push_back(zeros({out}).requires_grad_());
  Adam adam(w, {.lr = 3e-3});
  for (int64_t step = 0; step < steps; ++step) {
    Tensor loss = zeros({});
    for (int64_t task = 0; task < tasks; ++task) {
      const Wave wave(rng);
      const Tensor known = uniform({5, 1}, -3, 3, rng), asked = uniform({20, 1}, -3, 3, rng);
      loss = loss + mse_loss(forward(adapted(w, known, wave(known), true), asked), wave(asked)) / double(tasks);
    }
    adam.zero_grad();
    backward(loss);
    adam.step();
  }
  double at_first = 0, after_one = 0;
  for (int i = 0; i < 50; ++i) {
    const Wave wave(rng);
    const Tensor known = uniform({5, 1}, -3, 3, rng), x = unsqueeze(linspace(-3, 3, 61), 1);
    at_first += mse_loss(forward(w, x), wave(x)).item() / 50;
    after_one += mse_loss(forward(adapted(w, known, wave(known), false), x), wave(x)).item() / 50;
  }
  std::printf("new waves from five points: error %.3f, after one step %.3f\n", at_first, after_one);
}

// Expected output, figures within 20 %:
// sharpness 3.6180, on paper 3.6180
// gradient penalty 0.4076, after training 0.0007
// new waves from five points: error 0.557, after one step 0.141
