// Attention in tiles: what it saves, how tiles matter, and what masks save. Claims C17, C19 and C44.
#include "claims/claim.h"
#include "claims/fit.h"
#include "support/study.h"

#include <sluice/sluice.h>

#include <cmath>

using namespace sluice;
using namespace sluice::examples;

namespace {

struct Operands {
  Tensor q, k, v;
  Operands(int64_t heads, int64_t n, int64_t width, const Run& run) {
    Rng rng(static_cast<uint64_t>(run.seed));
    for (Tensor* x : {&q, &k, &v}) *x = normal({1, heads, n, width}, 0, 1, rng);
  }
  Tensor tiled(const AttentionOptions& o = {}) const { return attention(q, k, v, o); }
  /// The weights as a tensor, written and read twice: by the products, and by softmax.
  Tensor stored() const { return matmul(softmax(matmul(q / std::sqrt(double(q.dim(3))), transpose(k, -2, -1))), v); }
};
/// Bytes of the tensors that the kernels of f read and write.
double bytes_of(const std::function<Tensor()>& f) {
  detail::WorkCounter counter;
  f();
  return double(counter.work().bytes);
}

void c17(const Run& run, Result& r) {
  NoGrad guard;
  const int64_t width = 64, n = 2048;
  const Operands x(1, n, width, run);
  const double stored = bytes_of([&] { return x.stored(); }), once = bytes_of([&] { return x.tiled(); });
  r.add("bytes with stored weights over those of one pass, n = 2048, d_k = 64", stored / once);
  double by_64 = 0;
  for (const int64_t rows : {64, 128, 512}) {
    // Each tile of queries reads keys and values again; the counter of a kernel counts its tensors once.
    const double again = double((n / rows - 1) * 2 * n * width) * double(size_of(f32));
    const double q = stored / (once + again);
    if (rows == 64) by_64 = q;
    r.add("the same with keys and values read by every tile of " + std::to_string(rows) + " queries", q, "",
          rows == 64 ? std::optional(30.0) : std::nullopt);
  }
  const std::vector<double> lengths = {512, 1024, 2048, 4096, 8192};
  std::vector<double> gains;
  std::vector<std::function<void()>> programs;
  for (const double length : lengths) {
    const auto rows = static_cast<int64_t>(length);
    const Operands y(2, run.smoke ? rows / 16 : rows, width, run);
    programs.push_back([y] { y.stored(); }), programs.push_back([y] { y.tiled(); });
  }
  const std::vector<Rounds> seconds = alternating(programs, run.smoke ? 3 : 40, run);
  std::vector<Rounds> quotients;
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    const Measured gain = ratio_in_rounds(seconds[2 * i], seconds[2 * i + 1]);
    r.add("time with stored weights over that in tiles, forward, n = " + text(lengths[i]), gain);
    gains.push_back(gain.value), quotients.push_back(seconds[2 * i]);
    for (std::size_t k = 0; k < quotients.back().size(); ++k) quotients.back()[k] /= seconds[2 * i + 1][k];
  }
  draw_over_length(run, r, "Attention of two heads of 64, forward", "stored weights over tiles", lengths,
                   {{.name = "gain", .y = gains}});
  const Measured slope = slope_in_rounds(lengths, quotients);
  r.add("exponent of that gain in n", slope);
  // The traffic is arithmetic, with tiles of d_k queries as in the paper's algorithm; speed is a claim about GPUs.
  const Measured longest = {gains.back()};
  r.verdict = all({equals({by_64}, 30, 0.2), can_only_show(all({exceeds(longest, 2), exceeds(slope)}))});
  r.why = "one pass would save " + text(stored / once) + " times the traffic, but tiles of 64 queries save " +
          text(by_64) + " times, because each reads all keys and values; on a CPU tiles are " + text(gains.front()) +
          " times as fast at " + "n = 512 and " + text(gains.back()) + " times at n = 8192";
  r.size = "a GPU, where fewer bytes make the difference";
}

void c19(const Run& run, Result& r) {
  NoGrad guard;
  const int64_t n = run.smoke ? 128 : 2048, block = run.smoke ? 16 : 128;
  const Operands x(2, n, 64, run);
  const std::vector<int64_t> columns = {16, 32, 64, 128, 256, 512, 1024};
  std::vector<std::function<void()>> programs;
  for (const int64_t c : columns) programs.push_back([&x, c] { x.tiled({.tile_rows = 64, .tile_cols = c}); });
  const auto by_columns = alternating(programs, run.smoke ? 3 : 40, run, 0.5);
  std::vector<Measured> over;
  for (std::size_t i = 0; i < columns.size(); ++i) {
    over.push_back(ratio_in_rounds(by_columns[i], by_columns[4]));
    r.add("time with tiles of " + std::to_string(columns[i]) + " columns over that with 256", over.back());
  }
  // Block masks of a part of all blocks, drawn at random, equally many in each row. A tile is a block, so that it is
  // computed as a whole or not at all.
  const int64_t count = n / block;
  const std::vector<double> densities = {1, 0.5, 0.25, 0.125};
  std::vector<AttentionOptions> masks;
  Rng rng(static_cast<uint64_t>(run.seed));
  for (const double density : densities) {
    const auto kept = static_cast<int64_t>(density * double(count));
    const Tensor blocks = topk_mask(uniform({count, count}, 0, 1, rng), kept);
    masks.push_back({.mask = block_mask(blocks, block), .tile_rows = block, .tile_cols = block});
  }
  programs.clear();
  for (const AttentionOptions& o : masks) programs.push_back([&x, &o] { x.tiled(o); });
  const auto by_density = alternating(programs, run.smoke ? 3 : 40, run);
  for (std::size_t i = 0; i < masks.size(); ++i)
    r.add("time with " + text(100 * densities[i]) + " % of the blocks over that with all",
          ratio_in_rounds(by_density[i], by_density[0]));
  const Measured slope = slope_in_rounds(densities, by_density);
  r.add("exponent of time in the density of blocks", slope, "", 1);
  // Which tile suffices is a claim about a GPU's shared memory; the density counts the tiles that are computed.
  r.verdict = all({can_only_show(all({exceeds(over[0], 1), exceeds(over[2], 1), equals(over[6], 1, 0.15)})),
                   equals(slope, 1, 0.15)});
  r.why = "tiles of 16 columns take " + text(over[0]) + " times the time of 256, of 64 " + text(over[2]) +
          " and of 1024 " + text(over[6]) + "; time goes with the exponent " + text(slope) +
          " of the density of blocks";
  r.size = "a quiet machine and more rounds, or a GPU, whose shared memory bounds the tile";
}

void c44(const Run& run, Result& r) {
  NoGrad guard;
  const int64_t window = run.smoke ? 8 : 256, heads = 2, width = 64;
  const std::vector<double> lengths = {256, 512, 1024, 2048, 4096, 8192};
  const AttentionOptions in_window{.mask = {.causal = true, .window = window}}, all_keys{.mask = {.causal = true}};
  std::vector<std::function<void()>> programs;
  for (const AttentionOptions& o : {in_window, all_keys})
    for (const double length : lengths) {
      const auto n = static_cast<int64_t>(length);
      programs.push_back([o, x = Operands(heads, run.smoke ? n / 16 : n, width, run)] { x.tiled(o); });
    }
  const std::vector<Rounds> seconds = alternating(programs, run.smoke ? 3 : 60, run, 0.75);
  const std::vector<Rounds> of_window(seconds.begin(), seconds.begin() + 6), of_all(seconds.begin() + 6, seconds.end());
  const std::vector<Measured> sparse = medians_of(of_window), dense = medians_of(of_all);
  for (std::size_t i = 0; i < lengths.size(); ++i)
    r.add("time of all keys over that of a window of 256, causal, n = " + text(lengths[i]),
          ratio_in_rounds(of_all[i], of_window[i]));
  // From twice the window on: before, the window does not bind all queries.
  const Measured in_n = slope_in_rounds({lengths.begin() + 1, lengths.end()}, {of_window.begin() + 1, of_window.end()});
  r.add("exponent of time in n, window of 256", in_n, "", 1);
  // Windows of several tiles: a tile that a window cuts is computed as a whole.
  const int64_t n = run.smoke ? 256 : 16384;
  const Operands x(heads, n, width, run);
  std::vector<double> keys;  // of all queries, of which the first ones see fewer than k
  programs.clear();
  for (const int64_t k : {512, 1024, 2048, 4096}) {
    const int64_t seen = run.smoke ? k / 64 : k;
    keys.push_back(double(n * seen - seen * (seen - 1) / 2));
    programs.push_back([&x, seen] { x.tiled({.mask = {.causal = true, .window = seen}}); });
  }
  const Measured in_k = slope_in_rounds(keys, alternating(programs, run.smoke ? 3 : 20, run));
  r.add("exponent of time in the n·k pairs of windows of 512 to 4,096, n = 16,384", in_k, "", 1);
  const auto milliseconds = [](const std::vector<Measured>& times) {
    std::vector<double> ms;
    for (const Measured& t : times) ms.push_back(1000 * t.value);
    return ms;
  };
  draw_over_length(
      run, r, "Causal attention of two heads of 64, forward", "ms", lengths,
      {{.name = "all keys", .y = milliseconds(dense)}, {.name = "window of 256", .y = milliseconds(sparse)}});
  const Crossover c = crossover(lengths, sparse, dense);
  r.verdict = all({equals(in_n, 1, 0.15), equals(in_k, 1, 0.25)});
  r.why = "time grows with the exponent " + text(in_n) + " of n and " + text(in_k) +
          " of n·k; the window of 256 is faster than all keys " + text(c, lengths);
  r.size = "a quiet machine and more rounds";
}

}  // namespace

int main(int argc, char** argv) {
  return run_claims("claim_tiles", {{"C17", c17}, {"C19", c19}, {"C44", c44}}, argc, argv);
}
