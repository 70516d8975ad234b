#include "ranks.h"

#include "corpus.h"

#include <stdexcept>

namespace sluice::examples {

void only_first_prints(const Communicator& ranks) {
  if (ranks.rank() != 0 && !std::freopen("/dev/null", "w", stdout)) throw std::runtime_error("cannot open /dev/null");
}

std::FILE* first_stderr(const Communicator& ranks) {
  if (ranks.rank() == 0) return stderr;
  static std::FILE* nowhere = std::fopen("/dev/null", "w");
  if (!nowhere) throw std::runtime_error("cannot open /dev/null");
  return nowhere;
}

double of_first(double value, const Communicator& ranks) {
  return ranks.size() == 1 ? value : broadcast(full({}, value, {f64}), 0, ranks).item();
}

std::string common_text(const std::string& path, const Communicator& ranks) {
  std::string text = learning_text(path);
  ranks.check_same("text", text);
  return text;
}

std::string traffic_table(const Traffic& traffic) {
  if (traffic.by_kind.empty()) return "";
  std::string text = "sent by this rank   calls  messages          MB  ms in messages\n";
  for (const auto& [kind, c] : traffic.by_kind) {
    char line[160];
    std::snprintf(line, sizeof line, "%-18s %6lld %9lld %11.3f %15.3f\n", kind.c_str(), (long long)c.calls,
                  (long long)c.messages, double(c.bytes) * 1e-6, 1000 * c.seconds);
    text += line;
  }
  return text;
}

}  // namespace sluice::examples
