#!/usr/bin/env python3
"""Results keep their form, and what was measured is kept whatever happens."""

import json
import os
import re
import resource
import signal
import subprocess
import time
import zipfile
import xml.etree.ElementTree as ElementTree

import cli_harness
from cli_harness import (SMALL, Folder, attention_file, attention_npz, run, safetensors,
                         with_times)

BENCH_KEYS = {
    "implementation", "device", "pass", "dtype", "batch", "heads_q", "heads_k", "head_dim",
    "head_dim_v", "seqlen_q", "seqlen_k", "mask", "status", "message", "median_ms", "min_ms",
    "mean_ms", "max_ms", "std_ms", "tflops", "tflops_peak", "roof_share", "gb_per_s", "peak_bytes",
    "workspace_bytes", "memory_before_backward_bytes", "process_peak_bytes", "error_vs_fp64",
    "naive_error_vs_fp64", "error_sample", "seed", "plan"}


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
            for result in with_times(results, factor)["results"]:
                result["roof_share"] = result["roof_share"] * share
            return self.path("changed.json", json.dumps(results).encode())
        # As if it had been a thousand times faster, at a thousand times the share.
        done = run("bench", *SMALL, "--baseline", changed(1e-3, 1e3))
        self.verdict(done, "slower", 3)
        done = run("bench", *SMALL, "--baseline", changed(1e6, 1e-6))
        self.verdict(done, "faster", 0)

    def test_ragged_batches_are_named_by_their_mix(self):
        saved = self.path("ragged.json")
        ragged = ("bench", "--heads", "2", "--lengths", "chat:1k", "--attention-chunk", "200",
                  "--sinks", "--seed", "3", "--device", "cpu", "--check", "--repeats", "3")
        done = run(*ragged, "--json", saved)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("--lengths chat:1024, seed 3: ", done.stderr)
        with open(saved, encoding="utf-8") as file:
            result = json.load(file)["results"][0]
        self.assertEqual([result[name] for name in ("lengths", "chunk", "sinks", "seed")],
                         ["chat:1024", 200, True, 3])
        again = run(*ragged, "--baseline", saved)
        self.assertIn("baseline", again.stdout)
        self.assertNotIn("nothing was compared", again.stdout)

    def test_caches_are_named_by_their_pages(self):
        saved = self.path("cache.json")
        cached = ("bench", "--batch", "2", "--heads", "2", "--cache-length", "100,60", "--queries",
                  "3", "--page-size", "16", "--causal=bottom-right", "--device", "cpu", "--check",
                  "--repeats", "3")
        done = run(*cached, "--json", saved)
        self.assertEqual(done.returncode, 0, done.stderr)
        with open(saved, encoding="utf-8") as file:
            results = json.load(file)["results"]
        self.assertEqual([[r[name] for name in ("seqlen_q", "seqlen_k", "page_size")]
                          for r in results], [[3, 100, 16], [3, 60, 16]])
        again = run(*cached, "--baseline", saved)
        self.assertIn("baseline", again.stdout)
        self.assertNotIn("nothing was compared", again.stdout)

    def test_keys_of_their_own_lengths_are_named(self):
        saved = self.path("mixed.json")
        mixed = ("bench", "--heads", "2", "--head-dim", "16", "--lengths", "9+3x1", "--lengths-k",
                 "any", "--cache-length", "16k", "--page-size", "16", "--causal=bottom-right",
                 "--device", "cpu", "--check", "--repeats", "2")
        done = run(*mixed, "--json", saved)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("--lengths-k any, seed 1: ", done.stderr)
        with open(saved, encoding="utf-8") as file:
            result = json.load(file)["results"][0]
        self.assertEqual([result[name] for name in ("lengths", "lengths_k", "page_size",
                                                    "cache_length", "status")],
                         ["9+3x1", "any", 16, 16384, "ok"])
        again = run(*mixed, "--baseline", saved)
        self.assertNotIn("nothing was compared", again.stdout)

    def test_a_sweep_prints_its_ratios(self):
        done = run("bench", "--sweep", "mixed", "--heads", "1", "--kv-heads", "1", "--head-dim",
                   "8", "--device", "cpu", "--repeats", "1", "--warmup", "0", timeout=300)
        self.assertEqual(done.returncode, 0, done.stderr)
        ratios = [line for line in done.stdout.splitlines() if line.startswith("ratio ")]
        self.assertEqual(len(ratios), 2, done.stdout)
        self.assertIn("cpu forward: one call over the two apart", ratios[1])
        self.assertGreater(float(ratios[1].split()[1]), 0)

    def test_a_baseline_of_other_threads_is_named_and_fails(self):
        saved = self.path("saved.json")
        one = run("bench", *SMALL, "--threads", "1", "--json", saved)
        self.assertEqual(one.returncode, 0, one.stderr)
        done = run("bench", *SMALL, "--threads", "2", "--baseline", saved)
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertIn("nothing was compared: threads 1 then, 2 now", done.stdout)
        self.assertNotIn("machine itself", done.stdout)
        other = run("bench", *SMALL, "--threads", "1", "--head-dim-v", "8", "--baseline", saved)
        self.assertEqual(other.returncode, 1, other.stdout)
        self.assertIn("nothing was compared", other.stdout)

    def test_an_interrupted_run_says_so(self):
        # The second case takes minutes in one call; Ctrl-C does not wait for it.
        names = {kind: self.path("cut." + kind) for kind in ("json", "csv", "markdown", "latex")}
        files = [word for kind, name in names.items() for word in ("--" + kind, name)]
        process = subprocess.Popen(
            [cli_harness.program(), "bench", "--implementation", "reference", "--batch", "1",
             "--heads", "8", "--head-dim", "64", "--seqlen", "16,16k", "--repeats", "1",
             "--warmup", "1", *files], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        def rows():
            try:
                with open(names["json"], encoding="utf-8") as file:
                    return json.load(file)["results"]
            except OSError:
                return []
        deadline = time.monotonic() + 300
        while not rows() and time.monotonic() < deadline:
            time.sleep(0.1)
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=300)
        self.assertEqual(process.returncode, 130, error)
        self.assertIn("interrupted, 1 of 2 measured", error)
        for name in names.values():
            with open(name, encoding="utf-8") as file:
                text = file.read()
            self.assertIn('"interrupted": true' if name.endswith("json")
                          else "interrupted, 1 of 2 measured", text)

    def test_fewer_samples_than_asked_for_say_so(self):
        # One row, its samples under way: it is kept, and the run is not whole. How long a busy
        # machine takes to its first sample is not known.
        path = self.path("few.json")
        for wait in (2, 8, 30):
            process = subprocess.Popen(
                [cli_harness.program(), "bench", "--implementation", "naive", "--batch", "1",
                 "--heads", "1", "--head-dim", "64", "--seqlen", "512", "--repeats", "1000000",
                 "--json", path], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            time.sleep(wait)
            process.send_signal(signal.SIGINT)
            _, error = process.communicate(timeout=300)
            self.assertEqual(process.returncode, 130, error)
            with open(path, encoding="utf-8") as file:
                saved = json.load(file)
            self.assertTrue(saved["interrupted"])
            if saved["results"]:
                break
        self.assertIn("interrupted, 0 of 1 measured, 1 in part", error)
        self.assertTrue(saved["results"][0]["cut_short"])
        self.assertGreater(saved["results"][0]["samples"], 0)

    def test_too_large_is_known_before_anything_is_filled(self):
        done = run("bench", "--implementation", "naive", "--batch", "64", "--seqlen", "512k",
                   "--head-dim", "8", "--heads", "1", "--json", "-", timeout=300)
        self.assertEqual(done.returncode, 1, done.stderr)
        row = json.loads(done.stdout)["results"][0]
        self.assertEqual(row["status"], "oom")
        self.assertIn("keeps no scores", row["message"])
        most = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
        self.assertLess(most, 2 << 20, "KiB: tensors of 4 GiB were filled")

    def test_input_files(self):
        path = self.path("mine.safetensors", attention_file())
        done = run("bench", "--repeats", "2", "--input", path, "--pass", "both", "--check",
                   "--json", "-")
        self.assertEqual(done.returncode, 0, done.stderr)
        results = json.loads(done.stdout)["results"]
        shapes = [(r["heads_q"], r["heads_k"], r["seqlen_q"], r["status"]) for r in results]
        self.assertEqual(shapes, [(4, 2, 12, "ok")] * 2)
        check = run("check", "--input", path)
        self.assertEqual(check.returncode, 0, check.stdout + check.stderr)
        self.assertIn("backward", check.stdout)
        for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            npz = self.path("mine.npz", attention_npz(method))
            done = run("bench", "--repeats", "2", "--input", npz, "--check", "--json", "-")
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(json.loads(done.stdout)["results"][0]["heads_k"], 2)
        other = run("bench", "--repeats", "2", "--input", path, "--dtype", "bf16", "--json", "-")
        self.assertEqual(json.loads(other.stdout)["results"][0]["dtype"], "bf16")

    def test_the_mean_rate_stands_beside_the_median(self):
        done = run("bench", *SMALL, "--dtype", "fp32", "--json", self.path("r.json"))
        with open(self.path("r.json"), encoding="utf-8") as file:
            row = json.load(file)["results"][0]
        rates = re.search(r"rate +median ([0-9.]+) · mean ([0-9.]+) · peak", done.stdout)
        self.assertIsNotNone(rates, done.stdout)
        for shown, ms in zip(rates.groups(), (row["median_ms"], row["mean_ms"])):
            exact = 1e3 * row["tflops"] * row["median_ms"] / ms
            self.assertAlmostEqual(float(shown) / exact, 1, delta=0.01)

    def test_a_share_of_the_roof_stands_beside_its_own_rate(self):
        done = run("bench", *SMALL, "--dtype", "fp32", "--json", self.path("r.json"))
        with open(self.path("r.json"), encoding="utf-8") as file:
            row = json.load(file)["results"][0]
        line = re.search("roof +([0-9.]+) of ([0-9.]+) GFLOP/s in alternating windows: ([0-9.]+)%",
                         done.stdout)
        self.assertIsNotNone(line, done.stdout)
        rate, roof, share = map(float, line.groups())
        self.assertAlmostEqual(rate / roof, row["roof_share"], delta=0.01)
        self.assertAlmostEqual(share, 100 * row["roof_share"], delta=0.6)

    def test_nan_of_an_input_file_is_remarked(self):
        path = self.path("nan.safetensors", safetensors(
            {name: ((1, 2, 1, 4), [float("nan") if name == "k" else 1.0] * 8) for name in "qkv"}))
        for words in (("check",), ("bench", "--repeats", "2")):
            done = run(*words, "--input", path)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("k holds NaN; rows of the output that it reaches become NaN",
                          done.stderr)
            self.assertNotIn("q holds", done.stderr)


if __name__ == "__main__":
    cli_harness.main()
