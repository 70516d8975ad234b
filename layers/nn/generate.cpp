#include <sluice/layers/nn/generate.h>

#include <sluice/core/kernel/parallel.h>
#include <sluice/core/operands.h>
#include <sluice/ops/basic.h>
#include <sluice/ops/index/gather.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <vector>

namespace sluice {

namespace {

struct Token {
  double logit;
  int64_t token;
};

/// The `count` likeliest of n tokens, in order; of equally likely ones the lower first.
std::vector<Token> likeliest(const double* logits, int64_t n, std::size_t count) {
  // `count` tokens at least reach the count-th of the largest logits of as many parts: few others are looked at.
  const int64_t parts = n / 16;
  std::vector<double> largest(static_cast<std::size_t>(parts), -INFINITY);
  double* const top = largest.data();
  double least = -INFINITY;
  if (count < largest.size()) {
    for (int64_t i = 0; i < 16 * parts; i += parts)
      for (int64_t k = 0; k < parts; ++k) top[k] = std::max(top[k], logits[i + k]);
    std::nth_element(top, top + count - 1, top + parts, std::greater<>());
    least = top[count - 1];
  }
  std::vector<Token> tokens;
  for (int64_t i = 0; i < n; ++i)
    if (logits[i] >= least) tokens.push_back({logits[i], i});
  const auto last = tokens.begin() + static_cast<std::ptrdiff_t>(std::min(count, tokens.size()));
  const auto likelier = [](const Token& a, const Token& b) {
    return a.logit != b.logit ? a.logit > b.logit : a.token < b.token;
  };
  if (last != tokens.end()) std::nth_element(tokens.begin(), last, tokens.end(), likelier);
  std::sort(tokens.begin(), last, likelier);
  tokens.erase(last, tokens.end());
  return tokens;
}

/// Returns the token of one row; `u` in [0, 1) makes the choice. The likeliest token weighs 1.
int64_t choose(const double* logits, const double* weights, int64_t n, const GenerateOptions& o, double u) {
  const auto drawn = [&](int64_t count, double total, const auto& token) {
    double left = u * total;
    for (int64_t i = 0; i < count; ++i)
      if ((left -= weights[token(i)]) < 0) return token(i);
    int64_t last = count - 1;  // rounding has used up all weights: take the last possible token
    while (!(weights[token(last)] > 0)) --last;
    return token(last);
  };
  const bool some = o.top_k > 0 && o.top_k < n;
  const auto pool = static_cast<std::size_t>(some ? o.top_k : n);
  if (!some && o.top_p == 1 && o.min_p == 0)
    return drawn(n, std::accumulate(weights, weights + n, 0.0), [](int64_t i) { return i; });
  std::vector<Token> tokens;
  if (some) tokens = likeliest(logits, n, pool);
  const auto sum_of = [weights](double sum, const Token& t) { return sum + weights[t.token]; };
  double total = tokens.empty() ? std::accumulate(weights, weights + n, 0.0)
                                : std::accumulate(tokens.begin(), tokens.end(), 0.0, sum_of);
  if (o.top_p < 1) {  // mostly a few tokens are enough: the others are never put in order
    double sum = 0;
    std::size_t many = 0;
    while (many < pool && (many == 0 || sum < o.top_p * total)) {
      if (many == tokens.size()) tokens = likeliest(logits, n, std::min(pool, std::max<std::size_t>(64, 4 * many)));
      sum += weights[tokens[many++].token];
    }
    tokens.resize(many), total = sum;
  }
  if (o.min_p > 0) {
    if (tokens.empty())
      for (int64_t i = 0; i < n; ++i)
        if (weights[i] >= o.min_p) tokens.push_back({logits[i], i});
    std::erase_if(tokens, [&](const Token& t) { return weights[t.token] < o.min_p; });
    total = std::accumulate(tokens.begin(), tokens.end(), 0.0, sum_of);
  }
  return drawn(static_cast<int64_t>(tokens.size()), total,
               [&](int64_t i) { return tokens[static_cast<std::size_t>(i)].token; });
}

}  // namespace

Tensor sample_tokens(const Tensor& logits, const GenerateOptions& options, Rng& rng) {
  check_options("sample_tokens", options);
  if (logits.rank() != 2 || logits.dim(1) == 0)
    fail("sample_tokens: logits must be [batch, vocabulary] — got ", logits);
  if (options.repetition_penalty != 1)
    fail<ValueError>("sample_tokens: repetition_penalty=", options.repetition_penalty,
                     " needs the sequences' tokens, which generate() has — scale the logits before");
  const int64_t batch = logits.dim(0), n = logits.dim(1);
  NoGrad guard;
  const Tensor rows = to(logits, cpu), most = to(max(rows, {-1}, keep), f64);  // NaN where a row has one
  for (int64_t b = 0; b < batch; ++b)
    if (const double top = most.data<double>()[b]; !std::isfinite(top))
      fail<ValueError>("sample_tokens: row ", b, " of the logits has ",
                       top == -INFINITY ? "no finite value" : "a NaN or +inf");
  if (options.temperature == 0) return argmax(rows, -1);
  const Tensor values = contiguous(to(rows, f64)), u = uniform({batch}, 0, 1, rng, {f64});
  const double least = std::numeric_limits<double>::min();  // ops take a denormal number for 0
  const Tensor weights = exp((values - most) / std::max(options.temperature, least));
  Tensor tokens = empty({batch}, {i64});
  parallel_for(batch, 1, [&, out = tokens.mutable_data<int64_t>()](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b)
      out[b] = choose(values.data<double>() + b * n, weights.data<double>() + b * n, n, options, u.data<double>()[b]);
  });
  return tokens;
}

Tensor generate(const std::function<Tensor(const Tensor& tokens)>& logits_of, const Tensor& prompt,
                const GenerateOptions& options, Rng& rng, const Tensor& key_mask) {
  check_options("generate", options);
  std::vector<int64_t> stops = options.more_stops;
  if (options.stop >= 0) stops.push_back(options.stop);
  else if (!stops.empty())
    fail<ValueError>("generate: more_stops are besides `stop`, which fills what is over: give it");
  detail::check_defined("generate", {{"prompt", prompt}});
  if (!is_integer(prompt.dtype()))
    fail<DTypeError>("generate: the prompt must be i64 or i32 — got ", prompt.dtype(), " ", prompt);
  if (prompt.rank() != 2 || prompt.dim(0) == 0 || prompt.dim(1) == 0)
    fail("generate: the prompt must be [batch, n], both from 1 on — got ", prompt);
  NoGrad guard;
  const int64_t batch = prompt.dim(0);
  std::vector<Tensor> parts{to(prompt, i64)};
  std::vector<bool> over(static_cast<std::size_t>(batch), false);
  GenerateOptions drawn = options;
  drawn.repetition_penalty = 1;
  Tensor seen;  // bool [batch, vocabulary], where there is a penalty
  for (int64_t i = 0; i < options.tokens; ++i) {
    const Tensor logits = logits_of(parts.back());
    if (logits.rank() != 3 || logits.dim(0) != batch || (logits.dim(1) != parts.back().dim(1) && logits.dim(1) != 1))
      fail("generate: the model must turn tokens ", parts.back(), " into logits [batch, n, vocabulary] — got ", logits);
    for (const int64_t stop : stops)
      if (stop < 0 || stop >= logits.dim(2))
        fail<ValueError>("generate: ", stop == options.stop ? "stop=" : "more_stops=", stop, " is none of the ",
                         logits.dim(2), " tokens of logits ", logits);
    Tensor last = select(logits, 1, -1);
    if (options.repetition_penalty != 1) {
      Tensor ids = to(parts.back(), logits.device());
      if (i == 0 && key_mask.defined()) {
        if (key_mask.dtype() != DType::boolean || key_mask.shape() != prompt.shape())
          fail("generate: key_mask=", key_mask.dtype(), " ", key_mask, " must be bool in the shape of prompt=", prompt);
        detail::check_padding_in_front(key_mask);
        // Padding counts as the last token, which is real.
        ids = where(to(key_mask, logits.device()), ids, narrow(ids, 1, -1, 1));
      }
      const auto bools = [&](bool value, const Shape& shape) {
        return full(shape, value, {DType::boolean, ids.device()});
      };
      seen = scatter(seen.defined() ? seen : bools(false, last.shape()), 1, ids, bools(true, ids.shape()));
      const Tensor wide = to(last, f64);
      last = where(seen, where(wide > 0, wide / options.repetition_penalty, wide * options.repetition_penalty), wide);
    }
    Tensor next = sample_tokens(last, drawn, rng);
    int64_t* token = next.mutable_data<int64_t>();
    for (std::size_t b = 0; b < over.size(); ++b) {
      if (over[b]) token[b] = options.stop;
      else over[b] = std::find(stops.begin(), stops.end(), token[b]) != stops.end();
    }
    parts.push_back(to(reshape(next, {batch, 1}), prompt.device()));
    const bool goes_on = !options.on_tokens || options.on_tokens(next);
    if (!goes_on || std::find(over.begin(), over.end(), false) == over.end()) break;
  }
  return cat(parts, 1);
}

void detail::check_padding_in_front(const Tensor& key_mask) {
  if (key_mask.defined() && !all(select(key_mask, 1, -1)).item<bool>())
    fail<ValueError>("generate: prompts are padded in front; key_mask=", key_mask, " marks padding as a last token");
}

}  // namespace sluice
