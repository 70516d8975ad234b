// In a program that does not link the emulator: there are no schedules to choose from. The device is what SLUICE_CUDA
// in the environment says. A test of several schedules runs as often here, in whatever order a real device takes its
// blocks: the bits must be the same then, too.
#include <sluice/cuda/emulator/emulator.h>

void sluice::cuda::emulator::set_schedule(uint64_t) {}
