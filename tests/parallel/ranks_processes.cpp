// The tests of ranks as a program for mpirun: each process is a rank.
#include "parallel/ranks.h"

#include "support/catch.h"

#include <sluice/parallel/mpi/world.h>

namespace sluice::testing {

void on_ranks(const std::function<void(const Communicator&)>& f) { f(world()); }

std::vector<std::string> errors_on_ranks(int ranks, const std::function<void(const Communicator&)>& f) {
  if (world().size() != ranks) return {};
  try {
    f(world());
  } catch (const std::exception& e) { return {e.what()}; }
  return {""};
}

}  // namespace sluice::testing
