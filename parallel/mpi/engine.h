// What world() asks of the engine beside messages; mpi_engine.cpp with MPI, no_engine.cpp without.
#pragma once

#include <sluice/parallel/transport.h>

#include <memory>
#include <string>

namespace sluice::detail {

class Engine : public Transport {
 public:
  /// Threads for this rank: those that it may run on, shared with the ranks that may, too.
  virtual int fair_threads() = 0;
  /// Why the job has failed, if another rank has said so.
  virtual std::string told_failure() = 0;
  /// Ends this process and, soon, all others; `spoke`: it has said why, so that no other rank needs time for that.
  [[noreturn]] virtual void end_job(bool spoke) = 0;
};

/// The variable by which a launcher shows itself to its processes; empty: this one was started alone.
std::string launched_by();
/// Starts MPI. DeviceError without it.
std::shared_ptr<Engine> start_engine();
/// Which build of Sluice this is: version, compiler and the linker's id of the library.
std::string build_text();

}  // namespace sluice::detail
