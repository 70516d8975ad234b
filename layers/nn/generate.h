// Generation of tokens by a stream: each token is drawn from the logits of the token before it.
//
//   Tensor text = generate(model, prompt, {.tokens = 200, .temperature = 0.8, .top_p = 0.95}, rng); // [batch, n + 200]
#pragma once

#include <sluice/core/text/options.h>
#include <sluice/core/number/random.h>
#include <sluice/layers/nn/pass.h>
#include <sluice/ops/shape/view.h>

#include <functional>
#include <vector>

namespace sluice {

struct GenerateOptions {
  int64_t tokens = 100;    // most new tokens of a sequence
  double temperature = 1;  // divides the logits; 0: the likeliest token, the lowest of equally likely tokens
  int64_t top_k = 0;       // draw from the k likeliest tokens only; 0: from all
  double top_p = 1;        // draw from the fewest likeliest tokens with this total probability (Holtzman et al. 2020)
  int64_t stop = -1;       // the token that ends a sequence; −1: none
  double min_p = 0;        // draw from the tokens with at least this share of the likeliest token's probability only
  double repetition_penalty = 1;         // for tokens already in the sequence or its prompt (Keskar et al. 2019):
                                         // divides their logits above 0, multiplies their other logits
  std::vector<int64_t> more_stops = {};  // other tokens that end a sequence; only with `stop`
  /// Called with the new tokens i64 [batch] of each step, on the CPU: to show text while it is written, see
  /// TokenStream. The generation ends where it returns false.
  std::function<bool(const Tensor& tokens)> on_tokens = {};

  static void describe(auto& o, auto& f) {
    f("tokens", o.tokens, at_least(0), "at most so many new ones");
    f("temperature", o.temperature, at_least(0), "logits are divided by it; 0: the likeliest token");
    f("top_k", o.top_k, at_least(0), "only the k likeliest; 0: all");
    f("top_p", o.top_p, between(0, 1), "only the likeliest ones that together have this probability");
    f("stop", o.stop, at_least(-1), "the token after which a sequence is over; -1: none");
    f("min_p", o.min_p, between(0, 1), "only those with this share of the likeliest one's probability");
    f("repetition_penalty", o.repetition_penalty, above(0), "above 1: tokens that stand there already are less likely");
  }
};

/// Draws one token for each row of logits [batch, vocabulary]. Returns i64 [batch] on the CPU. Applies the temperature,
/// then top_k, then top_p, then min_p; ties go to the lower token. Draws from rng once for each row, unless the
/// temperature is 0. It does not know what the sequences have, so a repetition penalty is refused. Throws ValueError
/// for a row that has a NaN or +∞, or no finite value.
Tensor sample_tokens(const Tensor& logits, const GenerateOptions& options, Rng& rng);

/// Continues prompt i64 [batch, n], n >= 1. Returns i64 [batch, n + m] on the prompt's device, with m <= options.tokens
/// new tokens; m is smaller when all sequences have stopped. A sequence that has stopped is filled with `stop`,
/// whichever token ended it. `logits_of` must return the logits [batch, ·, vocabulary] of the next tokens [batch, ·] of
/// a stream, or the logits of the last token alone. A prompt may be i32. key_mask, bool [batch, n], is false for
/// padding in front, which no repetition penalty counts; ShapeError for a mask that does not fit. Records no history.
Tensor generate(const std::function<Tensor(const Tensor& tokens)>& logits_of, const Tensor& prompt,
                const GenerateOptions& options, Rng& rng, const Tensor& key_mask = {});

namespace detail {
/// Throws ValueError unless key_mask, if it is defined, marks the last token of each prompt as real.
void check_padding_in_front(const Tensor& key_mask);
}  // namespace detail

/// generate() for a model that returns the logits of tokens [batch, ·]. The model runs as a stream, see step(). It
/// reads a context of the pass with the prompt. Prompts of several lengths must be padded in front with any token; the
/// key_mask of the pass, bool [batch, n], is false there. Padding takes up positions. So models with chunks, blocks or
/// absolute positions continue otherwise than from each prompt alone. A model with `static constexpr bool
/// logits_of_hidden = true` must be logits(hidden(tokens, pass)); only the last row of a prompt gets logits.
template <TakesPass M>
Tensor generate(const M& model, const Tensor& prompt, const GenerateOptions& options, Rng& rng, const Pass& pass = {}) {
  Stream stream;
  Pass next = pass;
  pass.mark_read();  // each step checks its own; if no tokens are generated, there is none
  const auto logits_of_last = [&](const Tensor& tokens, const Pass& p) {
    // A vocabulary is large, and only the last row is drawn from.
    if constexpr (requires { requires M::logits_of_hidden; })
      return model.logits(narrow(model.hidden(tokens, p), 1, tokens.dim(1) - 1, 1));
    else return model(tokens, p);
  };
  const auto logits = [&](const Tensor& tokens) {
    Tensor y = step(logits_of_last, tokens, stream, next);
    detail::check_padding_in_front(next.key_mask);
    next.key_mask = Tensor();  // the stream knows it, and all new tokens are real
    return y;
  };
  return generate(logits, prompt, options, rng, pass.key_mask);
}
/// Does not compile: a model that takes no pass would see each token alone.
template <class M>
requires(!TakesPass<M> && requires(const M& m) { M::visit(m, [](const char*, const auto&) {}); }) Tensor
    generate(const M&, const Tensor&, const GenerateOptions&, Rng&) {
  static_assert(sizeof(M) == 0,
                "what generates takes a pass: Tensor operator()(const Tensor& x, const Pass& = {}) const");
  return {};
}

}  // namespace sluice
