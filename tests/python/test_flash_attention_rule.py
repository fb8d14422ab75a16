#!/usr/bin/env python3
"""FlashAttention's test rule on flashlab.torch, a small sample on the CPU; and the rule itself.

The sweep over all cases, on a GPU: flash_attention_rule.py.
"""

import io
import json
import math
import os
import sys
import tempfile
import unittest
from contextlib import redirect_stdout
from unittest import mock

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import flash_attention_cases as cases

try:
    import torch
    import flashlab.torch
    import flash_attention_math as maths
    import flash_attention_rule as rule
except ImportError as error:
    torch, WHY = None, f"skipped: no {error.name}"
else:
    WHY = ""

SMALL = 5e6  # multiply-adds of a case that a CPU does in milliseconds


def visit(folder, *more):
    """(exit code, output, {file: record}) of one run of the runner."""
    start = os.path.join(folder, "rule")
    argv = ["flash_attention_rule.py", "--device", "cpu", "--jobs", "0", "--json", start,
            "--max-work", str(SMALL), "--repeats", "3", "--time-limit", "3600", *more]
    output = io.StringIO()
    with mock.patch.object(sys, "argv", argv), redirect_stdout(output):
        code = rule.main()
    records = {}
    for file in cases.FILES:
        if os.path.exists(f"{start}-{file}.json"):
            with open(f"{start}-{file}.json", encoding="utf-8") as stream:
                records[file] = json.load(stream)
    return code, output.getvalue(), records


class Matrices(unittest.TestCase):
    def test_sizes_are_those_of_the_originals(self):
        # 14400 parametrisations of FlashAttention-3's output test, 8160 without those it skips.
        sweep = cases.SWEEPS["fa3:output"]
        inner = ("dv", "chunk")
        self.assertEqual(sweep.size() // (4 * 2), 14400)
        outer = {tuple(v for a, v in case.items() if a not in inner) for case in sweep.cases()}
        self.assertEqual(len(outer), 8160)
        self.assertEqual(cases.SWEEPS["fa2:qkvpacked"].size(), 6144)
        self.assertEqual(sum(1 for _ in cases.SWEEPS["fa4:output"].cases()),
                         3 * 2 * 2 * 2 * 5 * 6 * 26)  # causal, or one of four bounds: 5

    def test_names_lead_back_to_cases(self):
        for sweep in cases.SWEEPS.values():
            case = next(sweep.cases())
            self.assertEqual(cases.find(sweep.case_name(case)), (sweep, case))
        for wrong in ("fa2", "fa2:nothing:d=1", "fa2:causal:d=64",
                      "fa4:small_head_dim:causal=0,d=9,seqlens=128x128"):
            with self.assertRaises(ValueError):
                cases.find(wrong)

    def test_what_is_missing_is_counted(self):
        seen = set()
        for file in cases.FILES:
            runnable, counts, refused, matrix = cases.sorted_out(file)
            seen |= set(counts)
            self.assertEqual(len(runnable) + sum(counts.values()), matrix)
            self.assertEqual(set(counts), set(refused))
            self.assertGreater(len(runnable), 500, file)
        self.assertLessEqual({"qv", "fp8", cases.WIDE_VALUES}, seen)


@unittest.skipUnless(torch, WHY)
class Sinks(unittest.TestCase):
    def test_their_gradient_is_held_to_the_roundings_of_its_terms(self):
        torch.manual_seed(3)
        g, out = torch.randn(2, 4000, 16, dtype=torch.float64)
        sinks = torch.zeros(1, requires_grad=True)

        def share(factor=1.0, rounded=True):
            """Of -sum over terms of g out at a sink's weight of 1, out rounded or not."""
            kept = out.bfloat16().double() if rounded else out
            got = -(g * kept).sum()[None].float() * factor
            formula = (-sinks * out.float())
            return maths.SinkGradient.of(got.bfloat16(), formula, sinks, g.float()).share()

        self.assertLess(share(), 1)
        self.assertLess(share(rounded=False), 1)
        terms = ((g * out) ** 2).sum().sqrt() / (g * out).sum().abs()
        too_much = 2 ** -8 * (1 + 5 * 0.6 * terms.item()) * 2.5
        self.assertGreater(share(1 + too_much), 1)
        self.assertGreater(share(1 - too_much), 1)
        self.assertGreater(share(math.nan), 1)

    def test_squared_terms_are_summed_head_by_head_without_chance(self):
        torch.manual_seed(4)
        g, values = torch.randn(2, 5, 3, 4)  # [rows, heads, dims]: few, which random signs miss
        sinks = torch.tensor([0.0, 1.0, -2.0], requires_grad=True)
        weights = torch.rand(5, 3, 1)
        found = maths.SinkGradient.of(sinks, weights * torch.sigmoid(-sinks)[:, None] * values,
                                      sinks, g)
        slope = torch.sigmoid(sinks) * torch.sigmoid(-sinks)
        terms = (weights * values * g).square().sum((0, 2)).sqrt() * slope
        torch.testing.assert_close(found.terms, terms.detach())


@unittest.skipUnless(torch, WHY)
class Sample(unittest.TestCase):
    def test_a_sample_of_each_file_passes_and_the_next_visit_goes_on(self):
        with tempfile.TemporaryDirectory() as folder:
            code, output, records = visit(folder, "--sample", "8", "--refusals", "40")
            self.assertEqual(code, 0, output)
            self.assertEqual(set(records), set(cases.FILES))
            for file, record in records.items():
                self.assertEqual((record["run"], record["passed"], record["failures"]),
                                 (8, 8, []), file)
                self.assertEqual(set(record["refusals_checked"]),
                                 set(record["not_supported_yet"]), file)
            code, output, again = visit(folder, "--file", "fa2", "--sample", "5", "--refusals", "8")
            self.assertEqual(code, 0, output)
            self.assertEqual((again["fa2"]["run"], len(again["fa2"]["visits"])), (13, 2))

    def test_what_no_time_was_left_for_comes_first_in_the_next_visit(self):
        with tempfile.TemporaryDirectory() as folder:
            rule_of = ("--file", "fa2", "--refusals", "0")
            _, _, records = visit(folder, *rule_of, "--sample", "6", "--time-limit", "0")
            left = records["fa2"]["left"]
            self.assertEqual((records["fa2"]["run"], len(left)), (0, 6))
            code, output, records = visit(folder, *rule_of, "--sample", "1", "--verbose")
            self.assertEqual(code, 0, output)
            self.assertEqual((records["fa2"]["run"], records["fa2"]["left"]), (7, []))
            for name in left:
                self.assertIn(name, output)

    def test_a_case_that_fails_is_recorded_as_a_failure_alone(self):
        failed = {"ok": False, "what": "dk: too far off", "shares": {}}
        with tempfile.TemporaryDirectory() as folder, mock.patch.object(
                rule, "run_one", lambda *_: failed):
            code, output, records = visit(folder, "--file", "fa2", "--refusals", "0",
                                          "--sample", "1")
        self.assertEqual(code, 1, output)
        record = records["fa2"]
        self.assertEqual((record["run"], record["passed"], len(record["failures"])), (1, 0, 1))
        self.assertEqual(record["passed_by_rounding_only"], [])

    def test_cases_of_the_same_kernels_follow_each_other(self):
        with tempfile.TemporaryDirectory() as folder:
            _, output, records = visit(folder, "--file", "fa4", "--refusals", "0", "--sample",
                                       "40", "--time-limit", "0")
            kernels = [cases.kernels_of(*cases.find(name)) for name in records["fa4"]["left"]]
            changes = sum(1 for x, y in zip(kernels, kernels[1:]) if x != y)
            self.assertEqual(changes + 1, len(set(kernels)), output)
            self.assertLess(len(set(kernels)), 40)

    def test_every_kind_of_test(self):
        smallest = {}
        for file in cases.FILES:
            for sweep, case in cases.sorted_out(file, "cpu")[0]:
                size = rule.operations(sweep, case)
                if size < smallest.get(sweep.key, (math.inf,))[0]:
                    smallest[sweep.key] = (size, sweep, case)
        self.assertEqual({sweep.kind for _, sweep, _ in smallest.values()}, set(maths.kinds()))
        for size, sweep, case in smallest.values():
            if size > 4e8:
                continue
            with self.subTest(sweep.case_name(case)):
                maths.run(sweep, case, "cpu", 3)


@unittest.skipUnless(torch, WHY)
class TheRuleItself(unittest.TestCase):
    def test_faults_of_ragged_calls_are_found(self):
        name = ("fa3:varlen_output:dtype=bf16,mha=gqa,qv=0,softcap=0.0,local=0,causal=1,d=64,"
                "unused=1,chunk=0,seqlens=113x203")
        interface = flashlab.torch.flash_attn_interface
        right = interface.flash_attn_varlen_func
        self.assertTrue(rule.run_one(name, "", "cpu", 1)["ok"])

        faults = {
            "rows that do not count": lambda q, k, v, seqused_k, **more: right(q, k, v, **more),
            "one mask for all": lambda q, k, v, causal, **more: right(q, k, v, **more),
            "a neighbour's keys": lambda q, k, v, **more: right(
                q, k.roll(1, 0), v.roll(1, 0), **more),
        }
        for fault, function in faults.items():
            with self.subTest(fault), mock.patch.object(
                    interface, "flash_attn_varlen_func", function):
                self.assertFalse(rule.run_one(name, "", "cpu", 1)["ok"])

    NAME = ("fa3:output:dtype=bf16,mha=mqa,qv=0,softcap=0.0,local=0,causal=1,d=64,"
            "seqlens=64x128,dv=0,chunk=0")

    def run_with(self, function):
        with mock.patch.object(flashlab.torch, "flash_attn_func", function):
            return rule.run_one(self.NAME, "", "cpu", 1)

    def test_faults_are_found(self):
        right = flashlab.torch.flash_attn_func
        self.assertTrue(self.run_with(right)["ok"])
        faults = {
            "a wrong scale": lambda *a, **k: right(*a, softmax_scale=0.15, **k),
            "no mask": lambda *a, causal=True, **k: right(*a, causal=False, **k),
            "a shifted mask": lambda q, k, v, **m: torch.cat(
                [right(q[:, 1:], k, v, **m), right(q[:, :1], k, v, **m)], dim=1),
            "values rounded to 8 bits": lambda q, k, v, **m: right(
                q, k, v.to(torch.float8_e4m3fn).to(v.dtype), **m),
            "NaN": lambda *a, **k: right(*a, **k) * float("nan"),
        }
        for name, fault in faults.items():
            with self.subTest(name):
                result = self.run_with(fault)
                self.assertFalse(result["ok"])
                self.assertIn("out", result["what"])

    def test_features_are_computed_and_their_faults_found(self):
        name = ("fa2:output:pack=,dtype=bf16,mha=gqa,deterministic=0,alibi={},local={},causal=0,"
                "d=32,seqlens=113x203,dropout={},softcap={}")
        right = flashlab.torch.flash_attn_func
        for at, argument in enumerate(("alibi_slopes", "window_size", "dropout_p", "softcap")):
            values = ["0", "0", "0.0", "0.0"]
            values[at] = ("1", "1", "0.17", "50.0")[at]
            with self.subTest(argument):
                result = rule.run_one(name.format(*values), "", "cpu", 1)
                self.assertTrue(result["ok"], result["what"])

                def without(*tensors, **more):
                    self.assertIn(argument, more)
                    return right(*tensors, **{key: x for key, x in more.items() if key != argument})
                with mock.patch.object(flashlab.torch, "flash_attn_func", without):
                    self.assertFalse(rule.run_one(name.format(*values), "", "cpu", 1)["ok"])

    def test_the_rounding_of_out_is_allowed_and_no_more(self):
        """One row sees two keys, one of weight 0.99: rowsum(dO O), of a rounded O, is
        off by more than autograd's sum of P dP."""
        name = ("fa3:varlen_output:dtype=bf16,mha=gqa,qv=0,softcap=15.0,local=1,causal=0,d=128,"
                "unused=1,chunk=1,seqlens=1x3")
        result = rule.run_one(name, "", "cpu", 1)
        self.assertTrue(result["ok"], result["what"])
        self.assertIn("rounding of out", result["what"])
        interface = flashlab.torch.flash_attn_interface
        right = interface.flash_attn_varlen_func

        def off(q, k, v, **more):
            """A gradient of k that is a tenth too large."""
            return right(q, k * 1.1 - (k * 0.1).detach(), v, **more)
        with mock.patch.object(interface, "flash_attn_varlen_func", off):
            result = rule.run_one(name, "", "cpu", 1)
        self.assertFalse(result["ok"])
        self.assertIn("dk", result["what"])

    def test_sums_in_fp32_are_allowed_where_the_formula_has_zero(self):
        """Of one key P is 1: gradients of q and k are 0, in pt exactly."""
        torch.manual_seed(5)
        q, k, v = (torch.randn(1, rows, 2, 64).half().requires_grad_() for rows in (200, 1, 1))
        given = maths.formula(q, k, v, False, True, with_lse=True)
        g = torch.randn_like(q)
        limits = maths.by_rounded_out(given, [q, k, v], given[0].half(), g)
        dk, zero = limits[1].max().item(), torch.zeros_like(k)
        self.assertTrue(0 < dk < 1e-3)
        self.assertEqual(limits[2].max().item(), 0)

        def judged(error):
            one = torch.zeros_like(k)
            one[0, 0, 1, 3] = error
            return maths.judge([("dk", one, zero, zero)], cases.ROUNDING,
                               lambda: {"dk": limits[1]})
        self.assertIn("rounding of out", judged(1e-4 + dk / 2)[1])
        with self.assertRaises(maths.Failed):
            judged(1e-4 + 2 * dk)

    def test_an_ignored_argument_is_found(self):
        def careless(q, k, v, **_):
            return q
        name = ("fa3:output:dtype=bf16,mha=mha,qv=1,softcap=0.0,local=0,causal=1,d=64,"
                "seqlens=64x128,dv=256,chunk=0")
        self.assertEqual(rule.run_one(name, "qv", "cpu", 1)["what"], "NotImplementedError")
        with mock.patch.object(flashlab.torch.flash_attn_interface, "flash_attn_func", careless):
            result = rule.run_one(name, "qv", "cpu", 1)
        self.assertFalse(result["ok"])
        self.assertIn("not refused", result["what"])

    def test_a_failure_is_recorded_with_its_command_and_run_again(self):
        with tempfile.TemporaryDirectory() as folder:
            wrong = mock.Mock(side_effect=RuntimeError("broken"))
            with mock.patch.object(maths, "run", wrong):
                code, output, records = visit(folder, "--file", "fa2", "--sample", "2")
            self.assertEqual((code, records["fa2"]["passed"]), (1, 0))
            failure = records["fa2"]["failures"][0]
            self.assertIn(f"--case {failure['case']}", failure["repeat"])
            self.assertIn("broken", output)
            code, output, records = visit(folder, "--file", "fa2", "--sample", "0")
            self.assertEqual((code, records["fa2"]["passed"], records["fa2"]["failures"]),
                             (0, 2, []), output)


if __name__ == "__main__":
    unittest.main()
