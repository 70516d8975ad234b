// A language model as they are built today: grouped-query attention with RoPE and a gate, SwiGLU, RMS norms; trained on
// bytes, generating with a KV cache.
//
//   09_language_model [FILE [STEPS]]      any text, also gzip-compressed; without: sentences of a small grammar
#include <sluice/sluice.h>

#include <algorithm>
#include <cstdio>
#include <string>

using namespace sluice;

struct LanguageModel {
  using Block = TransformerBlock<MultiHeadAttention, Glu>;
  Embedding embed;
  std::vector<Block> blocks;
  Norm norm;
  Linear head;

  LanguageModel(int64_t dim, int64_t depth, Rng& rng)
      : embed({256, dim, 0.3}, rng), norm({dim, NormKind::rms}), head({dim, 256, /*bias=*/false}, rng) {
    const HeadsOptions heads{.dim = dim, .heads = 4, .kv_heads = 2, .causal = true, .use_rope = true};
    for (int64_t i = 0; i < depth; ++i)
      blocks.push_back({MultiHeadAttention({.heads = heads, .gates = {AttentionGateOptions{}}}, rng),
                        Glu({.dim = dim}, rng),
                        {.norm = NormKind::rms}});
  }
  /// tokens [batch, n] → logits [batch, n, 256]. What is handed on makes it a stream, when generate() calls it.
  Tensor operator()(const Tensor& tokens, const Pass& pass = {}) const {
    Tensor x = embed(tokens);
    for (const Block& block : blocks) x = block(x, pass);
    return head(norm(x));
  }
  SLUICE_PARTS(embed, blocks, norm, head);
};

/// "the old lock keeper opens a gate at dawn. …"
std::string sentences(int64_t count, Rng& rng) {
  const std::vector<std::vector<const char*>> places = {{"the ", "a ", "every "},
                                                        {"", "", "old ", "young ", "tired "},
                                                        {"lock keeper ", "miller ", "boatman ", "ferrywoman "},
                                                        {"opens ", "closes ", "paints ", "watches "},
                                                        {"the ", "a "},
                                                        {"sluice", "gate", "bridge", "weir"},
                                                        {"", " at dawn", " at dusk", " in the rain"},
                                                        {". "}};
  std::string text;
  for (int64_t i = 0; i < count; ++i)
    for (const auto& words : places)
      text += words[std::size_t(randint(0, int64_t(words.size()), {}, rng).item<int64_t>())];
  return text;
}

int main(int argc, char** argv) try {
  const bool smoke = argc > 1 && std::string(argv[1]) == "--smoke", given = argc > 1 && !smoke;
  Rng rng(1);
  if (argc > 2 && std::atoll(argv[2]) < 1) throw ValueError("usage: 09_language_model [FILE [STEPS]], STEPS from 1 on");
  const std::string text = given ? read_text(argv[1]) : sentences(600, rng);
  const int64_t steps = argc > 2 ? std::atoll(argv[2]) : smoke ? 4 : 300;

  const TextWindows windows(byte_tokens(text), 64, /*stride=*/8);
  Loader loader({.rows = windows.size(), .batch = 16, .seed = 1}, windows);
  const LanguageModel model(64, 2, rng);
  Adam adam(parameters(model), {.lr = 3e-3, .weight_decay = 0.05});
  const Schedule rate = cosine_schedule({.lr = 3e-3, .warmup = steps / 20, .total = steps});
  std::printf("%lld parameters, %zu bytes of text\n", (long long)count(model), text.size());
  Progress progress({.steps = steps});
  for (int64_t step = 1; step <= steps; ++step) {
    const auto [inputs, targets] = loader.next();
    adam.zero_grad();
    const Tensor loss = cross_entropy(model(inputs), targets);
    backward(loss);
    clip_grad_norm(adam.parameters(), 1);
    adam.set_lr(rate(adam.steps()));
    adam.step();
    progress.update(step, {{"bits per byte", loss.item() / 0.6931}});
  }
  progress.finish();

  // Three sequences at once, each until its full stop.
  const Tensor prompt = expand(to(byte_tokens("every "), i64), {3, 6});
  const Tensor written = generate(model, prompt, {.tokens = 70, .temperature = 0.8, .top_p = 0.95, .stop = '.'}, rng);
  for (int64_t i = 0; i < 3; ++i) {
    std::string line;
    for (const int64_t byte : select(written, 0, i).to_vector<int64_t>()) line += char(byte);
    std::printf("%s\n", line.substr(0, std::min(line.find('.'), line.size()) + 1).c_str());
  }
} catch (const std::exception& e) {
  std::fprintf(stderr, "error: %s\n", e.what());
  return 1;
}

// Expected output:
// 133440 parameters, 24161 bytes of text
// every lock keeper closes the weir at dusk.
// every young lock keeper watches a bridge at dawn.
// every tired lock keeper paints a gate.
