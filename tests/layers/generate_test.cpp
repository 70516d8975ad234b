#include <sluice/layers/nn/generate.h>

#include <sluice/layers/gau/gau.h>
#include <sluice/layers/attention/multi_head_attention.h>
#include <sluice/layers/linear_attention/delta_net.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/shape/view.h>
#include "support/catch.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>

using namespace sluice;

namespace {

using Ids = std::vector<int64_t>;

/// How often each token is drawn from log p, of `count` draws.
std::map<int64_t, double> shares(const std::vector<double>& p, const GenerateOptions& options, int64_t count = 20000) {
  std::vector<double> logits;
  for (const double v : p) logits.push_back(std::log(v) + 3);  // any constant may be added
  const Tensor rows = expand(reshape(Tensor::from(logits), {1, -1}), {count, -1});
  Rng rng(5);
  std::map<int64_t, double> out;
  for (const int64_t token : sample_tokens(rows, options, rng).to_vector<int64_t>())
    out[token] += 1.0 / static_cast<double>(count);
  return out;
}
void is_near(std::map<int64_t, double> got, const std::map<int64_t, double>& expected) {
  CHECK(got.size() == expected.size());
  for (const auto& [token, share] : expected) {
    INFO(token);
    CHECK(got[token] == Approx(share).margin(0.015));  // 4 standard deviations
  }
}

/// Counts: the next token is the last + 1, up to 9.
struct Counter {
  static constexpr bool logits_of_hidden = false;
  static Tensor logits_of(const Tensor& tokens) {
    Ids next;
    for (const int64_t t : tokens.to_vector<int64_t>()) next.push_back(std::min<int64_t>(t + 1, 9));
    return one_hot(Tensor::from(next, tokens.shape()), 10) * 50.0;
  }
  Tensor operator()(const Tensor& tokens, const Pass& pass) const {
    REQUIRE(pass.stream != nullptr);
    CHECK((pass.stream->length() == 0 || tokens.dim(1) == 1));  // the prompt at once, then one by one
    return logits_of(tokens);
  }
};

}  // namespace

TEST_CASE("sample_tokens: temperature, top_k and top_p shape the distribution", "[generate]") {
  const std::vector<double> p{0.1, 0.4, 0.2, 0.3};
  is_near(shares(p, {}), {{0, 0.1}, {1, 0.4}, {2, 0.2}, {3, 0.3}});
  is_near(shares(p, {.temperature = 0.5}), {{0, 1.0 / 30}, {1, 16.0 / 30}, {2, 4.0 / 30}, {3, 9.0 / 30}});
  is_near(shares(p, {.temperature = 0}), {{1, 1}});
  is_near(shares(p, {.temperature = 1e-310}), {{1, 1}});
  is_near(shares(p, {.top_k = 1}), {{1, 1}});
  is_near(shares(p, {.top_k = 2}), {{1, 4.0 / 7}, {3, 3.0 / 7}});
  is_near(shares(p, {.top_k = 9}), {{0, 0.1}, {1, 0.4}, {2, 0.2}, {3, 0.3}});
  is_near(shares(p, {.top_p = 0.39}), {{1, 1}});
  is_near(shares(p, {.top_p = 0.41}), {{1, 4.0 / 7}, {3, 3.0 / 7}});
  is_near(shares(p, {.top_p = 0.85}), {{1, 4.0 / 9}, {2, 2.0 / 9}, {3, 3.0 / 9}});
  is_near(shares(p, {.top_p = 0}), {{1, 1}});
  is_near(shares(p, {.top_k = 3, .top_p = 0.5}),
          {{1, 4.0 / 7}, {3, 3.0 / 7}});                     // of 0.9: 0.4 is below a half, 0.7 above
  is_near(shares({0.5, 0, 0.5}, {}), {{0, 0.5}, {2, 0.5}});  // −inf is never drawn
  is_near(shares({0.25, 0.25, 0.25, 0.25}, {.top_k = 2}), {{0, 0.5}, {1, 0.5}});  // ties: the lower tokens
}

TEST_CASE("sample_tokens: what rounding leaves goes to the last token that is possible", "[generate]") {
  // Each small weight is a little more than half of the last bit of the sum, which rounds up by all of it: the sum is
  // greater than what is in it. Only a draw next to 1 shows that, as this block of this stream does.
  constexpr int64_t kSmall = 300'000;
  std::vector<double> logits(kSmall + 3, std::log(0.501 * 0x1p-52));
  logits[0] = 0;
  logits[kSmall + 1] = logits[kSmall + 2] = -INFINITY;
  Rng rng;
  rng.set_state(1, 9193731812);  // 1 − 3e-11
  CHECK(sample_tokens(Tensor::from(logits, {1, kSmall + 3}), {}, rng).item<int64_t>() == kSmall);
}

TEST_CASE("sample_tokens: what is drawn of many tokens is their order statistic", "[generate]") {
  // The definition: tokens in order (with top_k and top_p the likeliest first), the first whose sum exceeds u·total.
  // Many are equally likely, on both sides of what top_k and top_p cut off.
  constexpr int64_t rows = 20, n = 9001;
  Rng rng(3), same(4);
  const Tensor logits = round(normal({rows, n}, 0, 2, rng) * 64) / 64;
  const std::vector<double> u = uniform({rows}, 0, 1, same, {f64}).to_vector<double>();
  for (const GenerateOptions& o : std::vector<GenerateOptions>{{},
                                                               {.temperature = 0.3},
                                                               {.top_k = 70},
                                                               {.top_k = 140},
                                                               {.top_k = 200},
                                                               {.temperature = 0.2, .top_p = 0.6},
                                                               {.top_p = 0.9},
                                                               {.top_k = 900, .top_p = 0.8},
                                                               {.min_p = 0.02},
                                                               {.top_k = 500, .min_p = 0.1},
                                                               {.top_p = 0.8, .min_p = 0.05}}) {
    Rng drawn(4);
    const Ids got = sample_tokens(logits, o, drawn).to_vector<int64_t>();
    for (int64_t b = 0; b < rows; ++b) {
      const std::vector<double> row = select(logits, 0, b).to_vector<double>();
      std::vector<std::pair<double, int64_t>> tokens;  // weight, token
      for (int64_t i = 0; i < n; ++i)
        tokens.emplace_back(std::exp(row[static_cast<std::size_t>(i)] / o.temperature), i);
      const auto total = [&] {
        double sum = 0;
        for (const auto& t : tokens) sum += t.first;
        return sum;
      };
      if (o.top_k > 0 || o.top_p < 1)
        std::sort(tokens.begin(), tokens.end(), [](const auto& a, const auto& b) {
          return a.first != b.first ? a.first > b.first : a.second < b.second;
        });
      if (o.top_k > 0) tokens.resize(static_cast<std::size_t>(o.top_k));
      double all = total(), sum = 0;
      std::size_t many = 0;
      while (many < tokens.size() && (many == 0 || sum < o.top_p * all)) sum += tokens[many++].first;
      tokens.resize(many);
      const double best = std::exp(*std::max_element(row.begin(), row.end()) / o.temperature);
      std::erase_if(tokens, [&](const auto& t) { return t.first < o.min_p * best; });
      all = total(), many = 0;
      for (double left = u[static_cast<std::size_t>(b)] * all; (left -= tokens[many].first) >= 0;) ++many;
      CHECK(got[static_cast<std::size_t>(b)] == tokens[many].second);
    }
  }
}

TEST_CASE("sample_tokens: what is refused", "[generate]") {
  Rng rng(1);
  CHECK_THROWS_AS(sample_tokens(Tensor({1, 2}), {}, rng), ShapeError);
  CHECK_THROWS_WITH(sample_tokens(Tensor({{1, NAN}}), {}, rng), Contains("row 0"));
  CHECK_THROWS_AS(sample_tokens(Tensor({{1, 2}, {1, INFINITY}}), {.temperature = 0}, rng), ValueError);
  CHECK_THROWS_AS(sample_tokens(Tensor({{-INFINITY, -INFINITY}}), {}, rng), ValueError);
  CHECK_THROWS_AS(sample_tokens(Tensor({{1, 2}}), {.temperature = -1}, rng), ValueError);
  CHECK_THROWS_AS(sample_tokens(Tensor({{1, 2}}), {.top_p = 1.5}, rng), ValueError);
  CHECK_THROWS_WITH(sample_tokens(Tensor({{1, 2}}), {.repetition_penalty = 1.2}, rng), Contains("generate()"));
}

TEST_CASE("generate: batches, stop tokens, models and functions", "[generate]") {
  Rng rng(1);
  const Tensor prompt = Tensor::from<int64_t>({0, 1, 2, 5, 6, 7}, {2, 3});
  const auto ids = [](const Tensor& t) { return t.to_vector<int64_t>(); };
  const Tensor four = generate(Counter{}, prompt, {.tokens = 4}, rng);
  CHECK(four.shape() == Shape{2, 7});
  CHECK(ids(four) == Ids{0, 1, 2, 3, 4, 5, 6, 5, 6, 7, 8, 9, 9, 9});
  CHECK(ids(generate(Counter::logits_of, prompt, {.tokens = 4}, rng)) == ids(four));
  CHECK(ids(generate(Counter{}, prompt, {.tokens = 0}, rng)) == ids(prompt));
  // The second sequence meets 8 at once and waits, the first after six tokens; then all is over.
  CHECK(ids(generate(Counter{}, prompt, {.tokens = 50, .stop = 8}, rng)) ==
        Ids{0, 1, 2, 3, 4, 5, 6, 7, 8, 5, 6, 7, 8, 8, 8, 8, 8, 8});
  // Any of several ends a sequence; what is over is filled with the first.
  CHECK(ids(generate(Counter{}, prompt, {.tokens = 50, .stop = 4, .more_stops = {8}}, rng)) ==
        Ids{0, 1, 2, 3, 4, 5, 6, 7, 8, 4});
  CHECK_THROWS_WITH(generate(Counter{}, prompt, {.more_stops = {8}}, rng), Contains("besides `stop`"));
  CHECK_THROWS_WITH(generate(Counter{}, prompt, {.stop = 3, .more_stops = {10}}, rng),
                    Contains("more_stops=10 is none"));
  // Every step's tokens are shown, those after a sequence's end too, until the answer is no.
  std::vector<Ids> shown;
  const auto until = [&](std::size_t steps) -> std::function<bool(const Tensor&)> {
    return [&shown, steps](const Tensor& t) {
      CHECK((t.dtype() == i64 && t.shape() == Shape{2}));
      shown.push_back(t.to_vector<int64_t>());
      return shown.size() < steps;
    };
  };
  CHECK(ids(generate(Counter{}, prompt, {.tokens = 50, .stop = 8, .on_tokens = until(3)}, rng)) ==
        Ids{0, 1, 2, 3, 4, 5, 5, 6, 7, 8, 8, 8});
  CHECK(shown == std::vector<Ids>{{3, 8}, {4, 8}, {5, 8}});
  CHECK(ids(generate(Counter{}, prompt, {.tokens = 50, .stop = 8, .on_tokens = until(99)}, rng)).size() == 18);
  CHECK(shown.size() == 9);
  CHECK_THROWS_AS(generate(Counter{}, Tensor({{1, 2}}), {}, rng), DTypeError);
  CHECK_THROWS_AS(generate(Counter{}, Tensor::from<int64_t>({1}), {}, rng), ShapeError);
  const auto flat = [](const Tensor& t, const Pass&) { return one_hot(reshape(t, {-1}), 10); };
  CHECK_THROWS_WITH(generate(flat, prompt, {}, rng), Contains("must turn"));
}

TEST_CASE("generate: a penalty for tokens that a sequence has", "[generate]") {
  Rng rng(1);
  // Whatever was read, token 3 is the likeliest, then 1.
  const auto model = [](const Tensor& tokens) {
    const Tensor row = Tensor::from<double>({-3, 2, -4, 2.4, -1}, {1, 1, 5});
    return expand(row, {tokens.dim(0), tokens.dim(1), 5});
  };
  const auto text = [&](double penalty, const Tensor& prompt) {
    const GenerateOptions options{.tokens = 3, .temperature = 0, .repetition_penalty = penalty};
    return generate(model, prompt, options, rng).to_vector<int64_t>();
  };
  const Tensor prompt = Tensor::from<int64_t>({0, 2, 3, 1}, {2, 2});
  CHECK(text(1, prompt) == Ids{0, 2, 3, 3, 3, 3, 1, 3, 3, 3});
  // 2.4 / 1.5 < 2, then 2 / 1.5 < 1.6: the first sequence repeats only what is still the likeliest.
  CHECK(text(1.5, prompt) == Ids{0, 2, 3, 1, 3, 3, 1, 3, 3, 3});
  const auto below = [&](const Tensor& tokens) { return model(tokens) - 5; };  // all logits
  const GenerateOptions away{.tokens = 5, .temperature = 0, .repetition_penalty = 100};
  CHECK(generate(below, Tensor::from<int64_t>({0}, {1, 1}), away, rng).to_vector<int64_t>() == Ids{0, 3, 1, 4, 2, 3});
  CHECK_THROWS_AS(generate(model, prompt, {.repetition_penalty = 0}, rng), ValueError);

  // Padding counts as none of the tokens.
  const auto with_pass = [&](const Tensor& tokens, const Pass& pass = {}) {
    [[maybe_unused]] const Tensor read = pass.key_mask;
    return model(tokens);
  };
  const Tensor padded = Tensor::from<int64_t>({0, 2, 3, 2}, {2, 2}), key_mask = logical_not(padded == 3);
  const GenerateOptions one{.tokens = 1, .temperature = 0, .repetition_penalty = 1.5};
  CHECK(generate(with_pass, padded, one, rng).to_vector<int64_t>() == Ids{0, 2, 3, 3, 2, 1});
  CHECK(generate(with_pass, padded, one, rng, {.key_mask = key_mask}).to_vector<int64_t>() == Ids{0, 2, 3, 3, 2, 3});
  for (const Tensor& bad : {narrow(key_mask, 1, 0, 1), to(key_mask, f32)})
    CHECK_THROWS_WITH(generate(model, padded, one, rng, bad), Contains("generate: key_mask=") && Contains("[2,2]"));
  CHECK_THROWS_WITH(generate(model, padded, one, rng, flip(key_mask, {1})), Contains("padded in front"));
}

TEST_CASE("generate: a layer's stream, the same for the same generator", "[generate]") {
  Rng rng(2);
  const Gau gau({.dim = 12, .key_dim = 8, .causal = true}, rng);
  const auto model = [&](const Tensor& tokens, const Pass& pass = {}) { return gau(one_hot(tokens, 12), pass); };
  const Tensor prompt = Tensor::from<int64_t>({3, 1}, {1, 2});
  const GenerateOptions options{.tokens = 20, .temperature = 0.7, .top_k = 5};
  Rng a(9), b(9), c(10);
  const auto text = generate(model, prompt, options, a).to_vector<int64_t>();
  CHECK(text == generate(model, prompt, options, b).to_vector<int64_t>());
  CHECK(text != generate(model, prompt, options, c).to_vector<int64_t>());
  // Without temperature, each token is the likeliest after all before it, read at once.
  const Tensor best = generate(model, prompt, {.tokens = 20, .temperature = 0}, a);
  CHECK_FALSE(best.requires_grad());
  Rng none(0);
  for (int64_t n = 2; n < 22; ++n) {
    const Tensor logits = select(model(narrow(best, 1, 0, n)), 1, -1);
    CHECK(sample_tokens(logits, {.temperature = 0}, none).item<int64_t>() ==
          select(select(best, 0, 0), 0, n).item<int64_t>());
  }
}

TEST_CASE("generate: a context is read with the prompt", "[generate]") {
  Rng rng(3);
  const MultiHeadAttention own({.heads = {.dim = 12, .heads = 2, .causal = true, .use_rope = true}}, rng);
  const MultiHeadAttention reader({.heads = {.dim = 12, .heads = 2, .context_dim = 5}}, rng);
  const auto model = [&](const Tensor& tokens, const Pass& pass) {
    const Tensor y = own(one_hot(tokens, 12), pass);
    return y + reader(y, pass) * 8.0;
  };
  const Tensor prompt = Tensor::from<int64_t>({3, 1, 4, 4}, {2, 2}), context = normal({2, 6, 5}, 0, 1, rng);
  const Tensor mask = Tensor::from(std::vector<bool>{1, 1, 1, 1, 1, 1, 1, 0, 1, 1, 0, 0}, {2, 6});
  const GenerateOptions best{.tokens = 12, .temperature = 0};
  const Tensor text = generate(model, prompt, best, rng, {.context = context, .context_mask = mask});
  for (int64_t n = 2; n < 14; ++n) {
    const Tensor logits = model(narrow(text, 1, 0, n), {.context = context, .context_mask = mask});
    CHECK(sample_tokens(select(logits, 1, -1), best, rng).to_vector<int64_t>() ==
          select(text, 1, n).to_vector<int64_t>());
  }
  CHECK_THROWS_WITH(generate(model, prompt, best, rng), Contains("needs a context"));
}

TEST_CASE("generate: prompts of several lengths, padded in front, go on as each alone", "[generate]") {
  Rng rng(4);
  const MultiHeadAttention attention({.heads = {.dim = 12, .heads = 2, .causal = true, .use_rope = true}}, rng);
  const Gau gau({.dim = 12, .key_dim = 8, .causal = true, .window = 4}, rng);
  const GatedDeltaNet delta({.dim = 12, .heads = 2, .key_dim = 4}, rng);
  const auto model = [&](const Tensor& tokens, const Pass& pass = {}) {
    return delta(gau(attention(one_hot(tokens, 12), pass), pass), pass) * 20.0;
  };
  const Ids padded{0, 0, 0, 5, 2,  //
                   3, 1, 4, 1, 5,  //
                   0, 9, 2, 6, 7};
  const Tensor prompts = Tensor::from(padded, {3, 5});
  const Tensor mask = Tensor::from(std::vector<bool>{0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 0, 1, 1, 1, 1}, {3, 5});
  const GenerateOptions best{.tokens = 14, .temperature = 0};
  const Tensor text = generate(model, prompts, best, rng, {.key_mask = mask});
  REQUIRE(text.shape() == Shape{3, 19});
  const std::vector<int64_t> padding{3, 0, 1};
  for (int64_t b = 0; b < 3; ++b) {
    INFO(b);
    const int64_t from = padding[static_cast<std::size_t>(b)];
    const Tensor alone = narrow(narrow(prompts, 0, b, 1), 1, from, 5 - from);
    CHECK(generate(model, alone, best, rng).to_vector<int64_t>() ==
          narrow(narrow(text, 0, b, 1), 1, from, 19 - from).to_vector<int64_t>());
  }
  CHECK(generate(model, prompts, best, rng).to_vector<int64_t>() != text.to_vector<int64_t>());
  const Tensor behind = flip(mask, {1});
  CHECK_THROWS_WITH(generate(model, prompts, best, rng, {.key_mask = behind}), Contains("padded in front"));
  CHECK_THROWS_WITH(generate(model, prompts, best, rng, {.key_mask = narrow(mask, 1, 0, 4)}), Contains("key_mask"));
  CHECK_THROWS_WITH(generate(model, prompts, {.stop = 12}, rng), Contains("stop=12 is none of the 12 tokens"));
}
