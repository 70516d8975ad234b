// Whole models trained where SLUICE_TEST_DEVICE says, in f32: their losses follow those of the same models in f64 on
// cpu, and what they have learnt goes through a file to cpu.
#include <sluice/layers/train/training.h>

#include "support/approx.h"
#include "support/catch.h"
#include "support/temp_folder.h"

#include <sluice/autograd/engine.h>
#include <sluice/layers/gau/flash.h>
#include <sluice/layers/gau/gau.h>
#include <sluice/layers/attention/multi_head_attention.h>
#include <sluice/layers/nn/linear.h>
#include <sluice/layers/nn/mlp.h>
#include <sluice/layers/nn/norm.h>
#include <sluice/layers/train/clip.h>
#include <sluice/layers/train/optim.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/rows/loss.h>

using namespace sluice;
using namespace sluice::testing;

namespace {

constexpr int64_t kDim = 24, kWords = 19;

Gau mixer(const Gau*, Rng& rng) { return Gau({.dim = kDim, .key_dim = 16, .causal = true}, rng); }
Flash mixer(const Flash*, Rng& rng) { return Flash({.dim = kDim, .key_dim = 16, .chunk = 8, .causal = true}, rng); }
MultiHeadAttention mixer(const MultiHeadAttention*, Rng& rng) {
  return MultiHeadAttention(
      {.heads = {.dim = kDim, .heads = 2, .causal = true, .use_rope = true, .residual = true}, .gates = {{}}}, rng);
}

template <class Mixer> struct Model {
  static constexpr const char* type = "Model";
  Embedding embed;
  Mixer first, second;
  Glu feed;
  Norm norm;
  Linear head;
  explicit Model(Rng& rng)
      : embed({kWords, kDim, 0.5}, rng), first(mixer(static_cast<const Mixer*>(nullptr), rng)),
        second(mixer(static_cast<const Mixer*>(nullptr), rng)), feed({.dim = kDim}, rng), norm({kDim, NormKind::rms}),
        head({kDim, kWords}, rng) {}
  Tensor operator()(const Tensor& x) const {
    const Tensor y = second(first(embed(x)));
    return head(norm(y + feed(y)));
  }
  SLUICE_PARTS(embed, first, second, feed, norm, head);
};

template <class Mixer> struct Run {
  Rng rng{3};
  Model<Mixer> model{rng};
  std::vector<double> losses;

  Run(DType dtype, Device device) {
    to(model, dtype), to(model, device);
    Adam adam(parameters(model), {.lr = 0.01, .weight_decay = 0.05});
    Rng data(5);
    for (int step = 0; step < 4; ++step) {
      const Tensor words = to(randint(0, kWords, {3, 21}, data), device);
      adam.zero_grad();
      Tensor loss = cross_entropy(model(words), words);
      backward(loss);
      clip_grad_norm(adam.parameters(), 1.0);
      adam.step();
      losses.push_back(loss.item());
    }
  }
};

template <class Mixer> void check() {
  const Run<Mixer> want(f64, cpu);
  Run<Mixer> got(f32, test_device());
  for (std::size_t i = 0; i < want.losses.size(); ++i)
    CHECK(std::abs(got.losses[i] - want.losses[i]) < 1e-4 * want.losses[i]);
  CHECK(want.losses.back() < want.losses.front());

  const TempFolder folder;
  save(got.model, folder / "model.safetensors");
  Rng rng(4);
  Model<Mixer> here(rng);
  load(here, folder / "model.safetensors");
  const Tensor words = randint(0, kWords, {2, 9}, rng);
  const Tensor there = got.model(to(words, test_device()));
  CHECK(max_abs_diff(here(words), there) < 1e-4);
}

}  // namespace

TEST_CASE("training: GAU, gated attention and FLASH learn in f32 as in f64", "[train][device]") {
  SECTION("GAU") { check<Gau>(); }
  SECTION("gated attention") { check<MultiHeadAttention>(); }
  SECTION("FLASH") { check<Flash>(); }
}

TEST_CASE("stream: goes on where its model goes", "[streaming][device]") {
  const auto moves = [](auto mixer) {
    Rng rng(5);
    auto model = mixer(rng);
    const Tensor x = normal({2, 20, kDim}, 0, 1, rng), want = model(x);
    Stream stream;
    Tensor first = step(model, narrow(x, 1, 0, 11), stream);
    to(model, test_device()), to(stream, test_device());
    const Tensor y = step(model, to(narrow(x, 1, 11, 9), test_device()), stream);
    CHECK(y.device() == test_device());
    CHECK(max_abs_diff(cat({first, to(y, cpu)}, 1), want) < 1e-4 * max_abs(want));
  };
  moves([](Rng& rng) { return mixer(static_cast<const Gau*>(nullptr), rng); });
  moves([](Rng& rng) { return mixer(static_cast<const Flash*>(nullptr), rng); });
}

TEST_CASE("stream: one of which a tensor cannot be moved stays where it is", "[streaming][device]") {
  Stream stream;
  {
    StreamStep running(stream, 1);
    stream.next("first", "sum").tensors = {ones({2})};
    stream.next("second", "sum").tensors = {ones({2}, {f32, meta})};
    running.end();
  }
  CHECK_THROWS_AS(to(stream, Device::cuda()), DeviceError);
  std::vector<Device> devices;
  stream.each_tensor([&](const Tensor& t) { devices.push_back(t.device()); });
  CHECK(devices == std::vector<Device>{cpu, meta});
}
