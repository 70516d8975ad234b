#!/usr/bin/env bash
# Runs a program on N ranks of this machine, also as root and with more ranks than cores: mpirun.sh N PROGRAM [ARGUMENT ...]
# Status 77, which ctest shows as skipped, where there is no mpirun.
set -euo pipefail
ranks=$1
shift
command -v mpirun >/dev/null || { echo 'skipped: no mpirun'; exit 77; }
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
# Containers often forbid one process to read another's memory, which MPI would try.
export OMPI_MCA_btl_vader_single_copy_mechanism=none
exec mpirun --oversubscribe --bind-to none -n "$ranks" "$@"
