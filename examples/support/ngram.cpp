#include "ngram.h"

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

namespace sluice::examples {
namespace {

/// Open-addressing map from a 64-bit key; each slot carries a flag that says it is taken.
/// (Every 64-bit key is a legal n-gram, so no special key could mark an empty slot.)
template <class Value> class FlatMap {
 public:
  FlatMap() : slots_(1 << 10) {}

  Value* find(std::uint64_t key) {
    Slot& slot = locate(key);
    return slot.used ? &slot.value : nullptr;
  }

  Value& operator[](std::uint64_t key) {
    if (2 * (size_ + 1) > slots_.size()) grow();
    Slot& slot = locate(key);
    if (!slot.used) {
      slot.used = true;
      slot.key = key;
      ++size_;
    }
    return slot.value;
  }

 private:
  struct Slot {
    std::uint64_t key = 0;
    Value value{};
    bool used = false;
  };

  Slot& locate(std::uint64_t key) {
    // Multiplying spreads the low bytes over the top bits, which then choose the slot.
    const int shift = 64 - std::countr_zero(slots_.size());
    std::size_t i = ((key ^ (key >> 32)) * 0x9E3779B97F4A7C15ull) >> shift;
    while (slots_[i].used && slots_[i].key != key) i = (i + 1) & (slots_.size() - 1);
    return slots_[i];
  }

  void grow() {
    std::vector<Slot> old(2 * slots_.size());
    old.swap(slots_);
    for (const Slot& slot : old) {
      if (slot.used) locate(slot.key) = slot;
    }
  }

  std::vector<Slot> slots_;
  std::size_t size_ = 0;
};

struct Context {
  std::uint64_t total = 0;     // count(h): times h was followed by any byte
  std::uint64_t distinct = 0;  // T(h): how many different bytes followed it
};

/// Calls f(position, context, gram) for each position of `text` that has `length` bytes before it; gram is
/// the context with the byte at that position appended.
template <class F> void for_each_gram(std::string_view text, int length, F&& f) {
  const std::uint64_t context_mask = (std::uint64_t{1} << (8 * length)) - 1;
  std::uint64_t history = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const std::uint64_t context = history & context_mask;
    const std::uint64_t gram = (context << 8) | static_cast<unsigned char>(text[i]);
    if (i >= static_cast<std::size_t>(length)) f(i, context, gram);
    history = (history << 8) | static_cast<unsigned char>(text[i]);
  }
}

/// One step of the interpolation: p[i] holds the probability of test[i] under the next shorter
/// context and leaves with the one under a context of `length` bytes,
///   p(c | h) = (count(h, c) + T(h) · p(c | h')) / (count(h) + T(h)).
void refine(std::string_view train, std::string_view test, int length, std::vector<double>& p) {
  // Only contexts that occur in the test text are counted: the tables stay small and in cache.
  FlatMap<Context> contexts;
  for_each_gram(test, length, [&](std::size_t, std::uint64_t h, std::uint64_t) { contexts[h]; });

  FlatMap<std::uint64_t> counts;
  for_each_gram(train, length, [&](std::size_t, std::uint64_t h, std::uint64_t gram) {
    Context* context = contexts.find(h);
    if (!context) return;
    ++context->total;
    if (++counts[gram] == 1) ++context->distinct;
  });

  for_each_gram(test, length, [&](std::size_t i, std::uint64_t h, std::uint64_t gram) {
    const Context& context = *contexts.find(h);
    if (context.total == 0) return;  // never seen in training: keep the shorter context's answer
    const std::uint64_t* count = counts.find(gram);
    const double total = static_cast<double>(context.total);
    const double distinct = static_cast<double>(context.distinct);
    p[i] = ((count ? static_cast<double>(*count) : 0.0) + distinct * p[i]) / (total + distinct);
  });
}

}  // namespace

std::vector<double> witten_bell_table(std::string_view train, std::string_view test, int max_order) {
  if (max_order < 1 || max_order > kMaxNgramOrder) {
    throw std::invalid_argument("witten_bell_table: order must be in 1 … " + std::to_string(kMaxNgramOrder) +
                                " — got " + std::to_string(max_order));
  }
  if (test.empty()) throw std::invalid_argument("witten_bell_table: the test text is empty");

  std::vector<double> p(test.size(), 1.0 / 256.0);  // the shortest history of all: uniform
  std::vector<double> bits;
  for (int length = 0; length < max_order; ++length) {
    refine(train, test, length, p);
    double sum = 0.0;
    for (const double each : p) sum -= std::log2(each);
    bits.push_back(sum / static_cast<double>(test.size()));
  }
  return bits;
}

}  // namespace sluice::examples
