// Packed query projections of published checkpoints.
#include "registry.h"

#include <sluice/layers/attention/attention_conversion.h>

namespace layer_check {

using namespace sluice;

namespace {

struct PackingCall {
  QProjPacking packing = QProjPacking::per_head;
  int64_t heads = 4, kv_heads = 2, head_dim = 4;
  GateGranularity granularity = GateGranularity::elementwise;
  static void describe(auto& o, auto& f) {
    f("packing", o.packing,
      "per_kv_group [kv_heads, heads/kv_heads*dk | heads/kv_heads*(dk or 1)], the paper's code; per_head [heads, dk | "
      "dk or 1], Qwen3-Next");
    f("heads", o.heads, at_least(1), "query heads");
    f("kv_heads", o.kv_heads, at_least(1), "key and value heads");
    f("head_dim", o.head_dim, at_least(1), "dk");
    f("granularity", o.granularity, "a gate score per channel or per head");
  }
};

Layer& add_packing(std::vector<Layer>& all, const std::string& name, const std::string& formula) {
  return add(all, name, "attention", formula, "the code of Qiu et al. 2025; Qwen3-Next")
      .derive({{"scores", "heads*head_dim if granularity == 'elementwise' else heads"}})
      .samples({{{"packing", "per_kv_group"}},
                {{"granularity", "headwise"}},
                {{"packing", "per_kv_group"}, {"granularity", "headwise"}}});
}

}  // namespace

void add_conversions(std::vector<Layer>& all) {
  add_packing(all, "unpack_q_proj",
              "output.query and output.gate of one packed q_proj [dim, width]; the output is both side by side")
      .input("weight [dim, heads*head_dim + scores]", "transposed from PyTorch's [out, in]")
      .output("[dim, heads*head_dim + scores]")
      .output("query [dim, heads*head_dim]")
      .output("gate [dim, scores]")
      .runs<PackingCall>([](const PackingCall& o, const Inputs& in) -> Results {
        const auto [query, gate] =
            unpack_q_proj(in["weight"], o.packing, o.heads, o.kv_heads, o.head_dim, o.granularity);
        return {{"", cat({query, gate}, -1)}, {"query", query}, {"gate", gate}};
      });
  add_packing(all, "pack_q_proj", "one packed q_proj from query and gate")
      .input("query [dim, heads*head_dim]")
      .input("gate [dim, scores]")
      .output("[dim, heads*head_dim + scores]")
      .runs<PackingCall>([](const PackingCall& o, const Inputs& in) {
        return pack_q_proj({in["query"], in["gate"]}, o.packing, o.heads, o.kv_heads, o.head_dim, o.granularity);
      });
}

}  // namespace layer_check
