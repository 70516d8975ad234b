#include <sluice/layers/nn/generate.h>

#include <sluice/core/operands.h>
#include <sluice/ops/basic.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace sluice {

/// Returns the token of one row; `u` in [0, 1) makes the choice.
static int64_t choose(const double* logits, int64_t n, const GenerateOptions& o, double u) {
  struct Token {
    double logit;
    int64_t token;
  };
  const double best = *std::max_element(logits, logits + n);
  std::vector<Token> tokens(static_cast<std::size_t>(n));
  for (int64_t i = 0; i < n; ++i) tokens[static_cast<std::size_t>(i)] = {logits[i], i};
  const auto likelier = [](const Token& a, const Token& b) {
    return a.logit != b.logit ? a.logit > b.logit : a.token < b.token;
  };
  std::size_t sorted = 0;  // so many of the likeliest are in order
  const auto sort_to = [&](std::size_t count) {
    const auto at = [&](std::size_t i) { return tokens.begin() + static_cast<std::ptrdiff_t>(i); };
    if (count < tokens.size()) std::nth_element(at(sorted), at(count), tokens.end(), likelier);
    std::sort(at(sorted), at(count), likelier);
    sorted = count;
  };
  if (o.top_k > 0 && o.top_k < n) sort_to(static_cast<std::size_t>(o.top_k)), tokens.resize(sorted);
  double total = 0;
  for (const Token& t : tokens) total += std::exp((t.logit - best) / o.temperature);
  const auto weight = [&](std::size_t i) { return std::exp((tokens[i].logit - best) / o.temperature); };
  if (o.top_p < 1) {  // mostly a few tokens are enough: the others are never put in order
    double sum = 0;
    std::size_t many = 0;
    while (many < tokens.size() && (many == 0 || sum < o.top_p * total)) {
      if (many == sorted) sort_to(std::min(tokens.size(), std::max<std::size_t>(64, 4 * sorted)));
      sum += weight(many++);
    }
    tokens.resize(many), total = sum;
  }
  double left = u * total;
  for (std::size_t i = 0; i < tokens.size(); ++i)
    if ((left -= weight(i)) < 0) return tokens[i].token;
  std::size_t last = tokens.size() - 1;  // rounding has used up all weights: take the last possible token
  while (!(weight(last) > 0)) --last;    // the likeliest token weighs 1
  return tokens[last].token;
}

Tensor sample_tokens(const Tensor& logits, const GenerateOptions& options, Rng& rng) {
  check_options("sample_tokens", options);
  if (logits.rank() != 2 || logits.dim(1) == 0)
    fail("sample_tokens: logits must be [batch, vocabulary] — got ", logits);
  const int64_t batch = logits.dim(0), n = logits.dim(1);
  const std::vector<double> values = logits.to_vector<double>();
  const std::vector<double> u =
      options.temperature > 0 ? uniform({batch}, 0, 1, rng, {f64}).to_vector<double>() : std::vector<double>();
  std::vector<int64_t> tokens;
  for (int64_t b = 0; b < batch; ++b) {
    const double* row = values.data() + b * n;
    const bool bad = std::any_of(row, row + n, [](double v) { return std::isnan(v) || v == INFINITY; });
    const int64_t best = std::max_element(row, row + n) - row;
    if (bad || row[best] == -INFINITY)
      fail<ValueError>("sample_tokens: row ", b, " of the logits has ", bad ? "a NaN or +inf" : "no finite value");
    tokens.push_back(options.temperature > 0 ? choose(row, n, options, u[static_cast<std::size_t>(b)]) : best);
  }
  return Tensor::from(tokens);
}

Tensor generate(const std::function<Tensor(const Tensor& tokens)>& logits_of, const Tensor& prompt,
                const GenerateOptions& options, Rng& rng) {
  check_options("generate", options);
  detail::check_defined("generate", {{"prompt", prompt}});
  if (!is_integer(prompt.dtype()))
    fail<DTypeError>("generate: the prompt must be i64 or i32 — got ", prompt.dtype(), " ", prompt);
  if (prompt.rank() != 2 || prompt.dim(0) == 0 || prompt.dim(1) == 0)
    fail("generate: the prompt must be [batch, n], both from 1 on — got ", prompt);
  NoGrad guard;
  const int64_t batch = prompt.dim(0);
  std::vector<Tensor> parts{to(prompt, i64)};
  std::vector<bool> over(static_cast<std::size_t>(batch), false);
  for (int64_t i = 0; i < options.tokens; ++i) {
    const Tensor logits = logits_of(parts.back());
    if (logits.rank() != 3 || logits.dim(0) != batch || (logits.dim(1) != parts.back().dim(1) && logits.dim(1) != 1))
      fail("generate: the model must turn tokens ", parts.back(), " into logits [batch, n, vocabulary] — got ", logits);
    Tensor next = sample_tokens(select(logits, 1, -1), options, rng);
    int64_t* token = next.mutable_data<int64_t>();
    for (std::size_t b = 0; b < over.size(); ++b) {
      if (over[b]) token[b] = options.stop;
      else over[b] = options.stop >= 0 && token[b] == options.stop;
    }
    parts.push_back(to(reshape(next, {batch, 1}), prompt.device()));
    if (std::find(over.begin(), over.end(), false) == over.end()) break;
  }
  return cat(parts, 1);
}

}  // namespace sluice
