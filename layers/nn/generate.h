// Generation by a stream: token by token, each drawn from the logits of the last.
//
//   Tensor text = generate(model, prompt, {.tokens = 200, .temperature = 0.8, .top_p = 0.95}, rng);   // i64 [batch, n + 200]
#pragma once

#include <sluice/core/options.h>
#include <sluice/core/random.h>
#include <sluice/layers/nn/pass.h>

#include <functional>

namespace sluice {

struct GenerateOptions {
  int64_t tokens = 100;    // at most so many new ones
  double temperature = 1;  // logits are divided by it; 0: the likeliest token, the first of equal ones
  int64_t top_k = 0;       // only the k likeliest; 0: all
  double top_p = 1;        // only the likeliest ones that together have at least this probability (Holtzman et al. 2020)
  int64_t stop = -1;       // the token after which a sequence is over; −1: none

  static void describe(auto& o, auto& f) {
    f("tokens", o.tokens, at_least(0), "at most so many new ones");
    f("temperature", o.temperature, at_least(0), "logits are divided by it; 0: the likeliest token");
    f("top_k", o.top_k, at_least(0), "only the k likeliest; 0: all");
    f("top_p", o.top_p, between(0, 1), "only the likeliest ones that together have this probability");
    f("stop", o.stop, at_least(-1), "the token after which a sequence is over; -1: none");
  }
};

/// One token for each row of logits [batch, vocabulary]: i64 [batch]. Temperature, then top_k, then top_p; ties go to
/// the lower token. Draws from rng once for each row, unless the temperature is 0. ValueError for logits of which none is
/// finite.
Tensor sample_tokens(const Tensor& logits, const GenerateOptions& options, Rng& rng);

/// Continues prompt i64 [batch, n], n >= 1: i64 [batch, n + m] with m <= tokens new ones, on the prompt's device; fewer
/// when all sequences have stopped. A sequence that has is filled with `stop`. `logits_of` turns the next tokens
/// [batch, ·] of a stream into their logits [batch, ·, vocabulary]. Without history.
Tensor generate(const std::function<Tensor(const Tensor& tokens)>& logits_of, const Tensor& prompt,
                const GenerateOptions& options, Rng& rng);

/// The same for a model that turns tokens [batch, ·] into their logits: it runs as a stream, see step(). A context of the
/// pass is read with the prompt.
template <TakesPass M>
Tensor generate(const M& model, const Tensor& prompt, const GenerateOptions& options, Rng& rng, const Pass& pass = {}) {
  Stream stream;
  return generate([&](const Tensor& tokens) { return step(model, tokens, stream, pass); }, prompt, options, rng);
}

}  // namespace sluice
