"""profile step: the folder it leaves, on models that take milliseconds a step."""

import json
import os
import pickle
import re
import stat
import subprocess
import unittest
import xml.etree.ElementTree as xml

import cli_harness
import trace_format
from cli_harness import Folder, interrupt_once, program, run

SMALL = ["--layers", "2", "--width", "16", "--heads", "2", "--hidden", "24", "--batch", "2",
         "--vocabulary", "50", "--threads", "2", "--context", "16", "--quick"]


class ProfileStep(Folder):
    def profile(self, *arguments, code=0):
        result = run("profile", "step", *arguments)
        self.assertEqual(result.returncode, code, result.stderr + result.stdout)
        return result.stdout

    def listening(self):
        """An environment in which a tool writes the names of NVTX ranges to the file "ranges"."""
        tool = os.path.join(os.path.dirname(program()), "tests", "libflashlab_fake_cupti.so")
        return dict(os.environ, NVTX_INJECTION64_PATH=tool, FAKE_NVTX_LOG=self.path("ranges"))

    def read(self, *parts):
        with open(os.path.join(self.folder, *parts), "rb") as file:
            return file.read()

    def test_one_command_makes_the_folder(self):
        out = self.profile(*SMALL, "--attention", "naive", "--output", self.path("p"), "--memory")
        self.assertIn("step ", out)
        self.assertIn("predicted peak", out)
        self.assertIn("largest allocations", out)
        self.assertEqual(set(os.listdir(self.path("p"))),
                         {"SUMMARY.md", "report.html", "environment.json",
                          "ledger.txt", "ledger.csv", "ledger.json",
                          "trace.json", "stacks.folded", "flame.svg", "roofline.svg", "memory.svg",
                          "memory.json", "memory.pickle"})
        summary = self.read("p", "SUMMARY.md").decode()
        for part in ("Softmax against the products", "Matrix products' share", "First step",
                     "keeps", "- processor: ", "- times: a clock around every operation"):
            self.assertIn(part, summary)
        for picture in ("flame.svg", "roofline.svg", "memory.svg"):
            self.assertEqual(xml.fromstring(self.read("p", picture)).tag,
                             "{http://www.w3.org/2000/svg}svg")
        page = self.read("p", "report.html").decode()
        xml.fromstring(page.replace("<!DOCTYPE html>", ""))
        for outside in ("http://", "https://", "src=", "url("):
            self.assertNotIn(outside, page)

    def test_ranks_have_what_they_exchange_on_a_row_of_its_own(self):
        for mode in ("bucket", "fsdp"):
            done = run("launch", "-n", "2", "profile", "step", *SMALL, "--parallel", mode,
                       "--output", self.path("p"))
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertNotIn("[rank 1]", done.stderr)
            text = self.read("p", "trace.json").decode()
            self.assertEqual(trace_format.complaints(text), [])
            sent = [event for event in json.loads(text)["traceEvents"]
                    if event.get("cat", "") == "communication" or
                    "communication" in str(event.get("args", ""))]
            self.assertTrue(sent)
            self.assertEqual({event["tid"] for event in sent}, {2})
            ledger = json.loads(self.read("p", "ledger.json"))
            self.assertIn("communication", json.dumps(ledger))
        stream = re.compile("residual stream ([^;]+);")
        at = SMALL.index("--batch")
        model = SMALL[:at] + SMALL[at + 2:]
        half, whole = (run(*ranks, "profile", "step", *model, "--memory", "--batch", batch,
                           "--output", self.path("m"))
                       for ranks, batch in ((["launch", "-n", "2"], "4"), ([], "2")))
        self.assertEqual(stream.findall(half.stdout), stream.findall(whole.stdout))
        self.assertTrue(stream.findall(half.stdout), half.stderr)
        done = run("profile", "step", *SMALL, "--parallel", "bucket", "--output", self.path("q"))
        self.assertEqual(done.returncode, 2)
        self.assertIn("this process is alone", done.stderr)

    def test_the_trace_loads_as_perfetto_wants_it(self):
        for attention in ("naive", "cpu"):
            self.profile(*SMALL, "--attention", attention, "--output", self.path("p"))
            text = self.read("p", "trace.json").decode()
            self.assertEqual(trace_format.complaints(text), [])
            trace = json.loads(text)
            names = {event["name"] for event in trace["traceEvents"] if event["ph"] == "X"}
            self.assertLessEqual({"warm-up 1", "step 1", "forward", "backward", "optimizer",
                                  "layer 0", "attention"}, names)

    def test_the_check_of_traces_finds_what_perfetto_would_not_show(self):
        def trace(*ranges, **more):
            events = [{"ph": "M", "name": "thread_name", "pid": 1, "tid": 1, "args": {}}]
            events += [{"ph": "X", "name": "n", "pid": 1, "tid": 1, "ts": start, "dur": length,
                        **more} for start, length in ranges]
            return json.dumps({"traceEvents": events})
        self.assertEqual(trace_format.complaints(trace((0, 10), (0, 4), (4, 6), (10, 1))), [])
        for wrong, why in ((trace((0, 10), (4, 7)), "crosses"), (trace((0, -1)), "dur is -1"),
                           (trace((0, float("nan"))), "not JSON"), ("{", "not JSON"),
                           ("{}", "no traceEvents"), (trace((0, 1), tid=2), "no name"),
                           (trace((0, 1), ph="B"), "phase B")):
            self.assertIn(why, "\n".join(trace_format.complaints(wrong)), wrong)

    def test_operations_add_up_to_the_step(self):
        self.profile(*SMALL, "--output", self.path("p"))
        ledger = json.loads(self.read("p", "ledger.json"))
        self.assertEqual(ledger["schema"], "flashlab.ledger/1")
        for rows in ledger["by"].values():
            self.assertAlmostEqual(sum(row["total_ms"] for row in rows),
                                   ledger["operations_ms"], delta=1e-6)
        self.assertGreater(ledger["operations_ms"], 0)

    def test_the_snapshot_unpickles_as_the_viewer_reads_it(self):
        self.profile(*SMALL, "--output", self.path("p"))
        snapshot = pickle.loads(self.read("p", "memory.pickle"))
        self.assertEqual(set(snapshot), {"segments", "device_traces", "external_annotations",
                                         "allocator_settings"})
        for segment in snapshot["segments"]:
            self.assertLessEqual({"address", "total_size", "stream", "segment_type",
                                  "allocated_size", "active_size", "device", "blocks"},
                                 set(segment))
            self.assertEqual(sum(block["size"] for block in segment["blocks"]),
                             segment["total_size"])
        live = {}
        for entry in snapshot["device_traces"][0]:
            if entry["action"] == "alloc":
                self.assertNotIn(entry["addr"], live)
                live[entry["addr"]] = entry["size"]
            elif entry["action"] == "free_completed":
                self.assertEqual(live.pop(entry["addr"]), entry["size"])
        memory = json.loads(self.read("p", "memory.json"))
        self.assertEqual(sum(live.values()),
                         sum(e["bytes"] for e in memory["events"] if e["operation"] == -1))

    def test_a_dry_run_prints_peaks_of_any_model(self):
        out = self.profile("--size", "2.7B", "--context", "128,256,512", "--dry-run", "--memory",
                           "--output", self.path("p"))
        lines = [line.split() for line in out.splitlines() if " fp32 " in line or " bf16 " in line]
        self.assertEqual([line[0] for line in lines[:6]],
                         ["128", "128", "256", "256", "512", "512"])
        residual = [line for line in out.splitlines() if line.split()[1:2] == ["fp32"]]
        self.assertEqual([" ".join(line.split()[-2:]) for line in residual],
                         ["5 MiB", "10 MiB", "20 MiB"])
        self.assertEqual(sorted(os.listdir(self.path("p"))),
                         ["context-128", "context-256", "context-512"])
        self.assertIn("<svg", self.read("p", "context-512", "memory.svg").decode())

    def test_a_profilers_ranges_name_steps_phases_layers_and_attention(self):
        result = run("profile", "step", *SMALL, "--attention", "naive", "--output", self.path("p"),
                     env=self.listening())
        self.assertEqual(result.returncode, 0, result.stderr)
        paths, stack = [], []
        for line in self.read("ranges").decode().splitlines():
            if line == ")":
                stack.pop()
            else:
                stack.append(line[1:])
                paths.append(" / ".join(stack))
        self.assertEqual(stack, [], "every range ends")
        for path in ("warm-up / forward / layer 0 / attention / scores",
                     "step / forward / layer 1 / attention / softmax",
                     "recorded step / forward / layer 1 / attention / values",
                     "recorded step / backward / layer 0", "recorded step / optimizer"):
            self.assertIn(path, paths)

    def test_a_pipe_a_link_and_a_device_are_written_to_not_replaced(self):
        pipe, link, real = self.path("pipe"), self.path("link"), self.path("real", b"")
        os.mkfifo(pipe)
        os.symlink(real, link)
        reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
        self.addCleanup(os.close, reader)
        # A dry run's ledger is short enough for a pipe that nobody empties meanwhile.
        for file in (pipe, link):
            self.profile("--size", "small", "--dry-run", "--output", self.path("p"),
                         "--json", file)
        self.assertEqual(json.loads(os.read(reader, 1 << 20))["schema"], "flashlab.ledger/1")
        self.assertTrue(stat.S_ISFIFO(os.stat(pipe).st_mode))
        self.assertTrue(os.path.islink(link))
        with open(real, encoding="utf-8") as file:
            self.assertEqual(json.load(file)["schema"], "flashlab.ledger/1")

    def test_ctrl_c_before_the_first_step_says_what_that_leaves_out(self):
        command = [program(), "profile", "step", "--warmup", "1000", "--context", "512",
                   "--device", "cpu", "--output", self.path("p")]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              text=True, env=self.listening()) as child:
            interrupt_once(self, child, self.path("ranges"), "(warm-up")
            out, errors = child.communicate(timeout=300)
        self.assertEqual(child.returncode, 130, errors)
        self.assertIn(os.path.join("p", "SUMMARY.md"), out)
        self.assertRegex(self.read("p", "SUMMARY.md").decode(),
                         "- ledger, trace, .*: interrupted before the first recorded step")
        self.assertLessEqual({"memory.svg", "environment.json", "report.html"},
                             set(os.listdir(self.path("p"))))

    def test_json_alone_on_stdout(self):
        out = self.profile(*SMALL, "--json", "-", "--output", self.path("p"))
        self.assertEqual(json.loads(out)["steps"], 3)

    def test_bad_input_is_told_before_anything_runs(self):
        self.refused(["profile", "step", "--by", "colour"], "--by", "kernel")
        self.refused(["profile", "step", "--steps", "0"], "--steps")
        self.refused(["profile", "step", "--size", "xl"], "xl-2025", "xl-2026")
        self.refused(["profile", "step", "--heads", "3", "--width", "16"], "heads")
        file = self.path("file", b"")
        self.refused(["profile", "step", *SMALL, "--output", os.path.join(file, "p")], "--output")


class ProfileAttention(Folder):
    def test_naive_shows_softmax_against_products(self):
        result = run("profile", "attention", "--device", "cpu", "--implementation",
                     "naive,cpu",
                     "--batch", "1", "--heads", "2", "--head-dim", "16", "--seqlen", "64",
                     "--dtype", "fp32", "--quick", "--threads", "2", "--output", self.path("p"))
        self.assertEqual(result.returncode, 0, result.stderr)
        for kernel in ("scores", "softmax", "values", "probabilities", "dq", "cpu"):
            self.assertRegex(result.stdout, rf"(?m)^{kernel} ")
        with open(self.path("p/ledger.json")) as file:
            ledger = json.load(file)
        flops = {row["key"]: row["flops"] for row in ledger["by"]["kernel"]}
        # 2 heads of 64 x 64 scores, each 2 x 16 FLOPs in a product and 5 in softmax.
        self.assertAlmostEqual(flops["scores"], 2 * 64 * 64 * 2 * 16, delta=1)
        self.assertAlmostEqual(flops["softmax"], 2 * 64 * 64 * 5, delta=1)
        self.assertAlmostEqual(flops["dq"], flops["scores"], delta=1)
        # Softmax reads and writes them in fp32.
        by_kernel = {row["key"]: row for row in ledger["by"]["kernel"]}
        self.assertAlmostEqual(by_kernel["softmax"]["bytes"], 2 * 64 * 64 * 8, delta=1)
        self.assertEqual(by_kernel["softmax"]["bound"], "memory")
        with open(self.path("p/SUMMARY.md")) as file:
            summary = file.read()
        self.assertIn("Softmax against the products", summary)
        self.assertRegex(summary, r"- cpu forward, against naive: (good|fair|poor): \S+x as fast")
        with open(self.path("p/report.html")) as file:
            page = file.read()
        for section in ("limits", "comparison", "ledger", "pictures", "environment"):
            self.assertIn(f'<section id="{section}"', page)
            self.assertIn(f'<a href="#{section}">', page)
        with open(self.path("p/results.json")) as file:
            self.assertEqual(json.load(file)["schema"], "flashlab.bench/1")

    def test_one_problem_only(self):
        self.refused(["profile", "attention", "--device", "cpu", "--seqlen", "64,128"],
                     "one problem", "compare")


if __name__ == "__main__":
    cli_harness.main()
