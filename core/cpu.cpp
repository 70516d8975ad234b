#include <sluice/core/cpu.h>

#include <sluice/core/error.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <fstream>

#if defined(__x86_64__)
#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#endif

namespace sluice {

namespace {

#if defined(__x86_64__)
/// Tiles belong to the state that a process must ask Linux for; all its threads then have them.
bool tiles_granted() {
#if defined(__linux__)
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return ::syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

Isa find_best() {
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return Isa::base;
  if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") || !__builtin_cpu_supports("avx512cd") ||
      !__builtin_cpu_supports("avx512dq") || !__builtin_cpu_supports("avx512vl"))
    return Isa::avx2;
  unsigned a = 0, b = 0, c = 0, d = 0;
  constexpr unsigned kAmxBf16 = 1u << 22, kAmxTile = 1u << 24;  // leaf 7, EDX
  const bool tiles = __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & kAmxBf16) && (d & kAmxTile);
  return tiles && __builtin_cpu_supports("avx512bf16") && tiles_granted() ? Isa::amx : Isa::avx512;
}
#else
Isa find_best() { return Isa::base; }
#endif

Isa find_wanted() {
  const char* name = std::getenv("SLUICE_ISA");
  for (Isa i : {Isa::base, Isa::avx2, Isa::avx512, Isa::amx})
    if (name && !std::strcmp(name, isa_name(i)) && i < best_isa()) return i;
  return best_isa();
}

std::atomic<Isa>& current() {
  static std::atomic<Isa> isa{find_wanted()};
  return isa;
}

}  // namespace

Isa best_isa() {
  static const Isa best = find_best();
  return best;
}

Isa isa() { return current().load(std::memory_order_relaxed); }

void set_isa(Isa wanted) {
  if (wanted > best_isa())
    fail<ValueError>("set_isa: this processor has ", isa_name(best_isa()), " — got ", isa_name(wanted));
  current() = wanted;
}

const char* isa_name(Isa isa) {
  switch (isa) {
    case Isa::base: return "base";
    case Isa::avx2: return "avx2";
    case Isa::avx512: return "avx512";
    case Isa::amx: return "amx";
  }
  return "?";
}

std::string cpu_name() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);)
    if (line.starts_with("model name") || line.starts_with("Model")) {
      const auto at = line.find(": ");
      if (at != std::string::npos) return line.substr(at + 2);
    }
  return "unknown processor";
}

}  // namespace sluice
