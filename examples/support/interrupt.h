// Ctrl-C that lets a training loop stop tidily: finish the step, save, then leave.
#pragma once

namespace sluice::examples {

/// From here on SIGINT, SIGTERM and SIGUSR1 (mpirun's way to pass on a request, see mpirun.sh) only set a
/// flag; a second one ends the process at once with status 128 + signal. A signal the parent asked to ignore
/// (nohup, a shell's `&`) stays ignored.
/// Throws std::runtime_error when the system refuses the handler.
void catch_interrupts();

/// True once one of them has arrived. Cheap enough to ask after every step, from any thread.
bool interrupted();

}  // namespace sluice::examples
