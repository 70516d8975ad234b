// What layers/port/README.md writes in a line instead of a function, beside loops.
#include "support/catch.h"

#include <sluice/autograd/engine.h>
#include <sluice/core/number/random.h>
#include <sluice/ops/basic.h>
#include <sluice/ops/elementwise/activation.h>
#include <sluice/ops/index/gather.h>
#include <sluice/ops/index/sort.h>
#include <sluice/ops/matmul/einsum.h>
#include <sluice/ops/rows/norm.h>
#include <sluice/ops/rows/softmax.h>
#include <sluice/ops/shape/rearrange.h>

#include <algorithm>
#include <cmath>
#include <set>

using namespace sluice;
using Doubles = std::vector<double>;

namespace {

Doubles numbers(const Tensor& x) { return to(x, f64).to_vector<double>(); }
Tensor row(const Doubles& v) { return Tensor::from(v); }

}  // namespace

TEST_CASE("lines: differences, traces and products of Kronecker", "[lines]") {
  const Tensor x = row({1, 4, 9, 16}), m = reshape(arange(9.0, TensorOptions{f64}), {3, 3});
  CHECK(numbers(slice(x, -1, 1) - slice(x, -1, 0, -1)) == Doubles{3, 5, 7});
  CHECK(sum(diagonal(m)).item() == 12);
  const Tensor a = Tensor::from<double>({1, 2}, {1, 2}), b = Tensor::from<double>({1, 10, 100}, {3, 1});
  CHECK(numbers(reshape(einsum("ij,kl->ikjl", {a, b}), {-1, 2})) == Doubles{1, 2, 10, 20, 100, 200});
}

TEST_CASE("lines: distances, and sums of exponentials", "[lines]") {
  const Tensor a = Tensor::from<double>({0, 0, 1, 1}, {2, 2}), b = Tensor::from<double>({3, 4, 1, 1, 0, 1}, {3, 2});
  const Tensor d = norm(unsqueeze(a, -2) - unsqueeze(b, -3), -1);
  CHECK(d.shape() == Shape{2, 3});
  CHECK(allclose(d, Tensor::from<double>({5, std::sqrt(2), 1, std::sqrt(13), 0, 1}, {2, 3}), 1e-14, 0));
  const Tensor big = row({1000, -1000}), small = row({1000, -1001});
  CHECK(
      allclose(logsumexp(stack({big, small}), 0), row({1000 + std::log(2), -1000 + std::log1p(std::exp(-1))}), 1e-14));
  CHECK(allclose(-softplus(-big), row({0, -1000}), 1e-14));
}

TEST_CASE("lines: ranks among sorted numbers, and what occurs", "[lines]") {
  Rng rng(1);
  for (const int64_t n : {1, 2, 7, 8}) {
    const Tensor x = randint(0, 4, {n}, rng), s = sort(x).values, v = arange(-1, 6);
    Doubles sorted = numbers(x), below, upto;
    std::sort(sorted.begin(), sorted.end());
    for (double k = -1; k < 6; ++k) {
      below.push_back(static_cast<double>(std::lower_bound(sorted.begin(), sorted.end(), k) - sorted.begin()));
      upto.push_back(static_cast<double>(std::upper_bound(sorted.begin(), sorted.end(), k) - sorted.begin()));
    }
    CHECK(numbers(sum(s < unsqueeze(v, -1), -1)) == below);
    CHECK(numbers(sum(s <= unsqueeze(v, -1), -1)) == upto);
    CHECK(select(s, -1, (n - 1) / 2).item() == sorted[static_cast<std::size_t>(n - 1) / 2]);
    const std::set<double> once(sorted.begin(), sorted.end());
    const Tensor unique = masked_select(s, pad(slice(s, 0, 1) != slice(s, 0, 0, -1), 0, 1, 0, 1));
    CHECK(numbers(unique) == Doubles(once.begin(), once.end()));
  }
}

TEST_CASE("lines: running maxima and running sums of exponentials", "[lines]") {
  const Tensor x = row({1, -2, 3, 0, 3.5, 700});
  const int64_t n = x.dim(0);
  const Tensor seen = where(causal_mask(n, n), x, -INFINITY);
  CHECK(numbers(max(seen, -1)) == Doubles{1, 1, 3, 3, 3.5, 700});
  Doubles sums;
  double total = 0;
  for (const double v : numbers(x)) sums.push_back(std::log(total += std::exp(v)));
  CHECK(allclose(logsumexp(seen, -1), row(sums), 1e-14, 0));
}

TEST_CASE("lines: padding by what is there", "[lines]") {
  const Tensor x = row({10, 11, 12, 13});
  const int64_t a = 2, b = 3, n = 4;
  const Tensor i = arange(-a, n + b);
  CHECK(numbers(index_select(x, 0, clamp(i, 0, n - 1))) == Doubles{10, 10, 10, 11, 12, 13, 13, 13, 13});
  CHECK(numbers(index_select(x, 0, i % n)) == Doubles{12, 13, 10, 11, 12, 13, 10, 11, 12});
  CHECK(numbers(index_select(x, 0, (n - 1) - abs((n - 1) - abs(i)))) == Doubles{12, 11, 10, 11, 12, 13, 12, 11, 10});
}

TEST_CASE("lines: pixels", "[lines]") {
  const Tensor x = reshape(arange(8.0, TensorOptions{f64}), {1, 4, 1, 2});  // c = 0, 1, 2, 3 are (r, s)
  CHECK(numbers(rearrange("b (c r s) h w -> b c (h r) (w s)", x, {{"r", 2}, {"s", 2}})) ==
        Doubles{0, 2, 1, 3, 4, 6, 5, 7});
  CHECK(numbers(repeat_interleave(repeat_interleave(narrow(x, 1, 0, 1), 2, 2), 2, 3)) ==
        Doubles{0, 0, 1, 1, 0, 0, 1, 1});
}

TEST_CASE("lines: a transposed convolution is the gradient of one", "[lines]") {
  Rng rng(2);
  for (const int64_t s : {1, 2, 3}) {
    const int64_t k = 3, n = 4, length = (n - 1) * s + k;
    const Tensor w = normal({2, 5, k}, 0, 1, rng, {f64}), x = normal({3, 2, n}, 0, 1, rng, {f64});
    const Tensor image = zeros({3, 5, length}, {f64}).requires_grad_();
    const Tensor y = einsum("bonk,cok->bcn", {unfold(image, 2, k, s), w});  // conv1d
    const Tensor expected = grad({y}, {image}, {.grad_outputs = {x}})[0];
    CHECK(allclose(fold(einsum("bcn,cok->bonk", {x, w}), 2, (n - 1) * s + k, s), expected, 1e-12, 1e-12));
  }
}

TEST_CASE("lines: norms over batches and groups", "[lines]") {
  Rng rng(3);
  const Tensor x = normal({2, 6, 2, 3}, 1, 2, rng, {f64});
  const Tensor y = transpose(reshape(layer_norm(reshape(transpose(x, 0, 1), {6, -1})), {6, 2, 2, 3}), 0, 1);
  const Tensor z = reshape(layer_norm(reshape(x, {2, 3, -1})), x.shape());
  const auto at = [](const Tensor& t, int64_t b, int64_t c, int64_t p) { return t[b][c][p / 3][p % 3].item(); };
  const auto normed = [&](double v, auto each) {  // each(f) calls f with the numbers of v's batch or group
    double n = 0, total = 0, squares = 0;
    each([&](double u) { n += 1, total += u, squares += u * u; });
    const double m = total / n;
    return (v - m) / std::sqrt(squares / n - m * m + 1e-5);
  };
  for (int64_t c = 0; c < 6; ++c) {
    CHECK(at(y, 1, c, 4) == Approx(normed(at(x, 1, c, 4), [&](auto f) {
                              for (int64_t b = 0; b < 2; ++b)
                                for (int64_t p = 0; p < 6; ++p) f(at(x, b, c, p));
                            })).epsilon(1e-10));
    CHECK(at(z, 1, c, 4) == Approx(normed(at(x, 1, c, 4), [&](auto f) {
                              for (int64_t e = c / 2 * 2; e < c / 2 * 2 + 2; ++e)
                                for (int64_t p = 0; p < 6; ++p) f(at(x, 1, e, p));
                            })).epsilon(1e-10));
  }
}

TEST_CASE("lines: a straight-through choice has the values of the hard one, the gradient of the soft one", "[lines]") {
  const Tensor x = row({0.3, 2, -1}).requires_grad_(), soft = softmax(x);
  const Tensor hard = one_hot(argmax(soft, -1), 3, {f64}), y = hard + (soft - soft.detach());
  CHECK(numbers(y) == Doubles{0, 1, 0});
  const Tensor w = row({1, 5, 7});
  CHECK(allclose(grad(sum(y * w), x), grad(sum(softmax(x) * w), x), 1e-14, 0));
}

TEST_CASE("lines: maxima and softmax of edges at each node", "[lines]") {
  const Doubles far = {10, 1, -900, 2, -901, 3, 9, 900, 3, 0};  // node 1 lies far below node 0
  const Tensor e = Tensor::from(far, {5, 2}).requires_grad_();
  const std::vector<int64_t> nodes = {0, 1, 1, 0, 2};
  const Tensor dst = Tensor::from(nodes);
  const int64_t n = 4, h = 2;
  const Sorted s = sort(e, 0);
  const Tensor place = gather(expand(unsqueeze(dst, 1), e.shape()), 0, s.indices);
  const Tensor top = scatter(full({n, h}, -INFINITY, {f64}), 0, place, s.values);
  const Tensor x = exp(e - index_select(top, 0, dst).detach());
  const Tensor y = x / index_select(index_add(zeros({n, h}, {f64}), 0, dst, x), 0, dst);
  const Tensor slope = grad(sum(masked_fill(top, isinf(top), 0)), e, {.retain_graph = true});
  for (int64_t i = 0; i < 5; ++i)
    for (int64_t c = 0; c < h; ++c) {
      double greatest = -INFINITY, total = 0;
      for (int64_t j = 0; j < 5; ++j)
        if (nodes[j] == nodes[i]) greatest = std::max(greatest, far[j * h + c]);
      for (int64_t j = 0; j < 5; ++j)
        if (nodes[j] == nodes[i]) total += std::exp(far[j * h + c] - greatest);
      CHECK(top[nodes[i]][c].item() == greatest);
      CHECK(slope[i][c].item() == (far[i * h + c] == greatest));
      CHECK(y[i][c].item() == Approx(std::exp(far[i * h + c] - greatest) / total).epsilon(1e-12));
    }
  CHECK(top[3][0].item() == -INFINITY);  // no edge ends there
}
