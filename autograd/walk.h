// State of one backward walk: the waiting nodes and, for grad(), the nodes that the walk must visit.
#pragma once

#include <sluice/autograd/engine.h>
#include <sluice/autograd/node_map.h>

#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace sluice::detail {

/// Gradients that have arrived at a node and have not been processed yet, one per output.
struct Arrived {
  Ref<Node> node;  // keeps the node alive while it waits
  Tensors grads;
};

/// The waiting nodes, youngest first. A node's inputs are older than the node, so when a node is taken, all its
/// gradients have arrived: dependencies need no counting.
class Frontier {
 public:
  bool empty() const { return heap_.empty(); }

  Tensors& at(const Ref<Node>& node) {
    const bool reuse = !unused_.empty();
    auto [slot, fresh] = index_.insert(node.get(), reuse ? unused_.back() : static_cast<uint32_t>(pending_.size()));
    if (!fresh) return pending_[slot].grads;
    if (reuse) unused_.pop_back();
    else pending_.emplace_back();
    Arrived& p = pending_[slot];
    p.node = node;
    p.grads.resize(node->outputs.size());
    heap_.push_back({node->seq, slot});
    std::push_heap(heap_.begin(), heap_.end());
    return p.grads;
  }

  Arrived take() {
    std::pop_heap(heap_.begin(), heap_.end());
    uint32_t slot = heap_.back().second;
    heap_.pop_back();
    Arrived p = std::move(pending_[slot]);
    unused_.push_back(slot);
    index_.erase(p.node.get());
    return p;
  }

 private:
  std::vector<std::pair<uint64_t, uint32_t>> heap_;  // (seq, slot)
  std::vector<Arrived> pending_;
  std::vector<uint32_t> unused_;
  NodeMap index_;
};

/// Calls visit(node) once for each node that edges lead to from `edges` on. follow(edge), asked of every edge on the
/// way, says whether to go along it.
template <class Follow, class Visit> void each_node(std::span<const Edge> edges, Follow follow, Visit visit) {
  NodeMap seen;
  std::vector<Node*> stack;
  const auto go_along = [&](std::span<const Edge> some) {
    for (const Edge& e : some)
      if (e.node && follow(e) && seen.insert(e.node.get(), 0).second) stack.push_back(e.node.get());
  };
  go_along(edges);
  while (!stack.empty()) {
    Node* const n = stack.back();
    stack.pop_back();
    visit(*n);
    go_along(n->edges);
  }
}

/// The same along every edge.
template <class Visit> void each_node(std::span<const Edge> edges, Visit visit) {
  each_node(
      edges, [](const Edge&) { return true; }, visit);
}

/// The nodes between roots and wanted edges; the walk skips all others.
class Subgraph {
 public:
  Subgraph(std::span<const Edge> roots, std::span<const Edge> wanted) {
    uint64_t oldest = UINT64_MAX;
    for (const Edge& w : wanted) {
      if (!w.node) continue;
      leads_.insert(w.node.get(), 0);
      oldest = std::min(oldest, w.node->seq);
    }
    std::vector<const Node*> order;
    each_node(
        roots, [=](const Edge& e) { return e.node->seq >= oldest; }, [&](const Node& n) { order.push_back(&n); });
    const auto younger = [](const Node* a, const Node* b) { return a->seq > b->seq; };
    if (!std::is_sorted(order.begin(), order.end(), younger)) std::sort(order.begin(), order.end(), younger);
    const auto leads = [this](const Edge& e) { return e.node && contains(e.node.get()); };
    for (std::size_t i = order.size(); i-- > 0;)  // oldest first, so the answer for its inputs is known
      if (std::any_of(order[i]->edges.begin(), order[i]->edges.end(), leads)) leads_.insert(order[i], 0);
  }
  bool contains(const Node* n) const { return leads_.find(n) != NodeMap::kAbsent; }

 private:
  NodeMap leads_;  // the nodes that lead to a wanted edge
};

/// The leaves under a root, each with the number of its edges that are still to be walked. The frontier would return a
/// leaf last, because leaves are older than all other nodes. Counting its edges shows earlier when its gradient is
/// complete.
class LeafCounter {
 public:
  struct Entry {
    Ref<Node> node;
    Tensor grad = {};
    uint32_t left = 0;
  };

  explicit LeafCounter(const Node& root) {
    const auto count = [this](const Edge& e) {
      if (!e.node->is_leaf()) return true;
      auto [at, fresh] = index_.insert(e.node.get(), static_cast<uint32_t>(entries_.size()));
      if (fresh) entries_.push_back({e.node});
      ++entries_[at].left;
      return false;
    };
    each_node(root.edges, count, [](const Node&) {});
  }
  Entry& at(const Node* leaf) { return entries_[index_.find(leaf)]; }
  std::vector<Entry>& entries() { return entries_; }

 private:
  NodeMap index_;
  std::vector<Entry> entries_;
};

}  // namespace sluice::detail
