// What the other tests do not ask of a device: an op of each family as a first sign of life, the vendor's products of
// views that begin anywhere, sizes of which the emulated device has no time, sizes beyond 32 bits. On the emulated
// device all sizes are small.
#include "cuda/against_cpu.h"
#include "parallel/ranks.h"

#include <sluice/sluice.h>

#include <cstdlib>
#include <fstream>
#include <string_view>

using namespace sluice;
using namespace sluice::testing;

namespace {

const bool real = [] {
  const char* s = std::getenv("SLUICE_CUDA");
  return s && std::string_view(s) == "gpu";
}();
int64_t large(int64_t on_gpu, int64_t emulated) { return real ? on_gpu : emulated; }

Tensor random(const Shape& shape, Device device, uint64_t seed, DType dtype = f32) {
  return values(shape, dtype, device, seed);
}

/// f of leaves made of random numbers of these shapes, and their gradients.
std::vector<Tensor> with_gradients(const std::vector<Shape>& shapes, Device device,
                                   const std::function<Tensor(std::vector<Tensor>&)>& f, DType dtype = f32) {
  std::vector<Tensor> x;
  for (const Shape& s : shapes) x.push_back(random(s, device, 10 + x.size(), dtype).requires_grad_());
  const Tensor y = f(x);
  std::vector<Tensor> all = grad({y}, x, {.grad_outputs = {random(y.shape(), device, 5, y.dtype())}});
  all.push_back(y.detach());
  return all;
}

}  // namespace

TEST_CASE("gpu: signs of life, memory", "[gpu][life]") {
  for (const DType dtype : {f32, f64, bf16, i32, i64}) {
    const Tensor x = random({3, 1000}, cpu, 1, dtype);
    CHECK(same_bits(to(to(x, Device::cuda()), cpu), x));
    CHECK(same_bits(to(transpose(to(x, Device::cuda()), 0, 1), cpu), contiguous(transpose(x, 0, 1))));
  }
  CHECK(to(full({5}, 2.5, {f32, Device::cuda()}), cpu).to_vector() == std::vector<float>(5, 2.5f));
  CHECK(to(Tensor::from(std::vector<float>{}, {0}), Device::cuda()).numel() == 0);
  CHECK(memory_stats(Device::cuda()).peak >= 5000 * 4);
  reset_peak_memory(Device::cuda());
  CHECK(memory_stats(Device::cuda()).peak == memory_stats(Device::cuda()).live);
}

TEST_CASE("gpu: signs of life, elementwise", "[gpu][life]") {
  check(
      [](Device d) {
        return with_gradients({{33, 65}, {65}}, d, [](auto& x) { return gelu(x[0] * x[1]) + sigmoid(x[0]); });
      },
      64);
  check(
      [](Device d) {
        return with_gradients(
            {{33, 65}}, d, [](auto& x) { return exp(x[0]) / 3; }, f64);
      },
      64);
}

TEST_CASE("gpu: signs of life, reductions and rows", "[gpu][life]") {
  check(
      [](Device d) {
        const Tensor x = random({7, 1300}, d, 1);
        return std::vector{sum(x),       sum(x, {0}),  max(x, {1}),       argmax(x, 1),
                           cumsum(x, 1), cumsum(x, 0), sort(x, 1).values, to(x, bf16)};
      },
      64);
  check([](Device d) { return with_gradients({{9, 300}}, d, [](auto& x) { return softmax(x[0]); }); }, 64);
  check([](Device d) { return with_gradients({{9, 3000}}, d, [](auto& x) { return log_softmax(x[0]); }); }, 64);
  check([](Device d) { return with_gradients({{2, 300, 24}}, d, [](auto& x) { return softmax(x[0], 1); }); }, 64);
  check(
      [](Device d) {
        return with_gradients({{9, 300}, {300}, {300}}, d, [](auto& x) { return layer_norm(x[0], x[1], x[2]); });
      },
      256);
}

TEST_CASE("gpu: signs of life, indices and losses", "[gpu][life]") {
  check(
      [](Device d) {
        const Tensor at = to(Tensor::from(std::vector<int64_t>{3, 0, 3, 4}, {4}), d);
        auto all = with_gradients({{5, 64}}, d, [&](auto& x) { return embedding(x[0], at); });
        for (const Tensor& t : with_gradients({{4, 5}}, d, [&](auto& x) { return cross_entropy(x[0], at); }))
          all.push_back(t);
        for (const Tensor& t : with_gradients({{5}, {4}}, d, [&](auto& x) { return scatter(x[0], 0, at, x[1]); }))
          all.push_back(t);
        CHECK_THROWS_AS(embedding(random({4, 8}, d, 1), at), ValueError);
        return all;
      },
      64);
}

TEST_CASE("gpu: signs of life, products", "[gpu][life]") {
  for (const DType dtype : {f32, f64})
    check(
        [&](Device d) {
          return with_gradients(
              {{70, 90}, {90, 100}, {100}}, d, [](auto& x) { return linear(x[0], x[1], x[2]); }, dtype);
        },
        4096);
  if (!real) return;
  std::ifstream maps("/proc/self/maps");  // of a library that is not there nothing else would tell but the time
  bool vendor = false;
  for (std::string line; std::getline(maps, line);) vendor |= line.find("libcublasLt") != line.npos;
  CHECK(vendor);
}

TEST_CASE("gpu: signs of life, attention and scan", "[gpu][life]") {
  const Shape s{1, 2, 40, 64};
  check(
      [&](Device d) {
        return with_gradients({s, s, s}, d,
                              [](auto& x) { return attention(x[0], x[1], x[2], {.mask = {.causal = true}}); });
      },
      4096);
  check(
      [](Device d) {
        return with_gradients({{2, 40, 6}, {4, 6}, {6}}, d,
                              [](auto& x) { return causal_conv1d(x[0], x[1], x[2], {}, Act::silu); });
      },
      4096);
  check(
      [](Device d) {
        const Shape s{1, 2, 40, 16};
        return with_gradients({s, s, s, {1, 2, 40}}, d,
                              [](auto& x) { return linear_scan(x[0], x[1], x[2], -square(x[3])); });
      },
      4096);
  check(
      [](Device d) {
        const Shape s{1, 2, 40, 16};
        return with_gradients({s, s, s, s, {1, 2, 40}}, d, [](auto& x) {
          return delta_scan(x[0], 0.2 * x[1], 0.2 * x[2], x[3], -square(x[4])).out;
        });
      },
      4096);
}

TEST_CASE("gpu: signs of life, a step of training", "[gpu][life]") {
  check(
      [](Device d) {
        Rng rng(1);
        Linear layer({.in = 20, .out = 30}, rng);
        to(layer, d);
        Adam adam(parameters(layer), {.lr = 1e-2});
        for (int i = 0; i < 3; ++i) adam.zero_grad(), backward(sum(square(layer(random({8, 20}, d, 3))))), adam.step();
        return std::vector{layer.weight.detach(), layer.bias.detach(), normal({77}, 0, 1, rng, {f32, d})};
      },
      4096);
}

TEST_CASE("gpu: products of views that begin at any number, of every order", "[gpu]") {
  const int64_t n = large(260, 68);
  for (const int64_t offset : {0, 1, 2, 3, 4})
    for (const int64_t ld : {n, n + 1, n + 3, n + 4})
      for (const DType dtype : {f32, f64}) {
        INFO("offset " << offset << ", ld " << ld << ", " << name_of(dtype));
        check(
            [&](Device d) {
              const Tensor a = narrow(random({n, ld + offset}, d, 1, dtype), 1, offset, n);
              const Tensor b = narrow(random({n, ld + offset}, d, 2, dtype), 1, offset, n);
              const Tensor bias = narrow(random({n + offset}, d, 3, dtype), 0, offset, n);
              const Tensor batch = narrow(random({3, n, ld + offset}, d, 4, dtype), 2, offset, n);
              return std::vector{matmul(a, b), matmul(transpose(a, 0, 1), b), linear(a, b, bias), matmul(batch, b),
                                 matmul(batch, transpose(batch, 1, 2))};
            },
            1 << 16);
      }
}

TEST_CASE("gpu: products in bf16, of rounded operands and of tensors of bf16", "[gpu][life]") {
  const auto rounded = [](const Tensor& x) { return to(to(x, bf16), f32); };
  const auto on_gpu = [](const Tensor& x) { return to(x, Device::cuda()); };
  for (const int64_t n : {65, 72, 200})
    for (const int64_t m : {3, 64, 131})
      for (const int64_t k : {7, 64, 129}) {
        INFO(n << " x " << k << " x " << m);
        const Tensor a = random({5, n, k}, cpu, 1), b = random({5, k, m}, cpu, 2), bias = random({m}, cpu, 3),
                     w = random({k, m}, cpu, 4);
        const Tensor want = matmul(rounded(a), rounded(b)), biased = linear(rounded(a), rounded(w), rounded(bias));
        {
          PrecisionScope scope(Precision::bf16);
          // What is multiplied seldom may stay as it is.
          const double most = real || std::min(n, m) < 64 || n * m * k < 1 << 18 ? 1e-2 : 1e-5;
          CHECK(relative_distance(matmul(on_gpu(a), on_gpu(b)), want) < most);
          CHECK(relative_distance(matmul(transpose(on_gpu(contiguous(transpose(a, 1, 2))), 1, 2), on_gpu(b)), want) <
                most);
          CHECK(relative_distance(matmul(on_gpu(a), transpose(on_gpu(contiguous(transpose(b, 1, 2))), 1, 2)), want) <
                most);
          CHECK(relative_distance(matmul(on_gpu(a), expand(on_gpu(w), {5, k, m})), matmul(rounded(a), rounded(w))) <
                most);
          CHECK(relative_distance(linear(on_gpu(a), on_gpu(w), on_gpu(rounded(bias))), biased) < most);
        }
        const Tensor x = on_gpu(to(a, bf16)), y = on_gpu(to(b, bf16)), z = on_gpu(to(w, bf16)),
                     v = on_gpu(to(bias, bf16));
        CHECK(matmul(x, y).dtype() == bf16);
        CHECK(relative_distance(matmul(x, y), want) < 4e-3);
        CHECK(relative_distance(matmul(transpose(y, 1, 2), transpose(x, 1, 2)), transpose(want, 1, 2)) < 4e-3);
        CHECK(relative_distance(linear(x, z, v), biased) < 4e-3);
      }
}

TEST_CASE("gpu: attention of every kind at the sizes of models", "[gpu]") {
  const int64_t n = large(1100, 130);
  for (const int64_t d : {64, 128})
    for (const Weighting w :
         {Weighting::softmax, Weighting::relu2, Weighting::laplace, Weighting::sigmoid, Weighting::linear})
      for (const AttentionMask& mask :
           {AttentionMask{}, AttentionMask{.causal = true}, AttentionMask{.causal = true, .window = 200}}) {
        if (!real && (d == 128 || !mask.causal || w != Weighting::softmax)) continue;
        INFO("d " << d << ", weighting " << static_cast<int>(w) << ", causal " << mask.causal << ", window "
                  << mask.window);
        const auto run = [&](Device device, Precision precision) {
          PrecisionScope scope(precision);
          const Shape q{2, 4, n, d}, k{2, 2, n, d};
          return with_gradients({q, k, k}, device,
                                [&](auto& x) { return attention(x[0], x[1], x[2], {.weighting = w, .mask = mask}); });
        };
        const auto want = run(cpu, Precision::f32), plain = run(Device::cuda(), Precision::f32);
        const auto tensor_cores = run(Device::cuda(), Precision::bf16);
        const auto again = run(Device::cuda(), Precision::bf16);
        for (std::size_t i = 0; i < want.size(); ++i) {
          CHECK(relative_distance(plain[i], want[i]) < 1e-4);
          CHECK(relative_distance(tensor_cores[i], want[i]) < 2e-2);
          CHECK(same_bits(to(again[i], cpu), to(tensor_cores[i], cpu)));
        }
      }
}

TEST_CASE("gpu: a model's steps have the same bits twice", "[gpu]") {
  const auto train = [](Precision precision) {
    PrecisionScope scope(precision);
    Rng rng(1);
    const int64_t dim = large(256, 64);
    Embedding embedding({.count = 50, .dim = dim}, rng);
    MultiHeadAttention attend(
        {.heads = {.dim = dim, .heads = dim / 64, .causal = true, .use_rope = true}, .gates = {{}}}, rng);
    Linear head({.in = dim, .out = 50}, rng);
    to(embedding, Device::cuda()), to(attend, Device::cuda()), to(head, Device::cuda());
    std::vector<NamedTensor> all;
    for (const auto& some : {parameters(embedding), parameters(attend), parameters(head)})
      for (const NamedTensor& p : some) all.push_back({str(all.size()), p.tensor});
    Adam adam(all, {.lr = 1e-2});
    std::vector<Tensor> losses;
    for (int i = 0; i < large(20, 2); ++i) {
      const Tensor x = randint(0, 50, {4, large(300, 20)}, rng, Device::cuda());
      adam.zero_grad();
      const Tensor loss = cross_entropy(head(attend(embedding(x))), x);
      backward(loss), adam.step();
      losses.push_back(to(loss.detach(), cpu));
    }
    CHECK(losses.back().item() < losses.front().item());
    return losses;
  };
  for (const Precision precision : {Precision::f32, Precision::bf16}) {
    const auto first = train(precision), second = train(precision);
    for (std::size_t i = 0; i < first.size(); ++i) CHECK(same_bits(first[i], second[i]));
  }
}

TEST_CASE("gpu: ranks that share it go through the host", "[gpu]") {
  CHECK_NOTHROW(run_ranks(2, [](const Communicator& all) {
    all.set_timeout(20);
    const Tensor mine = random({3, 1000}, Device::cuda(), static_cast<uint64_t>(all.rank()));
    const Tensor sum = all_reduce(mine, all), other = ring_shift(mine, 1, all);
    const auto of = [](int rank) { return random({3, 1000}, cpu, static_cast<uint64_t>(rank)); };
    expect(same_bits(to(sum, cpu), of(0) + of(1)), "the sum");
    expect(same_bits(to(other, cpu), of(1 - all.rank())), "the other's");
    expect(all.device_link().starts_with(real ? "host: rank " : "emulated"), all.device_link());
  }));
}

TEST_CASE("gpu: more elements than 32 bits count", "[gpu][beyond]") {
  if (!real) return;
  const int64_t n = (int64_t{1} << 32) + 5;  // twice 8 GiB of bf16, twice 16 of f32
  {
    Tensor x = full({n}, 1, {bf16, Device::cuda()});
    x = x + x;
    for (const int64_t i : {int64_t{0}, int64_t{1} << 31, int64_t{1} << 32, n - 1}) CHECK(select(x, 0, i).item() == 2);
  }
  const Tensor ramp =
      reshape(arange(0, static_cast<double>(n - 5), 1, {f32, Device::cuda()}), {int64_t{1} << 20, 1 << 12});
  CHECK(sum(ramp).item() == Approx(0.5 * 0x1p64).epsilon(1e-5));
  const Tensor rows = softmax(ramp);
  CHECK(select(select(rows, 0, -1), 0, 7).item() ==
        Approx(select(select(softmax(narrow(ramp, 0, (1 << 20) - 1, 1)), 0, 0), 0, 7).item()));
  CHECK(argmax(reshape(ramp, {n - 5}), 0).item() == 0x1p32 - 128);  // the first that f32 rounds to 2^32
}
