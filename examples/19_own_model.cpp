// A model of your own: an embedding, three kinds of attention, a head. It has no line about padding, streams or ranks
// and can do all three: layers know what crosses tokens, and the model hands on the Pass that says where these stand.
//
//   19_own_model [--smoke]                   mpirun -n 3 19_own_model: the same, with one text cut over three ranks
#include "support/ranks.h"

#include <sluice/parallel/mpi/world.h>

#include <algorithm>
#include <string>

using namespace sluice;

struct OwnModel {
  static constexpr int64_t dim = 48;
  Embedding embed;
  Gau gau;  // norm and residual are its own
  Norm gla_norm, norm;
  Gla gla;
  MultiHeadAttention nearby;
  Linear head;

  explicit OwnModel(Rng& rng)
      : embed({256, dim, 0.3}, rng), gau({.dim = dim, .key_dim = 16, .causal = true}, rng), gla_norm({dim}),
        norm({dim}), gla({.dim = dim, .heads = 4}, rng),
        nearby({.heads = {.dim = dim, .heads = 4, .causal = true, .use_rope = true, .residual = true},
                .window = 12,
                .norm = NormKind::layer},
               rng),
        head({dim, 256}, rng) {}
  /// tokens [batch, n] → logits [batch, n, 256].
  Tensor operator()(const Tensor& tokens, const Pass& pass = {}) const {
    Tensor x = gau(embed(tokens), pass);
    x = x + gla(gla_norm(x), pass);
    return head(norm(nearby(x, pass)));
  }
  SLUICE_PARTS(embed, gau, gla_norm, gla, nearby, norm, head);
};

int run(const Communicator& ranks, int64_t steps) {
  examples::only_first_prints(ranks);
  std::string text;
  for (int i = 0; i < 40; ++i) text += "the sluice opens at dawn, the sluice closes at dusk. ";
  const TextWindows windows(byte_tokens(text), /*length=*/48, /*stride=*/5);
  Loader loader({.rows = windows.size(), .batch = 8, .seed = 1}, windows);
  Rng rng(1);
  const OwnModel model(rng);
  Adam adam(parameters(model), {.lr = 3e-3});
  for (int64_t i = 0; i < steps; ++i) {
    const auto [inputs, targets] = loader.next();
    adam.zero_grad();
    backward(cross_entropy(model(inputs), targets));
    adam.step();
  }

  NoGrad guard;
  const Tensor tokens = narrow(loader.next().inputs, 0, 0, 3), whole = model(tokens);
  const int64_t n = tokens.dim(1);
  double worst = 0;
  const auto compare = [&](const char* how, const Tensor& y, const Tensor& wanted) {
    const double difference = max(abs(y - wanted)).item() / max(abs(wanted)).item();
    std::printf("%s: differs by %.0e of the largest logit\n", how, difference);
    worst = std::max(worst, difference);
  };

  // Three texts of different lengths, filled up in front: rows are as if each text were alone.
  const std::vector<int64_t> begins{0, 7, 30};
  const Tensor real = arange(n) >= Tensor::from(begins, {3, 1});
  const Tensor padded = model(tokens * to(real, i64), {.key_mask = real});
  std::vector<Tensor> rows, alone, pieces;
  for (int64_t b = 0; b < 3; ++b) {
    const auto text_of = [&](const Tensor& t) { return slice(narrow(t, 0, b, 1), 1, begins[std::size_t(b)], n); };
    rows.push_back(text_of(padded)), alone.push_back(model(text_of(tokens)));
  }
  compare("padded, beside alone", cat(rows, 1), cat(alone, 1));
  Stream stream;  // one token, then seven, then all others
  for (const Tensor& piece : split(tokens, {1, 7, n - 8}, 1)) pieces.push_back(step(model, piece, stream));
  compare("streamed, beside whole", cat(pieces, 1), whole);
  {  // Each rank has its piece of the texts, and gives its piece of the logits.
    SequenceScope scope(ranks);
    compare("cut over ranks, beside whole", sequence_rows(model(rows_of(tokens, ranks, 1)), 1, {0, n}), whole);
  }
  const Tensor prompt = unsqueeze(to(byte_tokens("the sluice opens"), i64), 0);
  std::string written;
  for (const int64_t byte : generate(model, prompt, {.tokens = 36, .temperature = 0}, rng).to_vector<int64_t>())
    written += char(byte);
  std::printf("%lld parameters, %lld steps: %s\n", (long long)count(model), (long long)steps, written.c_str());
  return worst < 1e-4 ? 0 : 1;
}

int main(int argc, char**) {
  return run_world([&](const Communicator& ranks) { return run(ranks, argc > 1 ? 5 : 150); });
}

// Expected output:
// padded, beside alone: differs by … of the largest logit
// streamed, beside whole: differs by … of the largest logit
// cut over ranks, beside whole: differs by … of the largest logit
// … parameters, 150 steps: the sluice opens at dawn, the sluice closes at dusk.
