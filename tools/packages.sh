#!/usr/bin/env bash
# Sees to the packages that a step needs:  tools/packages.sh LABEL GROUP...
#
# GROUP is `build` (compile and test), `verify` (the checks of `make verify`), `python` (private
# environments, for tools/nvrtc.py) or `extension` (those that compile, for
# tools/python_environment.py). Missing packages are installed with apt-get as root or by a sudo
# that asks for no password; otherwise the one line to type is printed and the exit code is 2.
# Where there is no apt-get it looks for the tools and headers themselves and names what is missing.
set -u
cd "$(dirname "$0")/.." || exit 2

label=$1
shift
by_hand="sudo apt-get update && sudo apt-get install -y --no-install-recommends"

declare -A packages=(
  [build]="g++ cmake ninja-build python3 libhwy-dev libfmt-dev nlohmann-json3-dev zlib1g-dev
    libopenblas-pthread-dev libgtest-dev libgmock-dev"
  [verify]="clang-format clang libclang-rt-14-dev"
  [python]="python3-venv"
  [extension]="python3-venv python3-dev"
)
# Without these a check is weaker, not impossible (g++ takes clang's place), and other
# distributions name them otherwise: they are installed where they can be, and never asked for.
optional=" clang libclang-rt-14-dev "

# How to recognise a package's content where dpkg knows nothing: a command or a header.
declare -A probes=(
  [g++]="command g++" [cmake]="command cmake" [ninja-build]="command ninja"
  [python3]="command python3" [clang-format]="command clang-format" [clang]="command clang++"
  [libhwy-dev]="header hwy/highway.h" [libfmt-dev]="header fmt/format.h"
  [nlohmann-json3-dev]="header nlohmann/json.hpp" [zlib1g-dev]="header zlib.h"
  [libopenblas-pthread-dev]="archive libopenblas.a" [libgtest-dev]="header gtest/gtest.h"
  [libgmock-dev]="header gmock/gmock.h" [python3-venv]="module ensurepip"
  [python3-dev]="python-headers"
)

probe() {  # probe command NAME | header NAME | archive NAME | module NAME | python-headers
  if [ "$1" = command ]; then
    command -v "$2" >/dev/null 2>&1
  elif [ "$1" = archive ]; then
    find /usr/lib /usr/lib64 /usr/local/lib -maxdepth 4 -name "$2" 2>/dev/null | grep -q .
  elif [ "$1" = module ]; then
    python3 -c "import $2" >/dev/null 2>&1
  elif [ "$1" = python-headers ]; then
    [ -e "$(python3 -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h" ]
  else
    echo "#include <$2>" | ${CXX:-g++} -std=c++20 -fsyntax-only -x c++ - >/dev/null 2>&1
  fi
}

have_apt() { command -v apt-get >/dev/null 2>&1 && command -v dpkg-query >/dev/null 2>&1; }

installed() {
  if have_apt; then
    dpkg-query -W -f '${db:Status-Status}\n' "$1" 2>/dev/null | grep -qx installed && return 0
  fi
  # A tool that somebody put there by hand serves as well.
  [ -n "${probes[$1]:-}" ] || return 1
  # shellcheck disable=SC2086
  probe ${probes[$1]}
}

too_old() {  # prints what is too old, if anything
  local have
  have=$(cmake --version 2>/dev/null | sed -n '1s/[^0-9]*//p')
  if [ "$(printf '%s\n3.25\n' "$have" | sort -V | head -1)" != 3.25 ]; then
    echo "cmake $have, 3.25 is needed"
  fi
  have=$(${CXX:-g++} -dumpfullversion -dumpversion 2>/dev/null)
  if ${CXX:-g++} --version 2>/dev/null | grep -q 'Free Software' && [ "${have%%.*}" -lt 12 ]; then
    echo "g++ $have, 12 is needed"
  fi
}

wanted=()
for group in "$@"; do
  for package in ${packages[$group]}; do wanted+=("$package"); done
done
missing=() missing_optional=()
for package in "${wanted[@]}"; do
  installed "$package" && continue
  if [[ $optional == *" $package "* ]]; then
    missing_optional+=("$package")
  else
    missing+=("$package")
  fi
done

say() { printf '%-5s %-10s %-56s %s\n' "$label" packages "$1" "$2"; }

check_versions() {
  local old
  old=$(too_old)
  if [ -n "$old" ]; then
    echo "flashlab: too old here: ${old//$'\n'/; }. Debian 12 and Ubuntu 24.04 are new enough;" \
      "elsewhere install newer ones ahead in PATH." >&2
    exit 2
  fi
}

if [ ${#missing[@]} -eq 0 ] && { [ ${#missing_optional[@]} -eq 0 ] || ! have_apt; }; then
  check_versions
  summary="${wanted[*]:0:3} …"
  [ ${#wanted[@]} -le 3 ] && summary="${wanted[*]}"
  say "$summary" "already there"
  exit 0
fi

if ! have_apt; then
  echo "flashlab: missing here: ${missing[*]} (Debian's names). Install your distribution's" \
    "packages with the same content, then run this again." >&2
  exit 2
fi

as_root=()
if [ "$(id -u)" -ne 0 ]; then
  if command -v sudo >/dev/null 2>&1 && sudo -n true >/dev/null 2>&1; then
    as_root=(sudo -n)
  elif [ ${#missing[@]} -eq 0 ]; then
    check_versions
    say "without ${missing_optional[*]}" "enough"
    exit 0
  else
    echo "flashlab: packages are missing, and installing them needs root. Type this, then run" \
      "the command again:" >&2
    echo "  $by_hand ${missing[*]}" >&2
    exit 2
  fi
fi

mkdir -p build
log=build/packages.log
: >"$log"
apt() {
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=300 "$@" \
    >>"$log" 2>&1 </dev/null
}
# Lists that are absent or stale show themselves by a failed install; fresh ones need no update.
install_packages() {
  apt install -y --no-install-recommends "$@" && return 0
  apt update && apt install -y --no-install-recommends "$@"
}

start=$SECONDS
if [ ${#missing[@]} -gt 0 ]; then
  [ -t 1 ] && printf '%-5s %-10s installing %s … (log: %s)\r' "$label" packages \
    "${missing[0]}" "$log"
  if ! install_packages "${missing[@]}"; then
    [ -t 1 ] && printf '\n'
    echo "flashlab: apt-get could not install ${missing[*]}; the end of $log:" >&2
    tail -n 12 "$log" | sed 's/^/  /' >&2
    echo "Mend that (network? package sources?), or type:" >&2
    echo "  $by_hand ${missing[*]}" >&2
    exit 2
  fi
fi
without=""
if [ ${#missing_optional[@]} -gt 0 ] && ! install_packages "${missing_optional[@]}"; then
  without=", without ${missing_optional[*]}"
fi
check_versions
[ -t 1 ] && printf '\033[K'
new=("${missing[@]}" "${missing_optional[@]}")
say "${new[*]:0:3} … ($((${#new[@]})))$without" "installed  $((SECONDS - start)) s"
