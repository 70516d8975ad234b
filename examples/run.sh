#!/usr/bin/env bash
# From a fresh machine to a trained language model: installs what is missing, builds, gets a text,
# trains. Works from any folder; everything it makes lies under build/.
set -euo pipefail

usage() {
  cat <<'TEXT'
usage: examples/run.sh [--text FILE] [--minutes M] [--out FOLDER] [--ranks N [--hostfile FILE] [--restarts R]]
                       [--no-install] [option of gau_lm ...]
Trains a small causal GAU language model on bytes and shows it beside n-gram baselines.
  --text FILE     any file, also gzip-compressed (default: jargon-text, a Debian package of prose)
  --minutes M     training time in minutes (default 4)
  --out FOLDER    where checkpoint, CSV and SVG curve go (default build/gau_lm)
  --ranks N       processes that share each batch, by MPI; each gets its share of the cores
  --hostfile FILE the machines they run on (a line each: NAME slots=N); text, build and FOLDER must be on all of them
  --restarts R    start again from the last checkpoint when a rank fails, at most R times (default 0; the same command
                  resumes by hand, also with another number of ranks)
Ctrl-C saves, with any number of ranks; the same command resumes.
  --no-install    use the machine as it is, without apt-get install
  --help          this text
Every other option goes to the program: build/release/examples/gau_lm --help lists them.
TEXT
}

say() { printf 'run: %s\n' "$*"; }
die() { printf 'run: %s\n' "$*" >&2; exit 1; }
bad() { printf 'run: %s (--help lists the options)\n' "$*" >&2; exit 2; }

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build=$root/build/release
data=$root/build/data

# ---- options: all checked before anything is installed or built ----------------------------------
# (Scripts that users start keep to bash 3.2, which macOS has: no ;;&, and an empty array under set -u is an error there.)
text='' out=$root/build/gau_lm install=1 ranks=0 hostfile='' restarts=0 pass=()
while (($#)); do
  option=$1 value=${2-} used=2
  if [[ $option == --?*=* ]]; then
    value=${option#*=} option=${option%%=*} used=1
  fi
  case $option in
    --text | --minutes | --out | --ranks | --hostfile | --restarts)
      if [[ ! $value || $value == --* ]]; then bad "$option needs a value"; fi ;;
  esac
  case $option in
    --text) text=$value ;;
    --minutes)
      [[ $value =~ ^([0-9]+\.?[0-9]*|\.[0-9]+)$ && $value =~ [1-9] ]] ||
        bad "--minutes needs a number above 0, got '$value'"
      pass+=(--minutes "$value") ;;
    --out) out=$value ;;
    --ranks)
      [[ $value =~ ^[1-9][0-9]{0,4}$ ]] || bad "--ranks needs a number above 0, got '$value'"
      ranks=$value ;;
    --hostfile)
      [[ -r $value ]] || die "--hostfile: no such file: $value"
      hostfile=$(realpath -- "$value") ;;
    --restarts)
      [[ $value =~ ^[0-9]{1,4}$ ]] || bad "--restarts needs a number, got '$value'"
      restarts=$value ;;
    --no-install) install=0 used=1 ;;
    -h | --help) usage; exit 0 ;;
    *) pass+=("$1") used=1 ;;
  esac
  shift "$used"
done
if [[ $hostfile ]] && ((ranks == 0)); then bad '--hostfile needs --ranks'; fi
if [[ $text ]]; then
  [[ -e $text ]] || die "--text: no such file: $text"
  [[ -f $text ]] || die "--text: not a regular file: $text"
  [[ -r $text ]] || die "--text: not readable: $text"
  [[ -s $text ]] || die "--text: the file is empty: $text"
fi
log=$root/build/run.log
if ! { mkdir -p "$data" "$build" && [[ -w $data && -w $build ]] && : >"$log"; } 2>/dev/null; then
  die "cannot write under $root/build"
fi

# ---- build ---------------------------------------------------------------------------------------
mpi=()
if ((ranks)); then mpi=(--mpi); fi
if ((install)); then bash "$root/tests/install_deps.sh" ${mpi[@]+"${mpi[@]}"}; fi
if ((ranks)) && ! command -v mpirun >/dev/null; then die 'no mpirun; Debian has it in openmpi-bin and libopenmpi-dev'; fi

# Output of a step goes to a log and is shown only when the step fails.
quietly() {
  "$@" >"$log" 2>&1 && return
  tail -n 40 "$log" >&2
  die "failed: $*"
}
generator=()
if [[ ! -f $build/CMakeCache.txt ]] && command -v ninja >/dev/null; then generator=(-G Ninja); fi
say 'configuring a Release build in build/release'
quietly cmake -S "$root" -B "$build" ${generator[@]+"${generator[@]}"} -DCMAKE_BUILD_TYPE=Release \
  -DSLUICE_BUILD_TESTS=OFF -DSLUICE_BUILD_EXAMPLES=ON -DSLUICE_MPI="$( ((ranks)) && echo ON || echo AUTO)"
cores=$(nproc 2>/dev/null || getconf _NPROCESSORS_ONLN)
say "building gau_lm on $cores cores"
begun=$SECONDS
compile=(cmake --build "$build" --target gau_lm --parallel "$cores")
if [[ -t 1 && -f $build/build.ninja ]]; then
  "${compile[@]}" || die 'the build failed' # on a terminal ninja's one-line count is worth seeing
else
  quietly "${compile[@]}"
fi
say "built in $((SECONDS - begun)) s"
program=$build/examples/gau_lm
[[ -x $program ]] || die "the build made no $program"

# ---- text ----------------------------------------------------------------------------------------
unpack() { # file.gz target: by way of a temporary file, so that a broken archive leaves no half text
  if gzip -dc -- "$1" >"$2.part" && [[ -s $2.part ]]; then mv "$2.part" "$2"; else
    rm -f "$2.part"
    return 1
  fi
}

# For a machine without a network: the first of these collections that gives a megabyte, or the
# largest.
fallback_text() {
  local target=$data/fallback.txt best=0 name size chosen
  for name in 'Perl documentation' 'C++ standard headers' 'common licences'; do
    case $name in
      Perl*) find /usr/share/perl* /usr/lib/*/perl* -type f -name '*.pod' ;;
      C++*) find /usr/include/c++ -type f ;;
      *) find /usr/share/common-licenses -type f ;;
    esac 2>/dev/null | LC_ALL=C sort >"$data/files" || true
    # At most 4 MB. head stops reading early, which must not count as a failure of the pipe.
    { tr '\n' '\0' <"$data/files" | xargs -0 -r cat | head -c 4000000 >"$target.part"; } 2>/dev/null || true
    size=$(wc -c <"$target.part")
    if ((size > best)); then best=$size chosen=$name && mv "$target.part" "$target"; fi
    if ((best >= 1000000)); then break; fi
  done
  rm -f "$data/files" "$target.part"
  ((best > 0)) || die 'found no text on this machine; name one with --text FILE'
  text=$target
  say "instead: the $chosen of this machine, $best bytes"
}

if [[ $text == *.gz ]]; then
  say "unpacking $text"
  mkdir -p "$data/unpacked" # a folder of its own: the user's file may be called jargon.txt too
  unpacked=$data/unpacked/$(basename -- "$text" .gz)
  unpack "$text" "$unpacked" || die "--text: not a gzip file, or empty: $text"
  text=$unpacked
elif [[ ! $text ]]; then
  if [[ ! -s $data/jargon.txt ]]; then
    say 'fetching the default text (Debian package jargon-text, 0.7 MB)'
    bash "$root/examples/fetch_data.sh" "$data" jargon.txt >"$log" 2>&1 ||
      say "cannot get jargon-text here (details in ${log#"$root"/})"
  fi
  if [[ -s $data/jargon.txt ]]; then text=$data/jargon.txt; else fallback_text; fi
fi

# ---- train ---------------------------------------------------------------------------------------
say "training on $text; results in $out"
if ((ranks == 0)); then exec "$program" --text "$text" --out "$out" ${pass[@]+"${pass[@]}"}; fi

options=(--restarts "$restarts")
if [[ $hostfile ]]; then options+=(--hostfile "$hostfile"); fi
exec bash "$root/examples/mpirun.sh" "$ranks" "${options[@]}" "$program" --text "$text" --out "$out" ${pass[@]+"${pass[@]}"}
