#!/usr/bin/env python3
"""Every bad input gives its message and its exit code."""

import json
import os
import struct
import unittest

import cli_harness
from cli_harness import SMALL, Folder, attention_file, run, safetensors


class BadInput(Folder):
    def test_commands(self):
        self.assertNotIn("did you mean", self.refused(["bench", "--dtype", "fp8"],
                                                      '"fp8" is unknown').stderr)
        self.refused(["bensh"], 'no command "bensh"', "did you mean bench?")
        for words in (["profile"], ["profile", "--help"], ["profile", "--seqlen", "5"]):
            self.refused(words, "profile takes a second word",
                         "flashlab profile attention or flashlab profile step")
        self.refused(["--frobnicate"], "no flag --frobnicate without a command")
        self.refused(["--seqlen", "4k"], "before the command", "flashlab COMMAND --seqlen")
        self.refused(["report"], "the command report is planned")
        nothing = run()
        self.assertEqual(nothing.returncode, 2)
        self.assertIn("Commands", nothing.stderr)

    def test_flags(self):
        self.refused(["bench", "--seqlne", "5"], "no flag --seqlne", "did you mean --seqlen?")
        self.refused(["bench", "--zzzzzzzzzz"], "no flag --zzzzzzzzzz", "bench --help")
        self.refused(["bench", "--rows", "5"], "bench does not take --rows", "bench weighted-sum")
        self.refused(["bench", "--seqlen", "1k", "2k"], 'the word "2k"', "commas")
        self.refused(["bench", "stpe"], 'the word "stpe"', "did you mean bench step?")
        self.refused(["explain", "precisoin"], "did you mean explain precision?")
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

    def test_lengths(self):
        self.refused(["bench", "--lengths", "letters"],
                     "documents, one-long, chat, half, equal or any", "8x2k+1000x0")
        for text in ("chat:0", "chat:x", "4x", "4+"):
            self.refused(["bench", "--lengths", text], "--lengths")
        self.refused(["bench", "--lengths", "chat", "--batch", "3"],
                     "--batch contradicts --lengths")
        self.refused(["bench", "--lengths", "4+4", "--lengths-k", "3x4"],
                     "a list of 2 such as 2x8k")
        self.refused(["bench", "--lengths", "4+4", "--lengths-k", "8+9", "--causal"],
                     "--causal=bottom-right", "--lengths-k gives keys lengths of their own")
        self.refused(["bench", "--lengths-k", "chat", "--seqlen-k", "9"],
                     "--seqlen-k contradicts --lengths-k")
        self.refused(["check", "--seed", "3"], "--seed has no effect", "--lengths chat")
        for given in ([], ["--lengths", "4k+63x1"]):
            self.refused(["explain", "--seed", "3", *given], "--seed has no effect",
                         "--lengths chat")
        self.refused(["check", "--lengths", "4+4", "--case", "bf16"],
                     "--case chooses from the list and contradicts a problem of your own")

    def test_caches(self):
        self.refused(["bench", "--page-size", "16"], "give --cache-length N")
        self.refused(["bench", "--queries", "2"], "give --cache-length N")
        self.refused(["bench", "--cache-length", "64", "--page-size", "0"], "--page-size")
        self.refused(["bench", "--cache-length", "64", "--seqlen", "8"],
                     "--seqlen contradicts --cache-length")
        self.refused(["bench", "--cache-length", "64", "--pass", "backward"],
                     "--cache-length has no backward pass")
        self.refused(["compare", "--sweep", "decode", "--seqlen", "512", "--device", "cpu"],
                     "--seqlen contradicts the lengths of --sweep decode")
        self.refused(["bench", "--lengths", "64x1", "--cache-length", "2048k"],
                     "for each of 64 sequences is more than 67108864 keys")
        self.refused(["bench", "--batch", "1000000000", "--cache-length", "1", "--heads", "1",
                      "--head-dim", "1"], "more caches than one call takes")
        self.refused(["explain", "--batch", "1000000", "--seqlen", "1", "--lengths-k", "any",
                      "--heads", "65536", "--head-dim", "65536"], "do not fit in 64 bits")
        self.refused(["bench", "--batch", "2", "--lengths-k", "9+80", "--cache-length", "64"],
                     "80 keys in one sequence and --cache-length room for 64")

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

    def test_flags_without_effect(self):
        config = self.path("run.json", b'{"precision": "fp32", "tokenizer": "byte"}')
        shard, dry = self.path("a.bin", b""), ["profile", "step", "--dry-run"]
        idle = {
            "--loss-scale": [["train", "--loss-scale", "8"],
                             ["train", "--config", config, "--loss-scale", "none"],
                             ["train", "--precision", "bf16", "--loss-scale", "dynamic"],
                             ["bench", "precision", "--precision", "fp32,bf16", "--loss-scale",
                              "8"]],
            "--vocabulary": [["train", "--vocabulary", "300"],
                             ["train", "--config", config, "--vocabulary", "300"]],
            "--tokenizer": [["train", "--tokens", shard, "--tokenizer", "bpe"]],
            "--top-k": [["generate", "--size", "tiny", "--temperature", "0", "--top-k", "3"]],
            "--top-p": [["generate", "--size", "tiny", "--temperature", "0.0", "--top-p", "0.5"]],
            "--seed": [["generate", "--checkpoint", "x", "--temperature", "0", "--seed", "3"],
                       [*dry, "--seed", "1"],
                       ["bench", "--input", "x.npz", "--seed", "2"],
                       ["bench", "--input", "x.npz", "--seed", "2", "--dropout", "0.1",
                        "--dropout-seed", "3"]],
            "--checkpoint": [["explain", "step", "--mode", "forward", "--checkpoint", "1"],
                             ["bench", "step", "--mode", "forward", "--checkpoint", "1"]],
            "--fit": [["profile", "step", "--mode", "forward", "--fit"]],
            "--size": [["explain", "precision", "--toy", "--size", "small"]],
            "--steps": [[*dry, "--steps", "9"]],
            "--json": [[*dry, "--json", self.path("none.json")]],
            "--python": [["bench", "step", "--python", "python3"]],
            "--cpu-isa": [[command, "--device", "cuda:0", "--cpu-isa", "scalar"]
                          for command in ("bench", "compare", "explain")],
            "--dropout-seed": [["bench", "--dropout-seed", "3"],
                               ["explain", "--dropout", "0", "--dropout-seed", "3"]],
        }
        for flag, commands in idle.items():
            for arguments in commands:
                with self.subTest(arguments=arguments):
                    self.refused(arguments, flag + " has no effect", "leave it out")

    def test_instruction_set_that_is_not_here(self):
        known = json.loads(run("info", "--json", "-").stdout)["cpu_isas"]
        missing = [isa for isa in ("neon", "avx2", "avx512", "avx512-bf16", "amx")
                   if isa not in known]
        self.assertTrue(missing, "no processor has both NEON and AMX")
        self.refused(["bench", "--cpu-isa", missing[0]], "does not run on this processor", "scalar")

    def test_device(self):
        done = self.refused(["bench", "--device", "cuda"], "The CPU backend works: --device cpu")
        self.assertRegex(done.stderr, "no CUDA device: (libcuda|cuInit|CUDA driver)")
        self.refused(["bench", "--device", "cuda:1"], "The CPU backend works")
        self.refused(["bench", "--device", "cuda:x"], "cuda:", "no whole number")
        self.refused(["check", "--implementation", "fa2-mma"], "does not run on cpu", "--device")
        self.refused(["bench", "--device", "tpu"], '--device "tpu" is unknown', "cpu, cuda")

    def test_tiles_that_do_not_fit(self):
        self.refused(["bench", *SMALL, "--implementation", "fa2-plain", "--tile-q", "65536",
                      "--tile-k", "65536"], "tile")
        self.refused(["bench", *SMALL, "--implementation", "naive", "--tile-q", "32"], "tile")

    def test_input_files(self):
        good = attention_file()
        bench = ["bench", "--repeats", "2", "--input"]
        self.refused([*bench, self.path("none.safetensors")], "--input", "got No such file",
                     "a .safetensors or .npz file that can be read; check its name")
        self.refused([*bench, self.folder], "got a folder")
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
        for name in ("mask", "attn_mask"):
            masked = self.path("masked.safetensors", safetensors(
                {**{tensor: ((1, 2, 1, 4), [1.0] * 8) for tensor in "qkv"},
                 name: ((1, 1, 2, 2), [0.0] * 4)}))
            for command in ("bench", "check"):
                self.refused([command, "--input", masked], f" {name}: got a tensor", "--causal")
        huge = self.path("huge.safetensors", safetensors(
            {name: ((1, 2, 1, 4), [1e38] * 8) for name in "qkv"}))
        for command in ("bench", "check"):
            self.refused([command, "--input", huge], "beyond fp32", "scale the values down")
        forward_only = self.path("forward.safetensors", attention_file(gradient=False))
        self.refused([*bench, forward_only, "--pass", "both"], 'no tensor "do"')

    def test_deeply_nested_files(self):
        deep = b"[" * 80_000 + b"]" * 80_000
        header = b'{"q": {"dtype": "F32", "shape": [1], "data_offsets": ' + deep + b"}}"
        tensors = self.path("deep.safetensors", struct.pack("<Q", len(header)) + header)
        results = self.path("deep.json", b'{"schema": ' + deep + b"}")
        for command in ("bench", "check"):
            self.refused([command, "--input", tensors], "nested over 64 levels")
        for command in ("bench", "compare"):
            self.refused([command, *SMALL, "--baseline", results], "nested over 64 levels")

    def test_result_files(self):
        unreadable = self.path("not.json", b"{ this is no json")
        self.refused(["bench", *SMALL, "--baseline", unreadable], "--baseline", "not.json")
        self.refused(["bench", *SMALL, "--baseline", self.path("none.json")], "--baseline")
        self.refused(["bench", *SMALL, "--json", "-", "--csv", "-"], "both ask for stdout")
        self.refused(["bench", *SMALL, "--json", self.path("no/such/folder.json")], "--json")
        self.refused(["bench", *SMALL, "--csv", self.path("no/such/folder.csv")], "--csv")
        self.refused(["bench", *SMALL, "--log", self.path("no/such/folder.md")], "--log")
        # Told before anything is measured, not after.
        self.refused(["bench", *SMALL, "--json", self.path("")], "--json", "is a folder")
        self.refused(["bench", *SMALL, "--log", self.path("")], "--log", "is a folder")
        same = self.path("same.json")
        self.refused(["bench", *SMALL, "--json", same, "--csv", same], "--json and --csv both")
        self.refused(["bench", *SMALL, "--implementation", "cpu", "--relative-to", "naive"],
                     "--relative-to naive is not among what will be measured: cpu")
        file = self.path("file", b"x")
        self.refused(["bench", *SMALL, "--output", file], "--output", "file")
        self.refused(["bench", *SMALL, "--output", file + "/below"], "--output")

    @unittest.skipUnless(hasattr(os, "geteuid") and os.geteuid() != 0, "root may write anywhere")
    def test_folders_without_permission(self):
        locked = self.path("locked")
        os.mkdir(locked, 0o500)
        self.refused(["bench", *SMALL, "--output", locked], "--output")


if __name__ == "__main__":
    cli_harness.main()
