#!/usr/bin/env python3
"""Ends ranks of a training run at random moments:  tools/check_ranks.py PROGRAM [--kills N]

One run goes on from its newest checkpoint in every mode, on two and four ranks. Each time one rank
gets SIGKILL, every tenth time SIGSTOP, at any moment: while ranks meet, in a step, while they save.
Then all must be gone within five seconds (of SIGSTOP: after --timeout), with one message that names
the rank, and the next start must work at once. At the end the weights are those of a run that
nobody touched. Exit code 0 when all of that held, 1 otherwise.
"""

import argparse
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

MODES = ("naive", "overlap", "bucket", "sharded", "zero1", "zero2", "fsdp")
GONE_S = 5
TIMEOUT_S = 5
STEPS = 6000
# A step of a millisecond; every fifth one is saved.
TRAIN = ["train", "--device", "cpu", "--layers", "2", "--width", "32", "--heads", "2", "--hidden",
         "64", "--context", "32", "--batch", "8", "--shares", "4", "--steps", str(STEPS),
         "--warmup-steps", "2", "--evaluate-every", "0", "--sample-every", "0", "--save-every", "5"]


class Wrong(Exception):
    """What did not hold."""


def running(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def children(pid):
    try:
        with open(f"/proc/{pid}/task/{pid}/children", encoding="utf-8") as file:
            return [int(child) for child in file.read().split()]
    except OSError:
        return []


def wait_for(what, condition, seconds):
    begin = time.monotonic()
    while not condition():
        if time.monotonic() - begin > seconds:
            raise Wrong(f"not within {seconds} s: {what}")
        time.sleep(0.01)
    return time.monotonic() - begin


class Run:
    """The run, its folder, and how long the slowest end took."""

    def __init__(self, program, folder, dice):
        self.program, self.folder, self.dice = program, folder, dice
        self.run = os.path.join(folder, "run")
        self.log = os.path.join(self.run, "log.jsonl")
        self.text = os.path.join(folder, "text.txt")
        with open(self.text, "w", encoding="utf-8") as file:
            file.write("".join(chr(97 + i * i * 7 % 61 % 26) for i in range(6000)))
        self.slowest = 0

    def checkpoints(self):
        if not os.path.isdir(self.run):
            return []
        return [name for name in os.listdir(self.run) if name.startswith("step-")]

    def command(self, ranks):
        words = [self.program, "launch", "-n", str(ranks)]
        more = ["--timeout", str(TIMEOUT_S), "--parallel", self.dice.choice(MODES)]
        if self.checkpoints():
            return [*words, "train", "--device", "cpu", "--resume", self.run, *more]
        shutil.rmtree(self.run, ignore_errors=True)  # killed before it had saved
        return [*words, *TRAIN, "--text", self.text, "--output", self.run, *more]

    def end_once(self, sent):
        ranks = self.dice.choice((2, 4))
        command = self.command(ranks)
        before = os.path.getsize(self.log) if os.path.exists(self.log) else 0
        child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                                 text=True)
        wait_for("all ranks begin", lambda: len(children(child.pid)) == ranks, 60)
        pids = children(child.pid)
        if sent == signal.SIGSTOP or self.dice.random() < 0.8:
            # Somewhere behind the first step; else somewhere before it.
            wait_for("steps", lambda: child.poll() is not None or (
                os.path.exists(self.log) and os.path.getsize(self.log) > before + 200), 120)
        time.sleep(self.dice.random() * 0.3)
        victim = self.dice.randrange(ranks)
        begin = time.monotonic()
        os.kill(pids[victim], sent)
        limit = GONE_S + (TIMEOUT_S if sent == signal.SIGSTOP else 0)
        try:
            _, said = child.communicate(timeout=120)
        except subprocess.TimeoutExpired as error:
            child.kill()
            raise Wrong("the launcher never ended") from error
        took = time.monotonic() - begin
        where = rf"rank {victim} (of {ranks} )?\(process {pids[victim]} on \S+\) "
        what = (r"was ended by signal 9 \(Killed\); " if sent == signal.SIGKILL else
                rf"did not come within {TIMEOUT_S} s, it is stopped \(SIGSTOP\); ")
        if child.returncode != 1 or not re.match("^flashlab: " + where + what, said) or \
           said.count("\n") != 1:
            raise Wrong(f"exit code {child.returncode}, {said!r} of {' '.join(command)}")
        if took > limit:
            raise Wrong(f"all were gone after {took:.1f} s")
        wait_for("a rank is left", lambda: not any(running(pid) for pid in pids), 0.5)
        if sent == signal.SIGKILL:
            self.slowest = max(self.slowest, took)

    def finish(self):
        """The run's last bytes are those of one that nobody touched."""
        whole = os.path.join(self.folder, "whole")
        for words in (["launch", "-n", "2", "train", "--device", "cpu", "--resume", self.run],
                      [*TRAIN[:-1], str(STEPS), "--text", self.text, "--output", whole]):
            got = subprocess.run([self.program, *words], stdout=subprocess.DEVNULL,
                                 stderr=subprocess.PIPE, text=True, timeout=600, check=False)
            if got.returncode != 0:
                raise Wrong(got.stderr)
        for name in ("model", "optimizer"):
            files = [f"{run}/step-{STEPS}/{name}.safetensors" for run in (self.run, whole)]
            if subprocess.run(["cmp", "-s", *files], check=False).returncode != 0:
                raise Wrong(f"{name}.safetensors is not that of a run which nobody touched")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program")
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    dice = random.Random(arguments.seed)
    with tempfile.TemporaryDirectory() as folder:
        run = Run(os.path.abspath(arguments.program), folder, dice)
        number = 0
        try:
            for number in range(1, arguments.kills + 1):
                run.end_once(signal.SIGSTOP if number % 10 == 0 else signal.SIGKILL)
            number = 0
            run.finish()
        except Wrong as wrong:
            print(f"check_ranks: {f'end {number}: ' if number else ''}{wrong} "
                  f"(--seed {arguments.seed})")
            return 1
    print(f"check_ranks: {arguments.kills} ends; after SIGKILL all ranks were gone within "
          f"{run.slowest:.2f} s, and the run's bits are those of one that nobody touched")
    return 0


if __name__ == "__main__":
    sys.exit(main())
