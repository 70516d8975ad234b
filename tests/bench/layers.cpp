// Layers, forward and backward, with gradients of x [batch, n, dim] and of every parameter. Heads are 64 wide, or as a
// fourth size says; a fifth is the number of value heads to a head. A window, and a chunk of FLASH, has 256 tokens.
#include "bench.h"

namespace sluice::bench {

namespace {

using Sizes = std::vector<int64_t>;
constexpr int64_t kHead = 64, kWindow = 256;

template <class Layer> Workload of_layer(Layer layer, const Sizes& z) {
  Rng rng(3);
  to(layer, device);
  const Tensor x = normal({z[0], z[1], z[2]}, 0, 1, rng, {f32, device}).requires_grad_();
  std::vector<NamedTensor> inputs = parameters(layer);
  inputs.push_back({"x", x});
  Workload w = differentiated(std::move(inputs), [layer, x] { return layer(x); });
  w.items = static_cast<double>(z[0] * z[1]);
  return w;
}

MultiHeadAttentionOptions heads_of(int64_t dim) {
  return {.heads = {.dim = dim, .heads = dim / kHead, .causal = true, .use_rope = true}};
}

DeltaOptions delta_of(const Sizes& z) {
  const int64_t width = z.size() > 3 ? z[3] : kHead, group = z.size() > 4 ? z[4] : 1, value_heads = z[2] / width;
  return {.dim = z[2], .heads = value_heads / group, .value_heads = value_heads, .key_dim = width};
}

Workload rule_of(const Sizes& z, bool channels) {
  const int64_t b = z[0], n = z[1], width = z[3], group = z.size() > 4 ? z[4] : 1, heads = z[2] / width;
  Rng rng(1);
  const auto rows = [&](int64_t h) { return normal({b, h, n, width}, 0, 1, rng, {f32, device}); };
  const auto unit = [&](const Tensor& t) { return (t / sqrt(sum(square(t), {-1}, keep))).detach().requires_grad_(); };
  std::vector<NamedTensor> inputs{{"q", unit(rows(heads / group))}, {"k", unit(rows(heads / group))}};
  inputs.push_back({"v", rows(heads).requires_grad_()});
  inputs.push_back({"beta", uniform({b, heads, n}, 0, 1, rng, {f32, device}).requires_grad_()});
  const Shape of_decay = channels ? Shape{b, heads, n, width} : Shape{b, heads, n};
  inputs.push_back({"g", uniform(of_decay, -1, 0, rng, {f32, device}).requires_grad_()});
  Workload w = differentiated(inputs, [=] {
    return delta_rule(inputs[0].tensor, inputs[1].tensor, inputs[2].tensor, inputs[3].tensor, inputs[4].tensor).out;
  });
  w.items = static_cast<double>(b * n);
  return w;
}

struct Kind {
  const char* name;
  Workload (*make)(const Sizes& z);
  bool op = false;  // no layer
};
const Kind kKinds[] = {
    {"linear",
     [](const Sizes& z) {
       Rng rng(1);
       return of_layer(Linear({z[2], 4 * z[2]}, rng), z);
     }},
    {"swiglu_mlp",
     [](const Sizes& z) {
       Rng rng(1);
       return of_layer(Glu({.dim = z[2]}, rng), z);
     }},
    {"mha",
     [](const Sizes& z) {
       Rng rng(1);
       return of_layer(MultiHeadAttention(heads_of(z[2]), rng), z);
     }},
    {"gated_mha",
     [](const Sizes& z) {
       Rng rng(1);
       MultiHeadAttentionOptions o = heads_of(z[2]);
       o.gates = {AttentionGateOptions{}};
       return of_layer(MultiHeadAttention(o, rng), z);
     }},
    {"gau",
     [](const Sizes& z) {
       Rng rng(1);
       return of_layer(Gau({.dim = z[2], .causal = true}, rng), z);
     }},
    {"gau_window",
     [](const Sizes& z) {
       Rng rng(1);
       return of_layer(Gau({.dim = z[2], .causal = true, .window = kWindow}, rng), z);
     }},
    {"flash",
     [](const Sizes& z) {
       Rng rng(1);
       return of_layer(Flash({.dim = z[2], .chunk = kWindow, .causal = true}, rng), z);
     }},
    {"linear_attention",
     [](const Sizes& z) {
       Rng rng(1);
       LinearAttentionOptions o{.dim = z[2], .heads = z[2] / kHead};
       o.direction = LinearDirection::causal;
       return of_layer(LinearAttention(o, rng), z);
     }},
    {"retention",
     [](const Sizes& z) {
       Rng rng(1);
       return of_layer(Retention({.dim = z[2], .heads = z[2] / kHead}, rng), z);
     }},
    {"gla",
     [](const Sizes& z) {
       Rng rng(1);
       return of_layer(Gla({.dim = z[2], .heads = z[2] / kHead}, rng), z);
     }},
    {"gated_delta_net",
     [](const Sizes& z) {
       Rng rng(1);
       return of_layer(GatedDeltaNet(delta_of(z), rng), z);
     }},
    {"kda",
     [](const Sizes& z) {
       Rng rng(1);
       return of_layer(Kda({.heads = delta_of(z), .lower_bound = -1.0}, rng),
                       z);  // a bound that peers can compute with
     }},
    {"mamba2",
     [](const Sizes& z) {
       Rng rng(1);
       return of_layer(Mamba2({.dim = z[2], .head_dim = z.size() > 3 ? z[3] : kHead}, rng), z);
     }},
    // The rule alone, with a decay of each head or, "channels", of each channel: z[2] channels of values in heads of
    // z[3].
    {"delta_rule", [](const Sizes& z) { return rule_of(z, false); }, true},
    {"delta_rule_channels", [](const Sizes& z) { return rule_of(z, true); }, true},
    {"mla",
     [](const Sizes& z) {
       Rng rng(1);
       const int64_t width = z.size() > 3 ? z[3] : kHead;
       return of_layer(Mla({.dim = z[2],
                            .heads = z[2] / width,
                            .nope_dim = width,
                            .rope_dim = width / 2,
                            .value_dim = width,
                            .kv_rank = 4 * width,
                            .rope = {.pairing = RopePairing::half}},
                           rng),
                       z);
     }},
    // attention() over each query's own block and 7 blocks of 64 keys before it, chosen once.
    {"selected_keys",
     [](const Sizes& z) {
       constexpr int64_t block = 64, most = 8;
       const int64_t b = z[0], n = z[1], width = z[3], blocks = (n + block - 1) / block;
       Rng rng(1);
       std::vector<NamedTensor> inputs;
       for (const char* name : {"q", "k", "v"})
         inputs.push_back({name, normal({b, z[2] / width, n, width}, 0, 1, rng, {f32, device}).requires_grad_()});
       const Tensor scores = uniform({b, 1, n, blocks}, 0, 1, rng), place = to(arange(blocks), f32),
                    own = unsqueeze(floor(to(arange(n), f32) / 64.0), -1), past = place <= own;
       const Tensor candidates = masked_fill(where(place == own, 2.0, scores), logical_not(past), -1.0),
                    least = narrow(sort(candidates, -1, true).values, -1, std::min(most, blocks) - 1, 1);
       const Tensor chosen = to(logical_and(candidates >= least, past), device);
       inputs.push_back({"blocks", to(chosen, i32)});
       const Tensor q = inputs[0].tensor, k = inputs[1].tensor, v = inputs[2].tensor;
       Workload w = differentiated(
           inputs, [=] { return attention(q, k, v, {.mask = {.causal = true, .blocks = chosen, .block = block}}); });
       w.items = static_cast<double>(b * n);
       return w;
     },
     true},
    // attention() itself, causal, z[2] channels in heads.
    {"attention",
     [](const Sizes& z) {
       Rng rng(1);
       std::vector<NamedTensor> inputs;
       for (const char* name : {"q", "k", "v"})
         inputs.push_back({name, normal({z[0], z[2] / kHead, z[1], kHead}, 0, 1, rng, {f32, device}).requires_grad_()});
       const Tensor q = inputs[0].tensor, k = inputs[1].tensor, v = inputs[2].tensor;
       Workload w = differentiated(inputs, [=] { return attention(q, k, v, {.mask = {.causal = true}}); });
       w.items = static_cast<double>(z[0] * z[1]);
       return w;
     },
     true},
};

Row row_of(const char* group, const std::string& kind, const Sizes& z) {
  for (const Kind& k : kKinds)
    if (kind == k.name) return {row_name(group, kind, z), [k, z] { return k.make(z); }};
  fail<ValueError>("bench: no layer is called ", kind);
}

}  // namespace

std::vector<Row> layer_rows() {
  std::vector<Row> rows;
  for (const Kind& k : kKinds)
    for (const Sizes& z : {Sizes{16, 128, 256}, Sizes{4, 1024, 512}, Sizes{1, 8192, 768}})
      if (!k.op) rows.push_back(row_of("layer", k.name, z));
  for (const char* kind : {"gated_delta_net", "kda", "mamba2", "mla", "selected_keys"})
    rows.push_back(row_of("hybrid", kind, {2, 2048, 1024, 128}));
  rows.push_back(row_of("hybrid", "selected_keys", {1, 16384, 1024, 128}));
  for (const char* kind : {"delta_rule", "delta_rule_channels"})
    rows.push_back(row_of("hybrid", kind, {2, 2048, 1024, 128}));
  for (const char* kind : {"gated_delta_net", "kda", "delta_rule", "delta_rule_channels"})
    rows.push_back(row_of("hybrid", kind, {4, 1024, 1024, 128, 2}));
  for (const char* kind : {"flash", "gau", "mha"})  // time against length
    for (int64_t n : {1024, 2048, 4096, 8192, 65536})
      if (n <= 8192 || std::string(kind) == "flash") rows.push_back(row_of("length", kind, {1, n, 256}));
  for (const char* kind : {"gau", "flash", "mha", "gated_mha"}) rows.push_back(row_of("memory", kind, {1, 2048, 512}));
  for (const char* kind : {"gau", "mha"}) rows.push_back(row_of("memory", kind, {1, 8192, 512}));
  rows.push_back(row_of("memory", "attention", {1, 32768, 256}));
  return rows;
}

}  // namespace sluice::bench
