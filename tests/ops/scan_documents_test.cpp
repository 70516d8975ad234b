// Scans over documents that stand one behind the other: a decay of −∞ at the first step of each keeps them apart,
// whatever they hold and wherever a chunk begins.
#include "support/approx.h"
#include "support/catch.h"

#include <sluice/autograd/engine.h>
#include <sluice/core/number/random.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/rows/reduce.h>
#include <sluice/ops/scan/delta_scan.h>
#include <sluice/ops/scan/linear_scan.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/shape/join.h>
#include <sluice/ops/shape/view.h>

#include <functional>
#include <limits>

using namespace sluice;
using namespace sluice::testing;

namespace {

constexpr int64_t kBatch = 2, kHeads = 2, kWidth = 6, kValues = 5;
const std::vector<int64_t> kLengths{5, 59, 1, 3, 70, 17, 64, 2};
constexpr std::size_t kBroken = 4;  // the document that holds NaN

using Scan = std::function<Tensor(const std::vector<Tensor>& operands)>;

/// out and the gradients of the first `leaves` operands, with history if they are `recorded`.
std::vector<Tensor> run(const Scan& scan, std::vector<Tensor> operands, std::size_t leaves, const Tensor& cotangent,
                        bool recorded) {
  for (std::size_t i = 0; i < leaves; ++i) operands[i] = operands[i].detach().requires_grad_();
  const Tensor out = scan(operands);
  std::vector<Tensor> results = grad({out}, {operands.begin(), operands.begin() + std::ptrdiff_t(leaves)},
                                     {.create_graph = recorded, .grad_outputs = {cotangent}});
  results.insert(results.begin(), out.detach());
  return results;
}

/// `widths` are those of the operands before the decay, which has `channels` or, if 0, one number for all, and has a
/// gradient if it is `learned`.
void check_documents(const std::string& what, const Scan& scan, const std::vector<int64_t>& widths, int64_t channels,
                     bool learned, bool recorded) {
  Rand rand(5);
  std::vector<std::vector<Tensor>> parts;  // of each operand
  for (const int64_t width : widths) {
    parts.emplace_back();
    for (const int64_t n : kLengths) parts.back().push_back(random_tensor({kBatch, kHeads, n, width}, f64, rand) * 0.5);
  }
  parts.emplace_back(), parts.emplace_back();
  for (const int64_t n : kLengths) {
    const Shape shape = channels ? Shape{kBatch, kHeads, n, channels} : Shape{kBatch, kHeads, n};
    const Tensor first = expand(unsqueeze(arange(n, {f64}) == 0.0, -1), {n, std::max<int64_t>(channels, 1)});
    parts[widths.size()].push_back(masked_fill(neg(abs(random_tensor(shape, f64, rand))),
                                               channels ? first : squeeze(first, -1),
                                               -std::numeric_limits<double>::infinity()));
    parts[widths.size() + 1].push_back(random_tensor({kBatch, kHeads, n, kValues}, f64, rand));  // the cotangent
  }
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (std::size_t i = 0; i < widths.size(); ++i) parts[i][kBroken] = parts[i][kBroken] * nan;
  std::vector<Tensor> whole;
  for (const std::vector<Tensor>& p : parts) whole.push_back(cat(p, 2));
  const Tensor cotangent = whole.back();
  whole.pop_back();
  const std::vector<Tensor> together = run(scan, whole, widths.size() + learned, cotangent, recorded);
  int64_t begin = 0;
  for (std::size_t d = 0; d < kLengths.size(); begin += kLengths[d++]) {
    std::vector<Tensor> own;
    for (std::size_t i = 0; i <= widths.size(); ++i) own.push_back(parts[i][d]);
    const std::vector<Tensor> alone = run(scan, own, widths.size() + learned, parts.back()[d], recorded);
    for (std::size_t i = 0; d != kBroken && i < alone.size(); ++i) {
      INFO(what << ", document " << d << ", result " << i);
      CHECK(max(abs(narrow(together[i], 2, begin, kLengths[d]) - alone[i])).item() < 1e-13);
    }
  }
}

}  // namespace

TEST_CASE("scans: documents behind a decay of −∞ are as each alone, beside NaN", "[linear_scan][delta_scan]") {
  const std::vector<int64_t> linear{kWidth, kWidth, kValues}, delta{kWidth, kWidth, kWidth, kValues};
  for (const int64_t chunk : {1, 16, 64, 1000})
    for (const int64_t channels : {int64_t{0}, kWidth}) {
      const std::string what = str("chunk ", chunk, channels ? ", by channel" : "");
      const auto delta_scanned = [&](const auto& x) {
        return delta_scan(x[0], x[1], x[2], x[3], x[4], {}, {.chunk = chunk}).out;
      };
      for (const bool recorded : {false, true})
        for (const bool learned : {false, true}) {
          check_documents("delta_scan, " + what, delta_scanned, delta, channels, learned, recorded);
          for (LinearScanOptions o : {LinearScanOptions{}, {.reverse = true}, {.exclusive = true}}) {
            o.chunk = chunk;
            check_documents(
                str("linear_scan, ", what, o.reverse ? ", reverse" : "", o.exclusive ? ", exclusive" : ""),
                [&](const auto& x) { return linear_scan(x[0], x[1], x[2], x[3], o); }, linear, channels, learned,
                recorded);
          }
        }
    }
}

TEST_CASE("scans: nothing of a state of NaN is left behind a decay of −∞, nor in gradients there", "[delta_scan]") {
  constexpr int64_t n = 20, reset = 7;
  Rng rng(4);
  const auto random = [&](int64_t rows, int64_t width) { return normal({1, 2, rows, width}, 0, 0.5, rng, {f64}); };
  const auto late = [](const Tensor& x) { return x.dim(2) == n ? narrow(x, 2, reset, n - reset) : x; };
  const Tensor cotangent = cat({zeros({1, 2, reset, kValues}, {f64}), random(n - reset, kValues)}, 2);
  const Tensor state = random(kWidth, kValues), of_state = random(kWidth, kValues);
  for (const int64_t channels : {int64_t{1}, kWidth}) {
    Tensor decay = neg(abs(random(n, channels))), forgets = narrow(decay, 2, reset, 1);
    fill_(forgets, -std::numeric_limits<double>::infinity());
    decay = channels == 1 ? squeeze(decay, -1) : decay;
    const std::vector<Tensor> rows{random(n, kWidth), random(n, kWidth), random(n, kWidth), random(n, kValues), decay};
    const auto results = [&](bool carry, const Tensor& initial, bool recorded) {
      std::vector<Tensor> x = rows;
      x.push_back(initial);
      for (Tensor& leaf : x) leaf = clone(leaf).requires_grad_();
      const DeltaScanResult r = delta_scan(x[0], x[1], x[2], x[3], x[4], x[5], {.chunk = 8});
      const Tensor loss = carry ? sum(late(linear_scan_carry(x[0], x[5], x[4])) * late(cotangent))
                                : sum(late(r.out) * late(cotangent)) + sum(r.state * of_state);
      std::vector<Tensor> all = grad({loss}, x, {.create_graph = recorded, .allow_unused = true});
      all.push_back(loss);
      return all;
    };
    for (const bool carry : {false, true})
      for (const bool recorded : {false, true}) {
        const std::vector<Tensor> want = results(carry, state, recorded),
                                  got = results(carry, state * std::numeric_limits<double>::quiet_NaN(), recorded);
        for (std::size_t i = 0; i < want.size(); ++i) {
          INFO("carry " << carry << ", recorded " << recorded << ", channels " << channels << ", result " << i);
          if (i + 1 == want.size()) CHECK(got[i].item() == want[i].item());
          else if (want[i].defined()) CHECK(max_abs_diff(late(got[i]), late(want[i])) < 1e-13);
        }
      }
  }
}
