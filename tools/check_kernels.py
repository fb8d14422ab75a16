#!/usr/bin/env python3
"""Compiles GPU kernels without a GPU and reads the compiler's report of each:
  tools/check_kernels.py [--all] [--program build/flashlab] [--arch NAME[,NAME]]

For sm_80 and sm_90a one variant per kernel and element type, of production kernels also per class
of head dims; for the other families one per kernel; --all: everything the planner emits.
A kernel fails that does not compile, needs more registers than a block can have, or, in production,
spills beyond its budget (docs/decisions/0012-spills-have-a-budget.md). Compiled kernels are kept in
build/kernels. Exit code 0, 1 when a kernel fails, 77 without NVRTC (1 with CI=true).
"""

import argparse
import json
import os
import subprocess
import sys

import nvrtc

MAIN = ("sm_80", "sm_90a")
FAMILIES = ("sm_75", "sm_100a", "sm_120a")  # sm_86 and sm_89 run what sm_80 runs
FOLDER = "build/kernels"
REGISTERS = 65536  # of a multiprocessor, on every architecture since sm_50
WARP = 32
REGISTER_UNIT = 8  # per thread, by which the hardware hands them out
USAGE = 2
ERROR_LINES = 8


# Bytes that a thread may store and load together, by (kernel, architecture), or by these and words
# of its configuration; 0 for all others.
SPILLS = {
    # 20 bytes at d 128; with a window 80 at d 64 and 132 at d 256. No such GPU was run; NVRTC 13.0.
    ("flash_fwd_sm80", "sm_120a"): 132,
    # With dropout, d 128: one word, stored and loaded once in a step of 64 queries.
    ("flash_bwd_sm80", "sm_90a"): 20,
    # Chunks of keys: four words, stored and loaded once, d 256. Not timed.
    ("flash_bwd_sm80", "sm_90a", "kChunk true"): 32,
    # With ALiBi and packed heads, d 64: one word.
    ("flash_fwd_sm90", "sm_90a"): 8,
    # Lengths of a sequence: two words, three stored once with ALiBi at d 64.
    ("flash_fwd_sm90", "sm_90a", "kRagged true"): 24,
    # The warp that orders tiles of a cached call looks at its pages: 13 words a tile.
    ("flash_fwd_sm90", "sm_90a", "kCached true"): 56,
    # With dropout, head dims 192 and 128: 25 words.
    ("flash_fwd_sm90", "sm_90a", "kCached true", "kDropout true"): 104,
    # With ALiBi and no bound, d 256: 24 bytes of stack.
    ("flash_fwd_sm90", "sm_90a", "kRagged true", "kHeadDim 256"): 80,
    # With dropout and no bound, d 64: two words, three with ALiBi, where a tile has an edge.
    ("flash_bwd_sm90", "sm_90a"): 24,
    # With dropout, too, or a cap above 64: 14 words at most, with a window and ALiBi, d 64.
    ("flash_bwd_sm90", "sm_90a", "kSoftcap true"): 112,
    # A warp that does not multiply finds tiles of sequences in 24 registers, once a tile of keys.
    # With 40, and 232 for those that multiply, calls took 1.03 of the time.
    ("flash_bwd_sm90", "sm_90a", "kRagged true", "kKeyStages 3"): 560,
    ("flash_bwd_sm90", "sm_90a", "kRagged true", "kKeyStages 1"): 480,
    # Pointers and lengths of a sequence, d 256: 14 words. Not timed.
    ("flash_bwd_sm80", "sm_90a", "kRagged true"): 108,
    # The same, d 128: seven words. Equal lengths take 1.04 of the dense call's time.
    ("flash_fwd_sm80", "sm_90a", "kRagged true"): 56,
    # Keys in a cache: a row's address is found anew. With dropout, many queries, d 128: 32 bytes of
    # stack.
    ("flash_fwd_sm80", "sm_90a", "kCached true"): 168,
    # fp32, lengths of a sequence: once a tile of rows; d 128 three words, stored once.
    ("flash_bwd_fp32_rows", "sm_90a", "kRagged true"): 64,
    ("flash_fwd_fp32", "sm_90a", "kRagged true"): 20,
    # Causal, d 128: one word, stored and loaded, in one of the two ways in which NVRTC 13.0
    # compiles the same text.
    ("flash_bwd_fp32", "sm_90a"): 8,
    # Chunks of keys: three words, stored and loaded once, d 128.
    ("flash_bwd_fp32", "sm_90a", "kChunk true"): 24,
    # A window, softcap, ALiBi and dropout together, d 256: nine words.
    ("flash_fwd_sm80", "sm_90a"): 36,
    # One block makes the schedule of a ragged call, once. Not timed on such a GPU.
    ("flash_schedule", "sm_80"): 48,
    # An additive mask, 64 rows, d 128: four words. Not timed.
    ("flash_fwd_decode", "sm_90a", "kMask kAdditive", "kWarpgroups true"): 32,
    # No such GPU was run; NVRTC 13.0.
    ("flash_append", "sm_100a"): 8,
    ("flash_append", "sm_120a"): 32,
}


class NoCompiler(Exception):
    """NVRTC is not here; its text is the reason."""


def compile_list(program, architecture, selection):
    """The report of `flashlab precompile`, one dict a kernel."""
    path = os.path.join(FOLDER, f"{architecture}-{selection}.json")
    command = [program, "precompile", "--arch", architecture, "--selection", selection,
               "--output", FOLDER, "--json", path]
    if os.path.exists(path):
        os.remove(path)
    done = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          env={**os.environ, **nvrtc.environment()}, check=False)
    if not os.path.exists(path):
        reason = done.stderr.strip().replace("\n", " ")
        if done.returncode == USAGE and "NVRTC" in reason:
            raise NoCompiler(reason)
        sys.exit(f"{' '.join(command)} ended with {done.returncode}: {reason}")
    with open(path, encoding="utf-8") as file:
        return json.load(file)["kernels"]


def register_budget(kernel):
    """Registers a thread may have so that one block fits."""
    threads = -(-kernel["threads"] // WARP) * WARP
    return min(255, REGISTERS // max(threads, 1) // REGISTER_UNIT * REGISTER_UNIT)


def spilled_bytes(kernel):
    """What a thread stores and loads because of spills."""
    return (kernel["spill_store_bytes"] or 0) + (kernel["spill_load_bytes"] or 0)


def spill_budget(architecture, kernel):
    """The largest of those that fit the kernel."""
    return max((allowed for (name, target, *words), allowed in SPILLS.items()
                if (name, target) == (kernel["kernel"], architecture) and
                all(word in kernel["configuration"] for word in words)), default=0)


def complaint(architecture, kernel):
    """What is wrong with a kernel, or an empty string."""
    if kernel["error"]:
        return "does not compile: " + "\n".join(kernel["error"].split("\n")[:ERROR_LINES])
    if kernel["registers"] is None:  # PTX: the driver's ptxas decides
        return ""
    fit = register_budget(kernel)
    if kernel["registers"] > fit:
        return f"{kernel['registers']} registers, {fit} fit {kernel['threads']} threads"
    allowed = spill_budget(architecture, kernel)
    if kernel["production"] and spilled_bytes(kernel) > allowed:
        return f"spills {spilled_bytes(kernel)} bytes, its budget is {allowed}"
    return ""


def cell(kernel):
    """"168" registers, "255 s96" with 96 bytes spilled."""
    if kernel is None:
        return ""
    if kernel["error"]:
        return "error"
    if kernel["registers"] is None:
        return "PTX"
    spilled = spilled_bytes(kernel)
    return f"{kernel['registers']}" + (f" s{spilled}" if spilled else "")


def row_of(kernel):
    return (kernel["implementation"], kernel["kernel"], kernel["element"], kernel["head_dim"])


def print_table(reports):
    """Registers (and spilled bytes) of a kernel in a row, of an architecture in a column."""
    rows = {}
    for architecture, kernels in reports.items():
        for kernel in kernels:
            rows.setdefault(row_of(kernel), {})[architecture] = kernel
    widths = [max(len(str(row[i])) for row in rows) for i in range(4)]
    names = list(reports)
    print("registers a thread, s: bytes spilled\n" + " " * (sum(widths) + 8) +
          "  ".join(f"{name:>8}" for name in names))
    for row, found in rows.items():
        left = "  ".join(str(part).ljust(width) for part, width in zip(row, widths))
        print((left + "  " + "  ".join(f"{cell(found.get(name)):>8}" for name in names)).rstrip())


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--all", action="store_true", help="every variant of every architecture")
    parser.add_argument("--program", default="build/flashlab")
    parser.add_argument("--arch", default="", help="only these")
    arguments = parser.parse_args()
    os.makedirs(FOLDER, mode=0o755, exist_ok=True)
    os.chmod(FOLDER, 0o755)
    only = [name for name in arguments.arch.split(",") if name]
    reports = {}
    try:
        for architecture in MAIN + FAMILIES:
            if only and architecture not in only:
                continue
            selection = "representative" if architecture in MAIN else "smoke"
            reports[architecture] = compile_list(arguments.program, architecture,
                                                 "all" if arguments.all else selection)
    except NoCompiler as reason:
        print(f"skipped: {reason}")
        return 1 if os.environ.get("CI") == "true" else 77
    if not any(reports.values()):
        print("the planner emitted no kernel")
        return 1
    print_table(reports)
    wrong = [(architecture, kernel, complaint(architecture, kernel))
             for architecture, kernels in reports.items()
             for kernel in kernels if complaint(architecture, kernel)]
    for architecture, kernel, text in wrong:
        print(f"{architecture} {kernel['implementation']} {kernel['kernel']} "
              f"({kernel['problem']}): {text}")
    count = sum(len(kernels) for kernels in reports.values())
    seconds = sum(kernel.get("compile_seconds", 0) for kernels in reports.values()
                  for kernel in kernels)
    print(f"{count} kernels, {len(wrong)} wrong, {seconds:.0f} s of compiling")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
