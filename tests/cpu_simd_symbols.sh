#!/usr/bin/env bash
# cpu_simd_symbols.sh NM LIBRARY
# The kernels are compiled once per instruction set. If two of those objects, or one of them and any
# other object, define the same weak symbol (an inline function, a template of the standard
# library), the linker keeps one copy, and an AVX2 machine may be handed the one compiled for
# AVX-512. So these objects may define no weak symbol at all. cmake/InstructionSets.cmake gives
# their names a prefix.
set -euo pipefail
nm=$1
library=$2
found=$("$nm" -A -C --defined-only "$library" \
  | grep -E '(^|:)(isa_[a-z0-9_]+|amx)\.cpp\.o:' || true)
if [ -z "$found" ]; then
  echo "no kernel objects in $library: this check looks at nothing"
  exit 1
fi
weak=$(grep -E ' [VWuvw] ' <<<"$found" || true)
if [ -n "$weak" ]; then
  echo "weak symbols in objects compiled for one instruction set:"
  echo "$weak"
  exit 1
fi
echo "$(wc -l <<<"$found") symbols, none weak"
