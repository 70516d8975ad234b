// What checkpoints cost in memory.
#include <sluice/layers/train/training.h>

#include "support/catch.h"
#include "support/temp_folder.h"

#include <sluice/core/memory/allocator.h>
#include <sluice/layers/nn/linear.h>

using namespace sluice;
using namespace sluice::testing;

namespace {

/// 24 matrices of 16 KB.
struct Stack {
  std::vector<Linear> layers;
  Stack() {
    Rng rng(1);
    for (int i = 0; i < 24; ++i) layers.emplace_back(LinearOptions{.in = 64, .out = 64, .bias = false}, rng);
  }
  SLUICE_PARTS(layers);
};
constexpr int64_t kWeights = 24 * 64 * 64 * 4;  // bytes

}  // namespace

TEST_CASE("training: while a checkpoint is written, one rank holds the moments of all", "[training][parallel]") {
  TempFolder folder;
  int64_t grown = 0;
  run_ranks(4, [&](const Communicator& all) {
    const Stack model;
    Adam adam(parameters(model));
    adam.shard(all);
    const Rng rng(2);
    int64_t before = 0;
    all.barrier();
    if (all.rank() == 0) reset_peak_memory(), before = memory_stats().live;
    all.barrier();
    save_checkpoint(model, folder / "checkpoint", adam, rng, {}, all);
    all.barrier();
    if (all.rank() == 0) grown = memory_stats().peak - before;
    all.barrier();
  });
  INFO(grown << " bytes beside weights of " << kWeights);
  CHECK(grown < 3 * kWeights);  // Adam's moments are two
}

TEST_CASE("training: a checkpoint takes no generator that only one rank has", "[training][parallel]") {
  TempFolder folder;
  const auto save = [&](const Communicator& all) {
    const Stack model;
    save_checkpoint(model, folder / "own", Adam(parameters(model)), Rng(all.rank() == 1 ? 8 : 7), {}, all);
  };
  CHECK_THROWS_WITH(run_ranks(3, save), Contains("save_checkpoint: seed and offset of the generator: rank 1 has "
                                                 "another one — got '8, 0'"));
}

TEST_CASE("training: what is no tensor of a checkpoint is read without its tensors", "[training]") {
  TempFolder folder;
  const Stack model;
  const Adam adam(parameters(model));
  save_checkpoint(model, folder / "checkpoint", adam, Rng(2), {.step = 7, .config = {{"note", "x"}}, .position = 30});
  reset_peak_memory();
  const int64_t before = memory_stats().live;
  const TrainingState state = read_checkpoint_state(folder / "checkpoint");
  CHECK(state.step == 7);
  CHECK(state.position == 30);
  CHECK(state.config.at("note") == "x");
  CHECK(memory_stats().peak - before < kWeights / 10);
}

TEST_CASE("training: every rank has the configuration, whatever it holds", "[training][parallel]") {
  TempFolder folder;
  const std::map<std::string, std::string> config{{"a", std::string("x\0y", 3)}, {"b", "z"}, {"", "\"\\"}};
  run_ranks(2, [&](const Communicator& all) {
    const Stack model;
    Adam adam(parameters(model));
    Rng rng(2);
    save_checkpoint(model, folder / "checkpoint", adam, rng, {.step = 7, .config = config, .position = 30}, all);
    const TrainingState state = load_checkpoint(model, folder / "checkpoint", adam, rng, all);
    CHECK(state.config == config);
    CHECK(std::pair(state.step, state.position) == std::pair<int64_t, int64_t>(7, 30));
  });
}
