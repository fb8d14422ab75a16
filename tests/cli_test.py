#!/usr/bin/env python3
"""The command line from outside:  tests/cli_test.py FLASHLAB SOURCE_ROOT [unittest arguments]

Every bad input gives its message and its exit code; results keep their form; what was measured is
kept whatever happens.
"""

import json
import os
import pty
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest
import xml.etree.ElementTree as ElementTree

FLASHLAB = ""
ROOT = ""
# Small enough that a whole measurement takes milliseconds.
SMALL = ["--batch", "1", "--heads", "2", "--head-dim", "16", "--seqlen", "64",
         "--repeats", "3", "--warmup", "1"]
BENCH_KEYS = {
    "implementation", "device", "pass", "dtype", "batch", "heads_q", "heads_k", "head_dim",
    "head_dim_v", "seqlen_q", "seqlen_k", "mask", "status", "message", "median_ms", "min_ms",
    "mean_ms", "max_ms", "std_ms", "tflops", "tflops_peak", "roof_share", "gb_per_s", "peak_bytes",
    "workspace_bytes", "memory_before_backward_bytes", "process_peak_bytes", "error_vs_fp64",
    "naive_error_vs_fp64", "error_sample", "seed", "plan"}


def run(*arguments, timeout=120, env=None, cwd=None, stdout=subprocess.PIPE):
    return subprocess.run([FLASHLAB, *arguments], stdout=stdout, stderr=subprocess.PIPE, text=True,
                          timeout=timeout, env=env, cwd=cwd, stdin=subprocess.DEVNULL)


def safetensors(tensors):
    """name -> (shape, little-endian floats)."""
    header, data = {}, b""
    for name, (shape, values) in tensors.items():
        raw = struct.pack(f"<{len(values)}f", *values)
        header[name] = {"dtype": "F32", "shape": shape,
                        "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def attention_file(gradient=True):
    def tensor(heads, seed):
        shape = [1, 12, heads, 8]
        count = 12 * heads * 8
        return shape, [((i * 37 + seed) % 19 - 9) / 7.0 for i in range(count)]
    tensors = {"q": tensor(4, 1), "k": tensor(2, 2), "v": tensor(2, 3)}
    if gradient:
        tensors["do"] = tensor(4, 4)
    return safetensors(tensors)


class Folder(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="flashlab-cli-")
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def path(self, name, contents=None):
        full = os.path.join(self.folder, name)
        if contents is not None:
            with open(full, "wb") as out:
                out.write(contents)
        return full

    def refused(self, arguments, *parts, code=2):
        """Fails with `code`, says every part on stderr, prints no result on stdout."""
        done = run(*arguments)
        self.assertEqual(done.returncode, code, f"{arguments}: {done.stderr}")
        self.assertTrue(done.stderr.startswith("flashlab: "), done.stderr)
        for part in parts:
            self.assertIn(part, done.stderr, f"{arguments}")
        self.assertNotIn("terminate called", done.stderr)
        return done


class BadInput(Folder):
    def test_commands(self):
        self.refused(["bensh"], 'no command "bensh"', "did you mean bench?")
        self.refused(["--frobnicate"], "no flag --frobnicate without a command")
        self.refused(["--seqlen", "4k"], "before the command", "flashlab COMMAND --seqlen")
        for later in "profile train generate report precompile tune monitor cache".split():
            self.refused([later], f"the command {later} is planned")
        nothing = run()
        self.assertEqual(nothing.returncode, 2)
        self.assertIn("Commands", nothing.stderr)

    def test_flags(self):
        self.refused(["bench", "--seqlne", "5"], "no flag --seqlne", "did you mean --seqlen?")
        self.refused(["bench", "--zzzzzzzzzz"], "no flag --zzzzzzzzzz", "bench --help")
        self.refused(["bench", "--rows", "5"], "bench does not take --rows", "bench weighted-sum")
        self.refused(["bench", "--seqlen", "1k", "2k"], 'the word "2k"', "commas")
        self.refused(["bench", "--seqlen", "1k", "--seqlen", "2k"], "given twice",
                     "--seqlen 1k,2k")
        self.refused(["bench", "--seqlen"], "--seqlen", "needs a value")
        self.refused(["bench", "--seqlen", "--batch", "2"], "--seqlen needs a value")
        self.refused(["bench", "--seqlen="], "--seqlen")
        self.refused(["bench", "--check=maybe"], "--check")

    def test_numbers(self):
        self.refused(["bench", "--seqlen", "12x"], '--seqlen "12x" is no whole number', "4k")
        self.refused(["bench", "--nheads", "two"], '--nheads "two" is no whole number')
        self.refused(["bench", "--seqlen", "1k,,2k"], "empty place between its commas")
        self.refused(["bench", "--seqlen", "99999999999999"],
                     "--seqlen 99999999999999 is out of range")
        self.refused(["bench", "--seqlen", "99999999999999999999999"], "out of range")
        self.refused(["bench", "--batch", "9223372036854775807k"], "out of range")
        self.refused(["bench", "--heads", "0"], "--heads 0 is out of range; use 1 to")
        self.refused(["bench", "--head-dim", "0"], "--head-dim 0 is out of range")
        self.refused(["bench", "--batch", "-3"], "--batch -3 is out of range")
        self.refused(["bench", "--seqlen", "1.5"], "no whole number")
        self.refused(["bench", "--repeats", "0"], "--repeats 0 is out of range")
        self.refused(["bench", "--warmup", "-1"], "--warmup -1 is out of range")
        self.refused(["bench", "--threads", "0"], "--threads 0 is out of range")
        self.refused(["bench", "--tile-q", "0"], "--tile-q 0 is out of range")
        self.refused(["bench", "--seed", "-1"], "--seed -1 is out of range")
        self.refused(["bench", "--batch", "1000000000k", "--seqlen", "1000000k"],
                     "do not fit in 64 bits")
        self.refused(["bench", "--batch", "1" + ",2" * 200, "--seqlen", "1" + ",2" * 200],
                     "more than 20000 cases")

    def test_scale(self):
        for value in ("nan", "inf", "-inf", "NaN"):
            self.refused(["bench", "--scale", value], f"--scale {value} is not finite")
        self.refused(["bench", "--scale", "1e99"], "does not fit in a float")
        self.refused(["bench", "--scale", "one"], '--scale "one" is no number')

    def test_heads(self):
        self.refused(["bench", "--heads", "16", "--kv-heads", "6"],
                     "flashlab: --kv-heads 6 does not divide --heads 16; use 1, 2, 4, 8 or 16")
        self.refused(["bench", "--nheads", "4", "--kv-heads", "8"],
                     "--kv-heads 8 does not divide --nheads 4; use 1, 2 or 4")

    def test_causal(self):
        both = self.refused(["bench", "--seqlen", "8", "--seqlen-k", "16", "--causal"],
                            "--causal=top-left", "--causal=bottom-right")
        self.assertIn("16", both.stderr)
        self.refused(["bench", "--causal=diagonal"], '--causal "diagonal" is unknown', "top-left")

    def test_names(self):
        self.refused(["bench", "--implementation", "fa9"], '"fa9" is unknown', "naive", "cpu")
        self.refused(["bench", "--implementation", "cpu,cpu"], "names cpu twice")
        self.refused(["bench", "--preset", "gpt5"], '--preset "gpt5" is unknown', "gpt2-small")
        self.refused(["bench", "--sweep", "all"], '--sweep "all" is unknown', "notebook")
        self.refused(["bench", "--dtype", "fp8"], '--dtype "fp8" is unknown', "bf16")
        self.refused(["bench", "--pass", "sideways"], '"sideways" is unknown', "backward")
        self.refused(["bench", "--cpu-isa", "sse"], '--cpu-isa "sse" is unknown', "avx2")
        self.refused(["bench", "--relative-to", "nobody"], '"nobody" is unknown')
        self.refused(["compare", "--peers", "tensorflow"], '"tensorflow" is unknown', "torch")
        self.refused(["bench", "--no-grad", "--pass", "backward"], "contradicts")
        self.refused(["bench", "--preset", "gpt2-small", "--sweep", "course"], "contradict")
        self.refused(["check", "--case", "no such case"], 'no case matches --case "no such case"')
        self.refused(["completion"], "needs a shell", "bash, zsh or fish")
        self.refused(["completion", "tcsh"], '"tcsh" is unknown')
        self.refused(["completion", "bash", "zsh"], "one shell")

    def test_instruction_set_that_is_not_here(self):
        known = json.loads(run("info", "--json", "-").stdout)["cpu_isas"]
        missing = [isa for isa in ("neon", "avx2", "avx512", "avx512-bf16", "amx")
                   if isa not in known]
        self.assertTrue(missing, "no processor has both NEON and AMX")
        self.refused(["bench", "--cpu-isa", missing[0]], "does not run on this processor", "scalar")

    def test_device(self):
        done = self.refused(["bench", "--device", "cuda"], "The CPU backend works: --device cpu")
        self.assertRegex(done.stderr, "libcuda")
        self.refused(["bench", "--device", "cuda:1"], "The CPU backend works")
        self.refused(["bench", "--device", "cuda:x"], "cuda:", "no whole number")
        self.refused(["bench", "--device", "tpu"], '--device "tpu" is unknown', "cpu, cuda")

    def test_tiles_that_do_not_fit(self):
        self.refused(["bench", *SMALL, "--implementation", "fa2-plain", "--tile-q", "65536",
                      "--tile-k", "65536"], "tile")
        self.refused(["bench", *SMALL, "--implementation", "naive", "--tile-q", "32"], "tile")

    def test_input_files(self):
        good = attention_file()
        bench = ["bench", "--repeats", "2", "--input"]
        self.refused([*bench, self.path("none.safetensors")], "--input", "No such file")
        self.refused([*bench, self.folder], "is a folder")
        self.refused([*bench, self.path("cut.safetensors", good[:-5])], "truncated")
        self.refused([*bench, self.path("empty.npz", b"")], "0 bytes", "a .safetensors or .npz")
        self.refused([*bench, self.path("cut.npz", b"PK\x03\x04abc")], "truncated")
        self.refused([*bench, self.path("long.safetensors",
                                        struct.pack("<Q", 1 << 50) + good[8:])], "header length")
        self.refused([*bench, self.path("text.safetensors", b"hello, I am a text file\n")],
                     "header length")
        two = safetensors({n: ([2, 3], [0.0] * 6) for n in "qkv"})
        self.refused([*bench, self.path("two.safetensors", two)], "2 dimensions", "heads")
        path = self.path("good.safetensors", good)
        self.refused([*bench, path, "--seqlen", "5"], "--seqlen contradicts --input")
        self.refused([*bench, path, "--preset", "gpt2-small"], "--preset contradicts --input")
        forward_only = self.path("forward.safetensors", attention_file(gradient=False))
        self.refused([*bench, forward_only, "--pass", "both"], 'no tensor "do"')

    def test_result_files(self):
        unreadable = self.path("not.json", b"{ this is no json")
        self.refused(["bench", *SMALL, "--baseline", unreadable], "--baseline", "not.json")
        self.refused(["bench", *SMALL, "--baseline", self.path("none.json")], "--baseline")
        self.refused(["bench", *SMALL, "--json", "-", "--csv", "-"], "both ask for stdout")
        self.refused(["bench", *SMALL, "--json", self.path("no/such/folder.json")], "--json")
        self.refused(["bench", *SMALL, "--csv", self.path("no/such/folder.csv")], "--csv")
        self.refused(["bench", *SMALL, "--log", self.path("no/such/folder.md")], "--log")
        file = self.path("file", b"x")
        self.refused(["bench", *SMALL, "--output", file], "--output", "file")
        self.refused(["bench", *SMALL, "--output", file + "/below"], "--output")

    @unittest.skipUnless(hasattr(os, "geteuid") and os.geteuid() != 0, "root may write anywhere")
    def test_folders_without_permission(self):
        locked = self.path("locked")
        os.mkdir(locked, 0o500)
        self.refused(["bench", *SMALL, "--output", locked], "--output")


class Help(Folder):
    COMMANDS = ["info", "check", "bench", "bench weighted-sum", "compare", "explain", "completion"]

    def test_every_command_has_examples(self):
        for command in self.COMMANDS:
            done = run(*command.split(), "--help")
            self.assertEqual(done.returncode, 0, command)
            self.assertIn("Examples", done.stdout)
            self.assertIn("flashlab " + command, done.stdout)
            self.assertEqual(done.stdout, run("help", *command.split()).stdout)
            for line in done.stdout.splitlines():
                self.assertLessEqual(len(line), 110, line)
        overview = run("--help")
        self.assertEqual(overview.returncode, 0)
        for command in self.COMMANDS:
            self.assertIn(command, overview.stdout)
        for part in ("130", "regression" if "regression" in overview.stdout else "baseline"):
            self.assertIn(part, overview.stdout)

    def test_examples_are_accepted(self):
        """Each example's flags are known: its numbers are replaced by an input that is refused."""
        for command in self.COMMANDS:
            text = run(*command.split(), "--help").stdout
            examples = text.split("Examples\n")[1].split("\n\n")[0]
            commands = re.findall(r"^  (flashlab [^#\n]*?)(?:  |$)", examples, re.MULTILINE)
            self.assertTrue(commands, command)
            for example in commands:
                if command == "completion":
                    continue
                words = example.split(">")[0].split()[1:]
                probe = run(*words, "--definitely-no-flag")
                self.assertIn("knows no flag --definitely-no-flag", probe.stderr, example)

    def test_version(self):
        done = run("--version")
        self.assertEqual(done.returncode, 0)
        self.assertRegex(done.stdout, r"^flashlab \d+\.\d+\.\d+ \(\S+\)\n$")

    def test_document_is_the_table(self):
        with open(os.path.join(ROOT, "docs", "command-line.md"), encoding="utf-8") as file:
            self.assertEqual(file.read(), run("--help-markdown").stdout,
                             "write it again: flashlab --help-markdown > docs/command-line.md")

    def test_completion_parses(self):
        script = run("completion", "bash")
        self.assertEqual(script.returncode, 0)
        path = self.path("completion.bash", script.stdout.encode())
        self.assertEqual(subprocess.run(["bash", "-n", path], check=False).returncode, 0)
        for shell in ("zsh", "fish"):
            script = run("completion", shell)
            self.assertEqual(script.returncode, 0)
            path = self.path("completion." + shell, script.stdout.encode())
            if shutil.which(shell):
                self.assertEqual(subprocess.run([shell, "-n", path], check=False).returncode, 0)

    def complete(self, words):
        path = self.path("completion.bash", run("completion", "bash").stdout.encode())
        quoted = " ".join(f"'{word}'" for word in words)
        script = (f"source {path}; COMP_WORDS=({quoted}); COMP_CWORD=$(( ${{#COMP_WORDS[@]}} - 1 ));"
                  " _flashlab; printf '%s\\n' \"${COMPREPLY[@]}\"")
        return subprocess.run(["bash", "-c", script], capture_output=True, text=True,
                              check=True).stdout.split()

    def test_completion_in_bash(self):
        self.assertEqual(self.complete(["flashlab", "comp"]), ["compare", "completion"])
        self.assertIn("--seqlen", self.complete(["flashlab", "bench", "--seq"]))
        self.assertIn("--causal=top-left", self.complete(["flashlab", "bench", "--cau"]))
        self.assertEqual(self.complete(["flashlab", "bench", "--dtype", "bf"]), ["bf16"])
        self.assertEqual(self.complete(["flashlab", "bench", "--dtype", "fp32,bf"]), ["fp32,bf16"])
        self.assertIn("gpt2-small", self.complete(["flashlab", "compare", "--preset", "gpt2"]))
        self.assertEqual(self.complete(["flashlab", "bench", "weighted-sum", "--ro"]), ["--rows"])
        self.assertEqual(self.complete(["flashlab", "completion", "z"]), ["zsh"])


class Results(Folder):
    def bench_json(self, *arguments):
        done = run("bench", *SMALL, *arguments, "--json", "-")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stderr, "", "no progress where stderr is no terminal")
        return json.loads(done.stdout)

    def test_json_schema(self):
        file = self.bench_json("--pass", "both", "--check", "--dtype", "fp32,bf16")
        self.assertEqual(file["schema"], "flashlab.bench/1")
        self.assertIn("bench --batch 1", file["environment"]["command"])
        self.assertEqual(len(file["results"]), 4)
        for result in file["results"]:
            self.assertLessEqual(BENCH_KEYS, set(result))
            self.assertEqual(result["status"], "ok", result["message"])
            self.assertGreater(result["median_ms"], 0)
            self.assertLessEqual(result["min_ms"], result["median_ms"])
            self.assertLessEqual(result["median_ms"], result["max_ms"])
            self.assertGreater(result["tflops"], 0)
            self.assertGreaterEqual(result["tflops_peak"], result["tflops"])
            self.assertGreater(result["roof_share"], 0)
            self.assertLess(result["error_vs_fp64"], 0.2)
            self.assertGreater(result["naive_error_vs_fp64"], 0)
            # q, k, v, o of 64 x 2 x 16 and a row of lse at least.
            size = 4 if result["dtype"] == "fp32" else 2
            self.assertGreaterEqual(result["peak_bytes"], 4 * 64 * 2 * 16 * size + 64 * 2 * 4)
            self.assertEqual((result["seqlen_q"], result["seqlen_k"], result["mask"]),
                             (64, 64, "none"))
            backward = result["pass"] == "backward"
            self.assertEqual(result["memory_before_backward_bytes"] is not None, backward)

    def test_unmeasured_is_null(self):
        file = self.bench_json()
        self.assertIsNone(file["results"][0]["error_vs_fp64"])

    def test_lists_suffixes_and_aliases(self):
        file = self.bench_json()
        self.assertEqual(file["results"][0]["heads_q"], 2)
        done = run("bench", "--batch", "1", "--nheads", "2,4", "--kv-heads", "2", "--headdim", "8",
                   "--head-dim-v", "16", "--seqlen", "16,1k", "--seqlen-k", "32",
                   "--causal=bottom-right", "--repeats", "1", "--warmup", "1", "--json", "-")
        self.assertEqual(done.returncode, 0, done.stderr)
        shapes = [(r["heads_q"], r["heads_k"], r["head_dim"], r["head_dim_v"], r["seqlen_q"],
                   r["seqlen_k"], r["mask"]) for r in json.loads(done.stdout)["results"]]
        self.assertEqual(shapes, [(h, 2, 8, 16, s, 32, "causal-bottom-right")
                                  for h in (2, 4) for s in (16, 1024)])

    def test_bare_causal_takes_no_word(self):
        file = self.bench_json("--causal")
        self.assertEqual(file["results"][0]["mask"], "causal-top-left")
        file = self.bench_json("--causal", "bottom-right")
        self.assertEqual(file["results"][0]["mask"], "causal-bottom-right")

    def test_presets_and_sweeps(self):
        file = self.bench_json("--preset", "gpt2-small")
        self.assertEqual(file["results"][0]["mask"], "causal-top-left")
        self.assertEqual(file["results"][0]["batch"], 1)  # the flag changed it
        file = self.bench_json("--preset", "batch-inference")
        self.assertEqual([r["pass"] for r in file["results"]], ["forward"])
        file = self.bench_json("--sweep", "course")
        # All lengths were replaced by one: equal cases run once, both passes of the sweep.
        self.assertEqual([r["pass"] for r in file["results"]], ["forward", "backward"])

    def test_negative_and_zero_scale(self):
        for scale in ("-0.5", "0"):
            file = self.bench_json("--scale", scale, "--check")
            self.assertEqual(file["results"][0]["status"], "ok")

    def test_table_lines_are_stable(self):
        def lines():
            done = run("bench", *SMALL, "--pass", "both")
            self.assertEqual(done.returncode, 0, done.stderr)
            return done.stdout.split("\n\n")[0].splitlines()
        first, second = lines(), lines()
        self.assertEqual(first[0], second[0])
        self.assertEqual(len(first), 3)
        # Everything but the measured columns is equal, word for word.
        self.assertEqual([line.split()[:12] for line in first],
                         [line.split()[:12] for line in second])
        self.assertEqual({len(line.split()) for line in first[1:]}, {18})
        self.assertNotIn("\x1b", "".join(first))

    def test_out_of_memory_is_a_row(self):
        done = run("bench", "--batch", "1", "--heads", "1", "--seqlen", "64,268435456k",
                   "--repeats", "1", "--json", "-")
        self.assertEqual(done.returncode, 0, done.stderr)
        results = json.loads(done.stdout)["results"]
        self.assertEqual([r["status"] for r in results], ["ok", "oom"])
        self.assertIn("iB", results[1]["message"])
        self.assertIsNone(results[1]["median_ms"])
        alone = run("bench", "--heads", "1", "--seqlen", "268435456k", "--repeats", "1")
        self.assertEqual(alone.returncode, 1, "no case ended ok")
        self.assertIn("oom", alone.stdout)

    def test_unsupported_is_a_row(self):
        done = run("bench", *SMALL, "--dtype", "tf32")
        self.assertEqual(done.returncode, 1)
        self.assertIn("unsupported", done.stdout)

    def test_files(self):
        names = {flag: self.path("out." + flag) for flag in ("json", "csv", "markdown", "latex")}
        flags = [word for flag, path in names.items() for word in ("--" + flag, path)]
        log = self.path("log.md", b"# My log\n")
        done = run("bench", *SMALL, *flags, "--log", log, "--output", self.path("report"))
        self.assertEqual(done.returncode, 0, done.stderr)
        with open(names["json"], encoding="utf-8") as file:
            self.assertEqual(json.load(file)["schema"], "flashlab.bench/1")
        with open(names["csv"], encoding="utf-8") as file:
            self.assertIn("median_ms", file.readline())
        with open(names["markdown"], encoding="utf-8") as file:
            self.assertIn("|", file.read())
        with open(names["latex"], encoding="utf-8") as file:
            self.assertIn("\\toprule", file.read())
        with open(log, encoding="utf-8") as file:
            text = file.read()
        self.assertTrue(text.startswith("# My log\n"))
        self.assertIn("bench", text)
        page = self.path("report/report.html")
        self.assertIn(page, done.stdout)
        ElementTree.parse(page)

    def test_csv_alone_on_stdout(self):
        done = run("bench", *SMALL, "--csv", "-")
        self.assertEqual(done.returncode, 0, done.stderr)
        lines = done.stdout.splitlines()
        self.assertEqual(len(lines), 2)
        self.assertIn("median_ms", lines[0])

    def test_full_disk(self):
        if not os.path.exists("/dev/full"):
            self.skipTest("no /dev/full")
        done = run("bench", *SMALL, "--json", "/dev/full")
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("--json /dev/full", done.stderr)
        self.assertIn("forward", done.stdout, "what was measured is still printed")
        with open("/dev/full", "w", encoding="utf-8") as full:
            done = run("bench", *SMALL, "--json", self.path("kept.json"), stdout=full)
        self.assertEqual(done.returncode, 1)
        self.assertIn("stdout cannot be written", done.stderr)

    def test_reader_that_leaves(self):
        reading, writing = os.pipe()
        os.close(reading)
        with os.fdopen(writing, "w") as pipe:
            done = run("bench", *SMALL, "--json", self.path("kept.json"), stdout=pipe)
        self.assertEqual(done.returncode, 0, done.stderr)
        with open(self.path("kept.json"), encoding="utf-8") as file:
            self.assertEqual(len(json.load(file)["results"]), 1)

    def test_baseline(self):
        saved = self.path("saved.json")
        self.assertEqual(run("bench", *SMALL, "--json", saved).returncode, 0)
        with open(saved, encoding="utf-8") as file:
            results = json.load(file)
        def changed(factor, share):
            for result in results["results"]:
                for key in list(result):
                    if key.endswith("_ms") and result[key] is not None:
                        result[key] *= factor
                result["roof_share"] = result["roof_share"] * share
            return self.path("changed.json", json.dumps(results).encode())
        # As if it had been a thousand times faster, at a thousand times the share.
        done = run("bench", *SMALL, "--baseline", changed(1e-3, 1e3))
        self.assertEqual(done.returncode, 3, done.stdout + done.stderr)
        self.assertIn("slower", done.stdout)
        done = run("bench", *SMALL, "--baseline", changed(1e6, 1e-6))
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("faster", done.stdout)

    def test_input_files(self):
        path = self.path("mine.safetensors", attention_file())
        done = run("bench", "--repeats", "2", "--input", path, "--pass", "both", "--check",
                   "--json", "-")
        self.assertEqual(done.returncode, 0, done.stderr)
        results = json.loads(done.stdout)["results"]
        self.assertEqual([(r["heads_q"], r["heads_k"], r["seqlen_q"], r["status"]) for r in results],
                         [(4, 2, 12, "ok")] * 2)
        check = run("check", "--input", path)
        self.assertEqual(check.returncode, 0, check.stdout + check.stderr)
        self.assertIn("backward", check.stdout)
        other = run("bench", "--repeats", "2", "--input", path, "--dtype", "bf16", "--json", "-")
        self.assertEqual(json.loads(other.stdout)["results"][0]["dtype"], "bf16")


class Commands(Folder):
    def test_info(self):
        done = run("info")
        self.assertEqual(done.returncode, 0, done.stderr)
        for word in ("processor", "memory", "implementations", "cpu", "libcuda"):
            self.assertIn(word, done.stdout)
        data = json.loads(run("info", "--json", "-").stdout)
        self.assertEqual(data["schema"], "flashlab.info/1")
        self.assertEqual(data["implementations"][0], "cpu")
        self.assertIn("scalar", data["cpu_isas"])
        self.assertIsNone(data["environment"]["roof_fp32_gflops"])

    def test_info_roof(self):
        data = json.loads(run("info", "--roof", "--json", "-").stdout)
        for key in ("roof_fp32_gflops", "roof_bf16_gflops", "copy_gb_per_s"):
            self.assertGreater(data["environment"][key], 0)

    def test_explain(self):
        done = run("explain", "--head-dim", "128", "--seqlen", "16k", "--causal", "--pass", "both")
        self.assertEqual(done.returncode, 0, done.stderr)
        for word in ("plan", "kernel", "workspace", "flash_fwd", "flash_bwd"):
            self.assertIn(word, done.stdout)
        memory = run("explain", "--seqlen", "1k", "--batch", "1", "--heads", "8", "--head-dim", "64",
                     "--memory")
        self.assertEqual(memory.returncode, 0, memory.stderr)
        self.assertIn("[1, 1024, 8, 64]", memory.stdout)
        # Nothing is allocated: a case far beyond this machine is explained as well.
        huge = run("explain", "--seqlen", "16777216k", "--memory", "--implementation", "cpu")
        self.assertEqual(huge.returncode, 0, huge.stderr)

    def test_weighted_sum(self):
        done = run("bench", "weighted-sum", "--rows", "64,128", "--dim", "32", "--repeats", "3",
                   "--check", "--json", "-")
        self.assertEqual(done.returncode, 0, done.stderr)
        data = json.loads(done.stdout)
        self.assertEqual(data["schema"], "flashlab.weighted-sum/1")
        self.assertEqual([(r["pass"], r["form"], r["rows"]) for r in data["results"]],
                         [(p, f, n) for n in (64, 128) for p in ("forward", "backward")
                          for f in ("naive", "vector")])
        for result in data["results"]:
            self.assertEqual(result["status"], "ok", result["message"])
            self.assertGreater(result["median_ms"], 0)
            self.assertLess(result["error_vs_fp64"], 1e-3)
        text = run("bench", "weighted-sum", "--rows", "64", "--dim", "32", "--repeats", "3")
        self.assertIn("GB/s", text.stdout)
        self.refused(["bench", "weighted-sum", "--seqlen", "5"], "does not take --seqlen")
        huge = run("bench", "weighted-sum", "--rows", "1000000k", "--dim", "1000000")
        self.assertEqual(huge.returncode, 1)
        self.assertIn("oom", huge.stdout)

    def test_compare(self):
        folder = self.path("report")
        done = run("compare", *SMALL, "--dtype", "fp32,bf16", "--output", folder, "--peers", "torch")
        self.assertEqual(done.returncode, 0, done.stderr)
        for word in ("naive", "fa2-plain", "cpu", "fastest", "least memory", "most accurate",
                     "torch", "report   " + os.path.join(folder, "report.html")):
            self.assertIn(word, done.stdout)
        self.assertNotIn("\x1b", done.stdout)
        with open(os.path.join(folder, "results.json"), encoding="utf-8") as file:
            results = json.load(file)["results"]
        names = {r["implementation"] for r in results if r["status"] == "ok"}
        self.assertLessEqual({"cpu", "naive", "fa2-plain"}, names)
        for result in results:
            if result["status"] == "ok":
                self.assertIsNotNone(result["error_vs_fp64"])
        reason = [r["message"] for r in results if r["implementation"] == "torch"]
        self.assertEqual(len(reason), 4)
        self.assertIn("PyTorch", reason[0])

    def test_compare_makes_a_dated_folder(self):
        done = run("compare", *SMALL, "--pass", "forward", "--dtype", "fp32", cwd=self.folder)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r"report   results/\d{4}-\d\d-\d\dT[-0-9]+Z/report\.html")

    def test_compare_crossover(self):
        done = run("compare", "--batch", "1", "--heads", "1", "--head-dim", "16", "--seqlen",
                   "32,64", "--pass", "forward", "--dtype", "fp32", "--repeats", "2",
                   "--relative-to", "naive", "--output", self.path("report"))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("faster than naive", done.stdout)

    def test_check(self):
        done = run("check", "--quick", "--dtype", "fp32", "--implementation", "fa2-plain", "--json",
                   "-", timeout=300)
        self.assertEqual(done.returncode, 0, done.stderr + done.stdout[-3000:])
        data = json.loads(done.stdout)
        self.assertEqual(data["schema"], "flashlab.check/1")
        self.assertTrue(data["ok"])
        self.assertGreater(data["passed"], 5)
        self.assertTrue(data["ruler"])
        name = data["reports"][0]["case"]
        again = run("check", "--case", name, "--implementation", "fa2-plain")
        self.assertEqual(again.returncode, 0, again.stdout)
        self.assertIn("fp32 fa2-plain", again.stdout)

    def test_links_little(self):
        listed = subprocess.run(["ldd", FLASHLAB], capture_output=True, text=True, check=False)
        if listed.returncode != 0 or "libasan" in listed.stdout or "libtsan" in listed.stdout:
            self.skipTest("not a plain dynamic program")
        names = {line.split()[0].split("/")[-1] for line in listed.stdout.splitlines() if line}
        names = {name for name in names if not name.startswith(("linux-vdso", "ld-linux"))}
        allowed = {"libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1"}
        self.assertLessEqual(names, allowed | ({"libflashlab.so.0.1"} & names))


class Interrupts(Folder):
    def interrupted(self, arguments, wait_for):
        path = self.path("kept.json")
        process = subprocess.Popen([FLASHLAB, *arguments, "--json", path], stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True)
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            try:
                with open(path, encoding="utf-8") as file:
                    if len(json.load(file)["results"]) >= wait_for:
                        break
            except (OSError, ValueError):
                pass
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
        return process.returncode, out, err, path

    def test_results_are_kept(self):
        lengths = ",".join(str(n) for n in range(16, 400))
        code, out, err, path = self.interrupted(
            ["bench", "--batch", "1", "--heads", "1", "--head-dim", "16", "--seqlen", lengths,
             "--repeats", "5"], 2)
        self.assertEqual(code, 130, err)
        self.assertIn("what was measured is kept", err)
        with open(path, encoding="utf-8") as file:
            results = json.load(file)["results"]
        self.assertGreaterEqual(len(results), 2)
        self.assertLess(len(results), 384)
        self.assertTrue(all(r["median_ms"] for r in results))
        self.assertIn("forward", out)

    def test_progress_and_colours_only_on_a_terminal(self):
        def on_terminal(env):
            parent, child = pty.openpty()
            process = subprocess.Popen(
                [FLASHLAB, "compare", *SMALL, "--dtype", "fp32", "--pass", "forward", "--output",
                 self.path("report")], stdout=child, stderr=child, env=env)
            os.close(child)
            text = b""
            while True:
                try:
                    piece = os.read(parent, 65536)
                except OSError:
                    break
                if not piece:
                    break
                text += piece
            os.close(parent)
            self.assertEqual(process.wait(timeout=60), 0, text)
            return text.decode()
        plain = {k: v for k, v in os.environ.items() if k != "NO_COLOR"}
        plain["TERM"] = "xterm"
        coloured = on_terminal(plain)
        self.assertIn("█", coloured)
        self.assertRegex(coloured, "\x1b\\[[0-9;]*m")
        self.assertNotRegex(on_terminal({**plain, "NO_COLOR": "1"}), "\x1b\\[[0-9;]*m")


if __name__ == "__main__":
    FLASHLAB, ROOT = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
