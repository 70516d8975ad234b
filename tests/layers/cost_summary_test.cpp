// summary(model, input): shapes, parameters and exact work of every module.
#include "support/catch.h"

#include <sluice/autograd/profile.h>
#include <sluice/layers/attention/multi_head_attention.h>
#include <sluice/layers/nn/mlp.h>
#include <sluice/layers/report/summary.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/elementwise/elementwise.h>

using namespace sluice;

namespace {

struct Net {
  static constexpr const char* type = "Net";
  Embedding words;
  std::vector<Mlp> blocks;
  Linear head;
  explicit Net(Rng& rng) : words({11, 6, 1}, rng), head({6, 11}, rng) {
    for (int i = 0; i < 2; ++i) blocks.emplace_back(MlpOptions{.dim = 6, .hidden = 10}, rng);
  }
  Tensor operator()(const Tensor& tokens) const {
    ModuleScope scope(this, type);
    Tensor x = words(tokens);
    for (const Mlp& b : blocks) x = x + b(x);
    return head(x);
  }
  SLUICE_PARTS(words, blocks, head);
};

}  // namespace

TEST_CASE("summary of a forward pass: shapes, parameters and work by module", "[cost]") {
  Rng rng(1);
  const Net net(rng);
  const std::vector<ModuleCost> rows = module_costs(net, zeros({2, 5}, {i64}));
  const int64_t in = 2 * 10 * 6 * 10, head = 2 * 10 * 6 * 11;
  const struct {
    const char* path;
    Shape output;
    int64_t parameters, flops;
  } expected[] = {
      {"", {2, 5, 11}, 11 * 6 + 2 * (60 + 10 + 60 + 6) + 6 * 11 + 11, 4 * in + head},
      {"words", {2, 5, 6}, 66, 0},
      {"blocks.0", {2, 5, 6}, 136, 2 * in},
      {"blocks.0.in", {2, 5, 10}, 70, in},
      {"blocks.0.out", {2, 5, 6}, 66, in},
      {"blocks.1", {2, 5, 6}, 136, 2 * in},
      {"blocks.1.in", {2, 5, 10}, 70, in},
      {"blocks.1.out", {2, 5, 6}, 66, in},
      {"head", {2, 5, 11}, 77, head},
  };
  REQUIRE(rows.size() == std::size(expected));
  for (std::size_t i = 0; i < rows.size(); ++i) {
    INFO(expected[i].path);
    CHECK(rows[i].path == expected[i].path);
    REQUIRE(rows[i].output);
    CHECK(*rows[i].output == expected[i].output);
    CHECK(rows[i].parameters == expected[i].parameters);
    CHECK(rows[i].work.flops == expected[i].flops);
    CHECK(rows[i].work.bytes > 0);
  }
  // The product's tensors, the bias among them.
  CHECK(rows[8].work.bytes == 4 * (10 * 6 + 6 * 11 + 11 + 10 * 11));
  const std::string table = summary(net, zeros({2, 5}, {i64}));
  CHECK_THAT(table, Contains("blocks.1.out") && Contains("[2,5,11]") && Contains(std::to_string(4 * in + head)));
  CHECK(net.head.weight.device() == cpu);
  Profile profile;
  CHECK(summary(net, zeros({2, 5}, {i64})) == table);  // beside another observer
}

TEST_CASE("summary with a pass: context, masks and documents", "[cost]") {
  Rng rng(1);
  const MultiHeadAttention cross({.heads = {.dim = 8, .heads = 2, .context_dim = 6}}, rng),
      self({.heads = {.dim = 8, .heads = 2}}, rng);
  const Tensor x = zeros({2, 5, 8}), context = zeros({2, 3, 6}), real = ones({2, 5}) > 0.0;
  const Tensor documents = zeros({2, 5}, {i64});
  CHECK_THROWS_WITH(summary(cross, x), Contains("needs a context [batch, k, 6]"));
  const std::vector<ModuleCost> rows = module_costs(cross, x, {.context = context, .context_mask = ones({2, 3}) > 0.0});
  CHECK(*rows[0].output == Shape{2, 5, 8});
  CHECK(rows[0].work.flops == 2 * 2 * (5 * 8 * 8 * 2 + 3 * 6 * 8 * 2 + 2 * 5 * 3 * 8));
  CHECK(summary(self, x, {.key_mask = real, .segments = documents}).find("[2,5,8]") != std::string::npos);
  CHECK(context.device() == cpu);
  const Mlp mlp({.dim = 8, .hidden = 8}, rng);
  CHECK_THROWS_WITH(summary(mlp, x, {.context = context}), "pass: nothing in the model has read context");
  const Net net(rng);  // takes no pass
  CHECK_THROWS_WITH(summary(net, zeros({2, 5}, {i64}), {.key_mask = real}), Contains("has read key_mask"));
  Stream stream;
  CHECK_THROWS_WITH(summary(self, x, {.stream = &stream}), Contains("summary: ") && Contains("stream"));
}
