#!/usr/bin/env bash
# Records the CPU's figures: shares of the measured roof, and PyTorch beside us.
#   bench/cpu.sh PROGRAM OUTPUT_FOLDER NAME [PYTHON]
# PROGRAM is build/flashlab; NAME starts the files' names, e.g. zen4-2threads. PYTHON is one that
# has PyTorch (see bench/peers/torch_cpu.py); without it the peers are left out. HEADS (8) makes
# the problems smaller. Wants a quiet machine: the files carry warnings of what disturbed it.
set -euo pipefail
program=$1
folder=$2
name=$3
python=${4:-}
here=$(dirname "$0")
mkdir -p "$folder/peers"

shapes=(--batch 1 --heads "${HEADS:-8}" --head-dim 64,128 --seqlen 1536,2k,4k,8k --pass both
        --warmup 1 --repeats 9)
environment() {
  "$program" info --json - |
    python3 -c 'import json, sys; print(json.load(sys.stdin)["environment"][sys.argv[1]])' "$1"
}
best=$(environment cpu_isa)
# The best instruction set in both types; AVX2 in fp32; where AMX is the best, AVX-512-BF16 too.
isas="$best avx2"
[ "$best" = amx ] && isas="$best avx512-bf16 avx2"
for isa in $isas; do
  suffix=-$isa dtypes=fp32
  [ "$isa" = avx512-bf16 ] && dtypes=bf16
  [ "$isa" = "$best" ] && suffix= dtypes=fp32,bf16
  for causal in "" --causal; do
    file=$folder/$name$suffix${causal:+-causal}.json
    echo "== $isa $dtypes ${causal:-full} -> $file"
    "$program" bench --device cpu --cpu-isa "$isa" --dtype "$dtypes" "${shapes[@]}" $causal \
      --json "$file"
  done
done
if [ -n "$python" ]; then
  "$python" "$here/peers/torch_cpu.py" --flashlab "$program" --heads "${HEADS:-8}" \
    --threads "$(environment threads_used)" --json "$folder/peers/$name-torch.json"
fi
