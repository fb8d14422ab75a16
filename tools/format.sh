#!/usr/bin/env bash
# clang-format over every C++ source:  tools/format.sh --check | --write
# Formats differ between versions of clang-format; the tree follows Debian 12's, version 14.
set -u
cd "$(dirname "$0")/.." || exit 2

formatter=clang-format
command -v clang-format-14 >/dev/null 2>&1 && formatter=clang-format-14
version=$("$formatter" --version 2>/dev/null | sed -n 's/.*version \([0-9]*\).*/\1/p')
if [ "$version" != 14 ]; then
  echo "skipped: clang-format 14 is needed, found ${version:-none}"
  [ "$1" = --write ] && exit 2
  exit 77
fi

mapfile -d '' files < <(find include src cases tests examples fuzz python/src cmake \
  \( -name '*.h' -o -name '*.cpp' \) -print0 | sort -z)
case $1 in
  --write) "$formatter" -i "${files[@]}" ;;
  --check) "$formatter" --dry-run --Werror "${files[@]}" ;;
  *) echo "usage: tools/format.sh --check | --write" >&2; exit 2 ;;
esac
