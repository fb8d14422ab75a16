#!/usr/bin/env bash
# The last step of `make install`:  tools/install.sh LABEL [PREFIX [KERNELS]]
# KERNELS: architectures whose common kernels are compiled now ("sm_90a,sm_100a"), or none.
cd "$(dirname "$0")/.." || exit 2
label=$1
prefix=${2:-$HOME/.local}
if ! log=$(cmake build ${3:+"-DFLASHLAB_KERNEL_ARCHITECTURES=$3"} 2>&1); then
  printf '%s\n' "$log" | tail -5 >&2
  exit 1
fi
# Without a compiler of GPU kernels it says so and goes on.
cmake --build build --target flashlab_kernels || exit 1
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
