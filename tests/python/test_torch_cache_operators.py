#!/usr/bin/env python3
"""Functions on caches as operators: torch's own checks, whole graphs, one compilation for all."""

import unittest

import torch_cases  # noqa: F401  (first: seeds, and the skip without PyTorch)

import torch
import torch.fx.experimental._config
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

import flashlab.torch as flash
from flashlab.torch import flash_attn_interface as fa3

FORWARD = torch.ops.flashlab.cache_forward.default
APPEND = torch.ops.flashlab.cache_append.default
HEADS, HEADS_K, DIM, PAGE = 6, 2, 8, 4


def paged(batch, pages=5, dtype=torch.float32):
    """Pools of pages and a table [batch, pages]."""
    pools = [torch.randn(batch * pages + 1, PAGE, HEADS_K, DIM, dtype=dtype) for _ in range(2)]
    table = torch.randperm(batch * pages).reshape(batch, pages).int()
    return (*pools, table)


def rows(*shape):
    return torch.randn(*shape, DIM)


class Operators(unittest.TestCase):
    """What torch.library asks of an operator."""

    def test_opcheck_forward(self):
        k, v, table = paged(2)
        lengths = torch.tensor([9, 3], dtype=torch.int32)
        contiguous = (rows(2, 12, HEADS_K), rows(2, 12, HEADS_K))
        more = (None, None, "bottom-right", "ieee", False, None, None, None, 0.0, None, None, None,
                None, None, lengths)
        for args in ((rows(2, 3, HEADS), *contiguous, None, None, None, True, *more),
                     (rows(2, 1, HEADS), k, v, table, None, None, False, *more)):
            torch.library.opcheck(FORWARD, args)

    def test_opcheck_append(self):
        k, v, table = paged(2)
        lengths = torch.tensor([9, 3], dtype=torch.int32)
        tables = (torch.randn(20, DIM // 2), torch.randn(20, DIM // 2))
        new = (rows(2, 2, HEADS_K), rows(2, 2, HEADS_K))
        for args in ((k, v, *new, lengths, table),
                     (k, v, *new, lengths, table, None, None, *tables, None, rows(2, 2, HEADS)),
                     (k, v, *new, lengths, table, *[None] * 7, False, True,
                      torch.zeros_like(lengths))):
            torch.library.opcheck(APPEND, args)

    def test_nothing_stands_between_an_append_and_its_attention(self):
        """A kernel there, of the lengths say, would be waited for at every step of decoding."""
        k, v, table = paged(2)
        lengths = torch.tensor([9, 3], dtype=torch.int32)
        new = (rows(2, 2, HEADS_K), rows(2, 2, HEADS_K))
        seen = []

        class Watch(TorchDispatchMode):
            def __torch_dispatch__(self, function, types, args=(), kwargs=None):
                seen.append(function)
                return function(*args, **(kwargs or {}))

        with Watch():
            flash.flash_attn_with_kvcache(rows(2, 1, HEADS), k, v, *new, cache_seqlens=lengths,
                                          block_table=table)
        self.assertEqual(seen[-2:], [APPEND, FORWARD])
        self.assertEqual(lengths.tolist(), [9, 3])

    def test_fake_tensors_have_the_shapes_and_the_refusals(self):
        with FakeTensorMode():
            k, v = torch.empty(7, PAGE, 2, 8), torch.empty(7, PAGE, 2, 8)
            q, table = torch.empty(3, 1, 4, 8), torch.empty(3, 2, dtype=torch.int32)
            lengths = torch.empty(3, dtype=torch.int32)
            out, lse = flash.flash_attn_with_kvcache(q, k, v, cache_seqlens=lengths,
                                                     block_table=table, return_softmax_lse=True)
            self.assertEqual((out.shape, lse.shape), ((3, 1, 4, 8), (3, 4, 1)))
            with self.assertRaisesRegex(ValueError, "divides q's 5"):
                flash.flash_attn_with_kvcache(torch.empty(3, 1, 5, 8), k, v, cache_seqlens=lengths,
                                              block_table=table)


class Compiled(unittest.TestCase):
    """torch.compile: one graph, and one compilation whatever the totals."""

    def setUp(self):
        torch._dynamo.reset()
        torch.manual_seed(4)

    def compiled(self, function):
        """Equal sizes of a test are chance; what compiles again raises."""
        for config, values in ((torch.fx.experimental._config, {"use_duck_shape": False}),
                               (torch._dynamo.config, {"error_on_recompile": True})):
            patch = config.patch(values)
            patch.__enter__()
            self.addCleanup(patch.__exit__, None, None, None)
        return torch.compile(function, backend="aot_eager", fullgraph=True, dynamic=True)

    def test_a_step_of_decoding(self):
        cos, sin = torch.randn(20, DIM // 2), torch.randn(20, DIM // 2)

        def step(q, k_cache, v_cache, k, v, lengths, table):
            return flash.flash_attn_with_kvcache(
                q, k_cache, v_cache, k, v, rotary_cos=cos, rotary_sin=sin, cache_seqlens=lengths,
                block_table=table, causal=True, return_softmax_lse=True)

        fast = self.compiled(step)
        for batch in (3, 5, 4, 9):
            k_cache, v_cache, table = paged(batch)
            lengths = torch.randint(0, 18, (batch,), dtype=torch.int32)
            new = (rows(batch, 2, HEADS), rows(batch, 2, HEADS_K), rows(batch, 2, HEADS_K))
            mine, theirs = ([x.clone() for x in (k_cache, v_cache)] for _ in range(2))
            got = fast(new[0], *mine, *new[1:], lengths, table)
            expected = step(new[0], *theirs, *new[1:], lengths, table)
            for a, b in zip((*got, *mine), (*expected, *theirs)):
                self.assertTrue(torch.equal(a, b), batch)
            self.assertFalse(torch.equal(mine[0], k_cache))  # the rows were written

    def test_ragged_queries_of_any_totals(self):
        def step(q, k_cache, v_cache, lengths, table, offsets):
            return fa3.flash_attn_with_kvcache(
                q, k_cache, v_cache, cache_seqlens=lengths, page_table=table, cu_seqlens_q=offsets,
                max_seqlen_q=4, causal=True, return_softmax_lse=True)

        fast = self.compiled(step)
        for counts in ((3, 4, 4), (1, 4), (2, 4, 1, 3, 2)):
            k_cache, v_cache, table = paged(len(counts))
            lengths = torch.randint(4, 20, (len(counts),), dtype=torch.int32)
            offsets = torch.tensor([0, *counts]).cumsum(0).int()
            q = rows(sum(counts), HEADS)
            got = fast(q, k_cache, v_cache, lengths, table, offsets)
            expected = step(q, k_cache, v_cache, lengths, table, offsets)
            for a, b in zip(got, expected):
                self.assertTrue(torch.equal(a, b), counts)

    def test_the_serving_call(self):
        def step(q, k_cache, v_cache, used, table, offsets):
            out = torch.empty_like(q)
            return flash.flash_attn_varlen_func(
                q, k_cache, v_cache, offsets, None, 1, 20, seqused_k=used, block_table=table,
                causal=True, out=out)

        fast = self.compiled(step)
        for batch in (7, 3, 2):
            k_cache, v_cache, table = paged(batch)
            used = torch.randint(1, 20, (batch,), dtype=torch.int32)
            offsets = torch.arange(batch + 1, dtype=torch.int32)
            q = rows(batch, HEADS)
            arguments = (q, k_cache, v_cache, used, table, offsets)
            self.assertTrue(torch.equal(fast(*arguments), step(*arguments)), batch)


if __name__ == "__main__":
    unittest.main()
