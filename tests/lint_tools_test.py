#!/usr/bin/env python3
"""The scripts behind `make`: what they say and answer when something is missing or fails."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
sys.path[:0] = [os.path.join(ROOT, folder) for folder in ("tools", "bench")]
sys.dont_write_bytecode = True

import build  # noqa: E402
import check  # noqa: E402
import ci_summary  # noqa: E402
import console  # noqa: E402
import learn_code  # noqa: E402
import processes  # noqa: E402
import run_tests  # noqa: E402
import suite  # noqa: E402

BASICS = ("bash", "dirname", "grep", "sed", "sort", "head", "tail", "mkdir", "cat", "env", "touch")
PRESENT = "cmake ninja-build python3 libhwy-dev libfmt-dev nlohmann-json3-dev zlib1g-dev " \
          "libopenblas-pthread-dev libgtest-dev libgmock-dev".split()


class Machine:
    """A tree with tools/packages.sh, and a PATH of its own that holds only what is put there."""

    def __init__(self, folder, installed, user=1000, apt=True):
        self.folder = folder
        self.bin = os.path.join(folder, "bin")
        os.makedirs(os.path.join(folder, "tools"))
        os.makedirs(self.bin)
        shutil.copy(os.path.join(ROOT, "tools", "packages.sh"), os.path.join(folder, "tools"))
        for name in BASICS:
            os.symlink(shutil.which(name), os.path.join(self.bin, name))
        self.installed = os.path.join(folder, "installed")
        with open(self.installed, "w", encoding="utf-8") as stream:
            stream.write("\n".join(installed) + "\n")
        self.put("id", f"echo {user}")
        if apt:
            self.put("dpkg-query", f'for name; do :; done; grep -qx "$name" {self.installed} '
                                   "&& echo installed")
            # Installing without lists fails, as on a fresh machine; "update" brings the lists.
            self.put("apt-get", f"""
echo "$DEBIAN_FRONTEND apt-get $*" >>{folder}/calls
[ -e {folder}/broken ] && {{ echo "E: no network here"; exit 100; }}
case " $* " in
  *" update "*) touch {folder}/lists; exit 0 ;;
esac
[ -e {folder}/lists ] || {{ echo "E: Unable to locate package"; exit 100; }}
seen=""
for word; do [ -n "$seen" ] && echo "$word" >>{self.installed}
  [ "$word" = --no-install-recommends ] && seen=1; done
exit 0""")
        self.compilers()

    def put(self, name, script):
        path = os.path.join(self.bin, name)
        with open(path, "w", encoding="utf-8") as stream:
            stream.write(f"#!/bin/bash\n{script}\n")
        os.chmod(path, 0o755)

    def compilers(self, cmake="3.25.1", gcc="12.2.0"):
        self.put("cmake", f"echo 'cmake version {cmake}'")
        self.put("ninja", "true")
        self.put("python3", "true")
        headers = os.path.join(self.folder, "headers")
        self.put("g++", f"""
case $* in
  *-fsyntax-only*) [ -e {headers} ] ;;
  *--version*) echo 'Free Software' ;;
  *) echo {gcc} ;;
esac""")

    def run(self, *groups):
        environment = {"PATH": self.bin, "HOME": self.folder}
        done = subprocess.run([os.path.join(self.folder, "tools", "packages.sh"), "[1/3]", *groups],
                              env=environment, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout, done.stderr

    def calls(self):
        try:
            with open(os.path.join(self.folder, "calls"), encoding="utf-8") as stream:
                return stream.read()
        except OSError:
            return ""


class Packages(unittest.TestCase):
    def machine(self, *arguments, **named):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        return Machine(folder.name, *arguments, **named)

    def test_nothing_is_done_when_all_is_there(self):
        machine = self.machine(["g++", *PRESENT])
        code, out, err = machine.run("build")
        self.assertEqual((code, err, machine.calls()), (0, "", ""))
        self.assertIn("already there", out)

    def test_without_root_the_line_to_type_is_printed(self):
        machine = self.machine(["g++", "cmake", "ninja-build", "python3"])
        code, _, err = machine.run("build")
        self.assertEqual(code, 2)
        line = "sudo apt-get update && sudo apt-get install -y --no-install-recommends"
        self.assertIn(line, err)
        for name in ("libhwy-dev", "libgmock-dev"):
            self.assertIn(name, err)
        self.assertNotIn("cmake", err)
        self.assertEqual(machine.calls(), "")

    def test_a_sudo_that_asks_for_a_password_is_not_used(self):
        machine = self.machine([])
        machine.put("sudo", "exit 1")
        self.assertEqual(machine.run("build")[0], 2)
        self.assertEqual(machine.calls(), "")

    def test_sudo_without_a_password_installs(self):
        machine = self.machine(["g++"])
        machine.put("sudo", 'shift; "$@"')
        code, out, _ = machine.run("build")
        self.assertEqual(code, 0, out)
        self.assertIn("installed", out)

    def test_root_installs_just_what_is_missing_and_updates_lists_when_needed(self):
        machine = self.machine(["g++", *PRESENT[:-2]], user=0)
        code, out, err = machine.run("build")
        self.assertEqual((code, err), (0, ""))
        calls = machine.calls().splitlines()
        self.assertEqual(len(calls), 3, calls)  # install fails, update, install
        self.assertIn(" update", calls[1])
        self.assertTrue(calls[2].startswith("noninteractive "), calls[2])
        self.assertTrue(calls[2].endswith("--no-install-recommends libgtest-dev libgmock-dev"),
                        calls[2])
        self.assertEqual(machine.run("build")[0], 0)
        self.assertEqual(machine.calls().splitlines(), calls)  # and then nothing more

    def test_a_failed_installation_shows_why_and_the_line(self):
        machine = self.machine(["g++"], user=0)
        with open(os.path.join(machine.folder, "broken"), "w", encoding="utf-8"):
            pass
        code, _, err = machine.run("build")
        self.assertEqual(code, 2)
        self.assertIn("E: no network here", err)
        self.assertIn("apt-get install -y --no-install-recommends", err)

    def test_elsewhere_the_missing_content_is_named(self):
        machine = self.machine([], apt=False)
        with open(os.path.join(machine.folder, "headers"), "w", encoding="utf-8"):
            pass
        os.remove(os.path.join(machine.bin, "ninja"))
        code, _, err = machine.run("build")
        self.assertEqual(code, 2)
        self.assertIn("ninja-build", err)
        self.assertNotIn("apt-get", err)
        self.assertIn("libopenblas", err)
        machine.put("ninja", "true")
        machine.put("find", "echo /usr/lib/libopenblas.a")
        self.assertEqual(machine.run("build")[0], 0)

    def test_tools_that_are_too_old_are_refused(self):
        machine = self.machine(["g++", *PRESENT])
        machine.compilers(cmake="3.22.1", gcc="11.4.0")
        code, _, err = machine.run("build")
        self.assertEqual(code, 2)
        self.assertIn("cmake 3.22.1, 3.25 is needed", err)
        self.assertIn("g++ 11.4.0, 12 is needed", err)

    def test_optional_packages_are_never_asked_for(self):
        machine = self.machine(["g++", "clang-format", *PRESENT])
        code, out, err = machine.run("build", "verify")
        self.assertEqual((code, err), (0, ""))
        self.assertIn("without clang", out)


class Suite(unittest.TestCase):
    """bench/suite.py runs with a stand-in for a GoogleTest program, whose first part has the tests,
    and for nvidia-smi."""

    PROGRAM = """#!/bin/sh
for argument; do report=${argument#--gtest_output=json:}; done
[ "$GTEST_SHARD_INDEX" = 0 ] || { echo '{"testsuites": []}' > "$report"; exit; }
echo 'test.cpp:9: Skipped
skipped: no GPU: none was found
'
echo '{"testsuites": [{"name": "S", "testsuite": [
 {"name": "a", "result": "COMPLETED"}, {"name": "b", "result": "SKIPPED"}]}]}' > "$report"
"""

    def run_suite(self, gpus, *flags):
        with tempfile.TemporaryDirectory() as folder:
            for name, text in (("cuda_mutation_test", self.PROGRAM),
                               ("nvidia-smi", "#!/bin/sh\n" + "echo GPU 0\n" * gpus)):
                path = os.path.join(folder, name)
                with open(path, "w", encoding="utf-8") as stream:
                    stream.write(text)
                os.chmod(path, 0o755)
            result = os.path.join(folder, "suite.json")
            done = subprocess.run(
                [sys.executable, os.path.join(ROOT, "bench", "suite.py"), folder, result, *flags],
                env={**os.environ, "PATH": folder + os.pathsep + os.environ["PATH"]},
                stdout=subprocess.PIPE, text=True, check=False)
            if not os.path.exists(result):
                return done, None
            with open(result, encoding="utf-8") as stream:
                return done, json.load(stream)

    def test_counts_by_group_and_reasons_of_skips(self):
        done, document = self.run_suite(0)
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertEqual(document["groups"]["mutations"], {"passed": 1, "failed": 0, "skipped": 1})
        self.assertEqual([p["program"] for p in document["programs"] if p["passed"]],
                         ["cuda_mutation_test 1/6"])
        self.assertEqual([p["skip_reasons"] for p in document["programs"] if p["skipped"]],
                         [{"no GPU: none was found": 1}])
        self.assertTrue(document["ok"])

    def test_a_gpu_that_is_there_must_be_used(self):
        done, document = self.run_suite(1)
        self.assertEqual(done.returncode, 1)
        self.assertEqual(document["idle"], ["cuda_mutation_test 1/6"])
        self.assertFalse(document["ok"])

    def test_a_dry_run_lists_and_writes_nothing(self):
        done, document = self.run_suite(2, "--dry-run", "--memcheck", "7")
        self.assertEqual((done.returncode, document), (0, None))
        self.assertIn("mutations   cuda_mutation_test", done.stdout)
        self.assertIn("2 GPUs", done.stdout)

    def test_groups_go_by_name(self):
        for name, group in (("runtime_two_gpus_test", "two GPUs"), ("cuda_ptx_test", "primitives"),
                            ("python test_torch_modes.py", "PyTorch"),
                            ("cuda_sm80_forward_test", "GPU"), ("api_test", "all else")):
            self.assertEqual(suite.group_of(name), group)


class Summary(unittest.TestCase):
    JUNIT = """<testsuite><testcase name="a" status="run"/>
<testcase name="b" status="fail"><failure message=""/><system-out>why</system-out></testcase>
<testcase name="c" status="notrun"><skipped message="SKIP_REGULAR_EXPRESSION_MATCHED"/>
<system-out>Running main() from x
[ RUN      ] A.b
skipped: no GPU
[  SKIPPED ] A.b (0 ms)
</system-out></testcase>
<testcase name="d" status="notrun"><skipped message="Unable to find executable"/></testcase>
</testsuite>"""

    def results(self, text):
        with tempfile.NamedTemporaryFile("w", suffix=".xml", delete=False) as stream:
            stream.write(text)
        self.addCleanup(os.remove, stream.name)
        return stream.name

    def test_counts_and_reasons(self):
        path = self.results(self.JUNIT)
        self.assertEqual(run_tests.totals(path), (1, 2, 1))
        self.assertEqual(run_tests.reasons_of_skips(path), {"no GPU": 1})

    def test_a_stage_cannot_fail_silently(self):
        add = ci_summary.add_stage
        self.assertEqual(add((0, 0, 0), (5, 0, 1), 0), (5, 0, 1))
        self.assertEqual(add((5, 0, 1), (4, 2, 0), 1), (9, 2, 1))
        self.assertEqual(add((5, 0, 0), None, 2), (5, 1, 0))
        self.assertEqual(add((5, 0, 0), (0, 0, 0), 0), (5, 1, 0))
        self.assertEqual(add((5, 0, 0), (7, 0, 0), 1), (12, 1, 0))

    def test_results_that_are_absent_or_torn_count_as_a_failure(self):
        self.assertIsNone(ci_summary.counts_of_tests(self.results("<testsuite><tes")))
        self.assertIsNone(ci_summary.counts_of_tests("/nonexistent"))
        self.assertIsNone(ci_summary.counts_of_verify(self.results(json.dumps({"passed": 1}))))


PROGRAM = """#!/bin/sh
# `flashlab check` that passes fp32 and refuses other types, or does what OUTCOME says.
while [ $# -gt 0 ]; do
  case $1 in --dtype) type=$2 ;; --json) json=$2 ;; esac
  shift
done
[ "$OUTCOME" = killed ] && { echo "out of memory"; exit 137; }
passed=0 failed=0 refused=0 code=0
if [ "$OUTCOME" = wrong ]; then failed=1 code=4
elif [ $type = fp32 ] && [ "$OUTCOME" != refused ]; then passed=3
else refused=3 code=1; fi
ok=true; [ $failed = 0 ] || ok=false
echo "{\\"environment\\": {}, \\"passed\\": $passed, \\"failed\\": $failed,
  \\"unsupported\\": $refused, \\"ok\\": $ok, \\"reports\\": [
  {\\"case\\": \\"a\\", \\"status\\": \\"ok\\", \\"passed\\": $ok}]}" >"$json"
exit $code
"""


class CheckRecord(unittest.TestCase):
    def recorded(self, outcome):
        """(exit code, record) of bench/check.py beside a program that ends like that."""
        with tempfile.TemporaryDirectory() as folder:
            program = os.path.join(folder, "flashlab")
            with open(program, "w", encoding="utf-8") as stream:
                stream.write(PROGRAM)
            os.chmod(program, 0o755)
            record = os.path.join(folder, "record.json")
            ended = subprocess.run(
                [sys.executable, check.__file__, program, record, "--implementation", "one,two",
                 "--dtype", "fp32,bf16"], check=False, stdout=subprocess.DEVNULL,
                env={**os.environ, "OUTCOME": outcome})
            with open(record, encoding="utf-8") as stream:
                return ended.returncode, json.load(stream)

    def test_a_type_a_kernel_refuses_is_no_failure_but_a_kernel_that_passes_nothing_is(self):
        code, record = self.recorded("right")
        self.assertEqual((code, record["ok"]), (0, True))
        self.assertEqual((record["passed"], record["unsupported"]), (6, 6))
        code, record = self.recorded("refused")
        self.assertEqual((code, record["ok"]), (1, False))

    def test_a_wrong_case_and_a_process_that_dies_are_failures(self):
        code, record = self.recorded("wrong")
        self.assertEqual((code, record["ok"], record["failed"]), (1, False, 4))
        self.assertEqual([run["failures"][0]["case"] for run in record["runs"]], ["a"] * 4)
        code, record = self.recorded("killed")
        self.assertEqual((code, record["ok"]), (1, False))
        self.assertIn("out of memory", record["runs"][0]["output"][0])


def running(pid):
    """Whether there is such a process that has not ended."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as stream:
            return stream.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


SCRIPT = """
import sys
import processes
processes.stop_with_this_script()
processes.run(["sh", "-c", "echo $$ >%s.new; mv %s.new %s; exec sleep 3600" % ((sys.argv[1],) * 3)])
"""


# Stopped when the program runs already and Popen has not returned.
EARLY_SCRIPT = """
import os
import signal
import subprocess
import sys
import time
import processes
processes.stop_with_this_script()
class Interrupted(subprocess.Popen):
    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        with open(sys.argv[1], "w") as stream:
            stream.write(str(self.pid))
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.01)
processes.subprocess.Popen = Interrupted
processes.run(["sleep", "3600"])
"""


class Processes(unittest.TestCase):
    def test_nor_one_that_is_stopped_while_it_starts_a_program(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "pid")
            ended = subprocess.run([sys.executable, "-c", EARLY_SCRIPT, path], check=False, env={
                **os.environ, "PYTHONPATH": os.path.join(ROOT, "bench")})
            self.assertEqual(ended.returncode, 128 + signal.SIGTERM)
            with open(path, encoding="utf-8") as stream:
                self.assertFalse(running(int(stream.read())))

    def test_a_script_that_is_stopped_leaves_no_program_behind(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "pid")
            with subprocess.Popen([sys.executable, "-c", SCRIPT, path], env={
                    **os.environ, "PYTHONPATH": os.path.join(ROOT, "bench")}) as script:
                for _ in range(600):
                    if os.path.exists(path):
                        break
                    time.sleep(0.1)
                with open(path, encoding="utf-8") as stream:
                    started = int(stream.read())
                script.terminate()
                self.assertEqual(script.wait(60), 128 + signal.SIGTERM)
            # Its parent is gone: whoever inherits it may take a moment to collect it.
            for _ in range(600):
                if not running(started):
                    break
                time.sleep(0.1)
            self.assertFalse(running(started))

    def test_what_takes_too_long_is_ended(self):
        code, text, seconds = processes.run(["sh", "-c", "echo begun; sleep 3600"], limit=5)
        self.assertEqual((code, text), (processes.TOO_LONG, "begun\n"))
        self.assertLess(seconds, 3600)


TOOL = """#!/bin/sh
# compute-sanitizer that runs the program and finds what FOUND says in `check`, and MERGED in a
# test program.
while [ "${1#--}" != "$1" ]; do shift 2; done
"$@" || exit 1
case $2 in check) found=$FOUND ;; --gtest_filter*) found=$MERGED ;; *) found=0 ;; esac
echo "========= RACECHECK SUMMARY: $found hazards displayed"
[ "$found" = 0 ] || exit 9
"""
PROGRAM_TO_WATCH = """#!/bin/sh
# `flashlab info`, `flashlab check` and `flashlab bench`; cuBLASLt is there if CUBLAS says so.
command=$1
while [ $# -gt 0 ]; do
  case $1 in
    info) echo "{\\"environment\\": {\\"gpu\\": \\"none\\", \\"command\\": \\"flashlab info\\"},
      \\"libraries\\": {\\"libcublasLt.so\\": ${CUBLAS:-true}},
      \\"cuda_implementations\\": [\\"sm80\\", \\"naive\\", \\"cublas\\", \\"cudnn\\"]}" ;;
    --json) json=$2 ;;
  esac
  shift
done
[ "${json:--}" = - ] && exit 0
case $command in
  check) echo '{"passed": 2, "failed": 0, "unsupported": 1}' >"$json" ;;
  *) echo '{"results": [{"status": "ok"}, {"status": "unsupported"}]}' >"$json" ;;
esac
"""
MERGES = """#!/bin/sh
# cuda_inputs_test
echo "[  PASSED  ] ${PASSED:-8} tests."
"""


class Sanitize(unittest.TestCase):
    def recorded(self, tool, *flags, merges=MERGES, **variables):
        """(exit code, record) of bench/sanitize.py beside such programs."""
        with tempfile.TemporaryDirectory() as folder:
            for name, text in (("compute-sanitizer", TOOL), ("flashlab", PROGRAM_TO_WATCH),
                               ("cuda_inputs_test", merges)):
                with open(os.path.join(folder, name), "w", encoding="utf-8") as stream:
                    stream.write(text)
                os.chmod(os.path.join(folder, name), 0o755 if text else 0o644)
            record = os.path.join(folder, "record.json")
            environment = {**os.environ, "FOUND": "0", "MERGED": "0", **variables,
                           "PATH": folder + os.pathsep + os.environ["PATH"]}
            ended = subprocess.run(
                [sys.executable, os.path.join(ROOT, "bench", "sanitize.py"), tool,
                 os.path.join(folder, "flashlab"), record, *flags], check=False,
                stdout=subprocess.DEVNULL, env=environment)
            with open(record, encoding="utf-8") as stream:
                return ended.returncode, json.load(stream)

    def test_what_the_tool_finds_is_recorded_and_is_a_failure(self):
        for found in (0, 31):
            code, record = self.recorded("racecheck", "--implementation", "sm80,naive",
                                         FOUND=str(found))
            self.assertEqual((code, record["ok"]), (int(found > 0), found == 0))
            self.assertEqual([run["found"] for run in record["runs"]], [found] * 2)
            self.assertEqual([run["passed"] for run in record["runs"]], [2, 2])

    def test_the_record_names_the_command_that_made_it(self):
        _, record = self.recorded("memcheck", "--implementation", "sm80")
        command = record["environment"]["command"].split()
        self.assertEqual(command[:2] + command[4:],
                         ["bench/sanitize.py", "memcheck", "--implementation", "sm80"])
        self.assertEqual(record["environment"]["gpu"], "none")

    def test_unless_names_are_given_everything_that_launches_kernels_is_watched(self):
        for tool in ("memcheck", "racecheck", "initcheck"):
            code, record = self.recorded(tool)
            self.assertEqual((code, record["ok"]), (0, True), record)
            text = "\n".join(run["command"] for run in record["runs"])
            for part in ("sm80", "naive", "cublas", "bench weighted-sum", "cuda_inputs_test"):
                self.assertIn(part, text, tool)
            self.assertNotIn("cudnn", text)

    def test_only_this_projects_kernels_are_watched_between_nvidias_products(self):
        _, record = self.recorded("racecheck", "--implementation", "sm80,cublas")
        options = {run["command"].split()[-1]: run["options"] for run in record["runs"]}
        self.assertEqual(options, {"sm80": [], "cublas": ["--kernel-regex", "kns=flash_"]})

    def test_racecheck_watches_backward_alone_where_forwards_ring_goes_round(self):
        _, record = self.recorded("racecheck", "--implementation", "sm90")
        large = [run for run in record["runs"] if " bench " in run["command"]]
        self.assertEqual(len(large), 3)
        for run in large:
            self.assertEqual(run["options"], ["--kernel-regex", "kns=flash_bwd"])
            self.assertIn("--pass backward", run["command"])
        _, record = self.recorded("memcheck", "--implementation", "sm90")
        self.assertEqual([run["options"] for run in record["runs"]], [[]] * 4)

    def test_without_cublas_the_record_says_what_is_missing(self):
        code, record = self.recorded("memcheck", CUBLAS="false")
        self.assertEqual((code, record["ok"]), (0, True))
        self.assertIn({"tool": "memcheck", "implementation": "cublas",
                       "left_out": "libcublasLt.so was not found"}, record["runs"])
        self.assertFalse([run for run in record["runs"] if "cublas" in run.get("command", "")])

    def test_a_merge_that_is_wrong_missing_or_skipped_is_a_failure(self):
        for variables in ({"MERGED": "3"}, {"PASSED": "0"}, {"merges": ""}):
            code, record = self.recorded("memcheck", "--implementation", "merge", **variables)
            self.assertEqual((code, record["ok"]), (1, False), variables)


class LearnCode(unittest.TestCase):
    def excerpt(self, text, first, count):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "kernel.cu")
            with open(path, "w", encoding="utf-8") as stream:
                stream.write(text)
            return learn_code.excerpt(path, first, count)

    def test_lines_lose_their_common_indent(self):
        text = "void f() {\n    if (x) {\n#pragma unroll\n      g();\n    }\n}\n"
        self.assertEqual(self.excerpt(text, "if (x)", 4), "if (x) {\n#pragma unroll\n  g();\n}")

    def test_a_line_that_is_gone_or_not_the_only_one_is_an_error(self):
        for text, first, count in (("a\nb\n", "c", 1), ("a\na\n", "a", 1), ("a\nb\n", "b", 2)):
            with self.assertRaises(learn_code.Wrong):
                self.excerpt(text, first, count)

    def test_two_blocks_of_a_page_stay_two(self):
        page = "".join(f"<!-- code: x | {name} | 3 -->\nold\n<!-- code: end -->\n" for name in "ab")
        found = [match["first"] for match in learn_code.BLOCK.finditer(page)]
        self.assertEqual(found, ["a", "b"])


class Build(unittest.TestCase):
    def test_a_folder_made_for_another_tree_is_configured_anew(self):
        for home, kept in ((build.SOURCE, True), ("/elsewhere", False)):
            with tempfile.TemporaryDirectory() as folder:
                cache = os.path.join(folder, "CMakeCache.txt")
                with open(cache, "w", encoding="utf-8") as stream:
                    stream.write(f"CMAKE_HOME_DIRECTORY:INTERNAL={home}\n"
                                 "CMAKE_GENERATOR:INTERNAL=Ninja\n")
                build.forget_foreign_cache(folder)
                self.assertEqual(os.path.exists(cache), kept)

    def test_durations_read_well(self):
        self.assertEqual([console.seconds(s) for s in (0.04, 9.96, 38.4, 119.6, 245)],
                         ["0.0 s", "10 s", "38 s", "2 min 00 s", "4 min 05 s"])


if __name__ == "__main__":
    unittest.main()
