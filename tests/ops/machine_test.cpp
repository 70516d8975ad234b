// OpenBLAS runs the kernels that the processor deserves, also where it did not choose them; a user's choice stays.
#include <sluice/ops/machine.h>

#include "support/catch.h"
#include "support/child.h"

#include <sluice/core/kernel/parallel.h>
#include <sluice/ops/gemm/gemm.h>
#include <sluice/ops/gemm/openblas.h>

#include <cstdlib>
#include <vector>

using namespace sluice;

TEST_CASE("OpenBLAS: which kernels it should run", "[gemm]") {
  struct Row {
    const char* current;
    Isa isa;
    const char *vendor, *wanted;
  };
  const Row rows[] = {
      {"Prescott", Isa::avx512, "intel", "SkylakeX"},
      {"Prescott", Isa::amx, "intel", "SkylakeX"},
      {"Haswell", Isa::avx512, "intel", "SkylakeX"},
      {"Zen", Isa::avx512, "intel", "SkylakeX"},
      {"SkylakeX", Isa::amx, "intel", ""},
      {"Cooperlake", Isa::amx, "intel", ""},
      {"SapphireRapids", Isa::amx, "intel", ""},
      {"Prescott", Isa::avx2, "intel", "Haswell"},
      {"Nehalem", Isa::avx2, "intel", "Haswell"},
      {"Sandybridge", Isa::avx2, "intel", "Haswell"},
      {"Haswell", Isa::avx2, "intel", ""},
      {"Prescott", Isa::base, "intel", ""},
      {"Core2", Isa::avx512, "amd", "Zen"},
      {"prescott", Isa::avx512, "amd", "Zen"},
      {"Zen", Isa::avx512, "amd", ""},
      {"Excavator", Isa::avx2, "amd", "Zen"},
      {"SkylakeX", Isa::avx512, "amd", ""},
      {"Prescott", Isa::avx512, "", "Haswell"},
      {"Haswell", Isa::avx512, "", ""},
      {"unknown", Isa::avx512, "intel", ""},
      {"", Isa::avx512, "intel", ""},
      {"neoversen1", Isa::base, "", ""},
      {"Diamond", Isa::amx, "intel", ""},  // of the future
  };
  for (const Row& r : rows) {
    INFO(r.current << " on " << r.vendor << ' ' << isa_name(r.isa));
    CHECK(detail::wanted_blas_core(r.current, r.isa, r.vendor) == r.wanted);
  }
}

TEST_CASE("OpenBLAS: a wrong choice is corrected, a user's is not", "[gemm]") {
  const std::string name = blas_core();
  if (isa() < Isa::avx2 || name == "unknown") {
    WARN("not tested: nothing to choose on this machine");
    return;
  }
  if (std::getenv("OPENBLAS_CORETYPE")) {
    WARN("not tested: OPENBLAS_CORETYPE is set");
    return;
  }
  const auto pretend = [](bool set_by_user) {
    return testing::in_child([=]() -> std::string {
      if (!detail::set_blas_core("Prescott")) return "cannot";
      if (std::getenv("OPENBLAS_CORETYPE")) return "left a trace";
      if (blas_core() != "Prescott") return "did not change";
      if (set_by_user) ::setenv("OPENBLAS_CORETYPE", "prescott", 1);
      detail::correct_blas_core();
      std::vector<float> a(70 * 33), b(33 * 50), c(70 * 50, -1.0f);
      for (std::size_t i = 0; i < a.size(); ++i) a[i] = float(i % 7) - 3;
      for (std::size_t i = 0; i < b.size(); ++i) b[i] = float(i % 5) - 1;
      detail::gemm(detail::Trans::no, detail::Trans::no, 70, 50, 33, 1.0f, a.data(), 33, b.data(), 50, 0.0f, c.data(),
                   50);
      for (std::size_t i = 0; i < 70; ++i)
        for (std::size_t j = 0; j < 50; ++j) {
          float sum = 0;
          for (std::size_t p = 0; p < 33; ++p) sum += a[i * 33 + p] * b[p * 50 + j];
          if (c[i * 50 + j] != sum) return "computes nonsense";  // whole numbers: exact in any order
        }
      return blas_core();
    });
  };
  const std::string corrected = pretend(false);
  if (corrected == "cannot") {
    WARN("not tested: this build of OpenBLAS has kernels for one processor");
    return;
  }
  CHECK((corrected == "Haswell" || corrected == "Zen" || corrected == "SkylakeX"));
  if (isa() >= Isa::avx512 && name == "SkylakeX") CHECK(corrected == name);
  CHECK(pretend(true) == "Prescott");
}

TEST_CASE("describe_machine says processor, instruction set, OpenBLAS and threads", "[gemm]") {
  const int before = num_threads();
  set_num_threads(1);
  CHECK(describe_machine() == cpu_name() + ", " + isa_name(isa()) + ", " + blas_name() + ", 1 thread");
  CHECK((blas_name() == "Accelerate" || blas_name() == "OpenBLAS " + blas_core()));
  set_num_threads(3);
  CHECK(describe_machine().ends_with(", 3 threads"));
  set_num_threads(before);
}
