#!/usr/bin/env bash
# Runs a program on N ranks by MPI, also as root and with more ranks than cores:
#   mpirun.sh N [--hostfile FILE] [--restarts R] PROGRAM [ARGUMENT ...]
# --hostfile: the machines, a line "NAME slots=N" each. --restarts: start again when a rank fails, at most R times.
# Ctrl-C, SIGTERM and SIGHUP become SIGUSR1 of every rank, which asks it to save and stop and sets no time for that; a second
# one ends the job. When a rank fails, mpirun ends the others: SIGTERM and, a second later, SIGKILL. To a rank the two are
# different signals, because one that waits for a rank that died will never save.
# Status 77, which ctest shows as skipped, where there is no mpirun.
set -euo pipefail
command -v mpirun >/dev/null || { echo 'skipped: no mpirun'; exit 77; }
ranks=$1 restarts=0
shift
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
# Containers often forbid one process to read another's memory, which MPI would try.
export OMPI_MCA_btl_vader_single_copy_mechanism=none
launch=(mpirun -n "$ranks" --bind-to none) where=(--oversubscribe)
while [[ ${1-} == --* ]]; do
  case $1 in
    --hostfile)
      where=(--hostfile "$2")
      for name in SLUICE_TIMEOUT SLUICE_ISA SLUICE_MPI_MESSAGE; do
        if [[ ${!name-} ]]; then where+=(-x "$name"); fi
      done ;;
    --restarts) restarts=$2 ;;
    *) echo "mpirun.sh: no option $1" >&2; exit 2 ;;
  esac
  shift 2
done
launch+=("${where[@]}" "$@")
# A terminal sends Ctrl-C to a whole process group; in a session of its own mpirun hears of it from here alone.
if command -v setsid >/dev/null; then launch=(setsid "${launch[@]}"); fi

asked=0 job=
stop() {
  asked=$((asked + 1))
  if [[ $job ]]; then kill "-$( ((asked == 1)) && echo USR1 || echo TERM)" "$job" 2>/dev/null || true; fi
}
trap stop INT TERM HUP
for ((tried = 0; ; ++tried)); do
  "${launch[@]}" </dev/null &
  job=$!
  while true; do # a signal ends wait, too
    before=$asked status=0
    wait "$job" || status=$?
    if ((asked == before)); then break; fi
  done
  if ((status == 0 || asked || tried >= restarts)); then exit "$status"; fi
  echo "mpirun.sh: the job ended with status $status; starting it again ($((restarts - tried - 1)) more after this)"
done
