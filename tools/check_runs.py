#!/usr/bin/env python3
"""Kills a training run at random moments:  tools/check_runs.py PROGRAM [--kills N]

A GPT-2 of two layers learns Shakespeare from weights that were made before, and is told to do
otherwise at three resumes: more steps, another rate, another schedule. It gets SIGKILL again and
again, at any moment: while it starts, in a step, while it saves. After each the same command goes
on. At the end weights, moments, losses and what the log says was changed are those of the same
commands that nobody killed. Exit code 0 when all of that held, 1 otherwise.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time

STEPS = 150
SMALL = {"model": {"family": "gpt2", "vocabulary": 256, "context": 64, "width": 64, "hidden": 256,
                   "layers": 2, "heads": 4}, "tokenizer": "byte"}
QUIET = ["--device", "cpu", "--threads", "2"]


class Wrong(Exception):
    """What did not hold."""


def commands(folder, base):
    resume = ["train", *QUIET, "--resume", folder]
    return [["train", *QUIET, "--init", base, "--tokenizer", "byte", "--batch", "4", "--dropout",
             "0.1", "--context", "32", "--learning-rate", "1e-3", "--warmup-steps", "20",
             "--steps", str(STEPS), "--save-every", "7", "--evaluate-every", "50",
             "--evaluate-batches", "2", "--sample-every", "0", "--output", folder],
            [*resume, "--steps", str(2 * STEPS), "--evaluate-every", "40"],
            [*resume, "--steps", str(3 * STEPS), "--learning-rate", "5e-4", "--save-every", "5"],
            [*resume, "--steps", str(4 * STEPS), "--schedule", "wsd"]]


def logged(folder):
    """Lines of the log without what a clock says; of a line that is being written nothing."""
    try:
        with open(os.path.join(folder, "log.jsonl"), encoding="utf-8") as file:
            text = file.read()
    except OSError:
        return []
    lines = [json.loads(line) for line in text[:text.rfind("\n") + 1].splitlines()]
    for line in lines:
        line.pop("ms", None)
    return lines


def saved(folder):
    names = os.listdir(folder) if os.path.isdir(folder) else []
    return any(name.startswith("step-") for name in names)


def done(program, command):
    result = subprocess.run([program, *command], capture_output=True, text=True, timeout=300)
    if result.returncode != 0:
        raise Wrong(f"{' '.join(command)}: {result.stderr or result.stdout}")


def kill_once(program, command, folder, wanted, rng):
    """Starts the command and kills it at a step, or as it starts; whether it was killed."""
    child = subprocess.Popen([program, *command], stdout=subprocess.DEVNULL,
                             stderr=subprocess.DEVNULL)
    early = saved(folder) and rng.random() < 0.2
    if not early:
        end = time.monotonic() + 120
        while child.poll() is None and time.monotonic() < end:
            lines = logged(folder)
            if saved(folder) and lines and lines[-1]["step"] >= wanted:
                break
            time.sleep(0.002)
    time.sleep(rng.random() * (0.1 if early else 0.01))
    killed = child.poll() is None
    child.kill()
    child.wait()
    return killed


def check(program, kills, seed):
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as root:
        config, base = os.path.join(root, "small.json"), os.path.join(root, "base")
        with open(config, "w", encoding="utf-8") as file:
            json.dump(SMALL, file)
        done(program, ["train", *QUIET, "--config", config, "--steps", "5", "--sample-every", "0",
                       "--output", base])
        whole, torn = os.path.join(root, "whole"), os.path.join(root, "torn")
        for command in commands(whole, base):
            done(program, command)
        ends = 0
        for part, command in enumerate(commands(torn, base)):
            share = (part + 1) * kills // 4 - part * kills // 4
            for wanted in sorted(rng.randrange(part * STEPS + 8, (part + 1) * STEPS - 8)
                                 for _ in range(share)):
                killed = kill_once(program, command, torn, wanted, rng)
                ends += killed
                if part == 0 and saved(torn):
                    command = ["train", *QUIET, "--resume", torn]
            done(program, command)
        if ends < kills * 3 // 4:
            raise Wrong(f"only {ends} of {kills} kills met a run that was going on")
        for name in ("model.safetensors", "optimizer.safetensors", "state.json"):
            both = []
            for folder in (whole, torn):
                with open(os.path.join(folder, f"step-{4 * STEPS}", name), "rb") as file:
                    both.append(file.read())
            if both[0] != both[1]:
                raise Wrong(f"{name} differs from that of the run that nobody killed")
        if logged(whole) != logged(torn):
            raise Wrong("the logs differ")
        changes = [line["changed"] for line in logged(torn) if "changed" in line]
        if len(changes) != 3 or not all("steps" in each for each in changes):
            raise Wrong(f"the log says {changes}")
        return ends


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program")
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    try:
        ends = check(os.path.abspath(arguments.program), arguments.kills, arguments.seed)
    except Wrong as wrong:
        print(f"check_runs: {wrong} (--seed {arguments.seed})")
        return 1
    print(f"check_runs: {ends} kills, three changes: the bits of the run that nobody killed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
