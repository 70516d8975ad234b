// A GAU learns to copy: after "abcd…|" it has to repeat what came before the bar. Position by position the
// answer lies n/2 tokens back, which only attention can fetch.
#include <sluice/sluice.h>

#include <cstdio>
#include <cstring>

using namespace sluice;

struct CopyModel {
  Embedding embed;
  std::vector<Gau> blocks;
  Linear head;
  CopyModel(int64_t symbols, Rng& rng) : embed({symbols + 1, 64, 0.3}, rng), head({64, symbols + 1}, rng) {
    for (int i = 0; i < 2; ++i) blocks.emplace_back(GauOptions{.dim = 64, .key_dim = 32, .causal = true}, rng);
  }
  Tensor operator()(const Tensor& tokens, const Pass& pass = {}) const {
    Tensor x = embed(tokens);
    for (const Gau& block : blocks) x = block(x, pass);
    return head(x);
  }
  SLUICE_PARTS(embed, blocks, head);
};

int main(int argc, char** argv) {
  const bool smoke = argc > 1 && !std::strcmp(argv[1], "--smoke");
  const int64_t symbols = 16, length = smoke ? 6 : 24, batch = smoke ? 4 : 32, steps = smoke ? 5 : 400;
  Rng rng(5);
  CopyModel model(symbols, rng);
  std::printf("%s\n", summary(model).c_str());
  Adam adam(parameters(model), {.lr = 3e-3});

  for (int64_t step = 0; step <= steps; ++step) {
    Tensor word = randint(0, symbols, {batch, length}, rng), bar = full({batch, 1}, symbols, {i64});
    Tensor text = cat({word, bar, word}, 1);  // [batch, 2·length + 1]
    Tensor logits = model(narrow(text, 1, 0, 2 * length));
    // Only the second half can be predicted: from the bar on, the next symbol of the word.
    Tensor answer = narrow(logits, 1, length, length);
    adam.zero_grad();
    Tensor loss = cross_entropy(answer, word);
    backward(loss);
    clip_grad_norm(adam.parameters(), 1.0);
    adam.step();
    if (step % std::max<int64_t>(1, steps / 5) == 0) {
      Tensor right = to(eq(argmax(answer, -1), word), f32);
      std::printf("step %4lld  loss %.4f  copied %.1f %%\n", (long long)step, loss.item(), 100 * mean(right).item());
    }
  }
}

// Expected output:
// path             type           values  tensors
// (model)          module          56657
// embed            Embedding        1088  weight[17,64]
// blocks.0         Gau             27232  gamma[2,32], beta[2,32]
// blocks.0.norm    Norm              128  weight[64], bias[64]
// blocks.0.in      Linear          18720  weight[64,288], bias[288]
// blocks.0.out     Linear           8256  weight[128,64], bias[64]
// blocks.0.q_norm  Norm                0
// blocks.0.k_norm  Norm                0
// blocks.1         Gau             27232  gamma[2,32], beta[2,32]
// blocks.1.norm    Norm              128  weight[64], bias[64]
// blocks.1.in      Linear          18720  weight[64,288], bias[288]
// blocks.1.out     Linear           8256  weight[128,64], bias[64]
// blocks.1.q_norm  Norm                0
// blocks.1.k_norm  Norm                0
// head             Linear           1105  weight[64,17], bias[17]
//
// step    0  loss 2.8781  copied 7.0 %
// step   80  loss 2.4290  copied 23.6 %
// step  160  loss 0.3182  copied 88.5 %
// step  240  loss 0.0032  copied 100.0 %
// step  320  loss 0.0002  copied 100.0 %
// step  400  loss 0.0001  copied 100.0 %
