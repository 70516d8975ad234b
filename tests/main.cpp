// The end of a test run: writes what the op drivers found to op_table.txt. (main() itself comes from
// Catch2's library.)
#if __has_include(<catch2/catch.hpp>)
#define CATCH_CONFIG_EXTERNAL_INTERFACES
#endif
#include "support/catch.h"
#include "support/folders.h"
#include "support/identities.h"
#include "support/op_table.h"
#include "support/table_samples.h"

#include <sluice/core/kernel/cpu.h>

#include <cstdio>
#include <cstdlib>
#include <string_view>

namespace {

#if __has_include(<catch2/catch.hpp>)
using ListenerBase = Catch::TestEventListenerBase;
#else
using ListenerBase = Catch::EventListenerBase;
#endif

struct TableWriter : ListenerBase {
  using ListenerBase::ListenerBase;
  /// ctest runs a part of the tests once more with each lesser instruction set, which this machine may lack.
  void testRunStarting(const Catch::TestRunInfo&) override {
    const char* const wanted = std::getenv("SLUICE_ISA");
    if (!wanted || sluice::isa_name(sluice::isa()) == std::string_view(wanted)) return;
    std::printf("SLUICE_ISA=%s: this machine has %s\n", wanted, sluice::isa_name(sluice::best_isa()));
    std::exit(77);
  }
  void testRunEnded(const Catch::TestRunStats&) override {
    if (const int64_t n = sluice::testing::drawn_layers())
      std::printf("%lld layers drawn\n", static_cast<long long>(n));
    for (const char* other : {"SLUICE_ISA", "SLUICE_TEST_DEVICE", "SLUICE_LAYER_SEED"})
      if (std::getenv(other)) return;  // a part of the tests once more
    sluice::testing::write_op_table(sluice::testing::output_folder());
    sluice::testing::write_identity_table(sluice::testing::output_folder());
  }
};
CATCH_REGISTER_LISTENER(TableWriter)

}  // namespace
