// Calls every public op with hostile arguments: forward, every element of what came out, gradients and their gradients.
// A sluice::Error that names the op is a good answer. A crash, a sanitizer's report, a hang, another exception is not.
//
//   sluice_fuzz [--seconds N] [--seed S] [--op NAME] [--only CALL]
//
// A failure prints what repeats it: the seed and the number of the call.
#include "fuzz/op_calls.h"
#include "support/public_ops.h"

#include <sluice/autograd/engine.h>
#include <sluice/core/node.h>
#include <sluice/core/parallel.h>
#include <sluice/ops/create.h>
#include <sluice/ops/matmul.h>
#include <sluice/ops/reduce.h>
#include <sluice/ops/view.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <set>

#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

using namespace sluice;
using namespace sluice::testing;

extern "C" {
// Under AddressSanitizer: a size that no machine has is an exception as without it.
const char* __asan_default_options() { return "allocator_may_return_null=1:max_allocation_size_mb=512:detect_leaks=0"; }
void __sanitizer_set_death_callback(void (*)()) __attribute__((weak));
}

namespace {

char now[4096] = "start";  // the call at work, for handlers
constexpr unsigned kHangSeconds = 300;  // tiles of one key, by a sanitizer build, take long

void report() {
  const char* parts[] = {"\nsluice_fuzz: FAILED in ", now, "\n"};
  for (const char* p : parts)
    if (::write(2, p, std::strlen(p)) < 0) return;
}
void on_signal(int number) {
  report();
  const char* what = number == SIGALRM ? "it hangs\n" : "it crashed\n";
  if (::write(2, what, std::strlen(what)) < 0) _exit(2);
  _exit(1);
}

/// Signals, and a bound on memory, so that a careless allocation fails instead of filling the machine.
void prepare() {
  // Threads and the buffers of BLAS, one each, before the bound: without its buffer OpenBLAS waits for ever.
  set_num_threads(2);
  for (int i = 0; i < 4; ++i) matmul(ones({32, 256, 256}), ones({32, 256, 256}));
  ::signal(SIGALRM, on_signal);
  if (__sanitizer_set_death_callback) return __sanitizer_set_death_callback(report);
  for (int s : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) ::signal(s, on_signal);
  long pages = 0;
  if (std::FILE* f = std::fopen("/proc/self/statm", "r")) {
    if (std::fscanf(f, "%ld", &pages) != 1) pages = 0;
    std::fclose(f);
  }
  const rlim_t bytes = static_cast<rlim_t>(pages) * static_cast<rlim_t>(::sysconf(_SC_PAGESIZE)) + (rlim_t{640} << 20);
  const rlimit bound{bytes, bytes};
  ::setrlimit(RLIMIT_AS, &bound);
}

/// Reads all of x, so that a view that leaves its storage is noticed.
void read(const Tensor& x) {
  if (!x.defined() || x.numel() > 1 << 16) return;
  x.to_vector<double>();
}

void differentiate(const std::vector<Tensor>& ys, Draw& draw) {
  std::vector<Tensor> roots, seeds, inputs;
  for (const Tensor& y : ys)
    if (y.requires_grad()) roots.push_back(y), seeds.push_back(draw.chance(0.5) ? expand(ones({}, y.options()), y.shape()) : ones_like(y));
  for (const Tensor& x : draw.tensors())
    if (x.requires_grad()) inputs.push_back(x);
  if (roots.empty() || inputs.empty()) return;
  const bool twice = draw.chance(0.4);
  std::vector<Tensor> first = grad(roots, inputs, {.create_graph = twice, .allow_unused = true, .grad_outputs = seeds}), again;
  for (const Tensor& g : first) read(g);
  if (!twice) return;
  seeds.clear();
  for (const Tensor& g : first)
    if (g.requires_grad()) again.push_back(g), seeds.push_back(ones_like(g));
  if (!again.empty())
    for (const Tensor& g : grad(again, inputs, {.allow_unused = true, .grad_outputs = seeds})) read(g);
}

/// Whether a kernel did on the emulated GPU what a real one leaves undefined.
bool emulator_found(const Error& e) { return std::string_view(e.what()).find("cuda emulator: block") != std::string_view::npos; }

/// Whether an error names the op that was called. Of a tensor that is undefined or of rank 9, or when memory or a device
/// is missing, no op knows more; activate() names the activation.
bool names(const std::string& op, const Error& e) {
  const std::string said = e.what();
  if (emulator_found(e)) return false;
  const std::string by = said.substr(0, said.find(':'));
  return by == op || op == "activate" || dynamic_cast<const DeviceError*>(&e) || by == "tensor" || by == "shape" || dynamic_cast<const MemoryError*>(&e) || said.find("more memory") != said.npos;
}

/// Every op of ops/ has an entry.
bool covered() {
  std::set<std::string> have;
  for (const auto& [name, call] : op_calls()) have.insert(name);
  bool all = true;
  for (const PublicOp& op : public_ops(SLUICE_SOURCE_DIR))
    if (!have.count(op.name)) std::fprintf(stderr, "ops/%s: %s has no call in tests/fuzz/op_calls.cpp\n", op.header.c_str(), op.name.c_str()), all = false;
  return all;
}

}  // namespace

int main(int argc, char** argv) {
  double seconds = 3;
  uint64_t seed = 1;
  long only = -1;
  std::string op;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string flag = argv[i];
    if (flag == "--seconds") seconds = std::atof(argv[i + 1]);
    else if (flag == "--seed") seed = std::strtoull(argv[i + 1], nullptr, 10);
    else if (flag == "--only") only = std::atol(argv[i + 1]);
    else if (flag == "--op") op = argv[i + 1];
  }
  if (!covered()) return 1;
  prepare();
  const auto start = std::chrono::steady_clock::now();
  const OpCalls& calls = op_calls();
  struct Count {
    long calls = 0, errors = 0, gradients = 0;
  };
  std::map<std::string, Count> counts;
  long failures = 0;
  for (long i = only < 0 ? 0 : only; failures < 20; ++i) {
    if (only >= 0 ? i > only : std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() > seconds) break;
    Draw draw(seed * 1000003 + static_cast<uint64_t>(i));
    const auto& [name, call] = calls[static_cast<std::size_t>(draw.below(static_cast<int64_t>(calls.size())))];
    if (!op.empty() && name != op) continue;
    std::snprintf(now, sizeof now, "%s, --seed %llu --only %ld", name.c_str(), static_cast<unsigned long long>(seed), i);
    if (only >= 0) std::fprintf(stderr, "%s\n", now);
    Count& count = counts[name];
    ++count.calls;
    ::alarm(kHangSeconds);
    auto wrong = [&](const std::string& what) {
      report();
      std::fprintf(stderr, "(%s): %s\n", draw.log().c_str(), what.c_str());
      ++failures;
    };
    std::vector<Tensor> ys;
    try {
      ys = call(draw);
    } catch (const Error& e) {
      ++count.errors;
      if (!names(name, e)) wrong(str("the error is not the op's: ", e.what()));
      if (only >= 0) std::fprintf(stderr, "%s\n", e.what());
    } catch (const std::exception& e) {
      wrong(str("another exception: ", e.what()));
    }
    try {
      for (const Tensor& y : ys) read(y);
      if (draw.chance(0.5)) ++count.gradients, differentiate(ys, draw);
    } catch (const Error& e) {  // of the gradient's own
      if (emulator_found(e)) wrong(e.what());
    } catch (const std::exception& e) {
      wrong(str("another exception in its gradient: ", e.what()));
    }
    ::alarm(0);
  }
  long total = 0, errors = 0;
  for (const auto& [name, c] : counts) {
    total += c.calls, errors += c.errors;
    if (c.calls > 300 && c.errors == c.calls) std::fprintf(stderr, "%s: none of %ld calls succeeded\n", name.c_str(), c.calls), ++failures;
  }
  std::printf("sluice_fuzz: %zu ops, %ld calls, %ld errors, %ld failures, seed %llu\n", counts.size(), total, errors, failures,
              static_cast<unsigned long long>(seed));
  return failures ? 1 : 0;
}
