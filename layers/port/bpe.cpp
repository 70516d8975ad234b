#include <sluice/layers/port/bpe.h>

#include <sluice/core/text/utf8.h>

#include <algorithm>
#include <tuple>

namespace sluice::detail {

struct Bpe::Symbol {
  int32_t id;  // -1: merged into the one before it
  int32_t before, next;
};

std::vector<Bpe::Symbol> Bpe::symbols(std::string_view word) const {
  std::vector<Symbol> row;
  row.reserve(word.size());
  const auto add = [&](int32_t id) {
    const auto n = static_cast<int32_t>(row.size());
    row.push_back({id, n - 1, n + 1});
  };
  bool pending = false;  // an unknown token that further unknown characters may join
  const auto add_pending = [&] {
    if (pending) add(unknown);
    pending = false;
  };
  for (std::size_t at = 0, stop; at < word.size(); at = stop) {
    stop = char_end(word, at);
    const std::string_view character = word.substr(at, stop - at);
    if (const auto it = vocab.find(character); it != vocab.end()) {
      add_pending();
      add(it->second);
      continue;
    }
    std::vector<int32_t> bytes;
    for (const char c : byte_fallback ? character : std::string_view()) {
      const char* const hex = "0123456789ABCDEF";
      const char name[] = {'<', '0', 'x', hex[c >> 4 & 15], hex[c & 15], '>'};
      const auto it = vocab.find(std::string_view(name, 6));
      if (it != vocab.end()) bytes.push_back(it->second);
    }
    if (bytes.size() == character.size()) {
      for (const int32_t id : bytes) add(id);
    } else if (unknown >= 0) {
      if (!fuse_unknown) add_pending();
      pending = true;
    }
  }
  add_pending();
  if (!row.empty()) row.back().next = -1;
  return row;
}

void Bpe::encode(std::string_view word, std::vector<int64_t>& out) const {
  if (whole_words)
    if (const auto it = vocab.find(word); it != vocab.end()) return out.push_back(it->second);
  std::vector<Symbol> row = symbols(word);

  struct Candidate {
    int32_t rank, at, id;
    bool operator<(const Candidate& c) const { return std::tie(c.rank, c.at) < std::tie(rank, at); }  // first is last
  };
  const auto merge_at = [&](int32_t at) {
    const auto it = merges.find(uint64_t(row[at].id) << 32 | uint32_t(row[row[at].next].id));
    return it == merges.end() ? nullptr : &it->second;
  };
  std::vector<Candidate> heap;
  const auto consider = [&](int32_t at) {
    if (at < 0 || row[at].next < 0) return;
    if (const Merge* m = merge_at(at)) heap.push_back({m->rank, at, m->id}), std::push_heap(heap.begin(), heap.end());
  };
  for (int32_t at = 0; at < static_cast<int32_t>(row.size()); ++at) consider(at);
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end());
    const auto [rank, at, id] = heap.back();
    heap.pop_back();
    Symbol& left = row[at];
    if (left.id < 0 || left.next < 0) continue;
    const Merge* now = merge_at(at);
    if (!now || now->id != id) continue;  // one of the two was merged meanwhile
    Symbol& right = row[left.next];
    left.id = id;
    left.next = right.next;
    right.id = -1;
    if (left.next >= 0) row[left.next].before = at;
    consider(left.before);
    consider(at);
  }
  for (const Symbol& s : row)
    if (s.id >= 0) out.push_back(s.id);
}

}  // namespace sluice::detail
