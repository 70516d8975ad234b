// Sequences of 8,192 bases: whose gene is this? A tape of 16S ribosomal RNA genes, one after the other without marks
// between them; for every base the model says of which of eleven phyla the gene is that it belongs to. 4,000 genes to
// train on, other 1,000 for the tapes of the test. FLASH against GAU and softmax attention of equal parameters, and
// against what counting does: logistic regression on the 256 kinds of four bases in a row, in the 768 bases around a
// place. All get about the same time: FLASH reads many more tapes in it.
//
//   long_rrna --data rRNA16S.gold.fasta [--steps N] [--length N] [--smoke]
//
// examples/report.sh fetches the data (Debian package microbiomeutil-data). FOLDER gets rrna.svg: accuracy over
// processor time.
#include "support/encoder.h"
#include "support/options.h"
#include "support/study.h"

#include <ctime>
#include <filesystem>
#include <fstream>
#include <map>

using namespace sluice;
using namespace sluice::examples;

namespace {

struct Gene {
  std::string bases;  // as 0 … 3
  int64_t phylum;
};
struct Genes {
  std::vector<Gene> train, test;
  int64_t phyla = 0;
};

/// Records ">name … ⇥ Domain; Phylum; …", then lines of bases. Phyla of fewer than 20 genes are left out.
Genes read_genes(const std::string& path, Rng& rng) {
  std::ifstream in(path);
  if (!in) fail<IOError>("long_rrna: cannot open '", path, "'; examples/report.sh fetches it");
  std::map<std::string, std::vector<std::string>> of_phylum;
  std::string* bases = nullptr;
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with('>')) {
      const auto domain = line.find("; ", line.rfind('\t'));
      const auto end = line.find(';', domain + 1);
      bases = &of_phylum[line.substr(domain + 2, end - domain - 2)].emplace_back();
    } else if (bases) {
      for (char c : line) {
        const char base = static_cast<char>(c & ~0x20);                                 // as a capital
        *bases += base == 'C' ? '\1' : base == 'G' ? '\2' : base == 'T' ? '\3' : '\0';  // unknown ones as A
      }
    }
  }
  std::vector<Gene> all;
  Genes out;
  for (auto& [name, genes] : of_phylum) {
    std::erase(genes, "");
    if (genes.size() < 20) continue;
    for (std::string& g : genes) all.push_back({std::move(g), out.phyla});
    ++out.phyla;
  }
  if (out.phyla < 2)
    fail<IOError>("long_rrna: '", path, "' has ", out.phyla,
                  " phyla of 20 genes or more in lines \">… ⇥ Domain; Phylum; …\"; need two");
  const Tensor order = permutation(std::ssize(all), rng);
  for (size_t i = 0; i < all.size(); ++i)
    (i % 5 == 0 ? out.test : out.train).push_back(all[size_t(order.data<int64_t>()[i])]);
  return out;
}

/// Genes of chance in a row, from chance's place on: bases and phyla, i64 [1, n] each.
struct Tape {
  Tensor bases, phyla;
};
Tape draw_tape(const std::vector<Gene>& genes, int64_t n, Rng& rng) {
  std::vector<int64_t> bases, phyla;
  auto chance = [&](int64_t below) { return size_t(randint(0, below, {1}, rng).item<int64_t>()); };
  for (size_t from = chance(1500); std::ssize(bases) < n; from = 0) {
    const Gene& g = genes[chance(std::ssize(genes))];
    for (size_t i = std::min(from, g.bases.size()); i < g.bases.size(); ++i)
      bases.push_back(g.bases[i]), phyla.push_back(g.phylum);
  }
  bases.resize(size_t(n)), phyla.resize(size_t(n));
  return {Tensor::from(bases, {1, n}), Tensor::from(phyla, {1, n})};
}

/// k bases in a row as one number below 4^k, that of each place and its followers; after the tape's end comes its
/// beginning.
Tensor words(const Tensor& bases, int64_t k) {
  Tensor w = bases;
  for (int64_t i = 1; i < k; ++i) w = w * 4 + cat({narrow(bases, 1, i, bases.dim(1) - i), narrow(bases, 1, 0, i)}, 1);
  return w;
}

struct Reader {
  Embedding embed;  // of six bases in a row
  Encoder encoder;
  Linear out;
  Reader(const EncoderOptions& o, int64_t phyla, Rng& rng)
      : embed({4096, o.dim, 0.1}, rng), encoder(o, rng), out({o.dim, phyla}, rng) {}
  /// bases i64 [batch, n] → logits [batch, n, phyla].
  Tensor operator()(const Tensor& bases, const Pass& pass = {}) const {
    return out(encoder(embed(words(bases, 6)), pass));
  }
  SLUICE_PARTS(embed, encoder, out);
};

/// Logistic regression on the shares of words of four within 384 places to either side (256 and 512 are worse).
struct Counts {
  Linear out;
  Counts(int64_t phyla, Rng& rng) : out({256, phyla}, rng) {}
  Tensor operator()(const Tensor& bases) const {
    const int64_t n = bases.dim(1), reach = std::min<int64_t>(384, n / 2);
    const Tensor sums = pad(cumsum(one_hot(words(bases, 4), 256), 1), 1, 1, 0);  // [batch, n + 1, 256]
    const Tensor place = arange(n, {f32}), last = to(clamp(place + double(reach), 0, double(n)), i64);
    const Tensor first = to(clamp(place - double(reach), 0), i64);
    const Tensor near = index_select(sums, 1, last) - index_select(sums, 1, first);
    return out(16 * sqrt(near / sum(near, {-1}, keep)) - 1);
  }
  SLUICE_PARTS(out);
};

struct Settings {
  std::string data = "build/data/rRNA16S.gold.fasta", out = "build/report";
  int64_t length = 8192, steps = 800, softmax_steps = 128, gau_steps = 80;
  int64_t dim = 32, layers = 2, chunk = 256, tests = 60, seed = 1;
  double lr = 5e-3;
  bool smoke = false;
};

struct Result {
  double right = 0, microseconds = 0;  // % of bases; processor time of training, a token, over two cores
  Series curve;                        // % of a training tape over processor time
};
template <class Model>
Result train(const char* name, const Model& model, const Genes& genes, int64_t steps, double lr, const Settings& s) {
  Rng rng(static_cast<uint64_t>(s.seed) + 1000);  // the same tapes for all
  Adam adam(parameters(model), {.weight_decay = 0.01});
  const Schedule rate = cosine_schedule({.lr = lr, .warmup = steps / 20, .total = steps + 1, .floor = lr / 50});
  Result r{.curve = {name, {}, {}, true}};
  double ticks = 0;
  for (int64_t step = 0; step < steps; ++step) {
    const Tape tape = draw_tape(genes.train, s.length, rng);
    const std::clock_t begun = std::clock();
    adam.zero_grad();
    const Tensor logits = model(tape.bases);
    backward(cross_entropy(logits, tape.phyla));
    clip_grad_norm(adam.parameters(), 1.0);
    adam.set_lr(rate(step));
    adam.step();
    ticks += double(std::clock() - begun) / CLOCKS_PER_SEC / 2;
    r.curve.x.push_back(ticks), r.curve.y.push_back(100 * mean(to(eq(argmax(logits, 2), tape.phyla), f32)).item());
  }
  NoGrad guard;
  Rng test(7);
  for (int64_t i = 0; i < s.tests; ++i) {
    const Tape tape = draw_tape(genes.test, s.length, test);
    r.right += 100 * mean(to(eq(argmax(model(tape.bases), 2), tape.phyla), f32)).item() / double(s.tests);
  }
  r.microseconds = 1e6 * ticks / double(steps * s.length);
  std::printf("%-22s %8lld %8lld %10.1f %10.2f\n", name, (long long)count(model), (long long)steps, r.microseconds,
              r.right);
  std::fflush(stdout);
  return r;
}

int program(int argc, char** argv) {
  Settings s;
  OptionList o;
  o("data", s.data, "rRNA16S.gold.fasta");
  o("out", s.out, "folder of the picture");
  o("length", s.length, at_least(1), "bases of a tape");
  o("steps", s.steps, at_least(1), "updates of FLASH and of the counts, one tape each");
  o("softmax-steps", s.softmax_steps, at_least(1), "updates of softmax attention");
  o("gau-steps", s.gau_steps, at_least(1), "updates of GAU");
  o("dim", s.dim, at_least(1), "width");
  o("layers", s.layers, at_least(1), "FLASH or GAU layers; half as many Transformer blocks");
  o("chunk", s.chunk, at_least(1), "chunk of FLASH");
  o("lr", s.lr, "highest learning rate");
  o("seed", s.seed, at_least(0), "of split, weights and tapes");
  o("smoke", s.smoke, "made-up genes, two steps");
  parse_flags("long_rrna", "phyla along tapes of ribosomal genes: FLASH, GAU, softmax attention, counts", o, argc,
              argv);
  std::filesystem::create_directories(s.out);  // before the long work
  Rng rng(static_cast<uint64_t>(s.seed));
  Genes genes;
  if (s.smoke) {
    s.length = 128, s.steps = s.softmax_steps = s.gau_steps = 2, s.dim = 16, s.chunk = 32, s.tests = 1, genes.phyla = 4;
    for (int64_t i = 0; i < 12; ++i)
      (i < 8 ? genes.train : genes.test).push_back({std::string(60, static_cast<char>(i % 4)), i % 4});
  } else {
    genes = read_genes(s.data, rng);
  }
  std::vector<double> share(size_t(genes.phyla), 0);
  double total = 0;
  for (const Gene& g : genes.test) share[size_t(g.phylum)] += double(g.bases.size()), total += double(g.bases.size());
  std::printf(
      "%zu genes to train on, %zu to test, %lld phyla; tapes of %lld bases; always the largest phylum: %.1f %%\n\n"
      "model                   weights    steps   µs/token   %% right\n",
      genes.train.size(), genes.test.size(), (long long)genes.phyla, (long long)s.length,
      100 * *std::max_element(share.begin(), share.end()) / total);
  auto reader = [&](Mixing mixing) {
    Rng weights(static_cast<uint64_t>(s.seed));
    return Reader(
        {.mixing = mixing, .dim = s.dim, .layers = s.layers, .key_dim = s.dim / 2, .heads = 2, .chunk = s.chunk},
        genes.phyla, weights);
  };
  const Result counts = train("counts of four bases", Counts(genes.phyla, rng), genes, s.steps, 1e-2, s);
  const Result flash = train("FLASH", reader(Mixing::flash), genes, s.steps, s.lr, s);
  const Result softmax = train("softmax", reader(Mixing::softmax), genes, s.softmax_steps, s.lr, s);
  const Result gau = train("GAU", reader(Mixing::gau), genes, s.gau_steps, s.lr, s);
  write_svg_curve(s.out + "/rrna.svg",
                  {.title = str("Phyla along tapes of ", s.length, " bases"),
                   .x_label = "processor time of two cores, seconds",
                   .y_label = "% of bases right (training)"},
                  {flash.curve, softmax.curve, gau.curve}, {{"counts", counts.right}});
  auto speed = [](const Result& r) { return fixed(r.right, 1) + " %, " + fixed(r.microseconds, 1) + " µs/token"; };
  print_result("long_rrna", str("FLASH, n = ", s.length, ": ", speed(flash)),
               str("counts of 4-mers: ", fixed(counts.right, 1), " %; in the same time softmax: ", speed(softmax),
                   "; GAU: ", speed(gau)),
               flash.right > counts.right, s.seed);
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return run_program(program, argc, argv); }

// Expected output of long_rrna --data build/data/rRNA16S.gold.fasta (two busy cores):
//
// 4060 genes to train on, 1015 to test, 11 phyla; tapes of 8192 bases; always the largest phylum: 37.8 %
//
// model                   weights    steps   µs/token   % right
// counts of four bases       2827      800        1.4      92.84
// FLASH                    145547      800        3.4      95.27
// softmax                  145115      128       24.1      35.21
// …
