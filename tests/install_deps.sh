#!/usr/bin/env bash
# Installs what Sluice needs to build on Debian 12, Ubuntu 24.04 or newer, and only what is missing.
# With everything in place it changes nothing and does not touch the network.
set -euo pipefail

usage() {
  cat <<'TEXT'
usage: tests/install_deps.sh [--tests] [--mpi] [--docs] [--docs-only] [--check] | --sass
  --tests      also what the test suite needs (Catch2, pkg-config, MPI, the site's tools), and the newest clang that there is
  --mpi        also what several ranks need (OpenMPI)
  --docs       also what the documentation site needs (Doxygen, Python, MkDocs with the Material theme)
  --docs-only  nothing but that
  --check      only list what is missing; exit 1 if anything is
  --sass       a disassembler for the machine code of kernels, from PyPI (triton, 190 MB), into build/sass; nothing else
Installs missing Debian packages through apt-get, with sudo when not root; on macOS, Homebrew's.
Elsewhere it lists what is missing and exits 1.
TEXT
}

say() { printf 'install_deps: %s\n' "$*"; }
die() { printf 'install_deps: %s\n' "$*" >&2; exit 1; }

build=1 tests=0 mpi=0 docs=0 check=0
while (($#)); do
  case $1 in
    --tests) tests=1 mpi=1 docs=1 ;;
    --mpi) mpi=1 ;;
    --docs) docs=1 ;;
    --docs-only) docs=1 build=0 ;;
    --check) check=1 ;;
    --sass)
      folder=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)/build/sass
      [[ -e $folder/bin/pip ]] || python3 -m venv "$folder" || die 'needs python3 with its venv module'
      "$folder/bin/pip" install --quiet --no-deps triton || die 'pip could not install triton'
      say "cuobjdump is in $folder, where the test cuda_sass finds it"
      exit
      ;;
    -h | --help) usage; exit 0 ;;
    *) usage >&2; die "unknown option '$1'" ;;
  esac
  shift
done

have() { command -v "$1" >/dev/null 2>&1; }

# The compiler the build will use: $CXX, else the first of the usual names that knows C++20.
compiler=
for candidate in ${CXX:+"$CXX"} c++ g++ clang++; do
  # $CXX may hold a launcher or flags ("ccache g++"), so it is split into words on purpose.
  # shellcheck disable=SC2086
  if echo '#include <concepts>
           template <std::integral T> T f(T x) { return x; } int main() { return f(0); }' |
    $candidate -std=c++20 -fsyntax-only -x c++ - >/dev/null 2>&1; then
    compiler=$candidate
    break
  fi
done

# Homebrew's name of a Debian package; none for what macOS has.
brewed() {
  case $1 in
    g++ | zlib1g-dev | mkdocs-material) ;;
    ninja-build) echo ninja ;;
    libopenblas-dev) echo openblas ;;
    libtbb-dev) echo tbb ;;
    nlohmann-json3-dev) echo nlohmann-json ;;
    openmpi-bin | libopenmpi-dev) echo open-mpi ;;
    *) echo "$1" ;;
  esac
}

# A library is there when its package is; where there are no packages, when its header is.
library() { # package header...
  local package=$1 header
  shift
  if have dpkg-query; then
    [[ $(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null) == installed ]]
    return
  fi
  if have brew; then
    package=$(brewed "$package")
    [[ ! $package ]] || brew list --versions "$package" >/dev/null
    return
  fi
  for header in "$@"; do
    # shellcheck disable=SC2086
    echo "#include <$header>" | ${compiler:-false} -E -x c++ - >/dev/null 2>&1 && return
  done
  return 1
}

missing=()
if ((build)); then
  [[ $compiler ]] || missing+=(g++)
  have cmake || missing+=(cmake)
  have ninja || have make || missing+=(ninja-build)
  library libopenblas-dev cblas.h openblas/cblas.h || missing+=(libopenblas-dev)
  library libtbb-dev tbb/version.h oneapi/tbb/version.h || missing+=(libtbb-dev)
  library zlib1g-dev zlib.h || missing+=(zlib1g-dev)
  library nlohmann-json3-dev nlohmann/json.hpp || missing+=(nlohmann-json3-dev)
fi
if ((tests)); then
  library catch2 catch2/catch.hpp catch2/catch_all.hpp || missing+=(catch2)
  have pkg-config || missing+=(pkg-config)
fi

# The sources are read by a second compiler and standard library as well; without these that test is left out.
extra=()
if ((tests && !check)) && have apt-cache; then
  newest=$(apt-cache --names-only search '^clang-[0-9]+$' | sed -E 's/^clang-([0-9]+) .*/\1/' | sort -n | tail -n 1)
  if [[ $newest ]] && ! have "clang++-$newest"; then extra=("clang-$newest" "libc++-$newest-dev" "libc++abi-$newest-dev"); fi
  # The formatter by whose version 14 the tree is laid out.
  if ! have gdb; then extra+=(gdb); fi
  if ! have clang-format-14 && [[ $(apt-cache --names-only search '^clang-format-14$') ]]; then extra+=(clang-format-14); fi
fi

if ((mpi)); then
  have mpirun || missing+=(openmpi-bin)
  have mpicxx || library libopenmpi-dev mpi.h || missing+=(libopenmpi-dev)
fi

if ((docs)); then
  have doxygen || missing+=(doxygen)
  have python3 || missing+=(python3)
  have mkdocs || missing+=(mkdocs)
  library mkdocs-material || missing+=(mkdocs-material)
fi

if ((${#missing[@]} + ${#extra[@]} == 0)); then
  say 'nothing missing'
  exit 0
fi
say "missing: ${missing[*]-} ${extra[*]-}"
((check)) && exit 1
if ! have apt-get && have brew; then
  names=()
  for package in "${missing[@]}"; do names+=($(brewed "$package")); done # shellcheck disable=SC2207
  exec brew install "${names[@]}"
fi
have apt-get || die "no apt-get here; install these (Debian's names) with this system's own tools"

apt=(env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=120)
if ((EUID != 0)); then
  have sudo || ((${#missing[@]})) || { say "without root these are left out: ${extra[*]}"; exit 0; }
  have sudo || die "needs root and there is no sudo; as root: apt-get install ${missing[*]}"
  apt=(sudo "${apt[@]}")
fi

# A package list may be hours old or missing, and a mirror may be caught in the middle of a change.
say 'apt-get update'
if ! "${apt[@]}" update; then
  say 'update failed; once more in 5 s'
  sleep 5
  "${apt[@]}" update || say 'update failed again; trying with the package lists that are here'
fi
say "apt-get install ${missing[*]-} ${extra[*]-}"
install=("${apt[@]}" install --yes --no-install-recommends)
if ((${#missing[@]})); then "${install[@]}" "${missing[@]}" >/dev/null || die "could not install: ${missing[*]}"; fi
if ((${#extra[@]})); then "${install[@]}" "${extra[@]}" >/dev/null || say "could not install: ${extra[*]}; going on without"; fi
say 'done'
