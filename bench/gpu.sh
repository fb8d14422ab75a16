#!/usr/bin/env bash
# What a machine with an NVIDIA GPU shows, in parts of less than ten minutes each:
#   bench/gpu.sh PART[,PART] PROGRAM OUTPUT_FOLDER NAME [PYTHON]
#
#   check     every implementation against the fp64 oracle (bench/check.py)
#   suite     every test program beside PROGRAM, with counts, then memcheck (bench/suite.py);
#             PYTHON's too
#   sanitize  compute-sanitizer's memcheck, racecheck and initcheck on small cases of every kernel
#             but the instruments' own, where it works (bench/sanitize.py)
#   repeat    a thousand equal results of Hopper's forward with masks, ALiBi, softcap, packed groups
#   costs     compiling, loading from the disk cache, the host's share of a call, a thousand equal
#             results (gpu_costs beside PROGRAM: cmake --build build --target gpu_costs)
#   ladder    the rungs beside each other: one long head, and enough heads to fill the GPU
#   bench     production kernels: the papers' grid, fp32 and tf32, decoding, one head of 65536
#             tokens; in turns with NVIDIA's libraries in this process (cublas, cudnn)
#   torch     PyTorch's backends in turns with ours: papers (bf16)
#   torch32   the same in fp32: batch 8, one head
#   grids     forward beside PyTorch's: one head, the presets, head dims 32, 96, 192, 192 and 128
#   sequences ragged batches of one length beside dense calls, prefill over pages, caches and mixes
#             of lengths beside their peers
#   variants  kernel sources with the changes of bench/variants, in turns with those without
#   python    the Python package on this GPU: its tests, what it adds to a call (gpu_costs beside
#             PROGRAM), mask tensors and errors against fp64 beside PyTorch's, the next 500 cases
#             of each of FlashAttention's test files, swapped models
#   training  training steps beside PyTorch's torch.compile, its parity kit, memory with
#             checkpointing, the LM head, idle time, kernels (bench/training.py); their tests
#   all       everything, one after the other
#
# PROGRAM is build/flashlab; files in OUTPUT_FOLDER start with NAME, e.g. h200. PYTHON is one that
# has PyTorch with CUDA, and for `python` also flashlab; without it these parts say so and are left
# out. The exit code is not 0 when a part that ran has failed.
set -uo pipefail
parts=${1:?PART}
program=${2:?PROGRAM}
folder=${3:?OUTPUT_FOLDER}
name=${4:?NAME}
python=${5:-python3}
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$folder"
[ "$parts" = all ] &&
  parts=check,suite,sanitize,repeat,costs,ladder,bench,torch,torch32,grids &&
  parts+=,sequences,variants,python,training
failed=0

say() { printf '== %s\n' "$*"; }
step() {  # step WHAT COMMAND...: runs it, remembers a failure, goes on
  say "$1"
  shift
  local start=$SECONDS
  if "$@"; then
    say "ok, $((SECONDS - start)) s"
  else
    say "FAILED with $?, $((SECONDS - start)) s: $*"
    failed=1
  fi
}

part_check() {
  step "check: every implementation" \
    python3 "$here/check.py" "$program" "$folder/$name-check.json"
}

part_suite() {
  step "suite: every test" python3 "$here/suite.py" "$(dirname "$program")" \
    "$folder/$name-suite.json" --time-limit 590 --memcheck 120 --python "$python"
}

part_sanitize() {
  local tool
  for tool in memcheck racecheck initcheck; do
    say "sanitize: $tool"
    python3 "$here/sanitize.py" "$tool" "$program" "$folder/$name-$tool.json"
    case $? in
      0) say "ok" ;;
      77) return ;;
      *) failed=1 && say "FAILED" ;;
    esac
  done
}

part_repeat() {
  step "repeat: a thousand equal results" "$program" check --device cuda --implementation sm90 \
    --dtype bf16 --repeat-bitwise 1000 --json "$folder/$name-repeat.json" --case \
    additive-mask-own-type,bool-mask-form-0,softcap-mask,softcap-large,alibi-both-sides,group-of
}

part_costs() {
  step "costs: compile, load, host time, equal bits" "$(dirname "$program")/gpu_costs" record \
    "$folder/$name-costs.json"
}

ladder() {  # ladder FILE SHAPE...
  local file=$1 rungs
  shift
  rungs=naive,fa1,fa1-vector,fa1-shuffle,fa1-mma
  rungs+=,fa2,fa2-vector,fa2-shuffle,fa2-mma,fa2-tma,fa2-wgmma,fa3,fa3-turns,fa3-frozen
  rungs+=,fa2-deterministic,sm80,sm90
  step "ladder: fp32 and bf16, $*" "$program" compare --device cuda --implementation "$rungs" "$@" \
    --head-dim 64 --dtype fp32,bf16 --pass both --output "$folder" --json "$folder/$file.json"
}
part_ladder() {
  ladder "$name-ladder-long" --batch 1 --heads 1 --seqlen 4k
  ladder "$name-ladder-wide" --batch 8 --heads 8 --seqlen 1k
  step "ladder: Hopper's rungs on a full GPU" "$program" compare --device cuda --implementation \
    fa2-mma,fa2-tma,fa2-wgmma,fa3,fa3-turns,fa3-frozen,sm80,sm90 --batch 4 --heads 16 \
    --seqlen 4k --head-dim 64,128 --dtype bf16 --pass both --output "$folder" \
    --json "$folder/$name-ladder-hopper.json"
}

part_bench() {
  step "bench: the papers' grid, bf16" "$program" bench --device cuda --sweep papers --dtype bf16 \
    --pass both --json "$folder/$name-papers-bf16.json"
  step "bench: fp32 and tf32, batch 8, one head" "$program" bench --device cuda --batch 8 \
    --heads 1 --head-dim 16,32,64,128 --seqlen 1k,2k,4k,8k,16k --causal=top-left \
    --dtype fp32,tf32 --pass both --json "$folder/$name-fp32.json"
  step "bench: decoding, one query and many keys" "$program" bench --device cuda --batch 1,8 \
    --heads 32 --kv-heads 8 --head-dim 128 --seqlen 1 --seqlen-k 4k,16k,64k \
    --causal=bottom-right --dtype bf16 --json "$folder/$name-decode-bf16.json"
  # Its record says what workspace the plans take: none, or O(S).
  step "bench: one head of 65536 tokens" "$program" bench --device cuda --batch 1 --heads 1 \
    --head-dim 128 --seqlen 64k --dtype bf16,fp16,fp32 --pass both --json "$folder/$name-long.json"
  # Without a mask, which the composition of matrix products could not make use of. A library that
  # is not there is a row that says so, and no failure.
  step "bench: beside cuBLASLt's composition and cuDNN" "$program" compare --device cuda \
    --implementation sm80,cublas,cudnn --batch 2 --heads 16 --head-dim 64,128 --seqlen 1k,4k \
    --dtype bf16,fp32 --pass both --output "$folder/$name-peers" --json "$folder/$name-peers.json"
}

torch_grid() {  # torch_grid GRID [FLAGS...]
  if ! "$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' 2>/dev/null; then
    say "torch: skipped, $python has no PyTorch with CUDA"
    return
  fi
  local grid=$1
  shift
  step "torch: $grid" "$python" "$here/peers/torch_gpu.py" --flashlab "$program" --grid "$grid" \
    --json "$folder/$name" "$@"
}
part_torch() { torch_grid papers; }
part_torch32() { torch_grid fp32; }
part_grids() {
  local grid
  for grid in one-head presets head-dims; do torch_grid $grid --pass forward; done
}

part_sequences() {
  step "sequences: one length for all, beside the dense call" "$program" bench --device cuda \
    --sweep equal --json "$folder/$name-equal.json"
  step "sequences: prefill over pages, and with decodes in one call" "$program" bench \
    --device cuda --sweep mixed --json "$folder/$name-mixed.json"
  # Where --python has no PyTorch, ours alone.
  step "sequences: caches beside their peers" "$program" compare --device cuda --sweep decode \
    --python "$python" --output "$folder/$name-decode" --json "$folder/$name-decode-compare.json"
  step "sequences: mixes beside their peers" "$program" compare --device cuda --sweep ragged \
    --python "$python" --output "$folder/$name-ragged" --json "$folder/$name-ragged-compare.json"
}

part_variants() {
  local variants
  for variants in "$here"/variants/*/; do
    step "variants: $(basename "$variants")" "$here/kernel_variants.py" "$variants" \
      --flashlab "$program" --json "$folder/$name-variants-$(basename "$variants").json"
  done
}

part_python() {
  local tests=$here/../tests/python file code
  if ! "$python" -c 'import flashlab.torch, sys, torch; sys.exit(not torch.cuda.is_available())' \
      2>/dev/null; then
    say "python: skipped, $python has no flashlab (pip install .) or no PyTorch with CUDA"
    return
  fi
  for file in "$tests"/test_*.py; do
    "$python" "$tests/run.py" "$file" >"$folder/$name-python.log" 2>&1
    code=$?
    say "$(basename "$file"): $(grep -E '^(OK|FAILED)' "$folder/$name-python.log" | tail -1)"
    [ $code -eq 0 ] || [ $code -eq 77 ] || { failed=1 && cat "$folder/$name-python.log"; }
  done
  step "python: overhead" "$python" "$here/python/overhead.py" --flashlab "$program" \
    --gpu-costs "$(dirname "$program")/gpu_costs" --json "$folder/$name-overhead.json"
  step "python: mask tensors" "$python" "$here/python/masks.py" --json "$folder/$name-masks.json"
  step "python: errors" "$python" "$here/python/errors.py" --json "$folder/$name-errors.json"
  step "python: FlashAttention's rule" "$python" "$tests/flash_attention_rule.py" --jobs 8 \
    --sample 500 --time-limit 90 --json "$folder/flash_attention_rule-$name"
  step "python: swapped models" "$python" "$here/../examples/python/swap_attention.py" \
    --model gpt,gpt2,llama --json "$folder/$name-swap-attention.json"
}

part_training() {
  local test
  for test in train_cuda_test train_kernels_test; do
    step "training: $test" timeout 300 "$(dirname "$program")/$test" --gtest_brief=1
  done
  if "$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' 2>/dev/null; then
    step "training: beside PyTorch" python3 "$here/training.py" "$program" "$folder" "$name" \
      --python "$python" --seconds 580
  else
    say "training: $python has no PyTorch with CUDA: ours alone"
    step "training: ours" python3 "$here/training.py" "$program" "$folder" "$name" \
      --parts memory,steps,head,kernels,idle --peers "" --seconds 580
  fi
}

"$program" info --json "$folder/$name-info.json"
for part in ${parts//,/ }; do
  case $part in
    check | suite | sanitize | repeat | costs | ladder | bench | torch | torch32 | grids | \
      sequences | variants | python | training)
      "part_$part"
      ;;
    *)
      echo "bench/gpu.sh: no part \"$part\"; there are check, suite, sanitize, repeat, costs," \
        "ladder, bench, torch, torch32, grids, sequences, variants, python, training, all" >&2
      exit 2
      ;;
  esac
done
exit $failed
