// The main example: trains a byte-level GAU language model on a text and compares it with n-gram models.
//
//   gau_lm --text FILE [--out DIR] [--minutes M | --steps N] …        (examples/run.sh does it all)
//   mpirun -n 4 gau_lm …                                              (examples/run.sh --ranks 4)
//
// Several ranks share each batch: the same windows are drawn, whatever their number. In the output folder:
// checkpoint.safetensors, log.csv, curve.svg. Ctrl-C saves; the same command resumes.
#include "support/byte_lm.h"
#include "support/corpus.h"
#include "support/interrupt.h"
#include "support/ngram.h"
#include "support/options.h"
#include "support/ranks.h"

#include <sluice/core/number/number.h>
#include <sluice/parallel/mpi/world.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <numbers>
#include <optional>

using namespace sluice;
using namespace sluice::examples;

namespace {

struct Settings {
  std::string text, out = "gau_lm_out", prompt = "The ", device = "cpu";
  DType dtype = f32;
  double minutes = 4, lr = 4e-3, temperature = 0.8, dropout = 0;
  int64_t steps = 0;    // > 0: stop by steps instead of minutes
  int64_t profile = 0;  // this step's kernel calls are shown
  int64_t dim = 128, layers = 4, key_dim = 64, context = 256, batch = 16, evals = 12, sample = 200, seed = 1;
  int64_t threads = 0;
  bool bf16 = false, shard = false, fresh = false, smoke = false;
};

Settings parse(int argc, char** argv) {
  Settings s;
  OptionList o;
  o("text", s.text, "file to learn from (bytes)");
  o("out", s.out, "folder for checkpoint, log and curve");
  o("minutes", s.minutes, above(0), "training time");
  o("steps", s.steps, at_least(0), "train this many steps instead");
  o("dim", s.dim, at_least(1), "width of the model");
  o("layers", s.layers, at_least(1), "number of GAU blocks");
  o("key-dim", s.key_dim, at_least(1), "width of queries and keys");
  o("context", s.context, at_least(8), "bytes the model sees");
  o("batch", s.batch, at_least(1), "windows per step");
  o("lr", s.lr, "highest learning rate");
  o("dropout", s.dropout, "dropout probability");
  o("evals", s.evals, at_least(1),
    "validations, evenly over the training, beside the one before it; by the clock fewer where they take long");
  o("sample", s.sample, at_least(1), "bytes of text to sample at the end");
  o("prompt", s.prompt, "start of the sample");
  o("temperature", s.temperature, at_least(0), "of the sample");
  o("seed", s.seed, at_least(0), "of the random generator");
  o("threads", s.threads, at_least(0), "0: one per core");
  o("device", s.device, "cpu, or cuda where there is a GPU");
  o("profile", s.profile, at_least(0), "show where the time of this step goes; its trace is trace.json");
  o("dtype", s.dtype, "of weights and activations: f32, f64, or bf16, with master copies in f32");
  o("bf16", s.bf16, "products of bf16 operands, with f32 sums: several times as fast where the processor has AMX");
  o("shard", s.shard, "several ranks: each keeps the optimiser's moments for its share of the weights only");
  o("fresh", s.fresh, "ignore an existing checkpoint");
  o("smoke", s.smoke, "a few tiny steps on a built-in text");
  parse_flags("gau_lm", "trains a byte-level GAU language model", o, argc, argv);
  if (s.smoke) {
    s.steps = s.steps ? s.steps : 8;
    s.dim = 32, s.layers = 2, s.key_dim = 16, s.context = 32, s.batch = 4, s.sample = 20;
  } else if (s.text.empty()) {
    throw std::runtime_error("gau_lm: --text FILE is needed (or --smoke); see --help");
  }
  return s;
}

std::map<std::string, std::string> config_of(const Settings& s, double elapsed) {
  return {{"dim", std::to_string(s.dim)},
          {"layers", std::to_string(s.layers)},
          {"key_dim", std::to_string(s.key_dim)},
          {"context", std::to_string(s.context)},
          {"batch", std::to_string(s.batch)},
          {"seed", std::to_string(s.seed)},
          {"elapsed_ms", std::to_string(static_cast<int64_t>(elapsed * 1000))}};
}

/// A checkpoint of another model cannot be gone on from: says which option differs, and what to do.
void check_sizes(const Settings& s, const std::string& checkpoint) {
  const TrainingState old = read_checkpoint_state(checkpoint);
  const auto now = config_of(s, 0);
  for (const char* key : {"dim", "layers", "key_dim"}) {
    const auto before = old.config.find(key);
    if (before == old.config.end() || before->second == now.at(key)) continue;
    const std::string option = str("--", key == std::string_view("key_dim") ? "key-dim" : key);
    fail<ValueError>("gau_lm: ", checkpoint, " is of a model with ", option, " ", before->second, " — got ", option,
                     " ", now.at(key), "; to go on with it give ", option, " ", before->second,
                     ", to begin anew --fresh or another --out");
  }
}

/// Bytes as a line of text; a dot for each that is none.
std::string printable(std::string text) {
  for (char& c : text)
    if (c < ' ' || c > '~') c = '.';
  return text;
}

/// What ranks must have in common.
std::string settings_text(const Settings& s) {
  return str("minutes ", s.minutes, "\nsteps ", s.steps, "\nlr ", s.lr, "\ndropout ", s.dropout, "\ndim ", s.dim,
             "\nlayers ", s.layers, "\nkey_dim ", s.key_dim, "\ncontext ", s.context, "\nbatch ", s.batch, "\nevals ",
             s.evals, "\nseed ", s.seed, "\nprofile ", s.profile, "\ndtype ", s.dtype, "\nbf16 ", s.bf16, "\nshard ",
             s.shard, "\nfresh ", s.fresh, "\nsmoke ", s.smoke);
}

constexpr double kBits = 1 / std::numbers::ln2;  // bits of a nat

/// Makes this process one of the run's ranks, and locks the run's folder: of two runs in it each would undo the other's
/// work.
std::unique_ptr<FolderLock> begin(const Settings& s, const Communicator& ranks) {
  if (s.threads > 0) set_num_threads(static_cast<int>(s.threads));
  if (s.bf16) set_precision(Precision::bf16);
  only_first_prints(ranks);
  ranks.check_same("settings", settings_text(s));
  std::unique_ptr<FolderLock> folder;
  on_rank_0(ranks, [&] { folder = std::make_unique<FolderLock>(s.out); });
  return folder;
}

/// A rank's part of one training: go_on(), baselines(), train(), then stopped or report().
struct Run {
  Run(const Settings& settings, const Communicator& of)
      : s(settings), ranks(of), folder(begin(s, ranks)), rng(static_cast<uint64_t>(s.seed)) {
    if (s.shard) adam.shard(ranks);
    std::printf("machine   %s%s\n", describe_machine().c_str(),
                ranks.size() == 1 ? "" : str(" on each of ", ranks.size(), " ranks").c_str());
    std::printf("text      %s: %zu bytes to train on, %zu to validate\n",
                s.text.empty() ? "(built in)" : s.text.c_str(), split.train.size(), valid.size());
    std::printf("model     %lld GAU blocks, width %lld, %lld parameters%s%s\n", (long long)s.layers, (long long)s.dim,
                (long long)count(model), s.bf16 ? ", products of bf16" : "", device == cpu ? "" : ", on the GPU");
  }

  /// Takes up the checkpoint of an earlier run, if there is one.
  void go_on() {
    if (s.fresh || of_first(std::filesystem::exists(checkpoint), ranks) == 0) return;
    on_rank_0(ranks, [&] { check_sizes(s, checkpoint); });
    const TrainingState state = load_checkpoint(model, checkpoint, adam, rng, ranks);
    first = step = state.step;
    const auto note = state.config.find("elapsed_ms");
    const double ms = note == state.config.end() ? 0 : parse_double(note->second).value_or(-1);
    if (!(ms >= 0) || std::isinf(ms))
      fail<IOError>("gau_lm: '", checkpoint, "': elapsed_ms must be a time — got \"", note->second, "\"");
    before = ms / 1000;
    std::printf("resume    %s at step %lld\n", checkpoint.c_str(), (long long)step);
  }

  /// What n-gram models reach, and what the model says before it has learned.
  void baselines() {
    if (first_rank) ngram = witten_bell_table(split.train, valid, 4);
    std::printf("baseline  Witten-Bell bits/char on the same bytes: bigram %.3f, trigram %.3f, 4-gram %.3f\n", ngram[1],
                ngram[2], ngram[3]);
    if (first_rank && step == 0) {
      Rng own(static_cast<uint64_t>(s.seed));
      const int64_t bytes = std::min({s.sample, s.context, int64_t{60}});
      std::printf("untrained %s\n", printable(sample(model, s.prompt, bytes, s.temperature, own)).c_str());
    }
    std::fflush(stdout);
  }

  /// Trains until the work is done. Returns false if somebody stopped it. Both leave a checkpoint.
  bool train() {
    on_rank_0(ranks, [&] {
      const std::vector<std::string> columns{"step", "seconds", "training", "validation", "lr"};
      log.emplace(s.out + "/log.csv", columns, step > 0 ? step + 1 : 0);  // without a checkpoint step 0 comes again
    });
    catch_interrupts();
    start = Clock::now();
    look();
    Progress progress({.steps = s.steps, .done = now, .out = first_stderr(ranks), .device = device});
    // One GPU replays its steps; ranks exchange gradients, which no graph records.
    GraphedStep graphed(adam, [&](const std::vector<Tensor>& in) { return loss_of(in[0], in[1], rng); },
                        {.max_norm = 1});
    if (step == 0) validate(progress);
    while (now < 1 && !stops) {
      const Batch batch = random_batch(split.train, s.batch, s.context, rng, device);  // the same on all ranks
      const Tensor inputs = rows_of(batch.inputs, ranks), targets = rows_of(batch.targets, ranks);
      adam.set_lr(learning_rate(s.lr, now));
      const bool profiled = step + 1 == s.profile, replayed = device != cpu && ranks.size() == 1 && !profiled;
      const Tensor loss = replayed   ? graphed({inputs, targets})
                          : profiled ? profiled_step(inputs, targets, progress)
                                     : train_step(inputs, targets);
      ++step;
      const double value = parallel.mean(loss.defined() ? loss.item() : 0, double(targets.numel()));
      look();
      if (!std::isfinite(value)) throw std::runtime_error(str("gau_lm: the loss is not finite at step ", step));
      loss_sum += value, ++loss_count;
      const double speed = double((step - first) * s.batch * s.context) / (elapsed() - before);
      progress.update(step, {{"bits/char", value * kBits}, {"bytes/s", speed}}, now);
      if (progress.milestone(s.evals)) {
        if (affordable()) validate(progress);
        save();
      }
    }
    progress.finish();
    if (step > first) save();
    if (stops)
      std::printf("\nsaved     %s at step %lld; the same command resumes\n", checkpoint.c_str(), (long long)step);
    return !stops;
  }

  /// The result beside the baselines, a curve, and a sample of the model's text.
  void report() {
    if (step == first)
      valid_bits = bits_per_byte(model, valid, s.context, device, ranks);  // this run had nothing left to do
    if (!first_rank) return;
    write_svg_curve(s.out + "/curve.svg", {.title = "GAU byte-level language model", .y_label = "bits per character"},
                    {log->series("training", true), log->series("validation")},
                    {{"bigram", ngram[1]}, {"trigram", ngram[2]}, {"4-gram", ngram[3]}});
    std::printf("\nresult    validation %.3f bits/char after %lld steps, %.1f minutes\n", valid_bits, (long long)step,
                elapsed() / 60);
    const char* names[] = {"bigram", "trigram", "4-gram"};
    for (std::size_t i = 0; i < 3; ++i)
      std::printf("          %s the %s baseline (%.3f)\n", valid_bits < ngram[i + 1] ? "below" : "ABOVE", names[i],
                  ngram[i + 1]);
    const std::string words = sample(model, s.prompt, std::min(s.sample, s.context), s.temperature, rng);
    std::printf("sample    %s\nfiles     %s/{checkpoint.safetensors,log.csv,curve.svg}\n", words.c_str(),
                s.out.c_str());
  }

  using Clock = std::chrono::steady_clock;

  ByteLm fresh_model() {
    ByteLm m({s.dim, s.layers, s.key_dim, s.dropout}, rng);
    to(m, s.dtype), to(m, device);
    return m;
  }
  Tensor loss_of(const Tensor& inputs, const Tensor& targets, Rng& dropout) {
    return cross_entropy(model(inputs, {.rng = &dropout}), targets);
  }
  /// One update of the weights. Returns the loss of this rank's rows; undefined if it has none.
  Tensor train_step(const Tensor& inputs, const Tensor& targets) {
    Rng own = stream_of(rng, ranks);  // for dropout
    adam.zero_grad();
    const Tensor loss = targets.numel() > 0 ? loss_of(inputs, targets, ranks.size() == 1 ? rng : own) : Tensor();
    parallel.backward(loss, double(targets.numel()));
    clip_grad_norm(adam.parameters(), 1.0);
    adam.step();
    return loss;
  }
  /// A train_step() that says where its time went.
  Tensor profiled_step(const Tensor& inputs, const Tensor& targets, Progress& progress) {
    parallel.take_traffic();
    const Profile profile({.modules = name_modules(model)});
    Tensor loss = train_step(inputs, targets);
    progress.finish();
    std::printf("\nstep %lld\n%s\n%s", (long long)step + 1, profile.table().c_str(),
                traffic_table(parallel.take_traffic()).c_str());
    if (first_rank) profile.save_trace(s.out + "/trace.json");
    return loss;
  }

  double elapsed() const { return before + std::chrono::duration<double>(Clock::now() - start).count(); }
  /// What share is done, and whether somebody wants the run to stop: by rank 0's clock and rank 0's signals, which its
  /// sign says.
  void look() {
    const double done = s.steps ? double(step) / double(s.steps) : elapsed() / (60 * s.minutes);
    const double said = of_first(std::copysign(std::min(1.0, done), interrupted() ? -1 : 1), ranks);
    now = std::abs(said), stops = std::signbit(said);
  }
  void validate(Progress& progress) {
    const double begun = elapsed();
    valid_bits = bits_per_byte(model, valid, s.context, device, ranks);
    const double train_bits = loss_sum / double(loss_count) * kBits;  // not a number before the first step
    if (log) log->append({double(step), elapsed(), train_bits, valid_bits, adam.lr()});
    const auto three = [](double v) { return std::round(v * 1000) / 1000; };
    progress.note(str("step ", step, loss_count > 0 ? str(": train ", three(train_bits), ",") : ":", " validation ",
                      three(valid_bits), " bits/char"));
    loss_sum = 0, loss_count = 0;
    validating += elapsed() - begun;
  }
  /// A run by the clock spends a tenth of it at most, but for the last validation; a run by steps validates where it
  /// always does.
  bool affordable() const {
    return s.steps > 0 || now >= 1 || of_first(validating < 0.1 * (elapsed() - before), ranks) > 0;
  }
  void save() {
    save_checkpoint(model, checkpoint, adam, rng, {.step = step, .config = config_of(s, elapsed())}, ranks);
  }

  const Settings& s;
  const Communicator& ranks;
  std::unique_ptr<FolderLock> folder;  // on rank 0
  const bool first_rank = ranks.rank() == 0;
  const std::string checkpoint = s.out + "/checkpoint.safetensors", text = common_text(s.text, ranks);
  const std::size_t window = static_cast<std::size_t>(s.context) + 1;
  const Split split = split_text(text, window);
  const std::string_view valid = baseline_part(split.valid, window);
  const Device device = device_named(s.device);

  Rng rng;
  ByteLm model = fresh_model();
  DataParallel parallel{model, ranks};
  Adam adam{parameters(model), {.lr = s.lr, .beta2 = 0.95, .weight_decay = 0.05}};

  std::optional<CsvLog> log;  // on rank 0
  std::vector<double> ngram = std::vector<double>(5);
  int64_t first = 0, step = 0, loss_count = 0;     // steps before this run; steps; those of loss_sum
  double before = 0, loss_sum = 0;                 // seconds trained in earlier runs
  double now = 0, valid_bits = 0, validating = 0;  // the share that is done; the last validation; seconds of them
  bool stops = false;                              // somebody wants the run to stop
  Clock::time_point start = Clock::now();
};

int run(const Settings& s, const Communicator& ranks) {
  Run run(s, ranks);
  run.go_on();
  run.baselines();
  if (run.train()) run.report();
  return 0;
}

int program(int argc, char** argv) {
  const Settings s = parse(argc, argv);
  return run_world([&](const Communicator& ranks) { return run(s, ranks); });
}

}  // namespace

int main(int argc, char** argv) { return run_program(program, argc, argv); }
