#!/usr/bin/env bash
# The last step of `make install`:  tools/install.sh LABEL [PREFIX]
cd "$(dirname "$0")/.." || exit 2
label=$1
prefix=${2:-$HOME/.local}
if ! log=$(cmake --install build --prefix "$prefix" 2>&1); then
  printf '%s\n' "$log" | tail -5 >&2
  echo "flashlab: nothing was installed into $prefix; PREFIX=/another/folder chooses a place" >&2
  exit 1
fi
printf '%-5s %-10s %s\n' "$label" install "$prefix/bin/flashlab"
case ":$PATH:" in
  *":$prefix/bin:"*) ;;
  *) echo "             $prefix/bin is not on your PATH: export PATH=\"$prefix/bin:\$PATH\"" ;;
esac
