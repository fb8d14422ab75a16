#!/usr/bin/env bash
# Installs a build, then configures, builds and runs examples/consumer against what was installed,
# all outside the tree:  tests/install_consumer_test.sh BUILD-FOLDER
set -euo pipefail

source_dir=$(cd "$(dirname "$0")/.." && pwd)
build_dir=$(cd "$1" && pwd)
fail() { echo "failed: $*" >&2; exit 1; }
cached() { sed -n "s/^$1:[^=]*=//p" "$build_dir/CMakeCache.txt"; }

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
# Names with a space find paths that nobody quoted.
prefix="$scratch/a prefix"

cmake --install "$build_dir" --prefix "$prefix" >"$scratch/install.log" ||
  fail "cmake --install: $(tail -5 "$scratch/install.log")"

package=$(find "$prefix" -name flashlabConfig.cmake -printf '%h\n')
[ -n "$package" ] || fail "no flashlabConfig.cmake was installed"
[ -e "$package/flashlabConfigVersion.cmake" ] || fail "no version file was installed"
for header in "$source_dir"/include/flashlab/*.h; do
  cmp -s "$header" "$prefix/include/flashlab/$(basename "$header")" ||
    fail "$(basename "$header") was not installed as it is"
done
# Nothing of this machine's folders and none of the private dependencies may be asked of a user.
for leak in "$source_dir" "$build_dir" fmt hwy flashlab_flags fsanitize; do
  if grep -rqF -- "$leak" "$package"; then fail "the package names $leak"; fi
done

cp -r "$source_dir/examples/consumer" "$scratch/consumer"
# The prefix may be moved as a whole.
mv "$prefix" "$scratch/moved prefix"
prefix="$scratch/moved prefix"
configure() {
  cmake -S "$scratch/consumer" -B "$scratch/$1" -G "$(cached CMAKE_GENERATOR)" \
    "-DCMAKE_CXX_COMPILER=$(cached CMAKE_CXX_COMPILER)" "-DCMAKE_PREFIX_PATH=$prefix" \
    >"$scratch/$1.log" 2>&1
}
configure build || fail "the consumer does not configure: $(tail -20 "$scratch/build.log")"
cmake --build "$scratch/build" >>"$scratch/build.log" 2>&1 ||
  fail "the consumer does not build: $(tail -20 "$scratch/build.log")"

said=$("$scratch/build/consumer") || fail "the consumer exits with $?: $said"
[ "$said" = "O[0] = 4.0000 5.0000  LSE = 1.386294" ] || fail "the consumer says: $said"

# The same without CMake.
if command -v pkg-config >/dev/null; then
  export PKG_CONFIG_PATH=$(dirname "$(find "$prefix" -name flashlab.pc)")
  flags=$(pkg-config --cflags --libs flashlab) || fail "pkg-config does not know flashlab"
  # pkg-config escapes the spaces of the prefix for a shell.
  compile="$(cached CMAKE_CXX_COMPILER) -std=c++20 '$scratch/consumer/main.cpp' $flags"
  eval "$compile -o '$scratch/plain'" ||
    fail "the consumer does not build with pkg-config's flags: $flags"
  loader=$(dirname "$(find "$prefix" -name 'libflashlab.*' | head -1)")
  [ "$(LD_LIBRARY_PATH=$loader "$scratch/plain")" = "$said" ] ||
    fail "the consumer built by pkg-config says something else"
fi

# A version that is not this one is refused by CMake, not by the linker.
sed -i 's/find_package(flashlab [0-9.]*/find_package(flashlab 99.0/' \
  "$scratch/consumer/CMakeLists.txt"
if configure refused; then fail "version 99.0 was accepted"; fi
grep -q 'flashlab' "$scratch/refused.log" || fail "the refusal does not name flashlab"

# The installed command line finds its library, if it was built.
if [ -x "$prefix/bin/flashlab" ]; then
  "$prefix/bin/flashlab" --help >/dev/null || fail "the installed flashlab does not start"
fi
echo "installed, built and ran outside the tree"
