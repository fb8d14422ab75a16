"""The worker of `flashlab compare --peers torch`: its yardstick, its clock, its conversation."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import types
import unittest
from unittest import mock

try:
    import torch
except ImportError as error:
    raise unittest.SkipTest(f"needs torch: {error}")

import flashlab
from flashlab.peers import clock, failures, contestants
from flashlab.peers.problem import Cache, OutOfMemory, Problem, Tensors, Unsupported
from flashlab.peers.truth import Truth

CPU = torch.device("cpu")


def problem(**changes):
    return Problem(**{**dict(dtype="fp32", batch=2, heads_q=4, heads_k=2, head_dim=16,
                             head_dim_v=16, seqlen_q=24, seqlen_k=40, mask="none"), **changes})


def prepared(backward=False, **changes):
    p = problem(**changes)
    tensors = Tensors(p, CPU, backward)
    return p, tensors, Truth(p, tensors, backward)


class Problems(unittest.TestCase):
    def test_visible_pairs(self):
        for mask in ("none", "causal-top-left", "causal-bottom-right"):
            for seqlen_q, seqlen_k in ((24, 40), (40, 24), (16, 16), (1, 7), (7, 1)):
                p = problem(mask=mask, seqlen_q=seqlen_q, seqlen_k=seqlen_k)
                visible = p.visible(torch.arange(seqlen_q), 0, CPU)
                count = seqlen_q * seqlen_k if visible is None else int(visible.sum())
                self.assertEqual(p.pairs(0), count, f"{mask} {seqlen_q} {seqlen_k}")

    def test_a_mask_tensor_is_refused(self):
        members = {**vars(problem()), "lengths": None, "cache": None, "mask": "none+bool"}
        with self.assertRaisesRegex(Unsupported, r"none\+bool"):
            Problem.from_request(members)

    def test_equal_seeds_give_equal_tensors(self):
        one, two = (Tensors(problem(seed=5), CPU, True) for _ in range(2))
        other = Tensors(problem(seed=6), CPU, True)
        for name in ("q", "k", "v", "d_o"):
            self.assertTrue(torch.equal(getattr(one, name), getattr(two, name)))
            self.assertFalse(torch.equal(getattr(one, name), getattr(other, name)))


class Yardstick(unittest.TestCase):
    NAMES = ("cpu", "naive", "torch.math", "torch.flash")

    def errors(self, name, backward=False, **changes):
        p, tensors, truth = prepared(backward, **changes)
        torch.set_float32_matmul_precision("highest")
        contestant = contestants.make(name, p, tensors)
        with contestant.setting():
            if backward:
                contestant.prepare_backward()
                outputs = contestant.gradients(contestant.backward())
            else:
                outputs = (contestant.output(contestant.forward()),)
        error = truth.error_of(outputs)
        return error, truth.verdict(error)

    def test_right_answers_pass(self):
        shapes = ({}, {"mask": "causal-bottom-right"}, {"scale": 0.3, "dtype": "bf16"},
                  {"mask": "causal-top-left", "dtype": "fp64", "seqlen_k": 24},
                  {"heads_k": 4, "dtype": "fp16"},
                  {"mask": "causal-bottom-right", "seqlen_q": 40, "seqlen_k": 24})
        for name in self.NAMES:
            for backward in (False, True):
                for changes in shapes:
                    with self.subTest(name=name, backward=backward, **changes):
                        error, wrong = self.errors(name, backward, **changes)
                        self.assertEqual(wrong, "")
                        self.assertLess(error, 0.2)

    def test_wrong_answers_do_not(self):
        """Another mask, another scale, swapped heads, lower precision, a NaN."""
        for dtype in ("fp32", "bf16"):
            p, tensors, truth = prepared(mask="causal-bottom-right", dtype=dtype)
            right = contestants.make("cpu", p, tensors).forward()[0]
            self.assertEqual(truth.verdict(truth.error_of((right,))), "")
            other = problem(mask="causal-top-left", dtype=dtype)
            scaled = problem(mask="causal-bottom-right", dtype=dtype, scale=0.3)
            broken = right.clone()
            broken[1, 3, 2, 5] = torch.nan
            wrong = {"mask": contestants.make("cpu", other, tensors).forward()[0],
                     "scale": contestants.make("cpu", scaled, tensors).forward()[0],
                     "heads": right[:, :, [1, 0, 2, 3]], "nan": broken}
            if dtype == "fp32":
                rounded = (x.bfloat16().float() for x in (tensors.q, tensors.k, tensors.v))
                wrong["precision"] = flashlab.attention(*rounded, causal="bottom-right")
            for what, o in wrong.items():
                with self.subTest(what, dtype=dtype):
                    self.assertIn("a wrong result", truth.verdict(truth.error_of((o,))))

    def test_a_wrong_gradient_is_seen(self):
        p, tensors, truth = prepared(True, dtype="bf16")
        contestant = contestants.make("cpu", p, tensors)
        contestant.prepare_backward()
        right = list(contestant.backward())
        for at in range(3):
            wrong = list(right)
            wrong[at] = right[at].flip(1)
            self.assertIn("a wrong result", truth.verdict(truth.error_of(tuple(wrong))))

    def test_large_problems_are_sampled(self):
        p, tensors, truth = prepared(seqlen_q=4096, seqlen_k=4096, heads_q=16, heads_k=4,
                                     head_dim=8, head_dim_v=8, batch=4)
        self.assertEqual(truth.sample, "64 rows of 8 heads, seed 1")
        o = contestants.make("cpu", p, tensors).forward()[0]
        self.assertEqual(truth.verdict(truth.error_of((o,))), "")
        self.assertNotEqual(truth.verdict(truth.error_of((o.flip(1),))), "")


class Ragged(unittest.TestCase):
    """Sequences of any length: one after the other in one tensor."""

    LENGTHS = ((5, 9), (0, 3), (24, 24), (17, 2), (3, 0), (1, 40))

    def ragged(self, backward=False, **changes):
        return prepared(backward, batch=len(self.LENGTHS), lengths=self.LENGTHS, **changes)

    def test_a_request_names_them(self):
        members = {**vars(problem()), "lengths": [[3, 4], [1, 1]], "batch": 2}
        p = Problem.from_request(members)
        self.assertEqual(p.lengths, ((3, 4), (1, 1)))
        self.assertEqual(p.shapes()["q"], (4, 4, 16))
        self.assertEqual(p.shapes()["v"], (5, 2, 16))
        self.assertEqual(p.offsets(1, CPU).tolist(), [0, 4, 5])

    def test_right_answers_pass(self):
        for mask in ("none", "causal-top-left", "causal-bottom-right"):
            for backward in (False, True):
                with self.subTest(mask, backward=backward):
                    p, tensors, truth = self.ragged(backward, mask=mask)
                    contestant = contestants.make("cpu", p, tensors)
                    if backward:
                        contestant.prepare_backward()
                        outputs = contestant.gradients(contestant.backward())
                    else:
                        outputs = (contestant.output(contestant.forward()),)
                    self.assertEqual(truth.verdict(truth.error_of(outputs)), "")
                    for at, output in enumerate(outputs):  # the neighbour's rows are wrong ones
                        wrong = list(outputs)
                        wrong[at] = output.roll(1, 0)
                        self.assertIn("a wrong result", truth.verdict(truth.error_of(wrong)))

    def test_large_batches_are_sampled(self):
        p, tensors, truth = prepared(batch=40, lengths=((2048, 2048), (16, 16)) * 20, heads_q=16,
                                     heads_k=4, head_dim=8, head_dim_v=8)
        self.assertEqual(truth.sample, "64 rows of 8 heads, seed 1")
        o = contestants.make("cpu", p, tensors).forward()[0]
        self.assertEqual(truth.verdict(truth.error_of((o,))), "")

    def test_who_takes_one_length_says_so(self):
        p, tensors, _ = self.ragged()
        for name in ("torch.flash", "torch.math"):
            with self.assertRaisesRegex(Unsupported, "one length"):
                contestants.make(name, p, tensors)
        with self.assertRaisesRegex(Unsupported, "CUDA"):
            contestants.make("torch.varlen", p, tensors)
        with self.assertRaisesRegex(Unsupported, "--lengths"):
            contestants.make("torch.varlen", *prepared()[:2])

    def test_documents_of_flex_attention(self):
        """Its mask of all rows is the sequences' own masks on the diagonal, and no more."""
        for mask in ("none", "causal-top-left", "causal-bottom-right"):
            p, tensors, _ = self.ragged(mask=mask)
            flex = contestants.Flex.__new__(contestants.Flex)
            flex.problem = p
            sees = flex._mask(CPU)  # pylint: disable=protected-access
            rows, keys = (sum(pair[side] for pair in self.LENGTHS) for side in (0, 1))
            got = sees(0, 0, torch.arange(rows)[:, None], torch.arange(keys)[None, :])
            want = torch.zeros(rows, keys, dtype=torch.bool)
            row = key = 0
            for at, (queries, count) in enumerate(self.LENGTHS):
                visible = p.visible(torch.arange(queries), at, CPU)
                want[row:row + queries, key:key + count] = True if visible is None else visible
                row, key = row + queries, key + count
            self.assertTrue(torch.equal(got, want), mask)


class Caches(unittest.TestCase):
    """Keys and values in caches, contiguous and paged, of any length; few queries, ragged ones."""

    LENGTHS = ((2, 9), (2, 1), (2, 40), (2, 33))

    def cached(self, page_size, lengths=LENGTHS, capacity=40, dense=True, **changes):
        return prepared(batch=len(lengths), lengths=lengths, seqlen_q=max(q for q, _ in lengths),
                        seqlen_k=max(k for _, k in lengths),
                        cache=Cache(capacity, page_size, dense), **changes)

    def test_a_request_names_them(self):
        members = {**vars(problem()), "lengths": [[1, 4], [1, 9]], "batch": 2, "seqlen_q": 1,
                   "cache": {"capacity": 10, "page_size": 4, "dense_queries": True}}
        p = Problem.from_request(members)
        self.assertEqual(p.shapes()["q"], (2, 1, 4, 16))
        self.assertEqual(p.shapes()["k"], (6, 4, 2, 16))
        self.assertEqual(sorted(p.block_table(CPU).flatten().tolist()), list(range(6)))
        self.assertEqual(p.key_lengths(CPU).tolist(), [4, 9])

    def test_right_answers_pass(self):
        ragged = ((5, 9), (1, 1), (0, 7), (1, 33))
        for page_size in (0, 1, 7, 16):
            for mask in ("none", "causal-bottom-right"):
                for lengths, dense in ((self.LENGTHS, True), (ragged, False)):
                    with self.subTest(mask, page_size=page_size, dense=dense):
                        p, tensors, truth = self.cached(page_size, lengths, dense=dense, mask=mask)
                        contestant = contestants.make("cpu", p, tensors)
                        o = contestant.output(contestant.forward())
                        self.assertEqual(truth.verdict(truth.error_of((o,))), "")
                        self.assertIn("a wrong result", truth.verdict(truth.error_of((-o,))))

    def test_full_caches_are_dense_to_torch(self):
        p, tensors, truth = self.cached(0, ((1, 40),) * 3, mask="causal-bottom-right")
        for name in ("torch.flash", "torch.math"):
            contestant = contestants.make(name, p, tensors)
            with contestant.setting():
                o = contestant.output(contestant.forward())
            self.assertEqual(truth.verdict(truth.error_of((o,))), "")
        for page_size in (0, 8):
            p, tensors, _ = self.cached(page_size)
            with self.assertRaisesRegex(Unsupported, "contiguous caches that are full"):
                contestants.make("torch.math", p, tensors)

    def modules(self):
        def flash_attn_with_kvcache(q, k, v, cache_seqlens, softmax_scale, causal,
                                    page_table=None, cu_seqlens_q=None, max_seqlen_q=None):
            o, _ = flashlab._core.forward(  # pylint: disable=protected-access
                q, k, v, seqused_k=cache_seqlens, block_table=page_table, scale=softmax_scale,
                causal="bottom-right" if causal else None, cu_seqlens_q=cu_seqlens_q,
                max_seqlen_q=max_seqlen_q)
            return o, None

        class Wrapper:
            """Either of FlashInfer's: pages of a list, the last of a sequence in part."""

            def __init__(self, _space, layout, **_options):
                assert layout == "NHD"

            def plan(self, *given, sm_scale, q_data_type, kv_data_type, causal=False):
                assert q_data_type == kv_data_type
                *queries, ends, pages, last, heads_q, heads_k, dim, page_size = given
                self.made = (queries, ends, pages, last, page_size, sm_scale, causal)
                assert (heads_q, heads_k, dim) == (4, 2, 16)

            def run(self, q, cache):
                queries, ends, pages, last, page_size, scale, causal = self.made
                begins = queries[0] if queries else torch.arange(len(q) + 1)
                out = []
                for n, rest in enumerate(last.tolist()):
                    mine = pages[ends[n]:ends[n + 1]].long()
                    keys = (len(mine) - 1) * page_size + rest
                    k, v = (x[mine].flatten(0, 1)[None, :keys] for x in cache)
                    o, _ = flashlab._core.forward(  # pylint: disable=protected-access
                        q[None, begins[n]:begins[n + 1]], k, v, scale=scale,
                        causal="bottom-right" if causal else None)
                    out.append(o[0])
                return torch.cat(out)

        return {"fa3_fwd_interface": types.SimpleNamespace(
                    __version__="3", flash_attn_with_kvcache=flash_attn_with_kvcache),
                "flashinfer": types.SimpleNamespace(
                    __version__="1", BatchDecodeWithPagedKVCacheWrapper=Wrapper,
                    BatchPrefillWithPagedKVCacheWrapper=Wrapper)}

    def test_packages(self):
        """As their documentation says, on a CPU."""
        ragged, single = ((5, 9), (1, 1), (3, 40), (1, 33)), ((1, 9), (1, 32), (1, 40))
        with mock.patch.dict(sys.modules, self.modules()), \
                mock.patch.object(contestants.FlashAttn, "refuse", lambda self: None):
            for name in ("flash-attn-3", "flashinfer"):
                for lengths, dense in ((self.LENGTHS, True), (single, True), (ragged, False)):
                    for page_size in (0, 8) if name == "flash-attn-3" else (8,):
                        p, tensors, truth = self.cached(page_size, lengths, dense=dense,
                                                        dtype="bf16", mask="causal-bottom-right")
                        contestant = contestants.make(name, p, tensors)
                        o = contestant.output(contestant.forward())
                        self.assertEqual(truth.verdict(truth.error_of((o,))), "",
                                         f"{name} {lengths} {page_size}")
                        with self.assertRaisesRegex(Unsupported, "gradients"):
                            contestant.prepare_backward()


class Packages(unittest.TestCase):
    """flash-attn and xformers as their documentation says, on a CPU: layouts and alignments."""

    @staticmethod
    def attend(q, k, v, scale, diagonal):
        """[batch, seqlen, heads..., head_dim]; query i sees keys up to i + diagonal; None: all."""
        scores = torch.einsum("bq...d,bk...d->b...qk", q, k) * scale
        if diagonal is not None:
            rows, keys = torch.arange(q.shape[1]), torch.arange(k.shape[1])
            scores = scores.masked_fill(keys[None] > rows[:, None] + diagonal, -torch.inf)
        return torch.einsum("b...qk,bk...d->bq...d", scores.softmax(-1), v)

    def modules(self):
        def flash_attn_func(q, k, v, softmax_scale=None, causal=False):
            group = q.shape[2] // k.shape[2]
            k, v = (x.repeat_interleave(group, 2) for x in (k, v))
            return self.attend(q, k, v, softmax_scale or q.shape[-1] ** -0.5,
                               k.shape[1] - q.shape[1] if causal else None)

        class TopLeft:
            pass

        class BottomRight:
            pass

        def memory_efficient_attention(q, k, v, attn_bias=None, scale=None):
            self.assertEqual(q.shape[2:-1], k.shape[2:-1])
            diagonal = {TopLeft: 0, BottomRight: k.shape[1] - q.shape[1]}.get(type(attn_bias))
            return self.attend(q, k, v, scale or q.shape[-1] ** -0.5, diagonal)

        bias = types.SimpleNamespace(LowerTriangularMask=TopLeft,
                                     LowerTriangularFromBottomRightMask=BottomRight)
        return {"flash_attn": types.SimpleNamespace(__version__="1",
                                                    flash_attn_func=flash_attn_func),
                "xformers": types.SimpleNamespace(__version__="1"),
                "xformers.ops": types.SimpleNamespace(
                    memory_efficient_attention=memory_efficient_attention,
                    fmha=types.SimpleNamespace(attn_bias=bias))}

    def check(self, name, kind, masks):
        with mock.patch.dict(sys.modules, self.modules()), \
                mock.patch.object(kind, "refuse", lambda self: None):
            for mask in masks:
                for heads_k in (4, 2, 1):
                    for backward in (False, True):
                        p, tensors, truth = prepared(backward, mask=mask, heads_k=heads_k,
                                                     scale=0.3)
                        contestant = contestants.make(name, p, tensors)
                        if backward:
                            contestant.prepare_backward()
                            outputs = contestant.gradients(contestant.backward())
                        else:
                            outputs = (contestant.output(contestant.forward()),)
                        self.assertEqual(truth.verdict(truth.error_of(outputs)), "",
                                         f"{mask} {heads_k} {backward}")

    def test_flash_attn(self):
        self.check("flash-attn", contestants.FlashAttn, ("none", "causal-bottom-right"))

    def test_xformers(self):
        self.check("xformers", contestants.Xformers,
                   ("none", "causal-top-left", "causal-bottom-right"))

    def test_what_they_refuse(self):
        on_gpu = types.SimpleNamespace(q=types.SimpleNamespace(device=torch.device("cuda")))
        for name, kind, changes in (
                ("flash-attn", contestants.FlashAttn, {"dtype": "fp32"}),
                ("flash-attn", contestants.FlashAttn, {"dtype": "bf16", "mask": "causal-top-left"}),
                ("flash-attn", contestants.FlashAttn, {"dtype": "bf16", "head_dim": 264}),
                ("flash-attn", contestants.FlashAttn, {"dtype": "bf16", "head_dim_v": 32}),
                ("xformers", contestants.Xformers, {"dtype": "fp64"})):
            with self.assertRaises(Unsupported, msg=str(changes)):
                kind(name, problem(**changes), on_gpu)


class Clock(unittest.TestCase):
    class Contestant(contestants.Contestant):
        def __init__(self, name):
            super().__init__(name, None, None)

    class Counted(clock.WallClock):
        words, min_sample_ms, settle_s = "", 0.0, 0.0

    def run_turns(self, calls, stop=lambda: False, **settings):
        self.failures = {}
        named = {self.Contestant(name): call for name, call in calls.items()}
        times = clock.interleave(
            self.Counted(CPU), named, {"warmup": 1, "repeats": 6, "max_total_ms": 0, **settings},
            stop, lambda done, planned: None,
            lambda contestant, error: self.failures.update({contestant.name: str(error)}))
        return {contestant.name: samples for contestant, samples in times.items()}

    def test_they_take_turns_in_a_rotating_order(self):
        order = []
        times = self.run_turns({name: lambda n=name: order.append(n) for name in "abc"})
        self.assertEqual({name: len(samples) for name, samples in times.items()},
                         {"a": 6, "b": 6, "c": 6})
        self.assertEqual("".join(order[3:12]), "abcbcacab")

    def test_one_that_fails_drops_out(self):
        count = iter(range(100))

        def third_call_fails():
            if next(count) >= 3:
                raise RuntimeError("no more")
        times = self.run_turns({"a": lambda: None, "b": third_call_fails})
        self.assertEqual((len(times["a"]), "b" in times), (6, False))
        self.assertEqual(self.failures, {"b": "no more"})

    def test_time_and_stop(self):
        slow = self.run_turns({"a": lambda: time.sleep(0.02)}, max_total_ms=1)
        self.assertEqual(len(slow["a"]), clock.MIN_REPEATS)
        calls = []
        some = self.run_turns({"a": lambda: calls.append(1)}, stop=lambda: len(calls) > 3)
        self.assertEqual(len(some["a"]), 3)


class Failures(unittest.TestCase):
    def kind(self, error):
        return failures.classify(error, problem(), True, CPU)

    def test_kinds(self):
        for error, status, part in (
                (Unsupported("not this mask"), "unsupported", "not this mask"),
                (NotImplementedError("not yet"), "unsupported", "not yet"),
                (RuntimeError("No available kernel. Aborting."), "unsupported", "No available"),
                (OutOfMemory("scores need 9 GiB"), "oom", "q 12 KiB"),
                (MemoryError(), "oom", "dv"),
                (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you "
                              "tried"), "oom", "are free"),
                (RuntimeError("odd\n  thing"), "error", "RuntimeError: odd thing"),
                (ValueError(""), "error", "ValueError")):
            got, message = self.kind(error)
            self.assertEqual(got, status, message)
            self.assertIn(part, message)
            self.assertNotIn("\n", message)

    def test_packages_that_are_not_there(self):
        missing = ("no-such-peer", types.SimpleNamespace(MODULE="no_such_package"))
        with mock.patch.dict(contestants.OPTIONAL, {"no-such-peer": missing}):
            self.assertIsNone(contestants.version_of("no-such-peer"))
        p = problem()
        if contestants.version_of("flash-attn") is None:
            with self.assertRaisesRegex(Unsupported, "pip install flash-attn"):
                contestants.make("flash-attn", p, Tensors(p, CPU, False))


class Conversation(unittest.TestCase):
    """The process as the command line sees it."""

    def start(self):
        # It must run from anywhere, and libraries' prints must not end up among the results.
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        roots = [os.path.dirname(os.path.dirname(flashlab.__file__)), *sys.path]
        process = subprocess.Popen(
            [sys.executable, "-m", "flashlab.peers", "cpu", "1"], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=self.folder.name,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, roots))})
        self.addCleanup(self.end, process)
        ready = json.loads(process.stdout.readline())
        self.assertEqual((ready["event"], ready["torch"], ready["threads"]),
                         ("ready", torch.__version__, 1))
        return process

    @staticmethod
    def end(process):
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            with contextlib.suppress(OSError):  # a request that nobody read
                stream.close()

    def ask(self, process, **changes):
        request = {"problem": vars(problem()), "passes": ["forward", "backward"],
                   "implementations": ["cpu", "torch.math", "torch.cudnn"], "warmup": 1,
                   "repeats": 3, "max_total_ms": 0, **changes}
        process.stdin.write(json.dumps(request) + "\n")
        process.stdin.flush()

    def answer(self, process):
        rows = {}
        while True:
            line = json.loads(process.stdout.readline())
            if line["event"] == "end":
                return rows, line
            rows[line["implementation"], line["pass"]] = line

    def test_one_problem_after_the_other(self):
        process = self.start()
        for changes in ({}, {"dtype": "bf16", "mask": "causal-bottom-right"}, {"dtype": "tf32"}):
            self.ask(process, problem=vars(problem(**changes)))
            rows, end = self.answer(process)
            self.assertEqual((end["cancelled"], end["lost"]), (False, False))
            self.assertEqual(len(rows), 6)
            for (name, which), row in rows.items():
                wanted = "unsupported" if "tf32" in changes.values() or name == "torch.cudnn" \
                    else "ok"
                self.assertEqual(row["status"], wanted, f"{name} {which}: {row['message']}")
                self.assertEqual(len(row.get("samples_ms", [])), 3 if wanted == "ok" else 0)

    def test_what_cannot_fit_is_not_tried(self):
        process = self.start()
        huge = problem(seqlen_q=1 << 21, seqlen_k=1 << 21, batch=1, heads_q=1, heads_k=1,
                       head_dim=1, head_dim_v=1)
        self.ask(process, problem=vars(huge), passes=["forward"], implementations=["torch.math"])
        rows, _ = self.answer(process)
        row = rows["torch.math", "forward"]
        self.assertEqual(row["status"], "oom")
        self.assertIn("a matrix of scores would be 1.638e+04 GiB", row["message"])

    def test_interrupted(self):
        process = self.start()
        self.ask(process, repeats=100000)
        told = 0
        while told < 20:  # before each warm-up and each sample
            told += "timing forward" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        rows, end = self.answer(process)
        self.assertTrue(end["cancelled"])
        self.assertGreater(len(rows["cpu", "forward"]["samples_ms"]), 0)
        self.assertNotIn(("cpu", "backward"), rows)

    def test_it_ends_with_whoever_asked(self):
        process = self.start()
        self.ask(process, repeats=1000000)
        process.stdin.close()
        self.assertEqual(process.wait(timeout=300), 0)


if __name__ == "__main__":
    unittest.main()
