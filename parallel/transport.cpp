#include <sluice/parallel/transport.h>

#include <algorithm>
#include <set>

namespace sluice::detail {

std::chrono::steady_clock::duration seconds(double s) {
  return std::chrono::duration_cast<std::chrono::steady_clock::duration>(
      std::chrono::duration<double>(std::min(s, 1e9)));
}

std::string blame(int rank, const std::map<int, std::vector<Waiting>>& waiting, double seconds) {
  std::set<int> seen{rank}, absent;
  std::vector<int> chain{rank};
  for (std::size_t i = 0; i < chain.size(); ++i) {
    const auto known = waiting.find(chain[i]);
    if (known == waiting.end()) {
      absent.insert(chain[i]);
      continue;
    }
    for (const Waiting& w : known->second)
      for (const int next : w.ranks)
        if (seen.insert(next).second) chain.push_back(next);
  }
  const auto self = waiting.find(rank);
  const std::string op = self == waiting.end() || self->second.empty() ? "exchange" : self->second.front().op;
  if (!absent.empty())
    return str(op, ": ", name_ranks({absent.begin(), absent.end()}), " did not come within ", seconds, " s");
  std::string text = str(op, ": nothing arrived within ", seconds, " s, all wait for one another — ");
  for (std::size_t i = 0; i < chain.size(); ++i)
    text += str(i ? ", " : "", "rank ", chain[i], " in ", waiting.at(chain[i]).front().op);
  return text;
}

std::string name_ranks(const std::vector<int>& ranks) {
  if (ranks.size() == 1) return str("rank ", ranks[0]);
  std::string text = "ranks ";
  for (std::size_t i = 0; i < ranks.size(); ++i)
    text += str(i == 0 ? "" : i + 1 == ranks.size() ? " and " : ", ", ranks[i]);
  return text;
}

}  // namespace sluice::detail
