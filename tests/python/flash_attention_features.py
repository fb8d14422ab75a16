"""Windows, softcap, ALiBi, sinks and dropout in FlashAttention's tests: what a case draws, as those
tests draw it, and which pairs flashlab.torch drops, by a text of its own.
"""

from typing import NamedTuple, Optional

import torch

MASK_32, MASK_64 = (1 << 32) - 1, (1 << 64) - 1


class Features(NamedTuple):
    """Arguments of the drop-ins beside q, k, v and causal; kept: [batch, heads, Sq, Sk] bool. A
    side of the window has a sign, None is no bound."""
    window: tuple = (None, None)
    softcap: float = 0.0
    slopes: Optional[torch.Tensor] = None
    dropout_p: float = 0.0
    kept: Optional[torch.Tensor] = None
    chunk: int = 0
    sinks: Optional[torch.Tensor] = None  # [heads]

    def arguments(self):
        more = {}
        if self.window != (None, None):
            more["window_size"] = self.window
        if self.chunk:
            more["attention_chunk"] = self.chunk
        if self.sinks is not None:
            more["learnable_sink"] = self.sinks
        if self.softcap:
            more["softcap"] = self.softcap
        if self.slopes is not None:
            more["alibi_slopes"] = self.slopes
        if self.dropout_p:
            more["dropout_p"] = self.dropout_p
        return more

    def of_entry(self, b, seqlen_q, seqlen_k):
        """Those of one entry of a batch, of these lengths."""
        return self._replace(
            slopes=None if self.slopes is None else self.slopes[b:b + 1],
            kept=None if self.kept is None else self.kept[b:b + 1, :, :seqlen_q, :seqlen_k])


def exact_sinks(features):
    """The same, with a leaf of fp32 for sinks: its gradient is not rounded."""
    if features.sinks is None:
        return features
    return features._replace(sinks=features.sinks.detach().float().requires_grad_())


def draw(sweep, case, device):
    """What the case asks for, without `kept`."""
    batch, _, seqlen_k, heads, _, _, _ = sweep.shape(case)
    window = (None, None)
    if case.get("local"):
        left, right = torch.randint(0, max(seqlen_k, 1), (2,)).tolist()
        # FlashAttention-4's dense tests have windows beside the diagonal, its ragged ones not.
        sign = 1 if "varlen" in sweep.name else -1
        window = {1: (left, right), 2: (None, sign * right), 3: (sign * left, None)}[case["local"]]
    slopes = torch.rand(batch, heads, device=device) * 0.3 if case.get("alibi") else None
    chunk = int(torch.randint(1, seqlen_k * 2, (1,))) if case.get("chunk") else 0
    sinks = (torch.randn(heads, device=device, dtype=torch.bfloat16).requires_grad_()
             if case.get("sink") else None)
    return Features(window, case.get("softcap", 0.0), slopes, case.get("dropout", 0.0), None, chunk,
                    sinks)


def query_factor(sweep, case):
    """Of q, so that scores reach the cap: the cap in FlashAttention-2's tests, then a fourth."""
    cap = case.get("softcap", 0.0)
    return 1 if not cap else cap if sweep.file == "fa2" else cap / 4


# ---------------------------------------------------------------------------------------------
# Dropout
# ---------------------------------------------------------------------------------------------

def next_seed(device):
    """(seed, offset) that the next call on the device draws; the generator stays as it is."""
    if device == "cuda":
        generator = torch.cuda.default_generators[torch.cuda.current_device()]
        return generator.initial_seed(), generator.get_offset()
    state = torch.random.get_rng_state()
    drawn = torch.randint(-2**63, 2**63 - 1, (2,), dtype=torch.int64).tolist()
    torch.random.set_rng_state(state)
    return drawn[0] & MASK_64, drawn[1] & MASK_64


def head_words(seed, offset, head):
    """Three words of Philox-4x32-10: a head's key, and what its queries and keys are mixed with."""
    c = [head & MASK_32, head >> 32, offset & MASK_32, offset >> 32]
    k = [seed & MASK_32, seed >> 32]
    for _ in range(10):
        first, second = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [second >> 32 ^ c[1] ^ k[0], second & MASK_32,
             first >> 32 ^ c[3] ^ k[1], first & MASK_32]
        k = [(k[0] + 0x9E3779B9) & MASK_32, (k[1] + 0xBB67AE85) & MASK_32]
    return c[:3]


def sum_of_bytes(word, position):
    """Exclusive or of a byte of the word for each of bits 0, 4, 5 and 3 of the position."""
    out = torch.zeros_like(word)
    for byte, bit in enumerate((0, 4, 5, 3)):
        out ^= torch.where(position >> bit & 1 == 1, word >> 8 * byte & 127, 0)
    return out


def kept_pairs(shape, probability, seed, offset, device):
    """[batch, heads, Sq, Sk] bool: a pair's 7 bits are below 128 (1 - p), or nearly so.

    Pairs whose positions differ in bits 0, 3, 4, 5 and 6 alone share eleven numbers: one for each
    bit and one for all, whose sum is a pair's. They are the 64 bits of one Philox-2x32-7, but for
    those of bit 6, which go around with the blocks of 128 keys. So does what is no whole 128th of
    1 - p.
    """
    batch, heads, seqlen_q, seqlen_k = shape
    limit = int(65536 * (1 - float(torch.tensor(probability, dtype=torch.float32))) + 0.5)
    words = torch.tensor([head_words(seed, offset, head) for head in range(batch * heads)],
                         device=device).reshape(-1, 3, 1, 1).unbind(1)
    i, j = (torch.arange(length, device=device) for length in (seqlen_q, seqlen_k))
    out = torch.empty(batch * heads, seqlen_q, seqlen_k, dtype=torch.bool, device=device)
    for head in range(batch * heads):
        key, query_word, key_word = (word[head] for word in words)
        c0 = query_word ^ ((i >> 7 << 2) | (i >> 1 & 3))[:, None]
        c1 = key_word ^ ((j >> 7 << 2) | (j >> 1 & 3))[None, :]
        c0, c1 = (c.expand(seqlen_q, seqlen_k) for c in (c0, c1))
        turn = (c0 * 0xD256D193 + (j >> 7)[None, :] * 0x9E3779B9) & MASK_32
        for round_number in range(7):
            product = c0 * 0xD256D193  # modulo 2^64: the shift below leaves what is wanted
            round_key = (key + round_number * 0x9E3779B9) & MASK_32
            c0, c1 = (product >> 32 & MASK_32) ^ c1 ^ round_key, product & MASK_32
        origin = sum((c >> 8 * byte & 255) << byte + 1 + first
                     for c, first in ((c0, 0), (c1, 4)) for byte in range(4) if first + byte < 7)
        number = origin >> 8 & 127 ^ sum_of_bytes(c0, i[:, None]) ^ sum_of_bytes(c1, j[None, :])
        number ^= torch.where((i >> 6 & 1)[:, None] == 1, turn >> 8 & 127, 0)
        number ^= torch.where((j >> 6 & 1)[None, :] == 1, turn >> 16 & 127, 0)
        out[head] = number < (limit + (turn >> 23)) // 512
    return out.reshape(shape)
