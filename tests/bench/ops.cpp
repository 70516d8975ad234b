// Ops: elementwise chains, rows, moves, and matrix products at the shapes of models.
#include "bench.h"

#include <sluice/ops/elementwise/map.h>

namespace sluice::bench {

Workload forward(std::vector<NamedTensor> inputs, std::function<Tensor()> f) {
  return {std::move(inputs), [f] {
            NoGrad guard;
            return std::vector{f()};
          }};
}

Workload differentiated(std::vector<NamedTensor> inputs, std::function<Tensor()> f) {
  std::sort(inputs.begin(), inputs.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  std::vector<Tensor> leaves;
  for (const NamedTensor& x : inputs)
    if (x.tensor.requires_grad()) leaves.push_back(x.tensor);
  Rng rng(2);
  Tensor dy = normal(forward({}, f).run()[0].shape(), 0, 1, rng, leaves[0].options());
  inputs.push_back({"dy", dy});
  return {std::move(inputs), [f, leaves, dy] {
            Tensor y = f();
            std::vector<Tensor> results = grad({y}, leaves, {.grad_outputs = {dy}});
            results.insert(results.begin(), y.detach());
            return results;
          }};
}

namespace {

using Sizes = std::vector<int64_t>;
using Inputs = std::vector<Tensor>;
using Shapes = std::vector<std::pair<const char*, Shape>>;

/// Normal numbers of these shapes, named as told.
std::vector<NamedTensor> draw(const Shapes& shapes, bool learned, DType dtype) {
  Rng rng(1);
  std::vector<NamedTensor> all;
  for (const auto& [name, shape] : shapes)
    all.push_back({name, normal(shape, 0, 1, rng, {dtype, device}).requires_grad_(learned)});
  return all;
}
/// A row of f over such tensors, in their order.
Row row(const std::string& name, const Shapes& shapes, bool learned, const std::function<Tensor(const Inputs&)>& f,
        DType dtype = f32) {
  return {name, [=] {
            const std::vector<NamedTensor> named = draw(shapes, learned, dtype);
            Inputs x;
            for (const NamedTensor& n : named) x.push_back(n.tensor);
            Workload w = learned ? differentiated(named, [=] { return f(x); }) : forward(named, [=] { return f(x); });
            w.dtype = dtype;
            return w;
          }};
}

void add_elementwise(std::vector<Row>& rows) {
  const Shape s{4096, 1024};
  auto add = [&](const char* kind, int inputs, const std::function<Tensor(const Inputs&)>& f) {
    Shapes shapes{{"x", s}, {"g", s}, {"b", s}};
    shapes.resize(static_cast<std::size_t>(inputs), {"", s});
    rows.push_back(row(row_name("elementwise", kind, {4096, 1024}), shapes, true, f));
  };
  add("gelu", 1, [](const Inputs& t) { return gelu(t[0]); });
  add("swiglu", 2, [](const Inputs& t) { return swiglu(t[0], t[1]); });
  add("swiglu_map", 2,
      [](const Inputs& t) { return map([](auto x, auto g) { return x * g * sigmoid(g); }, t[0], t[1]); });
  add("swiglu_composed", 2, [](const Inputs& t) { return t[0] * (t[1] * sigmoid(t[1])); });
  add("chain6", 3, [](const Inputs& t) { return tanh(t[0] * t[1] + t[2]) * sigmoid(t[1]) - t[0]; });
  add("chain6_map", 3, [](const Inputs& t) {
    return map([](auto x, auto g, auto b) { return tanh(x * g + b) * sigmoid(g) - x; }, t[0], t[1], t[2]);
  });
  rows.push_back(row(row_name("elementwise", "add", {4096, 1024}), {{"x", s}, {"g", s}}, false,
                     [](const Inputs& t) { return t[0] + t[1]; }));
}

void add_rowwise(std::vector<Row>& rows) {
  rows.push_back(
      row("op/softmax/4096x1024", {{"x", {4096, 1024}}}, true, [](const Inputs& t) { return softmax(t[0]); }));
  for (const Sizes& z : {Sizes{2048, 4096}, Sizes{512, 32768}})
    rows.push_back({row_name("op", "cross_entropy", z), [z] {
                      Rng rng(1);
                      const Tensor x = normal({z[0], z[1]}, 0, 1, rng, {f32, device}).requires_grad_();
                      const Tensor t = randint(0, z[1], {z[0]}, rng, device);
                      return differentiated({{"x", x}, {"targets", t}}, [=] { return cross_entropy(x, t); });
                    }});
  for (const Sizes& z : {Sizes{4096, 1024}, Sizes{16384, 256}})
    rows.push_back(row(row_name("op", "layer_norm", z), {{"x", {z[0], z[1]}}, {"w", {z[1]}}, {"b", {z[1]}}}, true,
                       [](const Inputs& t) { return layer_norm(t[0], t[1], t[2]); }));
  rows.push_back(row("op/rms_norm/4096x1024", {{"x", {4096, 1024}}, {"w", {1024}}}, true,
                     [](const Inputs& t) { return rms_norm(t[0], t[1]); }));
  auto plain = [&](const char* kind, const Shape& shape, Tensor (*f)(const Tensor&)) {
    rows.push_back(row(row_name("op", kind, {shape.begin(), shape.end()}), {{"x", shape}}, false,
                       [f](const Inputs& t) { return f(t[0]); }));
  };
  plain("sum_rows", {4096, 4096}, [](const Tensor& x) { return sum(x, {1}); });
  plain("sum_columns", {4096, 4096}, [](const Tensor& x) { return sum(x, {0}); });
  plain("max_rows", {4096, 4096}, [](const Tensor& x) { return max(x, {1}); });
  plain("cumsum", {4096, 4096}, [](const Tensor& x) { return cumsum(x, 1); });
  plain("transpose", {4096, 4096}, [](const Tensor& x) { return contiguous(transpose(x, 0, 1)); });
  plain("split_heads", {8, 512, 12, 64}, [](const Tensor& x) { return contiguous(transpose(x, 1, 2)); });
  rows.push_back({"op/embedding/4096x32768x512", [] {
                    Rng rng(1);
                    const Tensor w = normal({32768, 512}, 0, 1, rng, {f32, device}).requires_grad_();
                    const Tensor i = randint(0, 32768, {4096}, rng, device);
                    return differentiated({{"w", w}, {"index", i}}, [=] { return embedding(w, i); });
                  }});
}

/// m×k times k×n, forward: bare, with either operand transposed, in f64, many at once, and with what layers add to it.
void add_matmul(std::vector<Row>& rows) {
  auto product = [&](const char* kind, const Sizes& z, const Shape& a, const Shape& b, auto f, DType dtype = f32) {
    rows.push_back(row(
        row_name("matmul", kind, z), {{"a", a}, {"b", b}}, false, [f](const Inputs& t) { return f(t[0], t[1]); },
        dtype));
  };
  auto mm = [](const Tensor& a, const Tensor& b) { return matmul(a, b); };
  for (const Sizes& z : {Sizes{2048, 256, 1024}, Sizes{2048, 512, 2048}, Sizes{2048, 768, 3072}, Sizes{2048, 3072, 768},
                         Sizes{1536, 1536, 1536}, Sizes{1, 2048, 8192}})
    product("mm", z, {z[0], z[1]}, {z[1], z[2]}, mm);
  for (const Sizes& z : {Sizes{1024, 1024, 1024}, Sizes{2048, 512, 2048}})
    product("mm_f64", z, {z[0], z[1]}, {z[1], z[2]}, mm, f64);
  product("mm_nt", {2048, 3072, 768}, {2048, 3072}, {768, 3072},
          [](const Tensor& a, const Tensor& b) { return matmul(a, transpose(b, 0, 1)); });
  product("mm_tn", {768, 2048, 3072}, {2048, 768}, {2048, 3072},
          [](const Tensor& a, const Tensor& b) { return matmul(transpose(a, 0, 1), b); });
  product("bmm", {96, 256, 64, 256}, {96, 256, 64}, {96, 64, 256}, mm);

  auto dense = [&](const char* kind, const Sizes& z, const std::function<Tensor(const Inputs&)>& f) {
    const Shapes shapes{{"x", {z[0], z[1]}}, {"w", {z[1], z[2]}}, {"b", {z[2]}}, {"r", {z[0], z[2]}}};
    rows.push_back(row(row_name("matmul", kind, z), shapes, false, f));
  };
  for (const Sizes& z : {Sizes{2048, 512, 2048}, Sizes{2048, 768, 3072}})
    dense("linear_gelu", z, [](const Inputs& t) { return gelu(linear(t[0], t[1], t[2])); });
  dense("linear_gate", {2048, 768, 2048}, [](const Inputs& t) { return swiglu(linear(t[0], t[1], t[2]), t[3]); });
  dense("linear_residual", {2048, 3072, 768}, [](const Inputs& t) { return t[3] + linear(t[0], t[1], t[2]); });
}

/// A chain of n recorded products on 8 elements, forward and backward.
Row tiny(int64_t n) {
  return {row_name("tiny", "chain", {n}), [n] {
            const Tensor a = full({8}, 1, {f32, device}).requires_grad_(),
                         b = full({8}, 0.999, {f32, device}).requires_grad_();
            Workload w = differentiated({{"a", a}, {"b", b}}, [=] {
              Tensor h = a;
              for (int64_t i = 0; i < n; ++i) h = h * b;
              return h;
            });
            w.items = static_cast<double>(n);
            return w;
          }};
}

}  // namespace

std::vector<Row> op_rows() {
  std::vector<Row> rows;
  add_elementwise(rows);
  add_rowwise(rows);
  add_matmul(rows);
  for (int64_t n : {100, 10000}) rows.push_back(tiny(n));
  return rows;
}

}  // namespace sluice::bench
