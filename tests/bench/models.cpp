// Whole models over bytes: a step of training, and a token of generation.
#include "bench.h"

#include "../../examples/support/mixer.h"

#include <memory>

namespace sluice::bench {

namespace {

using examples::Mixer;
using examples::MixerLm;

struct Sizes {
  int64_t batch, n, dim, layers;
  std::vector<int64_t> all() const { return {batch, n, dim, layers}; }
};

/// `gau` and `flash` stack their layer alone; `gated` is softmax attention with gate G1, then SwiGLU; `delta` has Gated
/// DeltaNet in its place, and `hybrid` in three blocks of four.
MixerLm make_model(const std::string& kind, const Sizes& z) {
  Rng rng(1);
  MultiHeadAttentionOptions gated;
  gated.heads = {.dim = z.dim, .heads = z.dim / 64, .causal = true, .use_rope = true};
  gated.gates.emplace_back();
  std::vector<Mixer> mixers;
  for (int64_t i = 0; i < z.layers; ++i) {
    if (kind == "lm_gau") mixers.emplace_back(Gau({.dim = z.dim, .causal = true}, rng));
    else if (kind == "lm_flash") mixers.emplace_back(Flash({.dim = z.dim, .causal = true}, rng));
    else if (kind == "lm_delta" || (kind == "lm_hybrid" && i % 4 != 3))
      mixers.emplace_back(GatedDeltaNet(DeltaOptions{.dim = z.dim, .heads = z.dim / 64}, rng));
    else mixers.emplace_back(MultiHeadAttention(gated, rng));
  }
  const int64_t hidden = kind != "lm_gau" && kind != "lm_flash" ? (z.dim * 8 / 3 + 7) / 8 * 8 : 0;
  MixerLm model(z.dim, std::move(mixers), hidden, 0.02, rng);
  to(model, model_dtype), to(model, device);
  return model;
}

/// One step of AdamW on the same bytes each time; the result is the loss before it.
Workload training(const std::string& kind, const Sizes& z) {
  Rng rng(2);
  const Tensor tokens = randint(0, 256, {z.batch, z.n}, rng, device),
               targets = randint(0, 256, {z.batch, z.n}, rng, device);
  auto model = std::make_shared<MixerLm>(make_model(kind, z));
  auto adam = std::make_shared<Adam>(parameters(*model), AdamOptions{.lr = 1e-3, .weight_decay = 0.1});
  Workload w;
  w.inputs = parameters(*model);
  w.inputs.push_back({"tokens", tokens});
  w.inputs.push_back({"targets", targets});
  w.run = [=] {
    adam->zero_grad();
    Tensor loss = cross_entropy((*model)(tokens), targets);
    backward(loss);
    adam->step();
    return std::vector{loss.detach()};
  };
  w.items = static_cast<double>(z.batch * z.n);
  return w;
}

/// What a cache of earlier tokens holds, between −1/2 and 1/2: too large for a file, so that peers compute it too.
Tensor filled(const Shape& shape) {
  Tensor t = empty(shape);
  float* p = t.mutable_data<float>();
  const int64_t n = t.numel();
  parallel_for(n, 1 << 16, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) p[i] = static_cast<float>((i * 7919) % 1021) / 1021.0f - 0.5f;
  });
  return to(to(t, model_dtype), device);
}

/// The token after n others, for each of the batch: logits. Its step does not end, so that the stream keeps n tokens.
Workload generation(const std::string& kind, const Sizes& z) {
  auto model = std::make_shared<MixerLm>(make_model(kind, z));
  auto stream = std::make_shared<Stream>();
  step(*model, full({z.batch, z.n}, 65, {i64, device}), *stream);
  stream->each_tensor([&](const Tensor& rows) {
    if (rows.rank() != 4 || rows.dim(2) != z.n) return;  // the state of a scan
    Shape shape = rows.shape();
    shape[2] = z.n + 1;
    Tensor earlier = narrow(rows, 2, 0, z.n);
    copy_(earlier, narrow(filled(shape), 2, 0, z.n));
  });
  const Tensor token = full({z.batch, 1}, 65, {i64, device});
  Workload w;
  w.inputs = parameters(*model);
  w.run = [=] {
    StreamStep running(*stream, 1);
    return std::vector{(*model)(token, {.stream = stream.get()})};
  };
  w.items = static_cast<double>(z.batch);
  return w;
}

}  // namespace

std::vector<Row> model_rows() {
  std::vector<Row> rows;
  auto add = [&](const char* group, auto make, const std::string& kind, const Sizes& z) {
    rows.push_back({row_name(group, kind, z.all()), [=] { return make(kind, z); }});
  };
  for (const char* kind : {"lm_gau", "lm_flash", "lm_gated"}) {  // 1, 10 and 100 million parameters
    const bool gated = std::string(kind) == "lm_gated";
    add("train", training, kind, {8, 256, 192, gated ? 2 : 4});
    add("train", training, kind, {4, 512, 512, gated ? 3 : 6});
    add("train", training, kind, {1, 512, 1024, gated ? 7 : 16});
    add("memory", training, kind, {1, 2048, 512, gated ? 3 : 6});
  }
  for (int64_t n : {256, 1024, 2048, 8192}) add("generate", generation, "lm_gated", {1, n, 512, 4});
  for (int64_t n : {256, 2048, 8192}) add("generate", generation, "lm_gated", {16, n, 256, 4});
  for (int64_t n : {256, 8192}) add("generate", generation, "lm_gau", {1, n, 512, 4});
  for (const char* kind : {"lm_delta", "lm_hybrid", "lm_gated"})
    for (int64_t n : {512, 32768}) add("decode", generation, kind, {1, n, 512, 4});
  return rows;
}

}  // namespace sluice::bench
