#include "parallel/ranks.h"

#include <vector>

namespace sluice::testing {

void on_ranks(const std::function<void(const Communicator&)>& f) {
  for (int n = 1; n <= 4; ++n) run_ranks(n, f);
}

std::vector<std::string> errors_on_ranks(int ranks, const std::function<void(const Communicator&)>& f) {
  std::vector<std::string> errors(static_cast<std::size_t>(ranks));
  try {
    run_ranks(ranks, [&](const Communicator& all) {
      try {
        f(all);
      } catch (const std::exception& e) {
        errors[static_cast<std::size_t>(all.rank())] = e.what();
        throw;
      }
    });
  } catch (const std::exception&) {}
  return errors;
}

}  // namespace sluice::testing
