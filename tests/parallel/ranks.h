// Tests that run on several ranks: on threads in the unit tests, on processes in the program that mpirun starts.
#pragma once

#include <sluice/parallel/communicator.h>

#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

namespace sluice::testing {

/// Runs f on 1, 2, 3 and 4 ranks (under mpirun: on those that are there). What f throws fails the test.
void on_ranks(const std::function<void(const Communicator&)>& f);
/// What the ranks of a job of `ranks` throw, each: "" where f returns. Under mpirun only this process's, and nothing
/// happens when the job has another number of ranks; then the result is empty.
std::vector<std::string> errors_on_ranks(int ranks, const std::function<void(const Communicator&)>& f);

/// Assertions of the test framework are not for several threads.
inline void expect(bool ok, const std::string& what) {
  if (!ok) throw std::runtime_error("not so: " + what);
}

}  // namespace sluice::testing
