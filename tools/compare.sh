#!/usr/bin/env bash
# The last step of `make run`:  tools/compare.sh LABEL [FLAG...]
cd "$(dirname "$0")/.." || exit 2
label=$1
shift
printf '%-5s %-10s build/flashlab compare%s\n\n' "$label" compare "${*:+ $*}"
exec build/flashlab compare "$@"
