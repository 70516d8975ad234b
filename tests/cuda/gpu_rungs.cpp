// Each kernel of tensor cores by itself, its values against those of the general kernel for f32. A process for each
// kernel shows which of them hangs or fails on a device that runs them for the first time.
//
//   sluice_gpu_rungs --list             the names of all
//   sluice_gpu_rungs [--small] NAME…    a row for each of its calls; --small: as few blocks as there can be
//
// Exit status 1 if a result is further off than rounding to bf16 explains. The device is what SLUICE_CUDA says.
#include <sluice/sluice.h>

#include <sluice/ops/attention/attention_kernels.h>
#include <sluice/ops/attention/gated.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <vector>

using namespace sluice;

namespace {

const Device gpu = Device::cuda();
bool small = false, wrong = false;

/// Numbers that bf16 holds exactly.
Tensor numbers(const Shape& shape) {
  static Rng rng(1);
  return to(to(to(normal(shape, 0, 1, rng), bf16), f32), gpu);
}

/// One row: ‖got − want‖ / ‖want‖ over all results of f under Precision::bf16 against those in f32.
void row(const std::string& name, const std::function<std::vector<Tensor>()>& f) {
  const auto values = [&](Precision p) {
    PrecisionScope scope(p);
    std::vector<double> all;
    for (const Tensor& x : f())
      for (double v : to(to(contiguous(x), cpu), f64).to_vector<double>()) all.push_back(v);
    return all;
  };
  const std::vector<double> want = values(Precision::f32), got = values(Precision::bf16);
  double off = 0, size = 0;
  for (std::size_t i = 0; i < want.size(); ++i)
    off += (got[i] - want[i]) * (got[i] - want[i]), size += want[i] * want[i];
  const double error = std::sqrt(off / size);
  const bool near = error > 0 && error < 0x1p-7;
  wrong |= !near;
  std::printf("%-44s off by %.1e%s\n", name.c_str(), error,
              near         ? ""
              : error == 0 ? "   WRONG: computed in f32, by no kernel of tensor cores"
                           : "   WRONG");
  std::fflush(stdout);
}

enum class Role { forward, dq, dkv };
/// A call whose sizes make one kernel serve it: fewer than 128 rows of a result are rung 3's.
struct Kernel {
  int rung;
  Role role;
  int64_t d;
  Weighting weighting;
};

std::string name_of(const Kernel& k) {
  const char* const roles[] = {"forward", "dq", "dkv"};
  return str("rung", k.rung, "-", roles[static_cast<int>(k.role)], "-d", k.d, "-",
             std::vector<std::string>{"softmax", "relu2", "laplace", "sigmoid",
                                      "linear"}[static_cast<std::size_t>(k.weighting)]);
}

/// `laid`: tensors of bf16 whose heads lie side by side, [batch, n, heads, D].
void attention_rows(const Kernel& kernel, int64_t dv, const char* what, const AttentionOptions& options, bool keys,
                    bool laid = false) {
  const int64_t own = kernel.rung == 3 ? (small ? 64 : 100) : (small ? 130 : 640), other = small ? 130 : 321;
  const int64_t m = kernel.role == Role::dkv ? other : own, n = kernel.role == Role::dkv ? own : other,
                heads = laid    ? 4
                        : small ? 1
                                : 4,
                kv_heads = laid    ? 2
                           : small ? 1
                                   : 2;
  const auto operand = [&](const Shape& shape) {
    const Tensor x = numbers(shape);
    return laid ? transpose(contiguous(transpose(to(x, bf16), 1, 2)), 1, 2) : x;
  };
  const Tensor q = operand({1, heads, m, kernel.d}), k = operand({1, kv_heads, n, kernel.d}),
               v = operand({1, kv_heads, n, dv}), g = operand({1, heads, m, dv});
  AttentionOptions o = options;
  o.weighting = kernel.weighting, o.scale = 1 / std::sqrt(static_cast<double>(kernel.d));
  if (keys) {
    std::vector<double> real(static_cast<std::size_t>(n));
    for (std::size_t j = 0; j < real.size(); ++j) real[j] = j % 3 != 1;
    o.mask.keys = to(to(Tensor::from(real, {1, n}), boolean), gpu);
  }
  const bool softmax = o.weighting == Weighting::softmax;
  const detail::AttentionCall call{q, k, v, o};
  const auto forward = [&] {
    Tensor out = empty(g.shape(), g.options()), lse = softmax ? empty({1, heads, m}, {f32, gpu}) : Tensor();
    sluice::kernel::attention(call, out, lse);
    return std::pair(out, lse);
  };
  Tensor lse, delta;
  if (kernel.role != Role::forward && softmax) {  // those of f32, so that nothing else differs
    PrecisionScope scope(Precision::f32);
    const auto [out, l] = forward();
    lse = l, delta = to(sum(to(to(g, cpu), f32) * to(to(out, cpu), f32), {-1}), gpu);
  }
  row(name_of(kernel) + what, [&]() -> std::vector<Tensor> {
    if (kernel.role == Role::forward) {
      const auto [out, l] = forward();
      return {out};
    }
    detail::AttentionGradients grads;
    if (kernel.role == Role::dq) grads.dq = empty(q.shape(), q.options());
    else grads.dk = empty(k.shape(), k.options()), grads.dv = empty(v.shape(), v.options());
    sluice::kernel::attention_backward(call, g, lse, delta, grads);
    if (kernel.role == Role::dq) return {grads.dq};
    return {grads.dk, grads.dv};
  });
}

void gated_rows(const Kernel& kernel, bool headwise, bool backward_too) {
  const int64_t m = kernel.rung == 3 ? 100 : (small ? 130 : 640), heads = small ? 1 : 4;
  const Shape shape{1, heads, m, kernel.d};
  const Tensor q = numbers(shape), k = numbers(shape), v = numbers(shape), g = numbers(shape),
               z = numbers({1, heads, m, headwise ? 1 : kernel.d});
  row(str(name_of(kernel), headwise ? "-gate-headwise" : "-gate", backward_too ? ", backward" : ""), [&] {
    std::vector<Tensor> x{q, k, v, z};
    for (Tensor& y : x) y = y.detach().requires_grad_();
    const auto [out, gated] = detail::attention_and_gate(
        x[0], x[1], x[2], x[3],
        {.weighting = kernel.weighting, .scale = 1 / std::sqrt(double(kernel.d)), .mask = {.causal = true}});
    const Tensor y = gated ? out : out * sigmoid(x[3]);
    return backward_too ? grad({y}, {x[0], x[1], x[2], x[3]}, {.grad_outputs = {g}}) : std::vector<Tensor>{y.detach()};
  });
}

/// GAU's call: values twice as wide as keys, a bias by distance, row scales.
void products_rows(Weighting weighting) {
  const int64_t n = small ? 48 : 500;
  AttentionOptions o{.mask = {.causal = true}};
  o.relative_bias = numbers({1, 2 * n - 1}), o.row_scale = numbers({n});
  const Tensor q = numbers({2, 1, n, 64}), k = numbers({2, 1, n, 64}), v = numbers({2, 1, n, 128}),
               g = numbers({2, 1, n, 128});
  o.weighting = weighting;
  row(weighting == Weighting::softmax ? "products-softmax" : "products-relu2", [&] {
    std::vector<Tensor> x{q.detach().requires_grad_(), k.detach().requires_grad_(), v.detach().requires_grad_()};
    o.relative_bias = o.relative_bias.detach().requires_grad_();
    const Tensor y = attention(x[0], x[1], x[2], o);
    std::vector<Tensor> all = grad({y}, {x[0], x[1], x[2], o.relative_bias}, {.grad_outputs = {g}});
    all.push_back(y.detach());
    return all;
  });
}

/// A call of bf16 that only products serve, since its values are 256 wide: heads side by side, two for each key head, a
/// window. `bias`: also a bias of bf16, which has a gradient.
void products_rows_bf16(bool bias) {
  const int64_t n = small ? 80 : 1500, d = 128, dv = 256;
  const auto operand = [&](int64_t heads, int64_t width) {
    return transpose(to(numbers({1, n, heads, width}), bf16), 1, 2);
  };
  const Tensor q = operand(4, d), k = operand(2, d), v = operand(2, dv), g = operand(4, dv),
               by_pair = bias ? to(numbers({4, n, n}), bf16) : Tensor();
  row(bias ? "products-bf16-bias" : "products-bf16", [&] {
    std::vector<Tensor> x{q, k, v};
    if (bias) x.push_back(by_pair);
    const bool wide = precision() == Precision::f32;  // products take tensors of bf16 whatever the precision
    for (Tensor& y : x) y = (wide ? to(y, f32) : y).detach().requires_grad_();
    AttentionOptions o{.mask = {.causal = true, .window = small ? 20 : 300}};
    if (bias) o.bias = x[3];
    const Tensor y = attention(x[0], x[1], x[2], o);
    std::vector<Tensor> all = grad({y}, x, {.grad_outputs = {wide ? to(g, f32) : g}});
    all.push_back(y.detach());
    return all;
  });
}

void scan_rows(int64_t m, bool decays) {
  const int64_t n = small ? 70 : 1000;
  const Tensor q = numbers({1, 2, n, m}), k = numbers({1, 2, n, m}), v = numbers({1, 2, n, 64}),
               g = numbers({1, 2, n, 64});
  const Tensor decay = decays ? full({1, 2, n}, -0.02, {f32, gpu}) : Tensor();
  row(str("scan-m", m, decays ? "-decays" : ""), [&] {
    std::vector<Tensor> x{q.detach().requires_grad_(), k.detach().requires_grad_(), v.detach().requires_grad_()};
    const Tensor y = linear_scan(x[0], x[1], x[2], decay);
    std::vector<Tensor> all = grad({y}, {x[0], x[1], x[2]}, {.grad_outputs = {g}});
    all.push_back(y.detach());
    return all;
  });
}

void delta_rows(int64_t dk, bool decays) {
  const int64_t n = small ? 70 : 1000;
  const Tensor q = numbers({1, 2, n, dk}), k = numbers({1, 2, n, dk}) / static_cast<double>(dk),
               v = numbers({1, 2, n, 64}), beta = sigmoid(numbers({1, 2, n}));
  const Tensor decay = decays ? full({1, 2, n}, -0.02, {f32, gpu}) : Tensor();
  row(str("delta-d", dk, decays ? "-decays" : ""), [&] {
    const DeltaScanResult y = delta_rule(q, k, v, beta, decay);
    return std::vector{y.out, y.state};
  });
}

std::vector<std::pair<std::string, std::function<void()>>> cases() {
  std::vector<std::pair<std::string, std::function<void()>>> all;
  for (int rung : {4, 3})
    for (int64_t d : {int64_t{64}, int64_t{128}})
      for (Weighting w :
           {Weighting::softmax, Weighting::relu2, Weighting::laplace, Weighting::sigmoid, Weighting::linear})
        for (Role role : {Role::forward, Role::dq, Role::dkv}) {
          const Kernel k{rung, role, d, w};
          all.emplace_back(name_of(k), [=] {
            attention_rows(k, d, "", {}, false);
            attention_rows(k, d, ", causal", {.mask = {.causal = true}}, false);
            attention_rows(k, d, ", window", {.mask = {.causal = true, .window = 50}}, false);
            attention_rows(k, d, ", keys", {}, true);
            attention_rows(k, d, ", bf16 as it lies", {.mask = {.causal = true}}, false, true);
          });
        }
  for (int rung : {4, 3})
    for (int64_t d : {int64_t{64}, int64_t{128}})
      for (Weighting w : {Weighting::softmax, Weighting::relu2})
        for (bool headwise : {false, true}) {
          const Kernel k{rung, Role::forward, d, w};
          all.emplace_back(name_of(k) + (headwise ? "-gate-headwise" : "-gate"),
                           [=] { gated_rows(k, headwise, false), gated_rows(k, headwise, true); });
        }
  all.emplace_back("products-softmax", [] { products_rows(Weighting::softmax); });
  all.emplace_back("products-relu2", [] { products_rows(Weighting::relu2); });
  for (bool bias : {false, true})
    all.emplace_back(bias ? "products-bf16-bias" : "products-bf16", [=] { products_rows_bf16(bias); });
  for (int64_t m : {int64_t{64}, int64_t{128}})
    for (bool decays : {false, true})
      all.emplace_back(str("scan-m", m, decays ? "-decays" : ""), [=] { scan_rows(m, decays); });
  for (int64_t dk : {int64_t{64}, int64_t{128}})
    for (bool decays : {false, true})
      all.emplace_back(str("delta-d", dk, decays ? "-decays" : ""), [=] { delta_rows(dk, decays); });
  return all;
}

}  // namespace

int main(int argc, char** argv) {
  const auto all = cases();
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--list") == 0) {
      for (const auto& [name, run] : all) std::printf("%s\n", name.c_str());
      continue;
    }
    if (std::strcmp(argv[i], "--small") == 0) {
      small = true;
      continue;
    }
    bool found = false;
    for (const auto& [name, run] : all) {
      if (name != argv[i]) continue;
      found = true;
      try {
        run();
      } catch (const std::exception& e) {
        std::printf("%-44s FAILED: %s\n", argv[i], e.what());
        wrong = true;
      }
    }
    if (!found) std::printf("%-44s FAILED: there is no such kernel; --list names all\n", argv[i]), wrong = true;
  }
  return wrong;
}
