// A job in which something goes wrong on one rank: failing_ranks WHAT RANK SECONDS. Each rank prints "rank R is process P",
// then they train on nothing; see failure.sh.
#include <sluice/ops/create.h>
#include <sluice/parallel/collectives.h>
#include <sluice/parallel/mpi/world.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>

#include <signal.h>
#include <unistd.h>

using namespace sluice;

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  const std::string what = argv[1];
  const int odd = std::atoi(argv[2]);
  const double seconds = std::atof(argv[3]);
  return run_world([&](const Communicator& all) {
    std::printf("rank %d is process %d\n", all.rank(), static_cast<int>(getpid()));
    std::fflush(stdout);
    const Communicator own = all.split(0);
    const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
    bool more = true;
    for (int step = 0; more; ++step) {
      Tensor g = full({20000}, 1, {f64});
      Pending p = start_all_reduce(g, own);
      if (step == 20 && all.rank() == odd) {
        const auto now = std::chrono::system_clock::now().time_since_epoch();
        std::printf("fault at %lld\n", static_cast<long long>(std::chrono::duration_cast<std::chrono::milliseconds>(now).count()));
        std::fflush(stdout);
        if (what == "kill") ::raise(SIGKILL);
        if (what == "stop") ::raise(SIGSTOP);
        if (what == "shape") all_reduce(zeros({3}), all);
        if (what == "config") all.check_same("settings", "lr = 2");
        if (what == "throw") fail<ValueError>("the reason");
        if (what == "exit") std::exit(0);
        if (what == "loop") while (true) std::this_thread::sleep_for(std::chrono::seconds(1));
      } else if (step == 20 && what == "config") {
        all.check_same("settings", "lr = 1");
      }
      p.wait();
      const bool here = step < 20 || std::chrono::steady_clock::now() < end;  // not before the fault
      more = all_reduce(full({}, here ? 1 : 0, {f64}), all).item() == all.size();
    }
    if (all.rank() == 0) std::printf("done\n");
    return 0;
  });
}
