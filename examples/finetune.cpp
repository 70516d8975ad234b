// A published model, trained further on a text: all weights, or a low-rank update of each map (LoRA, Hu et al. 2021).
//
//   finetune --model Qwen3-0.6B --text notes.txt --out tuned              all weights; then: chat --model tuned
//   finetune --model Qwen3-0.6B --text notes.txt --out tuned --rank 16    w + down·up with down [in, 16], up [16, out]
//   finetune --model Qwen3-0.6B --random 10000 --steps 4                  times alone: random tokens
//
// layers/models/README.md lists the families. The last tenth of the text is held out; its bits per token before and
// after the training are printed, with tokens a second and memory. What is written, load_model_files() and transformers
// read. Ctrl-C ends the training early.
#include "support/corpus.h"
#include "support/interrupt.h"
#include "support/options.h"

#include <sluice/layers/train/progress.h>
#include <sluice/sluice.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

using namespace sluice;
using namespace sluice::examples;

namespace {

struct Settings {
  std::string model, text, out, dtype = "f32", device = "cpu";
  int64_t context = 512, batch = 1, steps = 0, epochs = 1, rank = 0, random = 0, seed = 1;
  double lr = 0;
  bool recompute = false, smoke = false;

  static void describe(auto& o, auto& f) {
    f("model", o.model, "folder of the model");
    f("text", o.text, "file to learn from");
    f("out", o.out, "folder for the trained model; none: it is not written");
    f("context", o.context, at_least(1), "tokens that the model sees");
    f("batch", o.batch, at_least(1), "windows per step");
    f("steps", o.steps, at_least(0), "steps of training; 0: by epochs");
    f("epochs", o.epochs, at_least(1), "times that the text is read");
    f("rank", o.rank, at_least(0), "of the updates of maps; 0: all weights are trained");
    f("lr", o.lr, at_least(0), "highest learning rate; 0: 1e-5, of low-rank updates 2e-4");
    f("random", o.random, at_least(0), "a text of so many random tokens; needs no tokenizer");
    f("recompute", o.recompute, "less memory, a third more time: run each block again for its gradients");
    f("dtype", o.dtype, "f32 or bf16, whose masters are f32");
    f("device", o.device, "cpu, or cuda where there is a GPU");
    f("seed", o.seed, at_least(0), "of the order of windows, and of the updates");
    f("smoke", o.smoke, "short windows of a built-in text; the model is a tiny random one, if none is named");
  }
};

/// The model, and what of it is trained.
class Tuned {
 public:
  Tuned(Decoder model, int64_t rank, Rng& rng) : model_(std::move(model)) {
    if (rank == 0) return;
    freeze(model_, [](const NamedTensor& p) {
      return !p.name.starts_with("blocks.") || !p.name.ends_with("weight") || p.tensor.rank() != 2;
    });
    for (const NamedTensor& p : parameters(model_)) {
      frozen_.push_back(p.tensor.detach());
      const auto train = [&](const char* part, const Tensor& x) {
        const Tensor made = to(to(x, p.tensor.dtype()), p.tensor.device()).requires_grad_();
        return updates_.emplace_back(p.name + part, made), made;
      };
      down_.push_back(train(".down", normal({p.tensor.dim(0), rank}, 0, 0.02, rng)));
      up_.push_back(train(".up", zeros({rank, p.tensor.dim(1)})));  // so the update begins as 0
    }
  }

  std::vector<NamedTensor> trained() const { return updates_.empty() ? parameters(model_) : updates_; }
  /// The model with its present updates.
  Decoder now() const {
    if (updates_.empty()) return model_;
    std::vector<Tensor> values;
    for (std::size_t i = 0; i < frozen_.size(); ++i) values.push_back(frozen_[i] + matmul(down_[i], up_[i]));
    return with_parameters(model_, values);
  }

 private:
  Decoder model_;
  std::vector<Tensor> frozen_, down_, up_;  // of each map
  std::vector<NamedTensor> updates_;        // down_ and up_
};

constexpr int64_t kPiece = 512;  // tokens whose logits are in memory at once, with Decoder::recompute

/// Mean loss of the next tokens.
Tensor loss_of(const Decoder& model, const TextBatch& batch) {
  const Device device = model.embedding.weight.device();
  const Tensor h = model.hidden(to(batch.inputs, device)), targets = to(batch.targets, device);
  if (!model.recompute) return cross_entropy(to(model.logits(h), f32), targets);
  std::vector<Tensor> losses;
  for (int64_t from = 0, n = targets.dim(1); from < n; from += kPiece) {
    const int64_t count = std::min(kPiece, n - from);
    const auto loss = [model, labels = narrow(targets, 1, from, count),
                       share = double(count) / double(n)](const std::vector<Tensor>& in) {
      return share * cross_entropy(to(model.logits(in[0]), f32), labels);
    };
    losses.push_back(checkpoint(loss, {narrow(h, 1, from, count)}));
  }
  return sum(stack(losses));
}

/// Bits per token, of at most 64 windows that are spread over the text.
double bits_of(const Decoder& model, const TextWindows& text) {
  NoGrad guard;
  const int64_t count = std::min<int64_t>(text.size(), 64);
  double sum = 0;
  for (int64_t i = 0; i < count; ++i)
    sum += loss_of(model, text(Tensor::from(std::vector<int64_t>{i * text.size() / count}))).item();
  return sum / static_cast<double>(count) / std::log(2.0);
}

int run(int argc, char** argv) {
  Settings s;
  parse_flags("finetune", "a published model, trained further on a text", options_of(s), argc, argv);
  if (s.smoke) s.context = 16, s.batch = 4, s.lr = 1e-2;
  if (s.smoke && s.model.empty()) s.model = SLUICE_EXAMPLE_DATA "/chat";
  if (s.model.empty()) throw std::runtime_error("finetune: --model FOLDER is needed; see --help");
  if (s.text.empty() && s.random == 0 && !s.smoke)
    throw std::runtime_error("finetune: --text FILE is needed (or --random N); see --help");
  Rng rng(static_cast<uint64_t>(s.seed));
  Decoder loaded = load_model_files(s.model, {.dtype = from_name<DType>(s.dtype), .map = false});
  loaded.recompute = s.recompute;
  if (const Device device = device_named(s.device); device != cpu) to(loaded, device);

  Tensor tokens;
  if (s.random > 0) tokens = randint(0, loaded.options.vocabulary, {s.random}, rng);
  else tokens = Tensor::from(Tokenizer::from_file(s.model + "/tokenizer.json").encode(learning_text(s.text)));
  const int64_t held_out = tokens.numel() / 10;
  if (held_out <= s.context)
    throw std::runtime_error(str("finetune: the held-out tenth must be longer than the context — got ", tokens.numel(),
                                 " tokens, context ", s.context));
  const TextWindows text(narrow(tokens, 0, 0, tokens.numel() - held_out), s.context),
      valid(narrow(tokens, 0, tokens.numel() - held_out, held_out), s.context);

  // The untrained model first, so that a folder that cannot be written is an error now.
  if (!s.out.empty()) save_model_files(loaded, s.out, s.model);

  const Tuned tuned(std::move(loaded), s.rank, rng);
  Loader loader({.rows = text.size(), .batch = std::min(s.batch, text.size()), .seed = s.seed}, text);
  const int64_t steps = s.steps > 0 ? s.steps : s.epochs * loader.batches();
  const double lr = s.lr > 0 ? s.lr : s.rank > 0 ? 2e-4 : 1e-5;
  const Schedule schedule = cosine_schedule({.lr = lr, .warmup = steps / 20, .total = steps});
  Adam adam(tuned.trained(), {.lr = lr, .beta2 = 0.95});
  int64_t numbers = 0, seen = 0;
  for (const NamedTensor& p : adam.parameters()) numbers += p.tensor.numel();
  const double before = bits_of(tuned.now(), valid);
  std::printf("%lld tokens; %lld steps train %lld numbers\n", static_cast<long long>(tokens.numel()),
              static_cast<long long>(steps), static_cast<long long>(numbers));
  const auto start = std::chrono::steady_clock::now();
  Progress progress({.steps = steps, .device = device_named(s.device)});
  catch_interrupts();
  for (int64_t step = 0; step < steps && !interrupted(); ++step) {
    const TextBatch batch = loader.next();
    adam.set_lr(schedule(step));
    adam.zero_grad();
    const Tensor loss = loss_of(tuned.now(), batch);
    backward(loss);
    clip_grad_norm(adam.parameters(), 1);
    adam.step();
    seen += batch.targets.numel();
    progress.update(step + 1, {{"bits/token", loss.item() / std::log(2.0)}});
  }
  progress.finish();
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const Decoder model = tuned.now();
  std::printf("held out: %.3f bits/token before, %.3f after; %.1f tokens/s\n", before, bits_of(model, valid),
              static_cast<double>(seen) / seconds);
  if (!s.out.empty()) save_model_files(model, s.out, s.model);
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return run_program(run, argc, argv); }
