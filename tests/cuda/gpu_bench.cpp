// How fast a device is, in a minute: products in TFLOP/s, ops that memory limits as a share of what copies reach, steps
// of training and long sequences through layers in tokens a second, as they are and recorded. Each figure is the best
// of three rounds of some calls without a pause.
//
//   sluice_gpu_bench [--smoke] [products | memory | training | profile]…
//
// profile: of one step of training, what each op takes of the device's time. --smoke: small sizes, for the emulated
// device.
#include <sluice/sluice.h>

#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>

using namespace sluice;

namespace {

const Device gpu = Device::cuda();
bool smoke = false;

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

/// Seconds of a call.
double seconds(const std::function<void()>& f, int calls = 10) {
  if (smoke) calls = 1;
  f(), f();
  synchronize(gpu);
  double best = 1e9;
  for (int round = 0; round < (smoke ? 1 : 3); ++round) {
    const double start = now();
    for (int i = 0; i < calls; ++i) f();
    synchronize(gpu);
    best = std::min(best, (now() - start) / calls);
  }
  return best;
}

/// What fails is a row, and the next ones follow.
void row(const std::string& name, const std::function<std::string()>& f) {
  std::string text;
  try {
    text = f();
  } catch (const std::exception& e) { text = str("FAILED: ", e.what()); }
  std::printf("%-36s %s\n", name.c_str(), text.c_str());
  std::fflush(stdout);
}
std::string print(const char* format, auto... x) {
  char text[200];
  std::snprintf(text, sizeof text, format, x...);
  return text;
}

Tensor random(const Shape& shape, DType dtype = f32) {
  static Rng rng(1);
  return normal(shape, 0, 1, rng, {dtype, gpu});
}

void products() {
  const auto product = [](const char* name, int64_t batch, int64_t n, DType dtype, Precision precision) {
    row(name, [=] {
      const int64_t size = smoke ? 64 : n;
      const PrecisionScope scope(precision);
      const NoGrad guard;
      const Shape shape = batch == 1 ? Shape{size, size} : Shape{batch, size, size};
      const Tensor a = random(shape, dtype), b = random(shape, dtype);
      const double t = seconds([&] { matmul(a, b); });
      return print("%9.3f ms %8.1f TFLOP/s", t * 1e3, 2e-12 * static_cast<double>(batch * size * size * size) / t);
    });
  };
  product("product 8192^3, f32", 1, 8192, f32, Precision::f32);
  product("product 8192^3, f32 in bf16", 1, 8192, f32, Precision::bf16);
  product("product 8192^3, bf16", 1, 8192, bf16, Precision::f32);
  product("product 4096^3, f64", 1, 4096, f64, Precision::f32);
  product("64 products of 1024^3, f32 in bf16", 64, 1024, f32, Precision::bf16);
}

void memory() {
  const int64_t rows = smoke ? 64 : 32768, width = smoke ? 64 : 2048;
  const auto bytes_of = [&](double numbers, DType dtype = f32) {
    return numbers * static_cast<double>(rows * width * size_of(dtype));
  };
  const Tensor x = random({rows, width}), y = random({rows, width}), w = random({width});
  const double rate = [&] {
    const NoGrad guard;
    return bytes_of(2) / seconds([&] { clone(x); });
  }();
  row("copy", [&] { return print("%9.3f ms %8.0f GB/s", bytes_of(2) / rate * 1e3, rate * 1e-9); });
  const auto op = [&](const char* name, double bytes, const std::function<void()>& f) {
    row(name, [&] {
      const double t = seconds(f);
      return print("%9.3f ms %8.0f GB/s %5.0f %% of copies", t * 1e3, bytes / t * 1e-9, 100 * bytes / t / rate);
    });
  };
  const auto forward = [&](const char* name, double bytes, const std::function<Tensor()>& f) {
    op(name, bytes, [&] {
      const NoGrad guard;
      f();
    });
  };
  // With the passes that gradients take at least: `numbers` read or written for each element.
  const auto backward = [&](const char* name, double numbers, const std::function<Tensor(const Tensor&)>& f) {
    const Tensor leaf = x.detach().requires_grad_(), g = y;
    op(name, bytes_of(numbers), [&] { grad({f(leaf)}, {leaf}, {.grad_outputs = {g}}); });
  };
  forward("add", bytes_of(3), [&] { return x + y; });
  forward("gelu", bytes_of(2), [&] { return gelu(x); });
  {
    const Tensor a = to(x, bf16), b = to(y, bf16);
    forward("add, bf16", bytes_of(3, bf16), [&] { return a + b; });
    forward("silu, bf16", bytes_of(2, bf16), [&] { return silu(a); });
    const Tensor leaf = a.detach().requires_grad_(), gate = b.detach().requires_grad_();
    op("swiglu, bf16, both ways", bytes_of(8, bf16), [&] {
      grad({swiglu(leaf, gate)}, {leaf, gate}, {.grad_outputs = {a}});
    });
    forward("softmax of columns, bf16", bytes_of(2, bf16), [&] { return softmax(a, 0); });
    forward("fill, bf16", bytes_of(1, bf16), [&] { return full(a.shape(), 1, {bf16, gpu}); });
    Rng rng(2);
    forward("dropout, bf16", bytes_of(2, bf16), [&] { return dropout(a, 0.1, rng); });
    const Tensor heads = reshape(a, {rows / 32, width / 2, 64}), order = randint(0, rows, {rows}, rng, gpu);
    forward("rope of heads of 64, bf16", bytes_of(2, bf16), [&] { return rope(heads); });
    const int64_t batch = smoke ? 1 : 8;
    const Tensor query = random({batch, 32, 1, 128}, bf16), keys = random({batch, 8, rows / 4, 128}, bf16),
                 v = clone(keys);
    forward("attention of a query to 8k keys, bf16", static_cast<double>(2 * keys.numel() * size_of(bf16)),
            [&] { return attention(query, keys, v); });
    forward("index_add of rows, bf16", bytes_of(3, bf16), [&] { return index_add(a, 0, order, b); });
  }
  backward("gelu, both ways", 5, [](const Tensor& z) { return gelu(z); });
  forward("add a row to each", bytes_of(2), [&] { return x + w; });
  forward("sum of all", bytes_of(1), [&] { return sum(x); });
  forward("sums of columns", bytes_of(1), [&] { return sum(x, {0}); });
  forward("sums of rows", bytes_of(1), [&] { return sum(x, {1}); });
  forward("transpose", bytes_of(2), [&] { return contiguous(transpose(x, 0, 1)); });
  forward("softmax", bytes_of(2), [&] { return softmax(x); });
  backward("softmax, both ways", 5, [](const Tensor& z) { return softmax(z); });
  forward("softmax of columns", bytes_of(2), [&] { return softmax(x, 0); });
  backward("softmax of columns, both ways", 5, [](const Tensor& z) { return softmax(z, 0); });
  forward("layer_norm", bytes_of(2), [&] { return layer_norm(x, w, w); });
  forward("rms_norm", bytes_of(2), [&] { return rms_norm(x, w); });
  backward("layer_norm, both ways", 5, [&](const Tensor& z) { return layer_norm(z, w, w); });
  forward("cumsum of rows", bytes_of(2), [&] { return cumsum(x, 1); });
  const Tensor at = [&] {
    Rng rng(3);
    return randint(0, width, {rows}, rng, gpu);
  }();
  {
    const Tensor leaf = x.detach().requires_grad_();
    op("cross_entropy, both ways", bytes_of(3), [&] { grad({cross_entropy(leaf, at)}, {leaf}); });
  }
  {
    const Tensor table = random({smoke ? 64 : 50000, width});
    const Tensor index = [&] {
      Rng rng(4);
      return randint(0, table.dim(0), {rows}, rng, gpu);
    }();
    forward("embedding", bytes_of(2), [&] { return embedding(table, index); });
    const Tensor places = reshape(at, {rows, 1}), some = contiguous(narrow(y, 1, 0, 1));  // one for each row
    forward("scatter into a copy", bytes_of(2), [&] { return scatter(x, 1, places, some); });
  }
  {
    Tensor p = random({rows, width}).requires_grad_();
    p.set_grad(y);
    Adam adam(std::vector<NamedTensor>{{"p", p}}, {.lr = 1e-3});
    op("adam", bytes_of(7), [&] { adam.step(); });
  }
  for (const DType dtype : {f32, bf16}) {
    const Tensor leaf = to(x, dtype).detach().requires_grad_(), g = to(y, dtype);
    const Tensor taps = random({4, width}, dtype).requires_grad_();
    const auto convolved = [&] { return causal_conv1d(leaf, taps, {}, {}, Act::silu); };
    const std::string name = str("causal_conv1d, silu, ", dtype);
    forward(name.c_str(), bytes_of(2, dtype), convolved);
    op((name + ", both ways").c_str(), bytes_of(5, dtype), [&] {
      grad({convolved()}, {leaf, taps}, {.grad_outputs = {g}});
    });
  }
  const auto scan = [&](const char* name, const Shape& full, DType dtype, int decays) {  // of 0, 3 or 4 dims
    const Shape shape = smoke ? Shape{1, 2, 40, 16} : full;
    const Tensor q = random(shape, dtype), k = random(shape, dtype), v = random(shape, dtype);
    const Tensor g = decays == 0
                         ? Tensor()
                         : neg(abs(random(decays == 3 ? Shape{shape[0], shape[1], shape[2]} : shape, dtype) * 0.01));
    const double numbers = decays == 4 ? 5 : 4;
    forward(name, numbers * static_cast<double>(q.numel() * size_of(dtype)), [&] { return linear_scan(q, k, v, g); });
  };
  scan("linear_scan 4x64 heads of 128, bf16", {4, 64, 4096, 128}, bf16, 0);
  scan("linear_scan 2x16 heads of 128, bf16", {2, 16, 16384, 128}, bf16, 0);
  scan("linear_scan, retention, bf16", {4, 64, 4096, 128}, bf16, 3);
  scan("linear_scan 4x64 heads of 64, f32", {4, 64, 4096, 64}, f32, 0);
  scan("linear_scan, GLA, f32", {4, 64, 4096, 64}, f32, 4);
  {  // 24 heads share q and k; the decay is learned
    const int64_t batch = smoke ? 1 : 4, n = smoke ? 40 : 4096, heads = smoke ? 2 : 24;
    const auto leaf = [](const Tensor& x) { return x.detach().requires_grad_(); };
    const Tensor q = leaf(random({batch, 1, n, 128}, bf16)), k = leaf(random({batch, 1, n, 128}, bf16)),
                 v = leaf(random({batch, heads, n, 64}, bf16)), y = random({batch, heads, n, 64}, bf16),
                 g = leaf(neg(abs(random({batch, heads, n}) * 0.01)));
    op("linear_scan, Mamba-2, bf16, both ways", 5.0 * static_cast<double>(v.numel() * size_of(bf16)), [&] {
      grad({linear_scan(q, k, v, g)}, {q, k, v, g}, {.grad_outputs = {y}});
    });
  }
  // The delta rule with heads of 128 and a decay for each, or for each channel; with gradients 16 rows of a token.
  const auto delta = [&](const char* name, DType dtype, bool by_channel, bool gradients) {
    const Shape shape = smoke ? Shape{1, 2, 40, 16} : Shape{2, 32, 4096, 128};
    const Tensor k = random(shape, dtype) * 0.1, v = random(shape, dtype);
    const Tensor g = neg(abs(random(by_channel ? shape : Shape{shape[0], shape[1], shape[2]}, dtype) * 0.01));
    const double rows = static_cast<double>(v.numel() * size_of(dtype));
    if (!gradients) return forward(name, 5 * rows, [&] { return delta_scan(k, k, k, v, g).out; });
    const Tensor a = k.detach().requires_grad_(), b = v.detach().requires_grad_();
    op(name, 16 * rows, [&] { grad({delta_scan(a, a, a, b, g).out}, {a, b}, {.grad_outputs = {v}}); });
  };
  delta("delta_scan, decays of heads, bf16", bf16, false, false);
  delta("delta_scan, decays of heads, f32", f32, false, false);
  delta("delta_scan, decays of channels, f32", f32, true, false);
  delta("delta_scan, decays of heads, f32, both ways", f32, false, true);
}

struct Block {
  Norm norm;
  MultiHeadAttention attend;
  Norm second;
  Glu feed;
  Block(int64_t dim, Rng& rng)
      : norm({dim, NormKind::rms}), attend(options(dim), rng), second({dim, NormKind::rms}), feed({.dim = dim}, rng) {}
  static MultiHeadAttentionOptions options(int64_t dim) {
    MultiHeadAttentionOptions attention;
    attention.heads = {.dim = dim, .heads = dim / 64, .causal = true, .use_rope = true};
    attention.gates = {{}};
    return attention;
  }
  Tensor operator()(const Tensor& x) const {
    const Tensor y = x + attend(norm(x));
    return y + feed(second(y));
  }
  SLUICE_PARTS(norm, attend, second, feed);
};
template <class Layer> struct Model {
  Embedding embedding;
  std::vector<Layer> blocks;
  Norm norm;
  Linear head;
  Model(int64_t words, int64_t dim, int64_t depth, auto&& block) {
    Rng rng(1);
    embedding = Embedding({.count = words, .dim = dim}, rng);
    for (int64_t i = 0; i < depth; ++i) blocks.push_back(block(dim, rng));
    norm = Norm({dim, NormKind::rms}), head = Linear({.in = dim, .out = words}, rng);
  }
  Tensor operator()(const Tensor& x) const {
    Tensor y = embedding(x);
    for (const Layer& b : blocks) y = b(y);
    return head(norm(y));
  }
  SLUICE_PARTS(embedding, blocks, norm, head);
};
int64_t words() { return smoke ? 50 : 32000; }
Model<Block> attention_model(int64_t dim, int64_t depth) {
  return {words(), smoke ? 64 : dim, smoke ? 1 : depth, [](int64_t d, Rng& rng) { return Block(d, rng); }};
}
/// With twice the layers it has as many parameters.
Model<Gau> gau_model(int64_t dim, int64_t depth) {
  return {words(), smoke ? 64 : dim, smoke ? 1 : depth,
          [](int64_t d, Rng& rng) { return Gau({.dim = d, .causal = true}, rng); }};
}

/// f(name, layer) for layers that take long_sequence().
void long_sequences(auto f) {
  Rng rng(1);
  const int64_t dim = smoke ? 64 : 768;
  f("GAU", Gau({.dim = dim, .causal = true}, rng));
  f("GLA", Gla({.dim = dim, .heads = dim / 64}, rng));
  f("Mamba-2", Mamba2({.dim = dim, .head_dim = 64}, rng));
  f("gated delta rule", GatedDeltaNet(DeltaOptions{.dim = dim, .heads = dim / 64, .key_dim = 64}, rng));
}
Tensor long_sequence() { return random(smoke ? Shape{1, 40, 64} : Shape{1, 8192, 768}).requires_grad_(); }

/// What a graph has of a step: nothing; the loss and its gradients; clipping and the optimiser, too.
enum class Recorded { nothing, gradients, all };

void training() {
  const auto train = [](const char* name, auto make, DType dtype, Precision precision, Recorded recorded,
                        int64_t batch = 8, int64_t n = 1024) {
    row(name, [=] {
      const PrecisionScope scope(precision);
      const int64_t length = smoke ? 20 : n;
      auto model = make();
      to(model, dtype), to(model, gpu);
      Adam adam(parameters(model), {.lr = 1e-3});
      const auto loss_of = [&](const std::vector<Tensor>& in) { return cross_entropy(to(model(in[0]), f32), in[1]); };
      GraphedStep gradients(model, loss_of), all(adam, loss_of, {.max_norm = 1});
      Rng rng(2);
      const Tensor x = randint(0, words(), {batch, length}, rng, gpu);
      double first = 0, last = 0;
      const auto once = [&](double* loss_now) {
        Tensor loss;
        if (recorded == Recorded::all) loss = all({x, x});
        else if (recorded == Recorded::gradients) loss = gradients({x, x}), adam.step();
        else adam.zero_grad(), loss = loss_of({x, x}), backward(loss), adam.step();
        if (loss_now) *loss_now = loss.item();
      };
      once(&first);
      const double t = seconds([&] { once(nullptr); }, 5);
      once(&last);
      return print("%9.2f ms %9.0f tokens/s   loss %.3f to %.3f%s", t * 1e3, static_cast<double>(batch * length) / t,
                   first, last, last < first ? "" : "   WRONG");
    });
  };
  const auto large = [] { return attention_model(768, 12); };
  const auto small = [] { return attention_model(256, 4); };
  const auto gau = [] { return gau_model(768, 24); };
  train("step, 120 M, f32", large, f32, Precision::f32, Recorded::nothing);
  train("step, 120 M, f32 in bf16", large, f32, Precision::bf16, Recorded::nothing);
  train("step, 120 M, bf16", large, bf16, Precision::f32, Recorded::nothing);
  train("step, 120 M, bf16, recorded", large, bf16, Precision::f32, Recorded::gradients);
  train("step, small, bf16", small, bf16, Precision::f32, Recorded::nothing, 4, 256);
  train("step, small, bf16, recorded", small, bf16, Precision::f32, Recorded::gradients, 4, 256);
  train("step, small, bf16, clipped, recorded", small, bf16, Precision::f32, Recorded::all, 4, 256);
  train("step, 120 M of GAU, bf16", gau, bf16, Precision::f32, Recorded::nothing);
  train("the same, clipped, recorded", gau, bf16, Precision::f32, Recorded::all);
  long_sequences([](const char* name, auto layer) {
    row(str(name, ", 1 x 8192, f32 in bf16"), [&] {
      const PrecisionScope scope(Precision::bf16);
      to(layer, gpu);
      const Tensor x = long_sequence();
      std::vector<Tensor> leaves{x};
      for (const NamedTensor& p : parameters(layer)) leaves.push_back(p.tensor);
      const double t = seconds([&] { grad({sum(layer(x))}, leaves); }, 5);
      return print("%9.2f ms %9.0f tokens/s   both ways", t * 1e3, static_cast<double>(x.dim(1)) / t);
    });
  });
}

/// What f takes of the device's time by op, the first `most` of them. Each kernel is waited for, so that small ones
/// count the way to the device and back, too.
std::string by_op(std::size_t most, const std::function<void()>& f) {
  f(), f(), synchronize(gpu);
  Profile measured;
  f(), synchronize(gpu);
  std::string text = print("%9.2f ms in kernels\n", measured.kernel_seconds() * 1e3);
  const std::vector<ProfileRow> rows = measured.by_op();
  for (std::size_t i = 0; i < std::min(most, rows.size()); ++i)
    text += print("    %-24s %-9s %5ld calls %9.3f ms %9.0f GFLOP/s %7.0f GB/s\n", rows[i].name.c_str(),
                  rows[i].backward ? "backward" : "", long(rows[i].calls), rows[i].seconds * 1e3, rows[i].gflops(),
                  rows[i].gigabytes_per_second());
  return text;
}

void profile() {
  const auto step = [](const char* name, DType dtype, Precision precision) {
    row(name, [=]() -> std::string {
      const PrecisionScope scope(precision);
      Model<Block> model = attention_model(768, 12);
      to(model, dtype), to(model, gpu);
      Adam adam(parameters(model), {.lr = 1e-3});
      Rng rng(2);
      const Tensor x = smoke ? randint(0, 50, {2, 20}, rng, gpu) : randint(0, 32000, {8, 1024}, rng, gpu);
      return by_op(24, [&] { adam.zero_grad(), backward(cross_entropy(to(model(x), f32), x)), adam.step(); });
    });
  };
  step("a step, 120 M, f32 in bf16", f32, Precision::bf16);
  step("a step, 120 M, bf16", bf16, Precision::f32);
  long_sequences([](const char* name, auto layer) {
    row(str(name, ", 1 x 8192, f32 in bf16"), [&] {
      const PrecisionScope scope(Precision::bf16);
      to(layer, gpu);
      const Tensor x = long_sequence();
      return by_op(10, [&] { grad({sum(layer(x))}, {x}); });
    });
  });
}

}  // namespace

int main(int argc, char** argv) try {
  bool all = true;
  for (int i = 1; i < argc; ++i) std::strcmp(argv[i], "--smoke") == 0 ? smoke = true : all = false;
  const auto wanted = [&](const char* part) {
    for (int i = 1; i < argc; ++i)
      if (std::strcmp(argv[i], part) == 0) return true;
    return all;
  };
  if (wanted("products")) products();
  if (wanted("memory")) memory();
  if (wanted("training")) training();
  if (wanted("profile")) profile();
} catch (const std::exception& e) {
  std::fprintf(stderr, "error: %s\n", e.what());
  return 1;
}
