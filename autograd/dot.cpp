#include <sluice/autograd/dot.h>

#include <sluice/core/node.h>
#include <sluice/core/text/print.h>

#include <map>

namespace sluice {

std::string to_dot(const Tensor& y, const std::vector<std::pair<std::string, Tensor>>& names) {
  std::map<const Node*, std::string> label;
  for (const auto& [name, x] : names)
    if (x.requires_grad()) label[x.impl().history.get()] = name;
  std::string out = "digraph tape {\n  rankdir=BT;\n  node [fontname=\"monospace\"];\n";
  std::map<const Node*, std::size_t> id;
  std::vector<const Node*> order;
  auto visit = [&](const Node* n) {
    auto [it, fresh] = id.try_emplace(n, id.size());
    if (fresh) order.push_back(n);
    return it->second;
  };
  if (y.requires_grad()) visit(y.impl().history.get());
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
      if (e.node) out += str("  n", visit(e.node.get()), " -> n", i, ";\n");
  }
  return out + "}\n";
}

}  // namespace sluice
