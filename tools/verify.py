#!/usr/bin/env python3
"""The checks beyond the tests:  tools/verify.py LABEL [--all] [--only NAME[,NAME]]

Runs each check, keeps its output in build/verify/NAME.log, shows the end of what failed, and
writes the counts to build/verify-results.json. A check that cannot run here says why and counts as
skipped. --all takes no shortcuts: whole test suites under the sanitizers, long fuzzing, a shared
library, clang-tidy. Exit code 0 when nothing failed.
"""

import argparse
import concurrent.futures
import glob
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time

import build
import console
import source

LOGS = "build/verify"
RESULTS = "build/verify-results.json"
SKIP_CODE = 77  # what a script exits with when it cannot run here; its last line says why
LINES_SHOWN = 30
TABLE_LINES = 250
FUZZ_SECONDS, FUZZ_SECONDS_ALL = 15, 900
FUZZ_TARGETS = ("fuzz_problem", "fuzz_files")

# Tests that run under AddressSanitizer and UndefinedBehaviorSanitizer: the edge of the API, the
# pool, the oracle, the file readers, and what talks to a driver and to NVRTC; --all runs every one.
# The fuzzer drives the CPU's kernels there.
ASAN_TESTS = ("api_test", "cuda_bad_input_test", "cuda_folders_test", "cuda_inputs_test",
              "cuda_jit_test", "lab_measure_test", "reference_test", "tensor_file_test",
              "thread_pool_test")
# ThreadSanitizer only sees what runs on several threads.
TSAN_TESTS = ("thread_pool_test", "api_test")

ENVIRONMENT = {
    "ASAN_OPTIONS": "allocator_may_return_null=1:detect_stack_use_after_return=1",
    "UBSAN_OPTIONS": "print_stacktrace=1",
    "TSAN_OPTIONS": "halt_on_error=1:second_deadlock_stack=1:die_after_fork=0",
}


class Skip(Exception):
    """A check that cannot run here; its text is the reason."""


class Failure(Exception):
    """A check that failed; its text is for a person."""


def run(command, log_name, timeout=1800, **environment):
    """Runs one command into LOGS/log_name.log; raises Skip or Failure."""
    path = os.path.join(LOGS, log_name + ".log")
    with open(path, "w", errors="replace") as log:
        log.write("$ " + " ".join(command) + "\n")
        log.flush()
        try:
            code = subprocess.run(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                                  env={**os.environ, **ENVIRONMENT, **environment},
                                  timeout=timeout, check=False).returncode
        except subprocess.TimeoutExpired:
            raise Failure(f"not done after {timeout} s, see {path}") from None
    if code == SKIP_CODE:
        raise Skip(console.tail_of(path, 1).removeprefix("skipped: "))
    if code != 0:
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        raise Failure(f"{how}; the end of {path}:\n{console.tail_of(path, LINES_SHOWN)}")


def test_programs(binary_dir, wanted=None):
    """The GoogleTest executables of a configured folder, all or those that are wanted."""
    listed = subprocess.run(["ninja", "-C", binary_dir, "-t", "targets", "all"], text=True,
                            capture_output=True, check=False).stdout
    names = sorted(re.findall(r"^(\w+_test): CXX_EXECUTABLE", listed, re.M))
    missing = set(wanted or ()) - set(names)
    if missing or not names:
        raise Failure(f"tools/verify.py wants tests that are not there: {sorted(missing)}")
    return [name for name in names if wanted is None or name in wanted]


def works(compiler, *flags, launcher=()):
    """Whether a program built with these flags compiles, links and runs."""
    if shutil.which(compiler) is None:
        return False
    text = "#include <cstddef>\n#include <cstdint>\n"
    text += "extern \"C\" int LLVMFuzzerTestOneInput(const std::uint8_t*, std::size_t)" \
            "{ return 0; }\n" if "-fsanitize=fuzzer" in flags else "int main() { return 0; }\n"
    with tempfile.TemporaryDirectory() as folder:
        program = os.path.join(folder, "program")
        compiled = subprocess.run([compiler, "-x", "c++", "-", *flags, "-o", program], input=text,
                                  text=True, capture_output=True, check=False)
        if compiled.returncode != 0:
            return False
        arguments = ["-runs=1"] if "-fsanitize=fuzzer" in flags else []
        return subprocess.run([*launcher, program, *arguments], capture_output=True,
                              stdin=subprocess.DEVNULL, check=False).returncode == 0


class Verify:
    def __init__(self, label, everything, only):
        self.label, self.everything, self.only = label, everything, only
        self.passed = self.failed = self.skipped = 0
        self.lock = threading.Lock()

    def wants(self, *names):
        """Whether --only leaves a check with one of these names, or that begins so."""
        return not self.only or any(n.startswith(o) or o.startswith(n)
                                    for n in names for o in self.only)

    def check(self, name, function, *arguments):
        """Runs one check and shows its line; returns whether it passed."""
        if " build " not in name and not self.wants(name):
            return True
        live = sys.stdout.isatty()
        if live:
            print(f"{self.label:<5} {'verify':<10} {name} …", end="\r", flush=True)
        start = time.monotonic()
        verdict, detail = "ok", ""
        try:
            function(*arguments)
        except Skip as reason:
            verdict = f"skipped: {reason}"
        except (Failure, build.BuildError) as failure:
            verdict, detail = "FAILED", str(failure)
        clear = "\r\033[K" if live else ""
        with self.lock:
            self.passed += verdict == "ok"
            self.failed += verdict == "FAILED"
            self.skipped += verdict.startswith("skipped")
            print(f"{clear}{self.label:<5} {'verify':<10} {name:<44} {verdict:<11} "
                  f"{console.seconds(time.monotonic() - start)}", flush=True)
            if detail:
                print("  " + detail.replace("\n", "\n  "), flush=True)
        return verdict == "ok"

    def check_together(self, checks):
        """As many at once as there are cores, for checks that wait or keep one core busy."""
        with concurrent.futures.ThreadPoolExecutor(console.jobs()) as pool:
            list(pool.map(lambda one: self.check(*one), checks))

    def read_the_tree(self):
        self.check_together([("headers", run, ["tools/check_headers.py"], "headers"),
                             ("format", run, ["tools/format.sh", "--check"], "format"),
                             ("lint", run, ["tools/lint.py"], "lint"),
                             ("docs", run, ["tools/check_docs.py"], "docs"),
                             ("tables", run, ["tools/bench_tables.py", "--check"], "tables"),
                             ("code", run, ["tools/learn_code.py", "--check"], "code")])

    def kernels(self):
        """Every kernel compiles, fits and does not spill; the table stands in the log."""
        step = console.Step(self.label, "kernels")
        build.build(step, "build", [], ["flashlab_cli"])
        run(["tools/check_kernels.py", *(["--all"] if self.everything else [])], "kernels",
            timeout=6 * 3600 if self.everything else 900)

    def wheel(self):
        """Around what is built already, or as it is published: from nothing."""
        if not self.everything:
            build.build(console.Step(self.label, "wheel"), "build", [], ["flashlab_cli"])
        run(["tools/check_wheel.py", *(["--all"] if self.everything else ["--built", "build"])],
            "wheel")

    def gpu_kernels(self):
        self.check("kernels", self.kernels)
        if self.wants("kernels"):
            # The table is the point of this check, whatever its verdict.
            print("  " + console.tail_of(os.path.join(LOGS, "kernels.log"), TABLE_LINES)
                  .replace("\n", "\n  "), flush=True)

    def build_preset(self, preset, compiler, targets):
        step = console.Step(self.label, preset)
        part = "OFF" if self.everything else "ON"
        arguments = ["--preset", preset, f"-DCMAKE_CXX_COMPILER={compiler}",
                     f"-DFLASHLAB_READERS_ONLY={part}"]
        build.build(step, os.path.join("build", preset), arguments, targets, configure_always=True)

    def run_test(self, preset, name, launcher=()):
        run([*launcher, os.path.join("build", preset, name), "--gtest_brief=1"],
            f"{preset}-{name}")

    def address_sanitizer(self):
        """clang where it is complete, because its fuzzer learns from coverage; else g++."""
        if not self.wants("asan", "fuzz"):
            return
        fuzzer = works("clang++", "-fsanitize=fuzzer", "-fsanitize=address,undefined")
        compiler = "clang++" if fuzzer else "g++"
        if not fuzzer and not works("g++", "-fsanitize=address,undefined"):
            self.check("asan", self.skip, "no compiler here links AddressSanitizer")
            return
        wanted = None if self.everything else ASAN_TESTS
        if not self.check(f"asan build ({compiler})", self.build_preset, "asan", compiler,
                          lambda folder: [*test_programs(folder, wanted), *FUZZ_TARGETS]):
            return
        self.check_together([*((f"fuzz {name}", self.fuzz, name) for name in FUZZ_TARGETS),
                             *((f"asan {name}", self.run_test, "asan", name)
                               for name in test_programs("build/asan", wanted))])

    def fuzz(self, name):
        seconds = FUZZ_SECONDS_ALL if self.everything else FUZZ_SECONDS
        corpus = os.path.join("build", "corpus", name)
        os.makedirs(corpus, exist_ok=True)
        if name == "fuzz_files":
            run(["tools/fuzz_seeds.py", corpus], "fuzz-seeds")
        findings = os.path.abspath(os.path.join(LOGS, name + "-"))
        run([f"build/asan/{name}", f"-max_total_time={seconds}", "-seed=1", "-timeout=20",
             "-rss_limit_mb=2048", "-print_final_stats=1", f"-artifact_prefix={findings}", corpus],
            f"fuzz-{name}", timeout=seconds + 300)

    def thread_sanitizer(self):
        if not self.wants("tsan"):
            return
        # Kernels that scatter addresses widely leave no room for its shadow memory.
        for launcher in ((), ("setarch", "-R")):
            if works("g++", "-fsanitize=thread", launcher=launcher):
                break
        else:
            self.check("tsan", self.skip, "ThreadSanitizer cannot start under this kernel")
            return
        wanted = None if self.everything else TSAN_TESTS
        if self.check("tsan build (g++)", self.build_preset, "tsan", "g++",
                      lambda folder: test_programs(folder, wanted)):
            self.check_together([(f"tsan {name}", self.run_test, "tsan", name, launcher)
                                 for name in test_programs("build/tsan", wanted)])

    @staticmethod
    def skip(reason):
        raise Skip(reason)

    def shared_library(self):
        self.build_preset("shared", "g++", [])
        run(["bash", "tests/install_consumer_test.sh", "build/shared"], "shared-consumer")

    def clang_tidy(self):
        if shutil.which("clang-tidy") is None:
            raise Skip("no clang-tidy")
        sources = [f for f in source.tree_files()
                   if f.endswith(".cpp") and f.startswith(("src/", "cases/"))]
        sources += sorted(glob.glob("build/asan/isa/*.cpp"))
        run(["xargs", "-P", str(console.jobs()), "-n", "1", "-a",
             self.list_file(sources), "clang-tidy", "--quiet", "-p", "build/asan"], "clang-tidy",
            timeout=7200)

    def ranks(self):
        """Thirty ranks of a run, and thirty runs, are killed, and they go on each time."""
        build.build(console.Step(self.label, "ranks"), "build", [], ["flashlab_cli"])
        run(["tools/check_ranks.py", "build/flashlab"], "ranks")
        run(["tools/check_runs.py", "build/flashlab"], "runs")

    @staticmethod
    def list_file(lines):
        path = os.path.join(LOGS, "files.txt")
        with open(path, "w", encoding="utf-8") as stream:
            stream.write("\n".join(lines) + "\n")
        return path

    def all_checks(self):
        self.read_the_tree()
        self.gpu_kernels()
        self.check("wheel", self.wheel)
        self.thread_sanitizer()
        self.address_sanitizer()
        if self.everything:
            self.check("shared library", self.shared_library)
            self.check("clang-tidy", self.clang_tidy)
            self.check("ranks", self.ranks)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("label", nargs="?", default="")
    parser.add_argument("--all", action="store_true", help="no shortcuts")
    parser.add_argument("--only", default="", help="checks whose names start so, e.g. lint,asan")
    arguments = parser.parse_args()
    os.chdir(source.ROOT)
    os.makedirs(LOGS, exist_ok=True)
    verify = Verify(arguments.label, arguments.all,
                    [name for name in arguments.only.split(",") if name])
    start = time.monotonic()
    try:
        verify.all_checks()
    except KeyboardInterrupt:
        print("\nstopped")
        return 130
    with open(RESULTS, "w", encoding="utf-8") as stream:
        json.dump({"passed": verify.passed, "failed": verify.failed, "skipped": verify.skipped},
                  stream)
    console.Step(arguments.label, "verify").finish(
        f"{verify.passed} passed, {verify.failed} failed, {verify.skipped} skipped",
        console.seconds(time.monotonic() - start))
    return 1 if verify.failed or not verify.passed else 0


if __name__ == "__main__":
    sys.exit(main())
