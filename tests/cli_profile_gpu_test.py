"""profile on a GPU that is not there: against stand-ins for the driver, CUPTI, ncu and nsys.

What the folder holds when one of them fails, when the disk is full, and after Ctrl-C.
"""

import json
import os
import resource
import signal
import subprocess
import tempfile
import unittest

import cli_harness
import trace_format
from cli_harness import Folder, interrupt_once, program

STEP = ["profile", "step", "--device", "cuda", "--quick", "--layers", "1", "--width", "64",
        "--heads", "1", "--hidden", "64", "--batch", "1", "--vocabulary", "64", "--context", "64"]
ATTENTION = ["profile", "attention", "--device", "cuda", "--quick", "--dtype", "bf16",
             "--head-dim", "64", "--seqlen", "128", "--pass", "forward"]
ALWAYS = {"SUMMARY.md", "report.html", "environment.json", "ledger.txt", "ledger.csv",
          "ledger.json", "trace.json", "stacks.folded", "flame.svg"}
MEMORY = {"memory.svg", "memory.json", "memory.pickle"}

# Its report is the list of its arguments. With NO_REPORTS it makes none.
NCU = """#!/bin/sh
if [ "$1" = --export ]; then
  [ -z "$NO_REPORTS" ] && echo "$@" > "$2.ncu-rep" && exit 0
  echo "==ERROR== unknown metric"; exit 1
fi
while [ "$1" != --log-file ]; do shift; done
cat > "$2" <<END
==PROF== Connected
"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"
"0","flash_fwd_test","gpu__time_duration.sum","ns","1,500"
"0","flash_fwd_test","smsp__average_warps_issue_stalled_barrier_per_issue_active.ratio","inst","2.5"
"1","flash_bwd_fp32(int)","gpu__time_duration.sum","ms","7"
END
"""
NSYS = """#!/bin/sh
command=$1
while [ "$1" != --output ]; do shift; done
[ "$command" = profile ] && echo report > "$2.nsys-rep"
[ "$command" = stats ] && cat > "$2_cuda_gpu_kern_sum.csv" <<END
Time (%),Total Time (ns),Instances,Avg (ns),Name
75.0,3000000,12,250000.0,flash_bwd_test
25.0,1000000,4,250000.0,"void cutlass(int, float)"
END
exit 0
"""


class Gpu(Folder):
    def environment(self, **variables):
        tests = os.path.join(os.path.dirname(program()), "tests")
        driver = os.path.join(tests, "fake_driver", "libcuda.so.1")
        if not os.path.exists(driver):
            self.skipTest("this build has no stand-in for the driver")
        return dict(os.environ, FAKE_CUDA="gpu", FAKE_MEMORY="1", FLASHLAB_NVRTC=driver,
                    FLASHLAB_CUBLASLT=driver, FLASHLAB_CACHE=self.path("cache"),
                    FLASHLAB_CUPTI=os.path.join(tests, "libflashlab_fake_cupti.so"),
                    LD_LIBRARY_PATH=os.path.join(tests, "fake_driver"),
                    FLASHLAB_NCU="/no/ncu", FLASHLAB_NSYS="/no/nsys", **variables)

    def profile(self, command, *more, code=0, **variables):
        environment = self.environment()
        environment.update(variables)
        done = cli_harness.run(*command, *more, "--output", self.path("p"), env=environment)
        self.assertEqual(done.returncode, code, done.stderr + done.stdout)
        return done

    def read(self, name):
        with open(self.path("p/" + name), encoding="utf-8") as file:
            return file.read().replace("\\_", "_")  # as Markdown shows it

    def tool(self, name, text):
        path = self.path(name, text.encode())
        os.chmod(path, 0o755)
        return path


class Instruments(Gpu):
    def test_attention_has_its_kernels_from_cupti(self):
        self.profile(ATTENTION)
        self.assertEqual(set(os.listdir(self.path("p"))), ALWAYS | {"results.json"})
        rows = {row["key"]: row for row in json.loads(self.read("ledger.json"))["by"]["kernel"]}
        self.assertEqual(rows["flash_fwd_test"]["launch"]["registers"], 168)
        self.assertIn("| flash_fwd_test | 120 | 384 | 168 |", self.read("SUMMARY.md"))
        self.assertNotIn("kernel times by CUPTI:", self.read("SUMMARY.md"))
        self.assertEqual(trace_format.complaints(self.read("trace.json")), [])

    def test_a_step_without_cupti_is_timed_by_events_and_says_why(self):
        for variables, why in (({"FLASHLAB_CUPTI": "/no/libcupti.so"}, "was not found"),
                               ({"FAKE_CUPTI": "old"}, "API 10"),
                               ({"FAKE_CUPTI": "new"}, "API 140000"),
                               ({"FAKE_CUPTI": "refused"}, "RestrictProfilingToAdminUsers"),
                               ({"FAKE_CUPTI": "busy"}, "another profiler"),
                               ({"FAKE_CUPTI": "lost"}, "3 lost records"),
                               ({}, "activities for")):
            self.profile(STEP, **variables)
            self.assertLessEqual(ALWAYS | MEMORY, set(os.listdir(self.path("p"))))
            summary = self.read("SUMMARY.md")
            self.assertRegex(summary, "- kernel times by CUPTI: .*" + why)
            self.assertIn("pairs of events", summary)
            self.assertIn("flash_fwd", self.read("ledger.txt"))

    def test_a_profilers_ranges_hold_the_kernels_of_a_step(self):
        environment = self.environment()
        self.profile(STEP, NVTX_INJECTION64_PATH=environment["FLASHLAB_CUPTI"],
                     FAKE_NVTX_LOG=self.path("ranges"))
        paths, stack = set(), []
        with open(self.path("ranges"), encoding="utf-8") as file:
            for line in file.read().splitlines():
                if line == ")":
                    stack.pop()
                else:
                    stack.append(line[1:])
                    paths.add(" / ".join(stack))
        self.assertEqual(stack, [])
        # A step of the graph has no ranges inside: under a tool no step is one.
        for step in ("warm-up", "step", "recorded step"):
            attention = [p for p in paths
                         if p.startswith(step + " / backward / layer 0 / attention / d attention")]
            self.assertGreater(len(attention), 1, sorted(paths))
            self.assertIn(step + " / optimizer / model / optimizer / adamw", paths)

    def test_nsight_that_is_missing_or_fails_is_told(self):
        self.profile(STEP, "--ncu", "--nsys")
        self.assertIn("ncu is not installed", self.read("SUMMARY.md"))
        self.assertIn("nsys is not installed", self.read("SUMMARY.md"))
        refuses = self.tool("refuses", "#!/bin/sh\necho '==ERROR== ERR_NVGPUCTRPERM'\nexit 1\n")
        self.profile(STEP, "--ncu", "--nsys", FLASHLAB_NCU=refuses, FLASHLAB_NSYS=refuses)
        for what in ("counters by ncu", "report of nsys"):
            self.assertRegex(self.read("SUMMARY.md"),
                             f"- {what}: .*exit code 1: ==ERROR== ERR_NVGPUCTRPERM")
        self.assertLessEqual(ALWAYS | MEMORY, set(os.listdir(self.path("p"))))

    def test_nsight_that_works_fills_the_summary(self):
        self.profile(ATTENTION, "--ncu", "--nsys", FLASHLAB_NCU=self.tool("ncu", NCU),
                     FLASHLAB_NSYS=self.tool("nsys", NSYS))
        summary, page = self.read("SUMMARY.md"), self.read("report.html")
        self.assertRegex(summary, r"\| flash_fwd_test \| 1 \| 1\.50 \|.*\| a barrier 2\.5 \|")
        self.assertIn("| flash_bwd_test | 12 | 3.00 | 75.0% |", summary)
        self.assertIn("| void cutlass | 4 | 1.00 | 25.0% |", summary)
        self.assertIn("Kernels by Nsight Systems", page)
        self.assertIn("What warps wait for", page)
        self.assertLessEqual({"nsys.nsys-rep", "ncu.csv", "ncu.ncu-rep"},
                             set(os.listdir(self.path("p"))))
        self.assertIn("flash_fwd_test", self.read("ncu.ncu-rep"))

    def test_an_ncu_that_makes_no_report_still_counts(self):
        self.profile(ATTENTION, "--ncu", FLASHLAB_NCU=self.tool("ncu", NCU), NO_REPORTS="1")
        self.assertNotIn("ncu.ncu-rep", os.listdir(self.path("p")))
        self.assertIn("a barrier 2.5", self.read("SUMMARY.md"))


class Record(Gpu):
    def test_the_script_of_records_keeps_every_part(self):
        script = os.path.join(cli_harness.source_root(), "bench", "profiles.py")
        environment = self.environment()
        environment["FLASHLAB_NCU"] = self.tool("ncu", NCU)
        environment["LD_LIBRARY_PATH"] += ":" + os.path.join(
            os.path.dirname(program()), "tests", "fake_nvml")
        done = subprocess.run([script, program(), self.folder, "fake", "--steps", "2", "--cases",
                               "tiny-attention,tiny"], env=environment, capture_output=True,
                              text=True, timeout=300, check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        with open(self.path("fake-profile.json"), encoding="utf-8") as file:
            record = json.load(file)
        self.assertEqual(set(record["profiles"]), {"tiny-attention", "tiny"})
        self.assertIn("Fake H200", record["environment"]["gpu"])
        # This kernel of the step takes 3.5 ms by the stand-in for CUPTI, 7 by that for ncu.
        self.assertEqual(record["ncu"]["ncu_us"], {"flash_bwd_fp32": 7000})
        for name in ("flash_bwd_fp32", "together"):
            figure = record["ncu"]["cupti_over_ncu"][name]
            self.assertAlmostEqual(figure["value"], 0.5)
            self.assertFalse(figure["holds"])
        self.assertIn("(missed)", done.stdout)
        self.assertEqual(record["phases"]["optimizer/"],
                         ["flash_bwd_fp32", "flash_fwd_test"])
        self.assertEqual([row["kernel"] for row in record["counters"]],
                         ["flash_fwd_test", "flash_bwd_fp32"])
        self.assertGreater(len(record["monitor"]["samples"]), 5)
        self.assertNotIn("operation", record["profiles"]["tiny"]["by"])
        for place in (self.folder, os.path.join(tempfile.gettempdir(), tempfile.gettempprefix())):
            self.assertNotIn(place, json.dumps(record))


class Cut(Gpu):
    def test_a_full_disk_leaves_the_figures_and_says_which_file_it_took(self):
        def small_files():
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000))
        done = subprocess.run([program(), *STEP, "--output", self.path("p")], text=True,
                              env=self.environment(), capture_output=True, timeout=300,
                              preexec_fn=small_files, restore_signals=False, check=False)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("--output", done.stderr)
        self.assertIn(self.path("p"), done.stderr)
        self.assertIn("adamw", self.read("ledger.csv"))
        self.assertIn("## Answers", self.read("SUMMARY.md"))
        self.assertRegex(self.read("SUMMARY.md"), r"\*\*Not written: .*ledger\.json")

    def test_ctrl_c_while_ncu_counts_keeps_the_run_before_it(self):
        waits = self.tool("waits", f"#!/bin/sh\ntouch {self.path('waits-now')}\nsleep 3600\n")
        environment = self.environment()
        environment["FLASHLAB_NCU"] = waits
        with subprocess.Popen([program(), *STEP, "--ncu", "--output", self.path("p")], text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              env=environment) as child:
            interrupt_once(self, child, self.path("waits-now"))
            _, errors = child.communicate(timeout=300)
        self.assertEqual(child.returncode, 130, errors)
        self.assertRegex(self.read("SUMMARY.md"), "- counters by ncu: .*interrupted")
        self.assertLessEqual(ALWAYS | MEMORY, set(os.listdir(self.path("p"))))

    def test_ctrl_c_while_the_gpu_records_keeps_the_steps_so_far(self):
        command = [program(), *STEP, "--steps", "5000", "--output", self.path("p")]
        environment = self.environment(FAKE_WORK_US="5000", FAKE_NVTX_LOG=self.path("ranges"))
        environment["NVTX_INJECTION64_PATH"] = environment["FLASHLAB_CUPTI"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                              env=environment) as child:
            # The range of the third has begun: two are recorded.
            interrupt_once(self, child, self.path("ranges"), "(recorded step", times=3)
            _, errors = child.communicate(timeout=300)
        self.assertEqual(child.returncode, 130, errors)
        ledger = json.loads(self.read("ledger.json"))
        self.assertTrue(ledger["interrupted"])
        self.assertTrue(0 < ledger["steps"] < 5000, ledger["steps"])
        self.assertIn("**Interrupted", self.read("SUMMARY.md"))
        self.assertEqual(trace_format.complaints(self.read("trace.json")), [])
        self.assertLessEqual(ALWAYS | MEMORY, set(os.listdir(self.path("p"))))


if __name__ == "__main__":
    cli_harness.main()
