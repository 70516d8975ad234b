// A job in which something goes wrong on one rank: failing_ranks WHAT RANK SECONDS. Each rank prints "rank R is process
// P", then they train on nothing; see failure.sh.
#include <sluice/ops/shape/create.h>
#include <sluice/parallel/collectives.h>
#include <sluice/parallel/group.h>
#include <sluice/parallel/mpi/world.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include <signal.h>
#include <unistd.h>

using namespace sluice;

namespace {

[[noreturn]] void never_come() {
  while (true) std::this_thread::sleep_for(std::chrono::seconds(1));
}

/// The rank after the odd one waits for that one, and has sent the next what this needs; this then works for long.
void take_part(const Communicator& all, int odd) {
  const int after = (odd + 1) % all.size(), next = (odd + 2) % all.size();
  std::byte here{}, there{};
  if (all.rank() == after) all.group().exchange("part", {{next, &here, 1}}, {{odd, &there, 1}});
  if (all.rank() != next) return;
  all.group().exchange("part", {}, {{after, &there, 1}});
  never_come();
}

/// Begins what nobody else does, and drops it.
void drop(std::optional<Communicator> only) {
  try {
    const Communicator group = *std::exchange(only, std::nullopt);
    Tensor x = zeros({1});
    const Pending p = start_all_reduce(x, group);
    throw 0;
  } catch (int) {}
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  const std::string what = argv[1];
  const int odd = std::atoi(argv[2]);
  const double seconds = std::atof(argv[3]);
  return run_world([&](const Communicator& all) {
    std::printf("rank %d is process %d\n", all.rank(), static_cast<int>(getpid()));
    std::fflush(stdout);
    const Communicator own = all.split(0);
    std::optional<Communicator> other = all.split(0);  // of "drop"
    if (what == "link") {                              // the odd one demands what the others do not want
      ::setenv("SLUICE_NCCL", all.rank() == odd ? "on" : "off", 1);
      all_reduce(zeros({3}, {f32, Device::cuda()}), all);
    }
    const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
    bool more = true;
    for (int step = 0; more; ++step) {
      Tensor g = full({20000}, 1, {f64});
      Pending p = start_all_reduce(g, own);
      if (step == 20 && what == "drop") p.wait();
      if (step == 20 && all.rank() == odd) {
        const auto now = std::chrono::system_clock::now().time_since_epoch();
        std::printf("fault at %lld\n",
                    static_cast<long long>(std::chrono::duration_cast<std::chrono::milliseconds>(now).count()));
        std::fflush(stdout);
        if (what == "kill") ::raise(SIGKILL);
        if (what == "stop") ::raise(SIGSTOP);
        if (what == "shape") all_reduce(zeros({3}), all);
        if (what == "config") all.check_same("settings", "lr = 2");
        if (what == "throw") fail<ValueError>("the reason");
        if (what == "other") throw 1;
        if (what == "drop") drop(std::exchange(other, std::nullopt));
        if (what == "exit" || what == "drop") std::exit(0);
        if (what == "loop" || what == "part") never_come();
      } else if (step == 20 && what == "config") {
        all.check_same("settings", "lr = 1");
      } else if (step == 20 && what == "part") {
        take_part(all, odd);
      } else if (step == 20 && what == "drop") {
        never_come();  // for long they need nothing of the odd one
      }
      p.wait();
      const bool here = step < 20 || std::chrono::steady_clock::now() < end;  // not before the fault
      more = all_reduce(full({}, here ? 1 : 0, {f64}), all).item() == all.size();
    }
    if (all.rank() == 0) std::printf("done\n");
    return 0;
  });
}
