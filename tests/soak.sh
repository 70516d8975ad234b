#!/usr/bin/env bash
# Random tests in turns, for hours: what no list of cases holds. What it did and found is added to docs/RELIABILITY.md.
set -euo pipefail

usage() {
  cat <<'TEXT'
usage: tests/soak.sh --hours H [--seed S] [--jobs N] [--out DIR] [--preset NAME | --build DIR] [--kinds LIST]
  --hours H      how long; or --seconds S, which leaves the page as it is
  --seed S       of the first turn; without it the last run of this folder, or of the page, is gone on from
  --jobs N       turns at a time (1)
  --out DIR      the turns and what they found (soak/ in the build folder)
  --preset NAME  what is built and tried: release (default), debug, asan or clang, in build/NAME
  --build DIR    a build folder to take as it is instead
  --kinds LIST   only these, a comma between: ops, graphs, layers, files, memory, kills, ranks
A turn is a kind and a seed, and takes about a minute. Exit status 0 only if nothing was found; Ctrl-C ends it as the
clock does. Each finding is printed with the command that repeats it, and its output is DIR/found/KIND-SEED.log.
TEXT
}

say() { printf 'soak: %s\n' "$*"; }
bad() { printf 'soak: %s (--help lists the options)\n' "$*" >&2; exit 2; }

seconds= page=docs/RELIABILITY.md seed= jobs=1 out= preset=release build= kinds=ops,graphs,layers,files,memory,kills,ranks
while (($#)); do
  case $1 in
    --hours | --seconds | --seed | --jobs | --out | --preset | --build | --kinds)
      if [[ ! ${2-} || $2 == --* ]]; then bad "$1 needs a value"; fi
      case $1 in
        --hours) seconds=$(awk -v h="$2" 'BEGIN { printf "%d", h * 3600 }') ;;
        --seconds) seconds=$2 page= ;;
        --out) out=$(realpath -m "$2") ;;
        --build) build=$(realpath "$2") ;;
        *) declare "${1#--}=$2" ;;
      esac
      shift ;;
    -h | --help) usage; exit 0 ;;
    *) bad "unknown option '$1'" ;;
  esac
  shift
done
[[ $seconds =~ ^[1-9][0-9]*$ ]] || bad '--hours H is needed'
[[ $jobs =~ ^[1-9][0-9]*$ ]] || bad "--jobs needs a number, got '$jobs'"
[[ $seed =~ ^[0-9]*$ ]] || bad "--seed needs a number, got '$seed'"
IFS=, read -ra kinds <<<"$kinds"
for kind in "${kinds[@]}"; do
  [[ $kind =~ ^(ops|graphs|layers|files|memory|kills|ranks)$ ]] || bad "unknown kind '$kind'"
done

cd "$(dirname "${BASH_SOURCE[0]}")/.."
root=$PWD
if [[ ! $build ]]; then
  build=$root/build/$preset
  [[ -f $build/CMakeCache.txt ]] || cmake --preset "$preset" -DSLUICE_BUILD_TESTS=ON -DSLUICE_BUILD_EXAMPLES=ON -DSLUICE_CUDA=OFF
  cmake --build "$build" --parallel --target sluice_fuzz sluice_tests sluice_failing_ranks gau_lm
fi
fuzz=$build/tests/sluice_fuzz table=$build/tests/sluice_tests failing=$build/tests/parallel/sluice_failing_ranks
train=$build/examples/gau_lm
sanitized=$(sed -n 's/^SLUICE_SANITIZE:[A-Z]*=\(.*\)/\1/p' "$build/CMakeCache.txt")
if [[ ! $sanitized =~ ^(OFF)?$ ]]; then
  export ASAN_OPTIONS=detect_leaks=0 # killed processes and MPI's own
  mapfile -t kinds < <(printf '%s\n' "${kinds[@]}" | grep -vx memory) # a sanitizer needs its address space
fi

out=${out:-$build/soak}
mkdir -p "$out/found"
page_seed() { sed -nE 's/^\| [0-9]{4}-.*\| ([0-9]+) \|$/\1/p' "$page" 2>/dev/null | sort -n | tail -1; }
if [[ ! $seed && -f $out/seed ]]; then seed=$(<"$out/seed"); fi
if [[ ! $seed ]]; then seed=$(page_seed || true); seed=$((${seed:-0} + 1)); fi
echo "$seed" >"$out/seed"
: >"$out/turns" # kind, seed, status, seconds, seconds of CPU, counts

# -- turns: SEED SECONDS; each ends with a line of counts, "12 calls, 3 errors" --------------------------------

fuzz_turn() { "$fuzz" --kind "$1" --seed "$2" --seconds "$3"; } # kind seed seconds

# The drivers over the table of layers, with drawn options. For the table's own only holds how near f32 and bf16 come: a
# rounding may choose other keys, or meet a sum near 0.
layers_filter='[table]~[bf16]~"table: options*"~"table: f32*"'
layers_turn() {
  local end=$((SECONDS + $2)) k layers=0 some
  for ((k = 0; k == 0 || SECONDS < end; ++k)); do
    some=$(SLUICE_LAYER_SEED=$(($1 * 1000 + k)) "$table" "$layers_filter") ||
      { printf '%s\nlayers of seed %d\n%d layers\n' "$some" $(($1 * 1000 + k)) "$layers"; return 1; }
    layers=$((layers + $(sed -nE 's/^([0-9]+) layers drawn$/\1/p' <<<"$some")))
  done
  echo "$layers layers"
}

# Training that saves after each step, killed at any moment until it comes to its end: with as many threads or others, it
# ends with the bits of training that was left alone.
data_of() { tail -c +$((9 + $(od -An -tu8 -N8 "$1"))) "$1"; } # a safetensors file without its header
kills_turn() {
  local end=$((SECONDS + $2)) kills=0 runs=0 work args status figures had after tries
  RANDOM=$(($1 % 32768)) work=$(mktemp -d)
  trap 'rm -rf "$work"; echo "$kills kills, $runs runs"' RETURN
  args=(--smoke --steps 100 --evals 100 --seed $((RANDOM % 100)) --dim 32)
  case $((RANDOM % 4)) in 0) args+=(--bf16) ;; 1) args+=(--dtype bf16) ;; 2) args+=(--dropout 0.1) ;; esac
  "$train" "${args[@]}" --out "$work/whole" >"$work/log" || { cat "$work/log"; return 1; }
  figures=$(cut -d, -f1,3,4,5 "$work/whole/log.csv") # without the seconds
  while ((runs == 0 || SECONDS < end)); do
    rm -rf "$work/cut" && mkdir "$work/cut"
    head -2 "$work/whole/log.csv" >"$work/cut/log.csv" # killed before there was a checkpoint, first of all
    tries=0
    while true; do
      had=0
      if [[ -e $work/cut/checkpoint.safetensors ]]; then had=1; fi
      status=0
      after=$((RANDOM % (2 + tries++ / 10))).$((RANDOM % 900 + 100)) # later where the machine is slow
      { timeout -s KILL "$after" "$train" "${args[@]}" --threads $((1 + RANDOM % 2)) --out "$work/cut" >"$work/log" 2>&1; } 2>/dev/null || status=$?
      if ((status == 0)); then break; fi
      if ((status != 137)); then cat "$work/log"; echo "it ended with status $status"; return 1; fi
      kills=$((kills + 1))
    done
    runs=$((runs + 1))
    if ((had)) && ! grep -q '^resume .* at step' "$work/log"; then cat "$work/log"; echo 'it began anew'; return 1; fi
    if [[ $(cut -d, -f1,3,4,5 "$work/cut/log.csv") != "$figures" ]]; then
      diff "$work/whole/log.csv" "$work/cut/log.csv"; echo 'other figures than without kills'; return 1
    fi
    cmp <(data_of "$work/whole/checkpoint.safetensors") <(data_of "$work/cut/checkpoint.safetensors") ||
      { echo 'other weights than without kills'; return 1; }
    # What was killed in its last save left a file that only another save removes.
    [[ $(ls "$work/cut") == "$(ls "$work/whole")" && $(ls -A "$work/cut" | wc -l) -le $(($(ls -A "$work/whole" | wc -l) + 1)) ]] ||
      { ls -A "$work/cut"; echo 'something is left behind'; return 1; }
  done
}

# Jobs of which a rank is killed, stopped, or goes wrong in another way.
ranks_turn() {
  local end=$((SECONDS + $2)) jobs=0 k status
  export SLUICE_SLOW # others may want the machine, too
  SLUICE_SLOW=$(($(bash tests/parallel/slow.sh) + 3))
  for ((k = 0; k == 0 || SECONDS < end; ++k)); do
    status=0
    if ((k % 2)); then SLUICE_SEED=$(($1 + k)) bash tests/parallel/resume.sh "$train" 2 || status=$?
    else SLUICE_SEED=$(($1 + k)) bash tests/parallel/failure.sh "$failing" "$build/libsluice.so" 10 || status=$?; fi
    if ((status == 77)); then break; fi # no mpirun
    if ((status)); then return "$status"; fi
    jobs=$((jobs + (k % 2 ? 2 : 10)))
  done
  echo "$jobs jobs"
}

repeat() { # kind seed log
  case $1 in
    layers) echo "SLUICE_LAYER_SEED=$(sed -nE 's/^layers of seed //p' "$3") $table '$layers_filter'" ;;
    kills | ranks) echo "tests/soak.sh --build $build --kinds $1 --seed $2 --seconds $turn" ;;
    *) echo "$fuzz $(sed -nE 's/^sluice_fuzz: FAILED in .*(--kind .*)$/\1/p' "$3" | head -1)" ;;
  esac
}

# -- a job: turns until the time is over ------------------------------------------------------------------------

turn=$((seconds < 60 * ${#kinds[@]} ? (seconds + ${#kinds[@]} - 1) / ${#kinds[@]} : 60))
cpu_of() { # of the processes that this shell has waited for; times must not run in a shell of its own
  times >"$out/times.$1"
  read -r cpu < <(awk 'NR == 2 { gsub(/[ms]/, " "); print $1 * 60 + $2 + $3 * 60 + $4 }' "$out/times.$1")
}
job() { # number
  local child= begun before status kind seed log cpu=0 counts
  trap 'if [[ $child ]]; then kill -TERM -- "-$child" 2>/dev/null; fi; exit 0' TERM INT
  set -m # each turn is a group of processes, to be ended as one
  for ((k = $1 * ${#kinds[@]} / jobs; SECONDS < seconds; ++k)); do
    kind=${kinds[k % ${#kinds[@]}]}
    exec 9>"$out/lock" && flock 9
    seed=$(<"$out/seed") && echo $((seed + 1)) >"$out/seed"
    exec 9>&-
    log=$out/turn.$1 begun=$SECONDS before=$cpu status=0
    case $kind in
      layers | kills | ranks) "${kind}_turn" "$seed" "$turn" >"$log" 2>&1 & ;;
      *) fuzz_turn "$kind" "$seed" "$turn" >"$log" 2>&1 & ;;
    esac
    child=$!
    wait "$child" || status=$?
    child=
    cpu_of "$1"
    counts=$(tail -1 "$log" | grep -oE '[0-9]+ (calls|graphs|layers|files|limits|kills|jobs)\b' | tr '\n' ' ') || true
    echo "$kind $seed $status $((SECONDS - begun)) $(awk -v a="$before" -v b="$cpu" 'BEGIN { print b - a }') $counts" >>"$out/turns"
    if ((status)); then
      cp "$log" "$out/found/$kind-$seed.log"
      say "found by $kind, seed $seed: $out/found/$kind-$seed.log"
      say "repeat: $(repeat "$kind" "$seed" "$log")"
    fi
  done
}

# -- the page ---------------------------------------------------------------------------------------------------

columns=(calls graphs layers files limits kills jobs)
row() {
  local commit processor
  commit=$(git rev-parse --short HEAD 2>/dev/null || echo '?')
  processor=$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo 2>/dev/null | head -1)
  awk -v names="${columns[*]}" -v head="| $(date +%F) | $commit | ${processor:-$(uname -m)} | $(basename "$build") |" '
    { wall += $4; cpu += $5; if ($3 != 0) ++found; if ($2 > last) last = $2
      for (i = 6; i < NF; i += 2) sum[$(i + 1)] += $i }
    END {
      printf "%s %.2f | %.2f |", head, wall / 3600, cpu / 3600
      n = split(names, name, " ")
      for (i = 1; i <= n; ++i) printf " %d |", sum[name[i]]
      printf " %d | %d |\n", found, last
    }' "$out/turns"
}
write_page() { # the row before the last of the table, which sums up
  local line
  line=$(row)
  say "$line"
  if [[ ! $page || ! -f $page ]]; then return; fi
  exec 9>"$page.lock" && flock 9
  awk -v line="$line" '
    function add(text, i) { split(text, cell, / *\| */); for (i = 6; i <= 15; ++i) sum[i] += cell[i] }
    /^\| [0-9][0-9][0-9][0-9]-/ { add($0) }
    /^\| all \|/ {
      print line; add(line)
      printf "| all | | | | %.2f | %.2f |", sum[6], sum[7]
      for (i = 8; i <= 15; ++i) printf " %d |", sum[i]
      print " |"; next
    }
    { print }' "$page" >"$page.new" && cat "$page.new" >"$page" && rm "$page.new" "$page.lock"
}

workers=()
end() {
  trap - TERM INT
  kill -TERM "${workers[@]}" 2>/dev/null || true
  wait
  write_page
  if awk '$3 != 0 { bad = 1 } END { exit !bad }' "$out/turns"; then exit 1; fi
  exit 0
}
trap end TERM INT
SECONDS=0
say "$jobs at a time for $seconds s, turns of $turn s, seeds from $seed, $build"
for ((w = 0; w < jobs; ++w)); do job "$w" & workers+=($!); done
wait || true
end
