"""FlashAttention's own test matrices, as lists of cases.

Three files of Dao-AILab/flash-attention (read 2026-08): fa2 is tests/test_flash_attn.py, fa3 is
hopper/test_flash_attn.py, fa4 is tests/cute/test_flash_attn.py. A Sweep is one test function of a
file: its axes, the cases that the original itself skips, and what its cases need. A case is a dict
of axis values; its name repeats it:

    fa2:causal:dtype=bf16,local=0,d=64,swap=1,seqlens=113x203
"""

import dataclasses
import functools
import itertools
import math

DIMS = (32, 40, 59, 64, 80, 96, 111, 128, 160, 192, 224, 256)
HALVES = ("fp16", "bf16")
CAUSAL_LENGTHS = ((1, 239), (3, 799), (127, 512), (127, 513), (113, 203), (128, 217), (113, 211),
                  (108, 256), (256, 512), (1023, 1024))
MIXED_LENGTHS = ((113, 203), (128, 217), (113, 211), (108, 256), (256, 512), (512, 256),
                 (1024, 1024), (1023, 1024), (1024, 1023), (2048, 2048))
SPLIT_LENGTHS = ((3, 1024), (1, 339), (64, 800), (3, 799), (64, 2048), (16, 20000), (16, 100000),
                 (128, 128), (256, 256))
RACE_LENGTHS = ((1, 239), (239, 1), (3, 799), (799, 3), (1024, 128), (97, 97), (128, 128),
                (200, 200), (256, 256), (257, 257), (384, 384), (512, 512), (768, 768),
                (1024, 1024))
FA3_LENGTHS = ((1, 1), (64, 128), (128, 192), (256, 256), (239, 1), (799, 3), (113, 203),
               (113, 128), (128, 217), (113, 211), (108, 256), (256, 512), (384, 256), (640, 128),
               (512, 256), (1024, 1024), (1023, 1024), (1024, 1023), (4096, 4096), (4224, 4224))
FA4_LENGTHS = ((1, 1), (3, 3), (64, 32), (64, 128), (64, 1), (128, 128), (128, 192), (256, 256),
               (255, 256), *FA3_LENGTHS[4:18], (2048, 2048), (4096, 4096), (4224, 4224))
FLAG = (0, 1)

# What a case may ask for that flashlab.torch does not compute yet, in the order in which a case
# with several is counted. Each must be refused, never ignored.
FEATURES = {
    "qv": lambda case: case.get("qv", 0) > 0,
    "fp8": lambda case: case.get("dtype") == "e4m3",
}

# What no GPU's kernels have: beyond 256 there is the naive one alone.
WIDE_VALUES = "softcap or chunks beside head_dim_v over 256"


@dataclasses.dataclass(frozen=True)
class Rule:
    """max|lib - ref| <= factor max|pt - ref| + atol; atol None: the rounding of ref, twice."""
    out: float = 2
    out_atol: float = 0
    grad: float = 2
    grad_atol: float = 0


ROUNDING = Rule(out_atol=None, grad_atol=None)  # FlashAttention-3 and 4


@dataclasses.dataclass(frozen=True)
class Sweep:
    """A test function: `kind` says which function of flash_attention_math runs its cases."""
    file: str
    name: str
    kind: str
    axes: dict
    batch: object = 1         # a number, or a function of the case
    heads: int = 1
    kv_heads: dict = dataclasses.field(default_factory=dict)  # of the axis mha; default: heads
    rule: Rule = ROUNDING
    skipped: object = None    # cases that the original skips
    fixed: dict = dataclasses.field(default_factory=dict)
    repeats: int = 0          # how often the original repeats a call

    @property
    def key(self):
        return f"{self.file}:{self.name}"

    def size(self):
        return math.prod(len(values) for values in self.axes.values())

    def cases(self):
        for values in itertools.product(*self.axes.values()):
            case = dict(zip(self.axes, values)) | self.fixed
            if self.skipped is None or not self.skipped(case):
                yield case

    def case_name(self, case):
        return f"{self.key}:" + ",".join(f"{axis}={spell(case[axis])}" for axis in self.axes)

    def parse(self, text):
        """The case that case_name wrote."""
        given = dict(part.split("=", 1) for part in text.split(",")) if text else {}
        if set(given) != set(self.axes):
            raise ValueError(f"{self.key} has the axes {', '.join(self.axes)}; got {text!r}")
        case = {}
        for axis, values in self.axes.items():
            found = [value for value in values if spell(value) == given[axis]]
            if not found:
                raise ValueError(f"{self.key}: {axis} is one of "
                                 f"{', '.join(map(spell, values))}; got {given[axis]!r}")
            case[axis] = found[0]
        return case | self.fixed

    def shape(self, case):
        """(batch, seqlen_q, seqlen_k, heads_q, heads_k, head_dim, head_dim_v)"""
        batch = self.batch(case) if callable(self.batch) else self.batch
        seqlen_q, seqlen_k = case["seqlens"]
        if case.get("swap"):
            seqlen_q, seqlen_k = seqlen_k, seqlen_q
        kv_heads = self.kv_heads.get(case.get("mha", "mha"), self.heads)
        return (batch, seqlen_q, seqlen_k, self.heads, kv_heads, case["d"],
                case.get("dv") or case["d"])


def spell(value):
    return "x".join(map(str, value)) if isinstance(value, tuple) else str(value)


# Axes whose values choose kernels; of these numbers only whether they are 0.
KERNEL_AXES = ("dtype", "d", "dv", "causal", "mask", "local", "chunk", "deterministic")
KERNEL_SWITCHES = ("softcap", "alibi", "dropout", "sink", "page", "rotary")


def kernels_of(sweep, case):
    """What cases share that run the same kernels, or nearly: compiling them is most of the time of
    cases that come first."""
    return (sweep.kind, *(case.get(axis) for axis in KERNEL_AXES),
            *(bool(case.get(axis)) for axis in KERNEL_SWITCHES))


def lacks(sweep, case, device="cuda"):
    """The first thing that the case needs and flashlab.torch lacks on the device, or ''."""
    for name, asked in FEATURES.items():
        if asked(case):
            return name
    if device == "cuda" and (case.get("dv") or 0) > 256 and (case["chunk"] or case["softcap"]):
        return WIDE_VALUES
    return ""


def square(lengths):
    return tuple((length, length) for length in lengths)


def large_batch(case):
    return 9 if case["seqlens"][1] <= 2048 else 2


def unequal_values_fa3(case):
    """(d, dv) pairs: dv 128 or d for d in (128, 192], 256, 512 or d to 64, else d."""
    d, dv = case["d"], case["dv"]
    if case["qv"]:
        return d != 64 or case["dtype"] == "e4m3" or dv not in (256, 512)
    if case["dtype"] == "e4m3":
        return dv != 0
    return not (dv == 0 or (d == 192 and dv == 128) or (d == 64 and dv in (256, 512)))


def skipped_fa3_varlen(case):
    """Chunks are for at least as many keys as queries."""
    return ((case["qv"] and (case["d"] != 64 or case["dtype"] == "e4m3"))
            or (case["chunk"] and case["seqlens"][0] > case["seqlens"][1]))


def skipped_kvcache(case):
    """More new keys than the cache holds; something to turn where nothing is appended; pages of
    entries that are chosen by an index."""
    seqlen_q, seqlen_k = case["seqlens"]
    return ((case["new_kv"] and seqlen_q > seqlen_k) or (case["rotary"] and not case["new_kv"])
            or bool(case["page"] and case.get("batch_idx")))


def skipped_fa4_kvcache(case):
    return case["local"] and case["causal"]


def skipped_fa4(case):
    """Bounds and causal together; values of 128 at d 192, of 64 also at d 128."""
    wanted = {192: (128,), 128: (0, 64)}.get(case["d"], (0,))
    return (case["local"] and case["causal"]) or case["dv"] not in wanted


FA2 = [
    Sweep("fa2", "qkvpacked", "rule", dict(
        dtype=HALVES, deterministic=FLAG, alibi=FLAG, local=FLAG, causal=FLAG, d=DIMS,
        seqlens=square((97, 128, 200, 384, 768, 1024, 1025, 2048)), dropout=(0.0, 0.17)),
          batch=4, heads=9, rule=Rule(), fixed={"pack": "qkv"}),
    Sweep("fa2", "varlen_qkvpacked", "varlen", dict(
        dtype=HALVES, deterministic=FLAG, alibi=FLAG, local=FLAG, causal=FLAG,
        d=(32, 59, 64, 80, 96, 128, 160, 192, 224, 256),
        seqlens=square((97, 128, 200, 257, 384, 512, 768, 1025, 2048)), dropout=(0.0, 0.17)),
          batch=5, heads=6, rule=Rule(), fixed={"pack": "qkv"}),
    Sweep("fa2", "output", "rule", dict(
        pack=("", "kv"), dtype=HALVES, mha=("mha", "mqa", "gqa"), deterministic=FLAG, alibi=FLAG,
        local=FLAG, causal=FLAG, d=(32, 40, 59, 64, 96, 111, 128, 160, 192, 224, 256),
        seqlens=MIXED_LENGTHS, dropout=(0.0, 0.17), softcap=(0.0, 50.0)),
          batch=4, heads=6, kv_heads={"mqa": 1, "gqa": 2}, rule=Rule(grad=3),
          skipped=lambda case: case["dropout"] and case["softcap"]),
    Sweep("fa2", "varlen_output", "varlen", dict(
        pack=("", "kv"), dtype=HALVES, mha=("mha", "mqa", "gqa"), deterministic=FLAG, alibi=FLAG,
        local=FLAG, causal=FLAG, d=(32, 59, 64, 80, 96, 111, 128, 160, 192, 224, 256),
        seqlens=((1, 147), *MIXED_LENGTHS), dropout=(0.0, 0.17), softcap=(0.0, 50.0)),
          batch=4, heads=6, kv_heads={"mqa": 1, "gqa": 2}, rule=Rule(grad=3),
          skipped=lambda case: case["dropout"] and case["softcap"]),
    Sweep("fa2", "causal", "rule", dict(
        dtype=HALVES, local=FLAG, d=DIMS, swap=FLAG, seqlens=CAUSAL_LENGTHS),
          batch=8, heads=9, rule=Rule(out_atol=1e-5, grad_atol=1e-5), fixed={"causal": 1}),
    Sweep("fa2", "varlen_causal", "varlen", dict(
        dtype=HALVES, local=FLAG, d=DIMS, swap=FLAG, seqlens=CAUSAL_LENGTHS, page=(0, 256, 512)),
          batch=8, heads=9, rule=Rule(out_atol=1e-5, grad_atol=1e-5), fixed={"causal": 1}),
    Sweep("fa2", "splitkv", "rule", dict(
        dtype=HALVES, deterministic=FLAG, alibi=FLAG, local=FLAG, causal=FLAG, d=DIMS, swap=FLAG,
        seqlens=SPLIT_LENGTHS), batch=1, heads=12, rule=Rule(out_atol=1e-5, grad_atol=2e-4)),
    Sweep("fa2", "kvcache", "kvcache", dict(
        splits=(1, 0), mha=("mha", "mqa", "gqa"), new_kv=FLAG, alibi=FLAG, local=FLAG, causal=FLAG,
        new_is_q=FLAG, interleaved=FLAG, rotary=(0.0, 0.5, 1.0), page=(0, 256), leftpad=FLAG,
        d=(32, 59, 64, 80, 128, 256),
        seqlens=((1, 128), (1, 339), (3, 1024), (64, 800), (64, 256), (3, 799), (64, 2048),
                 (16, 20000), (1, 131072), (16, 131072), (128, 128))),
          batch=2, heads=6, kv_heads={"mqa": 1, "gqa": 3}, skipped=skipped_kvcache,
          rule=Rule(out=3, out_atol=1e-5)),
    Sweep("fa2", "race_condition", "repeat", dict(
        causal=FLAG, d=DIMS, seqlens=RACE_LENGTHS, dropout=(0.0, 0.17)),
          batch=60, heads=4, fixed={"dtype": "fp16"}, repeats=250),
    Sweep("fa2", "bwd_overflow", "rule", dict(
        causal=FLAG, d=(16, 32, 64), seqlens=square((1, 2, 5, 17, 128))),
          batch=2, heads=5, rule=Rule(grad=5, grad_atol=1e-3),
          fixed={"dtype": "fp16", "times": (5, 3, 3)}),
    Sweep("fa2", "bwd_transpose", "rule", dict(
        dtype=HALVES, causal=FLAG, d=(64, 128), seqlens=square((97, 128, 200, 256))),
          batch=5, heads=2, rule=Rule(), fixed={"strided_gradient": 1}),
    Sweep("fa2", "bwd_varlen_overflow", "varlen_overflow", dict(
        causal=FLAG, d=(16, 32, 64), seqlens=((256, 3),)), heads=5, fixed={"dtype": "fp16"}),
    Sweep("fa2", "deterministic", "repeat", dict(
        dtype=HALVES, local=FLAG, causal=FLAG, d=DIMS, swap=FLAG, seqlens=CAUSAL_LENGTHS),
          batch=4, heads=9, fixed={"deterministic": 1}, repeats=50),
    Sweep("fa2", "varlen_deterministic", "varlen_repeat", dict(
        dtype=HALVES, local=FLAG, causal=FLAG, d=DIMS, swap=FLAG, seqlens=CAUSAL_LENGTHS),
          batch=2, heads=9, fixed={"deterministic": 1}, repeats=50),
]

FA3_AXES = dict(
    dtype=("bf16", "fp16", "e4m3"), mha=("mha", "mqa", "gqa"), qv=FLAG, softcap=(0.0, 15.0),
    local=FLAG, causal=FLAG, d=(64, 96, 128, 192, 256))
FA3 = [
    # Of the original's inner loops, dv and chunk are axes here. pack_gqa and num_splits choose
    # kernels of FlashAttention-3 and change no result; ours are chosen by the planner.
    Sweep("fa3", "output", "rule", FA3_AXES | dict(
        seqlens=FA3_LENGTHS, dv=(0, 128, 256, 512), chunk=FLAG),
          batch=large_batch, heads=6, kv_heads={"mqa": 1, "gqa": 2}, skipped=unequal_values_fa3),
    Sweep("fa3", "varlen_output", "varlen", FA3_AXES | dict(
        unused=FLAG, chunk=FLAG,
        seqlens=((1, 1), (1, 3), (2, 1), (511, 1), (3, 513), (64, 128), (128, 128), (256, 256),
                 *MIXED_LENGTHS[:4], (256, 512), (307, 256), (640, 128), (512, 256), (1024, 1024),
                 (1023, 1024), (1024, 1023), (1024, 1024), (2048, 2048), (4096, 4096))),
          batch=large_batch, heads=6, kv_heads={"mqa": 1, "gqa": 2},
          skipped=skipped_fa3_varlen),
    Sweep("fa3", "kvcache", "kvcache", dict(
        dtype=("bf16", "e4m3"), mha=("mha", "mqa", "gqa"), new_kv=FLAG,
        mask=("none", "causal", "local"), new_is_q=FLAG, interleaved=FLAG, rotary=(0.0, 0.5, 1.0),
        page=(0, 1, 4, 128), leftpad=FLAG, batch_idx=FLAG, varlen_q=FLAG, d=(128,),
        seqlens=((1, 128), (1, 339), (3, 1024), (64, 800), (64, 256), (3, 799), (64, 2048),
                 (16, 20000), (128, 128), (256, 512), (2048, 3577))),
          batch=5, heads=6, kv_heads={"mqa": 1, "gqa": 3}, skipped=skipped_kvcache,
          rule=Rule(out=3, out_atol=1e-5)),
    Sweep("fa3", "cluster", "launch", dict(causal=FLAG, d=(128,), seqlens=((64, 8192),)),
          batch=2, heads=16, kv_heads={"mha": 4}, fixed={"dtype": "bf16"}, repeats=100),
    Sweep("fa3", "race_condition", "repeat", dict(
        causal=FLAG, d=DIMS, seqlens=(*RACE_LENGTHS, (2048, 2048))),
          batch=60, heads=4, fixed={"dtype": "bf16"}, repeats=1000),
    Sweep("fa3", "combine", "combine", dict(
        dtype=("fp32", "fp16", "bf16"), d=(64, 96, 128, 192, 256, 512),
        seqlens=square((1, 2, 3, 32, 64, 256, 113, 108, 640, 1024)),
        splits=(1, 2, 3, 5, 17, 32, 55, 97, 133)), batch=5, heads=16),
]

FA4 = [
    Sweep("fa4", "output", "rule", dict(
        mha=("mha", "mqa", "gqa"), sink=FLAG, deterministic=FLAG, softcap=(0.0, 15.0),
        local=(0, 1, 2, 3), causal=FLAG, d=(64, 96, 128, 192, 256), seqlens=FA4_LENGTHS,
        dv=(0, 64, 128)),
          batch=large_batch, heads=6, kv_heads={"mqa": 1, "gqa": 3}, skipped=skipped_fa4,
          fixed={"dtype": "bf16"}),
    Sweep("fa4", "small_head_dim", "rule", dict(
        causal=FLAG, d=(8, 16, 32), seqlens=square((128, 2048))),
          batch=2, heads=2, fixed={"dtype": "bf16"}),
    Sweep("fa4", "lse_grad", "lse_gradient", dict(
        causal=FLAG, d=(64, 128), seqlens=square((128, 256))),
          batch=2, heads=4, fixed={"dtype": "bf16"}),
    Sweep("fa4", "lse_grad_unused", "lse_unused", dict(
        causal=FLAG, d=(128,), seqlens=square((128,))), batch=2, heads=4, fixed={"dtype": "bf16"}),
    Sweep("fa4", "seqlen_k_zero", "empty", dict(
        causal=FLAG, d=(128, 192), seqlens=((1, 0), (64, 0), (128, 0), (256, 0))),
          batch=4, heads=16, fixed={"dtype": "bf16"}),
    Sweep("fa4", "empty_q_dense", "empty", dict(
        causal=FLAG, d=(128,), seqlens=((0, 4096), (64, 4096))),
          batch=lambda case: 2 if case["seqlens"][0] == 0 else 0, heads=16,
          fixed={"dtype": "bf16"}),
    Sweep("fa4", "varlen_output", "varlen", dict(
        mha=("mha", "mqa", "gqa"), sink=FLAG, deterministic=FLAG, softcap=(0.0, 15.0),
        local=(0, 1, 2, 3), causal=FLAG, d=(64, 128, 192, 256),
        seqlens=((511, 1), (3, 513), (64, 128), (128, 128), (256, 256), *MIXED_LENGTHS[:5],
                 (307, 256), (640, 128), *MIXED_LENGTHS[5:], (64, 1), (255, 256), (4096, 4096),
                 (4224, 4224)),
        lengths=("random", "third", "full"), zero_q=FLAG, zero_k=FLAG, unpad_q=FLAG,
        unpad_kv=FLAG), batch=9, heads=6, kv_heads={"mqa": 1, "gqa": 3},
          skipped=lambda case: case["local"] and case["causal"],
          fixed={"dtype": "bf16", "square": 1}),
    Sweep("fa4", "kvcache", "kvcache", dict(
        mha=("mha", "mqa", "gqa"), sink=FLAG, local=FLAG, causal=FLAG, page=(0, 1, 4, 128),
        varlen_q=FLAG, d=(64, 128),
        seqlens=((1, 128), (1, 339), (3, 1024), (64, 800), (64, 256), (3, 799), (64, 2048),
                 (16, 20000))),
          batch=5, heads=6, kv_heads={"mqa": 1, "gqa": 3}, skipped=skipped_fa4_kvcache,
          fixed={"dtype": "bf16"}, rule=Rule(out=3, out_atol=1e-5)),
]

SWEEPS = {sweep.key: sweep for sweep in (*FA2, *FA3, *FA4)}
FILES = {"fa2": ("tests/test_flash_attn.py", FA2), "fa3": ("hopper/test_flash_attn.py", FA3),
         "fa4": ("tests/cute/test_flash_attn.py", FA4)}


def find(name):
    """(sweep, case) of a case's name."""
    parts = name.split(":", 2)
    sweep = SWEEPS.get(":".join(parts[:2]))
    if sweep is None or len(parts) != 3:
        raise ValueError(f"no test is called {name!r}; a name is FILE:TEST:axis=value,... with "
                         f"FILE:TEST one of {', '.join(SWEEPS)}")
    return sweep, sweep.parse(parts[2])


@functools.lru_cache(maxsize=None)
def sorted_out(file, device="cuda"):
    """([(sweep, case)] that flashlab.torch can run, {reason: how many it cannot}, {reason: those of
    them that are worth a call}, how many cases that is altogether)"""
    runnable, counts, refused = [], {}, {}
    for sweep in FILES[file][1]:
        for case in sweep.cases():
            reason = lacks(sweep, case, device)
            if reason:
                counts[reason] = counts.get(reason, 0) + 1
                refused.setdefault(reason, []).append((sweep, case))
            else:
                runnable.append((sweep, case))
    return runnable, counts, refused, len(runnable) + sum(counts.values())
