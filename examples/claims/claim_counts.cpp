// Claims that are counted: steps, parameters, operations, bytes. The library counts them: cost(), the kernels' own
// reports, the memory of its allocator, and what a stream keeps. C8, C14, C15, C18, C20, C21 and C24.
#include "claims/claim.h"

#include <sluice/sluice.h>

#include <cmath>
#include <functional>

using namespace sluice;
using namespace sluice::examples;

namespace {

/// How often the state of a stream of n tokens changes, one token at a time: the tensors of shape [1, 1, rows,
/// columns].
template <class L> int64_t state_changes(const L& layer, int64_t n, int64_t width, int64_t rows, int64_t columns) {
  Rng rng(1);
  Stream stream;
  Tensor before;
  int64_t changes = 0;
  for (int64_t t = 0; t < n; ++t) {
    step(layer, normal({1, 1, width}, 0, 1, rng), stream);
    stream.each_tensor([&](const Tensor& now) {
      if (now.shape() != Shape{1, 1, rows, columns}) return;
      changes += before.defined() ? max(abs(now - before)).item() > 0 : max(abs(now)).item() > 0;
      before = now;
    });
  }
  return changes;
}
void c8(const Run& run, Result& r) {
  const int64_t n = run.smoke ? 512 : 8192, chunk = 256, s = 3, e = 5, d = 6;
  Rng rng(1);
  const Flash flash({.dim = d, .expansion = e, .key_dim = s, .chunk = chunk, .causal = true, .use_rope = false}, rng);
  const LinearAttention linear(
      {.dim = d, .heads = 1, .head_dim = s, .value_dim = e, .direction = LinearDirection::causal}, rng);
  const int64_t steps = state_changes(flash, n, d, s, e), tokens = state_changes(linear, n, d, s, e);
  r.add("changes of the state Σ kᵀv over 8,192 tokens, linear attention", double(tokens), "", 8192);
  r.add("the same, FLASH with chunks of 256", double(steps), "", 32);
  r.verdict = all({equals({double(tokens)}, 8192), equals({double(steps)}, 32)});
  r.why = "a stream of 8,192 tokens changes the state of linear attention " + text(double(tokens)) +
          " times and that of FLASH " + text(double(steps)) + " times";
}

/// Largest number of bytes alive during a training step of f on x, above what was alive before.
double peak_bytes(const std::function<Tensor(const Tensor&)>& f, const Tensor& x) {
  reset_peak_memory();
  const int64_t before = memory_stats().live;
  backward(sum(f(x)));
  return double(memory_stats().peak - before);
}
/// dropout(softmax(Q·Kᵀ/√dk))·V with the weights as a tensor, as programs without a tiled kernel compute it.
Tensor materialised(const MultiHeadAttention& a, const Tensor& x, double drop, Rng& rng) {
  const HeadsOptions& o = a.options.heads;
  const Heads::Projected p = a.heads.project(o, x);
  const Tensor weights = softmax(matmul(p.q, transpose(p.k, -2, -1)) / std::sqrt(double(o.head_dim)));
  return a.heads.finish(o, matmul(drop > 0 ? dropout(weights, drop, rng) : weights, p.v), x);
}
/// A Gau whose weights are a tensor.
Tensor materialised(const Gau& gau, const Tensor& x, double drop, Rng& rng) {
  const int64_t s = gau.options.key_dim, e = (gau.in.weight.dim(1) - s) / 2;
  const std::vector<Tensor> p = split(gau.in(gau.norm(x)), {e, e, s}, 2);
  const Tensor z = silu(p[2]);
  const auto turned = [&](int64_t i) { return z * select(gau.gamma, 0, i) + select(gau.beta, 0, i); };
  const Tensor scores = matmul(turned(0), transpose(turned(1), -2, -1)) / std::sqrt(double(s));
  const Tensor weights = relu2(scores) / double(x.dim(1));
  const Tensor mixed = matmul(drop > 0 ? dropout(weights, drop, rng) : weights, silu(p[1]));
  return x + gau.out(gated_by(Act::silu, mixed, p[0]));
}
void c14(const Run& run, Result& r) {
  const int64_t n = run.smoke ? 16 : 1024, d = run.smoke ? 24 : 768, heads = 12;
  Rng rng(static_cast<uint64_t>(run.seed));
  const MultiHeadAttention attention({.dim = d, .heads = heads, .residual = true}, rng);
  const Mlp mlp({.dim = d}, rng);
  const Norm norm({d, NormKind::layer});
  GauOptions o{.dim = d, .key_dim = run.smoke ? 8 : 128};
  o.use_rope = false;
  const Gau first(o, rng), second(o, rng);
  const Tensor x = normal({3, n, d}, 0, 1, rng);
  const auto feed = [&](const Tensor& y) { return y + mlp(norm(y)); };
  // What a further sequence takes: gradients of parameters do not grow with the batch.
  const auto per_sequence = [&](const std::function<Tensor(const Tensor&)>& layer) {
    const double one = peak_bytes(layer, narrow(x, 0, 0, 1));
    return (peak_bytes(layer, x) - one) / double(x.dim(0) - 1);
  };
  const auto ratio_of = [&](const std::function<Tensor(const Tensor&)>& layer,
                            const std::function<Tensor(const Tensor&)>& two) {
    return per_sequence(layer) / per_sequence(two);
  };
  const double maps = double(cost(attention, n).attention_elements) / double(2 * cost(first, n).attention_elements);
  const auto stored = [&](double drop) {
    return ratio_of(
        [&, drop](const Tensor& y) { return feed(materialised(attention, y, drop, rng)); },
        [&, drop](const Tensor& y) { return materialised(second, materialised(first, y, drop, rng), drop, rng); });
  };
  const double plain = stored(0), dropped = stored(0.1);
  const double tiled =
      ratio_of([&](const Tensor& y) { return feed(attention(y)); }, [&](const Tensor& y) { return second(first(y)); });
  r.add(
      "memory of a sequence in a Transformer layer over that in two GAUs, n = 1024, d = 768, weights as tensors, "
      "dropout on them",
      dropped, "", 2);
  r.add("the same without dropout", plain);
  r.add("the same with this library's tiled attention", tiled);
  r.add("attention weights of 12 heads over those of two GAUs", maps, "", 6);
  r.verdict = equals({dropped}, 2, 0.25);  // what rounds to 2; the source pre-trains as BERT does, with dropout
  r.why = "a sequence more takes " + text(dropped) +
          " times the memory in the layer that it takes in two GAUs where both " + "store their weights (" +
          text(plain) + " times without dropout), and " + text(tiled) +
          " times where tiles take the place of weights: then U and V of width 2d decide";
}

void c15(const Run&, Result& r) {
  const int64_t d = 768, n = 1;
  GauOptions o{.dim = d, .linear_bias = false};
  o.norm = NormKind::none;
  const auto gau = double(cost(o, n).parameters);
  const double layer = double(cost(MultiHeadAttentionOptions{.heads = {.dim = d, .heads = 12}}, n).parameters +
                              cost(MlpOptions{.dim = d, .bias = false}, n).parameters);
  r.add("parameters of two GAUs over those of a Transformer layer, d = 768", 2 * gau / layer, "", 1);
  r.add("parameters that one GAU in place of a layer saves", 100 * (1 - gau / layer), "%");
  r.verdict = all({equals({2 * gau / layer}, 1, 0.05), exceeds({1 - gau / layer}, 0.3), below({1 - gau / layer}, 0.5)});
  r.why = "two GAUs have " + text(2 * gau / layer) + " times the parameters of a layer; one in its place saves " +
          text(100 * (1 - gau / layer)) + " %, but models of equal depth put two there, and save nothing";
}

/// Operations of the matrix products of f(q, k, v) and its backward pass, counted on meta.
double training_flops(const Shape& shape, const std::function<Tensor(const Tensors&)>& f) {
  Tensors qkv;
  for (int i = 0; i < 3; ++i) qkv.push_back(zeros(shape, {f32, meta}).requires_grad_());
  detail::WorkCounter counter;
  const Tensor y = f(qkv);
  backward(y, zeros(y.shape(), {f32, meta}));
  return double(counter.work().flops);
}
void c18(const Run&, Result& r) {
  const Shape shape = {64, 16, 1024, 64};
  const double tiled = training_flops(shape, [](const Tensors& x) { return attention(x[0], x[1], x[2]); });
  const double stored = training_flops(
      shape, [](const Tensors& x) { return matmul(softmax(matmul(x[0], transpose(x[1], -2, -1)) * 0.125), x[2]); });
  const double more = 100 * (tiled / stored - 1), said = 100 * (75.2 / 66.6 - 1);
  r.add("operations that recomputing adds to forward and backward", more, "%", said);
  r.add("weights stored, batch 64, 16 heads, n = 1024, d_k = 64", stored / 1e9, "GFLOP", 66.6);
  r.add("weights recomputed", tiled / 1e9, "GFLOP", 75.2);
  r.verdict = equals({more}, said, 0.1);
  r.why = "forward and backward of the sizes named have " + text(stored / 1e9) +
          " GFLOP in six matrix products, and a " + "seventh, recomputed, adds " + text(more) + " %, not " +
          text(said) + " %; the printed counts must include other operations or other sizes";
}

/// Numbers that a stream keeps for n tokens.
double cache(const HeadsOptions& o, int64_t n) {
  MultiHeadAttentionOptions a{.heads = o};
  a.heads.causal = true;
  return double(cost(a, n).state);
}
void c20(const Run&, Result& r) {
  const int64_t n = 64;
  const auto against = [&](HeadsOptions o, int64_t kv_heads) {
    const double all_heads = cache(o, n);
    o.kv_heads = kv_heads;
    return all_heads / cache(o, n);
  };
  const HeadsOptions common{.dim = 4096, .heads = 32}, gpt3{.dim = 12288, .heads = 96};
  const double one = against(common, 1), eight = against(common, 8), large = against(gpt3, 1);
  r.add("cache of 32 KV heads over that of one", one, "", 32);
  r.add("over that of eight", eight, "", 4);
  r.add("GPT-3, 96 heads, over that of one", large, "", 96);
  r.add("GPT-3, bytes for a token and layer in 16 bits", 2 * cache(gpt3, n) / double(n), "B", 96 * 128 * 2);
  r.verdict = all({equals({one}, 32), equals({eight}, 4), equals({large}, 96)});
  r.why = "one KV head divides the cache by " + text(one) + ", eight by " + text(eight) + ", and GPT-3's by " +
          text(large) + "; a token takes " + text(r.figures[3].measured) + " bytes of a layer there";
}

void c21(const Run&, Result& r) {
  std::vector<Verdict> parts;
  const auto qkv = [](int64_t d, int64_t h, int64_t g) {
    return double(
        cost(MultiHeadAttentionOptions{.heads = {.dim = d, .heads = h, .kv_heads = g, .project_out = false}}, 1)
            .parameters);
  };
  for (const int64_t g : {1, 4, 8, 32}) {
    const double share = qkv(4096, 32, g) / (4096.0 * 4096.0), said = 1 + 2.0 * double(g) / 32;
    r.add("parameters of Wq, Wk, Wv over d², h = 32, g = " + std::to_string(g), share, "", said);
    parts.push_back(equals({share}, said));
  }
  double last = 0;
  for (const int64_t h : {32, 64, 96}) {
    last = 100 * (1 - qkv(128 * h, h, 1) / qkv(128 * h, h, h));
    r.add("saved by one KV head, h = " + std::to_string(h), last, "%", 200.0 / 3);
  }
  parts.push_back(equals({last}, 200.0 / 3, 0.02));
  r.verdict = all(parts);
  r.why = "the counts are d²(1 + 2g/h), and one KV head saves " + text(last) + " % with 96 heads";
}

void c24(const Run&, Result& r) {
  const int64_t layers = 24, d = 2048, q = 32, kv = 4, dk = 128;
  std::vector<Verdict> parts;
  const auto add = [&](const std::string& name, double millions, double said, double last_digit) {
    r.add("parameters added by " + name, millions, "M", said);
    parts.push_back(equals({millions}, said, last_digit / said));  // one unit of the last digit that is printed
  };
  const auto gate = [&](GatePosition position, GateGranularity granularity, int64_t heads, int64_t width) {
    return 1e-6 *
           double(layers * cost({.position = position, .granularity = granularity}, d, heads, width, 1).parameters);
  };
  const auto heads = [&](int64_t query, int64_t key) {
    return 1e-6 *
           double(
               layers *
               cost(MultiHeadAttentionOptions{.heads = {.dim = d, .heads = query, .kv_heads = key, .head_dim = dk}}, 1)
                   .parameters);
  };
  using enum GateGranularity;
  add("eight KV heads", heads(q, 8) - heads(q, kv), 50, 1);
  add("48 query heads", heads(48, kv) - heads(q, kv), 201, 1);
  add("G1", gate(GatePosition::g1, elementwise, q, dk), 201, 1);
  add("G2", gate(GatePosition::g2, elementwise, kv, dk), 25, 1);
  add("G3", gate(GatePosition::g3, elementwise, kv, dk), 25, 1);
  add("G4", gate(GatePosition::g4, elementwise, q, dk), 201, 1);
  add("G5", gate(GatePosition::g5, elementwise, 1, d), 100, 1);
  add("headwise G1", gate(GatePosition::g1, headwise, q, dk), 1.6, 0.1);
  add("headwise G2", gate(GatePosition::g2, headwise, kv, dk), 0.2, 0.1);
  r.verdict = all(parts);
  r.why = "counted for 24 layers of width 2,048 with 32 query and 4 KV heads of 128";
}

}  // namespace

int main(int argc, char** argv) {
  return run_claims("claim_counts",
                    {{"C8", c8}, {"C14", c14}, {"C15", c15}, {"C18", c18}, {"C20", c20}, {"C21", c21}, {"C24", c24}},
                    argc, argv);
}
