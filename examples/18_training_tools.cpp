// The tools of longer trainings: parameter groups, a schedule, clipping, an averaged model, early stopping, and a run
// that is interrupted and goes on bit for bit.
#include <sluice/sluice.h>

#include <cstdio>
#include <filesystem>

using namespace sluice;

struct Net {
  static constexpr const char* type = "Net";
  Linear in;
  Mlp hidden;
  Linear out;
  explicit Net(Rng& rng)
      : in({2, 32}, rng), hidden({.dim = 32, .activation = Act::tanh, .dropout = 0.05}, rng), out({32, 1}, rng) {}
  Tensor operator()(const Tensor& x, const Pass& pass = {}) const { return squeeze(out(hidden(in(x), pass)), 1); }
  SLUICE_PARTS(in, hidden, out);
};

struct Data {
  Tensor x, y;
  Data(int64_t n, uint64_t seed) {
    Rng rng(seed);
    x = uniform({n, 2}, -1, 1, rng);
    y = sin(select(x, 1, 0) * 4.0) * select(x, 1, 1) + normal({n}, 0, 0.1, rng);
  }
};

double error(const Net& net, const Data& data) {
  NoGrad guard;
  return mse_loss(net(data.x), data.y).item();
}

struct Outcome {
  int64_t steps;
  double valid, averaged, best;
};

/// Trains until `patience` epochs have brought nothing, or, as a power cut would, until step `cut`.
Outcome train(const std::string& folder, int64_t total, int64_t cut) {
  const Data data(400, 1), valid(200, 2);
  Rng rng(3);
  const Net net(rng), average = clone(net);
  // The matrix of `out` learns at half the rate; biases do not decay.
  Adam adam(parameters(net),
            {.lr = 0.01,
             .weight_decay = 0.02,
             .groups = {{[](const NamedTensor& p) { return p.name == "out.weight"; }, /*lr_factor=*/0.5}}});
  const Schedule rate = cosine_schedule({.lr = 0.01, .warmup = 20, .total = total, .floor = 1e-4});
  Loader loader({.rows = 400, .batch = 32, .seed = 4}, [&](const Tensor& rows) {
    return std::pair(index_select(data.x, 0, rows), index_select(data.y, 0, rows));
  });

  const std::string file = folder + "/checkpoint.safetensors", average_file = folder + "/average.safetensors";
  std::map<std::string, std::string> notes{{"best", "1e9"}, {"since", "0"}};  // what else a resumed run must know
  if (std::filesystem::exists(file)) {
    const TrainingState state = load_checkpoint(net, file, adam, rng);
    load(average, average_file);
    loader.seek(state.position), notes = state.config;
  }
  CsvLog log(folder + "/log.csv", {"step", "validation", "averaged"}, loader.position() + 1);
  double best = std::stod(notes["best"]);
  int64_t since = std::stoll(notes["since"]);
  const int64_t patience = 20;
  while (loader.position() < std::min(total, cut) && since < patience) {
    for (const auto& [x, y] : loader) {
      adam.zero_grad();
      backward(mse_loss(net(x, {.rng = &rng}), y));
      clip_grad_norm(adam.parameters(), 1);
      adam.set_lr(rate(adam.steps()));
      adam.step();
      update_average(average, net, 0.98);
    }
    const double now = error(average, valid);
    log.append({double(loader.position()), error(net, valid), now});
    since = now < best ? 0 : since + 1;
    if (now < best) best = now, save(average, folder + "/best.safetensors");
    save(average, average_file);
    TrainingState state{.step = adam.steps(), .position = loader.position()};
    state.config = {{"best", str(best)}, {"since", str(since)}};
    save_checkpoint(net, file, adam, rng, state);
  }
  write_svg_curve(folder + "/curve.svg", {.title = "Training tools", .y_label = "squared error"},
                  {log.series("validation"), log.series("averaged")});
  return {loader.position(), error(net, valid), error(average, valid), best};
}

int main(int argc, char**) try {
  const int64_t total = argc > 1 ? 52 : 2600;  // 13 batches an epoch; any argument (--smoke): short
  for (const char* folder : {"whole", "cut"})
    std::filesystem::remove_all(folder), std::filesystem::create_directory(folder);
  const Outcome whole = train("whole", total, total);
  train("cut", total, total / 2);
  const Outcome resumed = train("cut", total, total);
  std::printf("%lld steps: error %.4f, of the averaged model %.4f, its best %.4f\n", (long long)whole.steps,
              whole.valid, whole.averaged, whole.best);
  const bool same = whole.steps == resumed.steps && whole.valid == resumed.valid && whole.best == resumed.best;
  std::printf("interrupted and resumed: %s\n", same ? "the same, bit for bit" : "OTHER FIGURES");
  return same ? 0 : 1;
} catch (const std::exception& e) {
  std::fprintf(stderr, "error: %s\n", e.what());
  return 1;
}

// Expected output:
// …
// interrupted and resumed: the same, bit for bit
