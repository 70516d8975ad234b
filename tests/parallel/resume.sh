#!/usr/bin/env bash
# Training that loses a rank in the middle, again and again, ends where training that was left alone ends: resume.sh GAU_LM
# [TRIALS]. The job must end by itself, its checkpoint must be whole, and the same command must go on from it, bit for bit with
# the same number of ranks, and with fewer.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
program=$1 trials=${2:-2}
export SLUICE_TIMEOUT=3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
command -v mpirun >/dev/null || { echo 'skipped: no mpirun'; exit 77; }
die() { printf '%s\n' "$*"; cat "$work"/*.log; exit 1; }

run() { # ranks folder
  timeout 100 bash "$here/mpirun.sh" "$1" "$program" --smoke --steps 300 --evals 30 --out "$work/$2" >"$work/$2.log" 2>&1
}
figures() { cut -d, -f1,3,4,5 "$work/$1/log.csv"; } # without the seconds
ranks_of() { # the processes that write to a folder
  local process
  for process in /proc/[0-9]*; do
    if [[ $(readlink "$process/exe" 2>/dev/null) == "$program" ]] && tr '\0' '\n' <"$process/cmdline" 2>/dev/null | grep -qx "$work/$1"; then
      echo "${process#/proc/}"
    fi
  done
}
program=$(realpath "$program")

run 3 whole || die 'the job that nobody disturbed failed'
interrupted=0
for ((i = 0; i < trials; ++i)); do
  signal=KILL
  if ((i % 2)); then signal=STOP; fi
  rm -rf "$work/cut"
  run 3 cut &
  job=$!
  for ((k = 0; k < 200; ++k)); do # until it has saved once, and a little more
    if [[ -e $work/cut/checkpoint.safetensors ]]; then break; fi
    sleep 0.05
  done
  sleep 0.$((RANDOM % 4))
  mapfile -t pids < <(ranks_of cut)
  if ((${#pids[@]} == 3)); then kill "-$signal" "${pids[RANDOM % 3]}" 2>/dev/null || true; fi
  begun=$SECONDS
  if wait "$job"; then continue; fi # it was done before
  ((SECONDS - begun <= 15)) || die "trial $i: it took $((SECONDS - begun)) s to end after SIG$signal"
  [[ ! $(ranks_of cut) ]] || die "trial $i: processes are left"
  interrupted=$((interrupted + 1))
  cp -r "$work/cut" "$work/fewer"
  run 3 cut || die "trial $i: it does not resume"
  grep -q '^resume .* at step' "$work/cut.log" || die "trial $i: it began anew"
  [[ $(figures cut) == "$(figures whole)" ]] || die "trial $i: other figures than without the interruption"
  if ((i < 2)); then
    run $((i + 1)) fewer || die "trial $i: it does not resume with fewer ranks"
    grep -q '^resume .* at step' "$work/fewer.log" || die "trial $i: with fewer ranks it began anew"
    # The same but for rounding.
    paste -d, <(figures whole) <(figures fewer) | awk -F, 'NR > 1 && ($1 != $5 || ($3 - $7) ^ 2 > 1e-4) { bad = 1 } END { exit bad || NR < 2 }' ||
      die "trial $i: with fewer ranks it ends elsewhere"
  fi
  rm -rf "$work/fewer"
done
((interrupted > 0)) || die 'nothing was interrupted: this test is broken'
printf '%d trials, %d interrupted, all ended as without\n' "$trials" "$interrupted"
