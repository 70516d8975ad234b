// Blocks of Qwen3-Next, composed of the library's layers: x += mixer(norm(x)), then x += feed(norm(x)).
#include "golden/next.h"

#include <sluice/layers/attention/multi_head_attention.h>
#include <sluice/layers/linear_attention/delta_net.h>
#include <sluice/layers/nn/mlp.h>
#include <sluice/layers/nn/moe.h>

using namespace sluice;
using namespace sluice::testing;

namespace {

template <class Mixer, class Feed> struct Block {
  static constexpr const char* type = "Block";
  const char* mixer_name;
  Norm mixer_norm, feed_norm;
  Mixer mixer;
  Feed feed;

  Tensor operator()(const Tensor& x, const Pass& pass = {}) const {
    const Tensor y = x + mixer(mixer_norm(x), pass);
    return y + feed(feed_norm(y), pass);
  }
  static void visit(auto& self, auto&& f) {
    f("mixer_norm", self.mixer_norm);
    f(self.mixer_name, self.mixer);
    f("feed_norm", self.feed_norm);
    f("feed", self.feed);
  }
};

/// Output, gradients, and the same rows from a stream. `renamed` are our names of parameters whose names differ.
template <class B> void check(const Golden& g, const B& block, const std::map<std::string, std::string>& renamed = {}) {
  std::map<std::string, Tensor> state;
  std::vector<NamedTensor> parameters;
  for (NamedTensor p : state_dict(block)) {
    const auto other = renamed.find(p.name);
    const std::string ours = p.name;
    if (other != renamed.end()) p.name = other->second;
    state[ours] = g.file.tensors.at("param." + p.name);
    parameters.push_back(p);
  }
  load_state(block, state);
  const Tensor x = g.input("x"), y = block(x);
  g.check({{"", y}}, parameters);
  Stream stream;
  for (const auto& [at, count] : {std::pair<int64_t, int64_t>{0, 4}, {4, 1}, {5, 1}, {6, 5}})
    CHECK(max_abs_diff(step(block, narrow(x, 1, at, count), stream), narrow(y, 1, at, count)) <= 1e-12);
}

Norm rms() { return Norm({.dim = 10, .kind = NormKind::rms, .eps = 1e-6, .dtype = f64}); }

}  // namespace

TEST_CASE("golden: a block of Gated DeltaNet and SwiGLU", "[golden][layers]") {
  Rng rng(1);
  const Golden g("hybrid_block_linear_dense");
  GatedDeltaNetOptions o{};
  from_json("gated_delta_net", *g.config.find("linear"), o);
  o.heads.dtype = f64;
  check(g,
        Block<GatedDeltaNet, Glu>{"linear", rms(), rms(), GatedDeltaNet(o, rng),
                                  Glu({.dim = 10, .hidden = 9, .dtype = f64}, rng)},
        {{"feed.value.weight", "feed.up.weight"}, {"feed.out.weight", "feed.down.weight"}});
}

TEST_CASE("golden: a block of gated attention and a mixture of experts", "[golden][layers]") {
  Rng rng(1);
  const Golden g("hybrid_block_full_moe");
  MultiHeadAttentionOptions o = qwen_attention_options(10, 4, 2, 6);
  o.heads.rope.rot_dim = 4, o.heads.residual = false, o.norm = NormKind::none, o.heads.dtype = f64;
  check(g, Block<MultiHeadAttention, Moe>{
               "full", rms(), rms(), MultiHeadAttention(o, rng),
               Moe({.dim = 10, .hidden = 6, .experts = 5, .top_k = 2, .shared_hidden = 7, .dtype = f64}, rng)});
}
