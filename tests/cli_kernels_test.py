#!/usr/bin/env python3
"""precompile and cache; and what is said where a driver or NVRTC is missing or of no use."""

import json
import os
import pty
import shutil
import stat
import subprocess
import tempfile
import unittest

import cli_harness
from cli_harness import Folder, program, run

def environment(**changes):
    out = {**os.environ, **changes}
    return {name: value for name, value in out.items() if value is not None}


class Kernels(Folder):
    def test_precompile_wants_a_folder_and_an_architecture(self):
        self.refused(["precompile", "--arch", "sm_80"], "--output")
        self.refused(["precompile", "--arch", "sm_12", "--output", self.path("k")], "sm_12",
                     "sm_90a")
        self.refused(["precompile", "--arch", "sm_90,sm_90a", "--output", self.path("k")], "twice")
        self.refused(["precompile", "--arch", "sm_80", "--selection", "some", "--output",
                      self.path("k")], "representative")
        done = run("precompile", "--output", self.path("k"), env=environment(
            LD_LIBRARY_PATH=os.path.join(os.path.dirname(cli_harness.program()), "tests",
                                         "fake_driver"), FAKE_CUDA="none"))
        self.assertEqual(done.returncode, 2)
        self.assertIn("--arch", done.stderr)

    def test_precompile_without_a_compiler(self):
        done = run("precompile", "--arch", "sm_80", "--output", self.path("k"),
                   env=environment(FLASHLAB_NVRTC="/nowhere/libnvrtc.so.13"))
        self.assertEqual(done.returncode, 2, done.stderr)
        for part in ("NVRTC", "/nowhere/libnvrtc.so.13", "pip install nvidia-cuda-nvrtc"):
            self.assertIn(part, done.stderr)

    def test_precompile_into_a_folder_that_cannot_be_used(self):
        file = self.path("file", b"x")
        self.refused(["precompile", "--arch", "sm_80", "--output", file], "a file", code=1)
        shared = self.path("shared")
        os.mkdir(shared)
        os.chmod(shared, 0o777)
        self.refused(["precompile", "--arch", "sm_80", "--output", shared], "chmod go-w", code=1)

    def test_precompile_for_a_file_refuses_what_it_does_not_know(self):
        def refused(text, *parts):
            file = self.path("problem.json", text.encode())
            self.refused(["precompile", "--arch", "sm_90a", "--for", file, "--output",
                          self.path("k")], "--for", *parts)
        refused("[" * 100000, "nested too deeply")
        refused("7", "no JSON object or list")
        refused("{}", "at least one problem")
        refused("[]", "at least one problem")
        refused('{"head_dim": 64, "dtyp": "bf16"}', "dtyp", "no such member")
        refused('{"head_dim": 64, "dtype": "fp8"}', "fp8", "one of bf16, fp16, fp32, tf32")
        refused('{"head_dim": "64"}', "a whole number")
        refused('[{"head_dim": 64}, 3]', "no object")
        self.refused(["precompile", "--arch", "sm_90a", "--for", self.path("none.json"),
                      "--output", self.path("k")], "none.json")
        file = self.path("fine.json", b'{"head_dim": 64}')
        self.refused(["precompile", "--arch", "sm_90a", "--for", file, "--selection", "all",
                      "--output", self.path("k")], "--for and --selection")

    def test_precompile_for_a_problem_fills_a_folder_once_with_its_kernels_alone(self):
        file = self.path("problem.json", b'{"head_dim": 64, "dtype": "fp16", "heads": 4}')
        folder = self.path("kernels")
        command = ["precompile", "--arch", "sm_80", "--for", file, "--output", folder, "--json",
                   "-"]
        done = run(*command, timeout=600)
        if done.returncode == 2 and "NVRTC" in done.stderr and os.environ.get("CI") != "true":
            self.skipTest(done.stderr.strip())
        self.assertEqual(done.returncode, 0, done.stderr)
        first = json.loads(done.stdout)
        self.assertEqual(first["schema"], "flashlab.kernels/1")
        self.assertTrue(first["kernels"])
        for kernel in first["kernels"]:
            self.assertEqual(kernel["architecture"], "sm_80")
            self.assertIsNone(kernel["error"], kernel["kernel"])
            self.assertGreater(kernel["registers"], 0)
        planned = [k for k in first["kernels"] if k["implementation"] not in ("merge", "append")]
        self.assertEqual({k["element"] for k in planned}, {"fp16"})
        self.assertEqual({k["head_dim"] for k in planned}, {64})
        self.assertEqual({k["pass"] for k in planned}, {"forward", "backward"})
        # Implementations share kernels, and the entries of one source share an image.
        compiled = [k for k in first["kernels"] if k["compile_seconds"] > 0]
        entries = [name for name in os.listdir(folder) if name.endswith(".kernel")]
        self.assertLessEqual(len(entries), len(compiled))
        self.assertGreaterEqual(len(entries), len({k["source"] for k in compiled}))
        self.assertTrue(os.stat(os.path.join(folder, entries[0])).st_mode & stat.S_IROTH)
        again = json.loads(run(*command, timeout=600).stdout)
        self.assertEqual([k["compile_seconds"] for k in again["kernels"]],
                         [0] * len(first["kernels"]))

    def test_precompile_tells_of_every_kernel_that_fails(self):
        # cuda_kernels_test compiles the same list by the real compiler.
        fake = os.path.join(os.path.dirname(program()), "tests", "fake_driver", "libcuda.so.1")
        if not os.path.exists(fake):
            self.skipTest("this build has no stand-in for the compiler")
        path = self.path("list.json")
        done = run("precompile", "--arch", "sm_80", "--selection", "smoke", "--output",
                   self.path("kernels"), "--json", path, env=environment(FLASHLAB_NVRTC=fake))
        self.assertEqual(done.returncode, 1, done.stderr)
        with open(path, encoding="utf-8") as stream:
            kernels = json.load(stream)["kernels"]
        self.assertGreater(len(kernels), 50)
        for kernel in kernels:
            self.assertIn("ptxas -v's report", kernel["error"])
            self.assertIn(f"{kernel['kernel']} does not compile for sm_80", done.stderr)
        self.assertIn(f"{len(kernels)} failed", done.stdout)

    def test_a_long_list_is_told_of_before_it_is_compiled(self):
        process = subprocess.Popen([program(), "precompile", "--arch", "sm_90a", "--output",
                                    self.path("kernels")], stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True)
        first = process.stdout.readline()
        process.kill()
        text = process.communicate(timeout=300)[1]
        if not first and "NVRTC" in text and os.environ.get("CI") != "true":
            self.skipTest(text.strip())
        self.assertRegex(first, r"^\d{3,} kernels on \d+ threads?: about \d+ (s|min)")

    def test_cache_lists_and_clears(self):
        folder = self.path("cache")
        here = environment(FLASHLAB_CACHE=folder)
        empty = run("cache", "--list", env=here)
        self.assertEqual(empty.returncode, 0, empty.stderr)
        self.assertIn("0 kernels", empty.stdout)
        self.assertIn(folder, empty.stdout)
        os.mkdir(folder, 0o700)
        self.path("cache/flash_fwd-sm_80-abc.kernel", b"x" * 2048)
        self.path("cache/notes.txt", b"stays")
        self.assertIn("flash_fwd-sm_80-abc", run("cache", env=here).stdout)
        done = run("cache", "--clear", env=here)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("removed 1 kernels", done.stdout)
        self.assertEqual(os.listdir(folder), ["notes.txt"])
        self.refused(["cache", "--list", "--clear"], "exclude each other")

    def test_what_came_with_the_program_is_found_where_it_lies(self):
        os.makedirs(self.path("moved/share/flashlab/kernels"))
        os.mkdir(self.path("moved/bin"))
        self.path("moved/share/flashlab/kernels/flash_fwd-sm_80-abc.kernel", b"x")
        os.symlink(self.path("moved/bin/flashlab"), self.path("flashlab"))
        shutil.copy(cli_harness.program(), self.path("moved/bin/flashlab"))
        here = environment(FLASHLAB_CACHE=self.path("cache"), PATH=self.folder)
        for name in (self.path("moved/bin/flashlab"), "flashlab"):
            done = subprocess.run([name, "cache"], env=here, capture_output=True, text=True,
                                  check=True)
            self.assertIn("1 kernels came with FlashLab in " +
                          os.path.realpath(self.path("moved/share/flashlab/kernels")), done.stdout)

    def test_a_long_compilation_says_so_on_a_terminal_only(self):
        fake = os.path.join(os.path.dirname(cli_harness.program()), "tests", "fake_driver")
        if not os.path.isdir(fake):
            self.skipTest("this build has no stand-in for the driver")
        here = environment(LD_LIBRARY_PATH=fake, FAKE_CUDA="gpu", FAKE_MEMORY="1",
                           FAKE_NVRTC_MS="700", FLASHLAB_CACHE=self.path("cache"),
                           FLASHLAB_NVRTC=os.path.join(fake, "libcuda.so.1"), TERM="dumb")
        command = [cli_harness.program(), "bench", "--device", "cuda", "--dtype", "bf16",
                   "--head-dim", "64", "--seqlen", "128", "--pass", "forward"]
        words = b"compiling kernels for this GPU"
        try:
            parent, child = pty.openpty()
        except OSError as error:
            self.skipTest(f"no terminal to be had here: {error}")
        subprocess.run(command, env=here, stdout=subprocess.DEVNULL, stderr=child, check=False)
        os.close(child)
        told = os.read(parent, 65536)
        os.close(parent)
        self.assertEqual(told.count(words), 1, told)
        shutil.rmtree(self.path("cache"))
        piped = subprocess.run(command, env=here, capture_output=True, check=False)
        self.assertNotIn(words, piped.stdout + piped.stderr)
        self.assertTrue(os.listdir(self.path("cache")), "nothing was compiled")

    def test_cache_says_why_a_folder_is_refused(self):
        folder = self.path("cache")
        os.mkdir(folder)
        self.path("cache/flash_fwd-sm_80-abc.kernel", b"x")
        os.chmod(folder, 0o777)
        here = environment(FLASHLAB_CACHE=folder)
        done = run("cache", "--list", env=here)
        self.assertEqual(done.returncode, 1)
        self.assertIn("others may write", done.stderr)
        self.assertIn("chmod go-w", done.stderr)
        self.assertEqual(run("cache", "--clear", env=here).returncode, 1)
        os.chmod(folder, 0o700)
        if os.geteuid() == 0:
            os.chown(folder, 65534, 65534)
            self.assertIn("user 65534", run("cache", "--list", env=here).stderr)
        homeless = run("cache", env=environment(FLASHLAB_CACHE=None, XDG_CACHE_HOME=None,
                                                HOME=None))
        self.assertEqual(homeless.returncode, 1)
        self.assertIn("FLASHLAB_CACHE", homeless.stderr)


class Drivers(unittest.TestCase):
    """Against a libcuda.so.1 that is made for this test."""

    def bench(self, mode):
        folder = os.path.join(os.path.dirname(cli_harness.program()), "tests", "fake_driver")
        if not os.path.isdir(folder):
            self.skipTest("this build has no stand-in for the driver")
        done = run("bench", "--device", "cuda", "--seqlen", "64",
                   env=environment(LD_LIBRARY_PATH=folder, FAKE_CUDA=mode))
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("CPU", done.stderr)
        return done.stderr

    def test_too_old(self):
        text = self.bench("old")
        self.assertIn("11.4", text)
        self.assertIn("12.2", text)

    def test_no_device(self):
        self.assertIn("CUDA_VISIBLE_DEVICES", self.bench("none"))

    def test_too_old_a_gpu(self):
        text = self.bench("sm70")
        self.assertIn("Fake V100 (sm_70)", text)
        self.assertIn("sm_75", text)

    def test_a_driver_that_fails(self):
        self.assertIn("CUDA_ERROR_UNKNOWN", self.bench("broken"))

    def test_a_cache_that_cannot_be_used_is_a_warning(self):
        folder = os.path.join(os.path.dirname(cli_harness.program()), "tests", "fake_driver")
        if not os.path.isdir(folder):
            self.skipTest("this build has no stand-in for the driver")
        with tempfile.NamedTemporaryFile() as file:
            done = run("info", env=environment(LD_LIBRARY_PATH=folder, FAKE_CUDA="gpu",
                                               FLASHLAB_CACHE=file.name))
        self.assertEqual(done.returncode, 0, done.stderr)
        text = " ".join(done.stdout.split())
        self.assertIn("every process compiles its kernels anew", text)
        self.assertIn("name a folder in FLASHLAB_CACHE", text)

    def test_a_precompiled_folder_that_is_refused_is_a_warning(self):
        folder = os.path.join(os.path.dirname(cli_harness.program()), "tests", "fake_driver")
        if not os.path.isdir(folder):
            self.skipTest("this build has no stand-in for the driver")
        with tempfile.TemporaryDirectory() as kernels:
            os.chmod(kernels, 0o777)
            for named, words in ((kernels, "others may write to; chmod go-w"),
                                 ("/nowhere", "name a readable folder in FLASHLAB_PRECOMPILED"),
                                 ("", None)):
                done = run("info", env=environment(LD_LIBRARY_PATH=folder, FAKE_CUDA="gpu",
                                                   FLASHLAB_PRECOMPILED=named))
                self.assertEqual(done.returncode, 0, done.stderr)
                text = " ".join(done.stdout.split())
                self.assertEqual("FLASHLAB_PRECOMPILED is not used" in text, words is not None)
                self.assertIn(words or "", text)

    def test_info_goes_on(self):
        folder = os.path.join(os.path.dirname(cli_harness.program()), "tests", "fake_driver")
        for mode in ("old", "none", "broken"):
            done = run("info", env=environment(LD_LIBRARY_PATH=folder, FAKE_CUDA=mode))
            self.assertEqual(done.returncode, 0, done.stderr)


class Removed(Folder):
    def test_old_names_say_that_they_are_gone(self):
        self.refused(["tune", "--dry-run", "--head-dim", "64"], "tune is no command any more",
                     "flashlab explain")
        for command in ("bench", "check", "compare", "explain", "profile attention"):
            self.refused([*command.split(), "--implementation", "sm90.loop"], "sm90.loop is gone",
                         "flashlab bench --implementation sm90")


if __name__ == "__main__":
    cli_harness.main()
