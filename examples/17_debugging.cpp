// What to do when training goes wrong, or takes too long: five mistakes, who finds each, and how to look inside.
#include <sluice/sluice.h>

#include <cstdio>
#include <iostream>

using namespace sluice;

struct Net {
  static constexpr const char* type = "Net";
  Linear in, scale, out;
  Tensor bias;  // a parameter that SLUICE_PARTS forgets
  Mlp unused;

  explicit Net(Rng& rng) : in({8, 16}, rng), scale({16, 16}, rng), out({16, 4}, rng), unused({.dim = 16}, rng) {
    bias = zeros({16}).requires_grad_();
  }
  Tensor operator()(const Tensor& x) const {
    ModuleScope scope(this, type);  // so that errors and profiles can name it
    const Tensor h = in(x) + bias;
    return out(h / scale(h));  // which may divide by 0
  }
  SLUICE_PARTS(in, scale, out, unused);
};

void tried(const char* what, auto&& f) {
  try {
    f();
    std::printf("%s: nothing happened\n", what);
  } catch (const Error& e) { std::printf("%s:\n  %s\n", what, e.what()); }
}

int main() try {
  Rng rng(1);
  Net net(rng);
  const Tensor x = normal({5, 8}, 0, 1, rng), labels = randint(0, 4, {5}, rng);
  const auto loss = [&] { return cross_entropy(net(x), labels); };

  // 1 and 2. Shapes. An error names the op, the shapes and the rule.
  tried("shapes", [&] { net(normal({5, 7}, 0, 1, rng)); });
  tried("a loss of [5,1] against [5]", [&] { mse_loss(normal({5, 1}, 0, 1, rng), normal({5}, 0, 1, rng)); });

  // 3 and 4. A member missing in SLUICE_PARTS is neither trained nor saved; one that the loss does not reach learns
  // nothing.
  for (const std::string& s : unlisted(net, loss())) std::printf("missing in SLUICE_PARTS: %s\n", s.c_str());
  Adam adam(parameters(net));
  backward(loss());
  adam.step();
  for (const std::string& name : adam.without_gradient()) std::printf("without a gradient: %s\n", name.c_str());

  // 5. NaN and infinity: the op that made the first, and the module that it belongs to.
  tried("a division by zero", [&] {
    AnomalyMode anomaly({.modules = name_modules(net)});
    for (Tensor t : {net.scale.weight.detach(), net.scale.bias.detach()}) fill_(t, 0);
    backward(loss());
  });

  // Looking inside: what is in a tensor.
  std::cout << "describe: " << describe(net.in.weight) << "\n" << narrow(net.in.weight, 1, 0, 4) << "\n\n";

  // Where parameters, work, time and memory are. Times differ from run to run.
  const Mlp mlp(MlpOptions{.dim = 8}, rng);
  std::cout << summary(mlp, x) << "\n";
  const Tensor many = normal({4096, 8}, 0, 1, rng);
  Profile profile({.modules = name_modules(mlp)});
  backward(mean(square(mlp(many))));
  const auto ops = profile.by_op();
  std::printf("dearest op of one step: %s%s, %lld calls\n", ops[0].name.c_str(), ops[0].backward ? " (backward)" : "",
              (long long)ops[0].calls);
  profile.save_trace("trace.json");  // for chrome://tracing and ui.perfetto.dev
  std::printf("trace.json written; profile.table() has it all\n");
  const MemoryStats memory = memory_stats();
  std::printf("tensors hold %.1f MiB, at most %.1f\n", double(memory.live) / (1 << 20),
              double(memory.peak) / (1 << 20));
} catch (const std::exception& e) {
  std::fprintf(stderr, "error: %s\n", e.what());
  return 1;
}

// Expected output:
// shapes:
//   linear: x=[5,7] and weight=[8,16] do not fit; need x [..., in] and weight [in, out] — in Net / Linear
// a loss of [5,1] against [5]:
//   mse_loss: shapes must be equal — got [5,1] and [5]
// missing in SLUICE_PARTS: f32[16], read by add
// without a gradient: unused.in.weight
// without a gradient: unused.in.bias
// …
// a division by zero:
//   anomaly: forward of div gave 0 NaN and 43 infinite of 80 values in its result of shape [5,16] — in Net
// …
