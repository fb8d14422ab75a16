#!/usr/bin/env python3
"""What runs read: sources, orders, formats, lines of JSON, token files, configuration; sweeps."""

import json
import os
import struct

import cli_harness
from cli_harness import Folder, run

TINY = ["--device", "cpu", "--layers", "1", "--width", "16", "--heads", "2", "--hidden", "24",
        "--context", "16", "--batch", "2", "--threads", "2", "--sample-every", "0",
        "--evaluate-every", "0"]


def read(path):
    with open(path, "rb") as file:
        return file.read()


class Data(Folder):
    def done(self, *arguments, code=0):
        result = run(*arguments)
        self.assertEqual(result.returncode, code, result.stderr + result.stdout)
        return result.stdout + result.stderr

    def losses(self, folder):
        with open(os.path.join(folder, "log.jsonl"), encoding="utf-8") as file:
            return [line["loss"] for line in map(json.loads, file) if "loss" in line]

    def weights(self, folder, step):
        return read(os.path.join(folder, f"step-{step}", "model.safetensors"))

    def headerless(self, name, tokens):
        return self.path(name, struct.pack(f"<{len(tokens)}H", *tokens))

    def test_sources_in_epochs_resumed_anywhere(self):
        a = self.headerless("a.bin", [i % 40 for i in range(2000)])
        b = self.headerless("b.bin", [40 + i % 9 for i in range(700)])
        flags = ["--tokens", f"{a}:1.4,{b}:0.6", "--tokens-format", "uint16", "--vocabulary", "50",
                 "--order", "epochs", "--steps", "24", "--save-every", "9"]
        whole, torn = self.path("whole"), self.path("torn")
        out = self.done("train", *TINY, *flags, "--output", whole)
        self.assertIn("a.bin 70%, ", out)
        self.assertIn("b.bin 30%, ", out)
        self.assertIn("they add up to 2, and are taken as shares of it", out)
        self.done("train", *TINY, *flags, "--output", torn)
        os.rename(os.path.join(torn, "step-24"), self.path("gone"))
        self.done("train", "--resume", torn)
        self.assertEqual(self.weights(whole, 24), self.weights(torn, 24))
        self.assertEqual(self.losses(whole), self.losses(torn))
        # Two ranks take the same windows as one with two shares.
        one, two = self.path("one"), self.path("two")
        self.done("train", *TINY, *flags, "--shares", "2", "--output", one)
        for mode in ("bucket", "fsdp"):
            folder = f"{two}-{mode}"
            self.done("launch", "-n", "2", "train", *TINY, *flags, "--parallel", mode,
                      "--output", folder)
            self.assertEqual(self.losses(one), self.losses(folder), mode)

    def test_an_order_is_part_of_the_run(self):
        folder = self.path("run")
        self.done("train", *TINY, "--steps", "4", "--order", "epochs", "--output", folder)
        path = os.path.join(folder, "config.json")
        config = json.loads(read(path))
        self.assertEqual(config["order"], "epochs")
        config["order"] = "random"
        with open(path, "w", encoding="utf-8") as file:
            json.dump(config, file)
        self.assertIn('order: got "random", expected "epochs"',
                      self.done("train", "--resume", folder, code=2))

    def test_tokenize(self):
        text = self.path("text.txt", ("abc abd the cat sat on the mat. " * 4000).encode())
        out = self.path("pairs.bin")
        said = self.done("tokenize", "--text", text, "--tokenizer", "bpe", "--vocabulary", "270",
                         "--threads", "2", "--output", out)
        self.assertIn("270 byte pairs", said)
        tokenizer = self.path("pairs.json")
        count = struct.unpack("<3i", read(out)[:12])[2]
        self.assertLess(count, 4000 * 16)
        self.assertIn(f"{count} tokens", said)
        self.done("train", *TINY, "--tokens", out, "--tokenizer", tokenizer, "--steps", "2",
                  "--output", self.path("run"))
        lines = self.path("lines.jsonl", b'{"text": "one"}\n{"text": "two"}\n')
        said = self.done("tokenize", "--text", lines, "--text-field", "text", "--tokenizer",
                         "byte", "--output", self.path("lines.bin"))
        self.assertIn("8 tokens", said)
        self.assertIn("2 documents", said)
        empty = self.path("empty.jsonl", b'{"text": "one"}\n{"text": ""}\n')
        for flags, part in (
                (["--text", empty, "--text-field", "text", "--tokenizer", "byte"],
                 "line 2: got an empty document"),
                (["--text", lines, "--text-field", "txt", "--tokenizer", "byte"],
                 "expected one of text"),
                (["--text", self.path("no"), "--tokenizer", "byte"], "No such file"),
                (["--text", text], "needs --tokenizer"),
                (["--tokenizer", "byte"], "needs --text"),
                (["--text", text, "--tokenizer", "byte", "--vocabulary", "9"], "has no effect")):
            with self.subTest(flags=flags):
                bad = self.path("bad.bin")
                self.assertIn(part, self.done("tokenize", *flags, "--output", bad, code=2))
                self.assertFalse(os.path.exists(bad))

    def test_tokenize_keeps_its_texts(self):
        for name, flags in (("a.bin", ["--tokenizer", "byte"]),
                            ("a.json", ["--tokenizer", "byte"]),
                            ("b.txt", ["--tokenizer", "byte", "--output", self.path("b.txt")])):
            with self.subTest(name=name):
                file = self.path(name, b"some text")
                self.assertIn("would be written over", self.done("tokenize", "--text", file, *flags,
                                                                 code=2))
                self.assertEqual(read(file), b"some text")

    def test_lines_of_json_are_learned(self):
        lines = b"".join(json.dumps({"body": f"text {i} of many"}).encode() + b"\n"
                         for i in range(400))
        file = self.path("a.jsonl", lines)
        out = self.done("train", *TINY, "--text", file, "--text-field", "body", "--steps", "2",
                        "--output", self.path("run"))
        self.assertIn("characters", out)
        self.assertIn("--text-field: got body, expected files of JSON lines",
                      self.done("train", *TINY, "--text-field", "body", "--output",
                                self.path("x"), code=2))

    def test_a_file_of_settings(self):
        toml = self.path("run.toml", b"""
device = "cpu"
threads = 2
steps = 3          # flags go over it
learning_rate = 1e-3
sample_every = 0
evaluate_every = 0
tokenizer = "byte"
[model]
layers = 1
width = 16
heads = 2
hidden = 24
context = 16
""")
        folder = self.path("run")
        out = self.done("train", "--config", toml, "--steps", "2", "--output", folder)
        self.assertIn("256 bytes · 1 layers, width 16", out)
        config = json.loads(read(os.path.join(folder, "config.json")))
        self.assertEqual((config["steps"], config["learning_rate"]), (2, 1e-3))
        # What train wrote says to explain step and profile step what to plan, and to train again.
        effective = os.path.join(folder, "config.json")
        self.assertIn("batch 12 x 16 · fp32 · 10416 parameters",
                      self.done("explain", "step", "--config", effective))
        self.done("profile", "step", "--config", effective, "--dry-run")
        self.done("train", "--config", effective, "--device", "cpu", "--output", self.path("again"))
        self.assertEqual(self.weights(folder, 2), self.weights(self.path("again"), 2))
        flat = self.path("flat.json", b'{"width": 32, "heads": 2, "layers": 1, "vocabulary": 77}')
        self.done("explain", "step", "--config", flat)
        bench = self.path("bench.toml", b"""
device = "cpu"
batch = 1
heads = 2
head_dim = 16
seqlen = [32, 64]
dtype = "fp32"
causal = true
repeats = 2
warmup = 1
""")
        rows = json.loads(run("bench", "--config", bench, "--json", "-").stdout)["results"]
        self.assertEqual({row["seqlen_q"] for row in rows}, {32, 64})
        for text, part in ((b'steps = "many"', "steps: got"), (b"stepps = 1", "did you mean steps"),
                           (b"steps = ", "line 1: a value"), (b"device = true", "expected a value"),
                           (b"keep_best = 3", "keep_best"), (b'config = "a"', "config")):
            with self.subTest(text=text):
                self.assertIn(part, self.done("train", "--config", self.path("bad.toml", text),
                                              "--output", self.path("no"), code=2))
        self.assertIn("dtype", self.done("bench", "--config", self.path("x.json",
                                                                        b'{"dtyp": "fp32"}'),
                                         code=2))

    def test_a_list_of_a_repeated_flag(self):
        random = ["generate", "--size", "tiny", "--device", "cpu", "--tokens", "200"]
        file = self.path("stops.toml", b'stop = ["7", "8", "9"]\n')
        text, typed = (self.done(*random, *flags).splitlines()[0] for flags in (
            ["--config", file], [word for stop in "789" for word in ("--stop", stop)]))
        self.assertEqual(text, typed)
        self.assertIn(text[-1], "789")
        nothing = self.path("nothing.toml", b'stop = ""\n')
        self.assertIn('stop: got ""', self.done(*random, "--config", nothing, code=2))

    def test_a_sweep_over_rates(self):
        rates = self.path("rates.toml", b"learning_rate = [1e-3, 1e-2, 1e-3]\n")
        self.assertIn("0.001 is given twice",
                      self.done("sweep", "train", *TINY, "--config", rates, code=2))
        self.assertIn("1e-3 is given twice",
                      self.done("sweep", "train", *TINY, "--learning-rate", "1e-3,1e-2,1e-3",
                                code=2))
        folder = self.path("sweep")
        out = self.done("sweep", "train", *TINY, "--learning-rate", "1e-4,1e-2", "--steps", "30",
                        "--warmup-steps", "3", "--output", folder)
        self.assertIn("best     1e-2", out)
        with open(os.path.join(folder, "sweep.json"), encoding="utf-8") as file:
            runs = json.load(file)["runs"]
        self.assertEqual([one["learning_rate"] for one in runs], ["1e-4", "1e-2"])
        self.assertGreater(runs[0]["validation_loss"], runs[1]["validation_loss"])
        self.assertIn("<svg", read(os.path.join(folder, "sweep.svg")).decode())
        self.assertEqual(len(read(os.path.join(folder, "sweep.csv")).splitlines()), 3)
        single = self.path("single")
        self.done("train", *TINY, "--learning-rate", "1e-2", "--steps", "30", "--warmup-steps",
                  "3", "--output", single)
        self.assertEqual(self.weights(os.path.join(folder, "learning-rate-1e-2"), 30),
                         self.weights(single, 30))
        self.assertIn("compares several", self.done("sweep", "train", *TINY, "--learning-rate",
                                                    "1e-3", code=2))


if __name__ == "__main__":
    cli_harness.main()
