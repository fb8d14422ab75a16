"""flashlab.torch on a GPU: streams, graphs, torch's allocator, reduce-overhead compilation."""

import statistics
import unittest

from torch_cases import Judge, formula, gradients, inputs, needs_cuda

import torch

import flashlab.torch as flash

BF16 = torch.bfloat16


@needs_cuda
class Streams(Judge):

    def test_work_is_on_the_current_stream(self):
        q, k, v = inputs((2, 512, 8, 64), dtype=BF16, device="cuda", requires_grad=False)
        expected = flash.attention(q, k, v, causal=True)
        side = torch.cuda.Stream()
        torch.cuda.synchronize()
        with torch.cuda.stream(side):
            torch.cuda._sleep(20_000_000)
            late = q.clone()  # only there when the sleep is over
            o = flash.attention(late, k, v, causal=True)
            done = torch.cuda.Event()
            done.record()
        self.assertFalse(done.query(), "the call waited for the stream, or ran on another one")
        side.synchronize()
        self.assert_equal(o, expected, "o")

    def test_backward_runs_on_the_stream_of_forward(self):
        q, k, v = inputs((2, 512, 8, 64), dtype=BF16, device="cuda")
        expected = gradients(flash.attention(q, k, v, deterministic=True), (q, k, v))
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            o = flash.attention(q, k, v, deterministic=True)
            got = gradients(o, (q, k, v))
        torch.cuda.current_stream().wait_stream(side)
        for what, a, b in zip(("dq", "dk", "dv"), got, expected):
            self.assert_equal(a, b, what)

    @unittest.skipIf(torch.cuda.device_count() < 2, "skipped: one GPU")
    def test_another_device_than_the_current_one(self):
        q, k, v = inputs((2, 64, 4, 64), dtype=BF16, device="cuda:1")
        expected = flash.attention(*(t.detach().to("cuda:0") for t in (q, k, v)))
        with torch.cuda.device(0):
            o = flash.attention(q, k, v)
            o.sum().backward()
        self.assertEqual(o.device, q.device)
        self.assert_equal(o.to("cuda:0"), expected, "o")
        with self.assertRaisesRegex((ValueError, RuntimeError), "^k"):
            flash.attention(q, k.to("cuda:0"), v)


@needs_cuda
class Graphs(Judge):

    def test_capture_of_forward_and_backward(self):
        for options in ({"causal": True}, {"causal": True, "deterministic": True}):
            q, k, v = inputs((2, 300, 4, 64), dtype=BF16, device="cuda")
            static = [t.detach().clone().requires_grad_() for t in (q, k, v)]
            given = torch.randn_like(q)

            def step():
                return torch.autograd.grad(flash.attention(*static, **options), static, given)

            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                step()
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                o = flash.attention(*static, **options)
                got = torch.autograd.grad(o, static, given)
            for seed in (5, 6):
                new = inputs(q.shape, dtype=BF16, device="cuda", seed=seed)
                with torch.no_grad():
                    for old, tensor in zip(static, new):
                        old.copy_(tensor)
                graph.replay()
                expected = flash.attention(*new, **options)
                self.assert_equal(o, expected, "o")
                for what, a, b in zip(("dq", "dk", "dv"), got,
                                      torch.autograd.grad(expected, new, given)):
                    self.assert_close(a, b, what, 2e-2)

    def dropped(self):
        """q, k, a v that brings out the weights themselves, and the gradient of o."""
        q, k, _ = inputs((2, 64, 4, 64), dtype=BF16, device="cuda")
        eye = torch.eye(64, dtype=BF16, device="cuda").reshape(1, 64, 1, 64)
        v = eye.expand(2, 64, 4, 64).contiguous().requires_grad_()
        return q, k, v, torch.randn(q.shape, dtype=BF16, device="cuda")

    def check_dropped(self, weights, dv, given):
        """Backward dropped what forward dropped, and both the right share."""
        expected = torch.einsum("bihj,bihd->bjhd", weights.double(), given.double())
        self.assert_close(dv, expected, "dv", 3e-2)
        share = (weights == 0).double().mean().item()
        self.assertLess(abs(share - 0.25), 5 * (0.25 * 0.75 / weights.numel()) ** 0.5)

    def test_replays_drop_other_pairs(self):
        q, k, v, given = self.dropped()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            torch.autograd.grad(flash.attention(q, k, v, dropout_p=0.25), (q, k, v), given)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            o = flash.attention(q, k, v, dropout_p=0.25)
            got = torch.autograd.grad(o, (q, k, v), given)
        seen = []
        for seed in (3, None, 3):
            if seed:
                torch.cuda.manual_seed(seed)
            graph.replay()
            self.check_dropped(o, got[2], given)
            seen.append(o.clone())
        self.assertFalse(torch.equal(seen[0], seen[1]))
        self.assert_equal(seen[0], seen[2], "o of the same seed")

    def test_dropout_in_compiled_graphs(self):
        for mode in ("default", "reduce-overhead"):
            torch.compiler.reset()
            compiled = torch.compile(lambda q, k, v: flash.attention(q, k, v, dropout_p=0.25),
                                     fullgraph=True, mode=mode)
            q, k, v, given = self.dropped()
            seen = []
            for _ in range(4):
                torch.compiler.cudagraph_mark_step_begin()
                o = compiled(q, k, v)
                self.check_dropped(o, torch.autograd.grad(o, v, given)[0], given)
                seen.append(o.detach().clone())
            for a, b in zip(seen, seen[1:]):
                self.assertFalse(torch.equal(a, b), mode)

    def test_make_graphed_callables(self):
        class Block(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.project = torch.nn.Linear(64, 192)

            def forward(self, x):
                q, k, v = self.project(x).reshape(*x.shape[:2], 3, 4, 16).unbind(2)
                return flash.attention(q, k, v, causal=True, deterministic=True).flatten(2)

        block = Block().cuda()
        x = torch.randn(2, 128, 64, device="cuda", requires_grad=True)
        expected = gradients(block(x), [x, *block.parameters()])
        graphed = torch.cuda.make_graphed_callables(block, (x,))
        for a, b in zip(gradients(graphed(x), [x, *block.parameters()]), expected):
            self.assert_close(a, b, "a gradient", 1e-4)

    def test_reduce_overhead(self):
        torch.compiler.reset()

        def function(q, k, v):
            return flash.attention(q * 2, k, v, causal=True).relu()

        compiled = torch.compile(function, fullgraph=True, mode="reduce-overhead")
        for seed in range(4):
            q, k, v = inputs((2, 300, 4, 64), device="cuda", seed=seed)
            torch.compiler.cudagraph_mark_step_begin()
            o = compiled(q, k, v)
            got = [t.clone() for t in gradients(o, (q, k, v))]
            truth = formula(q * 2, k, v, "top-left")[0].relu()
            for what, a, b in zip(("dq", "dk", "dv"), got, gradients(truth, (q, k, v))):
                self.assert_close(a, b, what, 1e-3)


@needs_cuda
class Memory(Judge):

    def test_outputs_and_workspace_are_torchs_and_linear(self):
        q, k, v = inputs((1, 8192, 4, 64), dtype=BF16, device="cuda")
        flash.attention(q, k, v, causal=True).sum().backward()
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        o = flash.attention(q, k, v, causal=True)
        self.assertGreaterEqual(torch.cuda.memory_allocated() - before, o.nbytes)
        o.sum().backward()
        peak = torch.cuda.max_memory_allocated() - before
        self.assertLess(peak, 40 * q.nbytes)  # the scores alone would be 128 of q's size

        def taken():
            """Bytes of the GPU that 50 calls take and do not give back."""
            free = torch.cuda.mem_get_info()[0]
            for _ in range(50):
                flash.attention(q, k, v, causal=True).sum().backward()
            torch.cuda.synchronize()
            return free - torch.cuda.mem_get_info()[0]

        # The driver counts the whole GPU. Other programs take or give back memory in some rounds, a
        # leak takes it in every round.
        self.assertLess(statistics.median(taken() for _ in range(9)), 1 << 20, "memory leaks")

    def test_out_of_memory_is_an_exception(self):
        q = torch.empty(1, 1, 1, 64, device="cuda", dtype=BF16)
        free = torch.cuda.mem_get_info()[0]
        rows = 2 * free // (64 * 2)
        with self.assertRaises((torch.cuda.OutOfMemoryError, MemoryError, RuntimeError)):
            flash.attention(q.expand(1, rows, 1, 64), q, q)
        self.assertEqual(flash.attention(q, q, q).shape, q.shape)


if __name__ == "__main__":
    unittest.main()
