#!/usr/bin/env bash
# Jobs of four ranks in which one goes wrong: failure.sh PROGRAM LIBSLUICE [TRIALS]. Each must end within the stated time, with
# a status that is not 0, one message that names the rank, and no process left.
set -euo pipefail
launch=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../examples" && pwd)/mpirun.sh # as examples/run.sh
program=$1 library=$2
slow=${SLUICE_SLOW:-$(bash "$(dirname "${BASH_SOURCE[0]}")/slow.sh")} # times as long as an idle machine
RANDOM=${SLUICE_SEED:-$RANDOM}
export SLUICE_TIMEOUT=$((2 * slow))
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# The same library but for the id that the linker gave it.
other_build() {
  local offset size
  read -r offset size < <(readelf -SW "$library" | sed -nE 's/.* \.note\.gnu\.build-id +NOTE +[0-9a-f]+ ([0-9a-f]+) ([0-9a-f]+) .*/\1 \2/p')
  [[ ${size-} ]] || return 1
  mkdir "$work/other"
  cp "$library" "$work/other/libsluice.so.0"
  printf 'other' | dd of="$work/other/libsluice.so.0" bs=1 seek=$((16#$offset + 16#$size - 5)) conv=notrunc status=none
}
kinds=(kill stop shape config throw other exit loop part drop)
if command -v readelf >/dev/null && other_build; then kinds+=(build); fi
trials=${3:-${#kinds[@]}}

failed=0 longest=0
for ((i = 0; i < trials; ++i)); do
  what=${kinds[i % ${#kinds[@]}]} rank=$((RANDOM % 4))
  case $what in # what a user must read, and the seconds that it may take
    kill) want="rank $rank with PID [0-9]+ .* exited on signal 9" limit=3 ;;
    stop | loop) want="^(all_reduce|wait): rank $rank did not come within $SLUICE_TIMEOUT s" limit=8 ;;
    part) want="^(part|all_reduce): rank $rank did not come within $SLUICE_TIMEOUT s" limit=8 ;; # not who was sent to
    drop) want='' limit=3 ;; # MPI may still write to buffers that are gone: the rank ends the job without a word
    shape) want="^all_reduce: ranks disagree — rank $rank calls all_reduce\(sum\) f32\[3\]; the others call" limit=3 ;;
    config) want="^settings: rank $rank has another one — got 'lr = 2'; the others have 'lr = 1'" limit=3 ;;
    throw) want="^rank $rank: the reason" limit=3 ;;
    other) want="^rank $rank: an exception of another kind" limit=3 ;;
    exit) want="^(all_reduce|check_same|barrier): rank $rank has ended" limit=3 ;;
    build) want="^build of Sluice: rank $rank has another one — " limit=3 ;;
  esac
  begun=$(date +%s%N) status=0
  if [[ $what == build ]]; then
    OTHER=$work/other ODD=$rank timeout $((60 * slow)) bash "$launch" 4 bash -c \
      'if [[ $OMPI_COMM_WORLD_RANK == "$ODD" ]]; then export LD_LIBRARY_PATH=$OTHER; fi; exec "$@"' - "$program" none "$rank" 20 \
      >"$work/out" 2>"$work/err" || status=$?
  else
    timeout $((60 * slow)) bash "$launch" 4 "$program" "$what" "$rank" 20 >"$work/out" 2>"$work/err" || status=$?
  fi
  if ((status == 77)); then cat "$work/out"; exit 77; fi
  ended=$(($(date +%s%N) / 1000000)) fault=$(sed -nE 's/^fault at ([0-9]+)$/\1/p' "$work/out")
  took=$((ended - ${fault:-$((begun / 1000000))}))
  if ((took > longest)); then longest=$took; fi
  sed -i -E '/exited on$/ { N; s/\n/ /; }' "$work/err" # OpenMPI 5 breaks the line there
  problem=
  ((status != 0)) || problem='it ended with status 0'
  ((took <= (limit + 5) * slow * 1000)) || problem="it took $took ms" # 5 s for a busy machine
  says=$(grep -cE "$want" "$work/err") || true
  [[ ! $want ]] || ((says == 1)) || problem="$says lines say: $want"
  own=$(grep -cE '^(all_reduce|wait|part|settings|build of|rank [0-9]|barrier|check_same)' "$work/err") || true
  ((own <= 1)) || problem="$own messages instead of one"
  while read -r pid; do # a dead process that nobody has waited for is no process; one that was killed needs a moment
    alive() { [[ -r /proc/$pid/stat && $(sed 's/.*) //' "/proc/$pid/stat" 2>/dev/null | cut -c1) =~ [RSDT] ]]; }
    for ((k = 0; k < 10 * slow; ++k)); do alive || break; sleep 0.1; done
    if alive; then
      problem="process $pid is left"
      kill -9 "$pid" 2>/dev/null || true
    fi
  done < <(sed -nE 's/^rank [0-9]+ is process ([0-9]+)$/\1/p' "$work/out")
  if [[ $problem ]]; then
    printf 'trial %d, %s of rank %d: %s\n' "$i" "$what" "$rank" "$problem"
    cat "$work/out" "$work/err"
    failed=1
  fi
done

# Ranks that are asked to stop have the time that they need; asked again, they end. A rank that dies ends the others, who wait
# for it and hear nothing, in seconds.
stubborn='trap "sleep 4; echo saved; exit 0" USR1; trap "" TERM; if [[ $OMPI_COMM_WORLD_RANK == "$1" ]]; then kill -9 $$; fi
  echo ready; for ((k = 0; k < 300; ++k)); do sleep 0.1; done'
for signals in 0 1 2; do
  begun=$SECONDS
  bash "$launch" 2 bash -c "$stubborn" - "$((signals ? -1 : 1))" >"$work/out" 2>"$work/err" &
  job=$!
  for ((k = 0; signals && k < 100 * slow; ++k)); do
    if (($(grep -c ready "$work/out") == 2)); then break; fi
    sleep 0.1
  done
  for ((k = 0; k < signals; ++k)); do
    kill -TERM "$job" 2>/dev/null || true # it may have ended
    sleep 0.3
  done
  status=0
  wait "$job" || status=$?
  took=$((SECONDS - begun)) saved=$(grep -c saved "$work/out") || true
  if ((took > 15 * slow || saved != (signals == 1 ? 2 : 0) || (status == 0) != (signals == 1))); then
    printf '%d signals: status %d after %d s, %d ranks saved\n' "$signals" "$status" "$took" "$saved"
    cat "$work/out" "$work/err"
    failed=1
  fi
done
((failed)) || printf '%d trials, each with one right message; from the fault to the end at most %d ms\n' "$trials" "$longest"
exit "$failed"
