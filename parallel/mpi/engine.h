// What world() needs of the engine besides messages: mpi_engine.cpp with MPI, no_engine.cpp without.
#pragma once

#include <sluice/parallel/transport.h>

#include <memory>
#include <string>

namespace sluice::detail {

class Engine : public Transport {
 public:
  /// Threads for this rank: the processors that it may run on, divided by the ranks that share some; at least 1.
  virtual int fair_threads() = 0;
  /// The reason why the job has failed, if another rank reported it; else empty.
  virtual std::string told_failure() = 0;
  /// Ends this process and, soon, all others. `spoke`: the reason is printed already, so no other rank needs time for
  /// it.
  [[noreturn]] virtual void end_job(bool spoke) = 0;
};

/// The name of the environment variable that shows that a launcher started this process; empty if none did.
std::string launched_by();
/// Starts MPI. DeviceError without it.
std::shared_ptr<Engine> start_engine();
/// The compiler's version and the linker's id of the library; empty without MPI.
std::string build_text();

}  // namespace sluice::detail
