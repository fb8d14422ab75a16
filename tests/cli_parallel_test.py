#!/usr/bin/env python3
"""Training on several ranks: the bits of one rank, resumed anywhere, and how it ends."""

import json
import os
import platform
import re
import resource
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

from cli_harness import interrupt_once, main, program, run, source_root

# A model whose step takes a millisecond.
SMALL = ["train", "--device", "cpu", "--layers", "2", "--width", "32", "--heads", "2", "--hidden",
         "64", "--context", "32", "--batch", "8", "--warmup-steps", "2", "--evaluate-every", "4",
         "--sample-every", "5", "--dropout", "0.1"]


def launch(ranks, *words, **options):
    return run("launch", "-n", str(ranks), *words, **options)


def log_of(folder):
    """Lines of log.jsonl without their times."""
    with open(f"{folder}/log.jsonl", encoding="utf-8") as file:
        lines = [json.loads(line) for line in file]
    for line in lines:
        line.pop("ms", None)
    return lines


def bytes_of(path):
    with open(path, "rb") as file:
        return file.read()


def wait_for(test, condition):
    end = time.monotonic() + 300
    while not condition():
        test.assertLess(time.monotonic(), end)
        time.sleep(0.02)


def short_text(folder):
    """Flags of a text that becomes tokens at once; the shipped one takes most of a start."""
    with open(f"{folder}/text.txt", "w", encoding="utf-8") as file:
        file.write("".join(chr(97 + i * i * 7 % 61 % 26) for i in range(6000)))
    return ["--text", f"{folder}/text.txt"]


FAKE_PYTHON = '''#!/usr/bin/env python3
import json, sys
assert sys.argv[1] == "-c" and "torch_step" in sys.argv[2]
print(json.dumps({"ready": "torch 9, for rank " + sys.argv[3]}), flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    answer = {"status": "oom", "message": "no memory"}
    if asked["way"] == "ddp":
        answer = {"status": "ok", "step_ms": 1000 + asked["batch"] + asked["context"],
                  "gradients_ms": 900, "peak_bytes": 0}
    print(json.dumps(answer), flush=True)
'''


class Training(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder, True)
        self.text = short_text(self.folder)

    def path(self, name):
        return f"{self.folder}/{name}"

    def train(self, name, ranks, *flags):
        words = [*SMALL, *self.text, "--output", self.path(name), "--steps", "10",
                 "--save-every", "5", *flags]
        got = run(*words) if ranks == 1 else launch(ranks, *words)
        self.assertEqual(got.returncode, 0, got.stderr)
        self.assertNotIn("[rank", got.stderr)
        return got.stdout

    def assert_same_run(self, name, other):
        self.assertEqual(log_of(self.path(name)), log_of(self.path(other)))
        for file in ("model", "optimizer"):
            self.assertEqual(bytes_of(self.path(f"{name}/step-10/{file}.safetensors")),
                             bytes_of(self.path(f"{other}/step-10/{file}.safetensors")), name)

    def test_every_family_is_the_same_on_two_ranks(self):
        for family in ("llama", "mistral", "qwen2", "qwen3", "gemma2"):
            with open(f"{source_root()}/tests/goldens/parity/{family}.json",
                      encoding="utf-8") as file:
                model = dict(json.load(file)["model"], context=32, vocabulary=26)
            config = self.path(f"{family}.json")
            with open(config, "w", encoding="utf-8") as file:
                json.dump({"model": model, "shares": 2, "batch": 4, "warmup_steps": 1, "steps": 3,
                           "sample_every": 0}, file)

            def trained(name, ranks, *flags):
                words = ["train", "--config", config, "--device", "cpu", *self.text,
                         "--output", self.path(name), *flags]
                got = run(*words) if ranks == 1 else launch(ranks, *words)
                self.assertEqual(got.returncode, 0, got.stderr)
                return [bytes_of(self.path(f"{name}/step-3/{file}.safetensors"))
                        for file in ("model", "optimizer")]

            alone = trained(family, 1)
            modes = ("bucket", "zero2", "fsdp") if family in ("llama", "mistral") else ("fsdp",)
            for mode in modes:
                with self.subTest(family=family, mode=mode):
                    self.assertEqual(trained(f"{family}-{mode}", 2, "--parallel", mode), alone)

    def test_two_ranks_write_one_ranks_files(self):
        self.train("one", 1, "--shares", "2")
        for flags in (["--parallel", "naive"], ["--parallel", "overlap"],
                      ["--parallel", "ddp", "--bucket", "4KB"], ["--bucket", "all"],
                      ["--parallel", "zero1"], ["--parallel", "sharded", "--bucket", "4KB"],
                      ["--parallel", "zero2"], ["--parallel", "fsdp"], []):
            name = "-".join(["two", *flags])
            said = self.train(name, 2, *flags)
            self.assert_same_run(name, "one")
            mode = {"ddp": "bucket"}.get(flags[1], flags[1]) if "--parallel" in flags else "bucket"
            self.assertIn(f"2 ranks, {mode}", said)
            self.assertIn("2 shares", said)

    def test_bf16_on_the_wire_is_the_same_in_every_mode(self):
        self.train("exact", 2)
        modes = (["bucket", "--bucket", "4KB"], ["naive"], ["sharded"], ["zero2"], ["fsdp"])
        for mode in modes:
            said = self.train(mode[0], 2, "--wire", "bf16", "--accumulate", "2", "--reduce-every",
                              "micro-batch", "--parallel", *mode)
            self.assertIn("bf16 on the wire", said)
            self.assert_same_run(mode[0], "bucket")
        self.train("rounded", 2, "--wire", "bf16")
        exact, rounded = log_of(self.path("exact")), log_of(self.path("rounded"))
        self.assertNotEqual(exact, rounded)
        for a, b in zip(exact, rounded):
            if "loss" in a:
                self.assertAlmostEqual(a["loss"], b["loss"], 3)
        for mode in ("bucket", "zero1", "fsdp"):
            self.train("lean-" + mode, 2, "--precision", "bf16-lean", "--parallel", mode)
            self.assert_same_run("lean-" + mode, "lean-bucket")
        got = launch(2, *SMALL, "--output", self.path("bad"), "--precision", "bf16-lean",
                     "--shares", "4")
        self.assertEqual(got.returncode, 2)
        self.assertIn("shares: got 4 with bf16-lean", got.stderr)
        got = launch(2, *SMALL, "--output", self.path("bad"), "--wire", "bf16", "--parallel",
                     "zero1")
        self.assertEqual(got.returncode, 2)
        self.assertIn("wire: got bf16 with zero1", got.stderr)

    def test_a_run_goes_on_with_any_number_of_ranks(self):
        flags = ["--shares", "4", "--accumulate", "2", "--precision", "fp64"]
        self.train("by-step", 2, *flags)
        self.train("whole", 2, *flags, "--reduce-every", "micro-batch")
        self.assertNotEqual(log_of(self.path("whole")), log_of(self.path("by-step")))
        for ranks, more in ((1, []), (4, ["--parallel", "zero1"]), (2, ["--parallel", "sharded"]),
                            (4, ["--parallel", "fsdp"]), (2, ["--parallel", "zero2"])):
            name = "-".join(["again", str(ranks), *more])
            shutil.copytree(self.path("whole"), self.path(name))
            shutil.rmtree(self.path(f"{name}/step-10"))
            words = ["train", "--device", "cpu", "--resume", self.path(name), *more]
            got = run(*words) if ranks == 1 else launch(ranks, *words)
            self.assertEqual(got.returncode, 0, got.stderr)
            self.assert_same_run(name, "whole")
        got = launch(3, "train", "--resume", self.path("whole"))
        self.assertEqual(got.returncode, 2)
        self.assertIn("shares: got 4 on 3 ranks", got.stderr)

    def test_what_is_on_the_wire_is_saved_with_the_run(self):
        self.train("whole", 2, "--wire", "bf16", "--parallel", "fsdp")
        shutil.copytree(self.path("whole"), self.path("again"))
        shutil.rmtree(self.path("again/step-10"))
        got = launch(2, "train", "--device", "cpu", "--resume", self.path("again"))
        self.assertEqual(got.returncode, 0, got.stderr)
        self.assertIn("bucket of 23.8 MiB, bf16 on the wire", got.stdout)
        self.assert_same_run("again", "whole")
        got = launch(2, "train", "--resume", self.path("again"), "--wire", "fp32")
        self.assertEqual(got.returncode, 2)
        self.assertIn("--wire stands beside --resume", got.stderr)

    def test_deterministic_bits_depend_on_no_number_of_threads(self):
        # Of a long sequence; several shares have such bits anyway.
        with open(self.path("long.txt"), "w", encoding="utf-8") as file:
            file.write("".join(chr(97 + i * i * 7 % 61 % 26) for i in range(12000)))
        for threads in "12":
            got = run("train", "--device", "cpu", "--layers", "1", "--heads", "1", "--width", "32",
                      "--context", "512", "--batch", "1", "--steps", "3", "--sample-every", "0",
                      "--text", self.path("long.txt"), "--output", self.path(threads),
                      "--deterministic", "--threads", threads)
            self.assertEqual(got.returncode, 0, got.stderr)
        self.assertEqual(*(bytes_of(self.path(f"{threads}/step-3/model.safetensors"))
                           for threads in "12"))
        with open(self.path("1/config.json"), encoding="utf-8") as file:
            self.assertTrue(json.load(file)["deterministic"])

    def test_ranks_killed_at_any_moment(self):
        got = subprocess.run([f"{source_root()}/tools/check_ranks.py", program(), "--kills", "3",
                              "--seed", str(os.getpid())], stdout=subprocess.PIPE, text=True,
                             stderr=subprocess.STDOUT, timeout=600, check=False)
        self.assertEqual(got.returncode, 0, got.stdout)

    def test_a_full_disk_of_one_writer_leaves_the_last_checkpoint(self):
        # A limit on the size of files stands for the disk.
        for rank in (0, 1):
            # Without Python's SIGXFSZ, which it ignores, the signal would end the rank.
            child = self.start_long(f"full-{rank}", "--parallel", "zero2", "--save-every", "5",
                                    restore_signals=False)
            log = self.path(f"full-{rank}/log.jsonl")
            wait_for(self, lambda path=log: os.path.exists(path) and os.path.getsize(path) > 1000)
            with open(f"/proc/{child.pid}/task/{child.pid}/children", encoding="utf-8") as file:
                pid = int(file.read().split()[rank])
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (20000, 20000))
            _, notes = child.communicate(timeout=300)
            self.assertEqual(child.returncode, 1)
            self.assertRegex(notes, rf"^flashlab: rank {rank}: \S+saving-step-\d+/(model|optimizer)"
                                    r"\.safetensors: got File too large, .*\n$")
            left = sorted(os.listdir(self.path(f"full-{rank}")))
            self.assertFalse([name for name in left if name.startswith("saving-")], left)
            saved = [name for name in left if name.startswith("step-")]
            self.assertTrue(saved, left)
            got = run("generate", "--checkpoint", self.path(f"full-{rank}"), "--device", "cpu",
                      "--tokens", "4")
            self.assertEqual(got.returncode, 0, got.stderr)

    def test_a_rank_out_of_memory_is_named_with_what_it_asked_for(self):
        large = ["train", "--device", "cpu", "--layers", "8", "--width", "512", "--heads", "8",
                 "--context", "64", "--batch", "4", "--output", self.path("large"), *self.text]
        command = " ".join([program(), *large])
        got = launch(2, "--", "sh", "-c",
                     f"[ $RANK = 1 ] && ulimit -v 100000; exec {command}")
        self.assertEqual(got.returncode, 1, got.stderr)
        self.assertRegex(got.stderr, r"^flashlab: rank 1: [a-z ]+: got \d+ bytes asked for, .*\n$")
        self.assertFalse(os.path.exists(self.path("large")))

    def test_what_ranks_find_together_is_said_once_and_is_no_ranks_fault(self):
        got = launch(2, *SMALL, *self.text, "--output", self.path("diverged"), "--steps", "40",
                     "--save-every", "5", "--learning-rate", "90", "--max-norm", "0",
                     "--weight-decay", "90")
        self.assertEqual(got.returncode, 1)
        self.assertRegex(got.stderr, r"^flashlab: the loss of step \d+ is no number; .*\n$")
        self.train("run", 2)
        os.remove(self.path("run/step-10/model.safetensors"))
        got = launch(2, "train", "--resume", self.path("run"))
        self.assertEqual(got.returncode, 1)
        self.assertRegex(got.stderr, r"^flashlab: \S+model.safetensors: got No such file .*"
                                     r"remove \S+step-10 to go on from step-5\n$")

    def test_a_damaged_checkpoint_is_named_by_all_ranks_together(self):
        self.train("run", 2)
        for name in ("model", "optimizer"):
            path = self.path(f"run/step-10/{name}.safetensors")
            whole = bytes_of(path)
            for at in (len(whole) // 2, len(whole) - 3):
                with open(path, "wb") as file:
                    file.write(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1:])
                got = launch(2, "train", "--resume", self.path("run"), "--parallel", "fsdp")
                self.assertEqual(got.returncode, 2, got.stderr)
                self.assertRegex(got.stderr, rf"^flashlab: \S+{name}.safetensors: got a digest of "
                                             r".*remove \S+step-10 to go on from step-5\n$")
            with open(path, "wb") as file:
                file.write(whole)

    def test_frozen_parameters_stay_on_one_rank_and_on_several(self):
        freeze = ["--freeze", "layers.0.*,token_embeddings.weight"]
        self.train("one", 1, "--shares", "2", *freeze)
        for mode in ("bucket", "zero1", "zero2", "fsdp"):
            self.train(mode, 2, "--parallel", mode, *freeze)
            self.assert_same_run(mode, "one")
        moments = bytes_of(self.path("one/step-10/optimizer.safetensors"))
        self.assertIn(b"first_moment.layers.1.", moments)
        self.assertNotIn(b"first_moment.layers.0.", moments)
        # The run is another one without them.
        shutil.rmtree(self.path("one/step-10"))
        with open(self.path("one/config.json"), encoding="utf-8") as file:
            config = json.load(file)
        config["freeze"] = []
        with open(self.path("one/config.json"), "w", encoding="utf-8") as file:
            json.dump(config, file)
        got = run("train", "--resume", self.path("one"))
        self.assertEqual(got.returncode, 2)
        self.assertIn("config.json: freeze: got []", got.stderr)
        got = run(*SMALL, "--output", self.path("bad"), "--freeze", "layers.7.*")
        self.assertEqual(got.returncode, 2, got.stderr)
        self.assertIn("freeze: got layers.7.*", got.stderr)

    def test_ranks_that_differ_are_named_before_the_first_step(self):
        for flags, what in (("--seed $((1 + RANK))", "the configuration"),
                            ("--parallel $([ $RANK = 1 ] && echo fsdp || echo bucket)",
                             "--parallel and --bucket"),
                            (f"--text {self.folder}/$RANK.txt", "the configuration")):
            for rank in "01":
                with open(self.path(f"{rank}.txt"), "w", encoding="utf-8") as file:
                    file.write("abcdefgh" * (200 + int(rank)))
            command = " ".join([program(), *SMALL, "--steps", "2", "--output", self.path("differ")])
            got = launch(2, "--", "sh", "-c", f"exec {command} {flags}")
            self.assertEqual(got.returncode, 2, got.stderr)
            self.assertIn(f"rank 1: got {what} with digest", got.stderr)
            self.assertFalse(os.path.exists(self.path("differ")))

    def test_ranks_of_torchrun_are_one_run(self):
        def start(rank):
            variables = {"RANK": rank, "WORLD_SIZE": "2", "LOCAL_RANK": rank,
                         "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "localhost",
                         "TORCHELASTIC_RUN_ID": "none",
                         "MASTER_PORT": str(20000 + os.getpid() % 9999)}
            return subprocess.Popen([program(), *SMALL, *self.text, "--steps", "10",
                                     "--save-every", "5", "--output", self.path("torchrun")],
                                    stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                    env={**os.environ, **variables})
        ranks = [start(rank) for rank in "01"]
        texts = [rank.communicate(timeout=300) for rank in ranks]
        self.assertEqual([rank.returncode for rank in ranks], [0, 0], texts)
        self.assertEqual(texts[1], ("", ""))
        self.train("one", 1, "--shares", "2")
        self.assert_same_run("torchrun", "one")

    def start_long(self, name, *flags, **options):
        child = subprocess.Popen([program(), "launch", "-n", "2", *SMALL, *self.text, "--steps",
                                  "100000", "--output", self.path(name), *flags], text=True,
                                 stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)
        self.addCleanup(child.kill)
        return child

    def test_ctrl_c_saves_once_for_all(self):
        child = self.start_long("stopped")
        interrupt_once(self, child, self.path("stopped/log.jsonl"), '"step":3')
        said, notes = child.communicate(timeout=300)
        self.assertEqual(child.returncode, 130, notes)
        self.assertIn("stopped  after step", said)
        steps = [line["step"] for line in log_of(self.path("stopped")) if "loss" in line]
        self.assertTrue(os.path.isdir(self.path(f"stopped/step-{steps[-1]}")))

    def end_by(self, child, name, rank, sent):
        """Sends a rank of a run a signal; its process and what the launcher then says."""
        log = self.path(f"{name}/log.jsonl")
        wait_for(self, lambda: os.path.exists(log) and os.path.getsize(log) > 1000)
        with open(f"/proc/{child.pid}/task/{child.pid}/children", encoding="utf-8") as file:
            pid = int(file.read().split()[rank])
        os.kill(pid, sent)
        _, notes = child.communicate(timeout=300)
        self.assertEqual(child.returncode, 1)
        return pid, notes

    def test_a_lost_rank_is_named_with_its_step_and_collective(self):
        place = (r"step \d+, [a-z-]+ \d+ \"[^\"]+\": (rank {1} came, rank {0} never did|"
                 r"all ranks had begun it); all ranks were ended\n$")
        for rank in (0, 1):
            child = self.start_long(f"killed-{rank}", "--timeout", "3600")
            pid, notes = self.end_by(child, f"killed-{rank}", rank, signal.SIGKILL)
            self.assertRegex(notes, rf"^flashlab: rank {rank} of 2 \(process {pid} on \S+\) was "
                                    r"ended by signal 9 \(Killed\); "
                                    + place.format(rank, 1 - rank))
        # Long enough for a rank of a busy machine to come while it is not stopped.
        child = self.start_long("late", "--timeout", "5")
        pid, notes = self.end_by(child, "late", 1, signal.SIGSTOP)
        self.assertRegex(notes, rf"^flashlab: rank 1 \(process {pid} on \S+\) did not come "
                                r"within 5 s, it is stopped \(SIGSTOP\); " + place.format(1, 0))

    def test_bad_input(self):
        for words, text in ((["--parallel", "flat"], "--parallel is about several ranks"),
                            (["--bucket", "1MB"], "launch -n 2 train"),
                            (["--shares", "3"], "shares: got 3 of a batch of 8")):
            got = run(*SMALL, "--output", self.path("bad"), *words)
            self.assertEqual(got.returncode, 2, got.stderr)
            self.assertIn(text, got.stderr)
        for words, text in ((["--parallel", "pipeline"], "--parallel \"pipeline\" is unknown"),
                            (["--parallel", "flat", "--bucket", "1MB"], "--bucket beside"),
                            (["--bucket", "0"], "--bucket \"0\""),
                            (["--shares", "1", "--accumulate", "0"], "--accumulate 0"),
                            (["--shares", "16"], "shares: got 16 of a batch of 8"),
                            (["--precision", "bf16-pure"], "bf16-pure")):
            got = launch(2, *SMALL, "--output", self.path("bad"), *words)
            self.assertEqual(got.returncode, 2, got.stderr)
            self.assertIn(text, got.stderr)
            self.assertEqual(got.stderr.count("\n"), 1, got.stderr)
        self.assertFalse(os.path.exists(self.path("bad")))


class Explain(unittest.TestCase):
    def test_a_step_of_several_ranks(self):
        def explained(*flags):
            got = run("explain", "step", "--size", "small", "--context", "128", "--json", "-",
                      *flags)
            self.assertEqual(got.returncode, 0, got.stderr)
            return json.loads(got.stdout)
        one, four = explained("--precision", "fp32"), explained("--parallel", "fsdp", "--ranks",
                                                                "4")
        self.assertIn("4 ranks, fsdp", four["title"])
        for role in ("parameter", "optimizer state"):
            self.assertAlmostEqual(four["peak"]["roles"][role] / one["peak"]["roles"][role], 0.25,
                                   2)
        self.assertGreater(four["peak"]["roles"]["communication"], 0)
        got = run("explain", "step", "--ranks", "4")
        self.assertEqual(got.returncode, 2)
        self.assertIn("--ranks is about --parallel", got.stderr)

    def test_fit_knows_the_mode(self):
        def groups(*flags):
            got = run("explain", "step", "--size", "small", "--batch", "16", "--fit=4GB",
                      "--parallel", *flags)
            self.assertEqual(got.returncode, 0, got.stderr)
            return re.search("keeps +(.*)", got.stdout).group(1)
        self.assertNotEqual(groups("naive"), groups("fsdp"))


class Bench(unittest.TestCase):
    def test_every_mode_is_a_row(self):
        got = launch(2, "bench", "parallel", "--batch", "4", "--repeats", "2", "--warmup", "1",
                     "--json", "-")
        self.assertEqual(got.returncode, 0, got.stderr)
        result = json.loads(got.stdout)
        self.assertEqual((result["ranks"], result["batch"], result["batch_per_rank"]), (2, 4, 2))
        self.assertIn("bench parallel", result["environment"]["command"])
        rows = {row["mode"]: row for row in result["rows"]}
        self.assertEqual(list(rows), ["naive", "flat", "overlap", "bucket", "sharded", "zero1",
                                      "zero2", "fsdp"])
        for row in rows.values():
            self.assertGreater(row["communication_ms"], 0)
            self.assertGreaterEqual(row["exposed_ms"], 0)
            self.assertGreater(row["step_ms"], row["optimizer_ms"])
            # What a rank holds is what was planned, and workspace.
            self.assertEqual(row["held_bytes"], row["predicted_bytes"] + row["bytes"]["scratch"])
            self.assertAlmostEqual(sum(row["bytes"].values()) / row["held_bytes"], 1, delta=0.03)
        whole = rows["bucket"]["bytes"]["optimizer state"]
        for mode in ("sharded", "zero1", "zero2", "fsdp"):
            self.assertAlmostEqual(rows[mode]["bytes"]["optimizer state"] / whole, 0.5, 2)
        whole = rows["bucket"]["bytes"]["parameter"]
        self.assertAlmostEqual(rows["zero2"]["bytes"]["parameter"] / whole, 1, 2)
        self.assertAlmostEqual(rows["fsdp"]["bytes"]["parameter"] / whole, 0.5, 2)
        for mode in ("zero2", "fsdp"):
            self.assertLess(rows[mode]["bytes"]["gradient"],
                            0.6 * rows["flat"]["bytes"]["gradient"])

    def test_a_row_of_every_bucket_size(self):
        got = launch(2, "bench", "parallel", "--batch", "4", "--context", "64", "--repeats", "1",
                     "--warmup", "0", "--parallel", "naive,bucket", "--bucket", "1KB,all",
                     "--json", "-")
        self.assertEqual(got.returncode, 0, got.stderr)
        rows = json.loads(got.stdout)["rows"]
        self.assertEqual([(row["mode"], row.get("bucket_bytes")) for row in rows],
                         [("naive", None), ("bucket", 1000), ("bucket", 2 ** 63 - 1)])

    def test_pytorch_is_rows_behind_the_modes(self):
        with tempfile.TemporaryDirectory() as folder:
            # Stands for Python: answers by the protocol of bench/peers/torch_parallel.py.
            fake = f"{folder}/python"
            with open(fake, "w", encoding="utf-8") as file:
                file.write(FAKE_PYTHON)
            os.chmod(fake, 0o755)
            got = launch(2, "bench", "parallel", "--batch", "4", "--context", "64", "--repeats",
                         "2", "--warmup", "1", "--parallel", "naive,bucket,fsdp", "--peers",
                         "torch", "--python", fake, "--json", "-")
            self.assertEqual(got.returncode, 0, got.stderr)
            result = json.loads(got.stdout)
            self.assertEqual(result["torch"], "torch 9, for rank cpu")
            rows = {row["mode"]: row for row in result["rows"]}
            self.assertEqual(list(rows), ["naive", "bucket", "fsdp", "torch.ddp", "torch.fsdp2"])
            ddp = rows["torch.ddp"]
            self.assertEqual(ddp["step_ms"], 1000 + 2 + 64)  # a rank's batch, the context
            self.assertAlmostEqual(ddp["tokens_per_s"], 4 * 64 / 1.066)
            self.assertAlmostEqual(ddp["tokens_per_s_of_ours"], 1066 / rows["bucket"]["step_ms"])
            self.assertIn("no memory", rows["torch.fsdp2"]["error"])
            got = launch(2, "bench", "parallel", "--peers", "torch", "--python", "/nowhere/python")
            self.assertEqual(got.returncode, 2)
            self.assertIn("/nowhere/python cannot be started", got.stderr)
        got = launch(2, "bench", "parallel", "--parallel", "naive,zero2", "--peers", "torch")
        self.assertEqual(got.returncode, 2)
        self.assertIn("--peers torch has no effect beside --parallel naive,zero2", got.stderr)
        got = launch(2, "bench", "parallel", "--python", "python3")
        self.assertEqual(got.returncode, 2)
        self.assertIn("--python has no effect without peers", got.stderr)

    def test_a_step_of_ranks_is_a_row_of_bench_step(self):
        got = launch(2, "bench", "step", "--parallel", "fsdp", "--repeats", "2", "--warmup", "1",
                     "--json", "-")
        self.assertEqual(got.returncode, 0, got.stderr)
        self.assertNotIn("[rank 1]", got.stderr)
        rows = json.loads(got.stdout)["results"]
        self.assertEqual([row["pass"] for row in rows], ["forward", "forward+backward", "step"])
        self.assertTrue(all("fsdp=2" in json.dumps(row) for row in rows), rows)
        got = run("bench", "step", "--parallel", "fsdp")
        self.assertEqual(got.returncode, 2)
        self.assertIn("--parallel is about several ranks", got.stderr)

    def test_it_needs_ranks(self):
        got = run("bench", "parallel")
        self.assertEqual(got.returncode, 2)
        self.assertIn("flashlab launch -n 2 bench parallel", got.stderr)


class Check(unittest.TestCase):
    def test_ranks_give_one_ranks_bits(self):
        for ranks in (2, 3):
            got = launch(ranks, "check", "parallel", "--quick")
            self.assertEqual(got.returncode, 0, got.stdout + got.stderr)
            self.assertEqual(len(re.findall("^equal  ", got.stdout, re.M)), 32)
            self.assertIn("32 of 32 give the bits of one rank", got.stdout)

    @unittest.skipUnless(platform.machine() == "x86_64", "OpenBLAS's kernels of old processors")
    def test_a_rank_that_multiplies_otherwise_is_found(self):
        script = (f"if [ $RANK = 1 ]; then export OPENBLAS_CORETYPE=Nehalem; fi; "
                  f"exec {program()} check parallel --quick")
        got = launch(2, "--", "sh", "-c", script)
        self.assertEqual(got.returncode, 4, got.stdout + got.stderr)
        self.assertRegex(got.stdout, r"WRONG  course · fp32 .*\n +the .* on 2 ranks, .* on one\n")

    def test_it_needs_ranks(self):
        got = run("check", "parallel")
        self.assertEqual(got.returncode, 2)
        self.assertIn("flashlab launch -n 2 check parallel", got.stderr)


if __name__ == "__main__":
    main()
