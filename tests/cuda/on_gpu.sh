#!/usr/bin/env bash
# usage: on_gpu.sh PROGRAM ARGUMENTS…    runs it on a real GPU. Without one: exit status 77, which CTest calls skipped; with
# SLUICE_REQUIRE_CUDA=1 in the environment the program runs anyway, and says what is missing.
set -euo pipefail
if [[ ${SLUICE_REQUIRE_CUDA-} != 1 && ! -e /dev/nvidiactl && ! -e /dev/dxg ]]; then
  echo 'no GPU here'
  exit 77
fi
export SLUICE_TEST_DEVICE=cuda SLUICE_CUDA=gpu
exec "$@"
