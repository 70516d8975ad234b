// Identifies the build of the library that a rank runs. Two builds may differ in their kernels and messages.
#include <sluice/parallel/mpi/engine.h>

#include <cstdint>
#include <cstring>

#if defined(__APPLE__)
#include <dlfcn.h>
#include <mach-o/loader.h>
#else
#include <link.h>
#endif

namespace sluice::detail {

namespace {

void append_hex(std::string& to, const void* bytes, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    const auto byte = static_cast<const unsigned char*>(bytes)[i];
    to += "0123456789abcdef"[byte >> 4], to += "0123456789abcdef"[byte & 15];
  }
}

/// The build id that the linker wrote into libsluice, or into the program that contains it.
#if defined(__APPLE__)
std::string build_id() {
  std::string id;
  Dl_info info;
  if (!dladdr(reinterpret_cast<const void*>(&blame), &info)) return id;
  const auto* header = static_cast<const mach_header_64*>(info.dli_fbase);
  const char* at = reinterpret_cast<const char*>(header + 1);
  for (uint32_t i = 0; i < header->ncmds; ++i) {
    const auto* command = reinterpret_cast<const load_command*>(at);
    if (command->cmd == LC_UUID) append_hex(id, reinterpret_cast<const uuid_command*>(command)->uuid, 16);
    at += command->cmdsize;
  }
  return id;
}
#else
std::string build_id() {
  struct Found {
    const void* inside;
    std::string id;
  } found{reinterpret_cast<const void*>(&blame), ""};
  dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* p) {
        Found& f = *static_cast<Found*>(p);
        const auto at = reinterpret_cast<std::uintptr_t>(f.inside);
        bool holds = false;
        for (int i = 0; i < info->dlpi_phnum; ++i) {
          const ElfW(Phdr)& h = info->dlpi_phdr[i];
          holds |=
              h.p_type == PT_LOAD && at >= info->dlpi_addr + h.p_vaddr && at < info->dlpi_addr + h.p_vaddr + h.p_memsz;
        }
        if (!holds) return 0;
        for (int i = 0; i < info->dlpi_phnum; ++i) {
          const ElfW(Phdr)& h = info->dlpi_phdr[i];
          if (h.p_type != PT_NOTE) continue;
          const char* p_note = reinterpret_cast<const char*>(info->dlpi_addr + h.p_vaddr);
          for (const char *note = p_note, *end = p_note + h.p_memsz; note + sizeof(ElfW(Nhdr)) <= end;) {
            const auto* n = reinterpret_cast<const ElfW(Nhdr)*>(note);
            const char* name = note + sizeof *n;
            const char* value = name + (n->n_namesz + 3) / 4 * 4;
            if (n->n_type == NT_GNU_BUILD_ID && n->n_namesz == 4 && std::memcmp(name, "GNU", 4) == 0)
              append_hex(f.id, value, n->n_descsz);
            note = value + (n->n_descsz + 3) / 4 * 4;
          }
        }
        return 1;
      },
      &found);
  return found.id;
}
#endif

}  // namespace

std::string build_text() { return str("g++/clang ", __VERSION__, ", id ", build_id()); }

}  // namespace sluice::detail
