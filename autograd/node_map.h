// A hash map from nodes to small numbers, for one backward walk. Open addressing in one array: a walk over n nodes then
// costs no allocation per node. Marks inside the nodes would be faster still, but walks on several threads may share
// nodes, at least the parameters.
#pragma once

#include <sluice/core/node.h>

#include <cstdint>
#include <vector>

namespace sluice::detail {

class NodeMap {
 public:
  static constexpr uint32_t kAbsent = UINT32_MAX;

  uint32_t find(const Node* key) const {
    if (slots_.empty()) return kAbsent;
    for (std::size_t i = home(key);; i = (i + 1) & mask())
      if (slots_[i].key == key) return slots_[i].value;
      else if (!slots_[i].key) return kAbsent;
  }
  /// The value of key. If key was absent, adds it with the value `fresh`; the second result is then true.
  std::pair<uint32_t&, bool> insert(const Node* key, uint32_t fresh) {
    if (2 * (count_ + 1) > slots_.size()) grow();
    std::size_t i = home(key);
    while (slots_[i].key && slots_[i].key != key) i = (i + 1) & mask();
    const bool is_new = !slots_[i].key;
    if (is_new) slots_[i] = {key, fresh}, ++count_;
    return {slots_[i].value, is_new};
  }
  void erase(const Node* key) {
    std::size_t i = home(key);
    while (slots_[i].key != key) i = (i + 1) & mask();
    // Close the gap: later entries of the run move up when their home lies at or before the hole.
    for (std::size_t j = (i + 1) & mask(); slots_[j].key; j = (j + 1) & mask()) {
      const std::size_t h = home(slots_[j].key);
      if (((j - h) & mask()) >= ((j - i) & mask())) slots_[i] = slots_[j], i = j;
    }
    slots_[i] = {};
    --count_;
  }

 private:
  struct Slot {
    const Node* key = nullptr;
    uint32_t value = 0;
  };
  std::size_t mask() const { return slots_.size() - 1; }
  std::size_t home(const Node* key) const {
    return (reinterpret_cast<std::uintptr_t>(key) * 0x9e3779b97f4a7c15u >> 20) & mask();
  }
  void grow() {
    std::vector<Slot> old(slots_.empty() ? 64 : 2 * slots_.size());
    old.swap(slots_);
    count_ = 0;
    for (const Slot& s : old)
      if (s.key) insert(s.key, s.value);
  }
  std::vector<Slot> slots_;
  std::size_t count_ = 0;
};

}  // namespace sluice::detail
