// What multi-head attention costs, beside the tables that others published, and the memory of
// attention maps as measured.
#include "layers/streamed.h"
#include "support/approx.h"
#include "support/catch.h"

#include <sluice/core/memory/allocator.h>
#include <sluice/core/node.h>
#include <sluice/layers/table.h>
#include <sluice/ops/attention/attention_reference.h>
#include <sluice/ops/shape/create.h>

#include <algorithm>
#include <functional>

using namespace sluice;
using namespace sluice::testing;

namespace {

/// Bytes that f allocates at most beyond what was live before.
int64_t peak_bytes(const std::function<void()>& f) {
  reset_peak_memory();
  const int64_t before = memory_stats().live;
  f();
  return memory_stats().peak - before;
}

/// 2·rows·in·out of each dense map: those of K, V and their gates read the n rows of the context, others m.
int64_t projection_flops(const MultiHeadAttention& layer, int64_t m, int64_t n) {
  int64_t flops = 0;
  for (const Linear* f : {&layer.heads.q, &layer.heads.out}) flops += 2 * m * f->weight.numel();
  for (const Linear* f : {&layer.heads.k, &layer.heads.v}) flops += 2 * n * f->weight.numel();
  for (const AttentionGate& g : layer.gates) {
    const bool key_side = g.options.position == GatePosition::g2 || g.options.position == GatePosition::g3;
    if (g.map.weight.defined()) flops += 2 * (key_side ? n : m) * g.map.weight.numel();
  }
  return flops;
}

constexpr GatePosition kPositions[] = {GatePosition::g1, GatePosition::g2, GatePosition::g3, GatePosition::g4,
                                       GatePosition::g5};

}  // namespace

TEST_CASE("cost: multi-head attention, its gates and its cache", "[cost]") {
  const int64_t n = 9;
  for (int64_t kv_heads : {1, 2, 4})
    for (GatePosition position : kPositions)
      for (int bits = 0; bits < 32; ++bits) {
        MultiHeadAttentionOptions o{
            .heads = {.dim = 8, .heads = 4, .kv_heads = kv_heads, .value_dim = bits & 1 ? 3 : 0}};
        o.heads.causal = bits & 2, o.heads.qkv_bias = bits & 1, o.heads.out_bias = bits & 8, o.qk_norm = bits & 4;
        o.norm = bits & 4 ? NormKind::rms : NormKind::none, o.sandwich_norm = o.norm == NormKind::rms && bits & 8;
        o.sink = bits & 1 ? AttentionSink::learned : AttentionSink::none;
        if (bits & 8) {
          AttentionGateOptions g{.position = position};
          const bool headwise = bits & 16 && position != GatePosition::g5;
          g.granularity = headwise ? GateGranularity::headwise : GateGranularity::elementwise;
          g.bias = bits & 2, g.input_independent = !g.bias && bits & 4;
          o.gates = {g};
        }
        Rng rng(1);
        const MultiHeadAttention layer(o, rng);
        const Cost c = cost(o, n);
        const int64_t dv = bits & 1 ? 3 : 2;
        CHECK(c.parameters == count(layer));
        CHECK(c.flops == projection_flops(layer, n, n) + 2 * 4 * n * n * (2 + dv));
        CHECK(c.attention_elements == 4 * n * n);
        if (!o.heads.causal) {
          CHECK(c.state == 0);
          continue;
        }
        CHECK(c.state == stream_of(layer, zeros({1, n, 8})).numel());
        CHECK(c.state == n * kv_heads * (2 + dv));
      }
}

TEST_CASE("cost: a global position counts once, however often it is listed", "[cost]") {
  const Tensor x = zeros({1, 1, 20, 4}, {.device = meta});
  const auto elements = [&](const std::vector<int64_t>& global) {
    detail::WorkCounter counter;
    attention(x, x, x, {.mask = {.window = 3, .global = global}});
    return counter.work().attention_elements;
  };
  CHECK(elements({0, 5, 0, 30, 30}) == elements({0, 5}));
  CHECK(elements({5}) < elements({0, 5}));
}

TEST_CASE("cost: windows, dilation, global positions, contexts", "[cost]") {
  const int64_t n = 40;
  Rng rng(1);
  for (bool causal : {false, true})
    for (int64_t window : {0, 1, 5, 50})
      for (int64_t dilation : {1, 3})
        for (const std::vector<int64_t>& global : {std::vector<int64_t>{}, {0, 17}}) {
          MultiHeadAttentionOptions o{.heads = {.dim = 8, .heads = 2, .causal = causal}};
          o.window = window, o.dilation = dilation, o.global = global;
          const MultiHeadAttention layer(o, rng);
          const Cost c = cost(o, n);
          CHECK(c.parameters == count(layer));
          // Pairs in the middle of a long sequence, from the mask itself: the row of position 20 among 40, or the
          // last row for a causal mask, sees as many keys as any.
          AttentionMask mask;
          mask.causal = causal, mask.window = window, mask.dilation = dilation, mask.global = global;
          std::vector<int64_t> row(static_cast<std::size_t>(n), 0);
          const std::vector<bool> seen = visible_pairs(mask, 1, 1, n, n).to_vector<bool>();
          for (std::size_t at = 0; at < seen.size(); ++at) row[at / static_cast<std::size_t>(n)] += seen[at];
          int64_t most = 0;
          for (int64_t i = 0; i < n; ++i)
            if (std::find(global.begin(), global.end(), i) == global.end())
              most = std::max(most, row[static_cast<std::size_t>(i)]);
          const auto globals = static_cast<int64_t>(global.size());
          const int64_t pairs = c.attention_elements / 2;
          INFO("causal " << causal << " window " << window << " dilation " << dilation << " globals " << globals);
          // At most the global keys that happen to lie in the window are counted twice.
          CHECK(pairs >= (n - globals) * most + globals * n);
          CHECK(pairs <= (n - globals) * std::min(n, most + globals) + globals * n);
          CHECK(c.flops == projection_flops(layer, n, n) + 2 * 2 * pairs * (4 + 4));
          if (causal) CHECK(c.state == stream_of(layer, zeros({1, n, 8})).numel());
        }
  MultiHeadAttentionOptions longformer{.heads = {.dim = 8, .heads = 2}, .window = 3, .global = {0, 5}};
  longformer.separate_global_projections = true;
  const MultiHeadAttention layer(longformer, rng);
  CHECK(cost(longformer, n).parameters == count(layer));
  const int64_t local = 38 * (5 + 2) + 2 * n, again = 2 * n;
  CHECK(cost(longformer, n).attention_elements == 2 * (local + again));
  CHECK(cost(longformer, n).flops ==
        projection_flops(layer, n, n) + 2 * (2 * 64 + n * 2 * 64) + 2 * 2 * (local + again) * 8);
  CHECK(cost(longformer, n).state == 0);

  MultiHeadAttentionOptions cross{.heads = {.dim = 8, .heads = 2, .context_dim = 6}};
  cross.gates = {AttentionGateOptions{}, AttentionGateOptions{.position = GatePosition::g2}};
  const MultiHeadAttention reader(cross, rng);
  CHECK(cost(cross, 5, n).parameters == count(reader));
  CHECK(cost(cross, 5, n).flops == projection_flops(reader, 5, n) + 2 * 2 * 5 * n * 8);
  Stream reading;
  step(reader, zeros({1, 5, 8}), reading, {.context = zeros({1, n, 6})});
  CHECK(cost(cross, 5, n).state == reading.numel());

  const AttentionStackOptions stack =
      hierarchical_options({.heads = {.dim = 8, .heads = 2, .causal = true}}, {2, 3, 0});
  const AttentionStack layers(stack, rng);
  CHECK(cost(stack, n).parameters == count(layers));
  CHECK(cost(stack, n).state == stream_of(layers, zeros({1, n, 8})).numel());
  CHECK(cost(stack, n).attention_elements == 2 * n * (2 + 3 + n));
}

TEST_CASE("cost: the formulas of the complexity table", "[cost]") {
  const int64_t n = 100, d = 64, h = 8;
  const Cost mha = cost(MultiHeadAttentionOptions{.heads = {.dim = d, .heads = h, .causal = true}}, n);
  CHECK(mha.parameters == 4 * d * d);
  CHECK(mha.flops == 8 * n * d * d + 4 * n * n * d);
  CHECK(mha.attention_elements == h * n * n);
  CHECK(mha.state == 2 * n * d);
  for (int64_t g : {1, 2, 4}) {
    const Cost gqa = cost(MultiHeadAttentionOptions{.heads = {.dim = d, .heads = h, .kv_heads = g, .causal = true}}, n);
    CHECK(gqa.parameters == 2 * d * d + 2 * d * d * g / h);  // d²(1 + 2g/h) and Wo
    CHECK(gqa.flops == 4 * n * d * d * (h + g) / h + 4 * n * n * d);
    CHECK(gqa.state == 2 * n * d * g / h);
  }
  MultiHeadAttentionOptions window{.heads = {.dim = d, .heads = h, .causal = true}};
  window.window = 10;
  CHECK(cost(window, n).flops == 8 * n * d * d + 4 * n * 10 * d);
  CHECK(cost(window, n).attention_elements == h * n * 10);
  CHECK(cost(window, n).state == 2 * 10 * d);
  MultiHeadAttentionOptions gated{.heads = {.dim = d, .heads = h, .causal = true}};
  gated.gates = {AttentionGateOptions{}};
  const Cost more = cost(gated, n);
  CHECK(more.flops - mha.flops == 2 * n * d * d);  // 2nd·h·dk
  CHECK(more.attention_elements == mha.attention_elements);
  CHECK(more.bytes - mha.bytes >= 4 * n * d);  // the gate's n·h·dk numbers and what reads them
  CHECK(more.state == mha.state);

  const int64_t s = 16, e = 2 * d, C = 25;
  GauOptions gau{.dim = d, .key_dim = s, .linear_bias = false, .causal = true};
  gau.norm = NormKind::none;
  CHECK(cost(gau, n).flops == 12 * n * d * d + 2 * n * d * s + 2 * n * n * (s + e));
  CHECK(cost(gau, n).attention_elements == n * n);
  CHECK(cost(gau, n).state == n * (s + e));
  FlashOptions flash{.dim = d, .key_dim = s, .chunk = C, .causal = true, .linear_bias = false};
  flash.norm = NormKind::none;
  const Cost mixed = cost(flash, n - C);  // a whole number of chunks, so the stream's buffer is the largest
  CHECK(mixed.flops == (n - C) * (12 * d * d + 2 * d * s + 2 * C * (s + e) + 8 * s * d));
  CHECK(mixed.attention_elements == (n - C) * C);
  CHECK(cost(flash, n - 1).state == s * e + C * (2 * s + e));
  const int64_t m = d / h;  // ELU + 1 has as many features as channels
  const Cost linear = cost(LinearAttentionOptions{.dim = d, .heads = h, .direction = LinearDirection::causal}, n);
  CHECK(linear.flops == 8 * n * d * d + 4 * n * h * m * (d / h + 1));  // the table leaves out the normaliser, + 1
  CHECK(linear.attention_elements == 0);
  CHECK(linear.state == h * (m * (d / h) + m));
}

TEST_CASE("cost: published numbers", "[cost]") {
  // Operations of a Transformer++ layer (attention and GLU with the parameters of a 4d MLP) over two GAUs, and over
  // two FLASH layers; d = 768, s = 128, C = 256, without norms and biases.
  const double quad[] = {0.88, 0.81, 0.73, 0.64, 0.57}, mixed[] = {0.88, 0.97, 1.15, 1.50, 2.21};
  for (int i = 0; i < 5; ++i) {
    const int64_t n = int64_t{512} << i, d = 768;
    const Cost attention = cost(MultiHeadAttentionOptions{.heads = {.dim = d, .heads = 12}}, n);
    const Cost transformer = attention + cost(GluOptions{.dim = d, .hidden = 2048}, n);
    const auto over = [&](const Cost& c) {
      return static_cast<double>(transformer.flops) / static_cast<double>((2 * c).flops);
    };
    CHECK(over(cost(GauOptions{.dim = d}, n)) == Approx(quad[i]).margin(0.005));
    CHECK(over(cost(FlashOptions{.dim = d}, n)) == Approx(mixed[i]).margin(0.005));
    CHECK(transformer.attention_elements == 6 * (2 * cost(GauOptions{.dim = d}, n)).attention_elements);
  }
  // One GAU has 0.514 of the parameters of a Transformer layer's 12d², so two save nothing.
  GauOptions bare{.dim = 768, .linear_bias = false};
  bare.norm = NormKind::none;
  CHECK(static_cast<double>(cost(bare, 1).parameters) / (12.0 * 768 * 768) == Approx(0.514).margin(0.0005));
  // GPT-3's cache in 16 bits: 49152 bytes a token and layer, and a 96th of it with one KV head.
  const MultiHeadAttentionOptions gpt3{.heads = {.dim = 12288, .heads = 96, .causal = true}};
  MultiHeadAttentionOptions mqa = gpt3;
  mqa.heads.kv_heads = 1;
  CHECK(2 * cost(gpt3, 1).state == 49152);
  CHECK(cost(gpt3, 7).state == 96 * cost(mqa, 7).state);
  // QKV parameters saved by one KV head: 64.6 %, 65.6 %, 66.0 % for 32, 64, 96 heads.
  const std::pair<int64_t, double> saved[] = {{32, 0.646}, {64, 0.656}, {96, 0.660}};
  for (auto [h, share] : saved) {
    const int64_t d = 128 * h;
    MultiHeadAttentionOptions many{.heads = {.dim = d, .heads = h}}, one = many;
    one.heads.kv_heads = 1;
    const auto difference = static_cast<double>(cost(many, 1).parameters - cost(one, 1).parameters);
    CHECK(difference / (3.0 * static_cast<double>(d) * static_cast<double>(d)) == Approx(share).margin(0.0005));
  }
  // The gates of the paper's 24-layer model, in millions.
  const AttentionGateOptions headwise{.granularity = GateGranularity::headwise};
  const MultiHeadAttentionOptions plain{.heads = {.dim = 2048, .heads = 32, .kv_heads = 4, .head_dim = 128}};
  auto added = [&](AttentionGateOptions g, GatePosition p) {
    MultiHeadAttentionOptions o = plain;
    g.position = p, o.gates = {g};
    return 24e-6 * static_cast<double>(cost(o, 1).parameters - cost(plain, 1).parameters);
  };
  CHECK(added({}, GatePosition::g1) == Approx(201).margin(0.5));
  CHECK(added({}, GatePosition::g2) == Approx(25).margin(0.5));
  CHECK(added({}, GatePosition::g3) == Approx(25).margin(0.5));
  CHECK(added({}, GatePosition::g4) == Approx(201).margin(0.5));
  CHECK(added({}, GatePosition::g5) == Approx(100).margin(1));
  CHECK(added(headwise, GatePosition::g1) == Approx(1.6).margin(0.05));
  CHECK(added(headwise, GatePosition::g2) == Approx(0.2).margin(0.005));
}

TEST_CASE("cost: memory of attention maps, measured", "[cost]") {
  // Compared: the bytes that the allocator hands out beyond q, k and v while attention_reference(), which holds
  // whole maps, and attention(), which holds tiles, run without history. The first is a small multiple of the map's
  // heads·n²·4 bytes, the second grows with n.
  NoGrad guard;
  int64_t reference[2], tiled[2];
  for (int i : {0, 1}) {
    const int64_t n = 512 << i, h = 4;
    Rand rand(1);
    const Tensor q = random_tensor({1, h, n, 16}, f32, rand), k = random_tensor({1, h, n, 16}, f32, rand);
    const Tensor v = random_tensor({1, h, n, 16}, f32, rand);
    attention(q, k, v), attention_reference(q, k, v);  // once, so that caches and threads are there
    reference[i] = peak_bytes([&] { attention_reference(q, k, v); });
    tiled[i] = peak_bytes([&] { attention(q, k, v); });
    const int64_t map = 4 * cost(MultiHeadAttentionOptions{.heads = {.dim = 64, .heads = h}}, n).attention_elements;
    const int64_t output = 4 * h * n * 16;
    INFO("n " << n << ", map " << map << ", reference " << reference[i] << ", tiled " << tiled[i]);
    CHECK(reference[i] >= map);
    CHECK(reference[i] <= 5 * map);
    CHECK(tiled[i] >= output);
    CHECK(tiled[i] < map);
  }
  CHECK(static_cast<double>(reference[1]) / static_cast<double>(reference[0]) == Approx(4).margin(0.5));
  CHECK(static_cast<double>(tiled[1]) / static_cast<double>(tiled[0]) < 2.5);
}
