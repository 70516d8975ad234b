#!/usr/bin/env bash
# Sluice on other machines: from a fresh machine of a kind to the result of all tests, one line each in docs/PLATFORMS.md.
# A machine is a Debian in a folder, which sees neither this one's compilers nor its libraries.
set -euo pipefail

kinds=(debian13 examples docs sid arm64 clang libcxx debug)
usage() {
  cat <<'TEXT'
usage: tests/platforms.sh [--root DIR] [--mirror URL] [--jobs N] [--keep] [KIND ...]
  debian13    Debian 13 with its g++, Catch2 3 and OpenMPI 5
  examples    Debian 13, and there examples/run.sh instead of the tests
  docs        Debian 12, and there docs/build.sh, from no package to the site
  sid         Debian's unstable distribution, whose g++ is the newest
  arm64       Debian 12's compiler for arm64, what it makes run by qemu: with BF16 instructions and, a part, without
  clang       Debian 13 with clang, without g++
  libcxx      Debian 13, clang with libc++: library, tests and examples, only compiled
  debug       Debian 12, g++ with containers and iterators that check themselves (_GLIBCXX_DEBUG), assertions, little optimisation
  --root DIR    the folder of the machines (build/platforms); each needs 4 GB there
  --mirror URL  where packages come from (http://deb.debian.org/debian)
  --jobs N      compilers and tests at a time (default: number of cores)
  --keep        leave the machines there; without it only the logs stay
Without a KIND all of them. What is tested is the last commit. Needs root, debootstrap, git and the network.
Exit status 0 only if everything passed without a warning of a compiler.
TEXT
}

say() { printf 'platforms: %s\n' "$*"; }
die() { printf 'platforms: %s\n' "$*" >&2; exit 1; }
bad() { printf 'platforms: %s (--help lists the options)\n' "$*" >&2; exit 2; }

root=build/platforms mirror=http://deb.debian.org/debian jobs=$(nproc) keep=0
wanted=()
while (($#)); do
  case $1 in
    --root | --mirror | --jobs)
      if [[ ! ${2-} || $2 == --* ]]; then bad "$1 needs a value"; fi
      declare "${1#--}=$2"
      shift ;;
    --keep) keep=1 ;;
    -h | --help) usage; exit 0 ;;
    *)
      [[ " ${kinds[*]} " == *" $1 "* ]] || bad "unknown kind or option '$1'"
      wanted+=("$1") ;;
  esac
  shift
done
if ((${#wanted[@]} == 0)); then wanted=("${kinds[@]}"); fi
[[ $jobs =~ ^[1-9][0-9]*$ ]] || bad "--jobs needs a number, got '$jobs'"

mkdir -p "$root"
root=$(realpath "$root")
cd "$(dirname "${BASH_SOURCE[0]}")/.."
((EUID == 0)) || die 'needs root, for chroot'
for tool in debootstrap git unshare; do command -v "$tool" >/dev/null || die "needs $tool: apt-get install $tool"; done
commit=$(git rev-parse --short=7 HEAD)
[[ ! $(git status --porcelain --untracked-files=no) ]] || say "changes that are not committed are not tested; testing $commit"

# Everything that runs on a machine has its own processes and mounts, which end with it, however it ends.
child='' machine=''
alone() { # command...
  unshare --mount --pid --fork --kill-child "$@" </dev/null &
  child=$!
  local status=0
  wait "$child" || status=$?
  child=''
  return "$status"
}
discard() {
  if [[ $child ]]; then kill -KILL "$child" 2>/dev/null || true; fi # unshare lets no other signal end it
  if [[ $machine ]] && ((!keep)); then rm -rf --one-file-system "$machine"; fi
  machine=''
}
trap discard EXIT
trap 'exit 130' INT TERM HUP

inside() { # command...: run by bash in the sources' folder on the machine
  alone bash -euc '
    machine=$1
    shift
    mount -t proc proc "$machine/proc"
    mount --rbind /sys "$machine/sys"
    mount --rbind /dev "$machine/dev"
    mount -t tmpfs tmpfs "$machine/dev/shm"
    cp -L /etc/resolv.conf "$machine/etc/"
    exec chroot "$machine" env -i HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 \
      DEBIAN_FRONTEND=noninteractive bash -euc "cd /sluice; $*"' - "$machine" "$*"
}
fresh() { # name suite package...: a machine with nothing on it but these packages and the sources of the commit
  local name=$1 suite=$2
  shift 2
  machine=$root/$name log=$root/$name.log
  rm -rf --one-file-system "$machine"
  say "$name: making the machine; $log says more"
  alone debootstrap --variant=minbase "$suite" "$machine" "$mirror" >"$log" 2>&1 || die "debootstrap failed: $log"
  mkdir "$machine/sluice"
  git archive "$commit" | tar -x -C "$machine/sluice"
  if (($#)); then inside "apt-get -qq update; apt-get -qq install --yes --no-install-recommends $*" >>"$log" 2>&1 || die "apt-get failed: $log"; fi
}

failed=0
# The machine's line in the table; what its log says of tests stands behind $begin.
row() { # name platform ran status
  local name=$1 platform=$2 ran=$3 status=$4 told result compiler catch warnings processor
  told=$(sed "1,${begin}d" "$log")
  warnings=$(grep -cE '(^|[^[:alnum:]])warning: ' <<<"$told" || true)
  compiler=$(inside '{ c++ --version || clang++ --version; } 2>/dev/null | head -n 1' || true)
  catch=$(inside "dpkg-query -W -f '\${Version}' catch2" || true)
  result=$(awk -v status="$status" -v seconds="$seconds" '
    /unit tests: / && match($0, /[0-9]+ assertions? in [0-9]+ test cases?/) { split(substr($0, RSTART), n, " "); assertions += n[1]; cases += n[4] }
    match($0, /[0-9]+ tests? failed out of [0-9]+/) { split(substr($0, RSTART), n, " "); broken += n[1]; ctests += n[6] }
    sub(/^result +/, "") { trained = $0 }
    /^docs: .*index\.html$/ { trained = sprintf("the site in %.1f minutes", seconds / 60) }
    END {
      if (!status && trained) print trained
      else if (!ctests) print status ? "FAILED" : "compiles"
      else printf "%s%d ctests, %d cases, %d assertions\n", status ? "FAILED: " broken " of " : "", ctests, cases, assertions
    }' <<<"$told")
  processor=$(sed -nE 's/^model name[[:space:]]*: //p' /proc/cpuinfo | head -n 1)
  ((status == 0 && warnings == 0)) || failed=1
  say "$name: $result, $warnings warnings"
  local line="| $platform | ${compiler} | ${catch%%-*} | $ran | $result | $warnings | $(date +%F), $commit | $processor |"
  # In the place of the platform's old line, or behind the table's last one.
  awk -v key="| $platform |" -v line="$line" '
    index($0, key) == 1 { $0 = line; line = "" }
    in_table && line && !/^\|/ { print line; line = "" }
    { print; in_table = /^\|/ }
    END { if (line) print line }' docs/PLATFORMS.md >"$root/table"
  cat "$root/table" >docs/PLATFORMS.md
  rm "$root/table"
}
all_tests() { # name platform command [its name in the table]: what a user would type, and its line
  local status=0 seconds=$SECONDS
  begin=$(wc -l <"$log")
  say "$1: ${4-$3}"
  inside "$3" >>"$log" 2>&1 || status=$?
  seconds=$((SECONDS - seconds))
  row "$1" "$2" "\`${4-$3}\`" "$status"
  discard
}

debian13() {
  fresh debian13 trixie
  all_tests debian13 'Debian 13' "tests/run.sh --jobs $jobs"
}
examples() {
  fresh examples trixie
  all_tests examples 'Debian 13, examples' 'examples/run.sh'
}
docs() {
  fresh docs bookworm
  all_tests docs 'Debian 12, documentation' 'docs/build.sh'
}
sid() {
  fresh sid sid
  all_tests sid 'Debian sid' "tests/run.sh --jobs $jobs"
}
arm64() {
  fresh arm64 bookworm
  inside 'dpkg --add-architecture arm64; apt-get -qq update; apt-get -qq install --yes --no-install-recommends \
    cmake ninja-build g++-aarch64-linux-gnu qemu-user-static nlohmann-json3-dev \
    libopenblas-dev:arm64 libtbb-dev:arm64 zlib1g-dev:arm64 catch2:arm64' >>"$log" 2>&1 || die "apt-get failed: $log"
  inside 'ln -s /usr/bin/aarch64-linux-gnu-g++ /usr/local/bin/c++'
  # What starts programs of its own would need qemu in the kernel: install, compile_fail, layer_check, ranks of MPI.
  all_tests arm64 'Debian 12, arm64 by qemu' "tests/arm64.sh --jobs $jobs"
}
clang() {
  fresh clang trixie clang
  all_tests clang 'Debian 13, clang' "tests/run.sh --preset clang --jobs $jobs"
}
libcxx() {
  fresh libcxx trixie clang libc++-dev libc++abi-dev catch2 ninja-build
  all_tests libcxx 'Debian 13, clang, libc++' "tests/install_deps.sh --mpi
    cmake -G Ninja --preset clang
    tests/snippets/extract.sh . build/clang/tests/snippets
    SYNTAX_JOBS=$jobs tests/house/syntax.sh all build/clang clang++ -stdlib=libc++" 'tests/house/syntax.sh'
}
debug() {
  fresh debug bookworm g++ catch2
  # Debug mode changes the layout of containers, so it is for all that is compiled there, by a compiler that has it on, and
  # for Catch2.
  inside 'for name in c++ g++; do
    printf "#!/bin/sh\nexec /usr/bin/g++ -D_GLIBCXX_DEBUG -O1 \"\$@\" -g0\n" >/usr/local/bin/$name
    chmod +x /usr/local/bin/$name
  done
  rm /usr/lib/libCatch2WithMain.a
  printf "#define CATCH_CONFIG_MAIN\n#include <catch2/catch.hpp>\n" | c++ -x c++ -c - -o catch.o
  ar -qc /usr/lib/libCatch2WithMain.a catch.o
  rm catch.o'
  all_tests debug 'Debian 12, g++ debug mode' "tests/run.sh --preset debug --jobs $jobs"
}

{ # read whole: the script may change while it runs
  for kind in "${wanted[@]}"; do $kind; done
  exit "$failed"
}
