"""Errors against fp64: the answer computed by plain formulas on the same inputs.

Large problems are judged on a seeded sample: some heads, and forward some of their rows.
"""

import random

import torch

FULL_LIMIT = {"cpu": 1 << 32, "cuda": 1 << 36}  # multiply-adds
CHUNK_BYTES = {"cpu": 256 << 20, "cuda": 1 << 30}
SAMPLE_HEADS, SAMPLE_ROWS = 8, 64


class Truth:
    """The fp64 answer to one pass, and what the naive formula in the inputs' type makes of it."""

    def __init__(self, problem, tensors, backward):
        self._problem, self._tensors, self._backward = problem, tensors, backward
        self._device = tensors.q.device
        self._choose()
        self._exact, self.naive_error, self._largest = {}, 0.0, 0.0
        for place in self._places:
            exact = self._answer(place, torch.float64)
            naive = self._answer(place, problem.torch_dtype)
            for got, want in zip(naive, exact):
                self.naive_error = max(self.naive_error, _largest(got.double() - want))
                self._largest = max(self._largest, _largest(want))
            self._exact[place] = exact

    def _choose(self):
        """Places are (batch, key head): all query heads of a group share their keys."""
        p = self._problem
        per_pair = p.head_dim + p.head_dim_v
        if self._backward:
            per_pair += 3 * p.head_dim + 2 * p.head_dim_v
        sequences = p.sequences()
        cost = [max(p.pairs(b) * p.group * per_pair, 1) for b in range(len(sequences))]
        places = [(b, h) for b in range(len(sequences)) for h in range(p.heads_k)]
        limit = FULL_LIMIT[self._device.type]
        self._rows = [torch.arange(queries, device=self._device) for queries, _ in sequences]
        self._places, self.sample = places, "all"
        if sum(cost) * p.heads_k <= limit:
            return
        draw = random.Random(p.seed)
        if self._backward:  # a key's gradient needs every row of its head
            count = max(1, min(SAMPLE_HEADS // p.group, limit // max(cost), len(places)))
            words = "all rows"
        else:
            count = max(1, min(SAMPLE_HEADS // p.group, len(places)))
            most = 0
            for b, (queries, _) in enumerate(sequences):
                rows = sorted(draw.sample(range(queries), min(SAMPLE_ROWS, queries)))
                self._rows[b] = torch.tensor(rows, dtype=torch.int64, device=self._device)
                most = max(most, len(rows))
            words = f"{most} rows"
        self._places = sorted(draw.sample(places, count))
        self.sample = f"{words} of {count * p.group} heads, seed {p.seed}"

    def _heads(self, h):
        return slice(h * self._problem.group, (h + 1) * self._problem.group)

    def _slices(self, place):
        """q, k, v (and d_o) of a place: [group, rows, d], [keys, d]."""
        b, h = place
        p, t = self._problem, self._tensors
        q = p.rows_of(t.q, b, 0)[:, self._heads(h)].transpose(0, 1)[:, self._rows[b]]
        d_o = p.rows_of(t.d_o, b, 0)[:, self._heads(h)].transpose(0, 1) if self._backward else None
        return q, p.rows_of(t.k, b, 1)[:, h], p.rows_of(t.v, b, 1)[:, h], d_o

    def _answer(self, place, dtype):
        """(o,) or (dq, dk, dv) of a place, every step rounded to dtype."""
        q, k, v, d_o = (x if x is None else x.to(dtype) for x in self._slices(place))
        factor = self._problem.factor
        per_row = q.shape[0] * max(k.shape[0], 1) * 8
        step = max(1, CHUNK_BYTES[self._device.type] // (3 * per_row))
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        out, dq = [], []
        dk = torch.zeros(k.shape, dtype=wide, device=q.device)
        dv = torch.zeros(v.shape, dtype=wide, device=q.device)
        all_rows = self._rows[place[0]]
        for begin in range(0, len(all_rows), step):
            rows = all_rows[begin:begin + step]
            part = q[:, begin:begin + step]
            scores = part @ k.T * factor
            visible = self._problem.visible(rows, place[0], q.device)
            if visible is not None:
                scores = scores.masked_fill(~visible, -torch.inf)
            # A row that sees nothing is zeros, not 0 / 0.
            p = torch.softmax(scores, -1).nan_to_num(0.0) if visible is not None else \
                torch.softmax(scores, -1)
            o = p @ v
            if not self._backward:
                out.append(o)
                continue
            d = d_o[:, begin:begin + step]
            delta = (d * o).sum(-1, keepdim=True)
            ds = p * (d @ v.T - delta) * factor
            dq.append(ds @ k)
            dk += torch.einsum("gqk,gqd->kd", ds, part).to(wide)
            dv += torch.einsum("gqk,gqd->kd", p, d).to(wide)
        if not all_rows.numel():
            out, dq = [torch.zeros_like(q[..., :v.shape[-1]])], [torch.zeros_like(q)]
        if not self._backward:
            return (torch.cat(out, 1),)
        return torch.cat(dq, 1), dk.to(dtype), dv.to(dtype)

    def error_of(self, outputs):
        """Largest |x - fp64| over `outputs`: (o,) or (dq, dk, dv), laid out as q and k are."""
        p, worst = self._problem, 0.0
        for (b, h), exact in self._exact.items():
            first = p.rows_of(outputs[0], b, 0)[:, self._heads(h)].transpose(0, 1)[:, self._rows[b]]
            rest = [p.rows_of(x, b, 1)[:, h] for x in outputs[1:]]
            for got, want in zip([first] + rest, exact):
                worst = max(worst, _largest(got.double() - want))
        return worst

    def verdict(self, error):
        """Why a result is wrong, or "" when it is as good as its type allows.

        Ten times what the naive formula loses is generous to any order of summation; another mask,
        layout or precision is far beyond it.
        """
        rounding = torch.finfo(self._problem.torch_dtype).eps * self._largest
        bound = 10 * max(self.naive_error, rounding)
        if error <= bound:
            return ""
        got = "not finite" if error == float("inf") else f"{error:.3g}"
        return (f"a wrong result: error {got}, where the naive formula in {self._problem.dtype} "
                f"loses {self.naive_error:.3g}")


def _largest(tensor):
    """Largest magnitude; infinite where an element is not a number."""
    if tensor.numel() == 0:
        return 0.0
    value = tensor.abs().max().item()
    return value if value == value else float("inf")
