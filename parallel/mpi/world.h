// Ranks that are processes: all that mpirun, srun or another launcher of MPI started together. In the library
// sluice::parallel; sluice::sluice itself needs no MPI.
//
//   int main() {
//     return run_world([](const Communicator& all) {
//       …
//       return 0;
//     });
//   }
//
//   mpirun -n 4 ./program
//
// Environment: SLUICE_TIMEOUT, seconds to wait for other ranks (300); SLUICE_MPI_MESSAGE, bytes of one message of MPI, larger
// ones are cut (2^30).
#pragma once

#include <sluice/parallel/communicator.h>

#include <functional>

namespace sluice {

/// All ranks of this job; a program that no launcher started is alone. The first call starts MPI, compares builds and
/// instruction sets of all ranks (CommunicationError), and gives each rank its share of the processor's threads: those that
/// it may run on, divided by the ranks that may run on them, too. When the process ends, it waits for the others. DeviceError
/// when a launcher started this process and the library was built without MPI.
Communicator world();

/// What main() returns: f(world()). When f throws, all ranks end, with status 1 and one message on stderr: that of the rank
/// where it came from, or what all ranks found at once.
int run_world(const std::function<int(const Communicator&)>& f);

}  // namespace sluice
