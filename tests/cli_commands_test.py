#!/usr/bin/env python3
"""Each command does its work; Ctrl-C, terminals and linking."""

import json
import os
import re
import shutil
import signal
import subprocess
import time

import cli_harness
from cli_harness import SMALL, Folder, on_terminal, program, run

# The comparison's width and what there is for it, and its rows before and after two clicks.
PROBE = """<script>
addEventListener("load", () => {
  const box = document.querySelector("#comparison .scroll");
  const rows = () => [...box.querySelectorAll("tbody tr")].map(
    row => row.classList.contains("note") ? "note" : row.cells[0].textContent);
  const out = [[box.scrollWidth, box.clientWidth], rows()];
  for (let click = 0; click !== 2; click += 1) {
    box.querySelectorAll("thead th:not(.over)")[1].click();
    out.push(rows());
  }
  const text = document.createElement("pre");
  text.id = "probe";
  text.textContent = JSON.stringify(out);
  document.body.append(text);
});
</script>"""


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

    def test_info_names_the_libraries_of_peers(self):
        libraries = {"libcublasLt.so": ("FLASHLAB_CUBLASLT", "pip install nvidia-cublas"),
                     "libcudnn.so": ("FLASHLAB_CUDNN", "pip install nvidia-cudnn-cu13"),
                     "libcupti.so": ("FLASHLAB_CUPTI", "pip install nvidia-cuda-cupti")}
        # As they are on this machine, missing, and a file that is another library.
        found = json.loads(run("info", "--json", "-").stdout)
        for file in ("/nowhere/lib.so", "libc.so.6"):
            env = {**os.environ, **{variable: file for variable, _ in libraries.values()}}
            done = run("info", env=env)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(done.stderr, "")
            text = " ".join(done.stdout.split())
            data = json.loads(run("info", "--json", "-", env=env).stdout)
            for name, (_, remedy) in libraries.items():
                self.assertIn(f"{name} not found", text)
                self.assertIn(remedy, text)
                self.assertFalse(data["libraries"][name])
                self.assertIsNone(data["library_paths"][name])
                self.assertEqual(found["libraries"][name],
                                 found["library_paths"][name] is not None)

    def test_compare_of_the_ladder(self):
        done = run("compare", "--ladder", "--device", "cpu", "--dtype", "fp32", "--pass", "forward",
                   "--batch", "1", "--heads", "2", "--head-dim", "16", "--seqlen", "64",
                   "--repeats", "3", "--output", self.path("ladder"))
        self.assertEqual(done.returncode, 0, done.stderr)
        table = done.stdout[done.stdout.index("ladder   "):].split("\n")[2:5]
        self.assertEqual([line.split()[0] for line in table], ["naive", "fa2-plain", "cpu"])
        self.assertEqual(table[0].split()[2:4], ["-", "-"])
        for line in table[1:]:
            for ratio in line.split()[2:4]:  # any number: a busy machine decides how large
                self.assertEqual(ratio[-1], "x", line)
                self.assertGreater(float(ratio[:-1]), 0)
        self.refused(["compare", "--ladder", "--implementation", "cpu"], "--ladder chooses")

    def test_warmup_may_be_left_out(self):
        done = run("bench", *SMALL[:-2], "--warmup", "0", "--json", "-")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("0 warm-ups", json.loads(done.stdout)["environment"]["protocol"])

    def test_info_roof(self):
        data = json.loads(run("info", "--roof", "--json", "-").stdout)
        for key in ("roof_fp32_gflops", "roof_bf16_gflops", "copy_gb_per_s"):
            self.assertGreater(data["environment"][key], 0)

    def test_explain(self):
        done = run("explain", "--head-dim", "128", "--seqlen", "16k", "--causal", "--pass", "both")
        self.assertEqual(done.returncode, 0, done.stderr)
        for word in ("plan", "kernel", "workspace", "flash_fwd", "flash_bwd"):
            self.assertIn(word, done.stdout)
        memory = run("explain", "--seqlen", "1k", "--batch", "1", "--heads", "8", "--head-dim",
                     "64", "--memory")
        self.assertEqual(memory.returncode, 0, memory.stderr)
        self.assertIn("[1, 1024, 8, 64]", memory.stdout)
        # Nothing is allocated: a case far beyond this machine is explained as well.
        huge = run("explain", "--seqlen", "16777216k", "--memory", "--implementation", "cpu")
        self.assertEqual(huge.returncode, 0, huge.stderr)

    def test_explain_describes_a_gpu_that_is_not_here(self):
        words = ["explain", "--arch", "sm_90a,sm_80", "--dtype", "bf16", "--head-dim", "128",
                 "--seqlen", "16k", "--causal", "--pass", "both"]
        done = run(*words)
        self.assertEqual(done.returncode, 0, done.stderr)
        hopper, ampere = done.stdout.split("A100 (sm_80)")
        self.assertIn("H200 (sm_90a), described: 132 multiprocessors", hopper)
        self.assertRegex(hopper, r"\d+ tiles of \d+ queries, in steps of \d+ keys · \d+ stages")
        self.assertRegex(ampere, r"tile of \d+ queries x \d+ keys · \d stages · \d+ blocks of \d+ "
                                 r"warps · [0-9.]+ KiB\s+of\s+shared\s+memory each")
        self.assertNotIn("kTile", done.stdout)
        constants = run(*words, "--verbose").stdout
        self.assertIn("constants  flash_bwd_sm90, src/cuda/kernels/sm90/backward/kernel.cu",
                      constants)
        self.assertIn("constants  flash_bwd_sm80, src/cuda/kernels/sm80/backward/kernel.cu",
                      constants)
        self.assertRegex(constants, r"kTileQ \d+")
        bytes_of = run("explain", "--arch", "sm_80", "--memory", "--implementation", "naive")
        self.assertRegex(bytes_of.stdout, r"together +\d")
        self.refused(["explain", "--arch", "sm_12"], "sm_12", "sm_90a")
        self.refused(["explain", "--arch", "sm_80", "--device", "cpu"], "use one of them")
        self.refused(["explain", "--arch", "sm_80", "--implementation", "fa1",
                      "--pass", "backward"], "'fa1' on cuda:0 lacks backward", "use sm80")
        self.refused(["explain", "--implementation", "fa2", "--device", "cpu"],
                     "got 'fa2', which runs on cuda", "use fa2-plain")

    def test_weighted_sum(self):
        done = run("bench", "weighted-sum", "--rows", "64,128", "--dim", "32", "--repeats", "3",
                   "--check", "--json", "-")
        self.assertEqual(done.returncode, 0, done.stderr)
        data = json.loads(done.stdout)
        self.assertEqual(data["schema"], "flashlab.bench/1")
        self.assertEqual([(r["pass"], r["implementation"], r["rows"]) for r in data["results"]],
                         [(p, f, n) for n in (64, 128) for p in ("forward", "backward")
                          for f in ("naive", "vector")])
        for result in data["results"]:
            self.assertEqual(result["status"], "ok", result["message"])
            self.assertGreater(result["median_ms"], 0)
            self.assertLess(result["error_vs_fp64"], 1e-3)
        # What files, baselines and reports do is the same for every subject.
        saved = self.path("sums.json")
        done = run("bench", "weighted-sum", "--rows", "64,128", "--dim", "32", "--repeats", "3",
                   "--json", saved, "--output", self.path("sums"))
        self.assertEqual(done.returncode, 0, done.stderr)
        with open(os.path.join(self.path("sums"), "report.html"), encoding="utf-8") as report:
            page = report.read()
        self.assertIn("Weighted sum on", page)
        self.assertIn("rows 128", page)
        again = run("bench", "weighted-sum", "--rows", "64", "--dim", "32", "--repeats", "3",
                    "--baseline", saved)
        self.assertIn("baseline", again.stdout)
        text = run("bench", "weighted-sum", "--rows", "64", "--dim", "32", "--repeats", "3")
        self.assertIn("GB/s", text.stdout)
        self.refused(["bench", "weighted-sum", "--seqlen", "5"], "does not take --seqlen")
        self.refused(["bench", "weighted-sum", "--dtype", "fp64"], "--dtype", "bf16")
        half = run("bench", "weighted-sum", "--rows", "64", "--dim", "32", "--repeats", "3",
                   "--device", "cpu", "--dtype", "fp32,bf16", "--json", "-")
        self.assertEqual(half.returncode, 0, half.stderr)
        self.assertEqual([(r["dtype"], r["status"]) for r in json.loads(half.stdout)["results"]],
                         [("fp32", "ok")] * 4 + [("bf16", "unsupported")] * 4)
        self.assertIn("--device cuda", json.loads(half.stdout)["results"][4]["message"])
        huge = run("bench", "weighted-sum", "--rows", "1000000k", "--dim", "1000000")
        self.assertEqual(huge.returncode, 1)
        self.assertIn("oom", huge.stdout)

    def test_compare(self):
        folder = self.path("report")
        done = run("compare", *SMALL, "--dtype", "fp32,bf16", "--output", folder)
        self.assertEqual(done.returncode, 0, done.stderr)
        for word in ("naive", "fa2-plain", "cpu", "fastest", "least memory", "most accurate",
                     "report   " + os.path.join(folder, "report.html")):
            self.assertIn(word, done.stdout)
        self.assertNotIn("\x1b", done.stdout)
        with open(os.path.join(folder, "results.json"), encoding="utf-8") as file:
            results = json.load(file)["results"]
        names = {r["implementation"] for r in results if r["status"] == "ok"}
        self.assertLessEqual({"cpu", "naive", "fa2-plain"}, names)
        for result in results:
            if result["status"] == "ok":
                self.assertIsNotNone(result["error_vs_fp64"])

    def test_the_page_in_a_browser(self):
        browser = shutil.which("chromium") or shutil.which("google-chrome")
        if not browser:
            self.skipTest("no chromium")
        folder = self.path("report")
        self.assertEqual(run("compare", *SMALL, "--dtype", "fp32", "--output",
                             folder).returncode, 0)
        with open(os.path.join(folder, "report.html"), encoding="utf-8") as file:
            page = file.read()
        probed = self.path("probed.html", page.replace("</body>", PROBE + "</body>").encode())
        for width in (1400, 1920):
            shown = subprocess.run(
                [browser, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom",
                 f"--user-data-dir={self.path('browser')}", f"--window-size={width},1200", probed],
                capture_output=True, text=True, timeout=300, check=False).stdout
            found = re.search("<pre id=\"probe\">(.*?)</pre>", shown, re.S)
            if not found:
                self.skipTest("the browser does not run here")
            table, before, once, twice = json.loads(found.group(1))
            self.assertLessEqual(table[0], table[1], f"cut at {width} pixels")
            # By time, the slowest first, then the other way; what naive notes stays below it.
            self.assertEqual(sorted(before), sorted(once))
            self.assertNotEqual(once, twice)
            for order in (once, twice):
                self.assertEqual(order.index("note"), order.index("naive") + 1)

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

    def test_check_of_a_problem_of_ones_own(self):
        shape = ["--heads", "4", "--kv-heads", "2", "--dtype", "bf16"]
        for given, items in (
                (["--lengths", "3+20x1+0", "--causal=bottom-right"], ["forward o", "backward dk"]),
                (["--cache-length", "90", "--page-size", "7", "--queries", "3"], ["forward o"]),
                (["--lengths", "5+2x1", "--lengths-k", "9+0+70"], ["forward lse", "backward dq"])):
            done = run("check", *given, *shape, "--json", "-")
            self.assertEqual(done.returncode, 0, done.stderr + done.stdout[-3000:])
            data = json.loads(done.stdout)
            served = [r for r in data["reports"] if r["status"] == "ok"]
            self.assertIn("cpu", [r["implementation"] for r in served])
            for report in served:
                names = [item["what"] for item in report["items"]]
                self.assertLessEqual(set(items), set(names))
        self.assertIn("bf16 cpu", run("check", *shape, "--seqlen", "65").stdout)

    def test_links_little(self):
        listed = subprocess.run(["ldd", program()], capture_output=True, text=True, check=False)
        if listed.returncode != 0 or "libasan" in listed.stdout or "libtsan" in listed.stdout:
            self.skipTest("not a plain dynamic program")
        names = {line.split()[0].split("/")[-1] for line in listed.stdout.splitlines() if line}
        names = {name for name in names if not name.startswith(("linux-vdso", "ld-linux"))}
        allowed = {"libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1"}
        self.assertLessEqual(names, allowed | ({"libflashlab.so.0.1"} & names))


class Interrupts(Folder):
    def interrupted(self, arguments, wait_for):
        path = self.path("kept.json")
        process = subprocess.Popen([program(), *arguments, "--json", path], stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True)
        deadline = time.monotonic() + 300
        while time.monotonic() < deadline:
            try:
                with open(path, encoding="utf-8") as file:
                    if len(json.load(file)["results"]) >= wait_for:
                        break
            except (OSError, ValueError):
                pass
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=300)
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

    def test_compare_still_writes_its_report(self):
        folder = self.path("report")
        process = subprocess.Popen(
            [program(), "compare", "--batch", "1", "--heads", "1", "--head-dim", "16", "--dtype",
             "fp32", "--pass", "forward", "--seqlen", ",".join(str(n) for n in range(16, 400)),
             "--repeats", "3", "--output", folder],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        line = ""
        while "fastest" not in line:  # the first problem's block is complete
            line = process.stdout.readline()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=300)
        self.assertEqual(process.returncode, 130, err)
        self.assertIn("report.html", out)
        with open(os.path.join(folder, "results.json"), encoding="utf-8") as file:
            self.assertGreaterEqual(len(json.load(file)["results"]), 3)

    def test_progress_and_colours_only_on_a_terminal(self):
        command = ["compare", *SMALL, "--dtype", "fp32", "--pass", "forward", "--output",
                   self.path("report")]
        plain = {k: v for k, v in os.environ.items() if k != "NO_COLOR"}
        code, coloured = on_terminal(self, *command, env=plain)
        self.assertEqual(code, 0, coloured)
        self.assertIn("█", coloured)
        self.assertRegex(coloured, "\x1b\\[[0-9;]*m")
        self.assertNotRegex(on_terminal(self, *command, env={**plain, "NO_COLOR": "1"})[1],
                            "\x1b\\[[0-9;]*m")

    def test_progress_says_how_long_it_takes(self):
        code, text = on_terminal(self, "bench", "--seqlen", "512", "--implementation", "naive",
                                 "--repeats", "20000", until=" left")
        self.assertRegex(text, r"% .* · about \d+(\.\d)? (s|min|h) left")
        self.assertEqual(code, 130)

    def test_nothing_is_wider_than_80_columns(self):
        steps = ["--warmup", "0", "--repeats", "2"]
        gpu = ["explain", "--arch", "sm_90a", "--pass", "both"]
        for command in (["bench", *SMALL, "--pass", "both", "--check"],
                        ["bench", *SMALL[:-6], "--seqlen", "16,32", *steps],
                        ["bench", *SMALL, "--implementation", "fa2-plain", "--pass", "backward"],
                        ["bench", "weighted-sum", "--rows", "64,128", "--dim", "32", *steps],
                        ["bench", "step", *steps],
                        ["compare", *SMALL, "--dtype", "fp32", "--output", self.path("report")],
                        ["explain", "--pass", "both"], gpu, [*gpu, "--verbose"],
                        ["explain", "--memory"], ["explain", "step"], ["info"],
                        ["check", "--case", "fp32-window-both"], ["bench", "--help"]):
            code, text = on_terminal(self, *command, columns=80)
            self.assertEqual(code, 0, text)
            for line in re.sub("\x1b\\[[0-9;]*[A-Za-z]", "", text).split("\n"):
                line = line.rstrip("\r").split("\r")[-1]
                self.assertLessEqual(len(line), 80, f"{command}: {line}")


if __name__ == "__main__":
    cli_harness.main()
