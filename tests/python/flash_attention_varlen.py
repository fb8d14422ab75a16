"""Ragged cases of FlashAttention's tests: what they draw, and how they are run and judged.

A case is a list of sequences. The formula is computed for each by itself, on slices of the same
rows, so that what stands between the sequences can reach no result that it is held to.
"""

import torch

import flash_attention_features as features_of_tests
import flash_attention_math as maths
import flashlab.torch as lib


def lengths_of(longest, batch, mode="random", zeros=False):
    """Lengths as the originals draw them: the last 20, the last two thirds, or all the longest."""
    if mode == "full":
        lengths = torch.full((batch,), longest)
    else:
        least = longest // 3 if mode == "third" else max(0 if zeros else 1, longest - 20)
        lengths = torch.randint(least, longest + 1, (batch,))
    if zeros:
        lengths[::5] = 0
        lengths[-1] = 0
    return lengths


class Side:
    """The sequences of queries or of keys: rows of one tensor, or a padded one."""

    def __init__(self, longest, batch, device, *, mode="random", zeros=False, unused=False,
                 padded=False):
        self.used = lengths_of(longest, batch, mode, zeros)
        kept = self.used
        if unused:
            # Rows that are there and do not count: what only one of two draws has.
            other = lengths_of(longest, batch)
            self.used, kept = torch.minimum(kept, other), torch.maximum(kept, other)
        self.longest, self.padded, self.unused = longest, padded, unused
        self.begins = (torch.arange(batch) * longest if padded
                       else torch.nn.functional.pad(kept.cumsum(0), (1, 0))[:-1])
        self.rows = batch * longest if padded else int(kept.sum())
        self.cu = torch.nn.functional.pad(kept.cumsum(0), (1, 0)).int().to(device)
        self.lengths = self.used.int().to(device)

    def of(self, tensor, b):
        """The rows of sequence b that count, [1, length, ...]."""
        begin = int(self.begins[b])
        return tensor[None, begin:begin + int(self.used[b])]

    def shaped(self, rows):
        """As the function takes it: [rows, ...], or [batch, longest, ...]."""
        return rows.unflatten(0, (-1, self.longest)) if self.padded else rows

    def arguments(self, letter):
        more = {f"max_seqlen_{letter}": self.longest}
        if not self.padded:
            more[f"cu_seqlens_{letter}"] = self.cu
        if self.padded or self.unused:
            more[f"seqused_{letter}"] = self.lengths
        return more


def sides_of(sweep, case, device):
    """The queries' and the keys' sequences."""
    batch, seqlen_q, seqlen_k, *_ = sweep.shape(case)
    more = {"mode": case.get("lengths", "random"), "unused": bool(case.get("unused"))}
    same = case.get("pack") == "qkv" or (case.get("square") and (case["causal"] or case["local"]))
    queries = Side(seqlen_q, batch, device, zeros=bool(case.get("zero_q")),
                   padded=not case.get("unpad_q", 1), **more)
    zeros = bool(case.get("zero_k")) or sweep.file == "fa3"
    keys = Side(seqlen_q if same else seqlen_k, batch, device, zeros=zeros,
                padded=not case.get("unpad_kv", 1), **more)
    if same:
        again = Side(seqlen_q, batch, device, mode="full", padded=keys.padded)
        again.used, again.lengths, again.cu = queries.used, queries.lengths, queries.cu
        if not keys.padded:
            again.begins = queries.cu[:-1].cpu()
            again.rows = int(queries.cu[-1])
        keys = again
    return queries, keys


def leaves_of(sweep, case, queries, keys, device):
    """Rows as the function takes them apart or packed, with gradients."""
    *_, heads, kv_heads, dim, dim_v = sweep.shape(case)
    factor = features_of_tests.query_factor(sweep, case)

    def draw(*shape, times=1):
        made = torch.randn(*shape, device=device, dtype=maths.DTYPES[case["dtype"]])
        return (made * times if times != 1 else made).requires_grad_()

    if case.get("pack") == "qkv":
        return [draw(queries.rows, 3, heads, dim)]
    q = draw(queries.rows, heads, dim, times=factor)
    if case.get("pack") == "kv":
        return [q, draw(keys.rows, 2, kv_heads, dim)]
    return [q, draw(keys.rows, kv_heads, dim), draw(keys.rows, kv_heads, dim_v)]


def apart(leaves):
    """q, k and v as rows."""
    if len(leaves) == 3:
        return leaves
    return leaves[0].unbind(1) if len(leaves) == 1 else [leaves[0], *leaves[1].unbind(1)]


def call(sweep, case, leaves, queries, keys, features):
    """The rows of out, by the function of the sweep's file."""
    more = features.arguments() | {"causal": bool(case["causal"]),
                                   "deterministic": bool(case.get("deterministic", 0))}
    lists = queries.arguments("q") | keys.arguments("k")
    if sweep.file == "fa4":
        q, k, v = leaves
        out, _ = lib.cute.flash_attn_varlen_func(
            queries.shaped(q), keys.shaped(k), keys.shaped(v), **lists, **more)
        return out.flatten(0, 1) if queries.padded else out
    if "window_size" in more:
        more["window_size"] = tuple(-1 if side is None else side for side in more["window_size"])
    if sweep.file == "fa3":
        return lib.flash_attn_interface.flash_attn_varlen_func(*leaves, **lists, **more)
    if len(leaves) == 1:
        return lib.flash_attn_varlen_qkvpacked_func(*leaves, queries.cu, queries.longest, **more)
    function = (lib.flash_attn_varlen_kvpacked_func if len(leaves) == 2
                else lib.flash_attn_varlen_func)
    return function(*leaves, **lists, **more)


def formula(case, leaves, queries, keys, features, upcast):
    """The rows of out by the formula for each sequence; zeros where none is."""
    q, k, v = apart(leaves)
    out = torch.zeros(queries.rows, q.shape[1], v.shape[2], device=q.device, dtype=q.dtype)
    parts, places = [], []
    for b in range(len(queries.used)):
        length_q, length_k = int(queries.used[b]), int(keys.used[b])
        if length_q == 0 or length_k == 0:
            continue
        parts.append(maths.formula(queries.of(q, b), keys.of(k, b), keys.of(v, b), case["causal"],
                                   upcast, features.of_entry(b, length_q, length_k))[0])
        begin = int(queries.begins[b])
        places.append(torch.arange(begin, begin + length_q, device=q.device))
    if not parts:
        return out + 0 * sum(leaf.sum() for leaf in leaves)
    return out.index_copy(0, torch.cat(places), torch.cat(parts))


def draw(sweep, case, device):
    torch.random.manual_seed(0)
    queries, keys = sides_of(sweep, case, device)
    leaves = leaves_of(sweep, case, queries, keys, device)
    return queries, keys, leaves, features_of_tests.draw(sweep, case, device)


def named(leaves, gradients):
    """Packed gradients as one; in flash-attn's order."""
    names = {1: ("dqkv",), 2: ("dq", "dkv"), 3: ("dq", "dk", "dv")}[len(leaves)]
    return list(zip(names, gradients))


def paged(case, leaves, keys):
    """k and v of all rows in pages in any order, with rows of no sequence between, and the table.
    """
    page, batch = case["page"], len(keys.used)
    per_sequence = -(-keys.longest // page)
    order = torch.randperm(3 * batch * per_sequence)[:batch * per_sequence]
    table = order.reshape(batch, per_sequence).int()
    pools = []
    for leaf in leaves[1:]:
        pool = torch.randn(3 * batch * per_sequence, page, *leaf.shape[1:], device=leaf.device,
                           dtype=leaf.dtype)
        for b in range(batch):
            for at, rows in enumerate(keys.of(leaf, b)[0].detach().split(page)):
                pool[table[b, at], :len(rows)] = rows
        pools.append(pool)
    return [leaves[0].detach(), *pools], table.to(leaves[0].device)


def run_paged(sweep, case, device, _):
    """Forward alone, as the original: pages have no gradient."""
    queries, keys, leaves, features = draw(sweep, case, device)
    given, table = paged(case, leaves, keys)
    more = features.arguments()
    if "window_size" in more:
        more["window_size"] = tuple(-1 if side is None else side for side in more["window_size"])
    with torch.no_grad():
        outs = [lib.flash_attn_varlen_func(
            *given, **queries.arguments("q"), **keys.arguments("k"), causal=bool(case["causal"]),
            block_table=table, **more)]
        outs += [formula(case, leaves, queries, keys, features, upcast)
                 for upcast in (False, True)]
    return maths.judge([("out", *outs)], sweep.rule)


def run_varlen(sweep, case, device, repeats):
    if case.get("page"):
        return run_paged(sweep, case, device, repeats)
    queries, keys, leaves, features = draw(sweep, case, device)
    seed = features_of_tests.next_seed(device)
    outs = [call(sweep, case, leaves, queries, keys, features)]
    if features.dropout_p:
        shape = (len(queries.used), leaves[0].shape[-2], queries.longest, keys.longest)
        features = features._replace(kept=features_of_tests.kept_pairs(
            shape, features.dropout_p, *seed, device))
    exact = features_of_tests.exact_sinks(features)
    outs += [formula(case, leaves, queries, keys, features, False),
             formula(case, leaves, queries, keys, exact, True)]
    g = torch.randn_like(outs[0])
    triples = [("out", *(out.detach() for out in outs))]
    results, sinks = [], None
    for which, out in enumerate(outs):
        own = [features.sinks] if features.sinks is not None and which == 0 else []
        gradients = torch.autograd.grad(out, [*leaves, *own], g, allow_unused=True,
                                        retain_graph=features.sinks is not None)
        results.append(named(leaves, gradients[:len(leaves)]))
        if own:
            sinks = maths.SinkGradient.of(gradients[-1], outs[-1], exact.sinks, g)
    for (name, got), (_, pt), (_, ref) in zip(*results):
        if ref is None or pt is None:  # no sequence has both queries and keys
            pt = ref = torch.zeros_like(got)
        triples.append((name, got, pt, ref))

    def of_out():
        """Sequence by sequence: the gradients of each are those of its own rows."""
        sums = [torch.zeros_like(leaf) for leaf in leaves]
        q, k, v = apart(leaves)
        for b in range(len(queries.used)):
            length_q, length_k = int(queries.used[b]), int(keys.used[b])
            if length_q == 0 or length_k == 0:
                continue
            given = maths.formula(queries.of(q, b), keys.of(k, b), keys.of(v, b), case["causal"],
                                  True, exact.of_entry(b, length_q, length_k), with_lse=True)
            found = maths.by_rounded_out(given, leaves, queries.of(outs[0], b), queries.of(g, b))
            sums = [x + y for x, y in zip(sums, found)]
        return dict(named(leaves, sums))

    rule = sweep.rule
    if case.get("softcap") and sweep.file != "fa2":  # as the originals
        rule = type(rule)(out=3, out_atol=rule.out_atol, grad=3, grad_atol=3e-4)
    return maths.judge_all(triples, rule, sinks, of_out)


def run_varlen_repeat(sweep, case, device, repeats):
    """Deterministic gradients of one call, again and again: equal in every bit."""
    queries, keys, leaves, features = draw(sweep, case, device)
    out = call(sweep, case, leaves, queries, keys, features)
    g = torch.randn_like(out)
    first = torch.autograd.grad(out, leaves, g, retain_graph=True)
    for _ in range(min(repeats, sweep.repeats)):
        again = torch.autograd.grad(out, leaves, g, retain_graph=True)
        for name, x, y in zip(("dq", "dk", "dv"), again, first):
            if not torch.equal(x, y):
                raise maths.Failed(f"{name} of a repeated call differs")
    return {}, ""


def run_overflow(sweep, case, device, _):
    """Large scores of sequences with one key each: no gradient is NaN."""
    torch.random.manual_seed(0)
    cu_q, cu_k = (torch.tensor(x, device=device, dtype=torch.int32)
                  for x in ([0, 76, 110, 256], [0, 1, 2, 3]))
    q, k, v = ((torch.randn(rows, sweep.heads, case["d"], device=device, dtype=torch.float16) * 3)
               .requires_grad_() for rows in (256, 3, 3))
    out = lib.flash_attn_varlen_func(q, k, v, cu_q, cu_k, 256, 3, causal=bool(case["causal"]))
    for name, x in zip(("dq", "dk", "dv"), torch.autograd.grad(out, (q, k, v),
                                                               torch.randn_like(out))):
        if bool(x.isnan().any()):
            raise maths.Failed(f"{name} has NaN")
    return {}, ""


KINDS = {"varlen": run_varlen, "varlen_repeat": run_varlen_repeat, "varlen_overflow": run_overflow}
