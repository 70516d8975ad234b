#include <sluice/autograd/dot.h>

#include <sluice/autograd/walk.h>
#include <sluice/core/text/print.h>

#include <map>

namespace sluice {

std::string to_dot(const Tensor& y, const std::vector<std::pair<std::string, Tensor>>& names) {
  std::map<const Node*, std::string> label;
  for (const auto& [name, x] : names)
    if (x.requires_grad()) label[x.impl().history.get()] = name;
  std::string out = "digraph tape {\n  rankdir=BT;\n  node [fontname=\"monospace\"];\n";
  std::vector<const Node*> order;
  detail::NodeMap number;
  const Edge root{y.requires_grad() ? y.impl().history : Ref<Node>()};
  detail::each_node({&root, 1}, [&](const Node& n) {
    number.insert(&n, static_cast<uint32_t>(order.size()));
    order.push_back(&n);
  });
  for (std::size_t i = 0; i < order.size(); ++i) {
    const Node* n = order[i];
    out += str("  n", i, " [label=\"", n->is_leaf() ? "" : detail::escaped(n->name()));
    if (auto it = label.find(n); it != label.end()) {
      if (!n->is_leaf()) out += ' ';
      out += detail::escaped(it->second);
    }
    for (const OutputMeta& m : n->outputs) out += str("\\n", m.shape, " ", m.dtype);
    out += n->is_leaf() ? "\", shape=box, style=filled, fillcolor=lightgoldenrod1];\n" : "\"];\n";
    for (const Edge& e : n->edges)
      if (e.node) out += str("  n", number.find(e.node.get()), " -> n", i, ";\n");
  }
  return out + "}\n";
}

}  // namespace sluice
