#!/usr/bin/env python3
"""The scripts of bench/ that need no GPU: patches of kernels, records beside their bars."""

import json
import os
import re
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
sys.dont_write_bytecode = True


def run(script, *arguments):
    return subprocess.run([sys.executable, os.path.join(ROOT, "bench", script), *arguments],
                          capture_output=True, text=True, check=False)


class KernelVariants(unittest.TestCase):
    def test_the_patches_in_the_tree_apply(self):
        variants = os.path.join(ROOT, "bench", "variants")
        for name in os.listdir(variants):
            done = run("kernel_variants.py", os.path.join(variants, name), "--dry-run")
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_a_patch_that_does_not_apply_is_named(self):
        with tempfile.TemporaryDirectory() as folder:
            for name, text in (
                    ("cases.json", '{"one": {"flags": [], "variants": ["old", "gone"]}}'),
                    ("old.patch", "--- a/arguments.h\n+++ b/arguments.h\n@@ -1 +1 @@\n-o\n+n\n")):
                with open(os.path.join(folder, name), "w", encoding="utf-8") as stream:
                    stream.write(text)
            done = run("kernel_variants.py", folder, "--dry-run")
            self.assertEqual(done.returncode, 1)
            self.assertIn("old: does not apply", done.stdout)
            self.assertIn("no variant gone", done.stdout)


PROGRAM = """#!/usr/bin/env python3
import json, sys
at = sys.argv.index("--json")
row = {"implementation": "sm90", "pass": "forward", "batch": 1, "median_ms": %s}
with open(sys.argv[at + 1], "w") as stream:
    json.dump({"results": [row], "environment": {"commit": "%s"}}, stream)
"""


class Turns(unittest.TestCase):
    def ran(self, folder, *arguments, old=1.0, new=1.0):
        programs = [os.path.join(folder, name) for name in ("old", "new")]
        for path, time_ms in zip(programs, (old, new)):
            with open(path, "w", encoding="utf-8") as stream:
                stream.write(PROGRAM % (time_ms, os.path.basename(path)))
            os.chmod(path, 0o755)
        return run("turns.py", *programs, *arguments)

    def test_the_ratio_is_of_the_new_program_over_the_old_one(self):
        with tempfile.TemporaryDirectory() as folder:
            record = os.path.join(folder, "turns.json")
            done = self.ran(folder, "--series", "step", "--json", record, old=2.0, new=2.5)
            self.assertEqual(done.returncode, 3, done.stderr)
            with open(record, encoding="utf-8") as stream:
                result = json.load(stream)
            self.assertEqual(result["series"]["step"]["geometric_mean"], 1.25)
            self.assertEqual((result["old"]["commit"], result["new"]["commit"]), ("old", "new"))
            same = self.ran(folder, "--series", "step")
            self.assertEqual(same.returncode, 0, same.stdout)

    def test_a_program_that_fails_is_named(self):
        with tempfile.TemporaryDirectory() as folder:
            done = self.ran(folder, "--series", "step", new="x")
            self.assertEqual(done.returncode, 1)
            self.assertIn("exit code 1", done.stdout)

    def test_bad_series(self):
        done = run("turns.py", "a", "b", "--series", "paper")
        self.assertEqual(done.returncode, 2)
        self.assertIn("--series paper: expected papers,", done.stderr)


STEP = """#!/usr/bin/env python3
import json, sys
where = sys.argv[sys.argv.index("--json") + 1]
if sys.argv[1] == "info":
    print(json.dumps({"environment": {"gpu_memory_bytes": 80 << 30}}))
    sys.exit()
with open(sys.argv[0] + "-order", "a") as stream:
    stream.write("ours ")
row = {"implementation": "flashlab", "status": "ok", "message": "", "median_ms": 2.0,
       "tokens_per_s": 1.0, "peak_bytes": 1}
with open(where, "w") as stream:
    json.dump({"results": [row], "environment": {"commit": "new"}}, stream)
"""
# Python without PyTorch; one whose PyTorch lacks memory; one that times its step.
ENDS = "import sys\nsys.exit('ModuleNotFoundError: no torch')"
ANSWERS = """import json, sys
print(json.dumps({"ready": "torch 2"}), flush=True)
for line in sys.stdin:
    with open(sys.argv[0].replace("peer.py", "flashlab-order"), "a") as stream:
        stream.write("torch ")
    print(json.dumps({"status": "%s", "message": "%s", "ms": [4.0], "peak_bytes": 8}), flush=True)
"""


class Training(unittest.TestCase):
    def rows(self, peer, case="small"):
        """What a run records of a case, ours first, and what it says."""
        with tempfile.TemporaryDirectory() as folder:
            names = {"flashlab": STEP, "peer.py": peer,
                     "python": f"#!/bin/sh\nexec {sys.executable} {folder}/peer.py\n"}
            for name, text in names.items():
                with open(os.path.join(folder, name), "w", encoding="utf-8") as stream:
                    stream.write(text)
                os.chmod(os.path.join(folder, name), 0o755)
            done = run("training.py", os.path.join(folder, "flashlab"), folder, "r", "--parts",
                       "steps", "--cases", case, "--seconds", "60", "--python",
                       os.path.join(folder, "python"))
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            with open(os.path.join(folder, "flashlab-order"), encoding="utf-8") as stream:
                self.order = stream.read().split()
            with open(os.path.join(folder, f"r-step-{case}.json"), encoding="utf-8") as stream:
                return json.load(stream)["results"], done.stdout

    def test_a_peer_that_ends_is_a_row_that_says_why(self):
        rows, said = self.rows(ENDS)
        self.assertEqual([row["status"] for row in rows], ["ok", "error"])
        self.assertEqual(rows[1]["message"],
                         "Python has ended with exit code 1: ModuleNotFoundError: no torch")
        self.assertIsNone(rows[1]["median_ms"])
        self.assertIn("no torch", said)

    def test_a_peer_without_memory_is_a_row_that_says_so(self):
        rows, _ = self.rows(ANSWERS % ("oom", "OutOfMemoryError: 80 GiB"))
        self.assertEqual((rows[1]["status"], rows[1]["message"]),
                         ("oom", "OutOfMemoryError: 80 GiB"))

    def test_a_peer_too_large_for_both_is_timed_before_ours(self):
        for case, order in (("small", ["torch", "torch", "ours", "torch"]),
                            ("gpt2-xl", ["torch", "torch", "torch", "ours"])):
            rows, said = self.rows(ANSWERS % ("ok", ""), case)
            self.assertEqual(self.order, order)
            self.assertEqual((rows[1]["median_ms"], rows[1]["samples"]), (4.0, 2))
            self.assertIn("x 2.00", said)

    def test_what_is_held_together_fits_on_the_device(self):
        with unittest.mock.patch.object(sys, "path", [os.path.join(ROOT, "bench"), *sys.path]):
            import training  # pylint: disable=import-outside-toplevel
        cases = list(training.CASES)
        for memory_gib in (39, 79, 139):
            groups = training.groups_of(cases, memory_gib)
            self.assertEqual(sorted(sum(groups, [])), sorted(cases))
            for group in groups:
                self.assertTrue(len(group) == 1 or training.fit_beside(group, memory_gib))
        self.assertFalse(training.fit_beside(["gpt2-xl"], 79))
        self.assertTrue(training.fit_beside(["gpt2-xl"], 139))


class Grids(unittest.TestCase):
    def test_the_presets_are_those_of_the_program(self):
        absent = {name: unittest.mock.MagicMock()
                  for name in ("torch", "torch.nn", "torch.nn.functional", "torch.nn.attention")}
        with unittest.mock.patch.dict(sys.modules, absent), unittest.mock.patch.object(
                sys, "path", [os.path.join(ROOT, "bench", "peers"), *sys.path]):
            import torch_gpu  # pylint: disable=import-outside-toplevel
        with open(os.path.join(ROOT, "cases/presets.cpp"), encoding="utf-8") as stream:
            listed = re.findall(r'preset\("[\w-]+", (\d+), (\d+), (\d+), (\d+), Causal::k(\w+)',
                                stream.read())
        self.assertGreater(len(listed), 5)
        self.assertEqual(torch_gpu.GRIDS["presets"][0], [
            (int(batch), int(heads), int(seqlen), int(dim), causal != "None")
            for batch, seqlen, heads, dim, causal in listed])


class Bars(unittest.TestCase):
    """Two rows: 2 ms against 3 (flash) and 1 (cuDNN); 2 ms against 2 (cuDNN)."""

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.cudnn = self.record("torch.cudnn", {512: 0.5, 1024: 1.0})
        self.flash = self.record("torch.flash", {512: 1.5})

    def path(self, name):
        return os.path.join(self.folder.name, name)

    def record(self, peer, ratios):
        rows = [{"pass": "forward", "dtype": "bf16", "batch": 1, "heads_q": 8, "seqlen_q": seqlen,
                 "head_dim": 64, "mask": "none", "flashlab_ms": 2.0, "torch_over_flashlab": ratio}
                for seqlen, ratio in ratios.items()]
        with open(self.path(peer), "w", encoding="utf-8") as stream:
            json.dump({"peer": f"PyTorch 2 {peer}, a GPU", "results": rows}, stream)
        return self.path(peer)

    def test_the_best_peer_of_each_row_counts(self):
        done = run("peers/bars.py", self.cudnn, self.flash)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("2 shapes: geometric mean 0.707, least 0.500", done.stdout)
        self.assertIn("S 512, d 64, full: ours 2000.0 us, torch.cudnn 1000.0", done.stdout)
        self.assertNotIn("S 1024", done.stdout)
        done = run("peers/bars.py", self.cudnn, self.flash, "--least", "0.4", "--mean", "0.7")
        self.assertEqual(done.returncode, 0)
        done = run("peers/bars.py", self.cudnn, self.flash, "--least", "0.4", "--mean", "0.8")
        self.assertEqual(done.returncode, 1)

    def test_recorded_figures_follow_cudnns(self):
        with open(self.path("then.csv"), "w", encoding="utf-8") as stream:
            stream.write("peer,pass,dtype,hdim,causal,batch,seqlen,heads,median_ms\n"
                         "cudnn,fwd,bfloat16,64,0,1,1024,8,4.0\n"
                         "fa3,fwd,bfloat16,64,0,1,1024,8,3.0\n"
                         "fa4_graph,fwd,bfloat16,64,0,1,1024,8,0.1\n"
                         "fa3,fwd,bfloat16,64,0,1,512,8,0.1\n")
        done = run("peers/bars.py", self.cudnn, "--recorded", self.path("then.csv"))
        self.assertIn("S 1024, d 64, full: ours 2000.0 us, fa3 then 1500.0", done.stdout)
        self.assertIn("least 0.500", done.stdout)


if __name__ == "__main__":
    unittest.main()
