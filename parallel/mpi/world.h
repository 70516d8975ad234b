// Ranks that are processes: all processes that mpirun, srun or another MPI launcher started together. This is part of
// the library sluice::parallel; sluice::sluice itself needs no MPI.
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
// Environment: SLUICE_TIMEOUT, seconds to wait for other ranks (default 300); SLUICE_MPI_MESSAGE, the largest MPI
// message in bytes, from 1 to 2^31 − 2 (default 2^30), into which longer messages are split: the same on all ranks.
#pragma once

#include <sluice/parallel/communicator.h>

#include <functional>

namespace sluice {

/// The group of all ranks of this job; one rank if no launcher started the program. The first call starts MPI. It
/// compares the builds and instruction sets of all ranks; CommunicationError if they differ. It sets the number of
/// threads of each rank: the processors that the rank may run on, divided by the number of ranks that share them. At
/// its end the process waits for the others. DeviceError if a launcher started this process and the library was built
/// without MPI.
Communicator world();

/// Returns f(world()), the status for main(). If f throws, all ranks end with status 1 and one message on stderr: that
/// of the rank that threw, or the message that all ranks throw together.
int run_world(const std::function<int(const Communicator&)>& f);

}  // namespace sluice
