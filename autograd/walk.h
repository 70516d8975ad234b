// State of one backward walk: the waiting nodes and, for grad(), the nodes that the walk must visit.
#pragma once

#include <sluice/autograd/engine.h>
#include <sluice/autograd/node_map.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <span>
#include <utility>
#include <vector>

namespace sluice::detail {

/// Gradients that have arrived at a node and not been processed yet, one per output.
struct Pending {
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
    Pending& p = pending_[slot];
    p.node = node;
    p.grads.resize(node->outputs.size());
    heap_.push_back({node->seq, slot});
    std::push_heap(heap_.begin(), heap_.end());
    return p.grads;
  }

  Pending take() {
    std::pop_heap(heap_.begin(), heap_.end());
    uint32_t slot = heap_.back().second;
    heap_.pop_back();
    Pending p = std::move(pending_[slot]);
    unused_.push_back(slot);
    index_.erase(p.node.get());
    return p;
  }

 private:
  std::vector<std::pair<uint64_t, uint32_t>> heap_;  // (seq, slot)
  std::vector<Pending> pending_;
  std::vector<uint32_t> unused_;
  NodeMap index_;
};

/// The nodes between roots and wanted edges; the walk skips all others.
class Subgraph {
 public:
  Subgraph(std::span<const Edge> roots, std::span<const Edge> wanted) {
    uint64_t oldest = UINT64_MAX;
    for (const Edge& w : wanted) {
      if (!w.node) continue;
      mark_.insert(w.node.get(), kLeads);
      oldest = std::min(oldest, w.node->seq);
    }
    std::vector<const Node*> order, stack;
    auto visit = [&](const Edge& e) {
      if (!e.node || e.node->seq < oldest) return;
      auto [mark, fresh] = mark_.insert(e.node.get(), 0);
      if (!fresh && (mark & kSeen)) return;
      mark |= kSeen;
      stack.push_back(e.node.get());
    };
    for (const Edge& r : roots) visit(r);
    while (!stack.empty()) {
      const Node* n = stack.back();
      stack.pop_back();
      order.push_back(n);
      for (const Edge& e : n->edges) visit(e);
    }
    const auto younger = [](const Node* a, const Node* b) { return a->seq > b->seq; };
    if (!std::is_sorted(order.begin(), order.end(), younger)) std::sort(order.begin(), order.end(), younger);
    const auto leads = [this](const Edge& e) { return e.node && contains(e.node.get()); };
    for (std::size_t i = order.size(); i-- > 0;)  // oldest first, so the answer for its inputs is known
      if (std::any_of(order[i]->edges.begin(), order[i]->edges.end(), leads)) mark_.insert(order[i], 0).first |= kLeads;
  }
  bool contains(const Node* n) const {
    const uint32_t mark = mark_.find(n);
    return mark != NodeMap::kAbsent && (mark & kLeads);
  }

 private:
  static constexpr uint32_t kSeen = 1, kLeads = 2;  // visited; leads to a wanted edge
  NodeMap mark_;
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

  explicit LeafCounter(Node* root) {
    NodeMap seen;
    std::vector<Node*> stack{root};
    seen.insert(root, 0);
    while (!stack.empty()) {
      const Node* n = stack.back();
      stack.pop_back();
      for (const Edge& e : n->edges) {
        if (!e.node) continue;
        if (e.node->is_leaf()) {
          auto [at, fresh] = index_.insert(e.node.get(), static_cast<uint32_t>(entries_.size()));
          if (fresh) entries_.push_back({e.node});
          ++entries_[at].left;
        } else if (seen.insert(e.node.get(), 0).second) {
          stack.push_back(e.node.get());
        }
      }
    }
  }
  Entry& at(const Node* leaf) { return entries_[index_.find(leaf)]; }
  std::vector<Entry>& entries() { return entries_; }

 private:
  NodeMap index_;
  std::vector<Entry> entries_;
};

/// backward() that calls final(leaf) during the walk, as soon as the leaf's .grad() has all gradients of this walk.
void backward(const Tensor& root, const Tensor& grad, BackwardOptions options, const std::function<void(Leaf&)>& final);

}  // namespace sluice::detail
