#!/usr/bin/env bash
# Training that loses a rank in the middle, again and again, ends where training that was left alone ends: resume.sh GAU_LM
# [TRIALS]. The job must end by itself, its checkpoint must be whole, and the same command must go on from it, bit for bit with
# the same number of ranks, and with fewer.
set -euo pipefail
launch=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../examples" && pwd)/mpirun.sh # as examples/run.sh
program=$1 trials=${2:-2}
slow=${SLUICE_SLOW:-$(bash "$(dirname "${BASH_SOURCE[0]}")/slow.sh")} # times as long as an idle machine
RANDOM=${SLUICE_SEED:-$RANDOM}
export SLUICE_TIMEOUT=$((3 * slow))
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
command -v mpirun >/dev/null || { echo 'skipped: no mpirun'; exit 77; }
die() { printf '%s\n' "$*"; cat "$work"/*.log; exit 1; }

# A save each ten steps, and so many steps that none is at its end when the signal comes: MPI_Finalize waits without a limit
# for a rank that is stopped.
steps=600
run() { # ranks folder [option of mpirun.sh ...]
  timeout $((100 * slow)) bash "$launch" "$1" "${@:3}" "$program" --smoke --steps "$steps" --evals 60 --out "$work/$2" >"$work/$2.log" 2>&1
}
figures() { cut -d, -f1,3,4,5 "$work/$1/log.csv"; } # without the seconds
ranks_of() { # the processes that write to a folder
  local process name
  for process in /proc/[0-9]*; do
    read -r name <"$process/comm" || continue # without a process for each that there is
    if [[ $name == "${program##*/}" && $(readlink "$process/exe") == "$program" ]] &&
      tr '\0' '\n' <"$process/cmdline" | grep -qx "$work/$1"; then
      echo "${process#/proc/}"
    fi
  done 2>/dev/null
}
until_saved() { # once, in a folder
  local k
  for ((k = 0; k < 200 * slow; ++k)); do
    if [[ -e $work/$1/checkpoint.safetensors ]]; then break; fi
    sleep 0.05
  done
}
program=$(realpath "$program")

begun=$(date +%s%3N)
run 3 whole || die 'the job that nobody disturbed failed'
took=$(($(date +%s%3N) - begun)) # ms
if ((took < 5000)); then # a fast machine: such a job ends before it is disturbed
  steps=$((600 * 10000 / took / 60 * 60))
  rm -rf "$work/whole"
  run 3 whole || die 'the longer job that nobody disturbed failed'
fi
interrupted=0
for ((i = 0; i < trials; ++i)); do
  signal=KILL
  if ((i % 2)); then signal=STOP; fi
  rm -rf "$work/cut"
  run 3 cut &
  job=$!
  until_saved cut
  sleep 0.$((RANDOM % 4))
  mapfile -t pids < <(ranks_of cut)
  if ((${#pids[@]} == 3)); then kill "-$signal" "${pids[RANDOM % 3]}" 2>/dev/null || true; fi
  begun=$SECONDS
  if wait "$job"; then continue; fi # it was done before
  ((SECONDS - begun <= 15 * slow)) || die "trial $i: it took $((SECONDS - begun)) s to end after SIG$signal"
  for ((k = 0; k < 200 * slow; ++k)); do # a rank that was stopped ends when it gets a turn
    if [[ ! $(ranks_of cut) ]]; then break; fi
    sleep 0.05
  done
  [[ ! $(ranks_of cut) ]] || die "trial $i: processes are left"
  interrupted=$((interrupted + 1))
  cp -r "$work/cut" "$work/fewer"
  run 3 cut || die "trial $i: it does not resume"
  grep -q '^resume .* at step' "$work/cut.log" || die "trial $i: it began anew"
  [[ $(figures cut) == "$(figures whole)" ]] || die "trial $i: other figures than without the interruption"
  if ((i < 2)); then
    run $((i + 1)) fewer || die "trial $i: it does not resume with fewer ranks"
    grep -q '^resume .* at step' "$work/fewer.log" || die "trial $i: with fewer ranks it began anew"
    # Sums of other shares are rounded otherwise, and training multiplies the difference: the steps of every row are the
    # same, but only the first row after the resumed step has the same figures but for rounding.
    resumed=$(sed -nE 's/^resume .* at step ([0-9]+)$/\1/p' "$work/fewer.log")
    paste -d, <(figures whole) <(figures fewer) | awk -F, -v resumed="$resumed" '
      NR == 1 { next }
      $1 != $5 { bad = 1 }
      $1 > resumed && !compared++ && ($3 - $7) ^ 2 > 1e-4 { bad = 1 }
      END { exit bad || !compared }' || die "trial $i: with fewer ranks it ends elsewhere"
  fi
  rm -rf "$work/fewer"
done

# A job that may be started again goes on by itself.
run 3 again --restarts 1 &
job=$!
until_saved again
mapfile -t pids < <(ranks_of again)
kill -KILL "${pids[0]}" || die 'the job that shall lose a rank was too fast'
wait "$job" || die 'the job was not started again'
grep -q '^resume .* at step' "$work/again.log" || die 'the job began anew'
[[ $(figures again) == "$(figures whole)" ]] || die 'other figures after a new start'

# A job that is asked to stop, as by Ctrl-C, saves. While it runs no other writes to its folder. It validates after each
# step, the last one, too.
asked() { exec bash "$launch" 3 "$program" --smoke --steps "$1" --evals "$1" --out "$work/asked" >"$work/asked.log" 2>&1; }
asked 6000 &
job=$!
until_saved asked
if timeout 100 bash "$launch" 2 "$program" --smoke --out "$work/asked" >"$work/second.log" 2>&1; then die 'two jobs wrote to one folder'; fi
(($(grep -c "folder '$work/asked' is in use by process" "$work/second.log") == 1)) || die 'the second job does not say why it ended'
kill -TERM "$job"
wait "$job" || die 'a job that was asked to stop failed'
step=$(sed -nE 's/^saved .* at step ([0-9]+); the same command resumes$/\1/p' "$work/asked.log")
[[ $step ]] || die 'a job that was asked to stop did not save'
grep -q "^$step," "$work/asked/log.csv" || die "the row of step $step, at which a job was asked to stop, is missing"
(asked $((step + 1))) || die 'a job that was asked to stop does not resume'
grep -q "^resume .* at step $step$" "$work/asked.log" || die 'a job that was asked to stop began anew'

# Ranks that have different texts say so.
for rank in 0 1; do printf "text $rank; %.0s" {1..1000} >"$work/text$rank"; done
if timeout 100 bash "$launch" 2 bash -c 'exec "$0" --smoke --text "$1/text$OMPI_COMM_WORLD_RANK" --out "$1/texts"' \
  "$program" "$work" >"$work/texts.log" 2>&1; then die 'ranks trained on different texts'; fi
(($(grep -c '^text: rank 1 has another one' "$work/texts.log") == 1)) || die 'ranks with different texts do not say so'

((interrupted > 0)) || die 'nothing was interrupted: this test is broken'
printf '%d trials, %d interrupted, all ended as without\n' "$trials" "$interrupted"
