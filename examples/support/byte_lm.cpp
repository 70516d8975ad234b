#include "support/byte_lm.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace sluice::examples {

namespace {
Tensor bytes_at(std::string_view text, const std::vector<int64_t>& starts, int64_t n, Device device) {
  Tensor x = empty({static_cast<int64_t>(starts.size()), n}, {i64});
  int64_t* p = x.mutable_data<int64_t>();
  for (int64_t s : starts)
    for (int64_t i = 0; i < n; ++i) *p++ = static_cast<unsigned char>(text[static_cast<std::size_t>(s + i)]);
  return to(x, device);
}
}  // namespace

double learning_rate(double lr, double done) {
  if (done < 0.02) return lr * (0.02 + 0.98 * done / 0.02);
  return lr * (0.05 + 0.95 * 0.5 * (1 + std::cos(3.14159265358979 * (done - 0.02) / 0.98)));
}

Batch random_batch(std::string_view text, int64_t batch, int64_t n, Rng& rng, Device device) {
  std::vector<int64_t> starts = randint(0, static_cast<int64_t>(text.size()) - n, {batch}, rng).to_vector<int64_t>();
  Tensor window = bytes_at(text, starts, n + 1, device);
  return {narrow(window, 1, 0, n), narrow(window, 1, 1, n)};
}

double bits_per_byte(const std::function<Tensor(const Tensor&)>& model, std::string_view text, int64_t n, Device device,
                     const Communicator& ranks) {
  NoGrad guard;
  const int64_t size = static_cast<int64_t>(text.size()), half = std::max<int64_t>(1, n / 2);
  double nats = 0;
  int64_t counted = 0;
  // Windows overlap by half; each scores only its second half (the first window all of it).
  constexpr int64_t together = 16;
  std::vector<int64_t> starts;
  int turn = 0;  // whose windows these are
  auto flush = [&] {
    if (std::exchange(turn, (turn + 1) % ranks.size()) != ranks.rank()) starts.clear();
    if (starts.empty()) return;
    Tensor window = bytes_at(text, starts, n + 1, device);
    Tensor loss =
        cross_entropy(model(narrow(window, 1, 0, n)), narrow(window, 1, 1, n), {.reduction = Reduction::none});
    std::vector<double> values = loss.to_vector<double>();
    for (std::size_t b = 0; b < starts.size(); ++b)
      for (int64_t i = starts[b] == 0 ? 0 : half; i < n; ++i, ++counted)
        nats += values[b * static_cast<std::size_t>(n) + static_cast<std::size_t>(i)];
    starts.clear();
  };
  for (int64_t s = 0; s + n + 1 <= size; s += n - half) {
    starts.push_back(s);
    if (static_cast<int64_t>(starts.size()) == together) flush();
  }
  flush();
  const auto sums = all_reduce(Tensor::from<double>({nats, static_cast<double>(counted)}), ranks).to_vector<double>();
  return sums[0] / sums[1] / std::log(2.0);
}

std::string sample(const ByteLm& model, std::string_view prompt, int64_t count, double temperature, Rng& rng) {
  const std::string_view begin = prompt.empty() ? std::string_view("\n") : prompt;
  const Tensor tokens = bytes_at(begin, {0}, static_cast<int64_t>(begin.size()), model.head.weight.device());
  std::string out;
  for (const int64_t byte :
       generate(model, tokens, {.tokens = count, .temperature = temperature}, rng).to_vector<int64_t>())
    out += static_cast<char>(byte);
  return out;
}

}  // namespace sluice::examples
