// Text from a published model: a folder with config.json, tokenizer.json and safetensors, as Hugging Face has them.
//
//   chat --model Qwen3-0.6B --prompt "Why is the sky blue?"      one answer
//   chat --model Qwen3-0.6B                                      a conversation, a line each
//   chat --model Qwen3-0.6B --random 512 --tokens 64 --plain     times alone: a prompt of random tokens
//
// layers/models/README.md lists the families. A tokenizer that has the tokens of a conversation gets the turns of
// kTurns, unless --plain. --sequences writes several answers at once. Printed at the end:
// tokens a second of the prompt and of the answer, the share of a product's speed that the prompt reached, and memory.
#include "support/options.h"

#include <sluice/layers/models/model_config.h>
#include <sluice/sluice.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>

using namespace sluice;
using namespace sluice::examples;

namespace {

struct Settings {
  std::string model, prompt, dtype, device = "cpu";
  int64_t tokens = 256, sequences = 1, random = 0, top_k = 0, seed = 1;
  double temperature = 0.7, top_p = 0.95;
  bool plain = false, long_texts = false, smoke = false;

  static void describe(auto& o, auto& f) {
    f("model", o.model, "folder of the model");
    f("prompt", o.prompt, "what is said; none: a conversation");
    f("tokens", o.tokens, at_least(1), "at most so many new ones of an answer");
    f("sequences", o.sequences, at_least(1), "answers at once");
    f("random", o.random, at_least(0), "a prompt of so many random tokens; needs no tokenizer");
    f("temperature", o.temperature, at_least(0), "0: the likeliest token");
    f("top_k", o.top_k, at_least(0), "of the k likeliest only; 0: all");
    f("top_p", o.top_p, between(0, 1), "of the likeliest with this probability together");
    f("dtype", o.dtype, "bf16, f32 or f64; default: as in the files");
    f("device", o.device, "cpu, or cuda where there is a GPU");
    f("plain", o.plain, "the prompt alone, without turns of a conversation");
    f("long", o.long_texts, "texts longer than a model with two RoPEs was first trained on (Phi-3.5, Phi-4-mini)");
    f("seed", o.seed, at_least(0), "of the draws");
    f("smoke", o.smoke, "a tiny random model, which comes with the examples, says three tokens");
  }
};

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// Megabytes that the system counts for this process at most; 0 where it does not say.
double resident_peak() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("VmHWM:")) return std::stod(line.substr(6)) / 1024;
  return 0;
}

/// Tokens that end an answer: config.json and generation_config.json name one or several.
std::vector<int64_t> stops(const std::string& folder) {
  std::vector<int64_t> out;
  for (const char* file : {"/generation_config.json", "/config.json"}) {
    const std::string path = folder + file;
    if (!std::filesystem::exists(path)) continue;
    const auto bad = [&](const auto&... why) { fail<IOError>("chat: '", path, "': ", why...); };
    Json config;
    try {
      config = parse_python_json(read_file(path, "chat"));
    } catch (const ValueError& e) { bad(e.what()); }
    const Json *eos = config.find("eos_token_id"), *text = config.find("text_config");
    if (!eos && text) eos = text->find("eos_token_id");
    if (!eos || eos->is_null()) continue;
    const auto* const several = eos->as<Json::List>();
    for (const Json& j : several ? *several : Json::List{*eos}) {
      if (!j.as<int64_t>()) bad("eos_token_id must be a whole number, or a list of them — got ", to_text(*eos));
      out.push_back(j.get<int64_t>());
    }
  }
  return out;
}

/// How a family of models writes a conversation.
struct Turns {
  const char* mark;    // a token that only tokenizers of this family have
  const char* user;    // before what the user says
  const char* answer;  // behind it, and before the model's answer
  const char* end;     // behind an answer
};
constexpr Turns kTurns[] = {
    {"<|im_start|>", "<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n", "<|im_end|>\n"},  // ChatML
    {"<|start_header_id|>", "<|start_header_id|>user<|end_header_id|>\n\n",                         // Llama 3
     "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n", "<|eot_id|>"},
    {"<start_of_turn>", "<start_of_turn>user\n", "<end_of_turn>\n<start_of_turn>model\n", "<end_of_turn>\n"},  // Gemma
    {"<|start_of_role|>", "<|start_of_role|>user<|end_of_role|>",  // Granite
     "<|end_of_text|>\n<|start_of_role|>assistant<|end_of_role|>", "<|end_of_text|>\n"},
    {"<｜User｜>", "<｜User｜>", "<｜Assistant｜>", "<｜end▁of▁sentence｜>"},             // DeepSeek
    {"<|message|>", "<|start|>user<|message|>", "<|end|><|start|>assistant", "<|end|>"},  // gpt-oss
    {"[INST]", "[INST]", "[/INST]", "</s>"},                                              // Mistral
};

/// The user's turn and the beginning of the model's. Where a conversation goes on, the end of the model's last turn
/// stands before it: the token that ended it was not read.
std::vector<int64_t> turn(const Tokenizer& words, const std::string& said, bool first, bool plain) {
  const auto* const known =
      std::ranges::find_if(kTurns, [&](const Turns& t) { return !plain && words.id_of(t.mark).has_value(); });
  if (known == std::end(kTurns)) return words.encode(said, {.special = first});
  std::vector<int64_t> ids = words.encode(str(first ? "" : known->end, known->user), {.special = first});
  for (const auto& more : {words.encode(said, {.special = false, .special_in_text = false}),  // it ends no turn
                           words.encode(known->answer, {.special = false})})
    ids.insert(ids.end(), more.begin(), more.end());
  return ids;
}

// A long prompt is read in pieces of so many tokens, so that what lies between the layers stays small.
constexpr int64_t kPiece = 256;

struct Speed {
  double prompt_seconds = 0, answer_seconds = 0;
  int64_t prompt = 0, answer = 0;  // tokens, of all sequences
};

/// Answers `prompt` [1, n], which continues the stream; prints the first sequence's answer as it comes. Returns the
/// tokens of each sequence.
std::vector<std::vector<int64_t>> answer(const Decoder& model, const Tensor& prompt, Stream& stream, const Settings& s,
                                         const std::vector<int64_t>& stop, TokenStream* out, Rng& rng, Speed& speed) {
  const auto hidden = [&](const Tensor& x, const Pass& pass) { return model.hidden(x, pass); };
  const auto logits_after = [&](const Tensor& tokens) {  // of the last row only
    Tensor h;
    for (int64_t from = 0, n = tokens.dim(1); from < n; from += kPiece) {
      const Tensor piece = narrow(tokens, 1, from, std::min(kPiece, n - from));
      h = step(hidden, to(piece, model.embedding.weight.device()), stream);
    }
    return model.logits(select(h, 1, h.dim(1) - 1));
  };
  stream.reserve(stream.length() + prompt.dim(1) + std::min<int64_t>(s.tokens, 1024));  // an answer may end early
  NoGrad guard;
  std::vector<std::vector<int64_t>> said(static_cast<std::size_t>(s.sequences));
  std::vector<bool> over(said.size());
  auto start = std::chrono::steady_clock::now();
  const bool first = stream.length() == 0;  // then all sequences begin with the same tokens, which are read once
  Tensor logits = logits_after(first ? prompt : contiguous(expand(prompt, {s.sequences, prompt.dim(1)})));
  if (first && s.sequences > 1) {
    stream = of_sequences(stream, zeros({s.sequences}, {i64}));
    logits = contiguous(expand(logits, {s.sequences, logits.dim(1)}));
  }
  to(logits, cpu);
  speed.prompt_seconds += seconds_since(start), speed.prompt += (first ? 1 : s.sequences) * prompt.dim(1);
  start = std::chrono::steady_clock::now();
  for (int64_t i = 0; i < s.tokens; ++i) {
    const Tensor next = sample_tokens(logits, {.temperature = s.temperature, .top_k = s.top_k, .top_p = s.top_p}, rng);
    const std::vector<int64_t> ids = next.to_vector<int64_t>();
    bool all_over = true;
    for (std::size_t b = 0; b < said.size(); ++b) {
      over[b] = over[b] || std::find(stop.begin(), stop.end(), ids[b]) != stop.end();
      if (!over[b]) said[b].push_back(ids[b]);
      all_over = all_over && over[b];
    }
    if (out && !over[0]) std::cout << out->push(ids[0]) << std::flush;
    speed.answer += s.sequences;
    if (all_over || i + 1 == s.tokens) break;
    logits = logits_after(unsqueeze(next, 1));
  }
  if (out) std::cout << out->finish() << '\n';
  speed.answer_seconds += seconds_since(start);
  return said;
}

/// GFLOP/s of a product of the model's dtype on this machine, for comparison.
double product_speed(const Decoder& model) {
  Rng rng(1);
  const int64_t n = 512, d = model.options.dim, m = 4 * d;
  const TensorOptions like{model.embedding.weight.dtype(), model.embedding.weight.device()};
  const Tensor a = to(to(normal({n, d}, 0, 1, rng), like.dtype), like.device),
               b = to(to(normal({d, m}, 0, 1, rng), like.dtype), like.device);
  double best = 0;
  for (int i = 0; i < 8; ++i) {
    const auto start = std::chrono::steady_clock::now();
    to(matmul(a, b), cpu);
    best = std::max(best, 2e-9 * static_cast<double>(n * d * m) / seconds_since(start));
  }
  return best;
}

int run(int argc, char** argv) {
  Settings s;
  parse_flags("chat", "text from a published model", options_of(s), argc, argv);
  if (s.smoke) s.model = SLUICE_EXAMPLE_DATA "/chat", s.prompt = "the gate", s.tokens = 3, s.sequences = 2;
  if (s.model.empty()) throw std::runtime_error("chat: --model FOLDER is needed; see --help");
  if (s.sequences > 1 && s.prompt.empty() && s.random == 0)
    throw std::runtime_error("chat: --sequences above 1 needs --prompt: a conversation goes on from one answer");
  ModelFilesOptions files{.long_texts = s.long_texts};
  if (!s.dtype.empty()) files.dtype = from_name<DType>(s.dtype);
  auto start = std::chrono::steady_clock::now();
  Decoder model = load_model_files(s.model, files);
  if (const Device device = device_named(s.device); device != cpu) to(model, device);
  const double loaded = seconds_since(start);

  std::optional<Tokenizer> words;
  if (s.random == 0) words = Tokenizer::from_file(s.model + "/tokenizer.json");
  std::vector<int64_t> stop = stops(s.model);
  for (const char* end : {"<|im_end|>", "<|eot_id|>"})  // of turn(), whatever the configuration says
    if (const auto id = words && !s.plain ? words->id_of(end) : std::nullopt) stop.push_back(*id);
  std::vector<int64_t> unread;  // the last token of an answer that --tokens cut
  Rng rng(static_cast<uint64_t>(s.seed));
  Stream stream;
  Speed speed;
  std::string line = s.prompt;
  do {
    if (words && s.prompt.empty() && (std::cout << "> " << std::flush, !std::getline(std::cin, line))) break;
    Tensor prompt;
    std::optional<TokenStream> out;
    if (words) {
      out.emplace(*words, DecodeOptions{.skip_special = true});
      const bool first = stream.length() == 0;
      std::vector<int64_t> ids = turn(*words, line, first, s.plain);
      ids.insert(ids.begin(), unread.begin(), unread.end());
      prompt = unsqueeze(Tensor::from(ids), 0);
    } else {
      prompt = randint(0, model.options.vocabulary, {1, s.random}, rng);
    }
    if (prompt.dim(1) == 0) continue;
    const auto said =
        answer(model, prompt, stream, s, words ? stop : std::vector<int64_t>{}, out ? &*out : nullptr, rng, speed);
    unread.clear();
    if (std::ssize(said[0]) == s.tokens) unread.push_back(said[0].back());
    for (std::size_t b = 1; words && b < said.size(); ++b)
      std::cout << "\n-- " << b + 1 << " --\n" << words->decode(said[b], {.skip_special = true}) << '\n';
  } while (words && s.prompt.empty());

  const double resident = resident_peak();
  int64_t weights = 0, products = 0;
  for (const NamedTensor& p : parameters(model)) {
    weights += p.tensor.numel() * size_of(p.tensor.dtype());
    if (p.tensor.rank() == 2 && !p.name.starts_with("embedding") && !p.name.starts_with("head"))
      products += p.tensor.numel();
  }
  const auto rate = [](int64_t tokens, double time) { return time > 0 ? static_cast<double>(tokens) / time : 0; };
  const double prompt_rate = rate(speed.prompt, speed.prompt_seconds);
  std::printf("\nloaded in %.2f s; prompt %lld tokens, %.1f tokens/s; answer %lld tokens, %.1f tokens/s\n", loaded,
              static_cast<long long>(speed.prompt), prompt_rate, static_cast<long long>(speed.answer),
              rate(speed.answer, speed.answer_seconds));
  std::printf("the prompt's products of dense weights: %.0f GFLOP/s; one product alone %.0f\n",
              2e-9 * static_cast<double>(products) * prompt_rate, product_speed(model));
  std::printf("weights %.0f MB, stream %.1f MB, resident at most %.0f MB\n", static_cast<double>(weights) / 1e6,
              static_cast<double>(stream.bytes()) / 1e6, resident * 1.048576);
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return run_program(run, argc, argv); }
