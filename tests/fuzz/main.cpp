// Random draws of a kind, until the time is over:
//
//   sluice_fuzz [--kind ops | graphs | files | memory] [--seconds N] [--seed S] [--op NAME] [--only DRAW]
//
//   ops     every public op with hostile arguments: forward, every element of what came out, gradients and theirs
//   graphs  rows of the op table fed with each other's results: gradients of both orders against differences
//   files   damaged files of every format: an error that names the file and changes nothing, or a load that is whole
//   memory  work under a limit on memory: an error, and afterwards the same work gives the same bits
//
// A crash, a sanitizer's report, a hang, an exception of another type fails in all of them. A failure prints what
// repeats it: the seed and the number of the draw.
#include "fuzz/kinds.h"
#include "support/approx.h"
#include "support/limit.h"

#include <sluice/core/kernel/backend.h>
#include <sluice/core/kernel/parallel.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/matmul/matmul.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <signal.h>
#include <unistd.h>
#if defined(__GLIBC__)
#include <malloc.h>
#endif

using namespace sluice;
using namespace sluice::testing;

extern "C" {
// Under AddressSanitizer: a size that no machine has is an exception as without it.
const char* __asan_default_options() { return "allocator_may_return_null=1:max_allocation_size_mb=512:detect_leaks=0"; }
void __sanitizer_set_death_callback(void (*)()) __attribute__((weak));
}

namespace {

constexpr Kind kKinds[] = {{"ops", draw_op, ops_are_covered, finish_ops},
                           {"graphs", draw_graph},
                           {"files", draw_file},
                           {"memory", draw_memory_limit}};

char now[4096] = "start";  // the draw at work, for handlers
std::string arguments;     // those that repeat it
#if defined(__SANITIZE_ADDRESS__)
constexpr unsigned kHangSeconds = 300;  // tiles of one key take long there
#else
constexpr unsigned kHangSeconds = 60;
#endif

void say() {
  const char* parts[] = {"\nsluice_fuzz: FAILED in ", now, "\n"};
  for (const char* p : parts)
    if (::write(2, p, std::strlen(p)) < 0) return;
}
void on_signal(int number) {
  say();
  const char* what = number == SIGALRM ? "it hangs\n" : "it crashed\n";
  if (::write(2, what, std::strlen(what)) < 0) _exit(2);
  _exit(1);
}

constexpr int64_t kMemory = int64_t{640} << 20;

/// The GPU's memory as its backend gives it, and the same with a bound, which limits of the process do not set.
const detail::Backend* unbounded = nullptr;
std::byte* allocate_bounded(std::size_t bytes, int index) {
  const int64_t room = kMemory - unbounded->memory_stats(index).live;
  if (room < 0 || bytes > static_cast<std::size_t>(room))
    fail<MemoryError>("the GPU may give no ", bytes, " bytes here");
  return unbounded->allocate(bytes, index);
}

/// A GPU's driver maps more addresses than any bound on them allows, and its libraries come at their first use: so the
/// first work is done before there is a bound.
void prepare_device(Device device) {
  const Tensor x = ones({64, 64}, {f32, device});
  if (matmul(x, x).to_vector()[0] != 64) fail<DeviceError>("a first product is wrong");
  unbounded = &detail::backend(device);
  static const detail::Backend bounded{&allocate_bounded, unbounded->release, unbounded->synchronize,
                                       unbounded->memory_stats, unbounded->reset_peak};
  detail::install_backend(device.kind, bounded);
}

/// Signals, and a bound on memory, so that a careless allocation fails instead of filling the machine.
void prepare() {
  set_num_threads(2);
#if defined(__GLIBC__)
  ::mallopt(M_ARENA_MAX, 2);  // each takes 64 MB of addresses, and threads of loaders and ranks would take one each
#endif
  ::signal(SIGALRM, on_signal);
  if (test_device() != cpu) prepare_device(test_device());
  if (__sanitizer_set_death_callback) return __sanitizer_set_death_callback(say);
  for (int s : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) ::signal(s, on_signal);
  static const MemoryLimit bound(kMemory, test_device() == cpu ? MemoryLimit::Of::addresses : MemoryLimit::Of::data);
}

}  // namespace

void Report::at(const std::string& what) { std::snprintf(now, sizeof now, "%s, %s", what.c_str(), arguments.c_str()); }
void Report::wrong(const Draw& draw, const std::string& what) {
  say();
  std::fprintf(stderr, "(%s): %s\n", draw.log().c_str(), what.c_str());
  ++failures;
}

int main(int argc, char** argv) {
  double seconds = 3;
  uint64_t seed = 1;
  long only = -1;
  const Kind* kind = kKinds;
  Report report;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string flag = argv[i];
    if (flag == "--seconds") seconds = std::atof(argv[i + 1]);
    else if (flag == "--seed") seed = std::strtoull(argv[i + 1], nullptr, 10);
    else if (flag == "--only") only = std::atol(argv[i + 1]);
    else if (flag == "--op") report.op = argv[i + 1];
    else if (flag == "--kind") {
      kind = std::find_if(std::begin(kKinds), std::end(kKinds),
                          [&](const Kind& k) { return k.name == std::string(argv[i + 1]); });
      if (kind == std::end(kKinds))
        return std::fprintf(stderr, "sluice_fuzz: no kind is called \"%s\"\n", argv[i + 1]), 2;
    }
  }
  if (kind->ready && !kind->ready()) return 1;
  try {
    prepare();
  } catch (const Error& e) { return std::fprintf(stderr, "sluice_fuzz: %s\n", e.what()), 2; }
  const auto start = std::chrono::steady_clock::now();
  for (long i = only < 0 ? 0 : only; report.failures < 20; ++i) {
    const std::chrono::duration<double> run = std::chrono::steady_clock::now() - start;
    if (only >= 0 ? i > only : run.count() > seconds) break;
    Draw draw(seed * 1000003 + static_cast<uint64_t>(i));
    arguments = str("--kind ", kind->name, " --seed ", seed, " --only ", static_cast<int64_t>(i));
    report.at("a draw");
    ::alarm(kHangSeconds);
    try {
      kind->draw(draw, report);
    } catch (const std::exception& e) { report.wrong(draw, str("another exception: ", e.what())); }
    ::alarm(0);
    if (only >= 0) std::fprintf(stderr, "%s\n(%s)\n", now, draw.log().c_str());
  }
  if (kind->finish) kind->finish(report);
  std::printf("sluice_fuzz: %s:", kind->name);
  for (const auto& [what, count] : report.counts) std::printf(" %ld %s,", count, what.c_str());
  std::printf(" %ld failures, seed %llu\n", report.failures, static_cast<unsigned long long>(seed));
  return report.failures ? 1 : 0;
}
