"""train, generate and explain step, on models that take milliseconds a step."""

import json
import os
import re
import resource
import signal
import subprocess
import time

import cli_harness
from cli_harness import Folder, program, run

TINY = ["--layers", "1", "--width", "16", "--heads", "2", "--hidden", "24", "--context", "16",
        "--batch", "2", "--threads", "2", "--evaluate-every", "0"]


def read(path):
    with open(path, "rb") as file:
        return file.read()


class Train(Folder):
    def train(self, *arguments, code=0):
        result = run("train", *arguments)
        self.assertEqual(result.returncode, code, result.stderr + result.stdout)
        return result.stdout

    def test_learns_logs_and_draws(self):
        folder = self.path("run")
        out = self.train(*TINY, "--steps", "60", "--warmup-steps", "5", "--learning-rate", "1e-2",
                         "--output", folder, "--sample-every", "30")
        self.assertIn("tinyshakespeare (shipped) · 65 characters", out)
        self.assertIn("predicted peak", out)
        self.assertIn("sample ", out)
        with open(os.path.join(folder, "log.jsonl")) as file:
            lines = [json.loads(line) for line in file]
        losses = [line["loss"] for line in lines if "loss" in line]
        self.assertEqual(len(losses), 60)
        self.assertGreater(losses[0], 3.9)
        self.assertLess(sum(losses[-5:]) / 5, 3.5)
        self.assertIn("<svg", read(os.path.join(folder, "loss.svg")).decode())
        config = json.loads(read(os.path.join(folder, "config.json")))
        self.assertEqual(config["model"]["vocabulary"], 65)
        self.assertEqual(config["steps"], 60)

    def test_a_resumed_run_is_the_uninterrupted_one(self):
        whole, halves = self.path("whole"), self.path("halves")
        arguments = [*TINY, "--dropout", "0.1", "--steps", "24", "--save-every", "10"]
        self.train(*arguments, "--output", whole)
        self.train(*arguments, "--output", halves)
        # As if it had ended after the checkpoint of step 20.
        subprocess.run(["rm", "-r", os.path.join(halves, "step-24")], check=True)
        self.train("--resume", halves)
        for name in ("model.safetensors", "optimizer.safetensors"):
            self.assertEqual(read(os.path.join(whole, "step-24", name)),
                             read(os.path.join(halves, "step-24", name)), name)
        with open(os.path.join(halves, "log.jsonl")) as file:
            steps = [json.loads(line)["step"] for line in file if '"loss"' in line]
        self.assertEqual(steps, list(range(1, 25)))

    def test_a_number_that_was_none_is_a_gap_in_the_resumed_curve(self):
        folder = self.path("gap")
        self.train(*TINY, "--steps", "4", "--save-every", "2", "--output", folder)
        subprocess.run(["rm", "-r", os.path.join(folder, "step-4")], check=True)
        log = os.path.join(folder, "log.jsonl")
        lines = [json.loads(line) for line in read(log).splitlines()]
        lines[0]["loss"] = None
        with open(log, "w", encoding="utf-8") as file:
            file.write("".join(json.dumps(line) + "\n" for line in lines))
        self.train("--resume", folder)
        self.assertIn("<svg", read(os.path.join(folder, "loss.svg")).decode())

    def test_a_resumed_run_in_fp16_keeps_its_loss_scale(self):
        whole, halves = self.path("whole"), self.path("halves")
        arguments = [*TINY, "--precision", "fp16", "--steps", "24", "--save-every", "10"]
        self.train(*arguments, "--output", whole)
        self.train(*arguments, "--output", halves)
        subprocess.run(["rm", "-r", os.path.join(halves, "step-24")], check=True)
        self.train("--resume", halves)
        for name in ("model.safetensors", "optimizer.safetensors", "state.json"):
            self.assertEqual(read(os.path.join(whole, "step-24", name)),
                             read(os.path.join(halves, "step-24", name)), name)
        self.assertIn(b"loss_scale", read(os.path.join(halves, "step-24", "state.json")))

    def test_learns_byte_pairs_and_reads_shards(self):
        pairs = self.path("pairs")
        out = self.train(*TINY, "--tokenizer", "bpe", "--vocabulary", "300", "--steps", "3",
                         "--output", pairs)
        self.assertIn("300 byte pairs", out)
        # Bytes: what so few steps have taught need not be UTF-8.
        made = subprocess.run([program(), "generate", "--checkpoint", pairs, "--prompt", "ROMEO:",
                               "--tokens", "5"], stdout=subprocess.PIPE, check=True)
        self.assertTrue(made.stdout.startswith(b"ROMEO:"))
        # What train has written is a shard and a tokenizer for another run.
        shards = self.path("shards")
        shard = os.path.join(pairs, "train.bin")
        out = self.train(*TINY, "--tokens", shard + "," + shard, "--tokenizer",
                         os.path.join(pairs, "tokenizer.json"), "--steps", "4", "--save-every", "2",
                         "--output", shards)
        self.assertIn("300 byte pairs", out)
        subprocess.run(["rm", "-r", os.path.join(shards, "step-4")], check=True)
        self.train("--resume", shards)
        self.refused(["train", *TINY, "--tokens", shard, "--text", shard], "text and token files")
        self.refused(["train", *TINY, "--tokens", shard, "--vocabulary", "30", "--output",
                      self.path("none")], "tokens below the vocabulary's 30")
        self.refused(["train", *TINY, "--tokenizer", "x.model"], "SentencePiece")

    def test_every_precision_beside_the_others(self):
        folder = self.path("precision")
        done = run("bench", "precision", *TINY[:-2], "--steps", "12", "--output", folder)
        self.assertEqual(done.returncode, 0, done.stderr)
        with open(os.path.join(folder, "precision.json")) as file:
            runs = json.load(file)["runs"]
        self.assertEqual([each["precision"] for each in runs],
                         ["fp32", "bf16", "fp16", "bf16-pure"])
        for each in runs:
            self.assertEqual(len(each["losses"]), 12)
            self.assertGreater(each["samples_per_s"], 0)
            self.assertAlmostEqual(each["losses"][0], runs[0]["losses"][0], delta=0.05)
        self.assertLess(runs[3]["peak_bytes"], runs[1]["peak_bytes"])
        self.assertIn("<svg", read(os.path.join(folder, "precision.svg")).decode())
        other = run("bench", "precision", *TINY[:-2], "--steps", "2", "--precision", "tf32,fp64",
                    "--output", self.path("other"))
        self.assertEqual(other.returncode, 0, other.stderr)
        self.train(*TINY, "--precision", "tf32", "--steps", "2", "--output", self.path("tf32"))
        overflowing = run("bench", "precision", *TINY[:-2], "--steps", "3", "--precision", "fp16",
                          "--loss-scale", "1e12", "--output", self.path("high"))
        self.assertEqual(overflowing.returncode, 0, overflowing.stderr)
        with open(os.path.join(self.path("high"), "precision.json")) as file:
            self.assertEqual(json.load(file)["runs"][0]["skipped_steps"], 3)
        self.refused(["train", *TINY, "--loss-scale", "much"], "dynamic, none")

    def test_a_signal_saves_and_ends(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            folder = self.path(f"run{number}")
            child = subprocess.Popen([program(), "train", *TINY, "--steps", "1000000", "--output",
                                      folder], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            log = os.path.join(folder, "log.jsonl")
            deadline = time.time() + 300
            while time.time() < deadline and not (os.path.exists(log) and os.path.getsize(log)):
                time.sleep(0.02)
            child.send_signal(number)
            out, _ = child.communicate(timeout=300)
            self.assertEqual(child.returncode, 130)
            self.assertIn("resume: flashlab train --resume", out.decode())
            saved = [name for name in os.listdir(folder) if name.startswith("step-")]
            self.assertEqual(len(saved), 1)

    def test_killed_at_any_moment_the_last_checkpoint_is_whole(self):
        folder = self.path("run")
        child = subprocess.Popen([program(), "train", *TINY, "--steps", "1000000", "--save-every",
                                  "1", "--output", folder], stdout=subprocess.DEVNULL)
        for attempt in range(6):
            seen = max(self.saved_steps(folder), default=0)
            deadline = time.time() + 300
            while time.time() < deadline and max(self.saved_steps(folder), default=0) < seen + 3:
                time.sleep(0.005)
            time.sleep(0.003 * attempt)
            child.kill()
            child.wait()
            last = max(self.saved_steps(folder))
            child = subprocess.Popen([program(), "train", "--resume", folder],
                                     stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            time.sleep(0.2)
            self.assertIsNone(child.poll(), f"no whole checkpoint {last}")
        child.kill()
        child.wait()

    @staticmethod
    def available_bytes():
        with open("/proc/meminfo") as file:
            return next(1024 * int(line.split()[1]) for line in file if "MemAvailable" in line)

    @staticmethod
    def saved_steps(folder):
        if not os.path.isdir(folder):
            return []
        return [int(name[5:]) for name in os.listdir(folder) if name.startswith("step-")]

    def test_own_text_and_generation(self):
        text = self.path("mine.txt", ("abc äöü " * 400).encode())
        folder = self.path("run")
        out = self.train(*TINY, "--text", text, "--steps", "80", "--learning-rate", "1e-2",
                         "--warmup-steps", "5", "--output", folder)
        self.assertIn("7 characters", out)
        made = run("generate", "--checkpoint", folder, "--prompt", "abc ", "--tokens", "20",
                   "--temperature", "0", "--device", "cpu")
        self.assertEqual(made.returncode, 0, made.stderr)
        self.assertTrue(made.stdout.startswith("abc äöü abc äöü"), made.stdout)
        stopped = run("generate", "--checkpoint", folder, "--prompt", "abc ", "--tokens", "20",
                      "--temperature", "0", "--stop", "äö")
        self.assertEqual(stopped.stdout, "abc äö\n")
        several = run("generate", "--checkpoint", folder, "--prompt", "abc ", "--max-new-tokens",
                      "20", "--temperature", "0", "--stop", "c ä", "--stop", "zz", "--samples", "2")
        self.assertEqual(several.stdout, "== sample 1 of 2\nabc äöü abc ä\n"
                                         "== sample 2 of 2\nabc äöü abc ä\n")
        self.assertRegex(several.stderr, r"^flashlab: [\d.]+ tokens a second, .* weights read\n$")
        greedy = ["--checkpoint", folder, "--tokens", "8", "--temperature", "0"]
        by_text = run("generate", *greedy, "--prompt", "abc ").stdout
        prompt = self.path("prompt.txt", b"abc ")
        self.assertEqual(run("generate", *greedy, "--prompt-file", prompt).stdout, by_text)
        piped = subprocess.run([program(), "generate", *greedy, "--prompt-file", "-"],
                               input="abc ", stdout=subprocess.PIPE, text=True, check=True)
        self.assertEqual(piped.stdout, by_text)
        letters = sorted(set("abc äöü "))
        ids = ",".join(str(letters.index(letter)) for letter in "abc ")
        self.assertEqual(run("generate", *greedy, "--prompt-ids", ids).stdout, by_text)
        # A template beside the tokenizer; the end of a turn is not shown.
        chat = ["generate", *greedy, "--chat", "--prompt", "abc"]
        self.refused(chat, "--chat ", "no chat template", "leave --chat out")
        self.path("run/chat_template.jinja", b"{% for m in messages %}{{ m.content }}{% endfor %} ")
        self.assertEqual("abc " + run(*chat).stdout, by_text)
        self.path("run/tokenizer_config.json", '{"eos_token": "ö"}'.encode())
        self.assertEqual("abc " + run(*chat).stdout, by_text.split("ö")[0] + "\n")
        self.path("run/chat_template.jinja", b"{% macro turn() %}{% endmacro %}")
        self.refused(chat, '--chat chat template: got "macro" in line 1')
        # Who may say nothing twice says something new each time.
        noise = ["--size", "tiny", "--random", "--temperature", "0", "--prompt-ids", "7",
                 "--tokens", "24", "--device", "cpu"]
        for more, repeats in ([], True), (["--repetition-penalty", "1e9"], False):
            words = run("generate", *noise, *more).stdout.split()
            self.assertEqual((words[0], len(words)), ("7", 25))
            self.assertEqual(len(set(words)) < 25, repeats, words)
        # Other weights, of the same model.
        noise = run("generate", *greedy, "--prompt", "abc ", "--random")
        self.assertNotEqual(noise.stdout, by_text)
        seeds = [run("generate", "--checkpoint", folder, "--tokens", "30", "--temperature", "2",
                     "--seed", seed).stdout for seed in ("1", "1", "2")]
        self.assertEqual(seeds[0], seeds[1])
        self.assertNotEqual(seeds[0], seeds[2])
        self.refused(["generate", "--checkpoint", folder, "--prompt", "xyz"],
                     "\"x\" at byte 0", "the 7 characters")

    def test_bad_input_is_refused(self):
        run_folder = self.path("run")
        self.train(*TINY, "--steps", "2", "--output", run_folder)
        fresh = ["--output", self.path("fresh")]
        short = self.path("short.txt", b"too short")
        broken = self.path("broken.json", b'{"stepps": 3}')
        binary = self.path("binary.txt", b"\xff\xfe" * 500)
        cases = [
            (["train", "--size", "xl"], ["xl-2025", "xl-2026"]),
            (["train", "--heads", "3"], ["a divisor of the width 128"]),
            (["train", "--text", short, *fresh], ["8 tokens for training", "more than"]),
            (["train", "--text", binary, *fresh], ["no UTF-8", "--tokenizer byte"]),
            (["train", "--text", self.path("absent"), *fresh],
             ["text ", "No such file", "can be read; check"]),
            (["train", "--tokens", self.path("absent"), *fresh], ["tokens ", "No such file"]),
            (["train", "--tokenizer", "absent.json", *fresh], ["tokenizer absent.json: got No"]),
            (["train", "--config", broken, *fresh], ["did you mean steps?"]),
            (["train", "--learning-rate", "fast", *fresh], ["is no number"]),
            (["train", "--checkpoint", "9x", *fresh], ["groups of 4 layers"]),
            (["train", "--output", run_folder], ["got a run already", "--resume"]),
            (["train", "--resume", run_folder, "--batch", "3"], ["--batch stands beside"]),
            (["generate"], ["needs --checkpoint"]),
            (["generate", "--checkpoint", self.folder], ["no checkpoint"]),
            (["generate", "--size", "tiny", "--top-p", "2"], ["--top-p"]),
            (["generate", "--size", "tiny", "--repetition-penalty", "0"], ["is 0; give a number"]),
            (["generate", "--size", "tiny", "--prompt", "1", "--prompt-ids", "2"],
             ["--prompt and --prompt-ids are two prompts"]),
            (["generate", "--size", "tiny", "--prompt-ids", "1,256"],
             ["--prompt-ids 256 is out of range", "0 to 255"]),
            (["generate", "--size", "tiny", "--prompt", "1 Rome"],
             ["--prompt text", '"Rome"', "below 256", "--tokenizer"]),
            (["generate", "--size", "tiny", "--prompt-file", self.path("absent.txt")],
             ["--prompt-file", "No such file"]),
            (["generate", "--size", "tiny", "--prompt-file", self.path("empty.txt", b"")],
             ["--prompt-file is empty"]),
            (["generate", "--size", "tiny", "--chat", "--prompt", "1"],
             ["--chat needs a tokenizer", "--tokenizer FILE"]),
            (["generate", "--size", "tiny", "--chat"], ["--chat needs what the person says"]),
            (["generate", "--size", "tiny", "--samples", "0"], ["--samples 0"]),
            (["generate", "--size", "tiny", "--tokens", "2", "--tokens", "3"], ["given twice"]),
            (["explain", "step", "--size", "medum"], ["did you mean medium?"]),
            (["explain", "step", "--layers", "1000000000"], ["got 1000000000", "at most 4096"]),
            (["explain", "step", "--layers", "4096", "--accumulate", "64"], ["32768 layers"]),
        ]
        for arguments, parts in cases:
            with self.subTest(arguments=arguments):
                self.refused(arguments, *parts)

    def test_damaged_and_foreign_checkpoints(self):
        folder = self.path("run")
        self.train(*TINY, "--steps", "2", "--save-every", "1", "--output", folder)
        weights = os.path.join(folder, "step-2", "model.safetensors")
        self.refused(["train", "--resume", os.path.join(folder, "step-2")],
                     "expected a run's folder; --resume " + folder)
        self.refused(["train", "--resume", self.path("nothing")], "no checkpoint")
        good = read(weights)
        for bad, part in ((good[:100], "a header of"), (good[:-4], "inside the file"),
                          (b"\x08" + b"\0" * 7 + b"[[[[[[[[", "a header that is none"),
                          (b"{}", "8 bytes of header length")):
            with open(weights, "wb") as file:
                file.write(bad)
            self.refused(["train", "--resume", folder], part,
                         "remove " + os.path.join(folder, "step-2") + " to go on from step-1")
        other = self.path("other")
        self.train("--layers", "2", *TINY[2:], "--steps", "1", "--output", other)
        with open(weights, "wb") as file:
            file.write(read(os.path.join(other, "step-1", "model.safetensors")))
        self.refused(["train", "--resume", folder], "another model's file?")

    def test_a_run_is_the_only_one_in_its_folder(self):
        folder = self.path("run")
        child = subprocess.Popen([program(), "train", *TINY, "--steps", "1000000", "--save-every",
                                  "1", "--output", folder], stdout=subprocess.DEVNULL)
        self.addCleanup(child.wait)
        self.addCleanup(child.kill)
        while not self.saved_steps(folder):
            self.assertIsNone(child.poll())
            time.sleep(0.01)
        config = read(os.path.join(folder, "config.json"))
        for arguments in (["--output", folder, *TINY], ["--resume", folder]):
            self.refused(["train", *arguments], f"a run is going on there (pid {child.pid})")
        self.assertEqual(read(os.path.join(folder, "config.json")), config)
        child.terminate()
        self.assertEqual(child.wait(timeout=300), 130)
        steps = max(self.saved_steps(folder))
        with open(os.path.join(folder, "log.jsonl")) as file:
            logged = [json.loads(line)["step"] for line in file if '"loss"' in line]
        self.assertEqual(logged, list(range(1, steps + 1)))

    def test_runs_of_one_second_have_folders_of_their_own(self):
        children = [subprocess.Popen([program(), "train", *TINY, "--steps", "1"], cwd=self.folder,
                                     stdout=subprocess.DEVNULL) for _ in range(4)]
        self.assertEqual([child.wait(timeout=300) for child in children], [0] * 4)
        results = self.path("results")
        self.assertEqual([sorted(self.saved_steps(os.path.join(results, name)))
                          for name in os.listdir(results)], [[1]] * 4)

    def test_a_resumed_run_is_that_of_its_checkpoint(self):
        folder = self.path("run")
        self.train(*TINY, "--steps", "4", "--save-every", "2", "--output", folder)
        file, state = os.path.join(folder, "config.json"), os.path.join(folder, "step-4",
                                                                        "state.json")
        for path, change, parts in (
                (file, lambda json: json["model"].update(heads=4),
                 ["model's heads: got 4, expected 2, by which step-4 was made"]),
                (file, lambda json: json.update(seed=7), ["seed: got 7, expected 1337"]),
                (file, lambda json: json.update(steps=9), ["steps: got 9, expected 4"]),
                (file, lambda json: json.update(learning_rate=0.5), ["expected 0.002"]),
                (state, lambda json: json.update(step=-4), ["got step -4", "to go on from step-2"]),
                (state, lambda json: json.update(step=3), ["got step 3, expected 4"])):
            whole = read(path)
            edited = json.loads(whole)
            change(edited)
            with open(path, "w") as out:
                json.dump(edited, out)
            self.refused(["train", "--resume", folder], *parts)
            with open(path, "wb") as out:
                out.write(whole)
        self.train("--resume", folder)

    def test_a_flipped_bit_is_seen(self):
        folder = self.path("run")
        self.train(*TINY, "--steps", "2", "--save-every", "1", "--output", folder)
        for name in ("model.safetensors", "optimizer.safetensors"):
            path = os.path.join(folder, "step-2", name)
            whole = read(path)
            with open(path, "wb") as out:
                out.write(whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:])
            self.refused(["train", "--resume", folder], "a digest of", "to go on from step-1")
            if name == "model.safetensors":
                self.refused(["generate", "--checkpoint", folder], "a digest of")
            with open(path, "wb") as out:
                out.write(whole)

    def test_the_account_of_memory_is_what_is_held(self):
        shapes = (["--layers", "4", "--width", "512", "--heads", "8"],
                  ["--layers", "4", "--width", "512", "--heads", "8", "--precision", "bf16"],
                  ["--layers", "2", "--width", "768", "--heads", "12", "--precision", "bf16-lean"],
                  ["--layers", "3", "--width", "256", "--heads", "4", "--batch", "16"])
        text = self.path("text.txt", ("to be or not to be, " * 400).encode())
        units = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
        for number, shape in enumerate(shapes):
            out = self.path(f"out-{number}.txt")
            with open(out, "w") as file:
                child = subprocess.Popen(
                    [program(), "train", "--text", text, "--context", "256", "--steps", "1",
                     "--output", self.path(f"run-{number}"), *shape], stdout=file)
                _, status, usage = os.wait4(child.pid, 0)
                child.returncode = os.waitstatus_to_exitcode(status)
            self.assertEqual(status, 0)
            said = re.search(r"on the host ([\d.]+) (\w+): .*, a save .*, this program",
                             read(out).decode())
            told = float(said[1]) * units[said[2]]
            held = 1024 * usage.ru_maxrss
            self.assertLess(abs(told - held) / held, 0.05, (shape, told, held))

    def test_what_does_not_fit_is_told_before_anything_is_made(self):
        huge = ["--size", "10B", "--layers", "500"]
        folder = self.path("huge")
        cases = [["generate", "--size", "10B"]] if self.available_bytes() < 50 << 30 else []
        for arguments in (["train", *huge, "--output", folder], *cases,
                          ["profile", "step", *huge, "--output", folder],
                          ["bench", "precision", *huge, "--output", folder]):
            done = self.refused(arguments, "step: got ", "at most")
            wanted = ("validation, samples and saving take more"
                      if arguments[0] in ("generate", "profile") else "would fit|a smaller model")
            self.assertRegex(done.stderr, wanted)
            self.assertFalse(os.path.exists(folder))
        # Nor does a start that fails for another reason leave one.
        self.refused(["train", "--text", self.path("absent"), "--output",
                      self.path("a/b/run")], "No such file")
        self.assertFalse(os.path.exists(self.path("a")))

    def test_a_diverging_run_says_so(self):
        folder = self.path("run")
        result = run("train", *TINY, "--steps", "200", "--learning-rate", "90", "--warmup-steps",
                     "0", "--weight-decay", "99", "--save-every", "1", "--output", folder)
        self.assertEqual(result.returncode, 1, result.stdout)
        self.assertIn("is no number", result.stderr)
        self.assertTrue(self.saved_steps(folder))


class Precision(Folder):
    def test_the_four_sums_of_the_course(self):
        out = json.loads(run("bench", "accumulate", "--json", "-").stdout)
        self.assertEqual([round(row["sum"], 4) for row in out["sums"][:4]],
                         [10.0001, 9.9531, 10.0021, 10.0021])
        self.assertIn("9.9531", run("bench", "accumulate").stdout)
        # Where the sum is 2048 times the number, an addition is half a last place and rounds away.
        stuck = json.loads(run("bench", "accumulate", "--count", "100k", "--value", "1", "--json",
                               "-").stdout)
        self.assertEqual(stuck["sums"][1]["sum"], 2048)
        self.assertEqual(stuck["sums"][4]["sum"], 256)

    def test_types_of_a_toy_model(self):
        out = run("explain", "precision", "--toy").stdout
        types = [line[30:36].strip() for line in out.splitlines()[1:]]
        self.assertEqual(types, ["fp32", "fp16", "fp16", "fp32", "fp16", "fp32", "fp32"])

    def test_types_of_a_step(self):
        out = run("explain", "precision", "--precision", "bf16", "--attention", "naive").stdout
        rows = {line[4:26].strip(): line[26:].split() for line in out.splitlines()}
        self.assertEqual(rows["parameters"], ["fp32"])
        self.assertEqual(rows["read by forward"], ["bf16"])
        self.assertEqual(rows["row max"], ["bf16", "fp32,", "int64"])
        self.assertEqual(rows["rms norm"], ["bf16", "bf16,", "fp32"])


class ExplainStep(Folder):
    def test_a_signal_ends_a_long_plan(self):
        child = subprocess.Popen([program(), "explain", "step", "--layers", "4096", "--checkpoint",
                                  "1"], stdout=subprocess.DEVNULL)
        self.addCleanup(child.kill)
        caught = 0
        while not caught >> (signal.SIGTERM - 1) & 1:
            with open(f"/proc/{child.pid}/status") as file:
                line = next(each for each in file if each.startswith("SigCgt"))
            caught = int(line.split()[1], 16)
        child.terminate()
        self.assertEqual(child.wait(timeout=300), 130)

    def test_prints_the_peak_and_what_it_fits(self):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        result = run("explain", "step", "--size", "10B", "--context", "2048", "--precision", "bf16")
        self.assertEqual(result.returncode, 0, result.stderr)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)  # processor time, whoever else runs
        self.assertLess(after.ru_utime - before.ru_utime, 30)
        for part in ("12832823808 parameters", "forward", "backward", "optimizer", "0 to 49",
                     "141 GB"):
            self.assertIn(part, result.stdout)

    def test_fit_chooses_a_rung(self):
        whole = json.loads(run("explain", "step", "--size", "small", "--json", "-").stdout)
        less = whole["device_bytes"] * 9 // 10
        out = run("explain", "step", "--size", "small", f"--fit={less}").stdout
        self.assertRegex(out, r"keeps    --checkpoint (norms|mlp)")
        bare = run("explain", "step", "--size", "tiny", "--fit")  # what is left here
        self.assertIn("keeps    everything", bare.stdout, bare.stderr)
        self.refused(["explain", "step", "--size", "small", "--fit=1MB"], "at most 1000000")
        self.refused(["explain", "step", "--size", "small", "--fit=1MB", "--checkpoint", "1"],
                     "leave one of them out")
        self.refused(["explain", "step", "--fit=much"], "amount of memory")

    def test_check_step_against_pytorch(self):
        parity = os.path.join(cli_harness.source_root(), "tests", "goldens", "parity")
        records = ",".join(os.path.join(parity, name) for name in ("course.json", "gpt2.json"))
        done = run("check", "step", "--record", records, "--precision", "fp64,fp32,bf16")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(done.stdout.count("ok   "), 6)
        self.refused(["check", "step"], "train_parity.py")
        self.refused(["check", "step", "--record", "/no/such.json"], "/no/such.json")

    def test_json(self):
        result = run("explain", "step", "--size", "2.7B", "--heads", "16", "--layers", "1",
                     "--context", "2048", "--attention", "naive", "--json", "-")
        step = json.loads(result.stdout)
        self.assertEqual(step["layers"][0]["saved_bytes"], 3651.3125 * 2**20)
        self.assertEqual(sum(step["peak"]["roles"].values()), step["peak"]["bytes"])

    def test_the_list(self):
        result = run("explain", "step", "--size", "tiny", "--operations")
        self.assertIn("layer 3 / attention / qkv", result.stdout)
        self.assertIn("GFLOP", result.stdout)


if __name__ == "__main__":
    cli_harness.main()
