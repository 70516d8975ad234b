// Which kernels serve the attention of each sample of the table of layers in bf16.
#include "support/catch.h"
#include "support/table_samples.h"

#include <sluice/autograd/engine.h>
#include <sluice/cuda/attention/bf16.h>
#include <sluice/cuda/attention/products.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/rows/reduce.h>
#include <sluice/ops/shape/create.h>

#include <algorithm>
#include <array>
#include <map>

using namespace sluice;
using namespace sluice::testing;
using cuda::AttentionServer;

namespace {

const Json* find(const Json::Object& options, const std::string& name) {
  const auto at = std::find_if(options.begin(), options.end(), [&](const auto& o) { return o.first == name; });
  return at == options.end() ? nullptr : &at->second;
}
void set(Json::Object& options, const std::string& name, int64_t value) {
  std::erase_if(options, [&](const auto& o) { return o.first == name; });
  options.emplace_back(name, Json(value));
}

/// The sample with heads of 64 columns, and with chunks and blocks of 16 tokens, the fewest rows of a tile.
Json enlarged(const LayerRow& row, const Json& sample) {
  Json::Object options = *sample.as<Json::Object>();
  const Json* const given = find(options, "heads");
  const int64_t heads = given ? *given->as<int64_t>() : 1;
  for (const char* name : {"chunk", "block", "select"})
    if (find(options, name)) set(options, name, 16);
  const int64_t pool = row.name == "compressed_attention" ? 2 : 16;  // whose rows of pools are keys: 24 of them
  for (const char* name : {"pool", "index_pool"})
    if (const Json* size = find(options, name); size && *size->as<int64_t>() > 0)
      set(options, name, pool), set(options, "topk", 16), set(options, "index_dim", 64);
  if (find(options, "stride")) set(options, "stride", 2);                               // 17 blocks of 48 tokens
  std::erase_if(options, [](const auto& o) { return o.first == "rope_frequencies"; });  // a number for each column
  for (const Option& o : row.draft().options.all) {
    if (o.name == "dim") set(options, o.name, 64 * std::max<int64_t>(heads, 1));
    if (o.name == "head_dim" || o.name == "key_dim" || o.name == "nope_dim" || o.name == "value_dim" ||
        o.name == "kv_rank")
      set(options, o.name, 64);
    if (o.name == "expansion") set(options, o.name, 128);
  }
  return Json(options);
}

/// The same inputs on the device.
LayerInputs on(Device device, const LayerInputs& in) {
  LayerInputs there = in;
  for (Tensor* x : {&there.x, &there.key_mask, &there.context, &there.context_mask, &there.segments,
                    &there.context_segments, &there.mask, &there.bias, &there.blocks})
    if (x->defined()) *x = to(x->detach(), device);
  if (is_float(there.x.dtype())) there.x.requires_grad_();
  return there;
}

/// The kernels that have served attention since this object was made: t for the general tiles in f32, and on tensor
/// cores r for a rung of the ladder, p for products of matrices; - for none.
class Served {
 public:
  std::string text() const {
    std::string text;
    for (std::size_t i = 0; i < kKinds.size(); ++i)
      if (cuda::attention_calls(kKinds[i]) != before_[i]) text += kNames[i];
    return text.empty() ? "-" : text;
  }

 private:
  static constexpr std::array kKinds{AttentionServer::rungs, AttentionServer::products, AttentionServer::tiles};
  static constexpr char kNames[] = "rpt";
  std::array<int64_t, 3> before_{cuda::attention_calls(kKinds[0]), cuda::attention_calls(kKinds[1]),
                                 cuda::attention_calls(kKinds[2])};
};

/// For each sample of a row what serves it, forward and backward. Rows that are not listed call no attention, whatever
/// their size. The tiles serve two kinds of calls: weights divided by the sum of their row (rownorm), which are f32 on
/// every device because the slopes of the quotient nearly cancel, and the gradients of the one query at a global
/// position.
const std::map<std::string, std::string> kServers{
    {"gau", "p p p p p t p r r p p p p p r p"},
    {"cross_gau", "p r t p"},
    {"tutorial_gau", "r r r"},
    {"flash", "p p p p r t p p - r r p p"},
    {"flash_block", "p p"},
    {"flash_model", "p p p"},
    {"mc_tfm", "r r r p"},
    {"multi_head_attention", "r r r r rpt p p p r r p p p r r p p r r p"},
    {"gated_attention", "r r r r"},
    {"gated_cross_attention", "r r r"},
    {"forgetting_attention", "p r p p p p p r"},
    {"mla", "r r r r r r p p p r r p p"},
    {"nsa_attention", "rp rp rp rp rp rp rp"},
    {"moba_attention", "p p p"},
    {"msa_attention", "p p p p"},
    {"qsa_attention", "p p p p"},
    {"compressed_attention", "rp rp r rp rp rp"},
    {"diff_attention", "r r r r r r r"},
    {"fused_attention", "r r r r"},
    {"topk_attention_layer", "p p p p"},
    {"threshold_attention_layer", "p p p p p"},
    {"sinkhorn_block_attention", "r r r"},
    {"global_local_attention", "rpt p"},
};

}  // namespace

TEST_CASE("cuda attention: what serves each sample of the table in bf16", "[cuda]") {
  for (const LayerRow& row : layer_table()) {
    std::string served;
    bool any = false;
    const auto expected = kServers.find(row.name);
    for (const Json& sample : row.samples) {
      const Json options = expected == kServers.end() ? sample : enlarged(row, sample);
      INFO(row.name << " " << to_text(options));
      LayerSample s = make_sample(row, options, bf16);
      const LayerInputs in = on(Device::cuda(), s.inputs(1, 48, 3));
      s.layer->move(Device::cuda());
      const Served since;
      const Tensor y = call(*s.layer, in);
      if (y.requires_grad()) backward(sum(to(square(y), f32)));
      const std::string text = since.text();
      any |= text != "-", served += (served.empty() ? "" : " ") + text;
    }
    INFO(row.name);
    CHECK((any ? served : "") == (expected == kServers.end() ? "" : expected->second));
  }
}
