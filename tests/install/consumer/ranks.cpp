// What a user writes for several processes: alone it is a program like any other.
#include <sluice/parallel/mpi/world.h>
#include <sluice/sluice.h>

#include <iostream>

int main() {
  using namespace sluice;
  return run_world([](const Communicator& all) {
    const double sum = all_reduce(Tensor(1.0f + static_cast<float>(all.rank())), all).item(), n = all.size();
    if (all.rank() == 0) std::cout << all.size() << " ranks, sum " << sum << "\n";
    return sum == n * (n + 1) / 2 ? 0 : 1;
  });
}
