#include <sluice/core/kernel/cpu.h>

#include <sluice/core/error.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <vector>

#if defined(__x86_64__)
#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#endif
#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif
#if defined(__APPLE__)
#include <sys/sysctl.h>
#endif

namespace sluice {

namespace {

#if defined(__x86_64__)
/// A process must ask Linux for permission to use AMX tiles; then all its threads may use them.
bool tiles_granted() {
#if defined(__linux__)
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return ::syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

std::vector<Isa> find_all() {
  std::vector<Isa> all{Isa::base};
  __builtin_cpu_init();
  unsigned a = 0, b = 0, c = 0, d = 0;
  // All that core/kernel/vectorise.h compiles for: a virtual machine may lack some. __builtin_cpu_supports of clang has
  // no names for F16C, MOVBE and LZCNT, which is bit ABM.
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !__builtin_cpu_supports("bmi") ||
      !__builtin_cpu_supports("bmi2") || !__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_F16C) || !(c & bit_MOVBE) ||
      !__get_cpuid(0x80000001, &a, &b, &c, &d) || !(c & bit_ABM))
    return all;
  all.push_back(Isa::avx2);
  if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
      !__builtin_cpu_supports("avx512cd") || !__builtin_cpu_supports("avx512dq") || !__builtin_cpu_supports("avx512vl"))
    return all;
  all.push_back(Isa::avx512);
  if (!__builtin_cpu_supports("avx512bf16")) return all;
  all.push_back(Isa::avx512_bf16);
  constexpr unsigned kAmxBf16 = 1u << 22, kAmxTile = 1u << 24;  // leaf 7, EDX
  const bool tiles = __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & kAmxBf16) && (d & kAmxTile);
  if (tiles && tiles_granted()) all.push_back(Isa::amx);
  return all;
}
#elif defined(__aarch64__)
bool has_bfmmla() {
#if defined(__linux__)
  constexpr unsigned long kBf16 = 1ul << 14;  // HWCAP2_BF16, which older headers lack
  return ::getauxval(AT_HWCAP2) & kBf16;
#elif defined(__APPLE__)
  int has = 0;
  std::size_t bytes = sizeof has;
  return ::sysctlbyname("hw.optional.arm.FEAT_BF16", &has, &bytes, nullptr, 0) == 0 && has;
#else
  return false;
#endif
}

std::vector<Isa> find_all() {
  std::vector<Isa> all{Isa::base, Isa::neon};
  if (has_bfmmla()) all.push_back(Isa::neon_bf16);
  return all;
}
#else
std::vector<Isa> find_all() { return {Isa::base}; }
#endif

Isa find_wanted() {
  const char* name = std::getenv("SLUICE_ISA");
  if (!name || !*name) return best_isa();
  for (const Isa i : isas())
    if (!std::strcmp(name, isa_name(i))) return i;
  std::string known;
  for (auto i = Isa::base; i <= Isa::amx; i = static_cast<Isa>(static_cast<int>(i) + 1)) {
    if (!std::strcmp(name, isa_name(i))) return best_isa();
    known += str(known.empty() ? "" : ", ", isa_name(i));
  }
  fail<ValueError>("SLUICE_ISA is \"", name, "\"; known: ", known);
}

std::atomic<Isa>& current() {
  static std::atomic<Isa> isa{find_wanted()};
  return isa;
}

}  // namespace

std::span<const Isa> isas() {
  static const std::vector<Isa> all = find_all();
  return all;
}

Isa best_isa() {
  const Isa last = isas().back();
#if defined(__x86_64__)
  // Intel's cores begin a VDPBF16PS every second cycle, and two multiply-adds of f32 in each: half the time for f32.
  if (last == Isa::avx512_bf16 && __builtin_cpu_is("intel")) return Isa::avx512;
#endif
  return last;
}

Isa isa() { return current().load(std::memory_order_relaxed); }

void set_isa(Isa wanted) {
  const auto all = isas();
  if (std::find(all.begin(), all.end(), wanted) == all.end())
    fail<ValueError>("set_isa: the best of this processor is ", isa_name(best_isa()), " — got ", isa_name(wanted));
  current() = wanted;
}

const char* isa_name(Isa isa) {
  static constexpr const char* names[] = {"base", "neon", "neon_bf16", "avx2", "avx512", "avx512_bf16", "amx"};
  const auto i = static_cast<std::size_t>(isa);
  return i < std::size(names) ? names[i] : "?";
}

std::string detail::cpu_name_in(std::string_view cpuinfo) {
  struct Part {
    std::string_view implementer, part, name;
  };
  static constexpr Part kParts[] = {
      // as Linux writes them; util-linux's lscpu has a complete table
      {"0x41", "0xd03", "Cortex-A53"},  {"0x41", "0xd05", "Cortex-A55"},  {"0x41", "0xd07", "Cortex-A57"},
      {"0x41", "0xd08", "Cortex-A72"},  {"0x41", "0xd09", "Cortex-A73"},  {"0x41", "0xd0a", "Cortex-A75"},
      {"0x41", "0xd0b", "Cortex-A76"},  {"0x41", "0xd41", "Cortex-A78"},  {"0x41", "0xd44", "Cortex-X1"},
      {"0x41", "0xd0c", "Neoverse N1"}, {"0x41", "0xd49", "Neoverse N2"}, {"0x41", "0xd8e", "Neoverse N3"},
      {"0x41", "0xd40", "Neoverse V1"}, {"0x41", "0xd4f", "Neoverse V2"}, {"0x41", "0xd84", "Neoverse V3"},
      {"0x46", "0x001", "A64FX"},       {"0x48", "0xd01", "Kunpeng 920"}, {"0xc0", "0xac3", "Ampere-1"}};
  std::string_view name, implementer, part;
  while (!cpuinfo.empty()) {
    const std::string_view line = cpuinfo.substr(0, cpuinfo.find('\n'));
    cpuinfo.remove_prefix(std::min(cpuinfo.size(), line.size() + 1));
    const auto at = line.find(": ");
    if (at == line.npos) continue;
    const std::string_view value = line.substr(at + 2);
    if (name.empty() && (line.starts_with("model name") || line.starts_with("Model"))) name = value;
    if (line.starts_with("CPU implementer")) implementer = value;
    if (line.starts_with("CPU part")) part = value;  // of several kinds of core the last, the fastest
  }
  if (!name.empty()) return std::string(name);
  for (const Part& p : kParts)
    if (p.implementer == implementer && p.part == part) return std::string(p.name);
  return part.empty() ? "unknown processor" : str("arm64 processor ", implementer, " ", part);
}

std::string cpu_name() {
#if defined(__APPLE__)
  char name[256] = "";
  std::size_t bytes = sizeof name - 1;
  if (::sysctlbyname("machdep.cpu.brand_string", name, &bytes, nullptr, 0) == 0) return name;
#endif
  std::ifstream info("/proc/cpuinfo");
  return detail::cpu_name_in(std::string(std::istreambuf_iterator<char>(info), {}));
}

}  // namespace sluice
