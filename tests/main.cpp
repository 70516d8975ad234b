// The end of a test run: writes what the op drivers found to op_table.txt. (main() itself comes from
// Catch2's library.)
#if __has_include(<catch2/catch.hpp>)
#define CATCH_CONFIG_EXTERNAL_INTERFACES
#endif
#include "support/catch.h"
#include "support/identities.h"
#include "support/op_table.h"

#include <cstdlib>

namespace {

#if __has_include(<catch2/catch.hpp>)
using ListenerBase = Catch::TestEventListenerBase;
#else
using ListenerBase = Catch::EventListenerBase;
#endif

struct TableWriter : ListenerBase {
  using ListenerBase::ListenerBase;
  void testRunEnded(const Catch::TestRunStats&) override {
    if (std::getenv("SLUICE_ISA") || std::getenv("SLUICE_TEST_DEVICE")) return;  // a part of the tests once more
    sluice::testing::write_op_table(SLUICE_TEST_OUTPUT_DIR);
    sluice::testing::write_identity_table(SLUICE_TEST_OUTPUT_DIR);
  }
};
CATCH_REGISTER_LISTENER(TableWriter)

}  // namespace
