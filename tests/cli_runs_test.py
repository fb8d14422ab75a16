#!/usr/bin/env python3
"""Runs of train that are changed, kept, logged and ended."""

import csv
import json
import os
import struct

import cli_harness
from cli_harness import Folder, run

TINY = ["--device", "cpu", "--layers", "1", "--width", "16", "--heads", "2", "--hidden", "24",
        "--context", "16", "--batch", "2", "--threads", "2", "--sample-every", "0"]


def read(path):
    with open(path, "rb") as file:
        return file.read()


def crc32c(data):
    value = 0xffffffff
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = value >> 1 ^ (0x82f63b78 if value & 1 else 0)
    return value ^ 0xffffffff


def masked(data):
    value = crc32c(data)
    return ((value >> 15 | value << 17) + 0xa282ead8) & 0xffffffff


def varint(data, at):
    value = shift = 0
    while True:
        value |= (data[at] & 127) << shift
        shift += 7
        at += 1
        if data[at - 1] < 128:
            return value, at


def fields(data):
    """Numbers and values of a protocol buffer's fields."""
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        kind = key & 7
        if kind == 0:
            value, at = varint(data, at)
        else:
            size, at = (8, at) if kind == 1 else (4, at) if kind == 5 else varint(data, at)
            value, at = data[at:at + size], at + size
        yield key >> 3, value


def events(path):
    """Steps and scalars of an event file; every checksum is looked at."""
    data, at, out = read(path), 0, []
    while at < len(data):
        length = data[at:at + 8]
        size = struct.unpack("<Q", length)[0]
        event = data[at + 12:at + 12 + size]
        sums = [struct.unpack("<I", data[i:i + 4])[0] for i in (at + 8, at + 12 + size)]
        assert sums == [masked(length), masked(event)], sums
        at += 16 + size
        known = dict(fields(event))
        for _, value in fields(known.get(5, b"")):
            scalar = dict(fields(value))
            out.append((known.get(2, 0), scalar[1].decode(), struct.unpack("<f", scalar[2])[0]))
    return out


class Runs(Folder):
    def train(self, *arguments, code=0):
        result = run("train", *arguments)
        self.assertEqual(result.returncode, code, result.stderr + result.stdout)
        return result.stdout + result.stderr

    @staticmethod
    def saved_steps(folder):
        return {int(name[5:]) for name in os.listdir(folder) if name.startswith("step-")}

    def lines(self, folder):
        with open(os.path.join(folder, "log.jsonl"), encoding="utf-8") as file:
            return [json.loads(line) for line in file]

    def rates(self, folder):
        return [line["learning_rate"] for line in self.lines(folder) if "loss" in line]

    def test_a_resumed_run_is_changed_and_says_so(self):
        folder = self.path("run")
        self.train(*TINY, "--steps", "10", "--warmup-steps", "2", "--evaluate-every", "0",
                   "--output", folder)
        out = self.train("--resume", folder, "--steps", "20", "--schedule", "constant",
                         "--learning-rate", "1e-3", "--save-every", "4", "--evaluate-every", "5")
        self.assertIn("changed  steps from 10 to 20 after step 10", out)
        self.assertIn('changed  schedule from "cosine" to "constant" after step 10', out)
        changed = [line for line in self.lines(folder) if "changed" in line]
        self.assertEqual([line["step"] for line in changed], [10])
        self.assertEqual(changed[0]["changed"]["steps"], [10, 20])
        self.assertEqual(self.rates(folder)[10:], [1e-3] * 10)
        self.assertEqual([line["step"] for line in self.lines(folder)
                          if "validation_loss" in line], [10, 15, 20])
        # The same command again is no change, and says nothing twice.
        before = self.lines(folder)
        again = self.train("--resume", folder, "--steps", "20", "--learning-rate", "1e-3")
        self.assertNotIn("changed", again)
        self.assertEqual(self.lines(folder), before)
        # What was changed by hand is not.
        path = os.path.join(folder, "config.json")
        config = json.loads(read(path))
        config["steps"] = 30
        with open(path, "w", encoding="utf-8") as file:
            json.dump(config, file)
        self.assertIn("steps: got 30, expected 20", self.train("--resume", folder, code=2))

    def test_a_run_is_not_shorter_than_it_was(self):
        folder = self.path("run")
        self.train(*TINY, "--steps", "6", "--evaluate-every", "0", "--output", folder)
        config = read(os.path.join(folder, "config.json"))
        self.assertIn("got step 6, expected at most the run's 3 steps",
                      self.train("--resume", folder, "--steps", "3", code=2))
        self.assertEqual(read(os.path.join(folder, "config.json")), config)

    def test_a_run_of_an_earlier_version_goes_on(self):
        folder = self.path("run")
        self.train(*TINY, "--steps", "4", "--adamw-convention", "cs336", "--save-every", "2",
                   "--evaluate-every", "0", "--output", folder)
        last = read(os.path.join(folder, "step-4", "model.safetensors"))

        def earlier(config):
            for key in ("adamw_convention", "schedule", "keep", "keep_best", "max_skipped",
                        "momentum", "decay_until", "decay_steps", "tensorboard"):
                del config[key]
            config["optimizer"] = "cs336"
        for path, inside in (("config.json", None), ("step-2/state.json", "config")):
            path = os.path.join(folder, path)
            whole = json.loads(read(path))
            whole.pop("digest", None)
            earlier(whole[inside] if inside else whole)
            with open(path, "w", encoding="utf-8") as file:
                json.dump(whole, file)
        os.rename(os.path.join(folder, "step-4"), self.path("old-4"))
        self.train("--resume", folder)
        self.assertEqual(read(os.path.join(folder, "step-4", "model.safetensors")), last)

    def test_a_change_goes_back_with_its_run(self):
        folder = self.path("run")
        self.train(*TINY, "--steps", "4", "--save-every", "2", "--keep", "0", "--output", folder)
        self.train("--resume", folder, "--learning-rate", "1e-3", "--steps", "6")
        for step in (4, 6):
            os.rename(os.path.join(folder, f"step-{step}"), self.path(f"gone-{step}"))
        self.assertIn("changed  steps from 4 to 6 after step 2", self.train("--resume", folder))
        with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
            changes = json.load(file)["changes"]
        self.assertEqual({change["step"] for change in changes}, {2})
        changed = [line for line in self.lines(folder) if "changed" in line]
        self.assertEqual([line["step"] for line in changed], [2])
        self.assertEqual(changed[0]["changed"]["steps"], [4, 6])

    def test_a_damaged_state_is_no_checkpoint(self):
        folder = self.path("run")
        self.train(*TINY, "--steps", "4", "--save-every", "2", "--output", folder)
        path = os.path.join(folder, "step-4", "state.json")
        state = json.loads(read(path))
        with open(path, "w", encoding="utf-8") as file:
            json.dump(state, file, sort_keys=True)  # the same with other blanks
        self.train("--resume", folder, "--steps", "5")
        path = os.path.join(folder, "step-5", "state.json")
        state = json.loads(read(path))
        state["config"]["beta2"] = 0.5
        with open(path, "w", encoding="utf-8") as file:
            json.dump(state, file)
        out = self.train("--resume", folder, code=2)
        self.assertIn("state.json: got a digest of", out)
        self.assertIn("to go on from step-4", out)

    def test_schedules(self):
        for name, first, last in (("course", 0, None), ("linear", 5e-4, 1e-4),
                                  ("wsd", 5e-4, 1e-4), ("constant", 5e-4, 2e-3)):
            folder = self.path(name)
            out = self.train(*TINY, "--steps", "10", "--warmup-steps", "4", "--evaluate-every",
                             "0", "--schedule", name, "--output", folder)
            self.assertIn(f"rate     {name} · {first:.3g} at step 1, ", out)
            rates = self.rates(folder)
            self.assertAlmostEqual(rates[0], first, places=12)
            if last:
                self.assertAlmostEqual(rates[-1], last, places=12)

    def test_kept_checkpoints_and_the_best(self):
        folder = self.path("run")
        self.train(*TINY, "--steps", "12", "--warmup-steps", "2", "--save-every", "2", "--keep",
                   "3", "--evaluate-every", "0", "--output", folder)
        self.assertEqual(self.saved_steps(folder), {8, 10, 12})
        best = self.path("best")
        self.train(*TINY, "--steps", "12", "--warmup-steps", "2", "--learning-rate", "3",
                   "--evaluate-every", "2", "--evaluate-batches", "4", "--keep", "1",
                   "--keep-best", "--save-every", "5", "--output", best)
        looks = {line["step"]: line["validation_loss"] for line in self.lines(best)
                 if "validation_loss" in line and line["step"] < 12}
        least = min(looks, key=looks.get)
        self.assertEqual(os.readlink(os.path.join(best, "best")), f"step-{least}")
        self.assertEqual(self.saved_steps(best), {least, 12})
        self.assertEqual(run("generate", "--device", "cpu", "--checkpoint",
                             os.path.join(best, "best"), "--tokens", "3").returncode, 0)

    def test_the_numbers_as_a_table_and_for_tensorboard(self):
        folder = self.path("run")
        self.train(*TINY, "--steps", "6", "--save-every", "4", "--evaluate-every", "3",
                   "--tensorboard", "--output", folder)
        os.rename(os.path.join(folder, "step-6"), self.path("last"))
        self.train("--resume", folder)
        with open(os.path.join(folder, "log.csv"), encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        self.assertEqual([row["step"] for row in rows if row["loss"]],
                         ["1", "2", "3", "4", "5", "6"])
        self.assertEqual([row["step"] for row in rows if row["validation_loss"]], ["3", "6"])
        logged = {line["step"]: line["loss"] for line in self.lines(folder) if "loss" in line}
        seen = {}
        names = sorted(name for name in os.listdir(folder) if name.startswith("events.out."))
        self.assertEqual(len(names), 2)
        for name in names:
            for step, tag, value in events(os.path.join(folder, name)):
                if tag == "train/loss":
                    seen[step] = value
        self.assertEqual(sorted(seen), sorted(logged))
        for step, loss in logged.items():
            self.assertAlmostEqual(seen[step], loss, places=5)
        try:
            from tensorboard.backend.event_processing import event_accumulator
        except ImportError:
            return
        reader = event_accumulator.EventAccumulator(folder)
        reader.Reload()
        self.assertEqual([event.step for event in reader.Scalars("train/loss")],
                         [1, 2, 3, 4, 5, 6])

    def test_a_run_that_learns_nothing_ends(self):
        fp16 = [*TINY, "--precision", "fp16", "--loss-scale", "1e12", "--evaluate-every", "0"]
        out = self.train(*fp16, "--steps", "30", "--output", self.path("a"), code=1)
        self.assertIn("the last 25 steps updated nothing", out)
        out = self.train(*fp16, "--steps", "30", "--max-skipped", "4", "--output", self.path("b"),
                         code=1)
        self.assertIn("the last 4 steps updated nothing", out)
        out = self.train(*fp16, "--steps", "3", "--output", self.path("c"), code=1)
        self.assertIn("the last 3 steps updated nothing", out)

    def test_sgd_and_flags_without_effect(self):
        folder = self.path("run")
        self.train(*TINY, "--optimizer", "sgd", "--momentum", "0.9", "--learning-rate", "0.1",
                   "--steps", "20", "--warmup-steps", "1", "--evaluate-every", "0", "--output",
                   folder)
        losses = [line["loss"] for line in self.lines(folder) if "loss" in line]
        self.assertLess(losses[-1], losses[0])
        for flags, part in (
                (["--momentum", "0.5"], "--momentum has no effect with AdamW"),
                (["--optimizer", "sgd", "--beta2", "0.9"], "--beta2 has no effect"),
                (["--decay-steps", "3"], "--decay-steps has no effect with --schedule cosine"),
                (["--schedule", "constant", "--decay-until", "3"], "--decay-until has no effect"),
                (["--max-skipped", "3"], "--max-skipped has no effect"),
                (["--keep-best", "--evaluate-every", "0"], "--keep-best without looks"),
                (["--beta1", "1.5"], "--beta1: got 1.5, expected 0 to"),
                (["--schedule", "cosin"], "did you mean cosine?")):
            with self.subTest(flags=flags):
                self.assertIn(part, self.train(*TINY, *flags, "--output", self.path("no"), code=2))


if __name__ == "__main__":
    cli_harness.main()
