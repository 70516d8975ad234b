// Golden cases of attention over selected keys: tests/golden/next/{nsa,moba_and_dsa}.safetensors.
#include "golden/next.h"

#include <sluice/layers/attention/selected_attention.h>

using namespace sluice;
using namespace sluice::testing;

namespace {

template <class Sizes> Sizes sizes_of(const Json& config) {
  Sizes s;
  from_json("sizes", config, s);
  return s;
}

}  // namespace

TEST_CASE("golden: NSA, its blocks and its gradients", "[golden][layers]") {
  const Golden g("nsa");
  const auto sizes = sizes_of<NsaSizes>(g.config);
  CHECK(same_bits(nsa_blocks(g.input("q"), g.input("k"), sizes), g.file.tensors.at("output.blocks")));
  g.check({{"", nsa_attention(g.input("q"), g.input("k"), g.input("v"), g.input("gates"), sizes)}});
}

TEST_CASE("golden: MoBA and DSA, their masks and their gradients", "[golden][layers]") {
  const Golden g("moba_and_dsa");
  const auto sizes = sizes_of<MobaSizes>(g.config.at("moba"));
  const int64_t topk = g.config.at("dsa").at("topk").get<int64_t>();
  const Tensor q = g.input("q"), k = g.input("k"), v = g.input("v");
  const KeyIndex index{g.input("index_q"), g.input("index_k"), g.input("index_w")};
  const AttentionMask blocks{.causal = true, .blocks = moba_blocks(q, k, sizes), .block = sizes.block};
  CHECK(same_bits(visible_pairs(blocks, 2, 4, 22, 22), g.file.tensors.at("output.moba_mask")));
  CHECK(same_bits(index_mask(index, topk, {.causal = true}), g.file.tensors.at("output.dsa_mask")));

  const Tensor moba = moba_attention(q, k, v, sizes), dsa = dsa_attention(q, k, v, index, topk);
  Golden::close("output.moba", moba.detach(), g.file.tensors.at("output.moba"));
  Golden::close("output.dsa", dsa.detach(), g.file.tensors.at("output.dsa"));
  backward(sum(moba * g.file.tensors.at("cotangent.moba")) + sum(dsa * g.file.tensors.at("cotangent.dsa")));
  for (const char* name : {"q", "k", "v"})
    Golden::close(name, g.input(name).grad(), g.file.tensors.at(std::string("grad.input.") + name));
  for (const char* name : {"index_q", "index_k", "index_w"}) CHECK_FALSE(g.input(name).grad().defined());
}
