#include <sluice/parallel/mpi/world.h>

#include <sluice/core/kernel/cpu.h>
#include <sluice/core/kernel/parallel.h>
#include <sluice/parallel/mpi/engine.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <optional>
#include <thread>

namespace sluice {

namespace {

std::mutex starting;
std::shared_ptr<detail::Engine> engine;
std::optional<Communicator> all_ranks;

void say(const std::string& what) {
  std::fflush(stdout);
  std::fprintf(stderr, "%s\n", what.c_str());
  std::fflush(stderr);
}

}  // namespace

std::string detail::launched_by() {
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS"})
    if (std::getenv(name)) return name;
  return "";
}

Communicator world() {
  std::lock_guard lock(starting);
  if (all_ranks) return *all_ranks;
  if (detail::launched_by().empty()) return all_ranks.emplace();
  if (!engine) engine = detail::start_engine();
  const Communicator made(engine);
  made.check_same("build of Sluice", detail::build_text());
  made.check_same("instruction set (SLUICE_ISA chooses one for all)", isa_name(isa()));
  set_num_threads(engine->fair_threads());
  return all_ranks.emplace(made);
}

/// Ends the job because f threw; returns if this rank is alone. `common`: the error is one that all ranks throw.
static void end_job(const char* what, const CommunicationError* common) {
  if (!engine || engine->size() == 1) return say(what);
  const int rank = engine->rank();
  bool told = engine->told_failure() == what;
  // If several ranks throw, the lowest reports it: rank r waits min(r, 5)·0.3 s for the report of another.
  for (int i = 0; !common && !told && i < 3 * std::min(rank, 5); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    told = !engine->told_failure().empty();
  }
  const bool speaks = !told && (!common || common->speaker < 0 || common->speaker == rank);
  if (speaks) say(common ? std::string(what) : str("rank ", rank, ": ", what));
  if (!common) engine->fail_all(str("rank ", rank, " failed: ", what));
  engine->end_job(speaks);
}

int run_world(const std::function<int(const Communicator&)>& f) {
  try {
    return f(world());
  } catch (const std::exception& e) { end_job(e.what(), dynamic_cast<const CommunicationError*>(&e)); } catch (...) {
    end_job("an exception of another kind", nullptr);
  }
  return 1;
}

}  // namespace sluice
