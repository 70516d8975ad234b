// The tests beside this file say of each tensor on which device it lies, and compare a device with the CPU: what they
// do not say is on the CPU, whatever SLUICE_TEST_DEVICE means for the programs that know of one device only.
#include <cstdlib>

namespace {
[[maybe_unused]] const bool forgotten = ::unsetenv("SLUICE_TEST_DEVICE") == 0;  // before any test asks for it
}
